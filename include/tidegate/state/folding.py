"""An operator in one query of Spark: workers look up the stored rows of the batch's keys, and a function works on them.

Spark computes the batch, brings each worker the rows of its key groups, and gets a few lines that name files. In
DataFrame algebra each join, grouping and lookup is a query of its own or several, planned and started one after the
other: for small batches that is nearly all of a checkpoint's time. Where workers cannot do it (`state/arrow/workers.py`
says where), and for more rows than they can hold, `fold_rows` returns None, and the operator uses the algebra. Both
give the same rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tidegate.delta import Location, WrittenFile, schema_problems
from tidegate.delta.arrow_types import arrow_schema
from tidegate.delta.log.schema import columns
from tidegate.records.records import Json
from tidegate.spark.known import empty_like, no_rows, select_sql
from tidegate.state.arrow import workers
from tidegate.state.arrow.folding import APART, COUNTED, Fold, FoldPlan, Lookup, fold
from tidegate.state.arrow.merging import ADDED, GIVEN, REPLACED, TOO_MANY, Giving, Line, MergePlan
from tidegate.state.columns import GROUP
from tidegate.state.compaction import Compaction
from tidegate.state.keyed import collated_names, key_group, schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

    from tidegate.state.keyed import KeyedState
    from tidegate.state.record import StateFile

__all__ = ["FoldedRows", "Remembered", "fold_rows"]

_NOTHING_APART: Mapping[str, Sequence[StructField]] = MappingProxyType({})
MOST_BYTES: Final = 256 << 20
"""The most that a worker holds of a batch, and of each state. More is left to Spark, which spills."""


@dataclass(frozen=True)
class Remembered:
    """One of the states that the function looks at and changes."""

    state: KeyedState
    columns: Sequence[StructField]
    """Its keys and values."""
    time: str | None = None
    ends: int | None = None
    """Also the stored rows whose `time` is below this are looked up."""
    since: int | None = None
    """Of these only the ones from this on: what is below has ended before, and no longer counts."""
    moves: bool = False
    """Whether a row's `time` may grow from checkpoint to checkpoint."""

    def lookup(self, grouped_by: Sequence[str], merging: MergePlan) -> Lookup:
        """Return how workers look up its rows. merging: how they write it."""
        return Lookup(
            merging,
            grouped_by,
            time=self.time,
            ends=self.ends,
            since=self.since,
            moves=self.moves,
            most_bytes=MOST_BYTES,
        )


@dataclass(frozen=True)
class FoldedRows:
    """What workers made of a batch."""

    rows: DataFrame
    """The rows to emit."""
    counts: Mapping[str, int]
    apart: Mapping[str, DataFrame]
    """The rows of the operator's other outputs, as far as they were asked for."""
    _replaced: DataFrame | None = None

    @property
    def replaced(self) -> DataFrame:
        """The rows that were emitted before, and are replaced; none if nobody asked for them."""
        return empty_like(self.rows) if self._replaced is None else self._replaced


