"""What is told of bad values: a few of them, as short texts; of private columns none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

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
    "texts_of",
    "truncate",
]


def cast_to_string_like_spark(values: pa.ChunkedArray, zone: Callable[[], str], most: int) -> list[str | None]:
    """Of each value at most so many letters. ValueError: Spark must be asked, for nobody else knows its word for them.

    zone: the session's, in which times are shown.
    """
    import pyarrow as pa

    kind = values.type
    if pa.types.is_timestamp(kind):
        text: Callable[[Any], str] = partial(_time, zone=ZoneInfo(zone()) if kind.tz else None)
    else:
        text = next((made for fits, made in _TEXTS if getattr(pa.types, f"is_{fits}")(kind)), _unknown)
    try:
        return [None if value is None else text(value)[:most] for value in values.to_pylist()]
    except (OverflowError, LookupError, OSError) as error:
        raise ValueError(str(error)) from error


def _unknown(value: object) -> str:
    raise ValueError(f"{type(value).__name__} is shown by Spark")


def _time(value: datetime, zone: ZoneInfo | None) -> str:
    local = value.astimezone(zone) if zone is not None else value
    whole, _, part = local.replace(tzinfo=None).isoformat(" ", "microseconds").partition(".")
    return f"{whole}.{part.rstrip('0')}" if part.strip("0") else whole


def _single(value: float) -> str:
    import numpy as np

    return _float(value, str(np.float32(value)))


def _float(value: float, digits: str) -> str:
    """As Java does: with a point, and with an exponent if it is very large or small."""
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = f"{Decimal(digits):f}"
        return plain if "." in plain else f"{plain}.0"
    sign, figures, exponent = Decimal(digits).normalize().as_tuple()
    first, *rest = map(str, figures)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{len(rest) + int(exponent)}"


_TEXTS: list[tuple[str, Callable[[Any], str]]] = [
    ("string", str),
    ("boolean", lambda value: "true" if value else "false"),
    ("integer", str),
    ("date", date.isoformat),
    ("decimal", lambda value: f"{value:f}"),
    ("float32", _single),
    ("float64", lambda value: _float(value, repr(value))),
    ("binary", lambda value: value.hex().upper()),
]


SAMPLES = 20
"""So many are told of each rule."""
SAMPLE_LENGTH = 256
_TELLS_NO_VALUE = ("unique_value_count", "proportion", "row_count", "column_count", "to_exist", "type")


def private_of(rule: Rule, private: Collection[str]) -> bool:
    """Whether a rule speaks of a private column."""
    spoken_of = {column.split(".")[0] for column in rule.columns}
    return bool(private) and (rule.type == "unexpected_rows_expectation" or not spoken_of.isdisjoint(private))


def redact(result: Json, rule: Rule, private: Collection[str]) -> None:
    """Take values of private columns out of a result."""
    if not private_of(rule, private):
        return
    said = result["result"]
    if not any(word in rule.type for word in _TELLS_NO_VALUE):
        for key in ("observed_value", "details"):
            if key in said:
                said[key] = None
        said |= {key: [] for key in said if key.startswith("partial_")}
    if result["exception_info"]["raised_exception"]:
        result["exception_info"]["exception_message"] = "not told: the column is private"  # it may hold a value


def truncate(value: Any) -> Any:
    """A result without long lists and long texts."""
    if isinstance(value, dict):
        return {key: truncate(each) for key, each in list(value.items())[:100]}
    if isinstance(value, list | tuple):
        return [truncate(each) for each in value[:SAMPLES]]
    return value[:SAMPLE_LENGTH] if isinstance(value, str) and len(value) > SAMPLE_LENGTH else value


def add_samples(result: Json, rule: Rule, samples: Sequence[Sequence[str | None]]) -> None:
    """Put samples into a result: of each the values of the rule's columns."""
    told = result["result"]["partial_unexpected_list"]
    told += [_shaped(rule, list(sample)) for sample in samples]


def display_column(frame: DataFrame, name: str) -> Column:
    """A column's values as short texts."""
    from pyspark.sql import functions as f

    kind = dict(frame.dtypes).get(name, "string")
    column = f.col(name)
    if kind == "binary":
        column = f.hex(f.substring(column, 1, SAMPLE_LENGTH // 2))
    elif kind.startswith(("struct", "array", "map", "variant")):
        column = f.to_json(column)
    return f.left(column.cast("string"), f.lit(SAMPLE_LENGTH))


def _shaped(rule: Rule, values: list[str | None]) -> Any:
    """As Great Expectations shapes them: a value, a pair, or values by column."""
    if "column" in rule.kwargs:
        return values[0]
    return values if "column_A" in rule.kwargs else dict(zip(rule.columns, values, strict=True))


def texts_of(
    rows: Mapping[int, pa.Table], columns: Mapping[int, Sequence[str]], like: DataFrame
) -> dict[int, list[list[str | None]]]:
    """A few rows that are in this process, as Spark shows them.

    rows, columns: by number, rows of `like`, and the columns of them that are shown.
    """
    conf = like.sparkSession.conf
    zone = cache(lambda: str(conf.get("spark.sql.session.timeZone", "UTC")))
    told: dict[int, list[list[str | None]]] = {}
    asked: dict[int, pa.Table] = {}
    for number, table in rows.items():
        try:
            texts = [cast_to_string_like_spark(table[name], zone, SAMPLE_LENGTH) for name in columns[number]]
        except (KeyError, ValueError):  # a field of an object, an object, or a time that Python has no word for
            asked[number] = table
        else:
            told[number] = [list(row) for row in zip(*texts, strict=True)]
    return told | {number: _by_spark(table, columns[number], like) for number, table in asked.items()}


def _by_spark(rows: pa.Table, columns: Sequence[str], like: DataFrame) -> list[list[str | None]]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    schema = StructType([field for field in like.schema.fields if field.name in rows.column_names])
    frame = like.sparkSession.createDataFrame(rows.select(schema.names), schema)
    return [list(row[0]) for row in frame.select(f.array(*[display_column(like, name) for name in columns])).collect()]
