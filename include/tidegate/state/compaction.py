"""Chooses the files of a state to merge or drop, so that a lookup reads few files and each row is seldom rewritten.

Size tiers: a file's tier is how often its rows can be divided by 8. Once eight files of one tier lie above one another
at some key group, they become one of the next. So a row is rewritten once per tier, and there are about eight layers of
each.

A checkpoint rewrites so many rows for each core, and leaves the rest to later ones: the debt. With many changed rows it
rewrites more, a few times as many as were changed, which is about what tiers cost in the long run; and should that not
do, a part of the debt. So merging never falls behind for good, and no checkpoint pays for all at once.

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

__all__ = ["FAN_IN", "MERGED_ROWS", "Compaction", "debt", "expired", "to_merge"]

FAN_IN = 8
SMALL = 10_000
"""Files with fewer rows than this are all of the first tier: there, only their number matters."""
MERGED_ROWS = 10_000_000
"""The rows that a checkpoint may rewrite for each core."""
REWRITES = 4
"""The rows that it may rewrite for each row that was changed last, if that is more."""
PACE = 64
"""The part of the debt that it may rewrite, if that is more: 1/64."""


@dataclass(frozen=True)
class Compaction:
    """Files that become one run."""

    files: tuple[StateFile, ...]
    forgets: bool
    """Whether rows that hide older ones can be dropped: no other file holds any."""

    @property
    def rows(self) -> int:
        """The number of rows to read."""
        return _rows(self.files)

    def rows_within(self, low: int, high: int) -> float:
        """Return about how many of the rows are in key groups from `low` up to, but without, `high`."""
        return sum(_share(file, low, high) for file in self.files)


def to_merge(files: Sequence[StateFile], cores: int = 1) -> list[Compaction]:
    """Return the sets of files that become one run each in this checkpoint.

    The last set may exceed the bound. Of one that alone is more than twice the bound, a part is merged.
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
    return [Compaction(tuple(each), not any(_hides(file, files, each) for file in each)) for each in chosen]


def debt(files: Sequence[StateFile]) -> int:
    """Return the number of rows in files that are due to be merged."""
    return sum(map(_rows, _due(files)))


def _due(files: Sequence[StateFile]) -> list[list[StateFile]]:
    """Return the sets of files that are due: of one tier, and all above one another at some key group. Small ones come
    first: they are many, and cost little."""
    tiers: dict[int, list[StateFile]] = defaultdict(list)
    for file in files:
        tiers[_tier(file)].append(file)
    due = []
    for _, members in sorted(tiers.items()):
        while len(deepest := _deepest(members)) >= FAN_IN:
            due.append(deepest)
            taken = {id(file) for file in deepest}
            members = [file for file in members if id(file) not in taken]
    return due


def _deepest(files: Sequence[StateFile]) -> list[StateFile]:
    """Return the files that hold the key group that most files hold."""
    ends = sorted([(file.groups[0], 0) for file in files] + [(file.groups[1], 1) for file in files])
    depth, most, group = 0, 0, -1
    for at, closes in ends:
        depth += -1 if closes else 1
        if depth > most:
            most, group = depth, at
    return [file for file in files if file.groups[0] <= group <= file.groups[1]]


def _smallest(members: Sequence[StateFile], limit: int) -> list[StateFile]:
    """Return the smallest files that together stay within the limit, at least two: any may be merged without the
    others."""
    ordered = sorted(members, key=lambda file: file.file.rows)
    sums = itertools.accumulate(file.file.rows for file in ordered)
    fitting = sum(rows <= limit for rows in sums)
    return ordered[: max(fitting, 2)]


def expired(files: Sequence[StateFile], limit: int) -> list[StateFile]:
    """Return the files of which all rows have expired by `limit`, and that hide nothing."""
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


def _rows(files: Sequence[StateFile]) -> int:
    return sum(file.file.rows for file in files)


def _share(file: StateFile, low: int, high: int) -> float:
    first, last = file.groups
    inside = min(last + 1, high) - max(first, low)
    return file.file.rows * max(inside, 0) / (last + 1 - first)
