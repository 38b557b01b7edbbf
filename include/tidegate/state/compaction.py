"""Chooses the files of a state to merge or drop, so that a lookup reads few files and each row is seldom rewritten.

Files have size tiers: each tier has 8 times the rows of the one before. Once eight files of one tier overlap at some
key group, they are merged into one of the next tier. So a row is rewritten once per tier, and each tier has about eight
layers.

A checkpoint rewrites a limited number of rows per core, and leaves the rest, the debt, to later ones. The limit rises
with the number of changed rows, to a few times as many, which is about what tiers cost in the long run, and with the
debt, to a part of it. So merging never falls behind for good, and no checkpoint pays for everything at once.

A row that is deleted or has expired hides older rows of its key. It is dropped if no other file can hold an older one.
A file whose rows have all expired is dropped without being read.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.state.record import StateFile

__all__ = ["FAN_IN", "MERGED_ROWS", "Compaction", "debt", "expired", "to_merge"]

FAN_IN = 8
SMALL = 10_000
"""Files with fewer rows than this are all in the first tier, because only their number matters."""
MERGED_ROWS = 10_000_000
"""The number of rows that a checkpoint may rewrite per core."""
REWRITES = 4
"""The number of rows that it may rewrite for each row that was changed last, if that is more."""
PACE = 64
"""It may rewrite 1/64 of the debt, if that is more."""


@dataclass(frozen=True)
class Compaction:
    """Files that become one run."""

    files: tuple[StateFile, ...]
    forgets: bool
    """Whether deleted and expired rows can be dropped, because no other file holds older rows of their keys."""

    @property
    def rows(self) -> int:
        """The number of rows to read."""
        return _rows(self.files)

    def rows_within(self, low: int, high: int) -> float:
        """Return an estimate of the number of rows in key groups from `low` (inclusive) to `high` (exclusive)."""
        return sum(_share(file, low, high) for file in self.files)


def to_merge(files: Sequence[StateFile], cores: int = 1) -> list[Compaction]:
    """Return the batches of files that become one run each in this checkpoint.

    The last batch may exceed the bound. If a batch has more than twice the rows of the bound, just a part of it is
    merged.
    """
    due = _due(files)
    newest = max((file.checkpoint for file in files), default=0)
    changed = _rows([file for file in files if file.oldest == newest])
    bound = max(MERGED_ROWS * cores, REWRITES * changed, sum(map(_rows, due)) // PACE)
    chosen: list[list[StateFile]] = []
    for members in due:
        if sum(map(_rows, chosen)) >= bound:
            break
        chosen.append(members if _rows(members) <= 2 * bound else _smallest(members, bound))
    compactions = []
    for members in chosen:
        hides_older_rows = any(_hides(file, files, members) for file in members)
        compactions.append(Compaction(tuple(members), forgets=not hides_older_rows))
    return compactions


def debt(files: Sequence[StateFile]) -> int:
    """Return the number of rows in files that are due to be merged."""
    return sum(map(_rows, _due(files)))


def _due(files: Sequence[StateFile]) -> list[list[StateFile]]:
    """Return the batches of files that are due: files of one tier that overlap at some key group. Small files come
    first, because there are many of them, and they cost little."""
    tiers: dict[int, list[StateFile]] = defaultdict(list)
    for file in files:
        tiers[_tier(file)].append(file)
    due = []
    for _, members in sorted(tiers.items()):
        while len(deepest := _deepest(members)) >= FAN_IN:
            due.append(deepest)
            chosen = {id(file) for file in deepest}
            members = [file for file in members if id(file) not in chosen]
    return due


def _deepest(files: Sequence[StateFile]) -> list[StateFile]:
    """Return the files that hold the key group that most files hold."""
    ends = sorted([(file.groups[0], 0) for file in files] + [(file.groups[1], 1) for file in files])
    depth, max_depth, deepest_group = 0, 0, -1
    for group, is_last in ends:
        depth += -1 if is_last else 1
        if depth > max_depth:
            max_depth, deepest_group = depth, group
    return [file for file in files if file.groups[0] <= deepest_group <= file.groups[1]]


def _smallest(members: Sequence[StateFile], limit: int) -> list[StateFile]:
    """Return the smallest files that together stay within the limit, at least two. Any of them may be merged
    separately."""
    ordered = sorted(members, key=lambda file: file.file.rows)
    sums = itertools.accumulate(file.file.rows for file in ordered)
    fitting = sum(rows <= limit for rows in sums)
    return ordered[: max(fitting, 2)]


def expired(files: Sequence[StateFile], limit: int) -> list[StateFile]:
    """Return the files whose rows have all expired by `limit`, and that hide no older rows."""
    dropped: list[StateFile] = []
    for file in sorted(files, key=lambda file: file.checkpoint):
        if file.touched is not None and file.touched <= limit and not _hides(file, files, [*dropped, file]):
            dropped.append(file)
    return dropped


def _hides(file: StateFile, files: Sequence[StateFile], excluded: Sequence[StateFile]) -> bool:
    """Return whether one of the files, except the excluded ones, may hold older rows of the file's keys."""
    return any(file.meets(older) and older.oldest < file.checkpoint for older in files if older not in excluded)


def _tier(file: StateFile) -> int:
    if file.file.rows < SMALL:
        return 0
    return 1 + int(math.log(file.file.rows / SMALL, FAN_IN))


def _rows(files: Sequence[StateFile]) -> int:
    return sum(file.file.rows for file in files)


def _share(file: StateFile, low: int, high: int) -> float:
    """Return an estimate of the number of a file's rows in a range of key groups."""
    first, last = file.groups
    inside = min(last + 1, high) - max(first, low)
    return file.file.rows * max(inside, 0) / (last + 1 - first)
