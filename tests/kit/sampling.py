"""Which of many cases that resemble each other are told each time. All of them: `make test ALL=1`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["some_of"]

Case = TypeVar("Case")


def some_of(cases: Sequence[Case], every: int, first: int = 0) -> list[Case]:
    """Each `every`th case from `first` on; all of them if the environment says ALL_CASES."""
    return list(cases) if os.environ.get("ALL_CASES") else list(cases[first::every])
