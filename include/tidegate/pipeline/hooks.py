"""What a pipeline tells its owner's own code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["OnSuspended", "Suspension"]


@dataclass(frozen=True)
class Suspension:
    """No run plans a checkpoint of the pipeline until somebody says `tidegate resume NAME`."""

    pipeline: str
    by: str
    """The run that found something damaged; empty if too many checkpoints have failed."""
    why: str
    failed: tuple[int, ...] = ()
    """The checkpoints that failed in a row, oldest first."""


OnSuspended = Callable[[Suspension], object]
