"""Which of many cases that resemble each other are told each time. All of them: `make test ALL=1`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import pytest

__all__ = ["ALL", "in_turn", "leave_to_other_commits", "only_with_all", "some_of", "turn_of"]

ALL = bool(os.environ.get("ALL_CASES"))
"""Whether all are to be told."""

only_with_all = pytest.mark.skipif(not ALL, reason="it is long, and resembles others: ALL=1")
"""Marks a story that is told with all others only."""

Case = TypeVar("Case")


def some_of(cases: Sequence[Case], every: int, first: int = 0) -> list[Case]:
    """Each `every`th case from `first` on; all of them if the environment says ALL_CASES."""
    return list(cases) if ALL else list(cases[first::every])


def _commit() -> str:
    """The commit that is tested; without git, always the same one."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        told = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return told.stdout.strip()


_COMMIT = _commit()

TOGETHER = 300
"""For how many seconds of one processor stories that take turns are told at a commit."""


def in_turn(seconds: int) -> pytest.MarkDecorator:
    """Marks a story, or a file of them, that takes turns from commit to commit with all others that are marked so.
    seconds: how long it takes, roughly, on a quiet machine."""
    return pytest.mark.in_turn(seconds)


def leave_to_other_commits(items: Sequence[pytest.Item]) -> None:
    """Skip what is marked and not drawn: by the commit's hash, until what is drawn takes as long as it may."""
    marked: dict[str, tuple[int, list[pytest.Item]]] = {}
    for item in items:
        for node, mark in item.iter_markers_with_node("in_turn"):
            whole = node.nodeid if node is not item else item.nodeid.split("[")[0]
            marked.setdefault(whole, (mark.args[0], []))[1].append(item)
    taken = 0
    for whole in sorted(marked, key=_draw):
        seconds, stories = marked[whole]
        if taken >= TOGETHER and not ALL:
            for story in stories:
                story.add_marker(pytest.mark.skip(reason="another commit's turn: ALL=1, or its file alone"))
        taken += seconds


def turn_of(cases: Sequence[Case], of: int) -> list[Case]:
    """The cases whose turn it is at this commit, each `of`th and at least one; all of them if the environment says
    ALL_CASES."""
    of = min(of, len(cases))
    return list(cases) if ALL else list(cases[_draw(str(of)) % of :: of])


def _draw(what: str) -> int:
    return int.from_bytes(sha256(f"{_COMMIT} {what}".encode()).digest())
