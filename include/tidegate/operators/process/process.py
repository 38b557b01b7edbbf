"""Any other computation per key: a Python function over the key's new rows, what it remembers, and its timers.

    batch ──keys──┐
    timers ─due───┴▶ wanted keys ──▶ their state and timers ─┐
    batch ──────────────────────────────────────────────────┴▶ the function, once per key ──▶ staged, then read for
                                                                                     rows · changed state · timers

What the function gives is staged once and read back for all three, so that they belong together even if the function
gives something else each time. Runs in Spark's Python workers through Arrow; nothing comes to the driver.

Rows come as soon as they are there, and then the timers that the watermark has passed. `in_order`: rows wait until the
watermark has passed them, too, and everything comes in order of event time: so nothing depends on how input was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tidegate.delta import from_spark
from tidegate.delta.arrow_types import arrow_schema
from tidegate.errors import Invalid
from tidegate.operators.base import Operator, OperatorContext
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.inputs import key_problems, need_columns, need_keys, recalled, refuse_own
from tidegate.operators.join.time_bounds import LATE, need_time
from tidegate.operators.process.worker import AT, ROW, Work
from tidegate.operators.waiting import WAITING, ready_rows
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.sources.ddl import Column as Field
from tidegate.sources.ddl import DdlError, parse_ddl
from tidegate.sources.files.reading import empty_frame
from tidegate.spark.event_time import time_problems
from tidegate.spark.row_id import row_id

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData

    from tidegate.operators.base import OperatorContext
    from tidegate.state.keyed import KeyedState
    from tidegate.state.record import Ttl

__all__ = ["Process"]


TIMERS = "timers"
TIMERS_TYPE = "array<struct<kind:string,name:string,at:timestamp>>"
TAKEN = (TIMERS, "due_event", "due_clock", "_timers")
"""Columns of the timers' state."""
METHODS = ("clear", "as_dict")


