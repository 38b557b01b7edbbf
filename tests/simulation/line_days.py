"""A long life in which somebody computes again what was made: backfills beside checkpoints, rollbacks, savepoints,
forks, retention and clean-ups. They are begun, replayed in part, left lying, continued by others, swapped in or not.

The mended code reads each offset n as -n, so each row and each state tells by which code it was computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tests.simulation import actors
from tests.simulation.line_storage import LineGate, MendableSource, ShadowedSink, lines_in_memory
from tests.simulation.long_lives import STATE, LongClimate, LongWorld
from tests.simulation.state_storage import Totals
from tests.simulation.world import GATE, TABLES, SimulatedWorld, Violation
from tidegate import Pipeline
from tidegate.backfill import OpenBackfill, begin, discard, open_line, pause_pipeline, release_pipeline, replay, swap
from tidegate.backfill.discard import release_name
from tidegate.backfill.open_backfill import Cuts
from tidegate.coordinator import Coordinator, Outcome
from tidegate.errors import Corrupt, Fenced, Rejected, TidegateError, Unavailable
from tidegate.execution.loop import Observer, Schedule
from tidegate.ledger.ledger import Ledger
from tidegate.pipeline import Stream
from tidegate.records.place import Place
from tidegate.records.records import Plan

BACKFILL, PROPOSER = "backfill", "proposer"
"""How the processes' names begin."""


@dataclass(frozen=True)
class LineClimate(LongClimate):
    """What else is different from life to life."""

    backfills: int
    """How many people work on backfills, one after the other or at once."""
    discards: float
    """How often somebody thinks better of it."""
    hasty: float
    """How often somebody leaves it lying."""
    behind: float
    """How often the listing that the backfill sees lags behind the other one."""
    bold: float
    """How often somebody swaps in without letting the pipeline wait."""
    suspensions: int
    """How often somebody suspends the pipeline for a while, whatever others are doing."""
    recorded: float
    """How often somebody lets a backfill cut its input as it was recorded."""
    proposals: int
    """How many proposals are made, whatever others are doing."""


class LineWorld(LongWorld):
    """The pipeline's code has been mended: whoever backfills has the new one, whoever runs it the old one."""

    climate: LineClimate

    def __post_init__(self) -> None:
        super().__post_init__()
        dice = self.dice
        milder = {
            "ticks": 6_000,
            "power_losses": dice.one_of([0, 0, 0, 1]),
            "mishaps": dice.one_of([0.0, 0.0, 0.001]),
            "months": 0.0,
            "elsewhere": 0.0,
            "returns": dice.one_of([0, 1, 2]),
            "copies": 0,
        }
        self.climate = LineClimate(
            **{**asdict(self.climate), **milder},
            backfills=dice.one_of([3, 2, 4]),
            discards=dice.one_of([0.05, 0.0, 0.4]),
            hasty=dice.one_of([0.2, 0.0, 0.5]),
            behind=dice.one_of([0.0, 0.6]),
            bold=dice.one_of([0.0, 0.7]),
            suspensions=dice.one_of([2, 0, 6]),
            recorded=dice.one_of([0.5, 0.0, 1.0]),
            proposals=dice.one_of([0, 1, 3]),
        )
        self.graph = self._pipeline().graph()
        self._forked = self._fork().graph()
        self._mended = self._pipeline(mended=True).graph()

    def _pipeline(self, mended: bool = False) -> Pipeline:
        pipeline = Pipeline("day")
        climate = self.climate
        segments = climate.segments if isinstance(climate, LongClimate) else 1
        bound = climate.bound * (5 if mended else 1)
        source = MendableSource(self, bound, climate.padding, segments, mended)
        rows = self._gated(pipeline.source("in", source).apply(Totals(), uid=STATE))
        for name in TABLES:
            rows.sink(name, ShadowedSink(name, self.tables))
        return pipeline

    def _gated(self, rows: Stream) -> Stream:
        climate = self.climate
        gate = LineGate(0, climate.hold_for, climate.unanswered, self.bad, self.tables)
        gate.home = self.store.root
        return rows.gate(gate, name=GATE)

    def mended(self) -> Coordinator:
        """As for any run, with the new code."""
        return Coordinator(self._mended, Ledger(self.store, "day"), self.climate, Place("/"))

    def more_people(self) -> None:
        super().more_people()
        delay = 0
        for _ in range(self.climate.backfills):  # some at the same time
            delay = delay + self.dice.below(40) if self.dice.chance(0.4) else 300 + self.dice.below(4_500)
            self.spawn(BACKFILL, BACKFILL, lambda: _backfiller(self), delay)
        for number in range(self.climate.proposals):
            self.spawn(PROPOSER, PROPOSER, lambda number=number: _proposer(self, number), self.dice.below(4_000))  # type: ignore[misc]
        if self.climate.suspensions:
            self.spawn("suspender", "", lambda: _suspender(self), self.dice.below(2_000))

    def _lose_power(self) -> None:
        super()._lose_power()
        self.spawn(BACKFILL, BACKFILL, lambda: _backfiller(self), self.dice.below(500))

    def last_acts(self) -> list[tuple[str, Callable[[], None]]]:
        return [
            (f"{BACKFILL} last", lambda: _last_backfill(self)),
            ("after", lambda: actors.last_run(self)),
        ]


