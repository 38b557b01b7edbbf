"""Retention counts on from where it stopped, and always comes to what counting from the start comes to."""

import itertools

import pytest

from tidegate.ledger import open_ledger
from tidegate.ledger.record_files import stamp
from tidegate.lifecycle.retention import _count_retained, retention_floor
from tidegate.records.records import Decision, RetainedCount

WHO = stamp("0" * 16)


class Counting:
    """A ledger as far as retention looks at it, in memory."""

    def __init__(self) -> None:
        self.outcomes: dict[int, str] = {}
        self.hint: RetainedCount | None = None
        self.reads = 0

    def add(self, outcome: str) -> None:
        self.outcomes[max(self.outcomes, default=0) + 1] = outcome

    def view(self):
        done = [id for id, outcome in self.outcomes.items() if outcome == "completed"]
        return type("View", (), {"settled": max(done, default=0)})

    def ids(self, after=0, before=None):
        return [id for id in self.outcomes if after < id and (before is None or id < before)]

    def decision(self, id):
        self.reads += 1
        return Decision(**WHO, id=id, outcome=self.outcomes[id]) if id in self.outcomes else None

    def has_plan(self, id):
        return id in self.outcomes

    def retained_count(self):
        return self.hint

    def rollbacks(self, pins=None):
        return []

    def entry(self, id):
        """No job is behind."""


def floor_by_counting(ledger: Counting, num_retained: int) -> int:
    completed = [id for id, outcome in ledger.outcomes.items() if outcome == "completed"]
    return completed[-num_retained] if len(completed) >= num_retained else 0


@pytest.mark.parametrize("num_retained", [1, 2, 3])
@pytest.mark.parametrize("hinted_with", [1, 2, 3])
def test_the_floor_is_the_same_from_any_earlier_count(num_retained, hinted_with):
    for outcomes in itertools.product(["completed", "aborted"], repeat=6):
        for hinted_after in range(7):
            ledger = Counting()
            for number, outcome in enumerate(outcomes):
                if number == hinted_after:
                    ledger.hint = _count_retained(ledger, hinted_with, [])
                    for id in [id for id in ledger.outcomes if id < retention_floor(ledger, hinted_with)]:
                        del ledger.outcomes[id]
                ledger.add(outcome)
            assert retention_floor(ledger, num_retained) == floor_by_counting(ledger, num_retained), outcomes


def test_a_count_whose_entries_others_have_retired_since_is_made_again():
    ledger = Counting()
    for _ in range(9):
        ledger.add("completed")
    ledger.hint = RetainedCount(**WHO, low=2, upto=4, completed=3)
    del ledger.outcomes[1], ledger.outcomes[2], ledger.outcomes[3]
    assert retention_floor(ledger, 2) == 8


def test_the_cost_follows_what_is_new_and_what_is_dropped():
    ledger = Counting()
    for _ in range(500):
        ledger.add("completed")
    ledger.hint = _count_retained(ledger, 400, [])
    ledger.add("completed")
    ledger.reads = 0
    assert retention_floor(ledger, 400) == 102
    assert ledger.reads < 5


def test_a_damaged_count_is_made_again(tmp_path):
    ledger = open_ledger(str(tmp_path), "p")
    ledger.hint_retained_count(RetainedCount(**WHO, low=1, upto=2, completed=2))
    assert ledger.retained_count() == RetainedCount(**WHO, low=1, upto=2, completed=2)
    (tmp_path / "p" / "kept.json").write_text('{"format": 1')
    assert ledger.retained_count() is None
