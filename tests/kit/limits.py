"""The settings of pipelines under test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.config.settings import RestartSettings
from tidegate.records.records import Json

__all__ = ["AT_LEAST_ONCE", "RESTARTS", "UNALIGNED", "Limits"]

AT_LEAST_ONCE = {"mode": "at_least_once"}
UNALIGNED = {"unaligned": True}
"""What plans of such pipelines record: `Limits(recorded=UNALIGNED)`."""


RESTARTS = RestartSettings("exponential", attempts=3, delay=1.0, max_delay=60.0, per=600.0)


@dataclass(frozen=True)
class Limits:
    """What checkpoints obey of `tidegate.config.Settings`, with values that let tests alone."""

    timeout: float = 600.0
    max_concurrent_checkpoints: int = 1
    max_unpublished: int = 10
    num_retained: int = 10
    tolerable_failed_checkpoints: int = 1_000_000
    min_pause: float = 0.0
    restart: RestartSettings = RESTARTS
    root: str = "s3://ledger"
    """Not on a disk of this machine: no test here depends on how much space is free there."""
    data: str = "s3://data"
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """Other settings that a plan records, such as `mode`."""

    def record(self) -> Json:
        """Return what a plan records of them."""
        return {"num_retained": self.num_retained, **self.recorded}
