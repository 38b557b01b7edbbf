"""A pipeline that is cancelled for good, and others at the same moment: at every access of one, others come in between.

Whatever the moment: nothing that is completed is lost to the tables, what somebody has named stays whole, all else is
removed in the end, and nobody goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kit.sampling import in_turn
from tests.simulation.day import Day
from tests.simulation.preemption import Fork, Preempted, at, told
from tidegate.checkpoint import suspension
from tidegate.errors import Fenced
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import control, final_cleanup, savepoint
from tidegate.lifecycle.snapshot import checkpoint_snapshot, refuse_damage

pytestmark = in_turn(seconds=45)

Act = Callable[[], object]


def begun(owed: bool = False) -> Day:
    """Four checkpoints, with splits in side files; one is about to be retired. owed: a fifth, unpublished."""
    day = Day(padding=40_000)
    day.limit(num_retained=3)
    for run in "abcd":
        day.checkpoint(run)
    if owed:
        day.work(day.trigger("e"))
        assert day.coordinator().complete(5).state == "completed"
    weather = Preempted()
    day.weather = day.disk.weather = day.tables.weather = day.feed.weather = weather
    return day


def ledger(day: Day) -> Ledger:
    return Ledger(day.disk, "day")


def ended(day: Day) -> None:
    """Cancelled, and what it leaves removed, as far as others let it."""
    control.cancel(ledger(day), "x", "over", final=True)
    day.coordinator().publish()
    day.coordinator().retire()


def over(day: Day, named: set[int]) -> None:
    """Whoever comes later finds it over, and removes what is left of it but for what is named."""
    rows = day.published()
    for run in ("late", "later"):
        assert told(lambda run=run: day.trigger(run)) == "STOPPED"  # type: ignore[misc]
    assert told(lambda: control.resume(ledger(day), "x", after_end=True)) == "STOPPED"
    assert told(lambda: control.suspend(ledger(day), "x", "")) == "STOPPED"
    assert told(lambda: day.coordinator().roll_back(4, run="back", by="x")) in ("STOPPED", "NO_SUCH_CHECKPOINT")
    view = ledger(day).view()
    last = view.last_completed
    assert last is not None
    assert list(view.still_open()) == []
    assert view.settled == last.id
    assert day.published()[: len(rows)] == rows
    assert len(day.published()) == last.id, "what was completed is on the table, and stays there"
    below = {id for id in ledger(day).ids(before=last.id + 1) if ledger(day).is_retained(id)}
    assert below == named
    for id in named:
        assert checkpoint_snapshot(ledger(day), id, {}, by="x").entry.completed
        entry = ledger(day).entry(id)
        assert entry is not None
        assert all(ledger(day).unpack(part.splits) for part in entry.plan.sources.values())


def name(day: Day, said: list[str], id: int | None = None) -> Act:
    return lambda: said.append(told(lambda: savepoint.create(ledger(day), "good", id, "x")))


@pytest.mark.parametrize(("first", "id"), [("end", 2), ("name", 2), ("end", 4), ("name", 4)])
def test_a_name_that_was_promised_stays_and_all_else_goes(first: str, id: int) -> None:
    seen = set()
    for moment in range(1, 1000):
        day, said = begun(), list[str]()
        acts: list[Act] = [lambda day=day: ended(day), name(day, said, id)]  # type: ignore[misc]
        if not at(day, moment, *(acts if first == "end" else acts[::-1])):
            break
        seen.add(said[0])
        if said[0]:
            assert said[0] in ("RETIRED", "NO_SUCH_CHECKPOINT")
        over(day, set() if said[0] else _kept(day, id))
    assert "" in seen
    assert len(seen) > 1, "sometimes the end was first"


def _kept(day: Day, id: int) -> set[int]:
    """A tombstone may have been made just before the pin was seen: then it is whole, and not to be referred to anew."""
    entry = ledger(day).entry(id)
    assert entry is not None
    assert all(ledger(day).unpack(part.splits) for part in entry.plan.sources.values())
    return {id} if ledger(day).is_retained(id) else set()


def test_a_run_at_the_same_moment_comes_before_it_or_not_at_all() -> None:
    seen = set()
    for moment in range(1, 1000):
        day, said = begun(owed=True), list[str]()

        def run(day: Day = day, said: list[str] = said) -> None:
            try:
                said.append(told(lambda: day.checkpoint("f")))
            except (Fenced, AssertionError):
                said.append("ENDED")  # its checkpoint was aborted

        if not at(day, moment, run, lambda day=day: ended(day)):  # type: ignore[misc]
            break
        seen.add(said[0])
        over(day, set())
    assert seen == {"", "STOPPED", "ENDED"}


def test_a_rollback_at_the_same_moment_comes_before_it_or_not_at_all() -> None:
    seen = set()
    for moment in range(1, 1000):
        day, said = begun(), list[str]()

        def back(day: Day = day, said: list[str] = said) -> None:
            said.append(told(lambda: day.coordinator().roll_back(3, run="back", by="x")))

        if not at(day, moment, lambda day=day: ended(day), back):  # type: ignore[misc]
            break
        seen.add(said[0])
        live = len(day.tables["out"].live())
        assert live == (3 if not said[0] else 4)
        assert told(lambda day=day: day.trigger("late")) == "STOPPED"  # type: ignore[misc]
        assert [id for id in ledger(day).ids() if ledger(day).is_retained(id) and id < 5] == []
        assert ledger(day).pins() == []
    assert {"", "STOPPED"} <= seen


def test_a_fork_at_the_same_moment_is_whole_or_was_never_there() -> None:
    seen = set()
    for moment in range(1, 1000):
        day = begun()
        made = Fork(day)
        if not at(day, moment, made.make, lambda day=day: ended(day)):  # type: ignore[misc]
            break
        seen.add(made.said[0])
        made.holds()
        over(day, set())
    assert "" in seen
    assert len(seen) > 1


def test_it_can_be_broken_off_anywhere() -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    for moment in range(1, 1000):
        day = begun(owed=True)
        savepoint.create(ledger(day), "good", 3, "x")
        try:
            if not at(day, moment, lambda day=day: ended(day), die):  # type: ignore[misc]
                break
        except Killed:
            pass
        if suspension.final_cancel(ledger(day).view()) is None:
            assert day.trigger("late") == (6 if ledger(day).view().last_id == 6 else 7), "it has not begun"
            continue
        over(day, {3})
        savepoint.dispose(ledger(day), "good")
        over(day, set())
    assert moment > 30


def test_all_goes_at_once_behind_rollbacks_too() -> None:
    """A rollback's pin is of no use once the rollback is gone. (Found by
    tests/spark/random_histories.py, seed 9.)"""
    day = begun()
    for to in (3, 4):
        day.coordinator().roll_back(to, run=f"back to {to}", by="x")
    day.checkpoint("e")
    ended(day)
    assert (ledger(day).ids(), ledger(day).pins()) == ([7, 8], [])


def test_a_rollback_that_has_a_name_keeps_what_it_went_back_to() -> None:
    """Found on real Spark: tests/spark/random_histories.py, seed 9."""
    day = begun()
    for to in (3, 5):  # the second one goes back to the first
        day.coordinator().roll_back(to, run=f"back to {to}", by="x")
    savepoint.create(ledger(day), "good", 6, "x")
    day.checkpoint("e")
    ended(day)
    assert ledger(day).ids() == [3, 5, 6, 7, 8]
    refuse_damage(held := checkpoint_snapshot(ledger(day), 6, {}, by="x"))
    assert [ack.id for ack in held.acks] == [3]
    savepoint.dispose(ledger(day), "good")
    day.coordinator().retire()
    assert (ledger(day).ids(), ledger(day).pins()) == ([7, 8], [])


def test_nothing_is_removed_before_the_tables_have_what_they_are_owed() -> None:
    day = begun(owed=True)
    control.cancel(ledger(day), "x", "over", final=True)
    assert final_cleanup.delete_cancelled(day.coordinator()) == []
    assert [entry.id for entry in ledger(day).view().entries if entry.completed] == [4, 5]
    assert day.published() == [1, 2, 3, 4]
    assert told(lambda: day.trigger("late")) == "STOPPED"
    assert day.published() == [1, 2, 3, 4, 5], "the next run has published it"
    assert ledger(day).ids() == [5, 6], "and removed the rest"
