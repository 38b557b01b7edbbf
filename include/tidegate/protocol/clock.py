"""A checkpoint's logical time (docs/protocol.md, section 9), as pure functions.

Operators, gates and idle sources read the plan's clock and no other. So every attempt computes the same result, and so
does a later backfill. From a base to the checkpoint that continues from it, the clock never goes back.
"""

from __future__ import annotations

from tidegate.records.moments import moment_of
from tidegate.records.records import Plan

__all__ = ["clock_of_plan", "clock_of_replay", "clock_of_swap", "later_time"]


def later_time(first: str, second: str) -> str:
    """Return the later of two times of records. Text that is not a time counts as the earlier one."""
    first_moment, second_moment = moment_of(first), moment_of(second)
    if second_moment is None:
        return first
    if first_moment is None or first_moment < second_moment:
        return second
    return first


def clock_of_plan(now: str, base: Plan | None, *, by_hand: bool = False) -> str:
    """Return the clock of a pipeline's own checkpoint: now, but never before its base. A checkpoint made by hand has
    the time of its base: no time passes in it."""
    if base is None:
        return now
    if by_hand:
        return base.time
    return later_time(now, base.time)


def clock_of_replay(replayed: str, base: Plan | None) -> str:
    """Return the clock of a line's checkpoint. replayed: the clock of the last live plan that it replays, or now if it
    reads input that no live plan has read."""
    if base is not None:
        return later_time(replayed, base.time)
    return replayed


def clock_of_swap(head: Plan, base: Plan | None) -> str:
    """Return the clock of a swap. The next checkpoint continues from the line's head, and from what readers last
    saw."""
    if base is not None:
        return later_time(head.time, base.time)
    return head.time