class Process(Operator):
    """`function(key, rows, state, timers)` for each key that has new rows or a timer that is due."""

    kind: ClassVar[str] = "process"
    renews: ClassVar[bool] = True

    def __init__(
        self,
        by: Sequence[str],
        function: Callable[..., Any],
        output: str,
        state: str,
        order_by: Sequence[str] = (),
        *,
        in_order: bool = False,
        event_time: str | None = None,
        expiry: Expiry = NEVER,
    ) -> None:
        self.by = listed(by)
        self.function = function
        self.output = output
        self.state = state
        self.order_by = listed(order_by)
        self.in_order = in_order
        self.event_time = event_time
        self.expiry = expiry

    @property
    def parts(self) -> tuple[str, ...]:
        return ("", TIMERS, WAITING) if self.in_order else ("", TIMERS)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (LATE,) if self.in_order else ()

    @property
    def possible_outputs(self) -> Mapping[str, str]:
        return {LATE: "in_order=True"}

    @property
    def goes_by(self) -> tuple[str | None, ...]:
        return (self.event_time,) if self.in_order else ()

    @property
    def uses_event_time(self) -> bool:
        return True

    def describe(self) -> Json:
        meaning: Json = {"by": self.by, "output": self.output, "state": self.state, "order_by": self.order_by}
        waits = {"in_order": True, "event_time": self.event_time} if self.in_order else {}
        return meaning | waits | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        return {"by": self.by, "in order of event time": self.in_order}

    def event_time_problems(self, columns: Sequence[Sequence[str]]) -> list[str]:
        return time_problems(columns[0], self.event_time) if self.in_order else []

    def code(self) -> object:
        return self.function

    def problems(self) -> list[str]:
        problems = key_problems(self.by)
        if not callable(self.function):
            problems.append(f"what it calls is a {type(self.function).__name__}, not a function")
        problems += [
            f"by names {name!r}, as its timers do: rename it in a stage before" for name in self.by if name in TAKEN
        ]
        problems += self.expiry.problems()
        for parameter, ddl in (("output", self.output), ("state", self.state)):
            try:
                columns = parse_ddl(ddl)
            except DdlError as error:
                problems.append(f"{parameter}={ddl!r}: {error}")
                continue
            names = [column.name for column in columns]
            problems += [
                f"{parameter}: {name!r} begins with '_', which is tidegate's" for name in names if name[0] == "_"
            ]
            if parameter == "state":
                problems += [
                    f"state: {name!r} is what state.{name}() is: rename it" for name in names if name in METHODS
                ]
                problems += [f"state: {name!r} is a key, which is kept anyway" for name in names if name in self.by]
        return problems

    def interval_problems(self) -> list[str]:
        return self.expiry.interval_problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        rows = inputs[0]
        self._refuse_unfit(rows, context)
        late = {}
        if self.in_order:
            ready, late[LATE] = ready_rows(rows, self.by, need_time(self.event_time, 0, context), context)
        else:
            ready = rows.withColumns({ROW: row_id(rows), AT: F.lit(None).cast("long")})
        rows = context.persist(ready)
        results = context.stage(self._call_function(rows, self._keys_to_call(rows, context), context))
        self._put(results, context)
        fields = [f"_out.{quoted(column.name)} AS {quoted(column.name)}" for column in parse_ddl(self.output)]
        return {"": results.where("_kind = 0").selectExpr(*fields), **late}

    def ttl(self, part: str, context: OperatorContext) -> Ttl | None:
        return None if part else self.expiry.ttl(context)

    def _states(self, context: OperatorContext) -> KeyedState:
        return context.state(self.by, ttl=self.ttl("", context))

    def _put(self, results: DataFrame, context: OperatorContext) -> None:
        """Store the function's changes in the two states."""
        keys = [f"_key.{quoted(key)} AS {quoted(key)}" for key in self.by]
        values = [f"_state.{quoted(column.name)} AS {quoted(column.name)}" for column in parse_ddl(self.state)]
        states, timers = self._states(context), context.state(self.by, TIMERS)
        changed = results.where("_kind = 1").selectExpr(*keys, *values, "_deleted")
        states.put(changed, deletes=True)
        first = "array_min(transform(filter(_timers, t -> t.kind = '{kind}'), t -> t.at)) AS {name}"
        due = [first.format(kind=kind, name=f"due_{kind}") for kind in ("event", "clock")]
        timed = results.where("_kind = 2").selectExpr(*keys, "_timers AS timers", *due, "_deleted")
        timers.put(timed, deletes=True)

    def _keys_to_call(self, rows: DataFrame, context: OperatorContext) -> DataFrame:
        """Return every key that the function is called for, with its state and timers."""
        from pyspark.sql import functions as F

        states, timers = self._states(context), context.state(self.by, TIMERS)
        keys = [quoted(key) for key in self.by]
        key_pairs = zip(keys, self.by, strict=True)
        called_keys = rows.select(*keys)
        if not context.waits and (set_timers := timers.rows()) is not None:
            called_keys = called_keys.unionByName(set_timers.where(_due(context)).select(*keys))
        # Aliases make columns of its own: `rows` meets them again, and Spark must tell them apart.
        called_keys = context.persist(
            called_keys.distinct().select(*(F.col(key).alias(name) for key, name in key_pairs))
        )
        declared = parse_ddl(self.state)
        stored = states.of(called_keys)
        if stored is not None:
            kinds = dict(called_keys.dtypes)
            like = empty_frame(context.spark, [*(Field(key, kinds[key]) for key in self.by), *declared])
            stored = recalled(states, stored, like, context)
        with_state = self._join_state(called_keys, stored, {column.name: column.type for column in declared})
        found_timers = timers.of(called_keys)
        if found_timers is not None:
            found_timers = found_timers.withColumnRenamed("timers", "_timers")
        return self._join_state(with_state, found_timers, {"_timers": TIMERS_TYPE})

    def _join_state(self, keys: DataFrame, stored: DataFrame | None, fields: Mapping[str, str]) -> DataFrame:
        """Return each key with its stored fields, null if there are none."""
        from pyspark.sql import functions as F

        if stored is None:
            return keys.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in fields.items()))
        aliases = {key: f"_key {place}" for place, key in enumerate(self.by)}
        on = " AND ".join(f"{quoted(key)} <=> {quoted(name)}" for key, name in aliases.items())
        stored = stored.select(*(F.col(quoted(key)).alias(name) for key, name in aliases.items()), *map(quoted, fields))
        return keys.join(stored, F.expr(on), "left").drop(*aliases.values())

    def _call_function(self, rows: DataFrame, with_state: DataFrame, context: OperatorContext) -> DataFrame:
        output, state = parse_ddl(self.output), parse_ddl(self.state)
        types = {name: kind for name, kind in rows.dtypes if name in self.by}
        columns = [
            Field("_kind", "int"),
            Field("_out", _struct(output)),
            Field("_key", _struct([Field(key, types[key]) for key in self.by])),
            Field("_state", _struct(state)),
            Field("_timers", TIMERS_TYPE),
            Field("_deleted", "boolean"),
        ]
        shape = empty_frame(context.spark, columns)
        schema = from_spark(msgspec.json.decode(shape.schema.json()))
        work = Work(
            uid=context.uid,
            function=self.function,
            schema=arrow_schema(schema, [column.name for column in columns]),
            rows=rows.columns,
            held=with_state.columns,
            keys=self.by,
            values=[column.name for column in state],
            order_by=self.order_by or [name for name in rows.columns if name == context.event_time],
            clock=context.clock,
            waits=context.waits,
            watermark=context.watermarks.now,
            reached=context.watermarks.reached,
            ends=context.watermarks.ends,
            alone=context.watermarks.alone,
        )
        grouped = _numbered(rows, self.by).cogroup(_numbered(with_state, self.by))
        # Spark counts the arguments, that of a method's own object too.
        return grouped.applyInArrow(lambda rows, state_rows: work(rows, state_rows), shape.schema)

    def _refuse_unfit(self, rows: DataFrame, context: OperatorContext) -> None:
        need_keys(rows, self.by, "by", context)
        need_columns(rows, self.order_by, "order_by", context)
        refuse_own(rows, context)
        kinds = {name: rows.schema[name].dataType.simpleString() for name in self.order_by}
        if unfit := [f"{name!r} is {kind}" for name, kind in kinds.items() if "<" in kind or kind == "variant"]:
            raise Invalid(
                f"operator {context.uid!r}: order_by names what has no order: {', '.join(unfit)}",
                expected="numbers, texts, times or truth values",
                help="make a column of it in a stage before",
                reason="BAD_ORDER",
            )


def _numbered(frame: DataFrame, by: Sequence[str]) -> GroupedData:
    """Group rows by their keys under numbers as names: Spark stumbles over dots in names on the way to Python."""
    places = [f"c{frame.columns.index(name)}" for name in by]
    return frame.toDF(*(f"c{place}" for place in range(len(frame.columns)))).groupBy(*places)


def _due(context: OperatorContext) -> Column:
    """Return the condition that a key's timers are due."""
    from pyspark.sql import functions as F

    due = F.col("due_clock") <= F.lit(context.clock)
    mark = context.watermarks.now
    return due if mark is None else due | (F.col("due_event") <= F.lit(mark))


def _struct(columns: Sequence[Field]) -> str:
    return f"struct<{', '.join(f'{quoted(column.name)}: {column.type}' for column in columns)}>"
