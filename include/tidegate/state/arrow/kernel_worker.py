"""A worker's part of an operator that looks at all stored rows of its keys, for one range of key groups.

    the batch's rows, the stored rows of their keys, and the stored rows that end
        ↓  the operator's own function, its kernel
    changed rows    →  one more file of each state
    rows to emit    →  a file beside the states, one of those that they replace, and one of each other output

So an operator costs Spark one query, whatever it does with the rows. Where workers do not reach the files, Spark brings
the stored rows along, and takes away what the kernel returns (`run_kernel_on_tagged_rows`). More rows than memory
should hold are worked on in parts (`spill.py`). `state/kernel_driver.py` is the driver's part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tidegate.delta import WrittenFile
from tidegate.state.arrow.keys_as_numbers import codes_of, integers, order_and_firsts, order_of, packed
from tidegate.state.arrow.matching import Matcher, raw_bounds
from tidegate.state.arrow.merging import ADDED, EmitPlan, MergePlan, ReportRow, compact, living_mask
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout, Writer, newest, only_value, opened, read
from tidegate.state.arrow.spill import KIND, Arriving, BufferedBatch, Limits, Share, Spilled, TooMany, spilling
from tidegate.state.columns import CHECKPOINT, DELETED, TOUCHED

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "COUNTED",
    "HOT_KEY",
    "IS_CURRENT",
    "ROW_GROUPS",
    "SIDE_OUTPUT",
    "SPILLED",
    "TIED",
    "Kernel",
    "KernelPlan",
    "KernelResult",
    "Lookup",
    "LookupKeys",
    "TaggedRows",
    "Tied",
    "current_and_retracted",
    "run_kernel_on_range",
    "run_kernel_on_tagged_rows",
]

COUNTED: Final = -6
"""The kind of a line with a number of rows that the operator has counted; its name is the counter's."""
SIDE_OUTPUT: Final = -8
"""The kind of a line with a file of another output: of the one with the number where others have the state's."""
TIED: Final = -9
"""The kind of a line that says that the ids of stored rows are needed."""
HOT_KEY: Final = -10
"""The kind of a line about a key that has more rows than memory can hold: its name is the key, its size the bytes."""
IS_CURRENT: Final = "_new"
"""The column of rows to emit that says whether a row holds now, or is one that was emitted before and is replaced."""
SPILLED: Final = -11
"""The kind of a line that says how many bytes have been written to local disk."""
ROW_GROUPS: Final = -12
"""The kind of a line that says how many row groups lookups have read (its rows), of how many (its size)."""


class Tied(Exception):
    """A row is as great as a stored one that is no copy of it: only their ids tell which counts."""


class HotKey(Exception):
    """A key has more rows than memory can hold."""

    def __init__(self, key: str, size: int) -> None:
        self.key = key
        self.size = size
        super().__init__(f"{size} bytes")


@dataclass(frozen=True)
class KernelResult:
    """The result of an operator's function."""

    changes: Sequence[pa.Table]
    """For each state the changed rows: its keys and values, `_group` and `_deleted`. At most one row per key."""
    rows: Iterable[pa.Table]
    """The rows to emit."""
    counts: Mapping[str, int] = field(default_factory=dict)
    side_outputs: Mapping[str, pa.Table] = field(default_factory=dict)
    """The rows of the operator's other outputs, by their names: such as late ones."""
    sorted_by_key: bool = False
    """Whether changed rows stand in the order of their keys, null last, so that nobody need sort them."""


