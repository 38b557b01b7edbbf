"""Adds running aggregates, values of earlier rows, and row numbers to each row, per key, in order of event time.

    waiting   rows until the watermark has passed them, because an earlier one may still arrive
    last      the last rows of each key, in a ring buffer with as many places as the frame or `lag` looks back; each row
              with its number, and with the running values up to it

Emitted rows are final. Ties in time are broken by the rows' content, so the numbers do not depend on how the input was
cut into checkpoints. With `state_ttl`, all rows of a key expire together: every new row rewrites the key's last rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.errors import Invalid
from tidegate.operators.base import Operator
from tidegate.operators.calls import parse_call
from tidegate.operators.context import OperatorContext
from tidegate.operators.event_time_buffer import WAITING, WaitingStream, computed_fields, in_order_of
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.functions import (
    Function,
    clashing_columns,
    merges_of,
    parse,
    partials_of_rows,
    project_in_workers,
    row_partials,
)
from tidegate.operators.inputs import Types, key_problems, need_keys, refuse_reserved_columns, types_of
from tidegate.operators.join.time_bounds import LATE_OUTPUT, need_time
from tidegate.operators.kernels.over import NUMBER, PLACE, RowsInOrder, of_one_row
from tidegate.operators.spec import ANY_INTERVAL, Growth, OperatorSpec, OutputSpec, StateSpec, joined
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import select_sql
from tidegate.state.kernel_driver import StateLookup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

__all__ = ["OverRows"]

LAST: Final = "last"
MAX_ROWS: Final = 10_000
"""The number of rows that a frame or `lag` may look back. Each of them is a row of state."""


@dataclass(frozen=True)
class EarlierValue:
    """The value of an expression in an earlier row of the key."""

    name: str
    argument: str
    offset: int

    @classmethod
    def parse(cls, name: str, text: str) -> EarlierValue | str | None:
        """Return a declared lag, or what is wrong with it, or None if it is no lag."""
        if not re.match(r"\s*lag\s*\(", text, re.IGNORECASE):
            return None
        call = parse_call(text)
        if isinstance(call, str):
            return f"{name}={text!r} {call}"
        offset = call.arguments[1] if len(call.arguments) == 2 else "1"
        is_valid = len(call.arguments) in (1, 2) and re.fullmatch(r"[1-9]\d{0,4}", offset)
        if not is_valid or call.distinct or call.where:
            return f"{name}={text!r}: write lag(amount), or lag(amount, 3) for the third row before"
        if int(offset) > MAX_ROWS:
            return f"{name}={text!r}: it may look back {MAX_ROWS} rows at most, each of which is stored"
        return cls(name, call.arguments[0], int(offset))


class OverRows(Operator):
    """`functions`: for each new column, an aggregate of the rows up to this one, `lag(…)` or `row_number()`.

    rows: the number of rows to aggregate, this one included. None: all rows of the key so far.
    """

    kind: ClassVar[str] = "over"

    def __init__(
        self,
        by: Sequence[str],
        functions: Mapping[str, str],
        rows: int | None = None,
        event_time: str | None = None,
        expiry: Expiry = NEVER,
    ) -> None:
        self.by = listed(by)
        self.functions = dict(functions)
        self.rows = rows
        self.event_time = event_time
        self.expiry = expiry

    def spec(self) -> OperatorSpec:
        return OperatorSpec(
            identity=self.by,
            event_time=in_order_of(self.event_time),
            output=OutputSpec(others=[LATE_OUTPUT], results=self._texts),
            states=[StateSpec(WAITING), StateSpec(LAST, self.expiry)],
            growth=Growth(
                keeps=f"the last rows of each {joined(self.by)}" if self.by and self.expiry.is_never else None
            ),
            intervals=ANY_INTERVAL,
        )

    @property
    def _texts(self) -> Mapping[str, str]:
        """The declared results."""
        return {name: text for name, text in self.functions.items() if isinstance(text, str)}

    def describe(self) -> Json:
        described = {"by": self.by, "functions": self.functions, "rows": self.rows, "event_time": self.event_time}
        return described | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        meaning: Json = {"by": self.by, "rows": self.rows, "rows that are kept": self._rows_stored_per_key}
        meaning["event_time"] = [self.event_time]
        return meaning | {name: " ".join(text.split()) for name, text in self._texts.items()}

    def problems(self) -> list[str]:
        problems = key_problems(self.by) if self.by else []
        if not self.functions:
            problems.append('it computes nothing: name at least one, such as total="sum(amount)", before="lag(amount)"')
        if self.rows is not None and (type(self.rows) is not int or not 1 <= self.rows <= MAX_ROWS):
            problems.append(f"rows={self.rows!r}: expected a number of rows, this one included, from 1 to {MAX_ROWS}")
        for name, text in self.functions.items():
            if name in self.by or name.startswith("_"):
                problems.append(f"{name!r} is a key or one of tidegate's own names, and a result")
            problem = self._problem(name, text)
            if problem is not None:
                problems.append(problem)
        if not problems:
            aggregates = {function.name for function in self._aggregates}
            used_as = {}
            for name in self.functions:
                if name not in aggregates:
                    used_as[name.casefold()] = f"result {name!r}"
            problems += clashing_columns(self._aggregates, used_as)
        return problems + self.expiry.problems()

    def _problem(self, name: str, text: object) -> str | None:
        if _is_number(text):
            return None
        if isinstance(text, str):
            lag = EarlierValue.parse(name, text)
            if lag is not None:
                return lag if isinstance(lag, str) else None
        function = parse(name, text)
        if isinstance(function, str):
            return function
        if merges_of([function]) is None or partials_of_rows(function) is None:
            return (
                f"{name}={text!r} cannot be a running value: these can: sum, count, count_if, avg, min and max of an "
                "expression, lag(…) and row_number()"
            )
        return None

    # -- the declaration -------------------------------------------------------------------------------

    @cached_property
    def _lags(self) -> list[EarlierValue]:
        parsed = (EarlierValue.parse(name, text) for name, text in self.functions.items())
        return [lag for lag in parsed if isinstance(lag, EarlierValue)]

    @cached_property
    def _aggregates(self) -> list[Function]:
        lag_names = {lag.name for lag in self._lags}
        functions = []
        for name, text in self.functions.items():
            if name in lag_names or _is_number(text):
                continue
            function = parse(name, text)
            if isinstance(function, Function):
                functions.append(function)
        return functions

    @property
    def _rows_stored_per_key(self) -> int:
        """The number of rows of a key that are stored: at least one, with its number and the running values."""
        return max([1, (self.rows or 1) - 1, *(lag.offset for lag in self._lags)])

    # -- one checkpoint --------------------------------------------------------------------------------

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows = inputs[0]
        need_keys(rows, self.by, "by", context)
        refuse_reserved_columns(rows, context)
        names = [PLACE, NUMBER, *map(of_one_row, self.functions), *map(of_one_row, self._ops)]
        refuse_reserved_columns(rows, context, names)
        self._refuse_name_clash(rows, context)
        if self._aggregates:
            types = types_of(self._aggregates, rows, context)
        else:
            types = Types({}, {})
        aggregates = [function.typed(types.results[function.name]) for function in self._aggregates]
        texts = {of_one_row(lag.name): lag.argument for lag in self._lags} | self._partials(aggregates, types.partials)
        computed = computed_fields(rows, texts, context)
        waiting = WaitingStream(rows, self.by, need_time(self.event_time, 0, context), context, texts, computed)
        names_of_partials = {of_one_row(name): name for name in self._ops}
        partials = []
        for field in computed:
            if field.name in names_of_partials:
                partials.append(_renamed(field, names_of_partials[field.name]))
        kernel = RowsInOrder(
            self.by,
            waiting.kernel(),
            [field.name for field in waiting.values],
            self._ops,
            {lag.name: lag.offset for lag in self._lags},
            [name for name, text in self.functions.items() if _is_number(text)],
            self.rows,
            self._rows_stored_per_key,
            together=not self.expiry.is_never,
        )
        last = self._last_rows(waiting, kernel, partials, texts)
        final_fields = self._final_fields(waiting, kernel)
        kernel_fields = [*final_fields, *partials]
        projection = project_in_workers(
            aggregates, types.results, [field.name for field in final_fields], kernel_fields
        )
        if projection is not None:
            fields = {field.name: field for field in projection.fields}
            output_fields = [fields[name] for name in (*rows.columns, *self.functions)]
            return waiting.run_kernel(kernel, [last], output_fields, projection.function)
        streams = waiting.run_kernel(kernel, [last], kernel_fields)
        results = {}
        for function in aggregates:
            results[function.name] = function.result(types.results[function.name])
        columns = (results.get(name, quoted(name)) for name in self.functions)
        return streams | {"": select_sql(streams[""], [*map(quoted, rows.columns), *columns])}

    def _last_rows(
        self, waiting: WaitingStream, kernel: RowsInOrder, partials: Sequence[StructField], texts: Mapping[str, str]
    ) -> StateLookup:
        """Return the lookup of the last rows of each key."""
        from pyspark.sql import types as T

        one_row_fields = []
        for field in waiting.computed_fields:
            if field.name in kernel.one_row_columns:
                one_row_fields.append(field)
        columns = [
            *waiting.keys,
            T.StructField(PLACE, T.IntegerType()),
            *waiting.values,
            T.StructField("_at", T.LongType()),
            T.StructField("_row", T.StringType()),
            *partials,
            T.StructField(NUMBER, T.LongType()),
            *one_row_fields,
        ]
        state = waiting.context.state([*self.by, PLACE], LAST, grouped_by=self.by)
        computed = {field.name: texts[field.name] for field in one_row_fields}
        return StateLookup(state, columns, also_keys_of=0, computed=computed)

    def _final_fields(self, waiting: WaitingStream, kernel: RowsInOrder) -> list[StructField]:
        """Return the columns of the kernel's rows that are emitted unchanged: all except partial values."""
        from pyspark.sql import types as T

        fields = {field.name: field for field in waiting.computed_fields}
        numbers = [T.StructField(name, T.LongType()) for name in kernel.numbers]
        lags = [_renamed(fields[of_one_row(name)], name) for name in kernel.lags]
        return [*waiting.fields, *numbers, *lags]

    def _refuse_name_clash(self, rows: DataFrame, context: OperatorContext) -> None:
        """Raise Invalid if the input has a column with the name of a result, or of a partial value."""
        results = {name.casefold(): name for name in self.functions}
        for function in self._aggregates:
            for column in function.columns:
                results[column.casefold()] = function.name
        for column in rows.columns:
            result = results.get(column.casefold())
            if result is not None:
                raise Invalid(
                    f"operator {context.uid!r}: its input has a column {column!r} already, which result {result!r} "
                    "needs",
                    expected=f"results with other names than the columns of its input: {', '.join(rows.columns)}",
                    help=f"give {result!r} another name",
                    reason="RESERVED_COLUMN",
                )

    @cached_property
    def _ops(self) -> dict[str, str]:
        """The columns of partial values, each with how two are merged."""
        return merges_of(self._aggregates) or {}

    def _partials(self, aggregates: Sequence[Function], types: Mapping[str, str]) -> dict[str, str]:
        """Return the SQL of each partial value of a single row, in its type, by its column in the kernel's batch."""
        partials = row_partials(aggregates, types)
        if partials is None:
            return {}
        texts, _ = partials
        return {of_one_row(name): text for name, text in texts.items()}


def _renamed(field: StructField, name: str) -> StructField:
    from pyspark.sql.types import StructField

    return StructField(name, field.dataType)


def _is_number(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(r"\s*row_number\s*\(\s*\)\s*", text, re.IGNORECASE) is not None
