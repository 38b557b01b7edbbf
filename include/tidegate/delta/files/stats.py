"""Delta's file statistics from Parquet footers: bounds that data skipping may rely on, or nothing.

Every value given is a true bound: minValues at or below, maxValues at or above every non-null value, in
the order that the engines compare by; NaN is above everything. What cannot be stated that way is left out:
binary, booleans, text that is no UTF-8, years that a date cannot show. Engines then read the file, except
delta-rs' `to_pyarrow_dataset`, which loses the rows of a file without bounds for a column that other files
have bounds for. So floats always get bounds, and text too long for a footer is looked at once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Context, Decimal
from typing import Any

import msgspec

from tidegate.records.moments import EPOCH
from tidegate.records.records import Json

__all__ = ["COLUMNS", "decimal_text", "file_stats", "float_text", "micros_text"]

Look = Callable[[str], tuple[str | None, str | None]]

COLUMNS = 32
"""The number of leaf columns that Delta itself indexes by default."""

_TEXT = 32
"""The number of characters of a string that Delta itself keeps."""

_EXACT = Context(prec=76)
_LAST = "\U0010ffff"
_FLOATS = ("float", "double")
_DAY_ZERO = date(1970, 1, 1)


@dataclass(frozen=True)
class _Leaf:
    """One leaf column of a Parquet file, in schema order. Bounds and null counts exist outside of lists only."""

    path: tuple[str, ...]
    kind: str
    listed: bool


@dataclass
class _Bounds:
    """The merged bounds of one leaf over the row groups."""

    low: Any = None
    high: Any = None
    nulls: int | None = 0
    are_known: bool = field(default=True)


def file_stats(footer: Any, schema: Json, partition_by: Sequence[str], look: Look | None = None) -> Json:
    """Return one file's statistics in Delta's form, from its Parquet metadata.

    look: the least and the greatest value of a top-level column, for those few that the metadata lacks.
    """
    stats: Json = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    leaves = list(_leaves(schema, set(partition_by)))
    if len(leaves) != footer.num_columns:
        return {"numRecords": footer.num_rows}
    # Spark's writer lets a NaN become the maximum; Arrow's leaves it out, and engines order it above all.
    tells_nan = footer.created_by.startswith("parquet-mr")
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    indexed = [(place, leaf) for place, leaf in enumerate(leaves) if not leaf.listed][:COLUMNS]
    for place, leaf in indexed:
        bounds = _merge([group.column(place) for group in groups], leaf, tells_nan)
        _put(stats["nullCount"], leaf.path, bounds.nulls)
        if not bounds.are_known and look and leaf.kind == "string" and len(leaf.path) == 1:
            bounds.low, bounds.high = look(leaf.path[0])
            bounds.are_known = True
        if bounds.are_known and bounds.low is not None:
            _put(stats["minValues"], leaf.path, _BOUNDS[_family(leaf.kind)](bounds.low, leaf.kind, False))
            _put(stats["maxValues"], leaf.path, _BOUNDS[_family(leaf.kind)](bounds.high, leaf.kind, True))
    return stats


def micros_text(micros: int) -> str | None:
    """Return microseconds since 1970 as ISO text without zone; None outside of the years 1 to 9999."""
    try:
        return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")[:26]
    except OverflowError:
        return None


def float_text(value: float) -> str:
    """Return the text for a float that JSON has no number for, as both engines write and read it."""
    return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(str(value), str(value))


def decimal_text(value: Decimal) -> str:
    """Return a decimal in plain digits: neither engine reads every exponent that Python or Java may print."""
    return f"{value:f}"


def _leaves(schema: Json, skipped: set[str]) -> Iterator[_Leaf]:
    for column in schema["fields"]:
        if column["name"] not in skipped:
            yield from _below(column["type"], (column["name"],), False)


def _below(kind: Any, path: tuple[str, ...], listed: bool) -> Iterator[_Leaf]:
    if isinstance(kind, str):
        yield _Leaf(path, kind, listed)
    elif kind["type"] == "struct":
        for member in kind["fields"]:
            yield from _below(member["type"], (*path, member["name"]), listed)
    else:
        for part in ("elementType", "keyType", "valueType"):
            if part in kind:
                yield from _below(kind[part], path, True)


def _merge(chunks: Sequence[Any], leaf: _Leaf, tells_nan: bool) -> _Bounds:
    """Merge the bounds of all row groups; one group without statistics makes the whole unknown."""
    bounds = _Bounds()
    for chunk in chunks:
        stats = chunk.statistics
        nulls = stats.null_count if stats is not None and stats.has_null_count else None
        bounds.nulls = None if bounds.nulls is None or nulls is None else bounds.nulls + nulls
        if nulls is not None and nulls == chunk.num_values:
            continue  # Nulls only: bounds of the other groups hold.
        low, high = _float_bounds(stats, tells_nan) if leaf.kind in _FLOATS else _raw_bounds(stats, leaf.kind)
        if low is None:
            bounds.are_known = False
        elif bounds.are_known:
            bounds.low = low if bounds.low is None else min(bounds.low, low, key=_rank)
            bounds.high = high if bounds.high is None else max(bounds.high, high, key=_rank)
    return bounds


def _raw_bounds(stats: Any, kind: str) -> tuple[Any, Any]:
    """Return a row group's bounds in a form that compares as the engines do; (None, None): unknown."""
    if stats is None or not stats.has_min_max or _family(kind) not in _BOUNDS:
        return None, None
    low, high = stats.min_raw, stats.max_raw
    if isinstance(low, bytes):
        if kind.startswith("decimal"):
            return int.from_bytes(low, "big", signed=True), int.from_bytes(high, "big", signed=True)
        try:
            return low.decode(), high.decode()
        except UnicodeDecodeError:
            return None, None
    return low, high


