"""An operator's kernel at work: workers get the batch's rows of some keys with the stored ones, and a function does it.

Spark computes the batch, brings each worker the rows of its key groups, and gets a few lines that name files: one
query, whatever the operator does. In DataFrame algebra each join, grouping and lookup is a query of its own or several,
planned and started one after the other: for small batches that is nearly all of a checkpoint's time.

The kernel is the same everywhere. What differs is how rows come to it, and go:

    files    workers look up stored rows in the state's files, and write files; on one disk, or in an object store
    Spark    where workers do not reach the files, Spark reads the stored rows and brings them along, and writes the
             changed ones: three queries, and one more for each state and output
    none     an interval begins with nothing and leaves nothing: nothing is looked up, and no state is written

More rows than memory should hold go to local disk, and are worked on in parts (`state/arrow/spill.py`).
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tidegate.delta import Location, WrittenFile, schema_problems
from tidegate.delta.arrow_types import arrow_schema
from tidegate.delta.log.schema import columns
from tidegate.errors import Invalid
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import empty_like, no_rows, renamed, select_sql, with_fields
from tidegate.spark.row_id import HALVES, row_halves
from tidegate.state.arrow import workers
from tidegate.state.arrow.kernel_worker import (
    COUNTED,
    COUNTS,
    HOT_KEY,
    ROW_GROUPS,
    SIDE_OUTPUT,
    SPILLED,
    TIED,
    Kernel,
    KernelPlan,
    Lookup,
    TaggedRows,
    run_kernel_on_range,
    run_kernel_on_tagged_rows,
)
from tidegate.state.arrow.merging import ADDED, GIVEN, REPLACED, EmitPlan, MergePlan, ReportRow
from tidegate.state.arrow.spill import KIND, Arriving, Limits
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.compaction import Compaction
from tidegate.state.keyed import collated_names, key_group, schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

    from tidegate.state.keyed import KeyedState
    from tidegate.state.lateness import ExpiredRows
    from tidegate.state.record import StateFile

__all__ = ["KernelOutput", "StateLookup", "run_kernel"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})
MAX_BYTES: Final = 256 << 20
"""The most that a worker holds of a state, and four times what it holds of a batch, of which a kernel makes several
copies. More goes to local disk, and is worked on in parts."""
MAX_STORED_FOR_ONE_WORKER: Final = 200_000
"""The most stored rows among which one worker looks for those of a few rows' keys."""
TIES: Final = "rows that are as great as stored ones: their ids decide"


