"""A declared schema for a source whose input has typed columns of its own: a table.

Without one, a source takes the columns that its table has when a range is planned. With one, it takes these, and its
policy says what becomes of others, and of values that do not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tidegate.connectors.schema.ddl import Column, DdlError, parse_ddl
from tidegate.connectors.schema.drift import (
    RESCUED,
    OnNewColumn,
    OnType,
    Survey,
    policy_problems,
    rescued_json,
)
from tidegate.connectors.schema.source_with_schema import SourceWithSchema
from tidegate.connectors.schema.widening import wider_type
from tidegate.connectors.source import SourceContext
from tidegate.errors import Invalid
from tidegate.records.names import quoted
from tidegate.records.records import Drift, FoundColumn, Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["TypedSource", "UnfitColumn", "columns_of", "spark_columns"]

_INTEGERS: Final = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
"""Integer types, with the number of bits of their values."""
_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_TEXT: Final = re.compile(r"(var)?char\(\d+\)")


@dataclass(frozen=True)
class UnfitColumn:
    """A column of the input whose values do not fit the schema: all of them, or those that meet a condition."""

    name: str
    kind: Literal["new", "case", "type"]
    type: str
    bits: int | None = None
    """With "type": integers of so many bits fit. None: no value fits."""

    def condition(self, value: str) -> str:
        """Return SQL that is true if a value does not fit. value: SQL for it."""
        if self.bits is None:
            return f"{value} IS NOT NULL"
        return f"{value} NOT BETWEEN {-(1 << self.bits)} AND {(1 << self.bits) - 1}"

    def fitting(self, value: str) -> str:
        """Return SQL for the value if it fits, and null otherwise."""
        return "NULL" if self.bits is None else f"CASE WHEN NOT ({self.condition(value)}) THEN {value} END"


class TypedSource(SourceWithSchema):
    """A source of a table, whose columns may be declared."""

    missing_columns: Literal["refuse", "null"]

    def declare_columns(
        self,
        schema: str | None,
        on_new_column: OnNewColumn,
        on_type: OnType,
        missing_columns: Literal["refuse", "null"],
        rescue_column: str,
    ) -> None:
        """Set the arguments about columns, which all such sources have."""
        self.declare_schema(schema, on_new_column, on_type, rescue_column)
        self.missing_columns = missing_columns

    def describe_columns(self) -> Json:
        """Return the arguments about columns, or nothing if there is no schema."""
        names = ("schema", "on_new_column", "on_type", "missing_columns", "rescue_column")
        return {name: getattr(self, name) for name in names} if self.schema is not None else {}

    def column_problems(self) -> list[str]:
        """Return the problems of the arguments about columns."""
        if self.schema is None:
            given = (self.on_new_column, self.on_type, self.missing_columns, self.rescue_column)
            if given == ("ignore", "refuse", "refuse", RESCUED):
                return []
            return ["on_new_column, on_type, missing_columns and rescue_column need a schema to compare with"]
        try:
            columns = {column.name: column.type for column in parse_ddl(self.schema)}
        except DdlError as error:
            return [f"schema {error}"]
        problems = policy_problems(self.schema_policy, columns)
        if self.missing_columns not in ("refuse", "null"):
            problems.append(f"missing_columns is {self.missing_columns!r}; it must be 'refuse' or 'null'")
        return problems

    def refuse_unfit(self, actual: Sequence[Column], context: SourceContext) -> None:
        """Raise Invalid if the policy refuses the columns of the input. actual: these columns, with Spark's types."""
        if self.schema is None:
            return
        columns = parse_ddl(self.schema)
        matched = _matched(columns, actual)
        problems = []
        for column in columns:
            if column not in matched and self.missing_columns == "refuse" and column.name not in self.evolved_columns:
                problems.append(f"column {column.name!r} is gone")
        for misfit in self._misfits(actual):
            if misfit.kind != "type" and self.on_new_column == "refuse":
                problems.append(f"column {misfit.name!r} ({misfit.type}) is not in the schema")
            elif misfit.kind == "type" and self.on_type == "refuse":
                declared = next(column.type for column, there in matched.items() if there.name == misfit.name)
                problems.append(f"column {misfit.name!r} is {misfit.type}, and {declared} is declared")
        if problems:
            raise Invalid(
                f"source {context.source!r}: its table does not fit the schema: {'; '.join(problems)}",
                expected=f"columns {self.schema}",
                help="correct the schema of the source; on_new_column, on_type and missing_columns say what else to do",
                reason="SCHEMA_MISMATCH",
            )

    def survey_counts(
        self,
        actual: Sequence[Column],
        count: Callable[[list[str]], Sequence[int]],
        sql_of: Callable[[str], str] | None = None,
    ) -> Survey:
        """Return what does not fit.

        count: returns how many rows meet each of these conditions in SQL, in one query. sql_of: returns a column in
            this SQL, from its name.
        """
        sql_of = sql_of or self.sql_name
        misfits = self._rescued(actual)
        if not misfits:
            return Survey(None, is_clean=True)
        conditions = [misfit.condition(sql_of(misfit.name)) for misfit in misfits]
        any_of_them = " OR ".join(f"({condition})" for condition in conditions)
        records, *counts = count([any_of_them, *conditions])
        found = []
        for misfit, rows in zip(misfits, counts, strict=True):
            if rows:
                path = next(iter(self._declared_names(misfit, actual)), misfit.name)
                wider = self._wider(path, misfit)
                found.append(FoundColumn(path=path, kind=misfit.kind, type=misfit.type, records=rows, wider=wider))
        if not found:
            return Survey(None, is_clean=True)
        return Survey(Drift(found=sorted(found, key=lambda each: each.path), records=records), is_clean=False)

    def sql_name(self, name: str) -> str:
        """Return a column's name in the SQL of `survey_counts`."""
        return quoted(name)

    def fitted(self, frame: DataFrame, kept: Iterable[str] = ()) -> DataFrame:
        """Return the rows with the columns of the schema, and with what does not fit in the rescue column.

        kept: further columns of the frame that the rows have, too.
        """
        if self.schema is None:
            return frame
        kept = list(kept)
        # Spark takes names that differ only in case for one.
        by_number = {name: f"c{number}" for number, name in enumerate(frame.columns)}
        actual = [column for column in columns_of(frame) if column.name not in kept]
        columns = parse_ddl(self.schema)
        matched = _matched(columns, actual)
        unfit = {misfit.name: misfit for misfit in self._misfits(actual) if misfit.kind == "type"}
        selected = []
        for column in columns:
            value = "NULL"
            if column in matched:
                name = matched[column].name
                value = by_number[name]
                if name in unfit:
                    value = unfit[name].fitting(value)
            selected.append(f"CAST({value} AS {column.type}) AS {quoted(column.name)}")
        if self.schema_policy.rescues:
            members = []
            for misfit in self._rescued(actual):
                value = by_number[misfit.name]
                path = next(iter(self._declared_names(misfit, actual)), misfit.name)
                members.append(f"CASE WHEN {misfit.condition(value)} THEN {value} END AS {quoted(path)}")
            rescued = rescued_json(members) if members else "CAST(NULL AS string)"
            selected.append(f"{rescued} AS {quoted(self.rescue_column)}")
        selected += [f"{by_number[name]} AS {quoted(name)}" for name in kept]
        return frame.toDF(*by_number.values()).selectExpr(*selected)

    def _wider(self, name: str, misfit: UnfitColumn) -> str:
        """Return the type that a declared column becomes by the policy, or ""."""
        if misfit.kind != "type" or self.on_type != "widen":
            return ""
        declared = next(column.type for column in parse_ddl(self.schema) if column.name == name)
        return wider_type(declared, misfit.type) or ""

    def _rescued(self, actual: Sequence[Column]) -> list[UnfitColumn]:
        policy = self.schema_policy
        rescued = []
        for misfit in self._misfits(actual):
            if policy.rescues_types if misfit.kind == "type" else policy.rescues_keys:
                rescued.append(misfit)
        return rescued

    def _misfits(self, actual: Sequence[Column]) -> list[UnfitColumn]:
        """Return the columns of the input that do not fit the schema, or some of whose values do not."""
        columns = parse_ddl(self.schema)
        matched = _matched(columns, actual)
        names = {column.name.casefold() for column in columns}
        taken = {column.name for column in matched.values()}
        misfits = []
        for column in actual:
            if column.name not in taken:
                kind: Literal["new", "case"] = "case" if column.name.casefold() in names else "new"
                misfits.append(UnfitColumn(column.name, kind, _type_of_new_column(column.type)))
        for column, there in matched.items():
            if not _includes_type(column.type, _spelled(there.type)):
                are_integers = column.type in _INTEGERS and there.type in _INTEGERS
                bits = _INTEGERS[column.type] if are_integers else None
                misfits.append(UnfitColumn(there.name, "type", there.type, bits))
        return misfits

    def _declared_names(self, misfit: UnfitColumn, actual: Sequence[Column]) -> list[str]:
        """Return the declared name of a column, if it is one."""
        matched = _matched(parse_ddl(self.schema), actual)
        return [column.name for column, there in matched.items() if there.name == misfit.name]