def _float_bounds(stats: Any, tells_nan: bool) -> tuple[float, float]:
    """Return bounds of floats, if need be those that always hold."""
    if stats is None or not stats.has_min_max:
        return -math.inf, math.nan
    return stats.min_raw, stats.max_raw if tells_nan else math.nan


def _rank(value: Any) -> tuple[bool, Any]:
    """Order NaN above everything."""
    unordered = isinstance(value, float) and math.isnan(value)
    return unordered, 0.0 if unordered else value


def _family(kind: str) -> str:
    return "decimal" if kind.startswith("decimal") else kind


def _whole_number(value: Any, kind: str, upper: bool) -> Any:
    return value


def _float(value: Any, kind: str, upper: bool) -> Any:
    if not math.isfinite(value):
        return float_text(value)
    if value == 0:
        return 0.0 if upper else -0.0  # Some engines order the zeros, and writers differ in which one they note.
    return value


def _decimal(value: Any, kind: str, upper: bool) -> Any:
    scale = int(kind[:-1].split(",")[1])
    return msgspec.Raw(decimal_text(Decimal(value).scaleb(-scale, _EXACT)).encode())


def _date(value: Any, kind: str, upper: bool) -> Any:
    try:
        return (_DAY_ZERO + timedelta(days=value)).isoformat()
    except OverflowError:
        return None


def _timestamp(value: Any, kind: str, upper: bool) -> Any:
    text = micros_text(value)
    return text + "Z" if text and kind == "timestamp" else text


def _text(value: Any, kind: str, upper: bool) -> Any:
    """Truncate to 32 characters: a prefix is a lower bound, a prefix and the last code point an upper one."""
    if len(value) <= _TEXT:
        return value
    if not upper:
        return value[:_TEXT]
    end = _TEXT
    while end < len(value) and value[end] == _LAST:
        end += 1
    return value if end == len(value) else value[:end] + _LAST


_BOUNDS: dict[str, Callable[[Any, str, bool], Any]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), _whole_number),
    **dict.fromkeys(("float", "double"), _float),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), _timestamp),
    "decimal": _decimal,
    "date": _date,
    "string": _text,
}


def _put(into: Json, path: tuple[str, ...], value: Any) -> None:
    """Set a value below nested objects; an unknown one is left out."""
    if value is not None:
        for part in path[:-1]:
            into = into.setdefault(part, {})
        into[path[-1]] = value
