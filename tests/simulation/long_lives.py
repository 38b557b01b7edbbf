"""A long life: a pipeline with state and shared side files that is gone back, named, forked, copied, cleaned up and
repaired, and lives on until retention has passed all of that.

    in ──▶ totals ──▶ checked ──▶ first, second
                         └──▶ quarantine
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.kit.fake_store import FakeStore
from tests.kit.toys import ToyFeed, ToySink, ToySource, ToyTables
from tests.simulation import actors
from tests.simulation.fault_rates import Climate
from tests.simulation.state_storage import Totals, states_in_memory
from tests.simulation.world import FORK, TABLES, SimulatedWorld
from tidegate import Pipeline
from tidegate.connectors.sink import Prepared
from tidegate.connectors.source import Planned, SourceContext
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.lifecycle import savepoint
from tidegate.records.place import Place
from tidegate.records.records import Blob, Json
from tidegate.verify import history as verify_history
from tidegate.verify import tables as verify_tables
from tidegate.verify.finding import Finding
from tidegate.verify.verifier import verify_pipeline

STATE = "totals"


@dataclass(frozen=True)
class LongClimate(Climate):
    """What else is different from life to life."""

    files: int
    """So many files a state has before they are merged."""
    segments: int
    """So many side files a position has before they are merged."""
    returns: int
    """How often somebody goes back, mostly not far, and mostly with a name for what is left behind."""
    names: int
    """How often somebody gives a checkpoint a name, or takes one back."""
    repairs: int
    """How often somebody runs `doctor --repair`."""
    per_day: int
    months: float
    """How often a clock goes wrong by a month."""
    elsewhere: float
    """How often a task of Spark's writes to a disk that only its own machine sees."""

    def record(self) -> Json:
        return {**super().record(), "retain_per_day": self.per_day}


class Remembering(ToySource):
    """Its position names side files, which it shares with the positions before and after it, as `Files` does."""

    def __init__(self, feed: ToyFeed, bound: int, padding: int, most: int) -> None:
        super().__init__(feed, bound, padding)
        self.most = most

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        planned = super().plan(start, context)
        seen = list((start or {"seen": []})["seen"])
        names = [range_ for each in seen for range_ in json.loads(context.blobs.get_blob(Blob(**each)))]
        if not planned.is_empty:
            new = [(start or {"at": 0})["at"], planned.end["at"] if planned.end else 0]
            merges = len(seen) >= self.most
            blob = context.blobs.put_blob(json.dumps([*names, new] if merges else [new]).encode())
            seen = [*([] if merges else seen), {"path": blob.path, "sha": blob.sha, "size": blob.size}]
        end = (planned.end or {}) | {"seen": seen}
        return Planned(
            end=end, splits=planned.splits, is_empty=planned.is_empty, has_more=planned.has_more, amount=planned.amount
        )


class Scattered(ToySink):
    """Each row comes to it. What a task of Spark's has written may lie on the disk of another machine: Spark says that
    all is well, and here only what lies here is known of. The gate in front has counted the rows, too."""

    counts_input_rows = True

    def __init__(self, name: str, tables: ToyTables, world: LongWorld) -> None:
        super().__init__(name, tables)
        self.world = world

    def prepare(self, frame: Any, context: Any, staging: Any) -> Prepared:
        prepared = super().prepare(frame, context, staging)
        world = self.world
        names = (prepared.committable or {"files": []})["files"]
        if not names or world.calm or not world.climate.elsewhere or not world.dice.chance(world.climate.elsewhere):
            return prepared
        lost = world.dice.one_of(names)
        del self._table.files[lost]
        world.log(f"writes {lost} elsewhere")
        here = [name for name in names if name != lost]
        return Prepared(committable={"files": here} if here else None, rows=len(here), files=len(here))


