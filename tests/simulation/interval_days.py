"""Days of an interval pipeline: runs make hours, again and again, and storage fails as on any other day."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from tests.kit.toys import ToyCommit, ToyIntervals, ToySink
from tests.simulation.oracle import Checkpoint, Oracle
from tests.simulation.world import EPOCH, TABLES, SimulatedWorld, Violation
from tidegate import Pipeline
from tidegate.checkpoint.context import AbandonCheck
from tidegate.coordinator import AlreadyCovered, Coordinator, Triggered
from tidegate.records.interval import Interval

HOURS = 3
"""Few, so that several runs make the same one."""


class HourWorld(SimulatedWorld):
    """The same storage and the same troubles; what an hour has to read changes all the time."""

    lived = False

    def _pipeline(self) -> Pipeline:
        self._offsets = 0
        pipeline = Pipeline("day")
        rows = self._gated(pipeline.source("in", ToyIntervals(self.feed)))
        rows.sink(TABLES[0], ToySink(TABLES[0], self.tables))
        rows.sink(TABLES[1], ToySink(TABLES[1], self.tables, skip=self.climate.skip))
        return pipeline

    def asks(
        self, coordinator: Coordinator, run: str, give_up: AbandonCheck
    ) -> Callable[[], Triggered | AlreadyCovered | None]:
        """Run 0 makes hour 0, and so on; the last runs make hours of their own. Sometimes only if it is not done."""
        kind, number = run.split()
        hour = int(number) % HOURS if kind == "run" else HOURS + int(number)
        start = EPOCH + timedelta(hours=hour)
        count = self.dice.below(3)
        self.feed.intervals[Interval(start, start + timedelta(hours=1))] = [self._next() for _ in range(count)]
        reprocess = self.dice.chance(0.7)
        interval = (start, start + timedelta(hours=1))
        return lambda: coordinator.trigger(run, give_up=give_up, interval=interval, reprocess=reprocess)

    def _next(self) -> int:
        self._offsets += 1
        return self._offsets


class HourOracle(Oracle):
    """What must hold of intervals, told from bytes."""

    def _planned(self, id: int, plan: dict[str, Any]) -> None:
        if plan["base"] is not None:
            raise Violation(f"entry {id} of an interval pipeline rests on {plan['base']}")
        for lower in range(1, id):
            if self.store.truth(f"checkpoints/{lower:08d}/plan.json") is None:
                raise Violation(f"entry {id} is created, entry {lower} does not exist")
            self._durable(f"entry {id} is planned", lower, "plan.json")
            other = self.checkpoint(lower)
            if plan["kind"] != "control" and other.plan["interval"] == plan["interval"]:
                if other.decision is None:
                    raise Violation(f"entries {lower} and {id} make one interval at the same time")
                self._durable(f"entry {id} is planned", lower, "decision.json")

    def committed(self, table: str, commit: ToyCommit) -> None:
        """I4: only what is completed is shown, and nothing in place of what came after it."""
        assert commit.id is not None
        checkpoint = self.checkpoint(commit.id)
        if not checkpoint.completed:
            raise Violation(f"I4: table {table!r} shows checkpoint {commit.id}, which is not completed")
        self._durable(f"checkpoint {commit.id} is published", commit.id, "decision.json")
        same = [c.id for c in self.world.tables[table].commits[:-1] if c.id and c.interval == commit.interval]
        if same and max(same) >= commit.id:
            raise Violation(f"I1: table {table!r} shows checkpoint {commit.id} in place of {max(same)}")

    def _decisions(self, log: list[Checkpoint]) -> None:
        """Nothing to add up: intervals rest on nothing. That of each run there is one is told by `_ids`."""

    def _table(self, name: str, completed: list[Checkpoint]) -> None:
        """I1, I4: of each interval exactly the rows of its highest completed checkpoint."""
        last = {tuple(checkpoint.plan["interval"]): checkpoint for checkpoint in completed}
        wanted = sorted(offset for checkpoint in last.values() for offset in self._wanted(name, checkpoint))
        table = self.world.tables[name]
        try:
            shown = sorted(offset for file in table.live() for offset, _ in table.files[file])
        except KeyError as gone:
            raise Violation(f"I6: file {gone} on table {name!r} is gone") from None
        if shown != wanted:
            raise Violation(f"I1: table {name!r} shows {shown}, wanted are {wanted}")

    def _wanted(self, table: str, checkpoint: Checkpoint) -> list[int]:
        skip = self.world.climate.skip if table == TABLES[1] else 0
        return [offset for offset in self._offsets(checkpoint) if not (skip and offset % skip == 0)]

    def _offsets(self, checkpoint: Checkpoint) -> Sequence[int]:
        offsets: list[int] = checkpoint.plan["sources"]["in"]["splits"]["data"]["offsets"]
        return offsets

    def _published_hint(self, checkpoint: Checkpoint) -> None:
        """published.json names the very commits. And whoever is settled is in the index."""
        if checkpoint.published is None:
            return
        for name, told in checkpoint.published["tables"].items():
            if self.world.tables[name].commits[told["version"]].id != checkpoint.id:
                raise Violation(f"published.json of {checkpoint.id} says version {told['version']} of {name!r}")
        indexed = [path for path in self.store.files if path.startswith("intervals/")]
        if not any(path.endswith(f"/{checkpoint.id:08d}.json") for path in indexed):
            raise Violation(f"checkpoint {checkpoint.id} is noted as published, and no index has its interval")

    def record_written(self, path: str, old: bytes | None, new: bytes) -> None:
        super().record_written(path, old, new)
        if path.startswith("intervals/") and not self.checkpoint(json.loads(new)["id"]).completed:
            raise Violation(f"{path} tells of a checkpoint that is not completed")
