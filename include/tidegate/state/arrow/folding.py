"""A worker's part of an operator that looks at all stored rows of its keys, for one range of key groups.

    the batch's rows, the stored rows of their keys, and the stored rows that end
        ↓  the operator's own function
    changed rows    →  one more file of each state
    rows to emit    →  a file beside the states, one of those that they replace, and one of each other output

So an operator costs Spark one query, whatever it does with the rows. `state/folding.py` is the driver's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidegate.delta import WrittenFile
from tidegate.spark.row_id import with_row_ids
from tidegate.state.arrow.keys_as_numbers import integers, order_and_firsts, order_of, packed
from tidegate.state.arrow.matching import Matcher, raw_bounds
from tidegate.state.arrow.merging import ADDED, TOO_MANY, Giving, Line, MergePlan, compact, living_mask
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout, Writer, newest, opened, read
from tidegate.state.columns import CHECKPOINT, TOUCHED

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["APART", "COUNTED", "Fold", "FoldPlan", "Folded", "Lookup", "TooMany", "fold"]

COUNTED: Final = -6
"""The kind of a line with a number of rows that the operator has counted; its name is the counter's."""
APART: Final = -8
"""The kind of a line with a file of another output: of the one with the number where others have the state's."""


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
    apart: Mapping[str, pa.Table] = field(default_factory=dict)
    """The rows of the operator's other outputs, by their names: such as late ones."""


class Fold(Protocol):
    """An operator's function. It is sent to workers, and gets all rows of the keys of one range of key groups.

    One that also has `fewer(arrived)` says with which of the rows that have come so far the result is the same. So a
    batch may be larger than what a worker holds. One that has `meeting(arrived, number)` says for which of them it
    needs all rows of a state under their keys; of the others only copies of themselves: rows with all of their keys.
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
    since: int | None = None
    """Rows whose `time` is below this have ended before, and no longer count. None: that is not known."""
    moves: bool = False
    """Whether a row's `time` may grow: so rows that seem to end are looked up by their keys, for newer ones."""
    most_bytes: int = 1 << 62
    """The most that a worker holds of them."""

    def rows(self, sought: Sought, groups: range) -> pa.Table:
        """Return the newest living row of each key."""
        import pyarrow as pa

        layout, runs = self.state.layout, self.state.runs_in(self.state.runs, groups)
        parts, size = [], 0
        for run in runs:
            found = [layout.schema.empty_table()]
            for rows in self._rows_in(run, sought):
                size += rows.nbytes
                if size > self.most_bytes:
                    raise TooMany
                found.append(rows)
            parts.append(pa.concat_tables(found))
        rows = newest(layout, parts, groups if any(not run.within(groups) for run in runs) else None)
        rows = rows.filter(living_mask(rows, self.state.limit))
        return rows.drop_columns([name for name in (CHECKPOINT, TOUCHED) if name in rows.column_names])

    def _rows_in(self, run: SortedFile, sought: Sought) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        layout, time = self.state.layout, None if self.moves else self._ending
        looked_at = [*self.grouped_by, *([time] if time is not None else [])]
        with opened(run) as file:
            places = _places(file)
            for group in range(file.num_row_groups):
                metadata = file.metadata.row_group(group)
                near = sought.within(metadata, places[self.grouped_by[0]])
                ending = time is not None and self._may_end(metadata, places[time])
                if not (near or ending):
                    continue
                keys = read(file, layout, looked_at, group)
                mask = np.zeros(keys.num_rows, bool)
                if near:
                    columns = [keys[name].combine_chunks() for name in self.grouped_by]
                    mask = near.mask(columns, partial(_column, file, layout, group))
                if ending:
                    mask |= self._ends(keys[time])
                if mask.any():
                    others = [name for name in layout.schema.names if name not in looked_at]
                    rest = read(file, layout, others, group) if others else keys
                    columns = [(keys if name in looked_at else rest)[name] for name in layout.schema.names]
                    yield pa.table(columns, schema=layout.schema).filter(pa.array(mask))

    def ending_keys(self, groups: range) -> Iterator[pa.Table]:
        """Yield the keys of rows that seem to end."""
        import pyarrow as pa

        if (time := self._ending) is None:
            return
        layout = self.state.layout
        for run in self.state.runs_in(self.state.runs, groups):
            with opened(run) as file:
                place = _places(file)[time]
                for group in range(file.num_row_groups):
                    if self._may_end(file.metadata.row_group(group), place):
                        rows = read(file, layout, [*self.grouped_by, time], group)
                        yield rows.filter(pa.array(self._ends(rows[time]))).select(list(self.grouped_by))

    @property
    def _ending(self) -> str | None:
        return self.time if self.ends is not None else None

    def _ends(self, times: Any) -> Any:
        ends = integers(times) < self.ends
        return ends if self.since is None else ends & (integers(times) >= self.since)

    def _may_end(self, metadata: Any, place: int) -> bool:
        bounds = raw_bounds(metadata, place)
        if bounds is None or self.ends is None:
            return self.ends is not None
        return bounds[0] < self.ends and (self.since is None or bounds[1] >= self.since)


