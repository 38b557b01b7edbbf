"""Runs an operator's kernel for one range of key groups: a worker's part.

    the batch's rows, the stored rows of their keys, and the stored rows that expire
        ↓  the operator's kernel
    changed rows    →  a new file of each state
    rows to emit    →  files next to the states: the emitted rows, retractions, and each side output

So any operator costs Spark one query. Where workers cannot reach the files, Spark reads the stored rows and writes what
the kernel returns (`run_kernel_on_tagged_rows`). Rows that do not fit into memory are processed in parts (`spill.py`).
`state/kernel_driver.py` is the driver's part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tidegate.delta import WrittenFile
from tidegate.state.arrow.keys_as_numbers import codes_of, distinct_codes, integers, order_and_firsts, order_of, packed
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
    "ROWS_IN",
    "ROWS_OUT",
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
"""The kind of a report row with a counter of the operator: its name, and a number of rows."""
SIDE_OUTPUT: Final = -8
"""The kind of a report row with a file of a side output, whose number is in place of the state's."""
TIED: Final = -9
"""The kind of a report row by which a worker asks for the ids of stored rows."""
HOT_KEY: Final = -10
"""The kind of a report row about a key with more rows than memory can hold: the key as its name, and their bytes."""
IS_CURRENT: Final = "_new"
"""The column of rows to emit that is true for a row that holds now, and false for a retraction."""
SPILLED: Final = -11
"""The kind of a report row with the number of bytes spilled to local disk."""
ROW_GROUPS: Final = -12
"""The kind of a report row about row groups: as its rows how many lookups have read, as its size of how many."""
ROWS_IN: Final = -13
"""The kind of a report row with the number of the batch's rows that have arrived."""
ROWS_OUT: Final = -14
"""The kind of a report row with the number of rows to emit, where Spark writes them. Files report their own."""


class Tied(Exception):
    """A row ties with a stored one that is no copy of it. Only the ids of both can decide."""


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
    """The rows of the operator's other outputs by name, such as late rows."""
    sorted_by_key: bool = False
    """Whether the changed rows are sorted by key, nulls last, so that writing them needs no sort."""


