"""Values as something that can be compared to the last bit, whoever read them: Arrow's, or those of a JSON document.

As Spark groups them, NaN equals NaN, and -0.0 is 0.0. A moment is its microseconds, a day its number since 1970, a text
its bytes: so nothing is beyond what can be compared.
"""

from __future__ import annotations

import base64
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as types

__all__ = ["differences", "exact_rows", "exact_rows_of_json", "in_utf8"]

_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_MOMENT = re.compile(
    r"([+-]?\d{4,})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:Z|\+00(?::00)?)?)?( BC)?"
)

Row = tuple[Any, ...]


def exact_rows(table: pa.Table, columns: Sequence[str]) -> Counter[Row]:
    """Rows of Arrow, in any order."""
    found = [[_exact(value) for value in table.column(table.schema.get_field_index(name))] for name in columns]
    return Counter(zip(*found, strict=True)) if columns else Counter()


def _exact(value: Any) -> Any:
    kind = value.type
    if not value.is_valid:
        return None
    if types.is_floating(kind):
        return _number(value.as_py())
    if types.is_timestamp(kind):
        return "moment" if kind.tz else "local", _in_micros(value.value, kind.unit)
    if types.is_date32(kind):
        return "day", value.value
    if types.is_string(kind) or types.is_large_string(kind):
        return "text", bytes(value.as_buffer())
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return "text" if types.is_string_view(kind) else "bytes", bytes(value.as_buffer())
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes", bytes(value.as_buffer())
    if types.is_struct(kind):
        return "struct", tuple((kind.field(place).name, _exact(value[place])) for place in range(kind.num_fields))
    if types.is_map(kind):
        entries = value.values
        pairs = zip(entries.field(0), entries.field(1), strict=True)
        return "map", frozenset((_exact(key), _exact(item)) for key, item in pairs)
    if types.is_list(kind) or types.is_large_list(kind):
        return "list", tuple(_exact(each) for each in value.values)
    if types.is_dictionary(kind):
        return _exact(value.value)
    if types.is_duration(kind):
        return "interval", _in_micros(value.value, kind.unit)
    if types.is_decimal(kind):
        return Decimal(value.as_py()).normalize() if value.as_py() else Decimal(0)
    return value.as_py()


def _in_micros(count: int, unit: str) -> int:
    return count // 1000 if unit == "ns" else count * _MICROS[unit]


def _number(number: float) -> float | str:
    return "NaN" if number != number else number + 0.0


# -- documents -------------------------------------------------------------------------------------------------


def exact_rows_of_json(rows: Iterable[Mapping[str, Any]], schema: pa.Schema, columns: Sequence[str]) -> Counter[Row]:
    """Rows of a document, whose columns have these types. Bytes that are no text come as `in_utf8` writes them."""
    return Counter(tuple(_of_json(row.get(name), schema.field(name).type) for name in columns) for row in rows)


def _of_json(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if types.is_float32(kind):
        return _number(struct.unpack("f", struct.pack("f", float(value)))[0])
    if types.is_floating(kind):
        return _number(float(value))
    if types.is_timestamp(kind):
        return "moment" if kind.tz else "local", _micros_of(value)
    if types.is_date32(kind):
        return "day", _micros_of(value) // 86_400_000_000
    if types.is_string(kind) or types.is_large_string(kind):
        return "text", str(value).encode()
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "bytes", base64.b64decode(value)
    if types.is_struct(kind):
        return "struct", tuple((field.name, _of_json(value.get(field.name), field.type)) for field in kind)
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return "map", frozenset((_of_json(key, kind.key_type), _of_json(item, kind.item_type)) for key, item in pairs)
    if types.is_list(kind) or types.is_large_list(kind):
        return "list", tuple(_of_json(each, kind.value_type) for each in value)
    if types.is_decimal(kind):
        return Decimal(value).normalize() if Decimal(value) else Decimal(0)
    return value


def _micros_of(text: str) -> int:
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no moment")
    year, month, day, hour, minute, second = (int(each or 0) for each in found.groups()[:6])
    part = int((found[7] or "").ljust(6, "0"))
    year = 1 - year if found[8] else year
    return ((_days(year, month, day) * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + part


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970, in the calendar of today for all times."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def in_utf8(value: Any) -> Any:
    """The value as a document shows it: each byte that is no text as \\xE8."""
    if isinstance(value, frozenset):
        return frozenset(map(in_utf8, value))
    if not isinstance(value, tuple):
        return value
    if len(value) == 2 and value[0] == "text" and isinstance(value[1], bytes):
        return "text", _readable(value[1])
    return tuple(map(in_utf8, value))


def _readable(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError:
        decoded = text.replace(b"\\x", b"\\x5Cx").decode("utf-8", "surrogateescape")
        return "".join(f"\\x{ord(c) - 0xDC00:02X}" if "\udc80" <= c <= "\udcff" else c for c in decoded).encode()
    return text


# -- what is told ----------------------------------------------------------------------------------------------


def differences(found: Counter[Row], wanted: Counter[Row]) -> str:
    """How the rows differ; empty if they do not."""
    if found == wanted:
        return ""
    more, missing = found - wanted, wanted - found
    return f"{more.total()} too many: {_some(more)}; {missing.total()} missing: {_some(missing)}"


def _some(rows: Counter[Row]) -> str:
    return ", ".join(f"{str(row)[:300]} ×{count}" for row, count in list(rows.items())[:3])
