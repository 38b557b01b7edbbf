"""The base of operators that users write: a declaration, and a pure function of Arrow tables.

tidegate looks up the stored rows of the keys that have rows, sorts the arrived rows, separates late ones, and writes
the function's result, which is committed, rolled back and recomputed with everything else. The function runs in Spark's
Python workers. It gets the watermark, but not the time of day.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.connectors.schema.ddl import DdlError, parse_ddl
from tidegate.errors import Invalid
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.inputs import key_problems, names_in, need_keys, recalled, refuse_reserved_columns
from tidegate.operators.join.time_bounds import LATE_OUTPUT, need_time
from tidegate.operators.kernels.ranked import in_order
from tidegate.operators.retractions.key import key_of
from tidegate.operators.spec import (
    ANY_INTERVAL,
    Changelog,
    EventTime,
    Growth,
    Intervals,
    OperatorSpec,
    OutputSpec,
    TimedInput,
    Updates,
    joined,
)
from tidegate.records.codec import sha256
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.event_time import time_micros_sql
from tidegate.spark.frame_facts import is_known_empty, no_rows, renamed, select_sql
from tidegate.spark.row_id import half_fields, row_halves
from tidegate.state.arrow.kernel_worker import IS_CURRENT, Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, order_and_firsts, order_of, positions_in
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.kernel_driver import StateLookup, run_kernel
from tidegate.state.lateness import late_rows_mask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

__all__ = ["Clock", "KeyedKernel", "KeyedOperator", "StepResult"]


@dataclass(frozen=True)
class Clock:
    """The times that the function may use. They are the same for each attempt, and in a recomputation."""

    planned: datetime
    """When the checkpoint was planned."""
    watermark: datetime | None = None
    """The watermark with this checkpoint's rows: all future rows before it are late. None: there is none yet, or the
    operator does not use event time."""
    before: datetime | None = None
    """The watermark of the last checkpoint. Rows before it are late, and are not among those that have arrived."""


@dataclass(frozen=True)
class StepResult:
    """The result of the function."""

    state: pa.Table | None = None
    """New and changed rows of the state, one for each key: `by`, and the columns of `state`. None: no key changes."""
    forgotten: pa.Table | None = None
    """The keys to remove from the state: the columns of `by`. None: no key."""
    rows: pa.Table | None = None
    """The rows to emit, with the columns of `emits`. They are final. None: no rows."""


class KeyedOperator(Operator):
    """Subclass it, declare its columns, and write `step`. Then use it with `stream.apply(MyOperator(…))`.

    An operator whose results are replaced when they change also overrides `shows`.
    """

    by: Sequence[str]
    """The key columns."""
    state: str
    """The columns that it stores of a key, as SQL: "days int, last date"."""
    emits: str
    """The columns of the rows that it emits, as SQL: "customer string, days int"."""
    event_time: str | None = None
    """The column with the event time of rows, if it uses event time."""
    due: str | None = None
    """A timestamp column of the state. Once the watermark has passed it, `step` is called with the key even if it has
    no rows. None: only keys with rows are passed to `step`."""
    by_interval: bool = False
    """Whether it may be used in an interval pipeline, because an interval has all rows that it needs."""
    version: int = 1
    """The version of the computation."""

    @abstractmethod
    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        """Process some keys. Return their new state, and rows to emit.

        arrived: all rows of these keys, sorted by key, event time, and content. stored: the state of these keys, and of
        keys that are due, with a row for each key.

        Each call gets some of a checkpoint's keys, with all rows of each. The result must only depend on the arguments.
        Types are Arrow's, and times are microseconds in UTC.
        """

    def shows(self, state: pa.Table) -> pa.Table:
        """Return the current row of each key, with the columns of `emits`, for an operator that replaces rows. A key
        may have none.

        state: `by`, and the columns of `state`. tidegate emits the new rows of changed keys, and retracts the old ones.
        """
        raise NotImplementedError

    # -- the contract of every operator ----------------------------------------------------------------

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The name of the class, for messages and for the uid."""
        return type(self).__name__.lower()

    def spec(self) -> OperatorSpec:
        if self._missing:
            return OperatorSpec()
        by, columns = list(map(str, self.by)), names_in(self.emits)
        emits_key = self.replaces_rows and columns is not None and set(by) <= set(columns)
        return OperatorSpec(
            identity=list(self.by),
            event_time=EventTime(inputs=[TimedInput(self.event_time)]) if self._is_timed else None,
            output=OutputSpec(columns=columns, others=[LATE_OUTPUT] if self._is_timed else []),
            changelog=Changelog(
                updates=Updates.ALWAYS if self.replaces_rows else Updates.NEVER,
                key=key_of(by) if emits_key else None,
                is_kept=self.replaces_rows,
            ),
            growth=Growth(
                keeps=None if self.due is not None else f"a row for each {joined(by)}, until it forgets the key"
            ),
            intervals=ANY_INTERVAL if self.by_interval else Intervals(),
            code=type(self).step,
            meant_by_code=frozenset({"what it shows"}),
        )

    @property
    def replaces_rows(self) -> bool:
        """Whether its rows replace earlier ones."""
        return type(self).shows is not KeyedOperator.shows

    @property
    def _missing(self) -> list[str]:
        """The required attributes that the class does not define."""
        return [name for name in ("by", "state", "emits") if not hasattr(self, name)]

    @property
    def _is_timed(self) -> bool:
        return self.event_time is not None or self.due is not None

    @property
    def parameters(self) -> Json:
        """Its attributes as texts, which distinguish it from other operators of its class."""
        parameters: Json = {}
        for name, value in sorted(vars(self).items()):
            if isinstance(value, set | frozenset):
                value = sorted(value, key=repr)
            parameters[name] = repr(value)
        return parameters

    def describe(self) -> Json:
        return {
            "by": list(self.by),
            "state": self.state,
            "emits": self.emits,
            "event_time": self.event_time,
            "due": self.due,
            "version": self.version,
            "parameters": self.parameters,
        }

    def meaning(self, over_updates: bool) -> Json:
        meaning: Json = {"operator": self.kind, "by": list(self.by), "version": self.version}
        if self._is_timed:
            meaning["event_time"] = [self.event_time]
        if self.replaces_rows:
            meaning["what it shows"] = _syntax_of(type(self).shows, self.parameters)
        return meaning

    def problems(self) -> list[str]:
        if self._missing:
            return [f"{type(self).__name__} does not say {name}" for name in self._missing]
        if isinstance(self.by, str):
            return [f"by={self.by!r}: write a list of columns"]
        problems = key_problems(list(self.by))
        for name, text in self.parameters.items():
            if " at 0x" in str(text):
                problems.append(f"{name}={text}: its text must be the same in every process; give its class a __repr__")
        state_columns: dict[str, str] = {}
        for name in ("state", "emits"):
            try:
                columns = {column.name: column.type for column in parse_ddl(getattr(self, name))}
            except DdlError as error:
                problems.append(f"{name}={getattr(self, name)!r}: {error}")
                continue
            if name == "state":
                state_columns = columns
            for column in columns:
                if column[0] == "_":
                    problems.append(f"{name} has {column!r}, a name that tidegate reserves")
        keys = {str(name).casefold() for name in self.by}
        if repeated := sorted(name for name in state_columns if name.casefold() in keys):
            problems.append(f"state has {', '.join(repeated)}, which by names: keys are stored anyway")
        if self.due is not None and state_columns.get(self.due, "timestamp") != "timestamp":
            problems.append(f"due={self.due!r} is {state_columns[self.due]}: expected a timestamp")
        if self.due is not None and state_columns and self.due not in state_columns:
            problems.append(f"due={self.due!r} is no column of state")
        return problems

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import types as T
        from pyspark.sql.pandas.types import to_arrow_schema

        rows, watermarks = inputs[0], context.watermarks
        need_keys(rows, self.by, "by", context)
        refuse_reserved_columns(rows, context)
        refuse_reserved_columns(rows, context, ["_at", "_row"])
        fields = {field.name: field for field in rows.schema.fields}
        time, now, late = "0L", None, None
        clock = Clock(context.clock)
        if self._is_timed:
            time = time_micros_sql(rows, need_time(self.event_time, 0, context), f"operator {context.uid!r}")
            now, late = watermarks.now_micros, watermarks.before_micros
            clock = Clock(context.clock, watermarks.now, watermarks.before)
        stored, emitted = self._stored_columns([fields[name] for name in self.by]), _columns(self.emits)
        is_empty = is_known_empty(rows)
        lookup = StateLookup(context.state(list(self.by)), stored, time_can_advance=True)
        if self.due is not None and now is not None and (watermarks.has_advanced or not is_empty):
            lookup = replace(lookup, time=self.due, expire_before=now)
        kernel = KeyedKernel(
            self,
            list(fields),
            [field.name for field in stored],
            clock,
            late,
            to_arrow_schema(T.StructType(emitted), timezone="UTC"),
        )
        output = run_kernel(
            select_sql(rows, [*map(quoted, fields), f"{time} AS _at", *row_halves(rows)]),
            [*fields.values(), T.StructField("_at", T.LongType()), *half_fields()],
            list(self.by),
            [lookup],
            kernel,
            emitted,
            is_empty=is_empty,
            keeps_rows=False,
            is_current_column=IS_CURRENT if self.replaces_rows else None,
            wants_retractions=self.replaces_rows and context.wants_retractions,
            side_outputs={LATE_OUTPUT: list(fields.values())} if LATE_OUTPUT in context.consumed_outputs else {},
        )
        context.count(output.counts)
        streams = {"": output.rows, **output.side_outputs}
        if self.replaces_rows:
            streams["-"] = output.retractions
        return streams

    def _stored_columns(self, keys: Sequence[StructField]) -> list[StructField]:
        return [*keys, *_columns(self.state)]

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        stored = states[""]
        if stored is None or not self.replaces_rows:
            return None
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructField, StructType

        fields = {field.name: field for field in inputs[0].schema.fields}
        state_fields, emitted = self._stored_columns([fields[name] for name in self.by]), _columns(self.emits)
        like = no_rows(context.spark, StructType(state_fields))
        rows = recalled(context.state(list(self.by)), stored, like, context)
        names, columns = [field.name for field in state_fields], [field.name for field in emitted]
        shows, schema = self.shows, to_arrow_schema(StructType(emitted), timezone="UTC")
        # Spark fails on dots in names, so columns are numbered on the way to Python and back.
        numbers = [f"c{index}" for index in range(len(emitted))]

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for batch in batches:
                current = shows(pa.Table.from_batches([batch.rename_columns(names)]))
                yield from current.select(columns).cast(schema).rename_columns(numbers).to_batches()

        numbered = renamed(rows.select(*map(quoted, names)), [f"c{index}" for index in range(len(names))])
        output = StructType([StructField(name, field.dataType) for name, field in zip(numbers, emitted, strict=True)])
        return renamed(numbered.mapInArrow(work, output), columns)


