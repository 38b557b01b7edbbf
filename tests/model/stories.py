"""How a state was come to, told step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["story"]

S = TypeVar("S")


def story(came: Mapping[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    """came: of each state that was seen, the one before and the step; of the first, None."""
    lines = []
    while (step := came[state]) is not None:
        state, text = step
        lines.append(text)
    return tuple(reversed(lines))
