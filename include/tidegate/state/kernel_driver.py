"""Runs an operator's kernel on Spark workers: the driver's part.

Each worker gets the batch's rows of its key groups and the stored rows of their keys, calls the kernel, and reports the
files that it has written. This takes one query for any operator. In DataFrame algebra each join, grouping and lookup
takes at least one query, and for small batches, planning and starting these is nearly all of a checkpoint's time.

The kernel is always the same. Only the transport of its rows differs:

    files    workers look up stored rows in the state's files, and write files, on one disk or in an object store
    Spark    where workers cannot reach the files, Spark reads the stored rows and writes the changed ones: three
             queries, and one more for each state and output
    none     an interval starts without state and leaves none, so nothing is looked up and no state is written

Rows that do not fit into memory are spilled to local disk and processed in parts (`state/arrow/spill.py`).
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
    ROWS_IN,
    ROWS_OUT,
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
"""The most that a worker holds in memory of a state. Of a batch it holds a quarter, because a kernel makes several
copies of it. The rest is spilled to local disk."""
MAX_STORED_FOR_ONE_WORKER: Final = 200_000
"""A state with more rows than this is split among workers even if only a few rows arrive."""
TIES: Final = "rows that are as great as stored ones: their ids decide"


@dataclass(frozen=True)
class StateLookup:
    """A state that the kernel reads and changes, and which of its rows are looked up."""

    state: KeyedState
    columns: Sequence[StructField]
    """Its keys and values."""
    time: str | None = None
    expire_before: int | None = None
    """Stored rows whose `time` is below this expire in this checkpoint, and are looked up in addition."""
    expired_since: int | None = None
    """Rows whose `time` is below this expired in an earlier checkpoint, and no longer count."""
    time_can_advance: bool = False
    """Whether a row's `time` may grow from checkpoint to checkpoint."""
    drop_when_compacting: ExpiredRows | None = None
    """The expired rows, which compaction leaves out."""
    identified_by: Sequence[str] = ()
    """The columns from which a row's id, in `_row`, is computed, if it may be computed again: no result depends on its
    order."""
    also_keys_of: int | None = None
    """The index of an earlier state: the keys of the rows found there are looked up here, too."""
    computed: Mapping[str, str] = field(default_factory=dict)
    """The columns that Spark computes from other columns of a row, with their SQL. Stored rows that predate such a
    column are filled once."""

    def lookup_plan(self, grouped_by: Sequence[str], merging: MergePlan) -> Lookup:
        """Return the instructions by which workers look up its rows. merging: how they write them."""
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
        """Return the stored rows that workers would look up, some of them twice, or None if there are none.

        sought: frames whose keys are looked up. groups: the number of key groups. with_ids: add the rows' ids.
        """
        state = self.state
        if not state.is_kept or state.is_empty:
            return None
        frames: list[DataFrame | None] = []
        keys = [frame.select(*map(quoted, grouped_by)) for frame in sought]
        if keys and not grouped_by:
            frames.append(state.rows())
        elif keys:
            frames.append(state.lookup(reduce(lambda one, other: one.unionAll(other), keys), on=grouped_by))
        if self.time is not None and self.expire_before is not None:
            frames.append(self._read_expiring_through_spark(self.time, self.expire_before))
        aligned = [self._with_all_columns(frame) for frame in frames if frame is not None]
        if not aligned:
            return None
        rows = aligned[0] if len(aligned) == 1 else aligned[0].unionAll(aligned[1])
        ids = row_halves(aligned[0]) if with_ids else []
        names = [quoted(field.name) for field in self.columns]
        return select_sql(rows, [f"{key_group(grouped_by, groups)} AS {GROUP}", *names, *ids])

    def _with_all_columns(self, frame: DataFrame) -> DataFrame:
        """Return the rows with all of the state's columns, in order; columns that a frame lacks are null."""
        from pyspark.sql import functions as F

        present = set(frame.columns)
        columns = []
        for target in self.columns:
            name = target.name
            column = F.col(quoted(name)) if name in present else F.lit(None)
            columns.append(column.cast(target.dataType).alias(name))
        return with_fields(frame.select(*columns), list(self.columns))

    def _read_expiring_through_spark(self, time: str, expire_before: int) -> DataFrame | None:
        base = self.state.base
        if base is None or time not in {field["name"] for field in base.columns["fields"]}:
            return None  # the column is new, so no stored row has a time yet
        type_names = {field.name: field.dataType.typeName() for field in self.columns}
        if type_names[time] == "long":
            micros = quoted(time)
        else:
            micros = f"unix_micros({quoted(time)})"
        condition = f"{micros} < {expire_before}"
        if self.expired_since is not None:
            condition += f" AND {micros} >= {self.expired_since}"
        if not self.time_can_advance:
            return self.state.rows(condition)
        # A file may hold an older version of a row: the condition must see only the newest one.
        rows = self.state.rows()
        return None if rows is None else rows.where(condition)


