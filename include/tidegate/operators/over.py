"""Each row with what is known of its key's rows up to it, in the order of event time: running sums, the row before it …

    waiting   rows until the watermark has passed them: an earlier one may still come
    last      of each key the last rows, in as many places as the frame or `lag` looks back, one overwriting the other;
              each with its number, and with the running values up to it

A row comes out once, for good. Rows of the same time are told apart by all that they hold, so the numbers are the same
however the input was cut into checkpoints. With `state_ttl` all that is known of a key is forgotten at once: every new
row writes the key's last rows anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.errors import Invalid
from tidegate.operators.base import OperatorContext
from tidegate.operators.calls import parse_call
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.functions import Function, merges_of, parse, partials_of_rows
from tidegate.operators.inputs import Types, analysed, key_problems, need_keys, recalled, refuse_own, types_of
from tidegate.operators.join.time_bounds import LATE, need_time
from tidegate.operators.waiting import WAITING, InOrderOperator, ready_rows
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidegate.state.keyed import KeyedState
    from tidegate.state.record import Ttl

__all__ = ["OverRows"]

LAST: Final = "last"
PLACE, NUMBER, OLD, CARRIED = "_place", "_number", "_old", "_carried"
MOST_ROWS: Final = 10_000
"""The most rows that a frame or `lag` may look back: each of them is a row of state."""


@dataclass(frozen=True)
class EarlierValue:
    """The value of an expression in an earlier row of the key."""

    name: str
    argument: str
    back: int

    @classmethod
    def parse(cls, name: str, text: str) -> EarlierValue | str | None:
        """Return a declared lag, or what is wrong with it. None: it is none."""
        call = parse_call(text) if re.match(r"\s*lag\s*\(", text, re.IGNORECASE) else None
        if call is None:
            return None
        if isinstance(call, str):
            return f"{name}={text!r} {call}"
        back = call.arguments[1] if len(call.arguments) == 2 else "1"
        if len(call.arguments) not in (1, 2) or call.distinct or call.where or not re.fullmatch(r"[1-9]\d{0,4}", back):
            return f"{name}={text!r}: write lag(amount), or lag(amount, 3) for the third row before"
        if int(back) > MOST_ROWS:
            return f"{name}={text!r}: it may look back {MOST_ROWS} rows, each of which is kept"
        return cls(name, call.arguments[0], int(back))


class OverRows(InOrderOperator):
    """`functions`: new column → an aggregate of the rows up to this one, `lag(…)` or `row_number()`.

    rows: aggregate only that many rows, this one included. None: all rows of the key so far.
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

    @property
    def told_by(self) -> list[str]:
        return self.by

    @property
    def parts(self) -> tuple[str, ...]:
        return (WAITING, LAST)

    @property
    def keeps_for_ever(self) -> str | None:
        return f"the last rows of each {', '.join(self.by)}" if self.by and self.expiry == NEVER else None

    def ttl(self, part: str, context: OperatorContext) -> Ttl | None:
        return self.expiry.ttl(context) if part == LAST else None

    @property
    def results(self) -> Mapping[str, str]:
        return {name: text for name, text in self.functions.items() if isinstance(text, str)}

    def describe(self) -> Json:
        described = {"by": self.by, "functions": self.functions, "rows": self.rows, "event_time": self.event_time}
        return described | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        meaning: Json = {"by": self.by, "rows": self.rows, "rows that are kept": self._looks_back}
        meaning["event_time"] = [self.event_time]
        return meaning | {name: " ".join(text.split()) for name, text in self.results.items()}

    def problems(self) -> list[str]:
        problems = key_problems(self.by) if self.by else []
        if not self.functions:
            problems.append('it computes nothing: name at least one, such as total="sum(amount)", before="lag(amount)"')
        if self.rows is not None and (type(self.rows) is not int or not 1 <= self.rows <= MOST_ROWS):
            problems.append(f"rows={self.rows!r}: how many rows are aggregated, this one included, 1 to {MOST_ROWS}")
        for name, text in self.functions.items():
            if name in self.by or name.startswith("_"):
                problems.append(f"{name!r} is a key or one of tidegate's own names, and a result")
            problem = self._problem(name, text)
            problems += [problem] if problem is not None else []
        return problems + self.expiry.problems()

    def _problem(self, name: str, text: object) -> str | None:
        if isinstance(text, str) and (_is_number(text) or (lag := EarlierValue.parse(name, text)) is not None):
            return None if _is_number(text) or isinstance(lag, EarlierValue) else lag
        function = parse(name, text)
        if isinstance(function, str):
            return function
        if merges_of([function]) is None or partials_of_rows(function) is None:
            return (
                f"{name}={text!r} cannot run along rows: sum, count, count_if, avg, min and max of an expression can, "
                "lag(…) and row_number(), too"
            )
        return None

    # -- what is declared ------------------------------------------------------------------------------

    @cached_property
    def _lags(self) -> list[EarlierValue]:
        parsed = (EarlierValue.parse(name, text) for name, text in self.functions.items())
        return [lag for lag in parsed if isinstance(lag, EarlierValue)]

    @cached_property
    def _aggregates(self) -> list[Function]:
        others = {lag.name for lag in self._lags} | {name for name, text in self.functions.items() if _is_number(text)}
        parsed = (parse(name, text) for name, text in self.functions.items() if name not in others)
        return [function for function in parsed if isinstance(function, Function)]

    @property
    def _looks_back(self) -> int:
        """The number of rows of a key that are kept: at least one, which carries the number and the running values."""
        return max([1, (self.rows or 1) - 1, *(lag.back for lag in self._lags)])

    # -- one checkpoint --------------------------------------------------------------------------------

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:

        rows = inputs[0]
        need_keys(rows, self.by, "by", context)
        refuse_own(rows, context)
        refuse_own(rows, context, [PLACE, NUMBER, OLD, CARRIED, *(f"_lag_{n}" for n in range(len(self._lags)))])
        self._refuse_taken(rows, context)
        ready, late = ready_rows(rows, self.by, need_time(self.event_time, 0, context), context)
        ready = context.persist(ready)
        types = self._types(rows, context)
        aggregates = [function.typed(types.results[function.name]) for function in self._aggregates]
        partials = self._partials(aggregates, types.partials)
        numbered = context.persist(self._along(ready, rows, aggregates, partials, context))
        self._put(numbered, rows, list(partials), context)
        results = {function.name: function.result(types.results[function.name]) for function in aggregates}
        results |= {name: f"{NUMBER} AS {quoted(name)}" for name, text in self.functions.items() if _is_number(text)}
        results |= {lag.name: f"_lag_{place} AS {quoted(lag.name)}" for place, lag in enumerate(self._lags)}
        columns = [*map(quoted, rows.columns), *(results[name] for name in self.functions)]
        return {"": numbered.where(f"NOT {OLD}").selectExpr(*columns), LATE: late}

    def _refuse_taken(self, rows: DataFrame, context: OperatorContext) -> None:
        """Raise Invalid if the input has a column of a result's name, or of one that a result is computed from."""
        results = {name.casefold(): name for name in self.functions}
        results |= {column.casefold(): function.name for function in self._aggregates for column in function.columns}
        for column in rows.columns:
            if (result := results.get(column.casefold())) is not None:
                raise Invalid(
                    f"operator {context.uid!r}: its input has a column {column!r} already, where result {result!r} "
                    "would be",
                    expected=f"results beside the columns of its input: {', '.join(rows.columns)}",
                    help=f"give {result!r} another name",
                    reason="RESERVED_COLUMN",
                )

    def _types(self, rows: DataFrame, context: OperatorContext) -> Types:
        """Return the types of the aggregates. Raise Invalid if an expression is not one of the input's columns."""
        earlier = [lag.argument for lag in self._lags]
        analysed(lambda: rows.selectExpr(*earlier).schema, rows, context)
        return types_of(self._aggregates, rows, context) if self._aggregates else Types({}, {})

    def _partials(self, aggregates: Sequence[Function], types: Mapping[str, str]) -> dict[str, str]:
        """Return the SQL of each partial value of a single row, by column, in its type."""
        found: dict[str, str] = {}
        for function in aggregates:
            sql = {name: types[text] for name, text in function.partials_sql.items()}
            found |= {name: f"CAST({text} AS {sql[name]})" for name, text in (partials_of_rows(function) or {}).items()}
        return found

    def _along(
        self,
        ready: DataFrame,
        rows: DataFrame,
        aggregates: Sequence[Function],
        partials: Mapping[str, str],
        context: OperatorContext,
    ) -> DataFrame:
        """Return the new rows, and the stored ones of their keys (`_old`), with numbers, running values and lags."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        keys = list(map(quoted, self.by))
        fresh = ready.withColumns({name: F.expr(text) for name, text in partials.items()})
        fresh = fresh.withColumns({NUMBER: F.lit(None).cast("long"), OLD: F.lit(False)})
        both, state = fresh, self._last(context)
        stored = state.of(ready.select(*keys).distinct(), on=self.by) if keys else state.rows()
        if stored is not None:
            like = fresh.drop(OLD).withColumn(PLACE, F.lit(0))
            kept = recalled(state, stored, like, context).drop(PLACE).withColumn(OLD, F.lit(True))
            if self.rows is not None:  # the frame is made of rows
                kept = kept.withColumns({name: F.expr(text) for name, text in partials.items()})
            both = fresh.unionByName(kept)
        by_time = Window.partitionBy(*keys).orderBy("_at", "_row", F.col(NUMBER).asc_nulls_last())
        so_far = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        first = F.max(F.when(F.col(OLD), F.col(NUMBER))).over(Window.partitionBy(*keys))
        both = both.withColumn(CARRIED, F.coalesce(first, F.lit(0)))
        ahead = F.sum((~F.col(OLD)).cast("long")).over(so_far)
        lags = {f"_lag_{n}": F.lag(F.expr(lag.argument), lag.back).over(by_time) for n, lag in enumerate(self._lags)}
        both = both.withColumns(lags)
        if self.rows is None:  # the last of the stored rows stands for all before it
            carries = F.expr(f"NOT {OLD} OR {NUMBER} = {CARRIED}")
            both = both.withColumns({name: F.when(carries, F.col(quoted(name))) for name in partials})
        frame = so_far if self.rows is None else by_time.rowsBetween(1 - self.rows, 0)
        kinds = {name: both.schema[name].dataType for name in partials}
        ops = merges_of(aggregates) or {}
        running: dict[str, Column] = {
            name: F.expr(f"{op}({quoted(name)})").over(frame).cast(kinds[name]) for name, op in ops.items()
        }
        both = both.withColumns(running)
        return both.withColumn(NUMBER, F.when(F.col(OLD), F.col(NUMBER)).otherwise(F.col(CARRIED) + ahead))

    def _last(self, context: OperatorContext) -> KeyedState:
        return context.state([*self.by, PLACE], LAST, grouped_by=self.by, ttl=self.ttl(LAST, context))

    def _put(self, numbered: DataFrame, rows: DataFrame, partials: Sequence[str], context: OperatorContext) -> None:
        """Store the last rows of each key, each in the place of the one that is that many rows before it."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        keys, back = list(map(quoted, self.by)), self._looks_back
        newest = F.max(F.when(~F.col(OLD), F.col(NUMBER))).over(Window.partitionBy(*keys))
        again = f"NOT {OLD} AND " if self.expiry == NEVER else ""  # else all of a key's rows expire together
        kept = numbered.withColumn(CARRIED, newest).where(f"{again}{NUMBER} > {CARRIED} - {back}")
        values = [quoted(name) for name in rows.columns if name not in self.by]
        place = f"CAST({NUMBER} % {back} AS INT) AS {PLACE}"
        columns = [*keys, place, *values, "_at", "_row", *map(quoted, partials), NUMBER]
        self._last(context).put(kept.selectExpr(*columns))


def _is_number(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(r"\s*row_number\s*\(\s*\)\s*", text, re.IGNORECASE) is not None
