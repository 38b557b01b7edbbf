"""Thrift's compact encoding, used for a Parquet file's footer, as plain Python values and back.

Nothing is known here of what the fields mean: so whatever a footer says is said by its copy, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Items", "ThriftStruct", "decode", "encode"]

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BYTES, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_WHOLE = (_I16, _I32, _I64)


@dataclass
class Items:
    """A list or a set: the type of its items, and the items."""

    kind: int
    values: list[Any]


@dataclass
class ThriftStruct:
    """Values by the numbers of their fields, each with its type, in the order in which they were written."""

    fields: dict[int, tuple[int, Any]]

    def get(self, number: int) -> Any:
        """Return a field's value, or None."""
        return self.fields[number][1] if number in self.fields else None

    def put(self, number: int, value: Any) -> None:
        """Replace the value of an existing field."""
        self.fields[number] = (self.fields[number][0], value)


def decode(data: bytes) -> ThriftStruct:
    """Decode `data`. Raise ValueError or IndexError if it is no such encoding."""
    return _Reader(data).struct()


def encode(value: ThriftStruct) -> bytes:
    """Encode a value."""
    out = bytearray()
    _put_struct(out, value)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def bytes(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self.data):
            raise ValueError("it ends too early")
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        number, shift = 0, 0
        while True:
            byte = self.byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def whole(self) -> int:
        raw = self.varint()
        return raw >> 1 ^ -(raw & 1)

    def struct(self) -> ThriftStruct:
        fields: dict[int, tuple[int, Any]] = {}
        number = 0
        while header := self.byte():
            kind, step = header & 0x0F, header >> 4
            number = number + step if step else self.whole()
            fields[number] = (kind, self.value(kind) if kind not in (_TRUE, _FALSE) else None)
        return ThriftStruct(fields)

    def value(self, kind: int) -> Any:
        if kind in _WHOLE:
            return self.whole()
        if kind in (_TRUE, _FALSE, _BYTE):
            return self.byte()
        if kind == _DOUBLE:
            return self.bytes(8)
        if kind == _BYTES:
            return self.bytes(self.varint())
        if kind in (_LIST, _SET):
            header = self.byte()
            count = header >> 4 if header >> 4 < 15 else self.varint()
            return Items(header & 0x0F, [self.value(header & 0x0F) for _ in range(count)])
        if kind == _STRUCT:
            return self.struct()
        raise ValueError(f"type {kind} is in no Parquet footer")


def _put_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_whole(out: bytearray, value: int) -> None:
    _put_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _put_struct(out: bytearray, value: ThriftStruct) -> None:
    last = 0
    for number, (kind, field_value) in value.fields.items():
        if 0 < number - last < 16:
            out.append(number - last << 4 | kind)
        else:
            out.append(kind)
            _put_whole(out, number)
        last = number
        if kind not in (_TRUE, _FALSE):
            _put(out, kind, field_value)
    out.append(0)


def _put(out: bytearray, kind: int, value: Any) -> None:
    if kind in _WHOLE:
        _put_whole(out, value)
    elif kind in (_TRUE, _FALSE, _BYTE):
        out.append(value)
    elif kind == _DOUBLE:
        out += value
    elif kind == _BYTES:
        _put_varint(out, len(value))
        out += value
    elif kind in (_LIST, _SET):
        count = len(value.values)
        out.append((count if count < 15 else 15) << 4 | value.kind)
        if count >= 15:
            _put_varint(out, count)
        for item in value.values:
            _put(out, value.kind, item)
    else:
        _put_struct(out, value)