def _column(file: Any, layout: StateLayout, group: int, name: str) -> pa.ChunkedArray:
    return read(file, layout, [name], group)[name]


@dataclass(frozen=True)
class Sought:
    """What of a batch is looked up in a state."""

    keys: Matcher | None = None
    """All rows under these. None: there are none."""
    copies: tuple[Matcher, str, pa.Array] | None = None
    """Rows that are there already: by the keys that decide the group, and by the values of another key."""

    @classmethod
    def of(cls, rows: pa.Table, by: Sequence[str]) -> Sought:
        """Look up all rows under these rows' keys."""
        return cls(Matcher(_keys_to_look_up(rows, by), by)) if rows.num_rows else cls()

    def with_copies(self, rows: pa.Table, by: Sequence[str], key: str) -> Sought:
        """Look up copies of these rows, too. key: tells rows apart that agree in the others."""
        if not rows.num_rows:
            return self
        return Sought(self.keys, (Matcher(_keys_to_look_up(rows, by), by), key, rows[key].combine_chunks()))

    def within(self, metadata: Any, place: int) -> Sought | None:
        """Return what a row group can hold of it, by its statistics. None: nothing. place: the first key's column."""
        keys = self.keys if self.keys is not None and self.keys.may_be_in(metadata, place) else None
        copies = self.copies if self.copies is not None and self.copies[0].may_be_in(metadata, place) else None
        return Sought(keys, copies) if keys is not None or copies is not None else None

    def mask(self, columns: Sequence[pa.Array], column: Callable[[str], pa.ChunkedArray]) -> Any:
        """Return a mask of a row group's rows. columns: the keys that decide the group. column: reads another one."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        mask = np.zeros(len(columns[0]), bool)
        if self.keys is not None:
            mask[self.keys.all_rows_in(columns)] = True
        if self.copies is None:
            return mask
        by, key, values = self.copies
        near = np.zeros(len(mask), bool)
        near[by.all_rows_in(columns)] = True
        places = np.flatnonzero(near & ~mask)
        if len(places):
            ids = column(key).take(pa.array(places))
            mask[places[pc.is_in(ids, value_set=values).to_numpy()]] = True
        return mask


def _places(file: Any) -> dict[str, int]:
    """Return the place of each column of a file; of columns with the same path the first is no nested one."""
    places: dict[str, int] = {}
    for place in range(file.metadata.num_columns):
        places.setdefault(file.metadata.schema.column(place).path, place)
    return places


@dataclass(frozen=True)
class FoldPlan:
    """The instructions that every worker receives."""

    lookups: Sequence[Lookup]
    work: Fold
    arriving: pa.Schema
    """The columns of the batch."""
    giving: Giving
    most_bytes: int
    """The most that a worker holds of the batch."""
    enters: str | None = None
    """The column of the rows to emit that is false where a row, emitted before, is replaced. None: none is."""
    apart: Mapping[str, Giving] = field(default_factory=dict)
    """How the rows of other outputs are written: of those that somebody takes."""


def fold(plan: FoldPlan, batches: Iterable[pa.RecordBatch], split: int, name: str) -> list[Line]:
    """Let the operator's function work on the rows of a range of key groups."""
    try:
        return _folded(plan, batches, split, name)
    except TooMany:
        return [Line(name, TOO_MANY, split, 0)]


