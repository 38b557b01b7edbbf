"""Which files of a state are merged or dropped, and when: so that a lookup reads few files, and each row is rewritten
seldom.

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
"""Files below this many rows are all of the first tier: what counts there is that they are few."""
MERGED_ROWS = 20_000_000
"""At most so many rows are rewritten in one checkpoint."""


@dataclass(frozen=True)
class Compaction:
    """Files that become one run."""

    files: tuple[StateFile, ...]
    forgets: bool
    """Whether rows that hide older ones can go: no other file holds any."""

    @property
    def rows(self) -> int:
        """How many rows are read for it."""
        return sum(each.file.rows for each in self.files)


def to_merge(files: Sequence[StateFile]) -> list[Compaction]:
    """Sets of files that are to become one run each in this checkpoint."""
    tiers: dict[int, list[StateFile]] = defaultdict(list)
    for each in files:
        tiers[_tier(each)].append(each)
    left, batches = MERGED_ROWS, []
    for _, members in sorted(tiers.items()):
        chosen = _fitting(members, left) if _depth(members) >= FAN_IN else []
        if len(chosen) > 1:
            batches.append(Compaction(tuple(chosen), not any(_hides(one, files, chosen) for one in chosen)))
            left -= batches[-1].rows
    return batches


def _fitting(members: Sequence[StateFile], most: int) -> list[StateFile]:
    """Those that have no more than so many rows together, the smallest first: any may be merged without the others."""
    ordered = sorted(members, key=lambda each: each.file.rows)
    sums = itertools.accumulate(each.file.rows for each in ordered)
    return [each for each, rows in zip(ordered, sums, strict=True) if rows <= most]


def expired(files: Sequence[StateFile], limit: int) -> list[StateFile]:
    """Files of which all rows were written up to `limit`, and that hide nothing."""
    gone: list[StateFile] = []
    for each in sorted(files, key=lambda each: each.checkpoint):
        if each.touched is not None and each.touched <= limit and not _hides(each, files, [*gone, each]):
            gone.append(each)
    return gone


def _hides(one: StateFile, files: Sequence[StateFile], but: Sequence[StateFile]) -> bool:
    """Whether a file that is not among `but` may hold older rows of keys that `one` has newer rows of."""
    return any(one.meets(other) and other.oldest < one.checkpoint for other in files if other not in but)


def _tier(each: StateFile) -> int:
    return 0 if each.file.rows < SMALL else 1 + int(math.log(each.file.rows / SMALL, FAN_IN))


def _depth(members: Sequence[StateFile]) -> int:
    """In how many of the files a key may lie at most."""
    ends = sorted([(each.groups[0], 0) for each in members] + [(each.groups[1], 1) for each in members])
    depth = most = 0
    for _, closes in ends:
        depth += -1 if closes else 1
        most = max(most, depth)
    return most
