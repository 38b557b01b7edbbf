"""Which files of a state are merged, and when: so that a lookup reads few files, and each row is rewritten seldom.

Size tiers: a file's tier is how often its rows can be divided by 8. Once eight files of one tier cover the same key
groups, they become one of the next. So a row is rewritten once per tier, and there are at most eight files of each.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from tidegate.state.record import StateFile

__all__ = ["FAN_IN", "MERGED_ROWS", "to_merge"]

FAN_IN = 8
SMALL = 10_000
"""Files below this many rows are all of the first tier: what counts there is that they are few."""
MERGED_ROWS = 20_000_000
"""At most so many rows are rewritten in one checkpoint."""


def to_merge(files: Sequence[StateFile]) -> list[list[StateFile]]:
    """Sets of files that are to become one run each in this checkpoint."""
    tiers: dict[int, list[StateFile]] = defaultdict(list)
    for each in files:
        tiers[_tier(each)].append(each)
    left, batches = MERGED_ROWS, []
    for _, members in sorted(tiers.items()):
        depth = _depth(members)
        rows = sum(each.file.rows for each in members)
        if depth >= FAN_IN and rows <= left:
            batches.append(members)
            left -= rows
    return batches


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
