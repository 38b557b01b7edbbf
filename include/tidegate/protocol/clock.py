"""The time that counts in a checkpoint (docs/protocol.md, section 9), as pure functions.

Operators, gates and idle sources go by the clock of the plan and by nothing else. So each attempt computes the same,
and so does a backfill, whenever it runs. From a checkpoint to the one that continues from it the clock never goes back.
"""

from __future__ import annotations

from tidegate.records.moments import moment_of
from tidegate.records.records import Plan

__all__ = ["clock_of_plan", "clock_of_replay", "clock_of_swap", "later_time"]


def later_time(first: str, second: str) -> str:
    """Return the later of two times of records. One that is none counts as the earlier."""
    times = moment_of(first), moment_of(second)
    if times[0] is None or times[1] is None:
        return first if times[1] is None else second
    return first if times[0] >= times[1] else second


def clock_of_plan(now: str, base: Plan | None, *, by_hand: bool = False) -> str:
    """Return the clock of a pipeline's own checkpoint: now, but never before its base. One that a person makes by hand
    is of the time of its base: no time passes in it."""
    if base is None:
        return now
    return base.time if by_hand else later_time(now, base.time)


def clock_of_replay(replayed: str, base: Plan | None) -> str:
    """Return the clock of a line's checkpoint. replayed: that of the last live plan that it replays; now, if it reads
    what no live plan has read."""
    return later_time(replayed, base.time) if base is not None else replayed


def clock_of_swap(head: Plan, base: Plan | None) -> str:
    """Return the clock of a swap: what comes next continues from the line's head, and from what readers saw before."""
    return later_time(head.time, base.time) if base is not None else head.time
