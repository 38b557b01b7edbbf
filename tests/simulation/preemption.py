"""Two who act at the same moment: at every access of one, the other comes in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.kit.fake_store import FakeStore
from tests.kit.toys import ToySink, ToySource
from tests.simulation.day import Day, Interrupted
from tidegate import Pipeline
from tidegate.coordinator import Coordinator
from tidegate.errors import Rejected
from tidegate.execution.job.run_job import run_job
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle.fork import fork, inspect_snapshot
from tidegate.lifecycle.snapshot import checkpoint_snapshot
from tidegate.records.place import Place


@dataclass
class Preempted(Interrupted):
    """At the n-th access from now on, somebody else acts."""

    left: int = 0
    act: Callable[[], object] | None = None

    def pause(self, what: str) -> None:
        self.left -= 1
        if self.left == 0 and self.act is not None:
            act, self.act = self.act, None
            act()
        super().pause(what)


def begun() -> Day:
    """Three checkpoints; the first two are about to be retired. Splits lie in side files."""
    day = Day(padding=40_000)
    for run in "abc":
        day.checkpoint(run)
    weather = Preempted()
    day.weather = day.disk.weather = day.tables.weather = day.feed.weather = weather
    return day


def told(call: Callable[[], object]) -> str:
    """ "" if it was done, or why not."""
    try:
        call()
    except Rejected as refused:
        return refused.reason
    return ""


def at(day: Day, moment: int, first: Callable[[], object], then: Callable[[], object]) -> bool:
    """`first`, and `then` just before its n-th access. False: it has fewer."""
    weather = day.weather
    assert isinstance(weather, Preempted)
    weather.left, weather.act = moment, then
    first()
    return weather.act is None


class Fork:
    """A second pipeline on the same source, with a table and a store of its own."""

    def __init__(self, day: Day) -> None:
        self.day, self.store, self.said = day, FakeStore(weather=day.weather), list[str]()
        self.store.root = "two"

    def coordinator(self) -> Coordinator:
        pipeline = Pipeline("two")
        pipeline.source("in", ToySource(self.day.feed, 1, 40_000)).sink("out", ToySink("two", self.day.tables))
        return Coordinator(pipeline.graph(), Ledger(self.store, "two"), self.day.limits, Place("/"))

    def make(self) -> None:
        to = self.coordinator()
        self.said.append(
            told(
                lambda: fork(inspect_snapshot(checkpoint_snapshot(Ledger(self.day.disk, "day"), 2, {}, by="x"), to), to)
            )
        )

    def holds(self) -> None:
        """It is whole, or it is not there and says why; then it can be made of another checkpoint."""
        if self.said[0]:
            assert self.said[0] in ("RETIRED", "NO_SUCH_CHECKPOINT")
            assert self.store.listing("") == []
            return
        to = self.coordinator()
        plan = to.trigger("next").plan  # type: ignore[union-attr]
        assert (plan.id, plan.base) == (3, 2)
        run_job(to, plan.id, "main", None)  # type: ignore[arg-type]
        assert to.complete(plan.id).state == "completed"
        to.publish()
        table = self.day.tables["two"]
        assert [offset for name in table.live() for offset, _ in table.files[name]] == [3]
        assert Ledger(self.day.disk, "day").pins() == []