class LongWorld(SimulatedWorld):
    """The same storage and the same troubles, but milder, and for longer."""

    bad = 3
    lived = True

    climate: LongClimate

    def __post_init__(self) -> None:
        super().__post_init__()
        dice = self.dice
        milder = {
            "max_concurrent_checkpoints": dice.one_of([1, 1, 2]),
            "num_retained": dice.one_of([3, 2, 1]),
            "max_unpublished": 10,
            "runs": dice.one_of([1, 2]),
            "ticks": 5_000,
            "timeout": 1e9,
            "doubled": dice.one_of([0.0, 0.3]),
            "sticky": dice.one_of([0.95, 0.8, 0.5]),
            "foreign_commits": 0,
            "kills": dice.one_of([0.0, 0.0002]),
            "stalls": dice.one_of([0.0, 0.001]),
            "mishaps": dice.one_of([0.0, 0.0, 0.002]),
            "lag": dice.one_of([0, 0, 10]),
            "power_losses": dice.one_of([0, 0, 0, 0, 0, 1]),
            "suspicion": dice.one_of([0.0, 0.05]),
            "clock_jumps": 0.0,
            "rollbacks": 0,
            "meddlers": 0,  # they stop it for long
            "holds": 0,
            "skip": 0,
            "padding": 0,
            "drains": 0,
            "tolerable_failed_checkpoints": 1_000_000,
            "forks": dice.one_of([0, 0, 1]),
            "copies": dice.one_of([0, 0, 1]),
        }
        self.climate = LongClimate(
            **{**asdict(self.climate), **milder},
            files=dice.one_of([2, 1, 3, 100]),
            segments=dice.one_of([2, 1, 3, 100]),
            returns=dice.one_of([1, 2, 0, 3]),
            names=dice.one_of([0, 4, 8]),
            repairs=dice.one_of([0, 4, 8]),
            per_day=dice.one_of([0, 0, 1, 2]),
            months=dice.one_of([0.0, 0.0, 0.002]),
            elsewhere=dice.one_of([0.0, 0.0, 0.2]),
        )
        self.graph = self._pipeline().graph()
        self._forked = self._fork().graph()
        self.turns: dict[str, int] = {}
        """By line of runs, the one that it has come to."""

    def _source(self) -> Remembering:
        climate = self.climate
        segments = climate.segments if isinstance(climate, LongClimate) else 1
        return Remembering(self.feed, climate.bound, climate.padding, segments)

    def _pipeline(self) -> Pipeline:
        pipeline = Pipeline("day")
        rows = self._gated(pipeline.source("in", self._source()).apply(Totals(), uid=STATE))
        for name in TABLES:
            rows.sink(name, Scattered(name, self.tables, self))
        return pipeline

    def _fork(self) -> Pipeline:
        pipeline = Pipeline(FORK)
        pipeline.source("in", self._source()).apply(Totals(), uid=STATE).sink(FORK, ToySink(FORK, self.tables))
        return pipeline

    def go(self, run: str, does: Callable[[str], None]) -> None:
        """One run after the other, as long as the weather lasts. Whoever dies is followed by one who continues."""
        assert self.current is not None
        me = self.current
        while not self.calm:
            me.run = f"{run}/{self.turns.get(run, 0)}"
            does(me.run)
            self.turns[run] = self.turns.get(run, 0) + 1

    def _trouble(self, process: Any) -> None:
        super()._trouble(process)
        if process.name.startswith("doctor") and self.dice.chance(0.03):
            process.wake = self.tick + self.dice.below(400)  # it has much to read; the pipeline lives on meanwhile
        if self.climate.months and self.dice.chance(self.climate.months):
            self._skew = timedelta(days=self.dice.one_of([0, 40, 400, -40]))

    def more_people(self) -> None:
        if self.climate.returns:
            self.spawn("returner", "", lambda: _returner(self), self.dice.below(600))
        if self.climate.names:
            self.spawn("namer", "", lambda: _namer(self), self.dice.below(400))
        if self.climate.repairs:
            self.spawn("doctor", "", lambda: _repairer(self), self.dice.below(400))

    def stores(self) -> list[FakeStore]:
        """Wherever files may lie."""
        return [self.store, *self.others.values()]


@contextlib.contextmanager
def long_life(world: SimulatedWorld) -> Iterator[None]:
    """What it takes that is not in the world itself."""
    if not isinstance(world, LongWorld):
        yield
        return
    nothing: Any = lambda *_: iter(())  # noqa: E731
    with (
        states_in_memory(world.stores, world.climate.files) as world.shelves,
        mock.patch.multiple(verify_history, check_history=nothing, check_sources=nothing),
        mock.patch.multiple(verify_tables, _versions=nothing, _staged=nothing),
    ):
        yield


# -- people ------------------------------------------------------------------------------------------------


def _returner(world: LongWorld) -> None:
    """A person who goes back, mostly not far, and keeps what is left behind, in case it was right."""
    coordinator = world.coordinator()
    for number in range(world.climate.returns):
        world.sleep(600 + world.dice.below(600))
        while len(ids := actors.completed(world)) < 3 and not world.calm:
            world.sleep(100)
        if len(ids) < 2:
            return
        if world.dice.chance(0.6):
            _gives(world, f"left{number}", ids[-1])
        to = ids[-2] if world.dice.chance(0.6) else world.dice.one_of(ids)
        for _ in range(5):
            try:
                done = coordinator.roll_back(to, run=f"return {number}", by="returner")
                world.log(f"went back to {to} by {done.id}")
                break
            except (Unavailable, Rejected) as error:
                world.log(f"did not go back to {to}: {error.what}")
                world.sleep(20)


def _gives(world: LongWorld, name: str, id: int) -> None:
    try:
        made = savepoint.create(world.coordinator().ledger, name, id, "a person")
        world.promised[made.name] = made.entry
        world.log(f"names checkpoint {id}")
    except (Unavailable, Rejected, Invalid) as error:
        world.log(f"names nothing: {error.what}")


def _takes(world: LongWorld, name: str) -> None:
    world.promised.pop(name)
    try:
        savepoint.dispose(world.coordinator().ledger, name)
        world.log(f"takes the name {name} back")
    except (Unavailable, Invalid) as error:
        world.log(f"takes no name back: {error.what}")


def _namer(world: LongWorld) -> None:
    """A person who gives checkpoints names, old and new ones, and takes names back."""
    for number in range(world.climate.names):
        world.sleep(world.dice.below(700))
        ids = actors.completed(world)
        if world.promised and world.dice.chance(0.5):
            _takes(world, world.dice.one_of(sorted(world.promised)))
        elif ids:
            _gives(world, f"kept{number}", ids[-1] if world.dice.chance(0.6) else world.dice.one_of(ids))


def _repairer(world: LongWorld) -> None:
    """A person who has `doctor --repair` clean up beside the pipeline at work."""
    for _ in range(world.climate.repairs):
        world.sleep(world.dice.below(500))
        try:
            done = [found.detail for found in examined(world, repair=True) if "removed" in found.detail]
        except Unavailable as error:
            done = [f"found nothing: {error.what}"]
        for detail in done:
            world.log(f"has {detail}")


def examined(world: LongWorld, *, repair: bool = False) -> list[Finding]:
    """What the doctor finds. Its looks at the history, and at the logs of sinks' tables, need real ones."""
    settings = SimpleNamespace(root="", storage_options={}, mode="", place=lambda: Place("/"))
    pipeline = SimpleNamespace(graph=lambda place, mode: world.graph)
    target: Any = SimpleNamespace(
        name="day",
        ledger=world.coordinator().ledger,
        settings=settings,
        pipeline=pipeline,
        graph=lambda: world.graph,
    )
    return list(verify_pipeline(target, repair))