def fold_rows(
    batch: DataFrame,
    fields: Sequence[StructField],
    grouped_by: Sequence[str],
    states: Sequence[Remembered],
    work: Fold,
    given: Sequence[StructField],
    *,
    is_empty: bool,
    keeps_rows: bool = True,
    beside: KeyedState | None = None,
    anywhere: str | None = None,
    enters: str | None = None,
    wants_replaced: bool = False,
    made: Callable[[pa.Table], pa.Table] | None = None,
    apart: Mapping[str, Sequence[StructField]] = _NOTHING_APART,
) -> FoldedRows | None:
    """Let workers do `work`. None: they cannot, and nothing has been done.

    fields: the columns of the batch, so that Spark need not be asked.
    grouped_by: columns of the batch, keys of each state: rows that agree in these come to one worker.
    given: the columns of the rows to emit. is_empty: the batch is known to have no rows.
    keeps_rows: the states hold whole rows of the batch, and not only a part of each.
    beside: a state of somebody else's that holds the batch's other columns: it tells how large rows are.
    anywhere: SQL of the rows that are in none of the states, and may go to any worker.
    enters: a column of what `work` gives, beside those of `given`: false where a row is replaced. wants_replaced: these
        are asked for.
    made: makes the rows to emit of what `work` gives. None: they are the same.
    apart: the operator's other outputs that are asked for, each with the columns of its rows.
    """
    from pyspark.sql.types import IntegerType, StructField

    first = states[0].state
    schemas = [remembered.state.schema_of_files(remembered.columns) for remembered in states]
    fields = [*fields, StructField(GROUP, IntegerType())]
    main, others = _Output("given", given), {name: _Output(name, own) for name, own in apart.items()}
    if (why := _why_not(states, schemas, fields, [main, *others.values()])) is not None:
        first.computing.not_by_workers(why)
        return None
    if is_empty and not any(_has_work(remembered) for remembered in states):
        # Nor does it take new columns: the operator's other states do not, either.
        return FoldedRows(main.nothing(first), {}, {name: output.nothing(first) for name, output in others.items()})
    for remembered, schema in zip(states, schemas, strict=True):
        remembered.state.checked(schema)
        remembered.state.regroup(grouped_by)
    folders = [remembered.state.new_folder("fold") for remembered in states]
    folder, location = folders[0], first.to.location
    replaced = _Output("replaced", given) if wants_replaced else None
    due = [remembered.state.due_batches() for remembered in states]
    group = key_group(grouped_by, first.groups)
    if anywhere is not None:
        group = f"IF({anywhere}, CAST(pmod(xxhash64(spark_partition_id()), {first.groups}) AS INT), {group})"
    grouped = select_sql(batch, ["*", f"{group} AS {GROUP}"])
    with first.split_by_group(empty_like(grouped) if is_empty else grouped) as (rows, count):
        arriving = schema_of(fields)
        plan = FoldPlan(
            lookups=[
                each.lookup(grouped_by, each.state.merge_plan(schema, own, count, batches))
                for each, schema, own, batches in zip(states, schemas, folders, due, strict=True)
            ],
            work=work,
            arriving=arrow_schema(arriving, list(columns(arriving))),
            giving=main.giving(location, folder, made, replaced),
            most_bytes=MOST_BYTES,
            enters=enters,
            apart={name: output.giving(location, folder) for name, output in others.items()},
        )
        holding = [[each.state for each in states], *([[beside]] if beside is not None else [])]
        light = workers.are_light(fields, *(_files(holding) if keeps_rows else ()))
        outcome = _Outcome(_run(plan, rows, fields, count, is_empty=is_empty, light=light), count)
    if outcome.too_many:
        for remembered, own in zip(states, folders, strict=True):
            remembered.state.to.location.remove_folder(own)
        for output in filter(None, (main, replaced, *others.values())):
            location.remove_folder(output.folder(folder))
        first.computing.not_by_workers("more rows than workers can hold")
        return None
    first.computing.by_workers()
    for number, remembered in enumerate(states):
        added, compacted = outcome.files(number, due[number])
        remembered.state.add_files(folders[number], schemas[number], added, compacted, due[number])
    return FoldedRows(
        main.read(first, folder, outcome.given),
        outcome.counts,
        {
            name: output.read(first, folder, outcome.apart(number))
            for number, (name, output) in enumerate(others.items())
        },
        replaced.read(first, folder, outcome.replaced) if replaced is not None else None,
    )


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

    def giving(
        self,
        location: Location,
        beside: str,
        made: Callable[[pa.Table], pa.Table] | None = None,
        replaced: _Output | None = None,
    ) -> Giving:
        """Return how workers write it. made: makes its rows. replaced: the output with those that it replaces."""
        return Giving(
            workers.layout_of(self.schema, (), location),
            location.full(self.folder(beside)),
            made,
            location.full(replaced.folder(beside)) if replaced is not None else None,
        )

    def read(self, state: KeyedState, beside: str, files: Mapping[str, WrittenFile]) -> DataFrame:
        """Return the rows that workers have written."""
        rows = state.read_aside(self.folder(beside), files, self.schema)
        return self.nothing(state) if rows is None else rows

    def nothing(self, state: KeyedState) -> DataFrame:
        """Return no rows."""
        from pyspark.sql.types import StructType

        return no_rows(state.spark, StructType(list(self.columns)))


