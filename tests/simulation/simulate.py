"""One seed, one day: bad weather first, then calm, then judgement, then the zombies' last turn, and judgement again."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from unittest import mock

from tests.simulation import actors, lifecycle_days, lifecycle_oracle
from tests.simulation.choices import Dice, SeededDice
from tests.simulation.dropping_days import DroppingOracle, DroppingWorld
from tests.simulation.event_days import EventOracle, EventWorld
from tests.simulation.event_line_days import EventLineOracle, EventLineWorld
from tests.simulation.interval_days import HourOracle, HourWorld
from tests.simulation.line_days import LineWorld, lines
from tests.simulation.line_oracle import LineOracle
from tests.simulation.long_lives import LongWorld, long_life
from tests.simulation.long_lives_oracle import LongOracle
from tests.simulation.oracle import Oracle
from tests.simulation.overtaking_days import BehindWorld, BusyOracle, BusyWorld, channels_in_memory
from tests.simulation.quarantine_days import AsideOracle, AsideWorld
from tests.simulation.refusing_days import RefusingOracle, RefusingWorld, diverts_in_memory
from tests.simulation.renaming_days import RenamingWorld
from tests.simulation.world import SimulatedWorld, Violation
from tidegate import seams
from tidegate.ledger import log, record_files
from tidegate.records import codec

LATE = 1e9
"""A process that wakes up only after everything has been judged once."""


@dataclass(frozen=True)
class Day:
    """What happened."""

    problem: str | None
    events: list[tuple[float, str, str]]
    checkpoints: int
    completed: int

    def digest(self) -> str:
        """Equal for equal days."""
        return hashlib.sha256(repr(self.events).encode()).hexdigest()

    def story(self) -> str:
        """All of it, for people."""
        return "\n".join(f"{tick:7.0f}  {who:10} {what}" for tick, who, what in self.events)


KINDS: dict[str, tuple[type[SimulatedWorld], type[Oracle]]] = {
    "life": (SimulatedWorld, lifecycle_oracle.LifeOracle),
    "events": (EventWorld, EventOracle),
    "hours": (HourWorld, HourOracle),
    "aside": (AsideWorld, AsideOracle),
    "refused": (RefusingWorld, RefusingOracle),
    "busy": (BusyWorld, BusyOracle),
    "behind": (BehindWorld, BusyOracle),
    "years": (LongWorld, LongOracle),
    "renamed": (RenamingWorld, Oracle),
    "dropped": (DroppingWorld, DroppingOracle),
    "lines": (LineWorld, LineOracle),
    "watched": (EventLineWorld, EventLineOracle),
}
"""Of a pipeline that is forked, copied and brought to its end; the same by event; of an interval pipeline; with bad
rows, which go into quarantine; with a target that refuses rows, which people divert; of several jobs, past which
checkpoints go, and of such that are always behind; of one with state and shared side files, which lives long; of one
whose source is renamed; of several jobs, and what is in flight between them is let go of; of one with backfills, which
run, are continued, swapped in and discarded beside rollbacks and retention; and the same by event."""


def simulate_seed(seed: int, kind: str = "life") -> Day:
    """The day of this seed."""
    return simulate(SeededDice(seed), kind)


@dataclass(frozen=True)
class Summary:
    """A day in short."""

    seed: int
    problem: str | None
    events: int
    completed: int


def simulate_many(seeds: Iterable[int], kind: str = "life") -> list[Summary]:
    """The days of these seeds, one after the other."""
    days = ((seed, simulate_seed(seed, kind)) for seed in seeds)
    return [Summary(seed, day.problem, len(day.events), day.completed) for seed, day in days]


def simulate(dice: Dice, kind: str = "life") -> Day:
    """A day whose every turn is decided by `dice`."""
    of_world, of_oracle = KINDS[kind]
    world = of_world(dice)
    oracle = of_oracle(world)
    with (
        seams.installed(world.seams()),
        decoded_once(),
        lifecycle_days.folders_in_memory(world),
        channels_in_memory(world),
        long_life(world),
        diverts_in_memory(world),
        lines(world),
    ):
        try:
            _storm(world, hours=kind == "hours")
            _calm(world)
            if not world.problem:
                oracle.judge()
                _zombies(world)
            if not world.problem:
                oracle.judge()
        except Violation as violation:
            world.problem = world.problem or str(violation)
        finally:
            world.close()
    try:
        checkpoints = oracle.log()
    except Violation:
        checkpoints = []
    completed = sum(checkpoint.completed for checkpoint in checkpoints)
    return Day(world.problem, world.events, len(checkpoints), completed)


@contextlib.contextmanager
def decoded_once() -> Iterator[None]:
    """Decoding is a pure function, and half of the time of a simulation: each record is decoded once."""
    with mock.patch.object(record_files, "decode", _decode), mock.patch.object(log, "decode", _decode):
        yield


_decode = functools.lru_cache(maxsize=5000)(codec.decode)


def _storm(world: SimulatedWorld, hours: bool) -> None:
    """Everybody at work, everything goes wrong."""
    for number in range(world.climate.runs):
        _start_run(world, number, world.dice.below(world.spread))
        if world.dice.chance(world.climate.doubled):
            _start_run(world, number, world.dice.below(world.spread + 100))
    for number in range(world.climate.meddlers):
        world.spawn(f"meddler{number}", "", lambda: actors.meddler(world), world.dice.below(200))
    if world.climate.foreign_commits:
        world.spawn("foreign", "", lambda: actors.foreign_writer(world))
    if world.climate.rollbacks and not hours:
        world.spawn("rollback", "", lambda: actors.rollbacker(world), world.dice.below(200))
    if world.bad:
        _ask_for_bad_rows(world)
    if world.lived:
        lifecycle_days.begin(world)
    world.more_people()
    restarts = 2 * world.climate.runs
    world.on_power_loss = lambda: _restart_all(world)
    while restarts and not world.problem and world.tick < world.climate.ticks:
        world.play(until=min(world.tick + 100, world.climate.ticks))
        dead = [process for process in world.graves if process.run.startswith("run ")]
        if dead and world.dice.chance(0.5):
            number = int(world.dice.one_of(dead).run.split()[1].split("/")[0])
            _start_run(world, number, world.dice.below(50))
            restarts -= 1
        elif not world.processes:
            return
    world.play(until=world.climate.ticks)


def _ask_for_bad_rows(world: SimulatedWorld) -> None:
    for _ in range(2):
        world.spawn("releaser", "", lambda: actors.releaser(world))


def _start_run(world: SimulatedWorld, number: int, delay: int) -> None:
    run = f"run {number}"
    world.spawn(run.replace(" ", ""), run, lambda: world.go(run, lambda name: actors.run(world, name)), delay)


def _restart_all(world: SimulatedWorld) -> None:
    for number in range(world.climate.runs):
        _start_run(world, number, world.dice.below(50))


def _calm(world: SimulatedWorld) -> None:
    """Nothing goes wrong any more. Some are dead, some continue, some are zombies that wake up much later."""
    world.calm = True
    late = []
    for process in list(world.processes):
        fate = world.dice.below(3)
        if fate == 1:
            world.kill(process)
        elif fate == 2:
            late.append(process)
    world.processes = [process for process in world.processes if process.alive and process not in late]
    for process in world.processes:
        process.wake = min(process.wake, world.tick)
    if world.bad:
        _ask_for_bad_rows(world)
    world.calm_people()
    helper = world.spawn("operator", "", lambda: actors.operator(world))
    world.play(but_for=helper)
    world.kill(helper)
    if not world.problem:
        world.spawn("last", "last", lambda: actors.last_run(world))
        world.play()
    for name, does in [*world.last_acts(), ("fork last", lambda: lifecycle_days.last_fork(world))]:
        if not world.problem and (world.others or name != "fork last"):
            world.spawn(name, name, does)
            world.play()
    world.processes += late


def _zombies(world: SimulatedWorld) -> None:
    """I5: whoever was asleep all the time continues now, and changes nothing that counts."""
    for process in world.processes:
        process.wake = world.tick
    world.play()
    if not world.problem:
        world.spawn("after", "after", lambda: actors.publish(world, world.coordinator()))
        world.play()
