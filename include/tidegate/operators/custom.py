"""The base of operators that users write: a declaration, and a pure function of Arrow tables.

tidegate looks up the stored rows of the keys that have rows, sorts what has arrived, sets late rows aside, writes what
the function returns, and commits, rolls back and recomputes it with everything else. The function runs in Spark's
Python workers, and is told the watermark, never the time of day.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.connectors.ddl import DdlError, parse_ddl
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
from tidegate.state.arrow.keys_as_numbers import codes_of, integers, order_and_firsts, order_of
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.kernel_driver import StateLookup, run_kernel

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

__all__ = ["Clock", "KeyedKernel", "KeyedOperator", "StepResult"]


@dataclass(frozen=True)
class Clock:
    """What the function may know of time. The same for each attempt, and when a checkpoint is computed again."""

    planned: datetime
    """When the checkpoint was planned."""
    watermark: datetime | None = None
    """With this checkpoint's rows: no row before this will come that is not late. None: nothing is known yet, or the
    operator has no event time."""
    before: datetime | None = None
    """The watermark as of the last checkpoint. Rows before it are late, and are not among those that have arrived."""


@dataclass(frozen=True)
class StepResult:
    """What the function returns."""

    state: pa.Table | None = None
    """The keys to remember from now on, a row for each: `by`, and the columns of `state`. None: nothing changes."""
    forgotten: pa.Table | None = None
    """The keys to forget: the columns of `by`. None: no key."""
    rows: pa.Table | None = None
    """The rows to emit, with the columns of `emits`. They are final. None: there are none."""


class KeyedOperator(Operator):
    """Subclass it, say what it reads and keeps, and write `step`. Then: `stream.apply(MyOperator(…))`.

    An operator whose results are replaced when they change overrides `shows` as well.
    """

    by: Sequence[str]
    """The columns that make its keys."""
    state: str
    """What it keeps of a key, as columns of SQL: "days int, last date"."""
    emits: str
    """The columns of its rows: "customer string, days int"."""
    event_time: str | None = None
    """The column with the time of rows, if it goes by that."""
    due: str | None = None
    """The column of the state, a timestamp, from which on a key is looked up though it has no rows: once the watermark
    is past it. None: only keys that have rows are."""
    by_interval: bool = False
    """Whether it may stand in an interval pipeline: an interval has all rows that it needs."""
    version: int = 1
    """Which computation it is."""

    @abstractmethod
    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        """Return what becomes of some keys.

        arrived: all rows of these keys, in the order of key, event time, and content. stored: what is kept of them, and
        of keys that are due; a row for each key.

        It is called for any part of a checkpoint's keys, and of no key it gets a part of the rows. What it returns must
        depend on nothing but what it gets. Types are Arrow's: times are microseconds in UTC.
        """

    def shows(self, state: pa.Table) -> pa.Table:
        """Return the row that each key shows, with the columns of `emits`, for an operator whose rows are replaced.
        A key may show none.

        state: `by`, and the columns of `state`. tidegate emits what is shown now, and takes back what was shown before.
        """
        raise NotImplementedError

    # -- the rest is what tidegate asks of any operator -----------------------------------------------

    @property
    def kind(self) -> str:  # type: ignore[override]
        """A name for people, and for its uid: that of the class."""
        return type(self).__name__.lower()

    def spec(self) -> OperatorSpec:
        if self._missing:
            return OperatorSpec()
        by, columns = list(map(str, self.by)), names_in(self.emits)
        is_told_apart = self.replaces_rows and columns is not None and set(by) <= set(columns)
        return OperatorSpec(
            identity=list(self.by),
            event_time=EventTime(inputs=[TimedInput(self.event_time)]) if self._is_timed else None,
            output=OutputSpec(columns=columns, others=[LATE_OUTPUT] if self._is_timed else []),
            changelog=Changelog(
                updates=Updates.ALWAYS if self.replaces_rows else Updates.NEVER,
                key=key_of(by) if is_told_apart else None,
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
        """Whether its rows replace those that it showed before."""
        return type(self).shows is not KeyedOperator.shows

    @property
    def _missing(self) -> list[str]:
        """What it does not say."""
        return [name for name in ("by", "state", "emits") if not hasattr(self, name)]

    @property
    def _is_timed(self) -> bool:
        return self.event_time is not None or self.due is not None

    @property
    def parameters(self) -> Json:
        """What sets it apart from others of its class: its attributes, as texts."""
        return {
            name: repr(sorted(value, key=repr) if isinstance(value, set | frozenset) else value)
            for name, value in sorted(vars(self).items())
        }

    def describe(self) -> Json:
        own: Json = {"by": list(self.by), "state": self.state, "emits": self.emits, "event_time": self.event_time}
        return own | {"due": self.due, "version": self.version, "parameters": self.parameters}

    def meaning(self, over_updates: bool) -> Json:
        meaning: Json = {"operator": self.kind, "by": list(self.by), "version": self.version}
        meaning |= {"event_time": [self.event_time]} if self._is_timed else {}
        return meaning | (
            {"what it shows": _syntax_of(type(self).shows, self.parameters)} if self.replaces_rows else {}
        )

    def problems(self) -> list[str]:
        if self._missing:
            return [f"{type(self).__name__} does not say {name}" for name in self._missing]
        if isinstance(self.by, str):
            return [f"by={self.by!r}: write a list of columns"]
        problems = key_problems(list(self.by))
        problems += [
            f"{name}={text}: what sets it apart has to be told alike in every process; give its class a __repr__"
            for name, text in self.parameters.items()
            if " at 0x" in str(text)
        ]
        kept: dict[str, str] = {}
        for name in ("state", "emits"):
            try:
                columns = {column.name: column.type for column in parse_ddl(getattr(self, name))}
            except DdlError as error:
                problems.append(f"{name}={getattr(self, name)!r}: {error}")
                continue
            kept = columns if name == "state" else kept
            problems += [f"{name} has {n!r}, a name of tidegate's own" for n in columns if n.startswith("_")]
        keys = {str(name).casefold() for name in self.by}
        if twice := sorted(name for name in kept if name.casefold() in keys):
            problems.append(f"state has {', '.join(twice)}, which by names: keys are kept anyway")
        if self.due is not None and kept.get(self.due, "timestamp") != "timestamp":
            problems.append(f"due={self.due!r} is {kept[self.due]}: expected a timestamp")
        if self.due is not None and kept and self.due not in kept:
            problems.append(f"due={self.due!r} is no column of state")
        return problems

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import types as T
        from pyspark.sql.pandas.types import to_arrow_schema

        rows, marks = inputs[0], context.watermarks
        need_keys(rows, self.by, "by", context)
        refuse_reserved_columns(rows, context)
        refuse_reserved_columns(rows, context, ["_at", "_row"])
        of, at = {field.name: field for field in rows.schema.fields}, "0L"
        if self._is_timed:
            at = time_micros_sql(rows, need_time(self.event_time, 0, context), f"operator {context.uid!r}")
        kept, given = self._stored_columns([of[name] for name in self.by]), _columns(self.emits)
        now = marks.now_micros if self._is_timed else None
        is_empty = is_known_empty(rows)
        due = self.due if now is not None and (marks.has_advanced or not is_empty) else None
        takes_late = LATE_OUTPUT in context.consumed_outputs
        work = KeyedKernel(
            self,
            list(of),
            [field.name for field in kept],
            Clock(context.clock, marks.now if self._is_timed else None, marks.before if self._is_timed else None),
            marks.before_micros if self._is_timed else None,
            to_arrow_schema(T.StructType(given), timezone="UTC"),
        )
        folded = run_kernel(
            select_sql(rows, [*map(quoted, of), f"{at} AS _at", *row_halves(rows)]),
            [*of.values(), T.StructField("_at", T.LongType()), *half_fields()],
            list(self.by),
            [
                StateLookup(
                    context.state(list(self.by)), kept, due, now if due is not None else None, time_can_advance=True
                )
            ],
            work,
            given,
            is_empty=is_empty,
            keeps_rows=False,
            is_current_column=IS_CURRENT if self.replaces_rows else None,
            wants_retractions=self.replaces_rows and context.wants_retractions,
            side_outputs={LATE_OUTPUT: list(of.values())} if takes_late else {},
        )
        context.count(folded.counts)
        return {"": folded.rows, **({"-": folded.retractions} if self.replaces_rows else {}), **folded.side_outputs}

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

        of = {field.name: field for field in inputs[0].schema.fields}
        kept, emitted = self._stored_columns([of[name] for name in self.by]), _columns(self.emits)
        like = no_rows(context.spark, StructType(kept))
        rows = recalled(context.state(list(self.by)), stored, like, context)
        names, columns = [field.name for field in kept], [field.name for field in emitted]
        shows, schema = self.shows, to_arrow_schema(StructType(emitted), timezone="UTC")
        numbers = [f"c{place}" for place in range(len(emitted))]

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for batch in batches:
                shown = shows(pa.Table.from_batches([batch.rename_columns(names)]))
                yield from shown.select(columns).cast(schema).rename_columns(numbers).to_batches()

        # Spark stumbles over dots in names.
        numbered = renamed(rows.select(*map(quoted, names)), [f"c{place}" for place in range(len(names))])
        made = StructType([StructField(name, field.dataType) for name, field in zip(numbers, emitted, strict=True)])
        return renamed(numbered.mapInArrow(work, made), columns)


def _columns(ddl: str) -> list[StructField]:
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return list(parsed.fields)


@dataclass(frozen=True)
class KeyedKernel(Kernel):
    """The kernel: it calls the operator's function, and checks what that returns."""

    is_users_own: ClassVar[bool] = True
    operator: KeyedOperator
    columns: Sequence[str]
    """The input's."""
    stored_columns: Sequence[str]
    """The keys, and the columns of the state."""
    clock: Clock
    late: int | None
    """Rows before this time are late. None: none are."""
    emits: pa.Schema
    """The columns of its rows."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        by = list(self.operator.by)
        late, counts = self._late(arrived)
        lost = arrived.filter(pa.array(late)).select(list(self.columns))
        rows = arrived.filter(pa.array(~late))
        rows = rows.take(pa.array(in_order(rows, _ranks(rows, by), [("_at", True), ("_row", True)])))
        before = stored[0].select([GROUP, *self.stored_columns])
        before = before.take(pa.array(order_of(before, by))).combine_chunks()
        step = self.operator.step(rows.select(list(self.columns)), before.select(list(self.stored_columns)), self.clock)
        if not isinstance(step, StepResult):
            raise self._wrong(f"step returned {type(step).__name__}", "a StepResult")
        puts = self._table(step.state, self.stored_columns, "state", before)
        gone = self._table(step.forgotten, by, "forgotten", before)
        changed = pa.concat_tables([puts.select(by), gone])
        keys = pa.concat_tables([table.select([GROUP, *by]) for table in (rows, before)])
        numbers, known = codes_of([changed, keys.select(by)], by)
        if len(np.unique(numbers)) < len(numbers):
            raise self._wrong("step returned a key twice", "each key once, in state or in forgotten")
        places = _places(known, numbers)
        if (places < 0).any():
            raise self._wrong("step returned a key that it did not get", "keys of the rows that arrived, or are stored")
        values = [name for name in self.stored_columns if name not in by]
        nothing = {name: pa.nulls(gone.num_rows, before.schema.field(name).type) for name in values}
        gone = pa.table({**{name: gone[name] for name in by}, **nothing})
        changes = pa.concat_tables([puts.select(list(self.stored_columns)), gone.select(list(self.stored_columns))])
        changes = changes.append_column(GROUP, keys[GROUP].take(pa.array(places)))
        changes = changes.append_column(DELETED, pa.array(np.repeat([False, True], [puts.num_rows, gone.num_rows])))
        shown = before.filter(pa.array(np.isin(known[rows.num_rows :], numbers)))
        return KernelResult([changes], list(self._emit_rows(step, puts, shown)), counts, {LATE_OUTPUT: lost})

    def _late(self, arrived: pa.Table) -> tuple[Any, dict[str, int]]:
        import numpy as np
        import pyarrow.compute as pc

        timeless = pc.is_null(arrived["_at"]).to_numpy(zero_copy_only=False)
        late = np.zeros(arrived.num_rows, bool)
        if self.late is not None:
            late = ~timeless & (integers(pc.fill_null(arrived["_at"], 0)) < self.late)
        return late | timeless, {"late": int(late.sum()), "without_time": int(timeless.sum())}

    def _emit_rows(self, step: StepResult, puts: pa.Table, shown: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows to emit. shown: what was stored of the keys that change, or go."""
        import numpy as np
        import pyarrow as pa

        if not self.operator.replaces_rows:
            if step.rows is not None:
                yield self._typed(step.rows, self.emits, "rows")
            return
        if step.rows is not None:
            raise self._wrong("step returned rows, and shows says what is shown", "one of both")
        for is_now, table in ((True, puts), (False, shown)):
            rows = self._typed(
                self.operator.shows(table.select(list(self.stored_columns))), self.emits, "what it shows", "shows"
            )
            if rows.num_rows > table.num_rows or self._has_key_twice(rows):
                said = f"shows made {rows.num_rows} rows of {table.num_rows} keys"
                raise self._wrong(said, "one row for each key, or none", "shows")
            yield rows.append_column(IS_CURRENT, pa.array(np.repeat(is_now, rows.num_rows)))

    def _has_key_twice(self, rows: pa.Table) -> bool:
        import numpy as np

        by = list(self.operator.by)
        if not set(by) <= set(rows.column_names):
            return False
        (numbers,) = codes_of([rows.select(by)], by)
        return len(np.unique(numbers)) < len(numbers)

    def _table(self, table: pa.Table | None, names: Sequence[str], what: str, like: pa.Table) -> pa.Table:
        """Return a table that the function has returned, with these columns and their types."""
        import pyarrow as pa

        schema = pa.schema([like.schema.field(name) for name in names])
        return schema.empty_table() if table is None else self._typed(table, schema, what)

    def _typed(self, table: pa.Table, schema: pa.Schema, what: str, method: str = "step") -> pa.Table:
        """Return the table's columns of these names, in these types. A text is no number, even if it looks like one.

        method: which one has made the table."""
        import pyarrow as pa

        if not isinstance(table, pa.Table):
            raise self._wrong(f"{what} is a {type(table).__name__}", "a table of pyarrow's", method)
        if missing := [name for name in schema.names if name not in table.column_names]:
            lacks = f"{what} lacks {', '.join(map(repr, missing))}"
            raise self._wrong(lacks, f"the columns {', '.join(schema.names)}", method)
        table = table.select(schema.names)
        texts = [f.name for f in table.schema if pa.types.is_string(f.type) and not _is_text(schema.field(f.name).type)]
        try:
            cast = None if texts else table.cast(schema).combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
            cast = None
        if cast is None:
            kinds = ", ".join(f"{field.name} {field.type}" for field in table.schema)
            raise self._wrong(f"{what} has other types: {kinds}", str(schema).replace("\n", ", "), method)
        return cast

    def _wrong(self, what: str, expected: str, method: str = "step") -> Invalid:
        name = type(self.operator).__name__
        return Invalid(
            f"{name}: {what}",
            expected=expected,
            help=f"correct {name}.{method}; tidegate.testing.OperatorContract finds such mistakes without Spark",
            reason="BAD_STEP",
        )


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _syntax_of(function: Callable[..., object], parameters: Json) -> str:
    """Return a hash of a function's syntax, and of the parameters that it uses: comments and layout do not count."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except OSError:
        return ""
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    values = [f"{name}={text}" for name, text in parameters.items() if name in used]
    return sha256("\n".join([ast.dump(tree), *values]).encode())[:16]


def _ranks(rows: pa.Table, by: Sequence[str]) -> Any:
    """Return a number for each row, in the order of keys, equal where they are."""
    import numpy as np

    places, starts = order_and_firsts(rows, by)
    begins = np.zeros(rows.num_rows, np.int64)
    begins[starts[1:]] = 1
    ranks = np.empty(rows.num_rows, np.int64)
    ranks[places] = np.cumsum(begins)
    return ranks


def _places(known: Any, sought: Any) -> Any:
    """Return where each of some numbers is among others; -1: it is not."""
    import numpy as np

    if not len(known):
        return np.full(len(sought), -1)
    order = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known[order], sought), len(known) - 1)
    return np.where(known[order][at] == sought, order[at], -1)
