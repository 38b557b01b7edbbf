"""Checks that operators make of their inputs when they run. Errors name the operator's uid and what the input has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from tidegate.connectors.ddl import DdlError, parse_ddl
from tidegate.delta import from_spark
from tidegate.errors import Invalid
from tidegate.operators.functions import Function, partials_of_rows
from tidegate.records.names import quoted
from tidegate.spark.frame_facts import fields_before
from tidegate.spark.row_id import HALVES
from tidegate.state.evolution import RECOMPUTE, refusals

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from tidegate.operators.context import OperatorContext
    from tidegate.state.keyed import KeyedState

__all__ = [
    "OWN",
    "Types",
    "analysed",
    "columns_of",
    "key_problems",
    "names_in",
    "need_columns",
    "need_keys",
    "need_order",
    "null_safe_equality",
    "recalled",
    "refuse_reserved_columns",
    "sql_type",
    "types_of",
]

OWN = (
    *("_group", "_checkpoint", "_deleted", "_touched"),
    *("_row", "_at", "_n", "_was", "_now", "_before", "_copy", "_matched", "_new", "_top", "_hit", "_first", "_aside"),
    "_arriving",
    *HALVES,
)
"""Names that operators and states use in addition to a row's own columns."""

_COMPUTED = re.compile(r"\w\s*\(.*\)|\s[-+*/%|]\s|\sas\s", re.IGNORECASE | re.DOTALL)
"""Matches an expression instead of a column's name."""

T = TypeVar("T")


def key_problems(names: Sequence[object], parameter: str = "by") -> list[str]:
    """Return what is wrong with a declared key. parameter: the argument that names it."""
    if not names:
        return [f"it has no key: name the columns in {parameter}=[…]"]
    if unfit := [name for name in names if not isinstance(name, str) or not name]:
        return [f"{parameter} names {', '.join(map(repr, unfit))}: expected names of columns"]
    if computed := [str(name) for name in names if _COMPUTED.search(str(name))]:
        return [
            f"{parameter} names {', '.join(map(repr, computed))}, which is computed: make a column of it in a "
            "stage before, and name that"
        ]
    texts = [str(name).casefold() for name in names]
    return [f"{parameter} names {name!r} twice" for place, name in enumerate(names) if texts[place] in texts[:place]]


def names_in(ddl: str) -> list[str] | None:
    """Return the names of declared columns. None: `problems` says what is wrong with them."""
    try:
        return [column.name for column in parse_ddl(ddl)]
    except DdlError:
        return None


def need_columns(frame: DataFrame, names: Iterable[str], parameter: str, context: OperatorContext) -> None:
    """Raise Invalid if the input lacks one of these columns."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise Invalid(
            f"operator {context.uid!r}: {parameter} names {', '.join(map(repr, missing))}, which its input does not "
            "have",
            expected=f"columns of the input: {', '.join(frame.columns)}",
            help=f"correct {parameter}, or add the column in a stage before",
            reason="UNKNOWN_COLUMN",
        )


def need_keys(frame: DataFrame, names: Sequence[str], parameter: str, context: OperatorContext) -> None:
    """Raise Invalid if the input lacks one of these columns, or one is of a type that cannot be a key."""
    need_columns(frame, names, parameter, context)
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if collated := [f"{name!r} is {kinds[name]}" for name in names if "collate" in kinds[name]]:
        raise Invalid(
            f"operator {context.uid!r}: {parameter} names texts with a collation: {', '.join(collated)}",
            expected="keys that are equal only if they are the same: plain strings, of the collation UTF8_BINARY",
            help="make equal texts the same in a stage before, as lower(…) COLLATE UTF8_BINARY does for UTF8_LCASE; or "
            "write COLLATE UTF8_BINARY alone to tell them apart",
            reason="COLLATION",
        )
    if unfit := [f"{name!r} is {kinds[name]}" for name in names if re.search(r"\b(map<|variant|void)", kinds[name])]:
        raise Invalid(
            f"operator {context.uid!r}: {parameter} names what has no plain equality: {', '.join(unfit)}",
            expected="keys of which two values are the same or not: no maps, variants, or nulls without a type",
            help="make a column of it in a stage before, such as to_json(…) or a field of it",
            reason="BAD_KEY",
        )


def need_order(frame: DataFrame, names: Sequence[str], context: OperatorContext) -> None:
    """Raise Invalid if the input lacks one of these columns, or one has no order."""
    need_columns(frame, names, "order_by", context)
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if unfit := [f"{name!r} is {kinds[name]}" for name in names if re.search(r"\b(map<|variant|void)", kinds[name])]:
        raise Invalid(
            f"operator {context.uid!r}: order_by names what cannot be ordered: {', '.join(unfit)}",
            expected="columns whose values have an order: no maps, variants, or nulls without a type",
            help="make a column of it in a stage before, such as a field of it",
            reason="BAD_ORDER",
        )


def refuse_reserved_columns(frame: DataFrame, context: OperatorContext, names: Iterable[str] = OWN) -> None:
    """Raise Invalid if the input has columns of these names."""
    reserved = {name.casefold() for name in names}
    if clash := [name for name in frame.columns if name.casefold() in reserved]:
        raise Invalid(
            f"operator {context.uid!r}: its input has {', '.join(map(repr, clash))}, names of tidegate's own",
            expected=f"columns with other names than {', '.join(names)}",
            help="rename them in a stage before",
            reason="RESERVED_COLUMN",
        )


def columns_of(frame: DataFrame) -> list[str]:
    """Return the input's columns, quoted for SQL."""
    return [quoted(name) for name in frame.columns]


