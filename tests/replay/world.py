"""A drawn pipeline in a folder of its own, and the clock by which it lives."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.replay.pipelines import FILES, Drawn
from tests.spark.small_pipeline import SmallPipeline
from tidegate import Pipeline, seams
from tidegate.protocol.view import rollback_of
from tidegate.records.records import Json

__all__ = ["Clock", "Clocked"]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NAPS = 300
"""So often may somebody wait before it counts as waiting forever."""


class Clock:
    """The time of a life, which moves only when the life lets it. Ids are drawn, so that a seed replays."""

    def __init__(self, seed: int) -> None:
        self.now = BEGIN
        self._ids = random.Random(f"ids {seed}")
        self._naps = 0

    @contextmanager
    def shown(self, *, later: timedelta = timedelta(0)) -> Iterator[None]:
        """Let everything in the block go by this clock, or by one that is ahead. Nobody sleeps."""
        self._naps = 0
        with seams.installed(seams.Seams(now=lambda: self.now + later, sleep=self._nap, new_id=self._draw_id)):
            yield

    def _nap(self, seconds: float) -> None:
        self._naps += 1
        if self._naps > NAPS:
            raise AssertionError("it waits for ever")

    def _draw_id(self) -> str:
        return f"{self._ids.getrandbits(64):016x}"


class Clocked(SmallPipeline):
    """A drawn pipeline below one folder, with a hook whose state is a number in a file."""

    def __init__(self, root: Path, spark: Any, drawn: Drawn, *, in_jobs: bool) -> None:
        super().__init__(root, spark, self.declare)
        for name, text in FILES.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.drawn, self.in_jobs = drawn, in_jobs
        self.files_at_once = 1000
        self.limit(num_retained=100)

    def declare(self, pipeline: Pipeline) -> None:
        self.drawn.declare(pipeline, self.files_at_once)
        pipeline.hook(
            "cursor",
            on_trigger=lambda _: {"at": self._set_cursor(self._cursor() + 1)},
            on_restore=lambda state: self._set_cursor(state["at"]),
            on_reset=lambda: self._set_cursor(0),
        )

    def _cursor(self) -> int:
        path = self.root / "cursor"
        return int(path.read_text()) if path.exists() else 0

    def _set_cursor(self, value: int) -> int:
        (self.root / "cursor").write_text(str(value))
        return value

    def copied(self, root: Path) -> Clocked:
        """Return the same pipeline in a copy of its folder, as it is now."""
        shutil.copytree(self.root, root)
        other = Clocked(root, self.spark, self.drawn, in_jobs=self.in_jobs)
        other.files, other.files_at_once, other.limits = self.files, self.files_at_once, self.limits
        return other

    def origins(self) -> list[int]:
        """Return the checkpoints that count and are retained."""
        ledger, found = self.ledger, list[int]()
        for id in ledger.ids():
            entry = ledger.entry(id)
            counts = entry is not None and entry.completed and rollback_of(id, ledger.rollbacks()) is None
            if counts and ledger.is_retained(id) and ledger.published(id) is not None:
                found.append(id)
        return found

    def can_begin_at(self, origin: int) -> bool:
        """Return whether a backfill can begin there: something is completed, and event time has not ended with it."""
        plan = self.ledger.plan(origin) if origin else None
        return self.ledger.view().last_completed is not None and (plan is None or plan.drain is None)

    def cursor_of(self, id: int) -> Json | None:
        """Return what the hook has stored with an entry."""
        plan = self.ledger.plan(id)
        return plan.hooks.get("cursor") if plan is not None else None

    def last_completed(self) -> int:
        """Return the last checkpoint that counts."""
        last = self.ledger.view().last_completed
        assert last is not None
        return last.id

    def goes_back(self, to: int, run: str) -> None:
        """Roll back, and publish that. What has no way back stays as it is."""
        coordinator = self.coordinator()
        choices: dict[str, Any] = {name: "keep" for name in coordinator.graph.sinks if name == "exported"}
        coordinator.roll_back(to, run=run, by="bob", choices=choices)
        coordinator.publish()
