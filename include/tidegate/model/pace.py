"""How much a source was allowed to give a checkpoint, and why (checkpoint/pacing.py)."""

from __future__ import annotations

from tidegate.model.struct import Id, Struct

__all__ = ["Pace", "Timed"]


class Timed(Struct, frozen=True, kw_only=True):
    """A completed checkpoint: what it read of the source, and how long it took, by its writers' clocks."""

    id: Id
    amount: int
    seconds: float


class Pace(Struct, frozen=True, kw_only=True):
    """One source's pace in one plan."""

    unit: str
    """What amounts are counted in: bytes or rows."""
    at_most: int | None
    """None: nothing is known yet, so only the source's own bounds hold."""
    taken: int
    target_s: float
    """So long a checkpoint should take."""
    fixed_s: float = 0.0
    """So long it takes whatever it reads, as far as that was ever seen."""
    seen: list[Timed] = []
    """What it goes by, oldest first."""
    why: str
    """For people."""
