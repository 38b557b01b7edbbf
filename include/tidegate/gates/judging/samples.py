"""Samples of bad values: a few for each rule, as short texts, and none of private columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from tidegate.delta.as_python import python_values
from tidegate.gates.expectations.catalogue import CATALOGUE
from tidegate.gates.expectations.suite import Rule
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = [
    "SAMPLES",
    "add_samples",
    "cast_to_string_like_spark",
    "display_column",
    "private_of",
    "redact",
    "remove_values",
    "texts_of",
    "truncate",
]


def cast_to_string_like_spark(values: pa.ChunkedArray, zone: Callable[[], str], length: int) -> list[str | None]:
    """Cast values to strings as Spark does, each cut to `length` characters. Raise ValueError if only Spark can do it.

    zone: the session's time zone, in which times are shown.
    """
    import pyarrow as pa

    kind = values.type
    if pa.types.is_timestamp(kind):
        text: Callable[[Any], str] = partial(_time_text, zone=ZoneInfo(zone()) if kind.tz else None)
    else:
        casts = (cast for name, cast in _CASTS if getattr(pa.types, f"is_{name}")(kind))
        text = next(casts, _refuse_type)
    try:
        plain = python_values(values) if pa.types.is_string(kind) else values.to_pylist()
        return [None if value is None else text(value)[:length] for value in plain]
    except (OverflowError, LookupError, OSError) as error:
        raise ValueError(str(error)) from error


def _refuse_type(value: object) -> str:
    raise ValueError(f"{type(value).__name__} is shown by Spark")


def _time_text(value: datetime, zone: ZoneInfo | None) -> str:
    local = value.astimezone(zone) if zone is not None else value
    whole, _, part = local.replace(tzinfo=None).isoformat(" ", "microseconds").partition(".")
    return f"{whole}.{part.rstrip('0')}" if part.strip("0") else whole


def _float32_text(value: float) -> str:
    import numpy as np

    return _float_text(value, str(np.float32(value)))


def _float_text(value: float, digits: str) -> str:
    """Format a float as Java does: with a point, and with an exponent if it is very large or small."""
    if value != value or value in (float("inf"), float("-inf")):
        if value != value:
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = f"{Decimal(digits):f}"
        return plain if "." in plain else f"{plain}.0"
    sign, figures, exponent = Decimal(digits).normalize().as_tuple()
    first, *decimals = map(str, figures)
    return f"{'-' if sign else ''}{first}.{''.join(decimals) or '0'}E{len(decimals) + int(exponent)}"


_CASTS: list[tuple[str, Callable[[Any], str]]] = [
    ("string", str),
    ("boolean", lambda value: "true" if value else "false"),
    ("integer", str),
    ("date", date.isoformat),
    ("decimal", lambda value: f"{value:f}"),
    ("float32", _float32_text),
    ("float64", lambda value: _float_text(value, repr(value))),
    ("binary", lambda value: value.hex().upper()),
]


SAMPLES = 20
"""Samples for each rule."""
SAMPLE_LENGTH = 256
_WITHOUT_VALUES = (
    *("unique_value_count", "proportion", "row_count", "column_count", "to_exist", "type", "columns_to_match"),
    "unexpected_rows_expectation",
)
"""Parts of the types of expectations that observe counts and names, but no values of rows."""


def private_of(rule: Rule, private: Collection[str]) -> bool:
    """Return whether a rule is about a private column."""
    columns = {column.split(".")[0] for column in rule.columns}
    return bool(private) and (rule.kind.reads_any_column or not columns.isdisjoint(private))


def redact(result: Json, rule: Rule, private: Collection[str]) -> Json:
    """Return a result without values of private columns."""
    return remove_values(result) if private_of(rule, private) else result


def remove_values(result: Json) -> Json:
    """Return a result of Great Expectations without values of rows."""
    type, details, info = result["expectation_config"]["type"], dict(result["result"]), result["exception_info"]
    if type not in CATALOGUE or not any(word in type for word in _WITHOUT_VALUES):
        for key in ("observed_value", "details"):
            if key in details:
                details[key] = None
        details |= {key: [] for key in details if key.startswith("partial_")}
    if info["raised_exception"]:
        # the message may hold a value
        info = {**info, "exception_message": "not shown: it may hold values of rows", "exception_traceback": None}
    return {**result, "result": details, "exception_info": info}


def truncate(value: Any) -> Any:
    """Return a result with long lists and long texts cut."""
    if isinstance(value, dict):
        return {key: truncate(item) for key, item in list(value.items())[:100]}
    if isinstance(value, list | tuple):
        return [truncate(item) for item in value[:SAMPLES]]
    return value[:SAMPLE_LENGTH] if isinstance(value, str) and len(value) > SAMPLE_LENGTH else value


def add_samples(result: Json, rule: Rule, samples: Sequence[Sequence[str | None]]) -> None:
    """Add samples to a result. Each has the values of the rule's columns."""
    values = result["result"]["partial_unexpected_list"]
    values += [_shape_like_gx(rule, list(sample)) for sample in samples]


def display_column(frame: DataFrame, name: str) -> Column:
    """Return a column's values as short texts."""
    from pyspark.sql import functions as f

    kind = dict(frame.dtypes).get(name, "string")
    column = f.col(name)
    if kind == "binary":
        column = f.hex(f.substring(column, 1, SAMPLE_LENGTH // 2))
    elif kind.startswith(("struct", "array", "map", "variant")):
        column = f.to_json(column)
    return f.left(column.cast("string"), f.lit(SAMPLE_LENGTH))


def _shape_like_gx(rule: Rule, values: list[str | None]) -> Any:
    """Shape values as Great Expectations does: a value, a pair, or values by column."""
    if "column" in rule.kwargs:
        return values[0]
    return values if "column_A" in rule.kwargs else dict(zip(rule.columns, values, strict=True))


def texts_of(
    rows: Mapping[int, pa.Table], columns: Mapping[int, Sequence[str]], like: DataFrame
) -> dict[int, list[list[str | None]]]:
    """Return a few rows of this process as Spark displays them.

    rows, columns: rows of `like` by number, and the columns of them to show.
    """
    conf = like.sparkSession.conf
    zone = cache(lambda: str(conf.get("spark.sql.session.timeZone", "UTC")))
    texts_by_number: dict[int, list[list[str | None]]] = {}
    for_spark: dict[int, pa.Table] = {}
    for number, table in rows.items():
        try:
            texts = [cast_to_string_like_spark(table[name], zone, SAMPLE_LENGTH) for name in columns[number]]
        except (KeyError, ValueError):  # a field of an object, an object, or a time that Python cannot represent
            for_spark[number] = table
        else:
            texts_by_number[number] = [list(row) for row in zip(*texts, strict=True)]
    return texts_by_number | {
        number: _display_with_spark(table, columns[number], like) for number, table in for_spark.items()
    }


def _display_with_spark(rows: pa.Table, columns: Sequence[str], like: DataFrame) -> list[list[str | None]]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    schema = StructType([field for field in like.schema.fields if field.name in rows.column_names])
    frame = like.sparkSession.createDataFrame(rows.select(schema.names), schema)
    return [list(row[0]) for row in frame.select(f.array(*[display_column(like, name) for name in columns])).collect()]
