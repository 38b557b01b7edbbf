"""What a gate found, as it stands in a job's ack."""

from __future__ import annotations

from typing import Literal

from tidegate.model.payload import Payload
from tidegate.model.struct import Json, Struct

__all__ = ["BrokenRule", "Hold", "Verdict"]


class BrokenRule(Struct, frozen=True, kw_only=True):
    """A gate's rule that failed, and what follows from it."""

    rule: str
    policy: Literal["abort", "hold", "quarantine", "warn"]
    severity: str
    rows: int | None
    """How many rows broke it; None if it speaks of no rows."""
    why: str


class Hold(Struct, frozen=True, kw_only=True):
    """How long a verdict waits for a person, and what counts if nobody answers."""

    limit_s: float | None
    default: Literal["approve", "reject"]


class Verdict(Struct, frozen=True, kw_only=True):
    """What a gate found in exactly what the ack names. `abort`: the checkpoint cannot complete; `hold`: not before
    somebody approves."""

    outcome: Literal["pass", "warn", "quarantine", "hold", "abort"]
    rows: int
    quarantined: int
    released: int = 0
    """Rows from quarantine that went on with those that passed."""
    hold: Hold | None = None
    why: str = ""
    """What beside its rules led to the outcome."""
    broken: list[BrokenRule]
    policy: Json
    results: Payload
    """All that was found, for people: of expectations it is Great Expectations' own result."""
