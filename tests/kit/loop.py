"""The loop of `tidegate run` on a toy world, with what it tells its observer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kit.toy_world import ToyWorld
from tidegate import seams
from tidegate.coordinator import Outcome
from tidegate.errors import TidegateError
from tidegate.execution.loop import Observer, Schedule, run_checkpoints
from tidegate.records.records import Ack, Plan

DEAD = f"process:{os.uname().nodename}:999999999::0011"


class Session:
    """No Spark: toys need none."""

    def __init__(self) -> None:
        self.dropped = 0
        self.cancelled = 0
        self.jobs: list[str | None] = []

    def __call__(self, job: str | None = None) -> Any:
        self.jobs.append(job)
        return None

    def drop(self) -> None:
        self.dropped += 1

    def cancel(self) -> None:
        self.cancelled += 1


class LoopEvents(Observer):
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def waiting(self, why: str) -> None:
        self.events.append(("waiting", why))

    def planned(self, plan: Plan) -> None:
        self.events.append(("planned", plan.id))

    def retrying(self, plan: Plan, error: TidegateError, tries_left: int) -> None:
        self.events.append(("retrying", plan.id, tries_left))

    def decided(self, plan: Plan, outcome: Outcome, acks: list[Ack], seconds: float) -> None:
        self.events.append((outcome.state, plan.id))

    def stuck(self, table: str, error: TidegateError) -> None:
        self.events.append(("stuck", table))

    def of(self, kind: str) -> list[Any]:
        return [event[1] for event in self.events if event[0] == kind]


class Loop:
    """A world, a loop in it, and time that passes only by sleeping."""

    def __init__(self, root: Path) -> None:
        self.world = ToyWorld(root)
        self.session = Session()
        self.told = LoopEvents()
        self.slept: list[float] = []
        self.while_asleep: list[Callable[[], object]] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        assert len(self.slept) < 200, "it waits for ever"
        if self.while_asleep:
            self.while_asleep.pop(0)()

    def run(self, **schedule: Any) -> list[Outcome]:
        with seams.installed(seams.Seams(sleep=self.sleep, monotonic=lambda: sum(self.slept))):
            return run_checkpoints(self.world.coordinator(), self.session, Schedule(**schedule), self.told)
