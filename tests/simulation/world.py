"""One simulated day: processes that are greenlets, a scheduler that rolls dice, and what happened."""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from greenlet import getcurrent, greenlet

from tests.kit.fake_store import FakeStore
from tests.kit.toy_gate import ToyGate
from tests.kit.toys import ToyFeed, ToySink, ToySource, ToyTables
from tests.kit.weather import Weather
from tests.simulation.choices import Dice
from tests.simulation.fault_rates import Climate, climate_of
from tidegate import Pipeline, seams
from tidegate.checkpoint.context import AbandonCheck
from tidegate.coordinator import AlreadyCovered, Coordinator, Triggered
from tidegate.errors import TidegateError, Unavailable
from tidegate.execution.job.run_job import run_job
from tidegate.ledger.ledger import Ledger
from tidegate.pipeline import Stream
from tidegate.records.place import Place
from tidegate.records.records import Plan

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TABLES = ("first", "second")
GATE = "checked"
FORK = "two"
"""The pipeline that is forked from the other one, and its only table."""


class Stopped(BaseException):
    """This process is dead, or the day is over: it touches nothing any more."""


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(eq=False)
class Process:
    """One simulated operating system process."""

    name: str
    run: str
    body: greenlet
    wake: float = 0.0
    """Sleeps until then; a stalled one for a long time."""
    alive: bool = True


