"""Days of a pipeline by event: nobody makes checkpoints by the clock. Somebody watches for input and asks for runs, or
is `tidegate run`, which makes them by itself; all of these are killed like everybody else, and begin anew."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tests.simulation import actors
from tests.simulation.lifecycle_oracle import LifeOracle
from tests.simulation.world import Process, SimulatedWorld, Violation
from tidegate.checkpoint import suspension
from tidegate.checkpoint.context import AbandonCheck
from tidegate.coordinator import AlreadyCovered, Coordinator, Triggered
from tidegate.errors import Rejected, Unavailable
from tidegate.execution.input_watch import InputWatch, is_due
from tidegate.lifecycle import control

WATCHER, LOOP, EVENT = "watcher", "loop", "event"
"""How the processes' names begin: in Airflow's triggerer; `tidegate run --forever`; a run of an event."""

LOOK_S = 20.0
NEVER_S = 1e9
PATIENCE_S = 20_000.0
"""On a calm day more is read within this time, whatever happened before. The watch's own pauses are up to 300 s, and
timeouts up to 3000 s."""


@dataclass(frozen=True)
class Standing:
    """How far the pipeline has come, told from bytes."""

    last: int
    read: int
    published: bool


class EventWorld(SimulatedWorld):
    """Input arrives in bursts, and people do to the pipeline what they do on other days. Every third row is bad."""

    bad = 3
    quiet_s: ClassVar[int] = 200
    """How long at most nothing arrives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        dice = self.dice
        self.climate = replace(
            self.climate,
            runs=1 + dice.below(2),  # by hand
            rollbacks=min(self.climate.rollbacks, 1),
            ticks=800 + 400 * dice.below(3),
            timeout=dice.one_of([NEVER_S, 1500.0, 3000.0]),  # many look here, and each look takes time
            hold_for=NEVER_S,
        )
        self.graph = self._pipeline().graph()
        self.max_pause_s = dice.one_of([200.0, NEVER_S, 60.0])
        self.who = dice.one_of([WATCHER, WATCHER, LOOP])
        self.lost = dice.one_of([0.0, 0.1, 0.5])
        """How often Airflow loses an event, or makes two runs of it."""
        self.asked = 0
        self.queue: list[str] = []
        self.reasons: list[str] = []
        """Why checkpoints were due."""
        self.standing: Callable[[], Standing] = lambda: Standing(0, 0, True)
        """The oracle tells."""
        self.stage = ""
        """What is waited for, once all is calm."""
        self.waits_since = 0.0
        self.read = 0
        self.last = 0

    def more_people(self) -> None:
        self._watch_again(0)
        self.spawn("producer", "", self._produce)

    def calm_people(self) -> None:
        self._watch_again(0)
        self.spawn("resumer", "", self._resume)

    def kill(self, process: Process) -> None:
        super().kill(process)
        if process.name.startswith((WATCHER, LOOP)) and not self.calm:
            self._watch_again(self.dice.below(100))

    def _watch_again(self, delay: int) -> None:
        if self.who == LOOP:
            self.asked += 1
            run = f"{LOOP} {self.asked}"
            self.spawn(LOOP, run, lambda: self._loop(run), delay)
        else:
            self.spawn(WATCHER, "", self._watch, delay)

    def _produce(self) -> None:
        while not self.calm:
            self.sleep(self.dice.below(self.quiet_s))
            self.feed.available += self.dice.below(6)

    # -- who watches

    def _watch(self) -> None:
        """The child of Airflow's triggerer: each arrival is an event, and each event a run."""
        watch = InputWatch(self.coordinator(), self.max_pause_s)
        while self._continues():
            reason = self._look(watch)
            if reason is not None and (self.calm or not self.dice.chance(self.lost)):
                self._ask()
                if not self.calm and self.dice.chance(self.lost):
                    self._ask()
            self._start_queued()
            self.sleep(LOOK_S)

    def _ask(self) -> None:
        """An event: one more run, as soon as Airflow may have another one."""
        self.asked += 1
        self.queue.append(f"{EVENT} {self.asked}")
        self._start_queued()

    def _start_queued(self) -> None:
        at_work = sum(
            process.alive and not process.body.dead and process.run.startswith(EVENT) for process in self.processes
        )
        while self.queue and at_work <= self.climate.max_concurrent_checkpoints:
            run, at_work = self.queue.pop(0), at_work + 1
            self.spawn(EVENT, run, lambda run=run: self._make(run), self.dice.below(20))  # type: ignore[misc]

    def _make(self, run: str) -> None:
        try:
            actors.checkpoint(self, self.coordinator(), run)
        except actors.GaveUp:
            self.log("gives up")

    def _loop(self, run: str) -> None:
        """`tidegate run --forever`: it waits for input, and makes the checkpoint itself."""
        coordinator = self.coordinator()
        watch = InputWatch(coordinator, self.max_pause_s, actors.suspicion(self, run))
        number = 0
        while self._continues():
            if self._look(watch) is None and not watch.is_over:
                self.sleep(LOOK_S)
                continue
            number += 1
            try:
                actors.checkpoint(self, coordinator, f"{run}/{number}")
            except actors.GaveUp:
                self.log("gives up")
                self.sleep(LOOK_S)

    def _look(self, watch: InputWatch) -> str | None:
        try:
            arrival = watch.look()
        except Unavailable as error:
            self.log(f"cannot look: {error.what}")
            return None
        if arrival is None:
            return None
        self.reasons.append(arrival.key.partition(":")[0])
        self.log(f"a checkpoint is due: {arrival.reason}")
        return arrival.reason

    # -- the calm: nobody but the watch asks for checkpoints

    def _continues(self) -> bool:
        """Until all is calm and all is read; and what arrives then; and until a pause without input is over."""
        if not self.calm or self.stage == "nothing":
            return not self.calm
        now = self.standing()
        if not self.stage:
            self._waits_for("old input", now)
        allowed_s = PATIENCE_S + (self.max_pause_s if self.stage == "the pause" else 0.0)
        if now.read != self.read:
            self.read, self.waits_since = now.read, self.tick
        if self.tick - self.waits_since > allowed_s:
            raise Violation(f"I8: {self.stage} waits for ever: {now}, there are {self.feed.available} offsets")
        is_read = now.read == self.feed.available and now.published
        if self.stage == "old input" and is_read:
            self.feed.available += 1 + self.dice.below(3)
            self._waits_for("new input", now)
        elif self.stage == "new input" and is_read:
            self._waits_for("the pause" if self.max_pause_s < NEVER_S else "nothing", now)
        elif self.stage == "the pause" and now.last > self.last:
            self._waits_for("nothing", now)
        return self.stage != "nothing"

    def _waits_for(self, stage: str, now: Standing) -> None:
        self.log(f"now waits for {stage}", "the world")
        self.stage, self.waits_since, self.last = stage, self.tick, now.last

    def _resume(self) -> None:
        """Once all is calm, a person answers what is held, and lets the pipeline continue."""
        ledger = self.coordinator().ledger
        while self._continues():
            actors.answer_all(self)
            if suspension.suspended(ledger.view(), self.climate.tolerable_failed_checkpoints) is not None:
                with contextlib.suppress(Rejected):
                    control.resume(ledger, "resumer", after_end=True)
            self.sleep(1 + self.dice.below(200))

    def is_running(self, run: str) -> bool:
        return super().is_running(run.partition("/")[0])

    def is_left_behind(self, run: str) -> bool:
        """Nobody does for the watch what it must do: it sees that a timeout is over, or that a process is gone."""
        return self.who == WATCHER and self.climate.timeout >= NEVER_S and super().is_left_behind(run)

    def asks(
        self, coordinator: Coordinator, run: str, give_up: AbandonCheck
    ) -> Callable[[], Triggered | AlreadyCovered | None]:
        ledger = coordinator.ledger
        by_event = run.startswith((EVENT, LOOP))

        def ask() -> Triggered | AlreadyCovered | None:
            return coordinator.trigger(
                run,
                give_up=give_up,
                only_if_new=by_event,
                is_due=lambda view: is_due(ledger, view, self.max_pause_s),
            )

        return ask


class EventOracle(LifeOracle):
    """Nothing waits forever, and no checkpoint is made for nothing."""

    def __init__(self, world: EventWorld) -> None:
        super().__init__(world)
        world.standing = self._standing
        self._planned_at: dict[int, float] = {}

    def _standing(self) -> Standing:
        log = self.log()
        reached, ends, published = 0, {0: 0}, True
        for checkpoint in log:
            if checkpoint.completed:
                reached = ends[checkpoint.target] if checkpoint.target is not None else checkpoint.range[1]
                ends[checkpoint.id], published = reached, checkpoint.published is not None
        last = log[-1].id if log else 0
        return Standing(last, reached, published)

    def _planned(self, id: int, plan: dict[str, Any]) -> None:
        super()._planned(id, plan)
        world = self.world
        assert isinstance(world, EventWorld)
        self._planned_at[id] = world.tick
        is_empty = all(part["empty"] for part in plan["sources"].values())
        if id == self.first or not is_empty or plan["drain"] or not plan["run"].startswith((EVENT, LOOP)):
            return
        paused_s = world.tick - self._planned_at[id - 1]
        if paused_s < world.max_pause_s:
            raise Violation(f"checkpoint {id} is planned without input, {paused_s:.0f} s after the last")
