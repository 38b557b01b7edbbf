"""Checks of an operator's inputs when it runs. Errors name the operator's uid and the input's columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from tidegate.connectors.schema.ddl import DdlError, parse_ddl
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
    "need_number",
    "need_order",
    "null_safe_equality",
    "recalled",
    "record_sketched_types",
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

_VALUES = "_tidegate_values"

T = TypeVar("T")
_LONG_DIGITS: Final = 18
"""Spark hashes a decimal of up to so many digits as a long."""


def key_problems(names: Sequence[object], parameter: str = "by") -> list[str]:
    """Return what is wrong with a declared key. parameter: the argument that names it."""
    if not names:
        return [f"it has no key: name the columns in {parameter}=[…]"]
    if unfit := [name for name in names if not isinstance(name, str) or not name]:
        return [f"{parameter} names {', '.join(map(repr, unfit))}: expected names of columns"]
    if computed := [str(name) for name in names if _COMPUTED.search(str(name))]:
        return [
            f"{parameter} names {', '.join(map(repr, computed))}, which is computed: compute a column in an upstream "
            "stage, and name that"
        ]
    problems = []
    seen_names = set()
    for name in names:
        folded = str(name).casefold()
        if folded in seen_names:
            problems.append(f"{parameter} names {name!r} twice")
        seen_names.add(folded)
    return problems


def names_in(ddl: str) -> list[str] | None:
    """Return the names of declared columns, or None if the declaration is wrong, which `problems` reports."""
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
            help=f"correct {parameter}, or add the column in an upstream stage",
            reason="UNKNOWN_COLUMN",
        )


def need_keys(frame: DataFrame, names: Sequence[str], parameter: str, context: OperatorContext) -> None:
    """Raise Invalid if the input lacks one of these columns, or one is of a type that cannot be a key."""
    need_columns(frame, names, parameter, context)
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if collated := [f"{name!r} is {kinds[name]}" for name in names if "collate" in kinds[name]]:
        raise Invalid(
            f"operator {context.uid!r}: {parameter} names texts with a collation: {', '.join(collated)}",
            expected="keys that are only equal if they are identical: plain strings, with the collation UTF8_BINARY",
            help="make equal texts identical in an upstream stage, as lower(…) COLLATE UTF8_BINARY does for "
            "UTF8_LCASE; or only write COLLATE UTF8_BINARY to keep them distinct",
            reason="COLLATION",
        )
    if unfit := [f"{name!r} is {kinds[name]}" for name in names if re.search(r"\b(map<|variant|void)", kinds[name])]:
        raise Invalid(
            f"operator {context.uid!r}: {parameter} names what has no plain equality: {', '.join(unfit)}",
            expected="keys whose values can be compared for equality: no maps, variants, or nulls without a type",
            help="compute a column from it in an upstream stage, such as to_json(…) or one of its fields",
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
            help="compute a column from it in an upstream stage, such as one of its fields",
            reason="BAD_ORDER",
        )


def refuse_reserved_columns(frame: DataFrame, context: OperatorContext, names: Iterable[str] = OWN) -> None:
    """Raise Invalid if the input has columns of these names."""
    reserved = {name.casefold() for name in names}
    if clash := [name for name in frame.columns if name.casefold() in reserved]:
        raise Invalid(
            f"operator {context.uid!r}: its input has {', '.join(map(repr, clash))}, names that tidegate reserves",
            expected=f"columns with other names than {', '.join(names)}",
            help="rename them in an upstream stage",
            reason="RESERVED_COLUMN",
        )


def need_number(frame: DataFrame, function: str, gate: str, parameter: str = "") -> None:
    """Raise Invalid unless the function is an aggregate that Spark can compute of these rows, and one number.

    parameter: the gate's argument, if the rows are not those that it judges.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f
    from pyspark.sql import types as T

    where = f"gate {gate!r}: {parameter} " if parameter else f"gate {gate!r}: "
    try:  # in an array, Spark refuses what returns several rows, such as explode
        (field,) = frame.groupBy().agg(f.array(f.expr(function)).alias(_VALUES)).schema.fields
    except (AnalysisException, ParseException) as error:
        message = str(error).strip().splitlines()[0]
        raise Invalid(
            f"{where}{function!r} cannot be computed: {message}",
            expected=f"an SQL aggregate of {', '.join(frame.columns)}",
            help='correct it, such as "avg(amount)" or "count_if(amount < 0) / count(*)"',
            reason="BAD_GATE",
        ) from error
    assert isinstance(field.dataType, T.ArrayType)
    kind = field.dataType.elementType
    if not isinstance(kind, T.NumericType):
        raise Invalid(
            f"{where}{function!r} is a {kind.simpleString()}",
            expected="an aggregate that returns a number",
            help='compare numbers: of a time, for example, "unix_seconds(max(at))"',
            reason="BAD_GATE",
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
            help="correct the operator's declaration, or the stage upstream of it",
            reason="BAD_EXPRESSION",
        ) from error