def _folded(plan: FoldPlan, batches: Iterable[pa.RecordBatch], split: int, name: str) -> list[Line]:
    arrived = _collected(batches, plan.arriving, plan.most_bytes, getattr(plan.work, "fewer", None))
    groups = plan.lookups[0].state.range_of(split)
    folded = plan.work(arrived, _stored(plan, arrived, groups))
    lines = []
    for number, (lookup, changes) in enumerate(zip(plan.lookups, folded.changes, strict=True)):
        state = lookup.state
        written = _write_changes(state, changes, f"{state.folder}/{name}")
        lines.append(Line.of(name, ADDED, split, written, number))
        lines += [compact(state, batch, split, name, number) for batch in range(len(state.batches))]
    lines += plan.giving.write((_parted(rows, plan.enters) for rows in folded.given), split, name)
    for number, (output, giving) in enumerate(plan.apart.items()):
        lines.append(Line.of(name, APART, split, giving.write_alone(folded.apart[output], name), number))
    return lines + [Line(counter, COUNTED, split, count) for counter, count in folded.counts.items()]


def _stored(plan: FoldPlan, arrived: pa.Table, groups: range) -> list[pa.Table]:
    """Return what each lookup finds. Those by the same keys share their preparation, which sorts the batch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    meeting = getattr(plan.work, "meeting", None)
    known: dict[tuple[str, ...], Sought] = {}
    found = []
    for number, lookup in enumerate(plan.lookups):
        by = tuple(lookup.grouped_by)
        if meeting is not None:
            meets = meeting(arrived, number)
            own = arrived.filter(pc.invert(meets))
            sought = Sought.of(arrived.filter(meets), by).with_copies(own, by, lookup.state.layout.keys[-1])
        elif lookup.moves:
            sought = Sought.of(pa.concat_tables([arrived.select(list(by)), *lookup.ending_keys(groups)]), by)
        else:
            sought = known[by] = known.get(by) or Sought.of(arrived, by)
        found.append(lookup.rows(sought, groups))
    return found


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
        held.append(with_row_ids(pa.Table.from_batches([batch]).cast(schema)))
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
    return pa.concat_tables([with_row_ids(schema.empty_table()), *held]).combine_chunks()


def _keys_to_look_up(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows' keys, for a matcher that is asked for no rows: numbers sorted and distinct, others as they
    come."""
    import pyarrow as pa

    columns = rows.select(list(keys))
    if packed(columns, keys) is None:
        return columns
    places, starts = order_and_firsts(columns, keys)
    return columns.take(pa.array(places[starts]))


def _write_changes(state: MergePlan, changes: pa.Table, path: str) -> WrittenFile:
    import pyarrow as pa

    own = {CHECKPOINT: state.checkpoint, TOUCHED: state.touched_at(changes)}
    rows = state.layout.table({**own, **{n: changes[n] for n in changes.column_names}}, changes.num_rows)
    writer = Writer(state.layout, path)
    writer.write(rows.take(pa.array(order_of(rows, state.layout.keys))))
    return writer.close()


def _parted(rows: pa.Table, column: str | None) -> tuple[pa.Table, pa.Table]:
    """Return the rows for which a column is true, and those for which it is false. None: all are in the first part."""
    import pyarrow.compute as pc

    if column is None:
        return rows, rows.slice(0, 0)
    mask = rows[column]
    return rows.filter(mask), rows.filter(pc.invert(mask))