@dataclass(frozen=True)
class StateLookup:
    """One of the states that the function looks at and changes."""

    state: KeyedState
    columns: Sequence[StructField]
    """Its keys and values."""
    time: str | None = None
    expire_before: int | None = None
    """Also the stored rows whose `time` is below this are looked up."""
    expired_since: int | None = None
    """Of these only the ones from this on: what is below has ended before, and no longer counts."""
    time_can_advance: bool = False
    """Whether a row's `time` may grow from checkpoint to checkpoint."""
    drop_when_compacting: ExpiredRows | None = None
    """Rows that are over are left out when files are compacted."""
    also_keys_of: int | None = None
    """The number of a state before this one: what is found there is looked up here, too, by its keys."""
    computed: Mapping[str, str] = field(default_factory=dict)
    """Columns that Spark computes of a row's others, with their SQL: rows that came before there was such a column get
    it, once."""

    def lookup_plan(self, grouped_by: Sequence[str], merging: MergePlan) -> Lookup:
        """Return how workers look up its rows. merging: how they write it."""
        return Lookup(
            replace(merging, expired=self.drop_when_compacting),
            grouped_by,
            time=self.time,
            expire_before=self.expire_before,
            expired_since=self.expired_since,
            time_can_advance=self.time_can_advance,
            also_keys_of=self.also_keys_of,
        )

    def read_through_spark(
        self, sought: Sequence[DataFrame], grouped_by: Sequence[str], groups: int, *, with_ids: bool
    ) -> DataFrame | None:
        """Return the stored rows that workers would look up; some of them twice. None: there are none.

        sought: frames whose keys are looked up. groups: into how many key groups rows are put. with_ids: also their
        ids.
        """
        from pyspark.sql import functions as F

        state, frames = self.state, []
        if not state.is_kept or state.is_empty:
            return None
        keys = [frame.select(*map(quoted, grouped_by)) for frame in sought]
        if keys and not grouped_by:
            frames.append(state.rows())
        elif keys:
            frames.append(state.lookup(reduce(lambda one, other: one.unionAll(other), keys), on=grouped_by))
        if self.time is not None and self.expire_before is not None:
            frames.append(self._read_expiring_through_spark(self.time, self.expire_before))
        kinds = {field.name: field.dataType for field in self.columns}
        aligned = []
        for frame in frames:
            if frame is not None:
                there = set(frame.columns)
                columns = (F.col(quoted(n)) if n in there else F.lit(None) for n in kinds)
                named = (c.cast(kind).alias(n) for c, (n, kind) in zip(columns, kinds.items(), strict=True))
                aligned.append(with_fields(frame.select(*named), list(self.columns)))
        if not aligned:
            return None
        rows = aligned[0] if len(aligned) == 1 else aligned[0].unionAll(aligned[1])
        ids = row_halves(aligned[0]) if with_ids else []
        return select_sql(rows, [f"{key_group(grouped_by, groups)} AS {GROUP}", *map(quoted, kinds), *ids])

    def _read_expiring_through_spark(self, time: str, ends: int) -> DataFrame | None:
        base = self.state.base
        if base is None or time not in {field["name"] for field in base.columns["fields"]}:
            return None  # the column is new: nothing has a time yet
        kind = next(field.dataType.typeName() for field in self.columns if field.name == time)
        at = quoted(time) if kind == "long" else f"unix_micros({quoted(time)})"
        where = f"{at} < {ends}" + (f" AND {at} >= {self.expired_since}" if self.expired_since is not None else "")
        if not self.time_can_advance:
            return self.state.rows(where)
        rows = self.state.rows()
        return None if rows is None else rows.where(where)


@dataclass(frozen=True)
class KernelOutput:
    """What workers made of a batch."""

    rows: DataFrame
    """The rows to emit."""
    counts: Mapping[str, int]
    side_outputs: Mapping[str, DataFrame]
    """The rows of the operator's other outputs, as far as they were asked for."""
    _retractions: DataFrame | None = None

    @property
    def retractions(self) -> DataFrame:
        """The rows that were emitted before, and are replaced; none if nobody asked for them."""
        return empty_like(self.rows) if self._retractions is None else self._retractions