class Types(NamedTuple):
    """The types of aggregates in Spark."""

    results: dict[str, str]
    """The type of each result, by its name."""
    partials: dict[str, str]
    """The type of each partial value of a row, by its SQL."""


def types_of(functions: Sequence[Function], rows: DataFrame, context: OperatorContext) -> Types:
    """Ask Spark for the types of all functions, in one analysis. Raise Invalid if it refuses the functions."""
    from pyspark.sql import functions as F

    results = [function.spark for function in functions]
    partials: dict[str, None] = {}
    for function in functions:
        if partials_of_rows(function) is not None:
            # The partial values of a mean depend on the type of its result, which is not known yet: include both.
            for variant in (function, function.typed("double")):
                partials |= dict.fromkeys(variant.partials_sql.values())
    expressions = [*results, *partials]

    def aggregated() -> DataFrame:
        return rows.agg(*(F.expr(text).alias(f"c{number}") for number, text in enumerate(expressions)))

    shape = repr((rows.schema.json(), results, list(partials)))
    fields = analysed(lambda: fields_before(rows.sparkSession, shape, aggregated), rows, context)
    types = [field.dataType.simpleString() for field in fields]
    names = [function.name for function in functions]
    return Types(
        dict(zip(names, types[: len(names)], strict=True)), dict(zip(partials, types[len(names) :], strict=True))
    )


SKETCHED: Final = "sketched_types"
"""The key in an operator's memory for the types of the values in its sketches, by the result's name."""


def record_sketched_types(functions: Sequence[Function], rows: DataFrame, context: OperatorContext) -> None:
    """Remember the types of the values in sketches, which hold hashes, so that the state's columns do not show them.

    Raise Invalid if a type has changed: the values so far would count again.
    """
    sketched = [function for function in functions if function.call.name == "approx_count_distinct"]
    if not sketched:
        return
    texts = [f"({function.argument}) AS c{number}" for number, function in enumerate(sketched)]
    shape = repr((rows.schema.json(), "sketched", texts))
    fields = analysed(lambda: fields_before(rows.sparkSession, shape, lambda: rows.selectExpr(*texts)), rows, context)
    now = {
        function.name: _hashed_as(field.dataType.simpleString())
        for function, field in zip(sketched, fields, strict=True)
    }
    before, problems = context.memory.get(SKETCHED), []
    for name, kind in now.items():
        known = before.get(name, kind) if isinstance(before, dict) else kind
        if known != kind:
            problems.append(f"{name!r} counts values of the type {kind}; the state has counted those of {known}")
    if problems:
        raise Invalid(
            "\n    ".join([f"operator {context.uid!r} cannot continue from its state:", *problems]),
            expected="values of the same type, because approx_count_distinct keeps hashes, which depend on it",
            help="cast them in an upstream stage, or give the operator a new uid, so that it starts afresh; "
            + RECOMPUTE,
            reason="STATE_CHANGED",
        )
    context.remember[SKETCHED] = now


def _hashed_as(kind: str) -> str:
    """Return one type for all whose equal values have equal hashes in Spark."""
    if kind in ("tinyint", "smallint"):
        return "int"
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    if decimal is not None and int(decimal[1]) <= _LONG_DIGITS:
        return f"decimal({_LONG_DIGITS},{decimal[2]})"
    return kind


def sql_type(kind: DataType) -> str:
    """Return a type as SQL. Spark's text of a type does not quote the names of fields."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return f"struct<{', '.join(f'{quoted(field.name)}: {sql_type(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, T.ArrayType):
        return f"array<{sql_type(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return str(kind.simpleString())


def recalled(state: KeyedState, rows: DataFrame, like: DataFrame, context: OperatorContext) -> DataFrame:
    """Return the rows of a state with the columns and types of `like`, which today's rows have. New columns are null.

    Raise Invalid if the state cannot continue with these types.
    """
    from pyspark.sql import functions as F

    assert state.base is not None
    now = from_spark(msgspec.json.decode(like.schema.json()))
    if problems := refusals(state.base.columns, now, state.keys):
        raise Invalid(
            "\n    ".join([f"operator {context.uid!r} cannot continue from its state:", *problems]),
            expected="input of the same types; columns may be added, removed, or become wider",
            help="cast them in an upstream stage, or give the operator a new uid, so that it starts afresh; "
            + RECOMPUTE,
            reason="STATE_CHANGED",
        )
    stored_types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    columns = []
    for field in like.schema.fields:
        if field.name in stored_types:
            column = F.col(quoted(field.name))
        else:
            column = F.lit(None)
        if stored_types.get(field.name) != field.dataType.simpleString():  # the text ignores nullability inside
            column = column.cast(field.dataType)
        columns.append(column.alias(field.name))
    return rows.select(*columns)
