"""What a check of `tidegate doctor` has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "State"]


State = Literal["ok", "note", "bad", "cannot tell"]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    area: str
    check: str
    state: State
    detail: str
    help: str = ""