@dataclass(frozen=True)
class KernelOutput:
    """What workers computed from a batch."""

    rows: DataFrame
    """The rows to emit."""
    counts: Mapping[str, int]
    side_outputs: Mapping[str, DataFrame]
    """The rows of the operator's other outputs that were requested."""
    _retractions: DataFrame | None = None

    @property
    def retractions(self) -> DataFrame:
        """The emitted rows that are replaced. Empty if they were not requested."""
        if self._retractions is None:
            return empty_like(self.rows)
        return self._retractions


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
    """Run a kernel on workers.

    fields: the columns of the batch, which would cost Spark an analysis to find.
    grouped_by: the columns of the batch, keys of each state, by which rows are sent to the same worker.
    output_fields: the columns of the rows to emit. is_empty: the batch is known to have no rows.
    keeps_rows: the states hold whole rows of the batch, so that their files show how large its rows are.
    size_hint: a state of another operator that holds the batch's other columns, and shows how large these are.
    keyless: an SQL condition for rows that belong to none of the states, and may go to any worker.
    is_current_column: a column that the kernel adds to `output_fields`. It is false where a row is a retraction.
    wants_retractions: the caller uses `retractions` of the result.
    project: turns the rows that the kernel returns into those to emit. None: they are the same.
    side_outputs: the operator's other outputs that are used, each with the columns of its rows.
    """
    from pyspark.sql.types import IntegerType, StructField

    run = _KernelRun(
        batch=batch,
        fields=[*fields, StructField(GROUP, IntegerType())],
        grouped_by=grouped_by,
        states=states,
        kernel=kernel,
        main=_Output("given", output_fields),
        side_outputs={name: _Output(name, columns) for name, columns in side_outputs.items()},
        is_empty=is_empty,
        keyless=keyless,
        is_current_column=is_current_column,
        retractions=_Output("replaced", output_fields) if wants_retractions else None,
        project=project,
    )
    first = states[0].state
    idle = is_empty and not any(_has_expiring_rows(lookup) for lookup in states)
    if first.is_analysed or (run.stores_rows and not idle):
        for lookup, schema in zip(states, run.schemas, strict=True):
            missing = lookup.state.lacks(lookup.computed)
            lookup.state.check_schema(schema, lookup.identified_by)
            if missing:
                lookup.state.fill(schema, {name: lookup.computed[name] for name in missing})
    if idle:  # it takes no new columns, because the operator's other states do not either
        return run.empty_result()
    if run.stores_rows:
        for lookup in states:
            lookup.state.regroup(grouped_by)
    if (reason := run.why_not_on_files()) is not None:
        return run.run_through_spark(reason, with_ids=kernel.may_tie)
    sample: list[list[StateFile]] = []
    if keeps_rows:
        states_with_columns = [[lookup.state for lookup in states]]
        if size_hint is not None:
            states_with_columns.append([size_hint])
        sample = _row_size_sample(states_with_columns)
    light = workers.are_light(run.fields, *sample)
    output = run.run_on_files(light=light and not first.shares_session)
    if output is None:
        return run.run_through_spark(TIES, with_ids=True)
    first.computing.note_workers()
    return output


