"""Rows of a table as Python objects, whatever is in them.

Spark checks no text that it writes, so a table may hold bytes that are not UTF-8; and it has years that Python has not.
Arrow raises at the first of either. Such bytes are written as `readable_text` writes them, and a moment outside of the
years 1 to 9999 as text like Spark's, such as "+10000-01-01T00:00:00+00:00".
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from tidegate.records.readable import readable_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["python_rows", "python_value", "python_values"]

_DAY_ZERO = date(1970, 1, 1)
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400
"""After so many days the calendar repeats itself."""
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds."""


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as `to_pylist` does, also where that fails."""
    try:
        return list(rows.to_pylist())
    except (OverflowError, ValueError):
        columns = [python_values(rows.column(place)) for place in range(rows.num_columns)]
        names = rows.schema.names
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def python_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as `to_pylist` does, also where that fails."""
    try:
        return list(values.to_pylist())
    except (OverflowError, ValueError):
        return [python_value(value) for value in values]


def python_value(value: pa.Scalar) -> Any:
    """Return one value as `as_py` does, also where that fails."""
    import pyarrow.types as types

    kind = value.type
    if not value.is_valid:
        return None
    if types.is_struct(kind):
        return {field.name: python_value(value[place]) for place, field in enumerate(kind)}
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
        return text + (f".{part:06d}" if part else "") + ("+00:00" if kind.tz is not None else "")
    return str(value)


def _day_text(days: int) -> str:
    """Return a day since 1970, in the calendar of today for all times."""
    cycles, rest = divmod(days, _CYCLE_DAYS)
    day = _DAY_ZERO + timedelta(days=rest)
    year = day.year + _CYCLE_YEARS * cycles
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}-{day.month:02d}-{day.day:02d}"
