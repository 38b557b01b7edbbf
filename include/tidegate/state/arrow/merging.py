"""A worker's part of a merge, for one range of key groups: it reads files of the state, and writes others.

the batch's rows, each with what its key had   →  one more file
files that are to become one                   →  that one
rows to give out: changed, or ended            →  a file beside the state, and one of those that they replace
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegate.delta import WrittenFile
from tidegate.state.arrow.keys_as_numbers import integers
from tidegate.state.arrow.matching import Matcher, raw_bounds
from tidegate.state.arrow.reducing import combined, reduced
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout, Writer, found, merged, newest, opened, read
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, TOUCHED
from tidegate.state.lateness import StartRange, WindowLimits, closing_starts, ended_mask, late_mask
from tidegate.state.record import RowTtl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = [
    "ADDED",
    "GIVEN",
    "LATE",
    "REPLACED",
    "TIMELESS",
    "TOO_MANY",
    "ClosedWindows",
    "Giving",
    "Line",
    "MergePlan",
    "WindowClosing",
    "compact",
    "living_mask",
    "merge",
]


@dataclass(frozen=True)
class WindowClosing:
    """The columns and the limits by which a merge closes windows."""

    start: str
    """The key column with the start. Null: the row has no time, and is counted."""
    end: str
    """The column with the end."""
    size: int
    """Microseconds from the start to the end."""
    limits: WindowLimits
    on_update: bool = False
    """Whether every changed row is emitted."""
    weight: str | None = None
    """The column with the number of input rows that a row counts for; by default one."""

    def taken(self, batches: Iterable[pa.RecordBatch], counts: Counter[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are not late, and count the others."""
        import numpy as np
        import pyarrow as pa

        for batch in batches:
            timed, late = late_mask(batch.column(self.start), self.size, self.limits.late)
            weight = integers(batch.column(self.weight)) if self.weight else np.ones(len(timed), np.int64)
            counts["late"] += int(weight[late].sum())
            counts["timeless"] += int(weight[~timed].sum())
            on_time = timed & ~late
            rows = batch if on_time.all() else batch.filter(pa.array(on_time))
            yield rows.drop_columns([self.weight]) if self.weight else rows

    def ends_of(self, starts: Any) -> Any:
        """Return the ends of rows with these starts: never more than the largest number."""
        import numpy as np
        import pyarrow as pa

        latest = np.iinfo(np.int64).max - self.size
        return pa.array(np.minimum(integers(starts), latest) + self.size).cast(starts.type)

    def staying(self, rows: pa.Table) -> pa.Table:
        """Return the rows that take more in the next checkpoint."""
        return _where(rows, ~ended_mask(rows[self.end], self.limits.over))

    def given(self, rows: pa.Table) -> pa.Table:
        """Return the changed rows that are emitted."""
        return rows if self.on_update else _where(rows, ended_mask(rows[self.end], self.limits.closed))

    def given_before(self, rows: pa.Table) -> pa.Table:
        """Return those of the rows, as they were at the base, that were emitted."""
        return rows if self.on_update else _where(rows, ended_mask(rows[self.end], self.limits.closed_before))

    def not_over(self, rows: pa.Table) -> pa.Table:
        """Return the rows that still count."""
        return _where(rows, ~ended_mask(rows[self.end], self.limits.late))

    @property
    def due(self) -> StartRange | None:
        """The starts of the rows that close now, changed or not. None: none do, or all changes are emitted anyway."""
        return None if self.on_update else closing_starts(self.limits, self.size)


def _where(rows: pa.Table, mask: Any) -> pa.Table:
    import pyarrow as pa

    return rows if mask.all() else rows.filter(pa.array(mask))


@dataclass(frozen=True)
class ClosedWindows:
    """The result of a merge that closes windows."""

    given: DataFrame
    replaced: DataFrame
    """The rows, given before, that these replace: none, if nobody asked for them."""
    late: int
    timeless: int


