"""Chooses the files of a state to merge or drop, so that a lookup reads few files and each row is seldom rewritten.

Size tiers: a file's tier is how often its rows can be divided by 8. Once eight files of one tier cover the same key
groups, they become one of the next. So a row is rewritten once per tier, and there are at most eight files of each.
What is more than a checkpoint may rewrite is merged in parts, or not at all: files of so many rows are few.

A row that says "deleted", or has expired, hides older ones of its key. It is forgotten where no other file can hold an
older one; where all rows of a file have expired, the file is dropped without being read.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.state.record import StateFile

__all__ = ["FAN_IN", "MERGED_ROWS", "Compaction", "expired", "to_merge"]

FAN_IN = 8
SMALL = 10_000
"""Files with fewer rows than this are all of the first tier: there, only their number matters."""
MERGED_ROWS = 20_000_000
"""The most rows that are rewritten in one checkpoint."""


@dataclass(frozen=True)
class Compaction:
    """Files that become one run."""

    files: tuple[StateFile, ...]
    forgets: bool
    """Whether rows that hide older ones can be dropped: no other file holds any."""

    @property
    def rows(self) -> int:
        """The number of rows to read."""
        return sum(file.file.rows for file in self.files)


def to_merge(files: Sequence[StateFile]) -> list[Compaction]:
    """Return the sets of files that become one run each in this checkpoint."""
    tiers: dict[int, list[StateFile]] = defaultdict(list)
    for file in files:
        tiers[_tier(file)].append(file)
    budget, batches = MERGED_ROWS, []
    for _, members in sorted(tiers.items()):
        chosen = _fitting(members, budget) if _depth(members) >= FAN_IN else []
        if len(chosen) > 1:
            batches.append(Compaction(tuple(chosen), not any(_hides(file, files, chosen) for file in chosen)))
            budget -= batches[-1].rows
    return batches


def _fitting(members: Sequence[StateFile], limit: int) -> list[StateFile]:
    """Return the smallest files that together stay within the limit: any may be merged without the others."""
    ordered = sorted(members, key=lambda file: file.file.rows)
    sums = itertools.accumulate(file.file.rows for file in ordered)
    return [file for file, rows in zip(ordered, sums, strict=True) if rows <= limit]


def expired(files: Sequence[StateFile], limit: int) -> list[StateFile]:
    """Return the files of which all rows were written up to `limit`, and that hide nothing."""
    dropped: list[StateFile] = []
    for file in sorted(files, key=lambda file: file.checkpoint):
        if file.touched is not None and file.touched <= limit and not _hides(file, files, [*dropped, file]):
            dropped.append(file)
    return dropped


def _hides(file: StateFile, files: Sequence[StateFile], but: Sequence[StateFile]) -> bool:
    """Return whether a file that is not among `but` may hold older rows of keys that `file` has newer rows of."""
    return any(file.meets(older) and older.oldest < file.checkpoint for older in files if older not in but)


def _tier(file: StateFile) -> int:
    return 0 if file.file.rows < SMALL else 1 + int(math.log(file.file.rows / SMALL, FAN_IN))


def _depth(members: Sequence[StateFile]) -> int:
    """Return in how many of the files a key may lie at most."""
    ends = sorted([(file.groups[0], 0) for file in members] + [(file.groups[1], 1) for file in members])
    depth = deepest = 0
    for _, closes in ends:
        depth += -1 if closes else 1
        deepest = max(deepest, depth)
    return deepest