def null_safe_equality(left: Sequence[str], right: Sequence[str], *, nulls: bool) -> Column:
    """Return the condition that the columns are equal, pair by pair. nulls: null equals null."""
    from pyspark.sql import functions as F

    equal = "<=>" if nulls else "="
    pairs = zip(left, right, strict=True)
    return F.expr(" AND ".join(f"{quoted(left_name)} {equal} {quoted(right_name)}" for left_name, right_name in pairs))


def analysed(plan: Callable[[], T], frame: DataFrame, context: OperatorContext) -> T:
    """Return the result of `plan`. Raise Invalid if Spark refuses its expressions for an input like this one."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        return plan()
    except Invalid as error:
        if error.reason == "COLLATION" and not error.what.startswith(f"operator {context.uid!r}"):
            error.what = f"operator {context.uid!r}: {error.what}"
        raise
    except (AnalysisException, ParseException) as error:
        message = str(error).strip().split("\n")[0]
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields)
        raise Invalid(
            f"operator {context.uid!r}: Spark refuses its expressions: {message}",
            expected=f"expressions of the input's columns: {columns}",
            help="correct the operator's declaration, or the stage before it",
            reason="BAD_EXPRESSION",
        ) from error


class Types(NamedTuple):
    """The types that Spark gives to aggregates of rows."""

    results: dict[str, str]
    """By the aggregate's name."""
    partials: dict[str, str]
    """Of the partial values that rows can be lifted to, by their SQL."""


def types_of(functions: Sequence[Function], rows: DataFrame, context: OperatorContext) -> Types:
    """Ask Spark for the types, once for all. Raise Invalid if it refuses the functions.

    Which partial values a mean has depends on the type of its result: both kinds are asked for.
    """
    from pyspark.sql import functions as F

    results = [function.spark for function in functions]
    liftable = [function for function in functions if partials_of_rows(function) is not None]
    either = [kind for function in liftable for kind in (function, function.typed("double"))]
    partials = list(dict.fromkeys(text for function in either for text in function.partials_sql.values()))

    def aggregated() -> DataFrame:
        return rows.agg(*(F.expr(text).alias(f"c{number}") for number, text in enumerate([*results, *partials])))

    shape = repr((rows.schema.json(), results, partials))
    fields = analysed(lambda: fields_before(rows.sparkSession, shape, aggregated), rows, context)
    types = [field.dataType.simpleString() for field in fields]
    names = [function.name for function in functions]
    return Types(
        dict(zip(names, types[: len(names)], strict=True)), dict(zip(partials, types[len(names) :], strict=True))
    )


def sql_type(kind: DataType) -> str:
    """Return a type as SQL. Spark's own text of it has the names of fields as they are, whatever letters they have."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return f"struct<{', '.join(f'{quoted(field.name)}: {sql_type(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, T.ArrayType):
        return f"array<{sql_type(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return str(kind.simpleString())


def recalled(state: KeyedState, rows: DataFrame, like: DataFrame, context: OperatorContext) -> DataFrame:
    """Return the rows of a state, in the columns and types of what is put into it today: null in columns that are new.

    Invalid if the state cannot continue with these types: before anything is computed with both.
    """
    from pyspark.sql import functions as F

    assert state.base is not None
    now = from_spark(msgspec.json.decode(like.schema.json()))
    if problems := refusals(state.base.columns, now, state.keys):
        raise Invalid(
            "\n    ".join([f"operator {context.uid!r} cannot continue from what it remembers:", *problems]),
            expected="input of the types that it had; columns may be added, left out, or become wider",
            help="cast them in a stage before, or give the operator a uid of its own, so that it starts afresh; "
            + RECOMPUTE,
            reason="STATE_CHANGED",
        )
    stored_types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    columns = []
    for field in like.schema.fields:
        column = F.col(quoted(field.name)) if field.name in stored_types else F.lit(None)
        same_type = stored_types.get(field.name) == field.dataType.simpleString()  # but for what may be null in it
        columns.append((column if same_type else column.cast(field.dataType)).alias(field.name))
    return rows.select(*columns)