@contextlib.contextmanager
def lines(world: SimulatedWorld) -> Iterator[None]:
    """What it takes that is not in the world itself."""
    if not isinstance(world, LineWorld):
        yield
        return
    suspicion = actors.suspicion(world, BACKFILL)

    def gone(plan: Plan) -> str | None:
        who = plan.run.partition(":")[0]
        at_work = any(process.name == who and process.alive for process in world.processes)
        return None if world.calm and at_work else suspicion(plan)

    with lines_in_memory(world, gone):
        yield


# -- people ------------------------------------------------------------------------------------------------

OVER = ("LINE_REFUSED", "RETIRED", "CANNOT_BACKFILL", "LINE_SWAPPED", "LINE_DISCARDED", "CUTS_DO_NOT_FIT")
"""Why a backfill never comes to another end."""

REFUSALS = (Unavailable, Rejected, Fenced, actors.GaveUp)


def _suspender(world: LineWorld) -> None:
    """A person who looks at something, while nothing new is to be made."""
    coordinator = world.coordinator()
    for _ in range(world.climate.suspensions):
        world.sleep(world.dice.below(1_000))
        try:
            coordinator.suspend("suspender", "")
            world.sleep(world.dice.below(800))
            coordinator.resume("suspender")
        except (Unavailable, Rejected) as error:
            world.log(f"looks at nothing: {error.what}")


def _proposer(world: LineWorld, number: int) -> None:
    """Somebody who only wants to see what the new code would make of the last checkpoints."""
    live = world.mended()
    for turn in range(3):
        world.sleep(world.dice.below(300))
        ids = actors.completed(world)
        if len(ids) < 2:
            continue
        name, origin, last = f"proposal-{number}-{turn}", world.dice.one_of(ids[-4:-1]), ids[-1]
        try:
            line = begin(live, name, origin, by="bea", cuts="recorded", drops_by_hand=True, purpose="proposal")
            line.backfill.until = live.real_entry(last)
            _replays(world, line)
            discard(line, "bea")
            world.log(f"has seen {name} over {origin} to {last}")
        except REFUSALS as error:
            world.log(f"proposes in vain: {error}")
        except Corrupt as error:
            if error.reason != "LINE_MOVED":
                raise
        if world.dice.chance(0.5):
            with contextlib.suppress(*REFUSALS):
                _ends(world, only=name)


def _discarder(world: LineWorld) -> None:
    """A person who thinks better of it, just while it is swapped in."""
    with contextlib.suppress(*REFUSALS):
        _ends(world)


class TooLong(Rejected):
    """Somebody has no more patience."""


def _backfiller(world: LineWorld) -> None:
    """A person who backfills: begins, or continues what others have left lying; until it is swapped in or discarded,
    or something else is more important."""
    for _ in range(6):
        world.sleep(world.dice.below(300))
        try:
            if _works(world, hasty=world.dice.chance(world.climate.hasty)):
                return
        except REFUSALS as error:
            world.log(f"does not get on: {error}")
            if getattr(error, "reason", "") in (
                "LINE_REFUSED",
                "RETIRED",
                "CANNOT_BACKFILL",
                "CANNOT_SWAP",
                "CUTS_DO_NOT_FIT",
            ):
                with contextlib.suppress(*REFUSALS):
                    _ends(world)
        except Corrupt as error:
            if error.reason != "LINE_MOVED":
                raise
            world.log(f"works beside somebody else: {error.what}")


