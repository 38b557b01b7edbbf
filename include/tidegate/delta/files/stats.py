"""Delta's file statistics from Parquet footers: bounds that data skipping can rely on.

Every value is a true bound, in the order by which the engines compare: minValues is at or below every non-null value,
maxValues at or above it, and NaN is greater than everything. Values for which that is impossible are left out: binary,
booleans, text that is not UTF-8, years that a date cannot represent. Engines then read the file, except delta-rs'
`to_pyarrow_dataset`, which loses the rows of a file without bounds for a column if other files have them. So floats
always get bounds, and bounds of text that is too long for a footer are computed from the file.
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

ReadBounds = Callable[[str], tuple[str | None, str | None]]

COLUMNS = 32
"""The number of leaf columns that Delta indexes by default."""

_MAX_CHARS = 32
"""The number of characters of a string to which Delta truncates bounds."""

_EXACT = Context(prec=76)
_LAST = "\U0010ffff"
_FLOATS = ("float", "double")
_DAY_ZERO = date(1970, 1, 1)


@dataclass(frozen=True)
class _Leaf:
    """A leaf column of a Parquet file. Bounds and null counts exist only outside of lists and maps."""

    path: tuple[str, ...]
    kind: str
    in_list: bool


@dataclass
class _Bounds:
    """The bounds of a leaf column, merged over the row groups."""

    low: Any = None
    high: Any = None
    nulls: int | None = 0
    are_known: bool = field(default=True)


def file_stats(footer: Any, schema: Json, partition_by: Sequence[str], read_bounds: ReadBounds | None = None) -> Json:
    """Return a file's statistics in Delta's form, from its Parquet metadata.

    read_bounds: returns the smallest and the greatest value of a top-level column, if the metadata lacks them.
    """
    stats: Json = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    leaves = list(_leaf_columns(schema, set(partition_by)))
    if len(leaves) != footer.num_columns:
        return {"numRecords": footer.num_rows}
    # Engines order NaN above everything. Spark's writer includes NaN in the maximum, Arrow's ignores it.
    includes_nan = footer.created_by.startswith("parquet-mr")
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    indexed = [(index, leaf) for index, leaf in enumerate(leaves) if not leaf.in_list][:COLUMNS]
    for index, leaf in indexed:
        bounds = _merge([group.column(index) for group in groups], leaf, includes_nan)
        _put(stats["nullCount"], leaf.path, bounds.nulls)
        if not bounds.are_known and read_bounds and leaf.kind == "string" and len(leaf.path) == 1:
            bounds.low, bounds.high = read_bounds(leaf.path[0])
            bounds.are_known = True
        if bounds.are_known and bounds.low is not None:
            as_bound = _BOUNDS[_family(leaf.kind)]
            _put(stats["minValues"], leaf.path, as_bound(bounds.low, leaf.kind, False))
            _put(stats["maxValues"], leaf.path, as_bound(bounds.high, leaf.kind, True))
    return stats


def micros_text(micros: int) -> str | None:
    """Return microseconds since 1970 as ISO text without a zone, or None outside of the years 1 to 9999."""
    try:
        return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")[:26]
    except OverflowError:
        return None


def float_text(value: float) -> str:
    """Return a float as text. For floats that are not JSON numbers, it is the text that both engines use."""
    return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(str(value), str(value))


def decimal_text(value: Decimal) -> str:
    """Return a decimal in plain digits. Neither engine reads every exponent that Python or Java may print."""
    return f"{value:f}"


def _leaf_columns(schema: Json, skipped: set[str]) -> Iterator[_Leaf]:
    for column in schema["fields"]:
        if column["name"] not in skipped:
            yield from _leaf_fields_of(column["type"], (column["name"],), False)


def _leaf_fields_of(kind: Any, path: tuple[str, ...], in_list: bool) -> Iterator[_Leaf]:
    if isinstance(kind, str):
        yield _Leaf(path, kind, in_list)
    elif kind["type"] == "struct":
        for member in kind["fields"]:
            yield from _leaf_fields_of(member["type"], (*path, member["name"]), in_list)
    else:
        for part in ("elementType", "keyType", "valueType"):
            if part in kind:
                yield from _leaf_fields_of(kind[part], path, True)


def _merge(chunks: Sequence[Any], leaf: _Leaf, includes_nan: bool) -> _Bounds:
    """Merge the bounds of all row groups. If one group lacks statistics, the result is unknown."""
    bounds = _Bounds()
    for chunk in chunks:
        stats = chunk.statistics
        nulls = None
        if stats is not None and stats.has_null_count:
            nulls = stats.null_count
        if nulls is None:
            bounds.nulls = None
        elif bounds.nulls is not None:
            bounds.nulls += nulls
        if nulls is not None and nulls == chunk.num_values:
            continue  # a group of nulls does not affect the bounds
        if leaf.kind in _FLOATS:
            low, high = _float_bounds(stats, includes_nan)
        else:
            low, high = _raw_bounds(stats, leaf.kind)
        if low is None:
            bounds.are_known = False
        elif bounds.are_known:
            bounds.low = low if bounds.low is None else min(bounds.low, low, key=_rank)
            if bounds.high is None:
                bounds.high = high
            else:
                bounds.high = max(bounds.high, high, key=_rank)
    return bounds


def _raw_bounds(stats: Any, kind: str) -> tuple[Any, Any]:
    """Return a row group's bounds in a form that compares as the engines do, or (None, None) if they are unknown."""
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


def _float_bounds(stats: Any, includes_nan: bool) -> tuple[float, float]:
    """Return bounds of floats. If they are unknown, return bounds that hold for all floats."""
    if stats is None or not stats.has_min_max:
        return -math.inf, math.nan
    if not includes_nan:
        return stats.min_raw, math.nan
    return stats.min_raw, stats.max_raw


def _rank(value: Any) -> tuple[bool, Any]:
    """Return a sort key by which NaN is greater than everything."""
    if isinstance(value, float) and math.isnan(value):
        return True, 0.0
    return False, value


def _family(kind: str) -> str:
    return "decimal" if kind.startswith("decimal") else kind


def _whole_number(value: Any, kind: str, upper: bool) -> Any:
    return value


def _float(value: Any, kind: str, upper: bool) -> Any:
    if not math.isfinite(value):
        return float_text(value)
    if value == 0:
        return 0.0 if upper else -0.0  # some engines order the two zeros, and writers differ in which one they store
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
    if text and kind == "timestamp":
        return text + "Z"
    return text


def _text(value: Any, kind: str, upper: bool) -> Any:
    """Truncate a text: a prefix is a lower bound, a prefix and the greatest code point an upper bound."""
    if len(value) <= _MAX_CHARS:
        return value
    if not upper:
        return value[:_MAX_CHARS]
    end = _MAX_CHARS
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
    """Set a value in nested objects. None is unknown, and left out."""
    if value is not None:
        for part in path[:-1]:
            into = into.setdefault(part, {})
        into[path[-1]] = value