@dataclass(frozen=True)
class _KernelRun:
    """The arguments of `run_kernel`, and both ways to run it."""

    batch: DataFrame
    fields: Sequence[StructField]
    """The batch's columns, and the key group."""
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
        return [lookup.state.schema_of_files(lookup.columns) for lookup in self.states]

    @property
    def first(self) -> KeyedState:
        """The state next to whose files those with rows to emit are written."""
        return self.states[0].state

    @property
    def stores_rows(self) -> bool:
        """Whether anything is stored. An interval keeps no state."""
        return all(lookup.state.is_kept for lookup in self.states)

    def empty_result(self) -> KernelOutput:
        """Return no rows."""
        side_outputs = {}
        for name, output in self.side_outputs.items():
            side_outputs[name] = output.empty_frame(self.first)
        return KernelOutput(self.main.empty_frame(self.first), {}, side_outputs)

    def why_not_on_files(self) -> str | None:
        """Return why workers cannot read and write the files themselves, or None if they can."""
        if not self.grouped_by:
            return "it has no key"
        if not all(workers.usable(lookup.state.spark, lookup.state.to.location) for lookup in self.states):
            return workers.OUT_OF_REACH
        if len({lookup.state.groups for lookup in self.states}) > 1:
            return "its states were created with different numbers of key groups"
        outputs = [self.main, *self.side_outputs.values()]
        for fields in (*(output.columns for output in outputs), self.fields):
            if collated := collated_names(fields):
                return f"column {collated[0]} has a collation"
        for lookup, schema in zip(self.states, self.schemas, strict=True):
            if (reason := workers.why_not_merged(schema, lookup.state.keys, {})) is not None:
                return reason
        for schema in (*self.schemas, *(output.schema for output in outputs), schema_of(self.fields)):
            if (reason := workers.why_not_written(schema)) is not None:
                return reason
            if problems := schema_problems(schema, ()):
                return problems[0]
        return None

    @cached_property
    def grouped(self) -> DataFrame:
        """The batch with the key group of each row."""
        group = key_group(self.grouped_by, self.first.groups)
        if self.keyless is not None:
            any_group = f"CAST(pmod(xxhash64(spark_partition_id()), {self.first.groups}) AS INT)"
            group = f"IF({self.keyless}, {any_group}, {group})"
        grouped = select_sql(self.batch, ["*", f"{group} AS {GROUP}"])
        return empty_like(grouped) if self.is_empty else grouped

    @contextlib.contextmanager
    def split_key_groups(self, rows: DataFrame) -> Iterator[tuple[DataFrame, int]]:
        """Split rows by ranges of key groups. If they are few, one worker takes them all, without a shuffle."""
        states = [lookup.state for lookup in self.states]
        is_small_input = all(state.few_rows_arrive for state in states)
        stored = sum(state.rows_in_files for state in states)
        if is_small_input and stored <= MAX_STORED_FOR_ONE_WORKER and not self.kernel.is_users_own:
            yield rows.coalesce(1), 1
            return
        with self.first.split_key_groups(rows) as split:
            yield split

    # -- workers read and write files ----------------------------------------------------------------

    def run_on_files(self, *, light: bool) -> KernelOutput | None:
        """Run the kernel on the state's files. Return None, with nothing changed, if it needs the ids of stored rows,
        which files do not hold."""
        first = self.first
        stored_states = self.states if self.stores_rows else []
        folders = [lookup.state.new_folder("fold") for lookup in self.states]
        folder, location = folders[0], first.to.location
        due = [lookup.state.due_batches() for lookup in stored_states]
        with self.split_key_groups(self.grouped) as (rows, count):
            lookups = []
            for number, lookup in enumerate(stored_states):
                merging = lookup.state.merge_plan(self.schemas[number], folders[number], count, due[number])
                lookups.append(lookup.lookup_plan(self.grouped_by, merging))
            arriving = schema_of(self.fields)
            plan = KernelPlan(
                lookups=lookups,
                stored=[arrow_schema(schema, list(columns(schema))) for schema in self.schemas],
                stored_by=[lookup.state.keys for lookup in self.states],
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
            for lookup, state_folder in zip(self.states, folders, strict=True):
                lookup.state.to.location.remove_folder(state_folder)
            for output in filter(None, (self.main, self.retractions, *self.side_outputs.values())):
                location.remove_folder(output.folder(folder))
            self._refuse_hot_keys(outcome.hot_keys)
            return None
        for number, lookup in enumerate(stored_states):
            added, compacted = outcome.files(number, due[number])
            lookup.state.add_files(folders[number], self.schemas[number], added, compacted, due[number])
        first.computing.spilled += outcome.spilled
        first.computing.add_row_groups(*outcome.row_groups)
        first.computing.add_rows(outcome.rows_in, sum(file.rows for file in outcome.emitted_files.values()))
        side_outputs = {}
        for number, (name, output) in enumerate(self.side_outputs.items()):
            side_outputs[name] = output.read(first, folder, outcome.side_output_files(number))
        retractions = None
        if self.retractions is not None:
            retractions = self.retractions.read(first, folder, outcome.retraction_files)
        rows_to_emit = self.main.read(first, folder, outcome.emitted_files)
        return KernelOutput(rows_to_emit, outcome.counts, side_outputs, retractions)

    def _refuse_hot_keys(self, hot_keys: Mapping[str, int]) -> None:
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

    # -- Spark reads and writes the rows -------------------------------------------------------------

    def run_through_spark(self, reason: str, *, with_ids: bool = False) -> KernelOutput:
        """Run the kernel on rows that Spark reads and writes. with_ids: read the ids of stored rows, too."""
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

        first = self.first
        first.computing.note_workers()
        first.computing.note_spark(reason)
        inputs = self._inputs_through_spark(with_ids=with_ids)
        arriving, incoming = _union_columns([fields for _, fields in inputs])
        changes = []
        for lookup in self.states:
            changes.append(_nullable([*lookup.columns, StructField(DELETED, BooleanType())]))
        count_types = (StringType(), IntegerType(), LongType())
        counts = []
        for name, data_type in zip(COUNTS, count_types, strict=True):
            counts.append(StructField(name, data_type))
        outputs = [self.main, self.main, *self.side_outputs.values()]
        leaving, outgoing = _union_columns([*changes, *(output.columns for output in outputs), counts])
        tagged_inputs = self._union_of_inputs(inputs, arriving, incoming)
        arrow = [to_arrow_schema(StructType(fields), timezone="UTC") for _, fields in inputs]
        with self.split_key_groups(tagged_inputs) as (rows, count):
            plan = KernelPlan(
                lookups=[],
                stored=[schema.empty_table().schema for schema in arrow[1:]],
                stored_by=[lookup.state.keys for lookup in self.states],
                kernel=self.kernel,
                arriving=Arriving(arrow, incoming, self.kernel.add_columns, self.grouped_by),
                key_group_columns=self.grouped_by,
                groups=first.groups,
                count=count,
                limits=Limits(MAX_BYTES // 4, MAX_BYTES),
                is_current_column=self.is_current_column,
            )
            tagging = TaggedRows(
                to_arrow_schema(StructType(leaving), timezone="UTC"), outgoing, self.project, list(self.side_outputs)
            )
            results = first.cached(_run_on_tagged_rows(plan, tagging, rows, StructType(leaving)))
            report = results.where(f"{KIND} = {len(outgoing) - 1}").select(*outgoing[-1].values()).collect()
        self._refuse_hot_keys({name: size for name, kind, size in report if kind == HOT_KEY})
        counters = Counter[str]()
        totals = Counter[int]()
        for name, kind, number in report:
            totals[kind] += number
            if kind == COUNTED:
                counters[name] += number
        first.computing.spilled += totals[SPILLED]
        first.computing.add_rows(totals[ROWS_IN], totals[ROWS_OUT])
        for number, lookup in enumerate(self.states):
            if lookup.state.is_kept:
                changed = _rows_of_kind(results, number, changes[number], outgoing[number])
                lookup.state.write_changes(changed, deletes=True)
        emitted = []
        for kind, output in enumerate(outputs, start=len(self.states)):
            emitted.append(_rows_of_kind(results, kind, output.columns, outgoing[kind]))
        side_outputs = dict(zip(self.side_outputs, emitted[2:], strict=True))
        retractions = emitted[1] if self.retractions is not None else None
        return KernelOutput(emitted[0], counters, side_outputs, retractions)

    def _inputs_through_spark(self, *, with_ids: bool) -> list[tuple[DataFrame | None, list[StructField]]]:
        """Return the batch, and for each state its rows that are needed, each with their columns. None: no rows."""
        from pyspark.sql.types import IntegerType, LongType, StructField

        first = self.first
        batch = None
        if not self.is_empty:
            reads_state = any(lookup.state.is_kept and not lookup.state.is_empty for lookup in self.states)
            batch = first.cached(self.grouped) if reads_state else self.grouped
        inputs: list[tuple[DataFrame | None, list[StructField]]] = [(batch, _nullable(self.fields))]
        if with_ids:
            id_fields = [StructField(name, LongType()) for name in HALVES]
        else:
            id_fields = []
        for lookup in self.states:
            frames = [batch]
            if lookup.also_keys_of is not None:
                frames.append(inputs[1 + lookup.also_keys_of][0])
            sought = [frame for frame in frames if frame is not None]
            stored = lookup.read_through_spark(sought, self.grouped_by, first.groups, with_ids=with_ids)
            inputs.append((stored, _nullable([StructField(GROUP, IntegerType()), *lookup.columns, *id_fields])))
        return inputs

    def _union_of_inputs(
        self,
        inputs: Sequence[tuple[DataFrame | None, Sequence[StructField]]],
        columns: Sequence[StructField],
        names: Sequence[Mapping[str, str]],
    ) -> DataFrame:
        """Return all inputs in one frame with these columns, and each row's key group. names: those of each input."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        tagged = []
        for kind, (frame, fields) in enumerate(inputs):
            if frame is not None:
                tagged.append(_tagged(frame, kind, [field.name for field in fields], names[kind]))
        if tagged:
            union = tagged[0]
        else:
            union = no_rows(self.first.spark, StructType(list(columns)))
        for frame in tagged[1:]:
            union = union.unionByName(frame, allowMissingColumns=True)
        present = set(union.columns)
        filled = []
        for target in columns:
            column = F.col(target.name) if target.name in present else F.lit(None)
            filled.append(column.cast(target.dataType).alias(target.name))
        group_columns = ", ".join(input_names[GROUP] for input_names in names)
        return select_sql(union.select(*filled), ["*", f"coalesce({group_columns}) AS {GROUP}"])


def _union_columns(kinds: Sequence[Sequence[StructField]]) -> tuple[list[StructField], list[dict[str, str]]]:
    """Return the columns of rows of several kinds in one frame, and for each kind its columns' names there."""
    from pyspark.sql.types import IntegerType, StructField

    columns, names = [StructField(KIND, IntegerType())], []
    for kind, fields in enumerate(kinds):
        names.append({field.name: f"k{kind}_{place}" for place, field in enumerate(fields)})
        for added in fields:
            columns.append(StructField(names[kind][added.name], added.dataType))
    return columns, names


def _nullable(fields: Sequence[StructField]) -> list[StructField]:
    """Return the columns as nullable: in rows of other kinds they are null."""
    from pyspark.sql.types import StructField

    return [StructField(field.name, field.dataType) for field in fields]


def _tagged(frame: DataFrame, kind: int, order: Sequence[str], names: Mapping[str, str]) -> DataFrame:
    columns = (f"{quoted(name)} AS {names[name]}" for name in order)
    return select_sql(frame, [f"{kind} AS {KIND}", *columns])


def _rows_of_kind(results: DataFrame, kind: int, fields: Sequence[StructField], names: Mapping[str, str]) -> DataFrame:
    """Return the rows of one kind, with the names that its columns have outside of the union."""
    chosen = results.where(f"{KIND} = {kind}").select(*(names[field.name] for field in fields))
    return with_fields(renamed(chosen, [field.name for field in fields]), list(fields))


def _run_on_tagged_rows(plan: KernelPlan, tagging: TaggedRows, rows: DataFrame, leaving: Any) -> DataFrame:
    """Return what workers compute from rows that Spark brings them."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        split, _ = workers.task()
        yield from run_kernel_on_tagged_rows(plan, tagging, batches, split)

    return workers.mapped(rows, work, leaving)


@dataclass(frozen=True)
class _Output:
    """Rows that workers write for downstream, in files next to those of the operator's first state."""

    name: str
    columns: Sequence[StructField]

    @cached_property
    def schema(self) -> Json:
        """The schema of its files."""
        return schema_of(self.columns)

    def folder(self, state_folder: str) -> str:
        """Return the folder of its files. state_folder: that of the state's files."""
        return f"{state_folder}-{self.name}"

    def emit_plan(
        self,
        location: Location,
        state_folder: str,
        project: Callable[[pa.Table], pa.Table] | None = None,
        retractions: _Output | None = None,
    ) -> EmitPlan:
        """Return how workers write it. project: turns rows into those to emit. retractions: their output."""
        retractions_folder = None
        if retractions is not None:
            retractions_folder = location.full(retractions.folder(state_folder))
        return EmitPlan(
            workers.layout_of(self.schema, (), location),
            location.full(self.folder(state_folder)),
            project,
            retractions_folder,
        )

    def read(self, state: KeyedState, state_folder: str, files: Mapping[str, WrittenFile]) -> DataFrame:
        """Return the rows that workers have written."""
        rows = state.read_worker_files(self.folder(state_folder), files, self.schema)
        return self.empty_frame(state) if rows is None else rows

    def empty_frame(self, state: KeyedState) -> DataFrame:
        """Return no rows."""
        from pyspark.sql.types import StructType

        return no_rows(state.spark, StructType(list(self.columns)))


def _row_size_sample(parts: Sequence[Sequence[KeyedState]]) -> list[list[StateFile]]:
    """Return stored files as a sample of row sizes, or none if this batch may be atypically large.

    parts: states that together hold all columns of a row, in groups that hold the same ones.
    """
    sample = []
    for states in parts:
        if not all(state.little_arrives for state in states):
            return []
        files: list[StateFile] = []
        for state in states:
            files += state.base_files
        sample.append(files)
    return sample


@dataclass(frozen=True)
class _Outcome:
    """The workers' reports. count: the number of ranges of key groups."""

    lines: Sequence[ReportRow]
    count: int

    @property
    def tied(self) -> bool:
        """Whether a kernel needs the ids of stored rows."""
        return any(line.kind == TIED for line in self.lines)

    @property
    def hot_keys(self) -> dict[str, int]:
        """The keys with more rows than a worker can hold, and a lower bound of their bytes."""
        return {line.name: line.size for line in self.lines if line.kind == HOT_KEY}

    @property
    def spilled(self) -> int:
        """The bytes that workers have written to local disk."""
        return sum(line.size for line in self.lines if line.kind == SPILLED)

    @property
    def row_groups(self) -> tuple[int, int]:
        """The number of row groups of the states' files that workers have read, and of all that they considered."""
        lines = [line for line in self.lines if line.kind == ROW_GROUPS]
        return sum(line.rows for line in lines), sum(line.size for line in lines)

    @property
    def rows_in(self) -> int:
        """The number of rows of the batch."""
        return sum(line.rows for line in self.lines if line.kind == ROWS_IN)

    @property
    def emitted_files(self) -> dict[str, WrittenFile]:
        """The files with rows to emit."""
        return self._files_of(GIVEN)

    @property
    def retraction_files(self) -> dict[str, WrittenFile]:
        """The files with retractions."""
        return self._files_of(REPLACED)

    def side_output_files(self, number: int) -> dict[str, WrittenFile]:
        """The files of the side output with this number."""
        return self._files_of(SIDE_OUTPUT, number)

    def _files_of(self, kind: int, number: int = 0) -> dict[str, WrittenFile]:
        files = {}
        for line in self.lines:
            if line.kind == kind and line.state == number and line.rows:
                files[line.name] = line.reported_file
        return files

    @property
    def counts(self) -> Counter[str]:
        """The operator's counters, summed over all workers."""
        counts: Counter[str] = Counter()
        for line in self.lines:
            if line.kind == COUNTED:
                counts[line.name] += line.rows
        return counts

    def files(
        self, state: int, due: Sequence[Compaction]
    ) -> tuple[dict[str, WrittenFile], dict[int, dict[str, WrittenFile]]]:
        """Return a state's new files, and for each batch of files that all ranges have compacted, the compacted ones.
        A line's kind is ADDED, or the number of a batch."""
        files: dict[int, dict[str, WrittenFile]] = defaultdict(dict)
        splits: dict[int, set[int]] = defaultdict(set)
        for line in self.lines:
            if line.state != state:
                continue
            splits[line.kind].add(line.split)
            if line.rows:
                files[line.kind][line.name] = line.reported_file
        compacted = {}
        for number in range(len(due)):
            if len(splits[number]) == self.count:
                compacted[number] = files[number]
        return files[ADDED], compacted


def _has_expiring_rows(lookup: StateLookup) -> bool:
    """Return whether a state may have rows that expire now. Compaction alone is no reason to run: it can wait."""
    lookup.state.drop_expired()
    return lookup.expire_before is not None and not lookup.state.is_empty


def _run(
    plan: KernelPlan, rows: DataFrame, fields: Sequence[StructField], count: int, *, is_empty: bool, light: bool
) -> list[ReportRow]:
    """Return the reports for all ranges of key groups.

    Spark may run no worker for a range without rows. Where such a range has rows to expire or files to compact, a
    second query runs one.
    """
    if is_empty:
        lines = []
    else:
        lines = _collect_reports(plan, rows, fields, light=light)
    missing = set(range(count)) - {line.split for line in lines}
    if missing and any(lookup.expire_before is not None or lookup.state.batches for lookup in plan.lookups):
        row_per_range = rows.sparkSession.range(0, count, 1, count)
        lines += _collect_reports(plan, row_per_range, row_per_range.schema.fields, missing)
    return lines


def _collect_reports(
    plan: KernelPlan,
    rows: DataFrame,
    fields: Sequence[StructField],
    only: Container[int] | None = None,
    *,
    light: bool = False,
) -> list[ReportRow]:
    """Return the workers' reports. only: run the kernel for just these ranges, without rows."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        split, name = workers.task()
        if only is not None:
            for _ in batches:  # Spark does not reuse a worker that leaves rows unread
                pass
            if split not in only:
                return
            batches = iter(())
        yield from workers.report(run_kernel_on_range(plan, batches, split, name))

    return workers.reported(rows, work, fields, light=light)
