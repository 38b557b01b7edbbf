"""A worker's part of an operator that looks at all stored rows of its keys, for one range of key groups.

    the batch's rows, the stored rows of their keys, and the stored rows that end
        ↓  the operator's own function
    changed rows    →  one more file of each state
    rows to emit    →  a file beside the states

So an operator costs Spark one query, whatever it does with the rows. `state/folding.py` is the driver's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidegate.delta import WrittenFile
from tidegate.state.arrow.merging import ADDED, GIVEN, TOO_MANY, Line, MergePlan, compact, living_mask
from tidegate.state.arrow.sorted_files import (
    Matcher,
    SortedFile,
    StateLayout,
    Writer,
    firsts,
    integers,
    newest,
    opened,
    order_of,
    raw_bounds,
    read,
)
from tidegate.state.columns import CHECKPOINT, TOUCHED

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COUNTED", "Fold", "FoldPlan", "Folded", "Lookup", "TooMany", "fold"]

COUNTED: Final = -6
"""The kind of a line with a number of rows that the operator has counted; its name is the counter's."""


class TooMany(Exception):
    """More rows than a worker should hold: Spark, which spills, has to do it."""


@dataclass(frozen=True)
class Folded:
    """The result of an operator's function."""

    changes: Sequence[pa.Table]
    """For each state the changed rows: its keys and values, `_group` and `_deleted`. At most one row per key."""
    given: Iterable[pa.Table]
    """The rows to emit."""
    counts: Mapping[str, int] = field(default_factory=dict)


class Fold(Protocol):
    """An operator's function. It is sent to workers, and gets all rows of the keys of one range of key groups.

    One that also has `fewer(arrived)` says with which of the rows that have come so far the result is the same. So a
    batch may be larger than what a worker holds.
    """

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> Folded:
        """arrived: the batch's rows. stored: for each state the living rows under their keys, and those that end."""
        ...


@dataclass(frozen=True)
class Lookup:
    """The rows of one state that a worker looks up: those under the batch's keys, and those that end."""

    state: MergePlan
    grouped_by: Sequence[str]
    """The keys that are looked up. Rows that agree in these are in one key group."""
    time: str | None = None
    ends: int | None = None
    """Rows whose `time` is below end. None: none does."""
    most_bytes: int = 1 << 62
    """The most that a worker holds of them."""

    def rows(self, matcher: Matcher | None, groups: range) -> pa.Table:
        """Return the newest living row of each key. matcher: the batch's keys; None: it has none."""
        import pyarrow as pa

        layout, runs = self.state.layout, self.state.runs_in(self.state.runs, groups)
        parts, size = [], 0
        for run in runs:
            found = [layout.schema.empty_table()]
            for rows in self._rows_in(run, matcher):
                size += rows.nbytes
                if size > self.most_bytes:
                    raise TooMany
                found.append(rows)
            parts.append(pa.concat_tables(found))
        rows = newest(layout, parts, groups if any(not run.within(groups) for run in runs) else None)
        rows = rows.filter(living_mask(rows, self.state.limit))
        return rows.drop_columns([name for name in (CHECKPOINT, TOUCHED) if name in rows.column_names])

    def _rows_in(self, run: SortedFile, matcher: Matcher | None) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        layout, time = self.state.layout, self.time if self.ends is not None else None
        looked_at = [*self.grouped_by, *([time] if time is not None else [])]
        with opened(run) as file:
            places: dict[str, int] = {}
            for place in range(file.metadata.num_columns):  # of columns with the same path the first is no nested one
                places.setdefault(file.metadata.schema.column(place).path, place)
            for group in range(file.num_row_groups):
                metadata = file.metadata.row_group(group)
                sought = matcher is not None and matcher.may_be_in(metadata, places[self.grouped_by[0]])
                ending = time is not None and self._may_end(metadata, places[time])
                if not (sought or ending):
                    continue
                keys = read(file, layout, looked_at, group)
                mask = np.zeros(keys.num_rows, bool)
                if matcher is not None and sought:
                    mask[matcher.all_rows_in([keys[name].combine_chunks() for name in self.grouped_by])] = True
                if ending:
                    mask |= integers(keys[time]) < self.ends
                if mask.any():
                    yield read(file, layout, layout.schema.names, group).filter(pa.array(mask))

    def _may_end(self, metadata: Any, place: int) -> bool:
        bounds = raw_bounds(metadata, place)
        return bounds is None or (self.ends is not None and bounds[0] < self.ends)


