"""The columns that tidegate adds to a state's own, and what is to be done with names in SQL."""

from __future__ import annotations

from typing import Final

__all__ = ["CHECKPOINT", "DELETED", "GROUP", "OWN", "TOUCHED", "quoted"]

GROUP: Final = "_group"
CHECKPOINT: Final = "_checkpoint"
DELETED: Final = "_deleted"
TOUCHED: Final = "_touched"
"""When the row was written, in microseconds since 1970: only where rows expire."""
OWN: Final = (GROUP, CHECKPOINT, DELETED, TOUCHED)


def quoted(name: str) -> str:
    """A column's name as SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
