"""Files that workers read and write, for one range of key groups: those of a state, and of rows to emit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegate.delta import WrittenFile
from tidegate.state.arrow.keys_as_numbers import integers
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout, Writer, merged
from tidegate.state.columns import DELETED, TOUCHED
from tidegate.state.lateness import ExpiredRows, ended_mask
from tidegate.state.record import RowTtl

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ADDED",
    "GIVEN",
    "REPLACED",
    "EmitPlan",
    "MergePlan",
    "ReportRow",
    "compact",
    "living_mask",
]


@dataclass(frozen=True)
class EmitPlan:
    """The rows that workers give out, in files beside the state."""

    layout: StateLayout
    folder: str
    project: Callable[[pa.Table], pa.Table] | None = None
    """Makes them of the state's rows. None: they are as in the state."""
    retractions_folder: str | None = None
    """The folder for the rows, given before, that these replace. None: nobody asks for them."""

    def write(self, parts: Iterable[tuple[pa.Table, pa.Table]], split: int, name: str) -> list[ReportRow]:
        """Write rows to give out, each part with those that it replaces, and tell of the files."""
        given = Writer(self.layout, f"{self.folder}/{name}")
        replaced = (
            Writer(self.layout, f"{self.retractions_folder}/{name}") if self.retractions_folder is not None else None
        )
        for came, went in parts:
            self._put(given, came)
            if replaced is not None:
                self._put(replaced, went)
        lines = [ReportRow.report_file(name, GIVEN, split, given.close())]
        return lines if replaced is None else [*lines, ReportRow.report_file(name, REPLACED, split, replaced.close())]

    def write_alone(self, rows: pa.Table, name: str) -> WrittenFile:
        """Write rows that replace nothing."""
        writer = Writer(self.layout, f"{self.folder}/{name}")
        self._put(writer, rows)
        return writer.close()

    def _put(self, writer: Writer, rows: pa.Table) -> None:
        made = rows if self.project is None else self.project(rows)
        writer.write(self.layout.table({name: made[name] for name in made.column_names}, made.num_rows))


@dataclass(frozen=True)
class MergePlan:
    """How workers read and write the files of a state."""

    layout: StateLayout
    groups: int
    count: int
    """The number of ranges that the key groups are split into."""
    checkpoint: int
    expiry_time: int | RowTtl | None
    """When the rows are written, or how they come to the time until which they live."""
    limit: int | None
    folder: str
    runs: Sequence[SortedFile]
    batches: Sequence[tuple[Sequence[SortedFile], bool]]
    """Files to be compacted in passing, and whether rows that hide older ones are forgotten."""
    expired: ExpiredRows | None = None
    """Rows that are over are left out when files are compacted."""

    def range_of(self, split: int) -> range:
        """Return the key groups of a partition."""
        return range(-(-split * self.groups // self.count), -(-(split + 1) * self.groups // self.count))

    def expiry_times(self, rows: pa.Table) -> Any:
        """Return the time that rows expire by: an array, or the same for all."""
        return (
            self.expiry_time.until_of(integers(rows[self.expiry_time.column]))
            if isinstance(self.expiry_time, RowTtl)
            else self.expiry_time
        )

    def runs_in(self, runs: Sequence[SortedFile], groups: range) -> list[SortedFile]:
        """Return the files that may hold rows of these groups."""
        return [run for run in runs if run.groups[0] < groups.stop and run.groups[1] >= groups.start]


ADDED: Final = -1
GIVEN: Final = -2
REPLACED: Final = -7
"""The kinds of a line: a file, or a number of rows. Numbers from 0 stand for a set of files that was compacted."""


class ReportRow(NamedTuple):
    """A line of a worker's report."""

    name: str
    """A file's name."""
    kind: int
    split: int
    """The range of key groups."""
    rows: int
    state: int = 0
    """Which of several states the file belongs to."""
    size: int = 0
    """The file's bytes."""

    @classmethod
    def report_file(cls, name: str, kind: int, split: int, file: WrittenFile, state: int = 0) -> ReportRow:
        """Tell of a file."""
        return cls(name, kind, split, file.rows, state, file.size)

    @property
    def reported_file(self) -> WrittenFile:
        """The file as its writer tells of it."""
        return WrittenFile(self.rows, self.size)


def living_mask(rows: pa.Table, limit: int | None) -> Any:
    """Return a mask of the rows that are neither deleted nor expired."""
    import pyarrow.compute as pc

    lives = pc.invert(rows[DELETED])
    if limit is not None and TOUCHED in rows.column_names:
        lives = pc.and_(lives, pc.fill_null(pc.greater(rows[TOUCHED], limit), True))
    return lives.to_numpy()


def compact(plan: MergePlan, number: int, split: int, name: str, state: int = 0) -> ReportRow:
    """Compact the files of a set, as far as they have rows of this range."""
    import pyarrow as pa

    (runs, forgets), groups = plan.batches[number], plan.range_of(split)
    rows = merged(plan.layout, plan.runs_in(runs, groups), groups)
    if plan.expired is not None:
        rows = rows.filter(pa.array(~ended_mask(rows[plan.expired.column], plan.expired.limit)))
    if forgets:
        rows = rows.filter(living_mask(rows, plan.limit))
    merged_name = f"merged{number}-{name}"
    return ReportRow.report_file(merged_name, number, split, _write(plan, rows, f"{plan.folder}/{merged_name}"), state)


def _write(plan: MergePlan, rows: pa.Table, path: str) -> WrittenFile:
    writer = Writer(plan.layout, path)
    writer.write(rows)
    return writer.close()