def _works(world: LineWorld, *, hasty: bool) -> bool:
    """Whether it came to its end."""
    line = _opened(world)
    if line is None:
        return False
    if world.dice.chance(world.climate.discards):
        _ends(world)
        return True
    _replays(world, line, upto=1 + world.dice.below(2) if hasty else None)
    if hasty:
        world.log(f"leaves {line.name} lying")
        return False
    try:
        if world.calm or not world.dice.chance(world.climate.bold):
            me = world.current.name if world.current is not None else ""
            pause_pipeline(line, lambda why: _waits(world, why), f"{me}:{world.tick:.0f}:swap")
            _replays(world, line)
        if not world.calm and world.dice.chance(world.climate.discards):
            world.spawn("discarder", "", lambda: _discarder(world), world.dice.below(200))
        swapped = swap(line, by="ann", choices={}, wait=lambda why: _waits(world, why))
    except BaseException:
        with contextlib.suppress(TidegateError):
            release_pipeline(line, "it was not swapped in")
        raise
    world.log(f"swaps {line.name} in by {swapped.id}")
    plan = line.live.ledger.plan(swapped.id)
    if swapped.savepoint is not None and plan is not None and plan.base is not None:
        world.promised[swapped.savepoint] = plan.base
    if swapped.error is not None:
        raise swapped.error
    if swapped.report is None or swapped.report.stuck:
        return False
    if not world.calm and world.dice.chance(0.4):
        return True  # somebody else may look after it
    world.sleep(world.dice.below(50))
    _ends(world)
    return True


def _opened(world: LineWorld) -> OpenBackfill | None:
    """The line that there is, or a new one; None: nothing is there to begin with."""
    live = world.mended()
    there = live.ledger.backfills()
    if there:
        return begin(live, there[0].name, there[0].origin, by="ann")
    ids = actors.completed(world)
    if len(ids) < 2:
        return None
    pins = {pin.owner for pin in live.ledger.pins()}
    taken = {*live.ledger.store.names("lines"), *(owner.removeprefix("line-") for owner in pins)}
    name = next(name for n in range(1, 99) if (name := f"fix{n}") not in taken)
    origin = world.dice.one_of([*ids[:-1], 0] if world.dice.chance(0.5) else ids[-3:])
    cuts: Cuts = "recorded" if world.dice.chance(world.climate.recorded) else "own"
    line = begin(live, name, origin, by="ann", cuts=cuts)
    world.log(f"begins {name} at {origin} with {cuts} cuts")
    return line


def _replays(world: LineWorld, line: OpenBackfill, upto: int | None = None) -> None:
    made: list[Outcome] = []

    class Counted(Observer):
        def decided(self, plan: Plan, outcome: Outcome, acks: Any, seconds: float) -> None:
            made.append(outcome)

        def waiting(self, why: str) -> None:
            _waits(world, why)

    number = iter(range(10**6))
    me = world.current.name if world.current is not None else ""
    schedule = Schedule(
        stop=lambda: upto is not None and len(made) >= upto,
        new_run=lambda: f"{me}:{world.tick:.0f}:{next(number)}",
        tolerable_failures=2,
    )
    no_spark: Any = _NoSpark()
    replay(line, no_spark, schedule, Counted())


class _NoSpark:
    """The session of toys."""

    def __call__(self, job: str | None = None) -> None:
        return None

    def drop(self) -> None:
        """There is none."""


def _waits(world: LineWorld, why: str) -> None:
    world.log(f"waits: {why}")
    world.sleep(5 + world.dice.below(20))
    if not world.calm and world.dice.chance(0.02):
        raise TooLong(f"has no patience: {why}")


def _ends(world: LineWorld, only: str = "") -> list[str]:
    """Discard all lines that there are, swapped in or not, or only this one. Return their names."""
    live, names = world.mended(), []
    for name in live.ledger.store.names("lines"):
        if only not in ("", name):
            continue
        record = live.ledger.line(name)
        if record is not None:
            swapped = discard(open_line(live, record), "ann")
            world.log(f"discards {name}, swapped in by {swapped}")
            names.append(name)
    for pin in live.ledger.pins():
        name = pin.owner.removeprefix("line-")
        if only in ("", name) and pin.kind == "line" and live.ledger.line(name) is None:
            release_name(live.ledger, name, "ann")
            world.log(f"lets go of {name}")
    return names


def _last_backfill(world: LineWorld) -> None:
    """I8: what is there of a backfill is brought to its end: swapped in, if what it rests on still counts."""
    for _ in range(20):
        if not actors.patiently(world, world.mended().ledger.lines):
            break
        try:
            if _works(world, hasty=False):
                break
        except Rejected as error:
            world.log(f"at last: {error}")
            if error.reason in OVER:
                break
        world.sleep(20)
    else:
        raise Violation("I8: a backfill does not come to its end")
    _nothing_is_left(world, actors.patiently(world, lambda: _ends(world)))


def _nothing_is_left(world: LineWorld, names: list[str]) -> None:
    """Whoever has discarded a line has left nothing of it, but what a swap has brought, and the tombstone."""
    ledger = world.mended().ledger
    if left := [pin.owner for pin in ledger.pins() if pin.kind == "line"]:
        raise Violation(f"all lines are discarded, and there is {left[0]}")
    for name in names:
        left = [path for path in world.store.files if path.startswith(f"lines/{name}/")]
        if left != [f"lines/{name}/discarded.json"]:
            raise Violation(f"backfill {name} is discarded, and there is {left}")