def run_kernel(
    batch: DataFrame,
    fields: Sequence[StructField],
    grouped_by: Sequence[str],
    states: Sequence[StateLookup],
    kernel: Kernel,
    output_fields: Sequence[StructField],
    *,
    is_empty: bool,
    keeps_rows: bool = True,
    size_hint: KeyedState | None = None,
    keyless: str | None = None,
    is_current_column: str | None = None,
    wants_retractions: bool = False,
    project: Callable[[pa.Table], pa.Table] | None = None,
    side_outputs: Mapping[str, Sequence[StructField]] = _NOTHING,
) -> KernelOutput:
    """Let workers run a kernel.

    fields: the columns of the batch, so that Spark need not be asked.
    grouped_by: columns of the batch, keys of each state: rows that agree in these come to one worker.
    output_fields: the columns of the rows to emit. is_empty: the batch is known to have no rows.
    keeps_rows: the states hold whole rows of the batch, and not only a part of each.
    size_hint: a state of somebody else's that holds the batch's other columns: it tells how large rows are.
    keyless: SQL of the rows that are in none of the states, and may go to any worker.
    is_current_column: a column of what the kernel returns, beside `output_fields`: false where a row is replaced.
    wants_retractions: rows that are replaced are asked for.
    project: makes the rows to emit of what the kernel returns. None: they are the same.
    side_outputs: the operator's other outputs that are asked for, each with the columns of its rows.
    """
    from pyspark.sql.types import IntegerType, StructField

    asked = _KernelRun(
        batch=batch,
        fields=[*fields, StructField(GROUP, IntegerType())],
        grouped_by=grouped_by,
        states=states,
        kernel=kernel,
        main=_Output("given", output_fields),
        side_outputs={name: _Output(name, own) for name, own in side_outputs.items()},
        is_empty=is_empty,
        keyless=keyless,
        is_current_column=is_current_column,
        retractions=_Output("replaced", output_fields) if wants_retractions else None,
        project=project,
    )
    first = states[0].state
    idle = is_empty and not any(_has_work(remembered) for remembered in states)
    if first.is_analysed or (asked.stores_rows and not idle):
        for remembered, schema in zip(states, asked.schemas, strict=True):
            lacking = remembered.state.lacks(remembered.computed)
            remembered.state.check_schema(schema)
            if lacking:
                remembered.state.fill(schema, {name: remembered.computed[name] for name in lacking})
    if idle:  # nor does it take new columns: the operator's other states do not, either
        return asked.empty_result()
    for remembered in states if asked.stores_rows else ():
        remembered.state.regroup(grouped_by)
    if (why := asked.why_not_on_files()) is not None:
        return asked.run_through_spark(why, with_ids=kernel.may_tie)
    holding = [[each.state for each in states], *([[size_hint]] if size_hint is not None else [])]
    light = workers.are_light(asked.fields, *(_files(holding) if keeps_rows else ()))
    folded = asked.run_on_files(light=light and not first.shares_session)
    if folded is None:
        return asked.run_through_spark(TIES, with_ids=True)
    first.computing.note_workers()
    return folded


