"""The columns that tidegate adds to a state's keys and values."""

from __future__ import annotations

from typing import Final

__all__ = ["CHECKPOINT", "DELETED", "GROUP", "OWN", "TOUCHED"]

GROUP: Final = "_group"
CHECKPOINT: Final = "_checkpoint"
DELETED: Final = "_deleted"
TOUCHED: Final = "_touched"
"""The time by which the row expires, in microseconds since 1970: when it was written, or until when it lives
(`state/record.py`). Only in states whose rows expire."""
OWN: Final = (GROUP, CHECKPOINT, DELETED, TOUCHED)