def _files(parts: Sequence[Sequence[KeyedState]]) -> list[list[StateFile]]:
    """Return what is stored of each part of rows. None, if so much arrives that it may be like nothing before."""
    if not all(state.little_arrives for part in parts for state in part):
        return []
    return [[file for state in part for file in state.begun] for part in parts]


@dataclass(frozen=True)
class _Outcome:
    """What the workers have reported. count: the number of ranges."""

    lines: Sequence[Line]
    count: int

    @property
    def too_many(self) -> bool:
        return any(line.kind == TOO_MANY for line in self.lines)

    @property
    def given(self) -> dict[str, WrittenFile]:
        """The files with rows to emit."""
        return self._files_of(GIVEN)

    @property
    def replaced(self) -> dict[str, WrittenFile]:
        """The files with rows that were emitted before, and are replaced."""
        return self._files_of(REPLACED)

    def apart(self, number: int) -> dict[str, WrittenFile]:
        """The files with rows of the other output with this number."""
        return self._files_of(APART, number)

    def _files_of(self, kind: int, number: int = 0) -> dict[str, WrittenFile]:
        lines = (line for line in self.lines if line.kind == kind and line.state == number)
        return {line.name: line.file for line in lines if line.rows}

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
                names[line.kind][line.name] = line.file
        replaced = {number: names[number] for number in range(len(due)) if len(splits[number]) == self.count}
        return names[ADDED], replaced


def _why_not(
    states: Sequence[Remembered], schemas: Sequence[Json], arriving: Sequence[StructField], outputs: Sequence[_Output]
) -> str | None:
    """Return why workers cannot do it, if they cannot."""
    if not all(remembered.state.is_kept for remembered in states):
        return workers.KEEPS_NOTHING
    if len({remembered.state.groups for remembered in states}) > 1:
        return "its states have been begun with different numbers of key groups"
    for remembered, schema in zip(states, schemas, strict=True):
        if (why := workers.why_not_merged(schema, remembered.state.keys, {})) is not None:
            return why
        if not workers.usable(remembered.state.spark, remembered.state.to.location):
            return workers.OUT_OF_REACH
    for given in (*(output.columns for output in outputs), arriving):
        if collated := collated_names(given):
            return f"column {collated[0]} has a collation"
    for schema in (*schemas, *(output.schema for output in outputs), schema_of(arriving)):
        if (why := workers.why_not_written(schema)) is not None:
            return why
        if problems := schema_problems(schema, ()):
            return problems[0]
    return None


def _has_work(remembered: Remembered) -> bool:
    """Return whether a state has rows that may end now. What is to be compacted waits for the next rows."""
    remembered.state.drop_expired()
    return remembered.ends is not None and not remembered.state.is_empty


def _run(
    plan: FoldPlan, rows: DataFrame, fields: Sequence[StructField], count: int, *, is_empty: bool, light: bool
) -> list[Line]:
    """Return the reports for all ranges of key groups. Spark may run no worker for a range without rows."""
    lines = [] if is_empty else _reported(plan, rows, fields, light=light)
    missing = set(range(count)) - {line.split for line in lines}
    if missing and any(lookup.ends is not None or lookup.state.batches for lookup in plan.lookups):
        none = rows.sparkSession.range(0, count, 1, count)
        lines += _reported(plan, none, none.schema.fields, missing)
    return lines


def _reported(
    plan: FoldPlan,
    rows: DataFrame,
    fields: Sequence[StructField],
    only: Container[int] | None = None,
    *,
    light: bool = False,
) -> list[Line]:
    """only: just these ranges, without rows."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        split, name = workers.task()
        if only is not None:
            for _ in batches:  # a worker that leaves rows unread is not used again
                pass
            if split not in only:
                return
            batches = iter(())
        yield from workers.report(fold(plan, batches, split, name))

    return workers.reported(rows, work, fields, light=light)
