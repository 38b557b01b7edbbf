"""Checkpoints that were made at given hours."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from tests.kit.toy_world import ToyWorld, toy_limits
from tidegate import seams

START = datetime(2026, 1, 1, 9, tzinfo=UTC)


@dataclass
class Calendar(ToyWorld):
    """Checkpoints at given hours, by every clock."""

    hours: dict[int, float] = field(default_factory=dict)
    ahead: float = 0.0
    """By so many hours the clock of whoever decides is wrong; the store's is right."""

    def keep(self, num_retained: int = 1, **more: Any) -> Self:
        self.limits = toy_limits(num_retained=num_retained, recorded=more)
        return self

    def at(self, hour: float) -> int:
        """A checkpoint that many hours after the start; then retention."""
        with seams.installed(seams.Seams(now=lambda: START + timedelta(hours=hour + self.ahead))):
            id = self.decided(f"run at {hour}", rows=1)
            self.coordinator().publish()
        self.hours[id] = hour
        self.clean(hour)
        return id

    def clean(self, hour: float) -> None:
        for id, made in self.hours.items():
            if (path := self.path(id, "decision.json")).exists():
                os.utime(path, (time.time() - (hour - made) * 3600,) * 2)
        self.coordinator().retire()

    def left(self) -> list[float]:
        return [self.hours[id] for id in self.ledger.ids()]
