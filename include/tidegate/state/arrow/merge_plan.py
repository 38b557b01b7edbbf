"""What the workers of a merge are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.state.arrow.closing import WindowClosing
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout

if TYPE_CHECKING:
    pass

__all__ = ["MergePlan"]


@dataclass(frozen=True)
class MergePlan:
    """What every worker is told about a merge."""

    layout: StateLayout
    ops: Mapping[str, str]
    fixed: Mapping[str, int]
    """Those of these columns that are the same in all rows, and are not among what workers are given."""
    groups: int
    count: int
    """Into how many ranges the groups are split."""
    checkpoint: int
    touched: int | None
    limit: int | None
    folder: str
    runs: Sequence[SortedFile]
    batches: Sequence[tuple[Sequence[SortedFile], bool]]
    """Files to be merged beside, and whether rows that hide older ones are forgotten."""
    ending: WindowClosing | None = None
    """If rows end: when they do."""
    aside: str = ""
    """The folder for rows that have ended."""

    def range_of(self, split: int) -> range:
        """The key groups of a partition."""
        return range(-(-split * self.groups // self.count), -(-(split + 1) * self.groups // self.count))

    def runs_in(self, runs: Sequence[SortedFile], groups: range) -> list[SortedFile]:
        """The files that may hold rows of these groups."""
        return [run for run in runs if run.groups[0] < groups.stop and run.groups[1] >= groups.start]
