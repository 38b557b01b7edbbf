"""The instructions for the workers of a merge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.state.arrow.closing import WindowClosing
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout

__all__ = ["MergePlan"]


@dataclass(frozen=True)
class MergePlan:
    """The instructions that every worker of a merge receives."""

    layout: StateLayout
    ops: Mapping[str, str]
    fixed: Mapping[str, int]
    """The columns among these that are the same in all rows: the rows come to workers without them."""
    groups: int
    count: int
    """The number of ranges that the key groups are split into."""
    checkpoint: int
    touched: int | None
    limit: int | None
    folder: str
    runs: Sequence[SortedFile]
    batches: Sequence[tuple[Sequence[SortedFile], bool]]
    """Files to be compacted in passing, and whether rows that hide older ones are forgotten."""
    ending: WindowClosing | None = None
    """If rows close: when they do."""
    aside: str = ""
    """The folder for rows that have closed."""

    def range_of(self, split: int) -> range:
        """Return the key groups of a partition."""
        return range(-(-split * self.groups // self.count), -(-(split + 1) * self.groups // self.count))

    def runs_in(self, runs: Sequence[SortedFile], groups: range) -> list[SortedFile]:
        """Return the files that may hold rows of these groups."""
        return [run for run in runs if run.groups[0] < groups.stop and run.groups[1] >= groups.start]
