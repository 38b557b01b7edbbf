"""Corrects rows on their way out of quarantine: by constants, or by SQL over each row as it was quarantined.

An expression that fails for a row keeps that row in quarantine, and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.gates.judging.caught import text_or_null
from tidegate.gates.quarantine import columns as q
from tidegate.records.names import quoted
from tidegate.records.records import Request
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

__all__ = ["CANNOT", "FLAW", "REQUEST", "Corrections"]

REQUEST = f"{q.OWN_PREFIX}request"
"""The number of the request that selects a row."""
FLAW = f"{q.OWN_PREFIX}flaw"
"""Why a row cannot be corrected, or null."""
_VALUE = f"{q.OWN_PREFIX}value"
CANNOT = "cannot be corrected"
"""Reasons about corrections that fail begin with the column, and then this."""
_SQL_SHOWN = 200


class Corrections:
    """The corrections of some requests, for rows of a stream with these columns."""

    def __init__(self, requests: Sequence[Request], fields: Sequence[StructField]) -> None:
        self.requests = [request for request in requests if request.corrects]
        self._by_sql = [request for request in self.requests if request.correct_sql]
        self._fields = {field.name: field for field in fields}
        self._invalid: set[tuple[int, str]] = set()
        """Expressions that Spark cannot resolve, as request and column."""
        self.helpers: list[DataFrame] = []
        """Frames that are cached in Spark. The caller releases them."""

    def computed(self, rows: DataFrame) -> DataFrame:
        """Return the rows with columns for what the expressions yield, and for why a row cannot be corrected.

        Whether an expression fails for a row is found in one pass, and its value in the next, which leaves out these
        rows: within one pass, Spark may compute an expression before the condition that guards it.
        """
        from pyspark.sql import functions as f

        if not self._by_sql:
            return rows
        flaws: list[Column] = [f.lit(None).cast("string")]
        for request in self._by_sql:
            flaws += self._flaws(rows, request)
        checked = materialize(rows.withColumn(FLAW, f.coalesce(*flaws)))
        self.helpers.append(checked)
        is_sound = f.col(FLAW).isNull()
        values = {}
        for number, name in enumerate(self._computed_columns):
            branches = f.when(f.lit(False), f.lit(None))
            for request in self._by_sql:
                if name in request.correct_sql and (request.number, name) not in self._invalid:
                    value = self._expression(request, name)
                    branches = branches.when(is_sound & (f.col(REQUEST) == request.number), value)
            values[f"{_VALUE}{number}"] = branches.cast(self._fields[name].dataType)
        return checked.withColumns(values)

    def _flaws(self, rows: DataFrame, request: Request) -> list[Column]:
        """Return for each expression of a request why it fails for a row, or null."""
        from pyspark.sql import functions as f

        own = f.col(REQUEST) == request.number
        flaws = []
        for name, sql in request.correct_sql.items():
            if name not in self._fields:  # a value that the stream has no column for is refused elsewhere
                continue
            shown = sql if len(sql) <= _SQL_SHOWN else f"{sql[: _SQL_SHOWN - 1]}…"
            value = self._expression(request, name)
            reason = f.lit(f"{name} {CANNOT}: {shown} fails for this row")
            if _is_valid(rows, value):
                text = f.concat_ws("", f.lit("="), value.cast("string"))  # never null, so Spark has to compute it
                reason = f.when(text_or_null(text).isNull(), reason)
            else:  # another version of Spark has checked it
                self._invalid.add((request.number, name))
            flaws.append(f.when(own, reason))
        return flaws

    def _expression(self, request: Request, name: str) -> Column:
        from pyspark.sql import functions as f

        return f.expr(request.correct_sql[name]).cast(self._fields[name].dataType)

    @property
    def _computed_columns(self) -> list[str]:
        names = dict.fromkeys(name for request in self._by_sql for name in request.correct_sql)
        return [name for name in names if name in self._fields]

    def current(self, rows: DataFrame, field: StructField) -> Column:
        """Return a column as corrected, else as quarantined, else null if the column is newer than the row.

        rows: from `computed`, if a request has expressions.
        """
        from pyspark.sql import functions as f

        value = f.col(quoted(field.name)) if field.name in rows.columns else f.lit(None)
        value = value.cast(field.dataType)
        for request in self.requests:
            if field.name in request.correct:
                correction = f.lit(request.correct[field.name]).cast(field.dataType)
            elif field.name in request.correct_sql:
                correction = f.col(f"{_VALUE}{self._computed_columns.index(field.name)}")
            else:
                continue
            value = f.when(f.col(REQUEST) == request.number, correction).otherwise(value)
        return value

    def uncaught(self, field: StructField) -> Column | None:
        """Return what an expression yields for a column, which fails for some rows. None: no expression corrects it."""
        for request in self._by_sql:
            if field.name in request.correct_sql:
                return self._expression(request, field.name)
        return None

    def corrected_values(self, rows: DataFrame) -> Column:
        """Return the values of a row's corrected columns as a JSON object, or null if its request corrects none."""
        from pyspark.sql import functions as f

        texts: list[Column] = [f.lit(None).cast("string")]
        for request in self.requests:
            names = [name for name in (*request.correct, *request.correct_sql) if name in self._fields]
            if names:
                values = f.struct(*[self.current(rows, self._fields[name]).alias(name) for name in names])
                text = f.to_json(values, {**q.WHOLE_MOMENTS, "ignoreNullFields": "false"})
                texts.append(f.when(f.col(REQUEST) == request.number, text))
        return f.coalesce(*texts)


def _is_valid(rows: DataFrame, value: Column) -> bool:
    """Return whether Spark can resolve an expression over these rows."""
    from pyspark.errors import AnalysisException

    try:
        _ = rows.select(value).schema
    except AnalysisException:
        return False
    return True
