"""What a checkpoint, or another entry of the log, can be: for whoever lists and filters them."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

__all__ = ["KINDS", "STATES", "Kind", "State"]

State: TypeAlias = Literal[
    "completed",
    "aborted",
    "open",
    "held",
    "rollback",
    "rolled back",
    "suspended",
    "resumed",
    "stopped",
    "cancelled",
]
Kind: TypeAlias = Literal["scheduled", "manual", "control", "restart", "fork"]

STATES: Final[tuple[str, ...]] = get_args(State)
KINDS: Final[tuple[str, ...]] = get_args(Kind)
