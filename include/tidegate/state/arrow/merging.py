"""The files that workers read and write for one range of key groups: those of a state, and those with rows to emit."""

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
    """How workers write rows to emit: in files next to the state's."""

    layout: StateLayout
    folder: str
    project: Callable[[pa.Table], pa.Table] | None = None
    """Computes the rows to emit from the kernel's rows. None: they are the same."""
    retractions_folder: str | None = None
    """The folder for retractions. None: they are not needed."""

    def write(self, parts: Iterable[tuple[pa.Table, pa.Table]], split: int, name: str) -> list[ReportRow]:
        """Write rows to emit, each part with its retractions, and report the files."""
        rows_writer = Writer(self.layout, f"{self.folder}/{name}")
        if self.retractions_folder is None:
            for rows, _ in parts:
                self._write(rows_writer, rows)
            return [ReportRow.report_file(name, GIVEN, split, rows_writer.close())]
        retractions_writer = Writer(self.layout, f"{self.retractions_folder}/{name}")
        for rows, retractions in parts:
            self._write(rows_writer, rows)
            self._write(retractions_writer, retractions)
        return [
            ReportRow.report_file(name, GIVEN, split, rows_writer.close()),
            ReportRow.report_file(name, REPLACED, split, retractions_writer.close()),
        ]

    def write_alone(self, rows: pa.Table, name: str) -> WrittenFile:
        """Write rows without retractions."""
        writer = Writer(self.layout, f"{self.folder}/{name}")
        self._write(writer, rows)
        return writer.close()

    def _write(self, writer: Writer, rows: pa.Table) -> None:
        projected = rows if self.project is None else self.project(rows)
        columns = {name: projected[name] for name in projected.column_names}
        writer.write(self.layout.table(columns, projected.num_rows))


@dataclass(frozen=True)
class MergePlan:
    """How workers read and write the files of a state."""

    layout: StateLayout
    groups: int
    count: int
    """The number of ranges that the key groups are split into."""
    checkpoint: int
    expiry_time: int | RowTtl | None
    """The time that decides when the rows expire, or how to compute it for each row. None: they do not expire."""
    limit: int | None
    """Stored rows whose time is up to this have expired."""
    folder: str
    runs: Sequence[SortedFile]
    batches: Sequence[tuple[Sequence[SortedFile], bool]]
    """Batches of files to be compacted, each with whether rows that only hide older ones can be dropped."""
    expired: ExpiredRows | None = None
    """The rows that compaction leaves out."""

    def range_of(self, split: int) -> range:
        """Return the key groups of a partition."""
        return range(-(-split * self.groups // self.count), -(-(split + 1) * self.groups // self.count))

    def expiry_times(self, rows: pa.Table) -> Any:
        """Return the time that decides when each row expires: an array, or the same for all."""
        if isinstance(self.expiry_time, RowTtl):
            return self.expiry_time.until_of(integers(rows[self.expiry_time.column]))
        return self.expiry_time

    def runs_in(self, runs: Sequence[SortedFile], groups: range) -> list[SortedFile]:
        """Return the files that may hold rows of these groups."""
        return [run for run in runs if run.groups[0] < groups.stop and run.groups[1] >= groups.start]


ADDED: Final = -1
GIVEN: Final = -2
REPLACED: Final = -7
"""Kinds of a report row: files with changed rows of a state, with rows to emit, and with retractions. A number from 0
is the index of a batch of files that was compacted."""


class ReportRow(NamedTuple):
    """A row of a worker's report to the driver, mostly about a file that it has written."""

    name: str
    """The file's name."""
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
        """Return the row that reports a file."""
        return cls(name, kind, split, file.rows, state, file.size)

    @property
    def reported_file(self) -> WrittenFile:
        """The file that the row reports."""
        return WrittenFile(self.rows, self.size)


def living_mask(rows: pa.Table, limit: int | None) -> Any:
    """Return a mask of the rows that are neither deleted nor expired."""
    import pyarrow.compute as pc

    is_live = pc.invert(rows[DELETED])
    if limit is not None and TOUCHED in rows.column_names:
        is_live = pc.and_(is_live, pc.fill_null(pc.greater(rows[TOUCHED], limit), True))
    return is_live.to_numpy()


def compact(plan: MergePlan, number: int, split: int, name: str, state: int = 0) -> ReportRow:
    """Compact the part of a batch of files that is in this range of key groups."""
    import pyarrow as pa

    (runs, forgets), groups = plan.batches[number], plan.range_of(split)
    rows = merged(plan.layout, plan.runs_in(runs, groups), groups)
    if plan.expired is not None:
        rows = rows.filter(pa.array(~ended_mask(rows[plan.expired.column], plan.expired.limit)))
    if forgets:
        rows = rows.filter(living_mask(rows, plan.limit))
    merged_name = f"merged{number}-{name}"
    writer = Writer(plan.layout, f"{plan.folder}/{merged_name}")
    writer.write(rows)
    return ReportRow.report_file(merged_name, number, split, writer.close(), state)
