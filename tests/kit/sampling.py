"""Which of many cases that resemble each other are told each time. All of them: `make test ALL=1`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

__all__ = ["ALL", "only_with_all", "some_of"]

ALL = bool(os.environ.get("ALL_CASES"))
"""Whether all are to be told."""

only_with_all = pytest.mark.skipif(not ALL, reason="it is long, and resembles others: ALL=1")
"""Marks a story that is told with all others only."""

Case = TypeVar("Case")


def some_of(cases: Sequence[Case], every: int, first: int = 0) -> list[Case]:
    """Each `every`th case from `first` on; all of them if the environment says ALL_CASES."""
    return list(cases) if ALL else list(cases[first::every])