@dataclass(frozen=True)
class _KernelRun:
    """What a kernel is to do, as `run_kernel` is told."""

    batch: DataFrame
    fields: Sequence[StructField]
    """Its columns, and the key group."""
    grouped_by: Sequence[str]
    states: Sequence[StateLookup]
    kernel: Kernel
    main: _Output
    side_outputs: Mapping[str, _Output]
    is_empty: bool
    keyless: str | None
    is_current_column: str | None
    retractions: _Output | None
    project: Callable[[pa.Table], pa.Table] | None

    @cached_property
    def schemas(self) -> list[Json]:
        """The columns of each state's files."""
        return [remembered.state.schema_of_files(remembered.columns) for remembered in self.states]

    @property
    def first(self) -> KeyedState:
        """The state beside which files with rows to emit are written."""
        return self.states[0].state

    @property
    def stores_rows(self) -> bool:
        """Whether anything is stored: an interval keeps nothing."""
        return all(remembered.state.is_kept for remembered in self.states)

    def empty_result(self) -> KernelOutput:
        """Return no rows."""
        others = {name: output.empty_frame(self.first) for name, output in self.side_outputs.items()}
        return KernelOutput(self.main.empty_frame(self.first), {}, others)

    def why_not_on_files(self) -> str | None:
        """Return why workers cannot read and write the files themselves, if they cannot."""
        if not self.grouped_by:
            return "it has no key"
        if not all(workers.usable(each.state.spark, each.state.to.location) for each in self.states):
            return workers.OUT_OF_REACH
        if len({remembered.state.groups for remembered in self.states}) > 1:
            return "its states have been begun with different numbers of key groups"
        outputs = [self.main, *self.side_outputs.values()]
        for given in (*(output.columns for output in outputs), self.fields):
            if collated := collated_names(given):
                return f"column {collated[0]} has a collation"
        for remembered, schema in zip(self.states, self.schemas, strict=True):
            if (why := workers.why_not_merged(schema, remembered.state.keys, {})) is not None:
                return why
        for schema in (*self.schemas, *(output.schema for output in outputs), schema_of(self.fields)):
            if (why := workers.why_not_written(schema)) is not None:
                return why
            if problems := schema_problems(schema, ()):
                return problems[0]
        return None

    @cached_property
    def grouped(self) -> DataFrame:
        """The batch, with the key groups of its rows."""
        group = key_group(self.grouped_by, self.first.groups)
        if self.keyless is not None:
            somewhere = f"CAST(pmod(xxhash64(spark_partition_id()), {self.first.groups}) AS INT)"
            group = f"IF({self.keyless}, {somewhere}, {group})"
        grouped = select_sql(self.batch, ["*", f"{group} AS {GROUP}"])
        return empty_like(grouped) if self.is_empty else grouped

    @contextlib.contextmanager
    def split_by_group(self, rows: DataFrame) -> Iterator[tuple[DataFrame, int]]:
        """Split rows by ranges of key groups. Few rows are not split: one worker takes them where they come from."""
        states = [remembered.state for remembered in self.states]
        are_few = all(state.few_rows_arrive for state in states)
        stored = sum(state.rows_in_files for state in states)
        if are_few and stored <= MAX_STORED_FOR_ONE_WORKER and not self.kernel.is_users_own:
            yield rows.coalesce(1), 1
            return
        with self.first.split_by_group(rows) as split:
            yield split

    # -- workers read and write files ----------------------------------------------------------------

    def run_on_files(self, *, light: bool) -> KernelOutput | None:
        """Let workers look up stored rows in files, and write files. None: ids of stored rows are needed, and nothing
        has been done."""
        first, states = self.first, self.states if self.stores_rows else []
        folders = [remembered.state.new_folder("fold") for remembered in self.states]
        folder, location = folders[0], first.to.location
        due = [remembered.state.due_batches() for remembered in states]
        with self.split_by_group(self.grouped) as (rows, count):
            arriving = schema_of(self.fields)
            plan = KernelPlan(
                lookups=[
                    each.lookup_plan(self.grouped_by, each.state.merge_plan(schema, own, count, batches))
                    for each, schema, own, batches in zip(states, self.schemas, folders, due, strict=False)
                ],
                stored=[arrow_schema(schema, list(columns(schema))) for schema in self.schemas],
                stored_by=[each.state.keys for each in self.states],
                kernel=self.kernel,
                arriving=Arriving(
                    [arrow_schema(arriving, list(columns(arriving)))],
                    prepared=self.kernel.add_columns,
                    keys=self.grouped_by,
                ),
                key_group_columns=self.grouped_by,
                groups=first.groups,
                count=count,
                emit_plan=self.main.emit_plan(location, folder, self.project, self.retractions),
                limits=Limits(MAX_BYTES // 4, MAX_BYTES),
                is_current_column=self.is_current_column,
                side_outputs={name: output.emit_plan(location, folder) for name, output in self.side_outputs.items()},
            )
            outcome = _Outcome(_run(plan, rows, self.fields, count, is_empty=self.is_empty, light=light), count)
        if outcome.tied or outcome.hot_keys:
            for remembered, own in zip(self.states, folders, strict=True):
                remembered.state.to.location.remove_folder(own)
            for output in filter(None, (self.main, self.retractions, *self.side_outputs.values())):
                location.remove_folder(output.folder(folder))
            self._refuse(outcome.hot_keys)
            return None
        for number, remembered in enumerate(states):
            added, compacted = outcome.files(number, due[number])
            remembered.state.add_files(folders[number], self.schemas[number], added, compacted, due[number])
        first.computing.spilled += outcome.spilled
        first.computing.add_row_groups(*outcome.row_groups)
        return KernelOutput(
            self.main.read(first, folder, outcome.emitted_files),
            outcome.counts,
            {
                name: output.read(first, folder, outcome.side_output_files(number))
                for number, (name, output) in enumerate(self.side_outputs.items())
            },
            self.retractions.read(first, folder, outcome.retraction_files) if self.retractions is not None else None,
        )

    def _refuse(self, hot_keys: Mapping[str, int]) -> None:
        """Raise Invalid if a key has more rows than a worker can hold."""
        for key, size in hot_keys.items():
            raise Invalid(
                f"{self.first.name}: one key has more rows than a worker can hold: {size >> 20:,} MB or more",
                expected="keys whose rows, of a checkpoint and stored ones, fit into a worker's memory",
                help="filter that key in a stage before, or give it a second key column; docs/guides/sizing.md says "
                "what each operator holds. `tidegate run` names the key on a terminal, and Airflow in the task's XComs",
                reason="HOT_KEY",
                quoted=key,
            )

    # -- Spark brings rows, and takes them -----------------------------------------------------------

    def run_through_spark(self, why: str, *, with_ids: bool = False) -> KernelOutput:
        """Let Spark read the stored rows and write what has changed. with_ids: of the stored rows, too."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

        first = self.first
        first.computing.note_workers()
        first.computing.note_spark(why)
        looks_up = any(each.state.is_kept and not each.state.is_empty for each in self.states)
        grouped = first.cached(self.grouped) if looks_up and not self.is_empty else self.grouped
        batch = None if self.is_empty else grouped
        group = StructField(GROUP, IntegerType())
        halves = [StructField(name, LongType()) for name in HALVES] if with_ids else []
        kinds: list[tuple[DataFrame | None, list[StructField]]] = [(batch, _nullable(self.fields))]
        for remembered in self.states:
            looked_at = [kinds[0][0]]
            if remembered.also_keys_of is not None:
                looked_at.append(kinds[1 + remembered.also_keys_of][0])
            sought = [frame for frame in looked_at if frame is not None]
            found = remembered.read_through_spark(sought, self.grouped_by, first.groups, with_ids=with_ids)
            kinds.append((found, _nullable([group, *remembered.columns, *halves])))
        arriving, incoming = _union_columns([fields for _, fields in kinds])
        changes = [_nullable([*each.columns, StructField(DELETED, BooleanType())]) for each in self.states]
        kinds_of_counts = (StringType(), IntegerType(), LongType())
        counts = [StructField(name, kind) for name, kind in zip(COUNTS, kinds_of_counts, strict=True)]
        outputs = [self.main, self.main, *self.side_outputs.values()]
        leaving, outgoing = _union_columns([*changes, *(output.columns for output in outputs), counts])
        tagged = [
            _tagged(frame, number, [f.name for f in fields], incoming[number])
            for number, (frame, fields) in enumerate(kinds)
            if frame is not None
        ]
        together = no_rows(first.spark, StructType(arriving)) if not tagged else tagged[0]
        for frame in tagged[1:]:
            together = together.unionByName(frame, allowMissingColumns=True)
        there = set(together.columns)
        filled = (F.col(f.name) if f.name in there else F.lit(None) for f in arriving)
        together = together.select(*(c.cast(f.dataType).alias(f.name) for c, f in zip(filled, arriving, strict=True)))
        groups = f"coalesce({', '.join(names[GROUP] for names in incoming)})"
        together = select_sql(together, ["*", f"{groups} AS {GROUP}"])
        arrow = [to_arrow_schema(StructType(fields), timezone="UTC") for _, fields in kinds]
        with self.split_by_group(together) as (rows, count):
            plan = KernelPlan(
                lookups=[],
                stored=[schema.empty_table().schema for schema in arrow[1:]],
                stored_by=[each.state.keys for each in self.states],
                kernel=self.kernel,
                arriving=Arriving(arrow, incoming, self.kernel.add_columns, self.grouped_by),
                key_group_columns=self.grouped_by,
                groups=first.groups,
                count=count,
                limits=Limits(MAX_BYTES // 4, MAX_BYTES),
                is_current_column=self.is_current_column,
            )
            passing = TaggedRows(
                to_arrow_schema(StructType(leaving), timezone="UTC"), outgoing, self.project, list(self.side_outputs)
            )
            made = first.cached(_run_through_spark(plan, passing, rows, [*arriving, group], StructType(leaving)))
            counted = made.where(f"{KIND} = {len(outgoing) - 1}").select(*outgoing[-1].values()).collect()
        self._refuse({name: size for name, what, size in counted if what == HOT_KEY})
        first.computing.spilled += sum(size for _, what, size in counted if what == SPILLED)
        counters = Counter[str]()
        for name, what, number in counted:
            if what == COUNTED:
                counters[name] += number
        for number, remembered in enumerate(self.states):
            if remembered.state.is_kept:
                changed = _of_kind(made, number, changes[number], outgoing[number])
                remembered.state.write_changes(changed, deletes=True)
        start = len(self.states)
        emitted = [
            _of_kind(made, start + place, output.columns, outgoing[start + place])
            for place, output in enumerate(outputs)
        ]
        return KernelOutput(
            emitted[0],
            counters,
            dict(zip(self.side_outputs, emitted[2:], strict=True)),
            emitted[1] if self.retractions is not None else None,
        )


def _union_columns(kinds: Sequence[Sequence[StructField]]) -> tuple[list[StructField], list[dict[str, str]]]:
    """Return the columns of rows of several kinds in one frame, and for each kind its columns' names there."""
    from pyspark.sql.types import IntegerType, StructField

    names = [{field.name: f"k{kind}_{place}" for place, field in enumerate(own)} for kind, own in enumerate(kinds)]
    columns = [StructField(KIND, IntegerType())]
    for own, named in zip(kinds, names, strict=True):
        columns += [StructField(named[field.name], field.dataType) for field in own]  # null in rows of other kinds
    return columns, names


def _nullable(fields: Sequence[StructField]) -> list[StructField]:
    """Return columns that may hold null, whatever Spark knows of them."""
    from pyspark.sql.types import StructField

    return [StructField(field.name, field.dataType) for field in fields]


def _tagged(frame: DataFrame, kind: int, order: Sequence[str], names: Mapping[str, str]) -> DataFrame:
    columns = (f"{quoted(name)} AS {names[name]}" for name in order)
    return select_sql(frame, [f"{kind} AS {KIND}", *columns])


def _of_kind(made: DataFrame, kind: int, fields: Sequence[StructField], names: Mapping[str, str]) -> DataFrame:
    """Return the rows of a kind, under their own names."""
    chosen = made.where(f"{KIND} = {kind}").select(*(names[field.name] for field in fields))
    return with_fields(renamed(chosen, [field.name for field in fields]), list(fields))


def _run_through_spark(
    plan: KernelPlan, passing: TaggedRows, rows: DataFrame, fields: Sequence[StructField], leaving: Any
) -> DataFrame:
    """Return what workers make of rows that Spark brings them."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        split, _ = workers.task()
        yield from run_kernel_on_tagged_rows(plan, passing, batches, split)

    return workers.mapped(rows, work, leaving)


@dataclass(frozen=True)
class _Output:
    """Rows that workers give out, in files beside the operator's first state."""

    name: str
    columns: Sequence[StructField]

    @cached_property
    def schema(self) -> Json:
        """Its columns, as the schema of files."""
        return schema_of(self.columns)

    def folder(self, beside: str) -> str:
        """Return where its files are. beside: the folder of the state's."""
        return f"{beside}-{self.name}"

    def emit_plan(
        self,
        location: Location,
        beside: str,
        made: Callable[[pa.Table], pa.Table] | None = None,
        replaced: _Output | None = None,
    ) -> EmitPlan:
        """Return how workers write it. made: makes its rows. replaced: the output with those that it replaces."""
        return EmitPlan(
            workers.layout_of(self.schema, (), location),
            location.full(self.folder(beside)),
            made,
            location.full(replaced.folder(beside)) if replaced is not None else None,
        )

    def read(self, state: KeyedState, beside: str, files: Mapping[str, WrittenFile]) -> DataFrame:
        """Return the rows that workers have written."""
        rows = state.read_worker_files(self.folder(beside), files, self.schema)
        return self.empty_frame(state) if rows is None else rows

    def empty_frame(self, state: KeyedState) -> DataFrame:
        """Return no rows."""
        from pyspark.sql.types import StructType

        return no_rows(state.spark, StructType(list(self.columns)))


def _files(parts: Sequence[Sequence[KeyedState]]) -> list[list[StateFile]]:
    """Return what is stored of each part of rows. None, if so much arrives that it may be like nothing before."""
    if not all(state.little_arrives for part in parts for state in part):
        return []
    return [[file for state in part for file in state.base_files] for part in parts]


@dataclass(frozen=True)
class _Outcome:
    """What the workers have reported. count: the number of ranges."""

    lines: Sequence[ReportRow]
    count: int

    @property
    def tied(self) -> bool:
        """Whether the ids of stored rows are needed."""
        return any(line.kind == TIED for line in self.lines)

    @property
    def hot_keys(self) -> dict[str, int]:
        """The keys with more rows than a worker can hold, and how many bytes they have at least."""
        return {line.name: line.size for line in self.lines if line.kind == HOT_KEY}

    @property
    def spilled(self) -> int:
        """The bytes that workers have written to local disk."""
        return sum(line.size for line in self.lines if line.kind == SPILLED)

    @property
    def row_groups(self) -> tuple[int, int]:
        """How many row groups of the states' files workers have read, and how many there were."""
        lines = [line for line in self.lines if line.kind == ROW_GROUPS]
        return sum(line.rows for line in lines), sum(line.size for line in lines)

    @property
    def emitted_files(self) -> dict[str, WrittenFile]:
        """The files with rows to emit."""
        return self._files_of(GIVEN)

    @property
    def retraction_files(self) -> dict[str, WrittenFile]:
        """The files with rows that were emitted before, and are replaced."""
        return self._files_of(REPLACED)

    def side_output_files(self, number: int) -> dict[str, WrittenFile]:
        """The files with rows of the other output with this number."""
        return self._files_of(SIDE_OUTPUT, number)

    def _files_of(self, kind: int, number: int = 0) -> dict[str, WrittenFile]:
        lines = (line for line in self.lines if line.kind == kind and line.state == number)
        return {line.name: line.reported_file for line in lines if line.rows}

    @property
    def counts(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for line in self.lines:
            if line.kind == COUNTED:
                counts[line.name] += line.rows
        return counts

    def files(
        self, state: int, due: Sequence[Compaction]
    ) -> tuple[dict[str, WrittenFile], dict[int, dict[str, WrittenFile]]]:
        """Return a state's new files, and those in place of each set that every range has compacted."""
        names: dict[int, dict[str, WrittenFile]] = defaultdict(dict)
        splits: dict[int, set[int]] = defaultdict(set)
        for line in (line for line in self.lines if line.state == state):
            splits[line.kind].add(line.split)
            if line.rows:
                names[line.kind][line.name] = line.reported_file
        replaced = {number: names[number] for number in range(len(due)) if len(splits[number]) == self.count}
        return names[ADDED], replaced


def _has_work(remembered: StateLookup) -> bool:
    """Return whether a state has rows that may end now. What is to be compacted waits for the next rows."""
    remembered.state.drop_expired()
    return remembered.expire_before is not None and not remembered.state.is_empty


def _run(
    plan: KernelPlan, rows: DataFrame, fields: Sequence[StructField], count: int, *, is_empty: bool, light: bool
) -> list[ReportRow]:
    """Return the reports for all ranges of key groups. Spark may run no worker for a range without rows."""
    lines = [] if is_empty else _collect_reports(plan, rows, fields, light=light)
    missing = set(range(count)) - {line.split for line in lines}
    if missing and any(lookup.expire_before is not None or lookup.state.batches for lookup in plan.lookups):
        none = rows.sparkSession.range(0, count, 1, count)
        lines += _collect_reports(plan, none, none.schema.fields, missing)
    return lines


def _collect_reports(
    plan: KernelPlan,
    rows: DataFrame,
    fields: Sequence[StructField],
    only: Container[int] | None = None,
    *,
    light: bool = False,
) -> list[ReportRow]:
    """only: just these ranges, without rows."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        split, name = workers.task()
        if only is not None:
            for _ in batches:  # a worker that leaves rows unread is not used again
                pass
            if split not in only:
                return
            batches = iter(())
        yield from workers.report(run_kernel_on_range(plan, batches, split, name))

    return workers.reported(rows, work, fields, light=light)
