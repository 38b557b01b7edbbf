"""Sources that a person moved to another name, dropped, or accepted in another system. Pure.

Each such act is an entry of the log. Like a suspension, it is derived from the end of the log: it applies to a plan if
its entry is above the plan's base. The planner has seen it, because it has seen every lower entry, and the plan records
the position under the new name, so later plans on that base ignore the act. If the plan is aborted, the next one rests
on the old base and applies the act again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from tidegate.protocol.view import Entry, View
from tidegate.records.records import Json, Range, SourceChange

__all__ = ["accepted_beginning", "ranges_after", "source_changes", "under_new_names"]

T = TypeVar("T")


def source_changes(view: View, base: Entry | None) -> tuple[SourceChange, ...]:
    """Return the changes that a plan on `base` has to apply, in order."""
    if base is None:
        return ()
    acts = (entry.control for entry in view.entries if entry.id > base.id)
    return tuple(act.source for act in acts if act is not None and act.source is not None)


def accepted_beginning(view: View, first: int, name: str) -> Json | None:
    """Return where a source that was never read begins in its present system, if a person has accepted that system in
    entry `first` or later."""
    for entry in reversed(view.entries):
        change = entry.control.source if entry.control is not None else None
        if entry.id >= first and change is not None and change.name == name == change.to:
            return change.position
    return None


def under_new_names(by_source: Mapping[str, T], changes: Sequence[SourceChange]) -> dict[str, T]:
    """Return the mapping by the sources' present names. A change that a rollback has made meaningless is ignored: a
    position never replaces another one."""
    present = dict(by_source)
    for change in changes:
        if change.name not in present or change.to in present:
            continue
        moved = present.pop(change.name)
        if change.to is not None:
            present[change.to] = moved
    return present


def ranges_after(ranges: Mapping[str, Range], changes: Sequence[SourceChange]) -> dict[str, Range]:
    """Return the ranges by the sources' present names, each up to where reading continues."""
    present = dict(ranges)
    for change in changes:
        present = under_new_names(present, [change])
        if change.position is not None and change.to in present:
            present[change.to] = msgspec.structs.replace(present[change.to], end=change.position)
    return present