@dataclass(frozen=True)
class FoldPlan:
    """The instructions that every worker receives."""

    lookups: Sequence[Lookup]
    work: Fold
    arriving: pa.Schema
    """The columns of the batch."""
    given: StateLayout
    folder: str
    """The folder for rows to emit."""
    most_bytes: int
    """The most that a worker holds of the batch."""


def fold(plan: FoldPlan, batches: Iterable[pa.RecordBatch], split: int, name: str) -> list[Line]:
    """Let the operator's function work on the rows of a range of key groups."""
    try:
        return _folded(plan, batches, split, name)
    except TooMany:
        return [Line(name, TOO_MANY, split, 0)]


def _folded(plan: FoldPlan, batches: Iterable[pa.RecordBatch], split: int, name: str) -> list[Line]:
    arrived = _collected(batches, plan.arriving, plan.most_bytes, getattr(plan.work, "fewer", None))
    groups = plan.lookups[0].state.range_of(split)
    folded = plan.work(arrived, _stored(plan.lookups, arrived, groups))
    lines = []
    for number, (lookup, changes) in enumerate(zip(plan.lookups, folded.changes, strict=True)):
        state = lookup.state
        written = _write_changes(state, changes, f"{state.folder}/{name}")
        lines.append(Line.of(name, ADDED, split, written, number))
        lines += [compact(state, batch, split, name, number) for batch in range(len(state.batches))]
    lines.append(Line.of(name, GIVEN, split, _write_given(plan, folded.given, name)))
    return lines + [Line(counter, COUNTED, split, count) for counter, count in folded.counts.items()]


def _stored(lookups: Sequence[Lookup], arrived: pa.Table, groups: range) -> list[pa.Table]:
    """Return what each lookup finds. Those by the same keys share their preparation, which sorts the batch."""
    matchers: dict[tuple[str, ...], Matcher | None] = {}
    for lookup in lookups:
        by = tuple(lookup.grouped_by)
        if by not in matchers:
            matchers[by] = Matcher(_distinct(arrived, by), by) if arrived.num_rows else None
    return [lookup.rows(matchers[tuple(lookup.grouped_by)], groups) for lookup in lookups]


def _collected(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    most_bytes: int,
    fewer: Callable[[pa.Table], pa.Table] | None,
) -> pa.Table:
    """Return the batch as one table. All of it is taken, also if it is too large: Spark ends a worker that leaves
    rows."""
    import pyarrow as pa

    held: list[Any] = []
    size, reduce_at, is_too_large = 0, most_bytes // 4, False
    for batch in batches:
        if is_too_large:
            continue
        held.append(pa.Table.from_batches([batch]).cast(schema))
        size += batch.nbytes
        if fewer is not None and size > reduce_at:
            held = [fewer(pa.concat_tables(held).combine_chunks())]
            size = held[0].nbytes
            reduce_at = max(reduce_at, 2 * size)
        if size > most_bytes:
            is_too_large = True
            held.clear()
    if is_too_large:
        raise TooMany
    return pa.concat_tables([schema.empty_table(), *held]).combine_chunks()


def _distinct(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows' keys, each once, sorted."""
    import pyarrow as pa

    columns = rows.select(list(keys))
    ordered = columns.take(pa.array(order_of(columns, keys)))
    return ordered.take(pa.array(firsts(ordered, keys)))


def _write_changes(state: MergePlan, changes: pa.Table, path: str) -> WrittenFile:
    import pyarrow as pa

    own = {CHECKPOINT: state.checkpoint, TOUCHED: state.touched}
    rows = state.layout.table({**own, **{n: changes[n] for n in changes.column_names}}, changes.num_rows)
    writer = Writer(state.layout, path)
    writer.write(rows.take(pa.array(order_of(rows, state.layout.keys))))
    return writer.close()


def _write_given(plan: FoldPlan, given: Iterable[pa.Table], name: str) -> WrittenFile:
    writer = Writer(plan.given, f"{plan.folder}/{name}")
    for rows in given:
        writer.write(plan.given.table({n: rows[n] for n in rows.column_names}, rows.num_rows))
    return writer.close()
