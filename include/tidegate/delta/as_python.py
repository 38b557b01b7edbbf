"""Converts rows of a table to Python objects, even values for which Arrow's conversion raises.

Spark does not validate texts, so a table may contain bytes that are not UTF-8; it also supports years that Python does
not. Such bytes are converted by `readable_text`, and times outside of the years 1 to 9999 to text like Spark's, such as
"+10000-01-01T00:00:00+00:00".
"""

from __future__ import annotations

import base64
import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidegate.records.readable import readable_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["json_value", "python_rows", "python_value", "python_values"]

_DAY_ZERO = date(1970, 1, 1)
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400
"""The period after which the Gregorian calendar repeats."""
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""The units of timestamps, in microseconds."""


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Like `to_pylist`, but also for values for which that raises."""
    try:
        return list(rows.to_pylist())
    except (OverflowError, ValueError):
        columns = [python_values(column) for column in rows.columns]
        names = rows.schema.names
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def python_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Like `to_pylist` of a column, but also for values for which that raises."""
    try:
        return list(values.to_pylist())
    except (OverflowError, ValueError):
        return [python_value(value) for value in values]


def python_value(value: pa.Scalar) -> Any:
    """Like `as_py`, but also for values for which that raises."""
    import pyarrow.types as types

    kind = value.type
    if not value.is_valid:
        return None
    if types.is_struct(kind):
        return {field.name: python_value(value[index]) for index, field in enumerate(kind)}
    if types.is_map(kind):
        entries = value.values
        pairs = zip(entries.field(0), entries.field(1), strict=True)
        return [(python_value(key), python_value(item)) for key, item in pairs]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [python_value(item) for item in value.values]
    if types.is_dictionary(kind):
        return python_value(value.value)
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return _text(value)


def _text(value: pa.Scalar) -> str:
    import pyarrow.types as types

    kind = value.type
    if types.is_string(kind) or types.is_large_string(kind):
        return readable_text(bytes(value.as_buffer()))[0]
    if types.is_date32(kind):
        return _day_text(value.value)
    if types.is_timestamp(kind) and kind.unit in _UNITS:
        days, micros = divmod(value.value * _UNITS[kind.unit], 86_400_000_000)
        minutes, part = divmod(micros, 60_000_000)
        seconds, part = divmod(part, 1_000_000)
        text = f"{_day_text(days)}T{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
        if part:
            text += f".{part:06d}"
        if kind.tz is not None:
            text += "+00:00"
        return text
    return str(value)


def _day_text(days: int) -> str:
    """Return the date of a day since 1970 as text, in the proleptic Gregorian calendar."""
    cycles, days_in_cycle = divmod(days, _CYCLE_DAYS)
    day = _DAY_ZERO + timedelta(days=days_in_cycle)
    year = day.year + _CYCLE_YEARS * cycles
    sign = ""
    if year > 9999:
        sign = "+"
    elif year < 0:
        sign = "-"
    return f"{sign}{abs(year):04d}-{day.month:02d}-{day.day:02d}"


def json_value(value: Any) -> Any:
    """Return a cell as JSON. Types that JSON lacks become text: decimals and times exactly, bytes as base64."""
    if isinstance(value, dict):
        return {str(name): json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
