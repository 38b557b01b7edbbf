"""Which of many cases that resemble each other are told each time. All of them: `make test ALL=1`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

__all__ = ["ALL", "in_turn", "only_with_all", "some_of", "turn_of"]

ALL = bool(os.environ.get("ALL_CASES"))
"""Whether all are to be told."""

only_with_all = pytest.mark.skipif(not ALL, reason="it is long, and resembles others: ALL=1")
"""Marks a story that is told with all others only."""

Case = TypeVar("Case")


def some_of(cases: Sequence[Case], every: int, first: int = 0) -> list[Case]:
    """Each `every`th case from `first` on; all of them if the environment says ALL_CASES."""
    return list(cases) if ALL else list(cases[first::every])


def _commit() -> int:
    """The commit that is tested, as a number; without git, always the same one."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        told = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return 0
    return int(told.stdout.strip() or "0", 16)


_COMMIT = _commit()


def in_turn(number: int, of: int) -> pytest.MarkDecorator:
    """Marks stories that take turns with others that are as long: each commit tells one share of them, by its hash."""
    return pytest.mark.skipif(not ALL and _COMMIT % of != number, reason=f"another commit's turn, of {of}: ALL=1")


def turn_of(cases: Sequence[Case], of: int, within: int = 1) -> list[Case]:
    """The cases whose turn it is at this commit; all of them if the environment says ALL_CASES. within: how many take
    turns with all of these."""
    return list(cases) if ALL else list(cases[_COMMIT // within % of :: of])