def current_and_retracted(parts: Iterable[tuple[bool, pa.Table]], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield rows to emit, of tables that hold now (True) or did before. names: their columns."""
    import numpy as np
    import pyarrow as pa

    for is_now, rows in parts:
        said: Any = pa.array(np.repeat(is_now, rows.num_rows))
        yield rows.select(list(names)).append_column(IS_CURRENT, said)


class Kernel(ABC):
    """An operator's function. It is sent to workers, and gets all rows of some keys: never a part of a key's."""

    may_tie: ClassVar[bool] = False
    """Whether it may need the ids of stored rows: where Spark brings these, it brings their ids, too."""
    is_users_own: ClassVar[bool] = False
    """Whether it calls a function of the user's: of such nobody knows how long each row takes."""

    @abstractmethod
    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        """arrived: the batch's rows. stored: for each state the living rows under their keys, and those that end."""

    def add_columns(self, arrived: pa.Table) -> pa.Table:
        """Add to rows, as they come, what they come without, so that Spark need not bring it."""
        return arrived

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return the rows, of those that have come so far, with which the result is the same: so a key may have more
        rows in a batch than a worker holds."""
        return arrived

    def needs_match(self, arrived: pa.Table, place: int) -> Any:
        """Return a mask of the rows for which all rows of a state under their keys are needed; of others only copies of
        themselves are, if the state has a key beside those of groups, and the batch has it. It may get more. None: of
        all."""
        return None


@dataclass(frozen=True)
class Lookup:
    """The rows of one state that a worker looks up: those under the batch's keys, and those that end."""

    state: MergePlan
    grouped_by: Sequence[str]
    """The keys that are looked up. Rows that agree in these are in one key group."""
    time: str | None = None
    expire_before: int | None = None
    """Rows whose `time` is below end. None: none does."""
    expired_since: int | None = None
    """Rows whose `time` is below this have ended before, and no longer count. None: that is not known."""
    time_can_advance: bool = False
    """Whether a row's `time` may grow: so rows that seem to end are looked up by their keys, for newer ones."""
    also_keys_of: int | None = None
    """The number of a lookup before this one: the keys that it has found are looked up, too."""
    row_groups: dict[tuple[str, int], bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By file and place the row groups that a worker has come upon, and whether it has read them."""

    def rows(self, sought: LookupKeys, groups: range, most_bytes: int, share: Share | None = None) -> pa.Table:
        """Return the newest living row of each key. Raise TooMany if they are more than that. share: of the keys that
        end, only these."""
        import pyarrow as pa

        layout, runs = self.state.layout, self.state.runs_in(self.state.runs, groups)
        parts, size = [], 0
        for run in runs:
            found = [layout.schema.empty_table()]
            for rows in self._rows_in(run, sought):
                rows = rows if share is None else rows.filter(pa.array(share.mask(rows)))
                size += rows.nbytes
                if size > most_bytes:
                    raise TooMany(size)
                found.append(rows)
            parts.append(pa.concat_tables(found))
        within = all(run.within(groups) for run in runs)
        rows = newest(layout, parts, None if within else groups, in_order=False)
        rows = rows.filter(living_mask(rows, self.state.limit))
        return rows.drop_columns([name for name in (CHECKPOINT, TOUCHED) if name in rows.column_names])

    def _rows_in(self, run: SortedFile, sought: LookupKeys) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        layout, time = self.state.layout, None if self.time_can_advance else self._expiring_files
        looked_at = list(dict.fromkeys([*self.grouped_by, *([time] if time is not None else [])]))
        is_whole_key = tuple(self.grouped_by) == layout.keys
        with opened(run) as file:
            columns = _places(file)
            for group in range(file.num_row_groups):
                metadata = file.metadata.row_group(group)
                near = sought.within(metadata, columns.get(self.grouped_by[0]))
                ending = time is not None and time in columns and self._may_end(metadata, columns[time])
                self._note(run, group, is_read=near is not None or ending)
                if not (near or ending):
                    continue
                keys = read(file, layout, looked_at, group)
                places = np.zeros(0, np.int64)
                if near:
                    by = [keys[name].combine_chunks() for name in self.grouped_by]
                    column = partial(_column, file, layout, group)
                    places = near.places(by, column, is_whole_key=is_whole_key)
                if ending and time is not None:
                    places = np.union1d(places, np.flatnonzero(self._is_expiring(keys[time])))
                if len(places):
                    yield self._rows_at(file, group, keys, pa.array(places))

    def _rows_at(self, file: Any, group: int, keys: pa.Table, places: pa.Array) -> pa.Table:
        """Return a row group's rows at these places. keys: the columns that have been read already."""
        import pyarrow as pa

        layout, metadata, where = self.state.layout, file.metadata.row_group(group), _places(file)
        same = {name: value for name in (CHECKPOINT, DELETED) for value in only_value(metadata.column(where[name]))}
        others = [name for name in layout.schema.names if name not in keys.column_names and name not in same]
        rest = read(file, layout, others, group).take(places) if others else None
        mine = keys.take(places)
        columns = [
            pa.repeat(pa.scalar(same[field.name], field.type), len(places))
            if field.name in same
            else (mine if rest is None or field.name in mine.column_names else rest)[field.name]
            for field in layout.schema
        ]
        return pa.table(columns, schema=layout.schema)

    def expiring_keys(self, groups: range) -> Iterator[pa.Table]:
        """Yield the keys of rows that seem to end."""
        import pyarrow as pa

        if (time := self._expiring_files) is None:
            return
        layout = self.state.layout
        for run in self.state.runs_in(self.state.runs, groups):
            with opened(run) as file:
                place = _places(file).get(time)  # a file of before there was the column has no row that ends
                for group in range(file.num_row_groups if place is not None else 0):
                    if place is not None and self._may_end(file.metadata.row_group(group), place):
                        self._note(run, group, is_read=True)
                        rows = read(file, layout, list(dict.fromkeys([*self.grouped_by, time])), group)
                        yield rows.filter(pa.array(self._is_expiring(rows[time]))).select(list(self.grouped_by))

    def _note(self, run: SortedFile, group: int, *, is_read: bool) -> None:
        self.row_groups[run.path, group] = is_read or self.row_groups.get((run.path, group), False)

    @property
    def _expiring_files(self) -> str | None:
        return self.time if self.expire_before is not None else None

    def _is_expiring(self, times: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pc.fill_null(times, pa.scalar(0, times.type)) if times.null_count else times
        numbers = integers(known)
        ends = numbers < self.expire_before
        if self.expired_since is not None:
            ends &= numbers >= self.expired_since
        return ends & pc.is_valid(times).to_numpy() if times.null_count else ends

    def _may_end(self, metadata: Any, place: int) -> bool:
        bounds = raw_bounds(metadata, place)
        if bounds is None or self.expire_before is None:
            return self.expire_before is not None
        return bounds[0] < self.expire_before and (self.expired_since is None or bounds[1] >= self.expired_since)


def _column(file: Any, layout: StateLayout, group: int, name: str) -> pa.ChunkedArray:
    return read(file, layout, [name], group)[name]


@dataclass(frozen=True)
class LookupKeys:
    """What of a batch is looked up in a state."""

    keys: Matcher | None = None
    """All rows under these. None: there are none."""
    exact_copies: tuple[Matcher, str, pa.Array] | None = None
    """Rows that are there already: by the keys that decide the group, and by the values of another key."""

    @classmethod
    def all_under_keys(cls, rows: pa.Table, by: Sequence[str]) -> LookupKeys:
        """Look up all rows under these rows' keys."""
        return cls(Matcher(_keys_to_look_up(rows, by), by)) if rows.num_rows else cls()

    def with_copies(self, rows: pa.Table, by: Sequence[str], key: str) -> LookupKeys:
        """Look up copies of these rows, too. key: tells rows apart that agree in the others."""
        if not rows.num_rows:
            return self
        return LookupKeys(self.keys, (Matcher(_keys_to_look_up(rows, by), by), key, rows[key].combine_chunks()))

    def within(self, metadata: Any, place: int | None) -> LookupKeys | None:
        """Return what a row group can hold of it, by its statistics. None: nothing. place: the first key's column."""
        keys = self.keys if self.keys is not None and self.keys.may_be_in(metadata, place) else None
        copies = (
            self.exact_copies
            if self.exact_copies is not None and self.exact_copies[0].may_be_in(metadata, place)
            else None
        )
        return LookupKeys(keys, copies) if keys is not None or copies is not None else None

    def places(
        self, columns: Sequence[pa.Array], column: Callable[[str], pa.ChunkedArray], *, is_whole_key: bool
    ) -> Any:
        """Return the places of what is sought in a row group, in order.

        columns: the keys that decide the group. column: reads another one. is_whole_key: there is no other key, so each
        row has a key of its own.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        found = np.zeros(0, np.int64)
        if self.keys is not None:
            found = self.keys.rows_in(columns)[0] if is_whole_key else self.keys.all_rows_in(columns)
            found = np.sort(found)
        if self.exact_copies is None:
            return found
        by, key, values = self.exact_copies
        near = np.setdiff1d(by.all_rows_in(columns), found)
        if len(near):
            ids = column(key).take(pa.array(near))
            near = near[pc.is_in(ids, value_set=values).to_numpy()]
        return np.union1d(found, near)


def _places(file: Any) -> dict[str, int]:
    """Return the place of each column of a file; of columns with the same path the first is no nested one."""
    places: dict[str, int] = {}
    for place in range(file.metadata.num_columns):
        places.setdefault(file.metadata.schema.column(place).path, place)
    return places


@dataclass(frozen=True)
class KernelPlan:
    """The instructions that every worker receives."""

    lookups: Sequence[Lookup]
    """Empty: the stored rows come with the batch, or there are none."""
    stored: Sequence[pa.Schema]
    """The columns of each state's rows."""
    stored_by: Sequence[Sequence[str]]
    """Each state's keys."""
    kernel: Kernel
    arriving: Arriving
    key_group_columns: Sequence[str]
    """The columns that decide a row's key group."""
    groups: int
    count: int
    """The number of ranges that the key groups are split into."""
    limits: Limits
    emit_plan: EmitPlan | None = None
    """How workers write the rows to emit. None: Spark takes them."""
    is_current_column: str | None = None
    """The column of the rows to emit that is false where a row, emitted before, is replaced. None: none is."""
    side_outputs: Mapping[str, EmitPlan] = field(default_factory=dict)
    """How the rows of other outputs are written: of those that somebody takes."""

    def range_of(self, split: int) -> range:
        """Return the key groups of a partition."""
        return range(-(-split * self.groups // self.count), -(-(split + 1) * self.groups // self.count))


def run_kernel_on_range(plan: KernelPlan, batches: Iterable[pa.RecordBatch], split: int, name: str) -> list[ReportRow]:
    """Let the operator's kernel work on the rows of a range of key groups, and write what it returns."""
    lines: list[ReportRow] = []
    refused = None
    try:
        with spilling() as spilled:
            for number, folded in enumerate(
                _apply_kernel(plan, _collect_range(plan, batches, plan.range_of(split), spilled))
            ):
                lines += _write_result(plan, folded, split, name if not number else f"{number}-{name}")
            lines += [ReportRow("", SPILLED, split, 0, size=spilled.bytes)] if spilled.bytes else []
    except Tied:
        refused = ReportRow(name, TIED, split, 0)
    except HotKey as hot:
        refused = ReportRow(hot.key, HOT_KEY, split, 0, size=hot.size)
    if refused is not None:
        return [refused]
    seen = [is_read for lookup in plan.lookups for is_read in lookup.row_groups.values()]
    lines += [ReportRow("", ROW_GROUPS, split, sum(seen), size=len(seen))] if seen else []
    for number, lookup in enumerate(plan.lookups):
        lines += [compact(lookup.state, batch, split, name, number) for batch in range(len(lookup.state.batches))]
    return lines


def _collect_range(
    plan: KernelPlan, batches: Iterable[pa.RecordBatch], groups: range, spilled: Spilled
) -> BufferedBatch:
    """Return all rows of a range."""
    held = BufferedBatch(
        plan.arriving.buffered_schemas(), plan.key_group_columns, groups, plan.limits, spilled, plan.kernel.combine
    )
    for batch in batches:
        plan.arriving.add(batch, held)
    return held


def _apply_kernel(plan: KernelPlan, held: BufferedBatch) -> Iterator[KernelResult]:
    """Yield what the kernel makes of the rows: of all of them at once, or of parts."""
    try:
        arrived, *brought = held.tables()
        folded = plan.kernel(arrived, _load_stored(plan, arrived, brought, held))
    except TooMany as error:
        if held.is_alone:
            raise HotKey(held.one_key(), error.size) from None
        parts = held.parts()
    else:
        yield folded
        return
    for part in parts:
        yield from _apply_kernel(plan, part)


def _write_result(plan: KernelPlan, folded: KernelResult, split: int, name: str) -> list[ReportRow]:
    """Write what the kernel has returned."""
    lines = []
    for number, (lookup, changes) in enumerate(zip(plan.lookups, folded.changes, strict=False)):
        written = _write_changes(lookup.state, changes, f"{lookup.state.folder}/{name}", in_order=folded.sorted_by_key)
        lines.append(ReportRow.report_file(name, ADDED, split, written, number))
    assert plan.emit_plan is not None
    lines += plan.emit_plan.write((_split_by_column(rows, plan.is_current_column) for rows in folded.rows), split, name)
    for number, (output, giving) in enumerate(plan.side_outputs.items()):
        lines.append(
            ReportRow.report_file(
                name, SIDE_OUTPUT, split, giving.write_alone(folded.side_outputs[output], name), number
            )
        )
    return lines + [ReportRow(counter, COUNTED, split, count) for counter, count in folded.counts.items()]


def _load_stored(
    plan: KernelPlan, arrived: pa.Table, brought: Sequence[pa.Table], held: BufferedBatch
) -> list[pa.Table]:
    """Return each state's rows: those that Spark has brought, or what each lookup finds. Lookups by the same keys share
    their preparation, which sorts the batch."""
    import pyarrow.compute as pc

    if not plan.lookups:
        pairs = zip(brought, plan.stored_by, strict=False)
        return [_without_duplicates(rows, keys) for rows, keys in pairs] or [
            schema.empty_table() for schema in plan.stored
        ]
    known: dict[tuple[str, ...], LookupKeys] = {}
    found: list[pa.Table] = []
    for number, lookup in enumerate(plan.lookups):
        by = tuple(lookup.grouped_by)
        more = [] if lookup.also_keys_of is None else [found[lookup.also_keys_of]]
        more += lookup.expiring_keys(held.groups) if lookup.time_can_advance else []
        if not lookup.state.runs:
            sought = LookupKeys()
        elif (meets := plan.kernel.needs_match(arrived, number)) is not None:
            key = lookup.state.layout.keys[-1]
            tells_copies = key in arrived.column_names and key not in by
            keys = arrived.select([*by, key] if tells_copies else list(by))
            sought = LookupKeys.all_under_keys(_keys_together(keys.filter(meets), more, by), by)
            if tells_copies:
                sought = sought.with_copies(keys.filter(pc.invert(meets)), by, key)
        elif more:
            sought = LookupKeys.all_under_keys(_keys_together(arrived, more, by), by)
        else:
            sought = known[by] = known.get(by) or LookupKeys.all_under_keys(arrived, by)
        found.append(lookup.rows(sought, held.groups, held.limits.stored, held.share))
    return found


def _keys_together(rows: pa.Table, more: Sequence[pa.Table], by: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    keys = [table.select(list(by)) for table in (rows, *more)]
    return pa.concat_tables(keys, promote_options="default") if more else keys[0]


def _without_duplicates(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return each row once: one that ends may have been brought for its key, too."""
    import numpy as np
    import pyarrow as pa

    (codes,) = codes_of([rows.select(list(keys))], keys)
    _, first = np.unique(codes, return_index=True)
    return rows if len(first) == rows.num_rows else rows.take(pa.array(np.sort(first)))


# -- where Spark brings the rows, and takes them ----------------------------------------------------------


@dataclass(frozen=True)
class TaggedRows:
    """How rows pass through Spark: the columns of all kinds of rows side by side, those of other kinds null."""

    schema: pa.Schema
    columns: Sequence[Mapping[str, str]]
    """For each kind its columns, each with its name there."""
    project: Callable[[pa.Table], pa.Table] | None = None
    """Makes the rows to emit. None: they are as the kernel returns them."""
    side_outputs: Sequence[str] = ()
    """The other outputs that somebody takes."""

    def batches(self, rows: pa.Table, kind: int) -> Iterator[pa.RecordBatch]:
        """Yield rows of a kind."""
        import pyarrow as pa

        named = {here: rows[name] for name, here in self.columns[kind].items()}
        columns = [
            pa.repeat(pa.scalar(kind, pa.int32()), rows.num_rows)
            if field.name == KIND
            else named[field.name].cast(field.type)
            if field.name in named
            else pa.nulls(rows.num_rows, field.type)
            for field in self.schema
        ]
        yield from pa.table(columns, schema=self.schema).to_batches(max_chunksize=_PASSED_ROWS)


_PASSED_ROWS: Final = 10_000
COUNTS: Final = ("name", "what", "count")
"""The columns of what is counted: of a counter (COUNTED) its name, of a HOT_KEY the key; how many rows or bytes."""


def run_kernel_on_tagged_rows(
    plan: KernelPlan, passing: TaggedRows, batches: Iterable[pa.RecordBatch], split: int
) -> Iterator[pa.RecordBatch]:
    """Let the operator's kernel work on rows of the batch and stored ones, and yield what it returns: by kind the
    changes of each state, the rows to emit, those that they replace, those of each other output, and counts."""
    import pyarrow as pa

    states = len(plan.stored)

    def counted(name: str, what: int, count: int) -> Iterator[pa.RecordBatch]:
        columns = [pa.array([name]), pa.array([what], pa.int32()), pa.array([count], pa.int64())]
        return passing.batches(pa.table(columns, names=list(COUNTS)), len(passing.columns) - 1)

    try:
        with spilling() as spilled:
            for folded in _apply_kernel(plan, _collect_range(plan, batches, plan.range_of(split), spilled)):
                for kind, changes in enumerate(folded.changes):
                    yield from passing.batches(changes, kind)
                for rows in folded.rows:
                    for place, some in enumerate(_split_by_column(rows, plan.is_current_column)):
                        made = some if passing.project is None else passing.project(some)
                        yield from passing.batches(made, states + place)
                for place, output in enumerate(passing.side_outputs):
                    yield from passing.batches(folded.side_outputs[output], states + 2 + place)
                for counter, count in folded.counts.items():
                    yield from counted(counter, COUNTED, count)
            if spilled.bytes:
                yield from counted("", SPILLED, spilled.bytes)
    except HotKey as hot:
        yield from counted(hot.key, HOT_KEY, hot.size)


def _keys_to_look_up(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows' keys, for a matcher that is asked for no rows: numbers sorted and distinct, others as they
    come."""
    import pyarrow as pa

    columns = rows.select(list(keys))
    if packed(columns, keys) is None:
        return columns
    places, starts = order_and_firsts(columns, keys)
    return columns.take(pa.array(places[starts]))


def _write_changes(state: MergePlan, changes: pa.Table, path: str, *, in_order: bool) -> WrittenFile:
    import pyarrow as pa

    own = {CHECKPOINT: state.checkpoint, TOUCHED: state.expiry_times(changes)}
    rows = state.layout.table({**own, **{n: changes[n] for n in changes.column_names}}, changes.num_rows)
    writer = Writer(state.layout, path)
    writer.write(rows if in_order else rows.take(pa.array(order_of(rows, state.layout.keys))))
    return writer.close()


def _split_by_column(rows: pa.Table, column: str | None) -> tuple[pa.Table, pa.Table]:
    """Return the rows for which a column is true, and those for which it is false. None: all are in the first part."""
    import pyarrow.compute as pc

    if column is None:
        return rows, rows.slice(0, 0)
    mask = rows[column]
    return rows.filter(mask), rows.filter(pc.invert(mask))