def current_and_retracted(parts: Iterable[tuple[bool, pa.Table]], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield rows to emit, marked as current or retracted. parts: tables of current rows (True) or retractions."""
    import numpy as np
    import pyarrow as pa

    for is_current, rows in parts:
        marks: Any = pa.array(np.repeat(is_current, rows.num_rows))
        yield rows.select(list(names)).append_column(IS_CURRENT, marks)


class Kernel(ABC):
    """An operator's function. It is sent to workers. Each call gets all rows of each of its keys."""

    may_tie: ClassVar[bool] = False
    """Whether it may need the ids of stored rows. Spark then brings these along."""
    is_users_own: ClassVar[bool] = False
    """Whether it calls a function of the user's, so that the time per row is unknown."""

    @abstractmethod
    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        """arrived: the batch's rows. stored: for each state the live rows under their keys, and those that expire."""

    def add_columns(self, arrived: pa.Table) -> pa.Table:
        """Add the columns that can be computed here, so that Spark need not transfer them."""
        return arrived

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Reduce the rows so far to fewer rows with the same result. So a key may have more rows in a batch than fit
        into memory."""
        return arrived

    def needs_match(self, arrived: pa.Table, state_number: int) -> Any:
        """Return a mask of the rows that need all of a state's rows under their keys, or None if all rows do.

        For the other rows, only stored copies of themselves are looked up, if the state has a key in addition to those
        of groups, and the batch has it. The kernel may get more rows than it needs.
        """
        return None


@dataclass(frozen=True)
class Lookup:
    """The rows of one state that a worker looks up: those under the batch's keys, and those that expire."""

    state: MergePlan
    grouped_by: Sequence[str]
    """The keys that are looked up. Rows with the same values of these are in one key group."""
    time: str | None = None
    expire_before: int | None = None
    """Rows whose `time` is below this expire. None: no rows expire."""
    expired_since: int | None = None
    """Rows whose `time` is below this expired in an earlier checkpoint, and no longer count. None: unknown."""
    time_can_advance: bool = False
    """Whether a row's `time` may grow. A row that seems to expire may then be outdated, so its key is looked up."""
    also_keys_of: int | None = None
    """The index of an earlier lookup: the keys of the rows that it found are looked up, too."""
    row_groups: dict[tuple[str, int], bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The row groups that a worker has considered, by file and index, and whether it has read them."""

    def rows(self, sought: LookupKeys, groups: range, max_bytes: int, share: Share | None = None) -> pa.Table:
        """Return the newest live row of each key. Raise TooMany if the rows are larger than `max_bytes`.

        share: ignore rows outside of this share of the keys.
        """
        import pyarrow as pa

        layout, runs = self.state.layout, self.state.runs_in(self.state.runs, groups)
        parts, size = [], 0
        for run in runs:
            run_parts = [layout.schema.empty_table()]
            for rows in self._rows_in(run, sought):
                if share is not None:
                    rows = rows.filter(pa.array(share.mask(rows)))
                size += rows.nbytes
                if size > max_bytes:
                    raise TooMany(size)
                run_parts.append(rows)
            parts.append(pa.concat_tables(run_parts))
        within = all(run.within(groups) for run in runs)
        rows = newest(layout, parts, None if within else groups, in_order=False)
        rows = rows.filter(living_mask(rows, self.state.limit))
        return rows.drop_columns([name for name in (CHECKPOINT, TOUCHED) if name in rows.column_names])

    def _rows_in(self, run: SortedFile, sought: LookupKeys) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        layout = self.state.layout
        time = None if self.time_can_advance else self._expiry_column
        names = self._key_columns_with(time)
        is_whole_key = tuple(self.grouped_by) == layout.keys
        with opened(run) as file:
            columns = _column_indexes(file)
            for group in range(file.num_row_groups):
                metadata = file.metadata.row_group(group)
                candidates = sought.within(metadata, columns.get(self.grouped_by[0]))
                may_expire = time is not None and time in columns and self._may_expire(metadata, columns[time])
                self._note(run, group, is_read=candidates is not None or may_expire)
                if not (candidates or may_expire):
                    continue
                keys = read(file, layout, names, group)
                positions = np.zeros(0, np.int64)
                if candidates:
                    key_arrays = [keys[name].combine_chunks() for name in self.grouped_by]
                    read_column = partial(_read_column, file, layout, group)
                    positions = candidates.positions(key_arrays, read_column, is_whole_key=is_whole_key)
                if may_expire and time is not None:
                    positions = np.union1d(positions, np.flatnonzero(self._is_expiring(keys[time])))
                if len(positions):
                    yield self._select_rows(file, group, keys, pa.array(positions))

    def _key_columns_with(self, time: str | None) -> list[str]:
        names = list(self.grouped_by)
        if time is not None and time not in names:
            names.append(time)
        return names

    def _select_rows(self, file: Any, group: int, keys: pa.Table, positions: pa.Array) -> pa.Table:
        """Return a row group's rows at these positions. keys: the columns that have been read already."""
        import pyarrow as pa

        layout, metadata, indexes = self.state.layout, file.metadata.row_group(group), _column_indexes(file)
        constants = {}
        for name in (CHECKPOINT, DELETED):
            for value in only_value(metadata.column(indexes[name])):
                constants[name] = value
        unread = []
        for name in layout.schema.names:
            if name not in keys.column_names and name not in constants:
                unread.append(name)
        taken_keys = keys.take(positions)
        if unread:
            others = read(file, layout, unread, group).take(positions)
        else:
            others = taken_keys
        columns = []
        for target in layout.schema:
            if target.name in constants:
                column = pa.repeat(pa.scalar(constants[target.name], target.type), len(positions))
            elif target.name in taken_keys.column_names:
                column = taken_keys[target.name]
            else:
                column = others[target.name]
            columns.append(column)
        return pa.table(columns, schema=layout.schema)

    def expiring_keys(self, groups: range) -> Iterator[pa.Table]:
        """Yield the keys of rows that seem to expire."""
        import pyarrow as pa

        if (time := self._expiry_column) is None:
            return
        layout = self.state.layout
        for run in self.state.runs_in(self.state.runs, groups):
            with opened(run) as file:
                index = _column_indexes(file).get(time)
                if index is None:
                    continue  # the file predates the column, so none of its rows expires
                for group in range(file.num_row_groups):
                    if self._may_expire(file.metadata.row_group(group), index):
                        self._note(run, group, is_read=True)
                        rows = read(file, layout, self._key_columns_with(time), group)
                        yield rows.filter(pa.array(self._is_expiring(rows[time]))).select(list(self.grouped_by))

    def _note(self, run: SortedFile, group: int, *, is_read: bool) -> None:
        self.row_groups[run.path, group] = is_read or self.row_groups.get((run.path, group), False)

    @property
    def _expiry_column(self) -> str | None:
        if self.expire_before is not None:
            return self.time
        return None

    def _is_expiring(self, times: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if times.null_count:
            filled = pc.fill_null(times, pa.scalar(0, times.type))
        else:
            filled = times
        numbers = integers(filled)
        expires = numbers < self.expire_before
        if self.expired_since is not None:
            expires &= numbers >= self.expired_since
        if not times.null_count:
            return expires
        return expires & pc.is_valid(times).to_numpy()

    def _may_expire(self, metadata: Any, index: int) -> bool:
        bounds = raw_bounds(metadata, index)
        if bounds is None or self.expire_before is None:
            return self.expire_before is not None
        return bounds[0] < self.expire_before and (self.expired_since is None or bounds[1] >= self.expired_since)


def _read_column(file: Any, layout: StateLayout, group: int, name: str) -> pa.ChunkedArray:
    return read(file, layout, [name], group)[name]


@dataclass(frozen=True)
class LookupKeys:
    """The keys of a batch that are looked up in a state."""

    keys: Matcher | None = None
    """The keys whose rows are all looked up."""
    exact_copies: tuple[Matcher, str, pa.Array] | None = None
    """The rows whose stored copies are looked up: their keys that decide the group, another key, and its values."""

    @classmethod
    def all_under_keys(cls, rows: pa.Table, key_columns: Sequence[str]) -> LookupKeys:
        """Look up all rows under these rows' keys."""
        if rows.num_rows:
            return cls(Matcher(_lookup_keys(rows, key_columns), key_columns))
        return cls()

    def with_copies(self, rows: pa.Table, key_columns: Sequence[str], id_column: str) -> LookupKeys:
        """Also look up exact copies of these rows. id_column: distinguishes rows with equal keys."""
        if not rows.num_rows:
            return self
        matcher = Matcher(_lookup_keys(rows, key_columns), key_columns)
        return LookupKeys(self.keys, (matcher, id_column, rows[id_column].combine_chunks()))

    def within(self, metadata: Any, index: int | None) -> LookupKeys | None:
        """Return the part that a row group may hold by its statistics, or None. index: the first key's column."""
        keys, copies = self.keys, self.exact_copies
        if keys is not None and not keys.may_be_in(metadata, index):
            keys = None
        if copies is not None and not copies[0].may_be_in(metadata, index):
            copies = None
        if keys is not None or copies is not None:
            return LookupKeys(keys, copies)
        return None

    def positions(
        self, key_arrays: Sequence[pa.Array], read_column: Callable[[str], pa.ChunkedArray], *, is_whole_key: bool
    ) -> Any:
        """Return the sorted positions of the matching rows in a row group.

        key_arrays: the keys that decide the group. read_column: reads another column. is_whole_key: the state has no
        other key, so that each key has one row.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        matches = np.zeros(0, np.int64)
        if self.keys is not None:
            if is_whole_key:
                matches = self.keys.rows_in(key_arrays)[0]
            else:
                matches = self.keys.all_rows_in(key_arrays)
            matches = np.sort(matches)
        if self.exact_copies is None:
            return matches
        matcher, id_column, ids = self.exact_copies
        candidates = np.setdiff1d(matcher.all_rows_in(key_arrays), matches)
        if len(candidates):
            candidate_ids = read_column(id_column).take(pa.array(candidates))
            candidates = candidates[pc.is_in(candidate_ids, value_set=ids).to_numpy()]
        return np.union1d(matches, candidates)


def _column_indexes(file: Any) -> dict[str, int]:
    """Return the index of each column of a file. If paths repeat, the first one is the column that is not nested."""
    indexes: dict[str, int] = {}
    for index in range(file.metadata.num_columns):
        indexes.setdefault(file.metadata.schema.column(index).path, index)
    return indexes


@dataclass(frozen=True)
class KernelPlan:
    """The instructions that every worker receives."""

    lookups: Sequence[Lookup]
    """Empty if the stored rows arrive with the batch, or there is no state."""
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
    """How workers write the rows to emit. None: Spark writes them."""
    is_current_column: str | None = None
    """The column of the rows to emit that is false for retractions. None: no row is one."""
    side_outputs: Mapping[str, EmitPlan] = field(default_factory=dict)
    """How the rows of each side output that is used are written."""

    def range_of(self, split: int) -> range:
        """Return the key groups of a partition."""
        return range(-(-split * self.groups // self.count), -(-(split + 1) * self.groups // self.count))


def run_kernel_on_range(plan: KernelPlan, batches: Iterable[pa.RecordBatch], split: int, name: str) -> list[ReportRow]:
    """Run the kernel on the rows of a range of key groups, write what it returns, and report the files."""
    lines: list[ReportRow] = []
    try:
        with spilling() as spilled:
            buffered = _collect_range(plan, batches, plan.range_of(split), spilled)
            for number, result in enumerate(_apply_kernel(plan, buffered)):
                lines += _write_result(plan, result, split, name if not number else f"{number}-{name}")
            lines.append(ReportRow("", ROWS_IN, split, buffered.arrived))
            if spilled.bytes:
                lines.append(ReportRow("", SPILLED, split, 0, size=spilled.bytes))
    except Tied:
        return [ReportRow(name, TIED, split, 0)]
    except HotKey as hot:
        return [ReportRow(hot.key, HOT_KEY, split, 0, size=hot.size)]
    read_flags = []
    for lookup in plan.lookups:
        for is_read in lookup.row_groups.values():
            read_flags.append(is_read)
    if read_flags:
        lines.append(ReportRow("", ROW_GROUPS, split, sum(read_flags), size=len(read_flags)))
    for number, lookup in enumerate(plan.lookups):
        for batch in range(len(lookup.state.batches)):
            lines.append(compact(lookup.state, batch, split, name, number))
    return lines


def _collect_range(
    plan: KernelPlan, batches: Iterable[pa.RecordBatch], groups: range, spilled: Spilled
) -> BufferedBatch:
    """Return all rows of a range."""
    buffered = BufferedBatch(
        plan.arriving.buffered_schemas(), plan.key_group_columns, groups, plan.limits, spilled, plan.kernel.combine
    )
    for batch in batches:
        plan.arriving.add(batch, buffered)
    return buffered


def _apply_kernel(plan: KernelPlan, buffered: BufferedBatch) -> Iterator[KernelResult]:
    """Yield the kernel's result for all rows, or its results for parts of them if they do not fit into memory."""
    try:
        arrived, *stored = buffered.tables()
        result = plan.kernel(arrived, _load_stored(plan, arrived, stored, buffered))
    except TooMany as error:
        if buffered.is_alone:
            raise HotKey(buffered.one_key(), error.size) from None
        parts = buffered.parts()
    else:
        yield result
        return
    for part in parts:
        yield from _apply_kernel(plan, part)


def _write_result(plan: KernelPlan, result: KernelResult, split: int, name: str) -> list[ReportRow]:
    """Write what the kernel has returned, and report the files."""
    lines = []
    for number, (lookup, changes) in enumerate(zip(plan.lookups, result.changes, strict=False)):
        written = _write_changes(lookup.state, changes, f"{lookup.state.folder}/{name}", in_order=result.sorted_by_key)
        lines.append(ReportRow.report_file(name, ADDED, split, written, number))
    assert plan.emit_plan is not None
    lines += plan.emit_plan.write((_split_on_column(rows, plan.is_current_column) for rows in result.rows), split, name)
    for number, (output, emit_plan) in enumerate(plan.side_outputs.items()):
        written = emit_plan.write_alone(result.side_outputs[output], name)
        lines.append(ReportRow.report_file(name, SIDE_OUTPUT, split, written, number))
    return lines + [ReportRow(counter, COUNTED, split, count) for counter, count in result.counts.items()]


def _load_stored(
    plan: KernelPlan, arrived: pa.Table, from_spark: Sequence[pa.Table], buffered: BufferedBatch
) -> list[pa.Table]:
    """Return each state's rows: those that Spark has brought, or those that each lookup finds."""
    if plan.lookups:
        return _find_stored_rows(plan, arrived, buffered)
    if not from_spark:
        return [schema.empty_table() for schema in plan.stored]
    return [_without_duplicates(rows, keys) for rows, keys in zip(from_spark, plan.stored_by, strict=False)]


def _find_stored_rows(plan: KernelPlan, arrived: pa.Table, buffered: BufferedBatch) -> list[pa.Table]:
    """Return the rows that each lookup finds."""
    import pyarrow.compute as pc

    # To prepare a lookup sorts the batch, so lookups by the same keys share the preparation.
    prepared: dict[tuple[str, ...], LookupKeys] = {}
    results: list[pa.Table] = []
    for number, lookup in enumerate(plan.lookups):
        key_columns = tuple(lookup.grouped_by)
        more_keys = []
        if lookup.also_keys_of is not None:
            more_keys.append(results[lookup.also_keys_of])
        if lookup.time_can_advance:
            more_keys += lookup.expiring_keys(buffered.groups)
        if not lookup.state.runs:
            sought = LookupKeys()
        elif (is_matched := plan.kernel.needs_match(arrived, number)) is not None:
            id_column = lookup.state.layout.keys[-1]
            has_id = id_column in arrived.column_names and id_column not in key_columns
            keys = arrived.select([*key_columns, id_column] if has_id else list(key_columns))
            matched_keys = _concat_keys(keys.filter(is_matched), more_keys, key_columns)
            sought = LookupKeys.all_under_keys(matched_keys, key_columns)
            if has_id:
                sought = sought.with_copies(keys.filter(pc.invert(is_matched)), key_columns, id_column)
        elif more_keys:
            sought = LookupKeys.all_under_keys(_concat_keys(arrived, more_keys, key_columns), key_columns)
        else:
            if key_columns not in prepared:
                prepared[key_columns] = LookupKeys.all_under_keys(arrived, key_columns)
            sought = prepared[key_columns]
        results.append(lookup.rows(sought, buffered.groups, buffered.limits.stored, buffered.share))
    return results


def _concat_keys(rows: pa.Table, more: Sequence[pa.Table], key_columns: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    keys = [table.select(list(key_columns)) for table in (rows, *more)]
    if more:
        return pa.concat_tables(keys, promote_options="default")
    return keys[0]


def _without_duplicates(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return each row once. Spark may have read a row twice: because it expires, and for its key."""
    import numpy as np
    import pyarrow as pa

    (codes,) = codes_of([rows.select(list(keys))], keys)
    first, _ = distinct_codes(codes)
    if len(first) == rows.num_rows:
        return rows
    return rows.take(pa.array(np.sort(first)))


# -- where Spark reads and writes the rows ----------------------------------------------------------------


@dataclass(frozen=True)
class TaggedRows:
    """The layout of rows that pass through Spark: the columns of all kinds of rows, with those of other kinds null."""

    schema: pa.Schema
    columns: Sequence[Mapping[str, str]]
    """For each kind its columns, each with its name in the schema."""
    project: Callable[[pa.Table], pa.Table] | None = None
    """Turns rows that the kernel returns into those to emit. None: they are the same."""
    side_outputs: Sequence[str] = ()
    """The side outputs that are used."""

    def batches(self, rows: pa.Table, kind: int) -> Iterator[pa.RecordBatch]:
        """Yield rows of a kind."""
        import pyarrow as pa

        values = {tagged_name: rows[name] for name, tagged_name in self.columns[kind].items()}
        columns = []
        for target in self.schema:
            if target.name == KIND:
                column = pa.repeat(pa.scalar(kind, pa.int32()), rows.num_rows)
            elif target.name in values:
                column = values[target.name].cast(target.type)
            else:
                column = pa.nulls(rows.num_rows, target.type)
            columns.append(column)
        yield from pa.table(columns, schema=self.schema).to_batches(max_chunksize=_MAX_BATCH_ROWS)


_MAX_BATCH_ROWS: Final = 10_000
COUNTS: Final = ("name", "what", "count")
"""The columns of rows that report a number: a name (of a counter, or a hot key), the kind, and rows or bytes."""


def run_kernel_on_tagged_rows(
    plan: KernelPlan, tagging: TaggedRows, batches: Iterable[pa.RecordBatch], split: int
) -> Iterator[pa.RecordBatch]:
    """Run the kernel on rows of the batch and stored ones, and yield what it returns.

    Kinds are numbered in this order: the changes of each state, the rows to emit, retractions, the rows of each side
    output, and counts.
    """
    import pyarrow as pa

    states = len(plan.stored)

    def count_row(name: str, kind: int, count: int) -> Iterator[pa.RecordBatch]:
        columns = [pa.array([name]), pa.array([kind], pa.int32()), pa.array([count], pa.int64())]
        return tagging.batches(pa.table(columns, names=list(COUNTS)), len(tagging.columns) - 1)

    try:
        with spilling() as spilled:
            buffered = _collect_range(plan, batches, plan.range_of(split), spilled)
            emitted = 0
            for result in _apply_kernel(plan, buffered):
                for kind, changes in enumerate(result.changes):
                    yield from tagging.batches(changes, kind)
                for rows in result.rows:
                    for kind, part in enumerate(_split_on_column(rows, plan.is_current_column), start=states):
                        projected = part if tagging.project is None else tagging.project(part)
                        emitted += projected.num_rows if kind == states else 0
                        yield from tagging.batches(projected, kind)
                for kind, output in enumerate(tagging.side_outputs, start=states + 2):
                    yield from tagging.batches(result.side_outputs[output], kind)
                for counter, count in result.counts.items():
                    yield from count_row(counter, COUNTED, count)
            yield from count_row("", ROWS_IN, buffered.arrived)
            yield from count_row("", ROWS_OUT, emitted)
            if spilled.bytes:
                yield from count_row("", SPILLED, spilled.bytes)
    except HotKey as hot:
        yield from count_row(hot.key, HOT_KEY, hot.size)


def _lookup_keys(rows: pa.Table, key_columns: Sequence[str]) -> pa.Table:
    """Return the rows' keys for a matcher: sorted and distinct if they can be packed into numbers, else unchanged."""
    import pyarrow as pa

    keys = rows.select(list(key_columns))
    if packed(keys, key_columns) is None:
        return keys
    order, starts = order_and_firsts(keys, key_columns)
    return keys.take(pa.array(order[starts]))


def _write_changes(state: MergePlan, changes: pa.Table, path: str, *, in_order: bool) -> WrittenFile:
    import pyarrow as pa

    columns = {CHECKPOINT: state.checkpoint, TOUCHED: state.expiry_times(changes)}
    columns.update((name, changes[name]) for name in changes.column_names)
    rows = state.layout.table(columns, changes.num_rows)
    writer = Writer(state.layout, path)
    writer.write(rows if in_order else rows.take(pa.array(order_of(rows, state.layout.keys))))
    return writer.close()


def _split_on_column(rows: pa.Table, column: str | None) -> tuple[pa.Table, pa.Table]:
    """Return the rows for which a column is true, and those for which it is false. None: all go into the first part."""
    import pyarrow.compute as pc

    if column is None:
        return rows, rows.slice(0, 0)
    mask = rows[column]
    return rows.filter(mask), rows.filter(pc.invert(mask))