def _columns(ddl: str) -> list[StructField]:
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return list(parsed.fields)


@dataclass(frozen=True)
class KeyedKernel(Kernel):
    """The kernel: it calls the operator's function, and checks its result."""

    is_users_own: ClassVar[bool] = True
    operator: KeyedOperator
    columns: Sequence[str]
    """The columns of the input."""
    stored_columns: Sequence[str]
    """The keys, and the columns of the state."""
    clock: Clock
    late_before: int | None
    """Rows before this time are late. None: no row is late."""
    emits: pa.Schema
    """The columns of the rows to emit."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        key_columns, stored_columns = list(self.operator.by), list(self.stored_columns)
        not_on_time, counts = self._late(arrived)
        late_rows = arrived.filter(pa.array(not_on_time)).select(list(self.columns))
        rows = arrived.filter(pa.array(~not_on_time))
        rows = rows.take(pa.array(in_order(rows, _ranks(rows, key_columns), [("_at", True), ("_row", True)])))
        before = stored[0].select([GROUP, *stored_columns])
        before = before.take(pa.array(order_of(before, key_columns))).combine_chunks()
        result = self.operator.step(rows.select(list(self.columns)), before.select(stored_columns), self.clock)
        if not isinstance(result, StepResult):
            raise self._bad_result(f"step returned {type(result).__name__}", "a StepResult")
        updates = self._table(result.state, stored_columns, "state", before)
        deletions = self._table(result.forgotten, key_columns, "forgotten", before)
        changed_keys = pa.concat_tables([updates.select(key_columns), deletions])
        valid_keys = pa.concat_tables([table.select([GROUP, *key_columns]) for table in (rows, before)])
        codes, valid_codes = codes_of([changed_keys, valid_keys.select(key_columns)], key_columns)
        if len(np.unique(codes)) < len(codes):
            raise self._bad_result("step returned a key twice", "each key once, in state or in forgotten")
        positions = positions_in(valid_codes, codes)
        if (positions < 0).any():
            raise self._bad_result(
                "step returned a key that it did not get", "keys of the rows that arrived, or are stored"
            )
        columns = {name: deletions[name] for name in key_columns}
        for name in stored_columns:
            if name not in key_columns:
                columns[name] = pa.nulls(deletions.num_rows, before.schema.field(name).type)
        changes = pa.concat_tables([updates.select(stored_columns), pa.table(columns).select(stored_columns)])
        changes = changes.append_column(GROUP, valid_keys[GROUP].take(pa.array(positions)))
        is_deleted = np.repeat([False, True], [updates.num_rows, deletions.num_rows])
        changes = changes.append_column(DELETED, pa.array(is_deleted))
        changed_before = before.filter(pa.array(np.isin(valid_codes[rows.num_rows :], codes)))
        emitted = list(self._emit_rows(result, updates, changed_before))
        return KernelResult([changes], emitted, counts, {LATE_OUTPUT: late_rows})

    def _late(self, arrived: pa.Table) -> tuple[Any, dict[str, int]]:
        """Return a mask of the rows that are late or have no time, and their counts."""
        timed, is_late = late_rows_mask(arrived["_at"], self.late_before)
        return is_late | ~timed, {"late": int(is_late.sum()), "without_time": int((~timed).sum())}

    def _emit_rows(self, result: StepResult, updates: pa.Table, changed_before: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows to emit. changed_before: the stored rows of keys that are changed or deleted."""
        import numpy as np
        import pyarrow as pa

        if not self.operator.replaces_rows:
            if result.rows is not None:
                yield self._typed(result.rows, self.emits, "rows")
            return
        if result.rows is not None:
            raise self._bad_result("step returned rows, although the operator has shows", "one of both")
        for is_current, table in ((True, updates), (False, changed_before)):
            shown = self.operator.shows(table.select(list(self.stored_columns)))
            rows = self._typed(shown, self.emits, "the result of shows", "shows")
            if rows.num_rows > table.num_rows or self._has_key_twice(rows):
                problem = f"shows made {rows.num_rows} rows of {table.num_rows} keys"
                raise self._bad_result(problem, "one row for each key, or none", "shows")
            yield rows.append_column(IS_CURRENT, pa.array(np.repeat(is_current, rows.num_rows)))

    def _has_key_twice(self, rows: pa.Table) -> bool:
        import numpy as np

        key_columns = list(self.operator.by)
        if not set(key_columns) <= set(rows.column_names):
            return False
        (codes,) = codes_of([rows.select(key_columns)], key_columns)
        return len(np.unique(codes)) < len(codes)

    def _table(self, table: pa.Table | None, names: Sequence[str], subject: str, like: pa.Table) -> pa.Table:
        """Return a table of the function's result with these columns, in the types of `like`."""
        import pyarrow as pa

        schema = pa.schema([like.schema.field(name) for name in names])
        if table is None:
            return schema.empty_table()
        return self._typed(table, schema, subject)

    def _typed(self, table: pa.Table, schema: pa.Schema, subject: str, method: str = "step") -> pa.Table:
        """Return the table's columns of the schema, in its types. Texts are not cast, even if they look like numbers.

        method: the method that has returned the table, for errors.
        """
        import pyarrow as pa

        if not isinstance(table, pa.Table):
            raise self._bad_result(f"{subject} is a {type(table).__name__}", "a table of pyarrow's", method)
        if missing := [name for name in schema.names if name not in table.column_names]:
            problem = f"{subject} lacks {', '.join(map(repr, missing))}"
            raise self._bad_result(problem, f"the columns {', '.join(schema.names)}", method)
        table = table.select(schema.names)
        if not any(_is_cast_of_text(table.schema.field(name).type, schema.field(name).type) for name in schema.names):
            with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
                return table.cast(schema).combine_chunks()
        types = ", ".join(f"{field.name} {field.type}" for field in table.schema)
        raise self._bad_result(f"{subject} has other types: {types}", str(schema).replace("\n", ", "), method)

    def _bad_result(self, problem: str, expected: str, method: str = "step") -> Invalid:
        name = type(self.operator).__name__
        return Invalid(
            f"{name}: {problem}",
            expected=expected,
            help=f"correct {name}.{method}; tidegate.testing.OperatorContract finds such mistakes without Spark",
            reason="BAD_STEP",
        )


def _is_cast_of_text(given: pa.DataType, expected: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(given) and not (pa.types.is_string(expected) or pa.types.is_binary(expected)))


def _syntax_of(function: Callable[..., object], parameters: Json) -> str:
    """Return a hash of a function's syntax tree, without comments and layout, and of the parameters that it uses."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except OSError:
        return ""
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    values = [f"{name}={text}" for name, text in parameters.items() if name in used]
    return sha256("\n".join([ast.dump(tree), *values]).encode())[:16]


def _ranks(rows: pa.Table, by: Sequence[str]) -> Any:
    """Return a number for each row that sorts as its key does. Equal keys have equal numbers."""
    import numpy as np

    positions, starts = order_and_firsts(rows, by)
    begins = np.zeros(rows.num_rows, np.int64)
    begins[starts[1:]] = 1
    ranks = np.empty(rows.num_rows, np.int64)
    ranks[positions] = np.cumsum(begins)
    return ranks