@dataclass(frozen=True)
class Giving:
    """The rows that workers give out, in files beside the state."""

    layout: StateLayout
    folder: str
    made: Callable[[pa.Table], pa.Table] | None = None
    """Makes them of the state's rows. None: they are as in the state."""
    replaced: str | None = None
    """The folder for the rows, given before, that these replace. None: nobody asks for them."""

    def write(self, parts: Iterable[tuple[pa.Table, pa.Table]], split: int, name: str) -> list[Line]:
        """Write rows to give out, each part with those that it replaces, and tell of the files."""
        given = Writer(self.layout, f"{self.folder}/{name}")
        replaced = Writer(self.layout, f"{self.replaced}/{name}") if self.replaced is not None else None
        for came, went in parts:
            self._put(given, came)
            if replaced is not None:
                self._put(replaced, went)
        lines = [Line.of(name, GIVEN, split, given.close())]
        return lines if replaced is None else [*lines, Line.of(name, REPLACED, split, replaced.close())]

    def write_alone(self, rows: pa.Table, name: str) -> WrittenFile:
        """Write rows that replace nothing."""
        writer = Writer(self.layout, f"{self.folder}/{name}")
        self._put(writer, rows)
        return writer.close()

    def _put(self, writer: Writer, rows: pa.Table) -> None:
        made = rows if self.made is None else self.made(rows)
        writer.write(self.layout.table({name: made[name] for name in made.column_names}, made.num_rows))


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
    touched: int | RowTtl | None
    """When the rows are written, or how they come to the time until which they live."""
    limit: int | None
    folder: str
    runs: Sequence[SortedFile]
    batches: Sequence[tuple[Sequence[SortedFile], bool]]
    """Files to be compacted in passing, and whether rows that hide older ones are forgotten."""
    ending: WindowClosing | None = None
    """If rows close: when they do."""
    giving: Giving | None = None
    """If rows are given out: how."""

    def range_of(self, split: int) -> range:
        """Return the key groups of a partition."""
        return range(-(-split * self.groups // self.count), -(-(split + 1) * self.groups // self.count))

    def touched_at(self, rows: pa.Table) -> Any:
        """Return the time that rows expire by: an array, or the same for all."""
        return (
            self.touched.until_of(integers(rows[self.touched.column]))
            if isinstance(self.touched, RowTtl)
            else self.touched
        )

    def runs_in(self, runs: Sequence[SortedFile], groups: range) -> list[SortedFile]:
        """Return the files that may hold rows of these groups."""
        return [run for run in runs if run.groups[0] < groups.stop and run.groups[1] >= groups.start]


ADDED: Final = -1
GIVEN: Final = -2
LATE: Final = -3
TIMELESS: Final = -4
TOO_MANY: Final = -5
REPLACED: Final = -7
"""The kinds of a line: a file, or a number of rows. Numbers from 0 stand for a set of files that was compacted."""


class Line(NamedTuple):
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
    def of(cls, name: str, kind: int, split: int, file: WrittenFile, state: int = 0) -> Line:
        """Tell of a file."""
        return cls(name, kind, split, file.rows, state, file.size)

    @property
    def file(self) -> WrittenFile:
        """The file as its writer tells of it."""
        return WrittenFile(self.rows, self.size)


def merge(plan: MergePlan, batches: Iterable[pa.RecordBatch], split: int, name: str) -> list[Line]:
    """Merge the batch's rows with the stored rows of their keys."""
    ending, giving, groups = plan.ending, plan.giving, plan.range_of(split)
    counts: Counter[str] = Counter()
    rows, before = _merge_batch(plan, batches if ending is None else ending.taken(batches, counts), groups)
    staying = rows if ending is None else ending.staying(rows)
    lines = [Line.of(name, ADDED, split, _write(plan, staying, f"{plan.folder}/{name}"))]
    if giving is not None:
        part = (rows, before)
        if ending is not None:
            part = _rows_to_emit(plan, ending, rows, groups), ending.given_before(before)
        lines += giving.write([part], split, name)
    if ending is not None:
        lines += [Line(name, LATE, split, counts["late"]), Line(name, TIMELESS, split, counts["timeless"])]
    return lines


def _merge_batch(plan: MergePlan, batches: Iterable[pa.RecordBatch], groups: range) -> tuple[pa.Table, pa.Table]:
    """Return the keys of the batch as they are from now on, sorted; and, if those are to be given, as they were."""
    import pyarrow as pa

    layout, none = plan.layout, plan.layout.schema.empty_table()
    wants_before = plan.giving is not None and plan.giving.replaced is not None
    now = reduced(_add_fixed(plan, batches), layout.keys, plan.ops)
    if now is None:
        return none, none
    now = pa.table({name: now[name].cast(layout.schema.field(name).type) for name in now.column_names})
    values, before = {name: now[name] for name in plan.ops}, none
    hits = found(layout, plan.runs_in(plan.runs, groups), Matcher(now, layout.keys))
    if hits is not None:
        values = _merge_stored(plan, values, now.num_rows, *hits)
        before = _as_before(plan, now, *hits) if wants_before else none
    fixed = {CHECKPOINT: plan.checkpoint, DELETED: False, TOUCHED: plan.touched_at(now)}
    keys = {name: now[name] for name in layout.keys}
    ends = {} if plan.ending is None else {plan.ending.end: plan.ending.ends_of(now[plan.ending.start])}
    return layout.table({**keys, **values, **fixed, **ends, GROUP: now[GROUP]}, now.num_rows), before


def _as_before(plan: MergePlan, now: pa.Table, places: Any, before: pa.Table) -> pa.Table:
    """Return the living rows among those that were found, with their keys."""
    import pyarrow as pa

    lives = living_mask(before, plan.limit)
    keys = now.select([GROUP, *plan.layout.keys]).take(pa.array(places[lives]))
    values = before.filter(pa.array(lives))
    columns = {name: values[name] for name in values.column_names}
    return plan.layout.table({**columns, **{name: keys[name] for name in keys.column_names}}, keys.num_rows)


def _add_fixed(plan: MergePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for name, value in plan.fixed.items():
            kind = plan.layout.schema.field(name).type
            batch = batch.append_column(name, pa.repeat(pa.scalar(value, kind), batch.num_rows))
        yield batch


def _merge_stored(plan: MergePlan, values: dict[str, Any], rows: int, places: Any, before: pa.Table) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa

    lives = living_mask(before, plan.limit)
    sources = np.full(rows, -1, np.int64)
    sources[places[lives]] = np.flatnonzero(lives)
    take = pa.array(sources, mask=sources < 0)
    return {
        name: combined(before[name].combine_chunks().take(take), now.combine_chunks(), plan.ops[name])
        for name, now in values.items()
    }


def living_mask(rows: pa.Table, limit: int | None) -> Any:
    """Return a mask of the rows that are neither deleted nor expired."""
    import pyarrow.compute as pc

    lives = pc.invert(rows[DELETED])
    if limit is not None and TOUCHED in rows.column_names:
        lives = pc.and_(lives, pc.fill_null(pc.greater(rows[TOUCHED], limit), True))
    return lives.to_numpy()


def _rows_to_emit(plan: MergePlan, ending: WindowClosing, rows: pa.Table, groups: range) -> pa.Table:
    """Return the rows to emit: changed ones, and those that close now without a change."""
    import pyarrow as pa

    changed, starts = ending.given(rows), ending.due
    if starts is None:
        return changed
    runs = plan.runs_in(plan.runs, groups)
    closing = [pa.concat_tables(due) for run in runs if (due := list(_read_closing(plan, ending, starts, run)))]
    if not closing:
        return changed
    all_within = all(run.within(groups) for run in runs)
    both = newest(plan.layout, [changed, *closing], None if all_within else groups)
    return both.filter(living_mask(both, plan.limit))


def _read_closing(plan: MergePlan, ending: WindowClosing, starts: StartRange, run: Any) -> Iterator[pa.Table]:
    """Yield the rows of a file whose starts are in the range."""
    import pyarrow as pa

    layout = plan.layout
    with opened(run) as file:
        place = file.schema_arrow.get_field_index(ending.start)
        for group in range(file.num_row_groups):
            bounds = raw_bounds(file.metadata.row_group(group), place)
            if bounds is not None and starts.misses(*bounds):
                continue
            rows = read(file, layout, layout.schema.names, group)
            mask = starts.mask(integers(rows[ending.start]))
            if mask.any():
                yield rows.filter(pa.array(mask))


def compact(plan: MergePlan, number: int, split: int, name: str, state: int = 0) -> Line:
    """Compact the files of a set, as far as they have rows of this range."""
    (runs, forgets), groups = plan.batches[number], plan.range_of(split)
    rows = merged(plan.layout, plan.runs_in(runs, groups), groups)
    if plan.ending is not None:
        rows = plan.ending.not_over(rows)
    if forgets:
        rows = rows.filter(living_mask(rows, plan.limit))
    merged_name = f"merged{number}-{name}"
    return Line.of(merged_name, number, split, _write(plan, rows, f"{plan.folder}/{merged_name}"), state)


def _write(plan: MergePlan, rows: pa.Table, path: str) -> WrittenFile:
    writer = Writer(plan.layout, path)
    writer.write(rows)
    return writer.close()
