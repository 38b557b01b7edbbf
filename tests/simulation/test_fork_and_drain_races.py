"""A fork, or the end of a pipeline, and others at the same moment: at every access of one, others come in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.day import Day
from tests.simulation.preemption import Fork, Preempted, at, begun, told
from tidegate.checkpoint import suspension
from tidegate.ledger.ledger import Ledger
from tidegate.records.records import Drain


@pytest.mark.parametrize("first", ["fork", "retention"])
def test_a_fork_and_retention_at_the_same_moment(first: str) -> None:
    seen = set()
    for moment in range(1, 1000):
        day = begun()
        made = Fork(day)
        acts: list[Callable[[], object]] = [made.make, lambda day=day: day.coordinator().retire()]  # type: ignore[misc]
        if not at(day, moment, *(acts if first == "fork" else acts[::-1])):
            break
        seen.add(made.said[0])
        made.holds()
        day.checkpoint("d")
        assert day.published() == [1, 2, 3, 4]
    assert "" in seen
    assert len(seen) > 1, "sometimes retention was first"


def ended(day: Day, run: str = "end") -> str:
    """The last checkpoint, as far as others let it."""

    def act() -> None:
        plan = day.coordinator().trigger(run, drain=Drain(by="x")).plan  # type: ignore[union-attr]
        day.work(plan.id)
        day.coordinator().complete(plan.id)
        day.coordinator().publish()

    return told(act)


@pytest.mark.parametrize("first", ["end", "run"])
@pytest.mark.parametrize("at_once", [1, 2])
def test_nothing_is_planned_behind_the_end_whoever_comes_in_between(first: str, at_once: int) -> None:
    seen = set()
    for moment in range(1, 1000):
        day = Day()
        day.limit(max_concurrent_checkpoints=at_once)
        day.checkpoint("a")
        day.feed.available = 2  # one more checkpoint takes all that is left, so that the next end is the last of all
        weather = Preempted()
        day.weather = day.disk.weather = day.tables.weather = day.feed.weather = weather
        said: dict[str, str] = {}

        def end(day: Day = day, said: dict[str, str] = said) -> None:
            said["end"] = ended(day)

        def run(day: Day = day, said: dict[str, str] = said) -> None:
            said["run"] = told(lambda: day.trigger("b"))

        if not at(day, moment, *((end, run) if first == "end" else (run, end))):
            break
        day.limit(max_concurrent_checkpoints=3)
        seen.add((said["end"], said["run"]))
        view = Ledger(day.disk, "day").view()
        if (last := suspension.finished(view)) is not None:
            assert last.id == view.last_id
            assert told(lambda day=day: day.trigger("c")) == "FINISHED"  # type: ignore[misc]
    assert ("", "FINISHED") in seen or ("", "CHECKPOINT_IN_PROGRESS") in seen
    assert len(seen) > 1