def columns_of(frame: DataFrame) -> list[Column]:
    """Return the columns of a frame."""
    return [Column(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


def _matched(columns: Sequence[Column], actual: Sequence[Column]) -> dict[Column, Column]:
    """Return the column of the input for each column of the schema. Case does not matter, unless there are two."""
    exact = {column.name: column for column in actual}
    folded: dict[str, Column] = {}
    for column in actual:
        folded.setdefault(column.name.casefold(), column)
    matched = {}
    for column in columns:
        there = exact.get(column.name) or folded.get(column.name.casefold())
        if there is not None:
            matched[column] = there
    return matched


def _type_of_new_column(kind: str) -> str:
    """Return the type that a new column gets. What a schema cannot declare is kept as text."""
    return _spelled(kind) if _can_be_declared(kind) else "string"


def _spelled(kind: str) -> str:
    """Return a type as a declared one is spelled, if it can be declared."""
    return parse_ddl(f"c {kind}")[0].type if _can_be_declared(kind) else kind


def _can_be_declared(kind: str) -> bool:
    try:
        parse_ddl(f"c {kind}")
    except DdlError:
        return False
    return True


def _includes_type(declared: str, actual: str) -> bool:
    """Return whether a type holds all values of another one."""
    if declared == actual or (declared == "string" and _TEXT.fullmatch(actual)):
        return True
    if declared in _INTEGERS and actual in _INTEGERS:
        return _INTEGERS[declared] >= _INTEGERS[actual]
    if declared == "double":
        return actual in ("float", "tinyint", "smallint", "int")
    wide, narrow = _DECIMAL.fullmatch(declared), _DECIMAL.fullmatch(actual)
    if wide is None:
        return (declared, actual) == ("timestamp_ntz", "date")
    whole, places = int(wide[1]) - int(wide[2]), int(wide[2])
    if narrow is not None:
        return places >= int(narrow[2]) and whole >= int(narrow[1]) - int(narrow[2])
    return actual in _DIGITS and whole >= _DIGITS[actual]


def spark_columns(schema: Any) -> list[Column]:
    """Return the columns of a schema in the JSON form of Delta's log."""
    from pyspark.sql.types import StructType

    return [Column(field.name, field.dataType.simpleString()) for field in StructType.fromJson(schema).fields]