@dataclass
class SimulatedWorld(Weather):
    """Storage, processes and time of one day. Everything random comes from `dice`."""

    dice: Dice
    bad: ClassVar[int] = 0
    """Of which multiples a gate sets rows aside; 0: none."""
    lived: ClassVar[bool] = True
    """Whether the pipeline is forked, copied and brought to its end."""
    spread: ClassVar[int] = 300
    """Over how long runs are started."""
    climate: Climate = field(init=False)
    tick: float = 0.0
    calm: bool = False
    """Nothing goes wrong any more."""
    over: bool = False
    events: list[tuple[float, str, str]] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    graves: list[Process] = field(default_factory=list)
    """Kept to the end, for a greenlet that is collected runs its `finally` blocks."""
    promised: dict[str, int] = field(default_factory=dict)
    """Savepoints that somebody was told to have made, and the checkpoints that they name."""
    problem: str | None = None

    def __post_init__(self) -> None:
        self.climate = climate_of(self.dice)
        self.store = FakeStore(weather=self)
        self.tables = ToyTables(weather=self)
        self.feed = ToyFeed(available=3, weather=self)
        self.graph = self._pipeline().graph()
        self.current: Process | None = None
        self._hub = getcurrent()
        self._ids = 0
        self._names: Counter[str] = Counter()
        self._skew = timedelta()
        self._power_losses = [self.dice.below(self.climate.ticks) for _ in range(self.climate.power_losses)]
        self.others: dict[str, FakeStore] = {}
        """Other folders: the fork's, and those of copies."""
        self.on_folder: Callable[[str, FakeStore], None] = lambda folder, store: None
        self._forked = self._fork().graph()
        self.on_power_loss: Callable[[], None] = lambda: None

    def _pipeline(self) -> Pipeline:
        pipeline = Pipeline("day")
        rows = self._gated(pipeline.source("in", ToySource(self.feed, self.climate.bound, self.climate.padding)))
        rows.sink(TABLES[0], ToySink(TABLES[0], self.tables))
        rows.sink(TABLES[1], ToySink(TABLES[1], self.tables, skip=self.climate.skip))
        return pipeline

    def _fork(self) -> Pipeline:
        pipeline = Pipeline(FORK)
        rows = pipeline.source("in", ToySource(self.feed, self.climate.bound, self.climate.padding))
        rows.sink(FORK, ToySink(FORK, self.tables))
        return pipeline

    def _gated(self, rows: Stream) -> Stream:
        """On some days a person has a say, and on some bad rows are set aside."""
        climate = self.climate
        if not climate.holds and not self.bad:
            return rows
        gate = ToyGate(climate.holds, climate.hold_for, climate.unanswered, self.bad, self.tables)
        return rows.gate(gate, name=GATE)

    def asks(
        self, coordinator: Coordinator, run: str, give_up: AbandonCheck
    ) -> Callable[[], Triggered | AlreadyCovered | None]:
        """How a run asks for its checkpoint."""
        self.feed.available += self.dice.below(4)
        only_if_new = not self.calm and self.dice.chance(0.2)
        return lambda: coordinator.trigger(run, give_up=give_up, only_if_new=only_if_new)

    def coordinator(self) -> Coordinator:
        """The real thing, on this world's storage; each process makes its own."""
        return Coordinator(self.graph, Ledger(self.store, "day"), self.climate, Place("/"))

    def work(self, coordinator: Coordinator, id: int, job: str) -> None:
        """A task of that job."""
        run_job(coordinator, id, job, None)  # type: ignore[arg-type]

    def go(self, run: str, does: Callable[[str], None]) -> None:
        """What a process of a run does, from its start to its end."""
        does(run)

    def some_job(self) -> str:
        """One of the pipeline's."""
        return "main"

    def more_people(self) -> None:
        """Who else takes part."""

    def calm_people(self) -> None:
        """Who else takes part once all is calm."""

    def waits_rightly(self, error: TidegateError) -> bool:
        """Whether what waits for a table in calm weather does so because of the day."""
        return False

    def last_acts(self) -> list[tuple[str, Callable[[], None]]]:
        """What else must work once all is calm, and who does it."""
        return []

    def other(self, folder: str) -> FakeStore:
        """The store of another folder, made when it is first asked for."""
        if folder not in self.others:
            self.others[folder] = FakeStore(folder, self)
            self.on_folder(folder, self.others[folder])
        return self.others[folder]

    def fork(self) -> Coordinator:
        """The fork's: whatever is there of it."""
        return Coordinator(self._forked, Ledger(self.other(FORK), FORK), self.climate, Place("/"))

    # -- seams

    def seams(self) -> seams.Seams:
        """Clock, ids and fault points of this world."""
        return seams.Seams(
            now=lambda: EPOCH + timedelta(seconds=self.tick) + self._skew,
            monotonic=lambda: self.tick,
            sleep=self.sleep,
            new_id=self._new_id,
            fault=self._fault,
        )

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:016x}"

    def _fault(self, point: str) -> None:
        self.pause(point)
        if self.mishap("fault", "lost"):
            raise Unavailable(f"injected at {point}")

    # -- weather

    def pause(self, what: str) -> None:
        """Before each access: somebody else may run now, and this process may never continue."""
        process = self.current
        if self.over or (process is not None and not process.alive):
            raise Stopped
        if process is None:
            return
        self.tick += 1
        self.events.append((self.tick, process.name, what))
        if not self.calm:
            self._trouble(process)
        elif self.tick > self.climate.ticks + 50_000:
            raise Violation(f"I8: no end in sight at tick {self.tick:.0f}")
        if not process.alive or process.wake > self.tick or not self.dice.chance(self.climate.sticky):
            self._hub.switch()
            if self.over or not process.alive:
                raise Stopped

    def _trouble(self, process: Process) -> None:
        climate = self.climate
        if climate.kills and self.dice.chance(climate.kills):
            self.kill(process)
        elif climate.stalls and self.dice.chance(climate.stalls):
            process.wake = self.tick + 1 + self.dice.below(400)
            self.log(f"stalls until {process.wake:.0f}")
        if climate.clock_jumps and self.dice.chance(climate.clock_jumps):
            self._skew = timedelta(seconds=self.dice.below(200_000) - 100_000)

    def mishap(self, what: str, possible: str) -> str:
        if self.calm or self.current is None or not self.climate.mishaps:
            return ""
        kinds = len(possible.split())  # writes can go wrong in more ways than reads, and it matters more
        if not self.dice.chance(min(self.climate.mishaps * (1 if kinds == 1 else 3 * kinds), 0.3)):
            return ""
        mishap = self.dice.one_of(possible.split())
        self.log(f"mishap: {mishap}")
        return mishap

    def unseen(self, folder: str, name: str, age: float) -> bool:
        """Listings of the log may lag. A run's index is taken to be seen at once: nothing settles it later."""
        lagging = not self.calm and folder == "checkpoints" and age < self.climate.lag
        return lagging and self.dice.chance(0.5)

    def clock(self) -> float:
        return self.tick

    def checks_plan(self, run: str, plan: Plan, store: FakeStore) -> None:
        """What a trigger answers with is what is recorded, and it is the run's own."""
        data = store.truth(f"checkpoints/{plan.id:08d}/plan.json")
        if plan.run != run or data is None or json.loads(data)["attempt"] != plan.attempt:
            raise Violation(f"run {run!r} is told that checkpoint {plan.id} is its own")

    # -- processes

    def spawn(self, name: str, run: str, body: Callable[[], None], delay: int = 0) -> Process:
        """A new process; `body` is what it does. Of several with one name, the second is name.2."""
        self._names[name] += 1
        name = name if self._names[name] == 1 else f"{name}.{self._names[name]}"
        process = Process(name, run, greenlet(body, self._hub), wake=self.tick + delay)
        self.processes.append(process)
        return process

    def sleep(self, seconds: float) -> None:
        """The current process lets others run for a while."""
        process = self.current
        if process is None:
            return
        process.wake = self.tick + max(seconds, 1.0)
        self.pause(f"sleep {seconds:g}")

    def kill(self, process: Process) -> None:
        """SIGKILL: it never gets another turn, and none of its `finally` blocks has any effect."""
        process.alive = False
        self.graves.append(process)
        self.log(f"{process.name} is killed", "the world")

    def log(self, text: str, who: str | None = None) -> None:
        """Part of the story."""
        self.events.append((self.tick, who or (self.current.name if self.current else "the world"), text))

    def is_running(self, run: str) -> bool:
        """Whether any process of a run might still continue by itself soon."""
        return any(process.run == run and process.alive for process in self.processes)

    def is_at_work(self, name: str) -> bool:
        """Whether the process of this name is alive."""
        return any(process.name == name and process.alive for process in self.processes)

    def is_left_behind(self, run: str) -> bool:
        """Whether a person ends the checkpoints of a run, once all is calm."""
        return not self.is_running(run)

    def play(self, until: float | None = None, but_for: Process | None = None) -> None:
        """Let processes take turns until all (but for one) have ended, or until a tick."""
        while not self.problem and (until is None or self.tick < until):
            if self._power_losses and not self.calm and self.tick >= min(self._power_losses):
                self._power_losses.remove(min(self._power_losses))
                self._lose_power()
            self.processes = [process for process in self.processes if process.alive and not process.body.dead]
            if all(process is but_for for process in self.processes):
                return
            ready = [process for process in self.processes if process.wake <= self.tick]
            if not ready:
                self.tick = min(process.wake for process in self.processes)
                continue
            self._turn(ready[self.dice.below(len(ready))])

    def _turn(self, process: Process) -> None:
        self.current = process
        try:
            process.body.switch()
        except Stopped:
            pass
        except Violation as violation:
            self.problem = str(violation)
        except Exception as error:  # nobody may see any other error
            told = "".join(traceback.format_exception(error)).rstrip()
            self.problem = f"{process.name} died of {type(error).__name__}: {error}\n{told}"
        finally:
            self.current = None

    def _lose_power(self) -> None:
        """Everybody dies; what was seen but not durable may be gone."""
        for process in list(self.processes):
            self.kill(process)
        gone = []
        for store in (self.store, *self.others.values()):
            gone += store.power_loss(lambda path: self.dice.chance(0.7))
        self.log(f"the power fails; lost: {', '.join(gone) or 'nothing'}", "the world")
        self.on_power_loss()

    def close(self) -> None:
        """Nobody gets another turn."""
        self.over = True
        for process in self.processes:
            process.alive = False
