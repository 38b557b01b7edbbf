"""Decodes and encodes Thrift's compact protocol, in which a Parquet file's footer is written.

It does not know the meaning of any field, so encoding a decoded footer preserves all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Items", "ThriftStruct", "decode", "encode"]

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BYTES, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_INTEGERS = (_I16, _I32, _I64)


@dataclass
class Items:
    """A list or a set. `kind` is the type of its items."""

    kind: int
    values: list[Any]


@dataclass
class ThriftStruct:
    """A struct."""

    fields: dict[int, tuple[int, Any]]
    """Type and value by number of the field, in the order in which they were written."""

    def get(self, number: int) -> Any:
        """Return a field's value, or None."""
        if number in self.fields:
            return self.fields[number][1]
        return None

    def put(self, number: int, value: Any) -> None:
        """Replace the value of an existing field."""
        self.fields[number] = (self.fields[number][0], value)


def decode(data: bytes) -> ThriftStruct:
    """Decode a struct. Raise ValueError or IndexError if the data is malformed."""
    return _Reader(data).struct()


def encode(value: ThriftStruct) -> bytes:
    """Encode a struct."""
    out = bytearray()
    _put_struct(out, value)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def byte(self) -> int:
        self.offset += 1
        return self.data[self.offset - 1]

    def bytes(self, count: int) -> bytes:
        self.offset += count
        if self.offset > len(self.data):
            raise ValueError("it ends too early")
        return self.data[self.offset - count : self.offset]

    def varint(self) -> int:
        number, shift = 0, 0
        while True:
            byte = self.byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def integer(self) -> int:
        raw = self.varint()  # zigzag encoding
        return raw >> 1 ^ -(raw & 1)

    def struct(self) -> ThriftStruct:
        fields: dict[int, tuple[int, Any]] = {}
        number = 0
        while header := self.byte():
            kind, step = header & 0x0F, header >> 4
            number = number + step if step else self.integer()
            value = None
            if kind not in (_TRUE, _FALSE):  # a boolean field has its value in its type
                value = self.value(kind)
            fields[number] = (kind, value)
        return ThriftStruct(fields)

    def value(self, kind: int) -> Any:
        if kind in _INTEGERS:
            return self.integer()
        if kind in (_TRUE, _FALSE, _BYTE):
            return self.byte()
        if kind == _DOUBLE:
            return self.bytes(8)
        if kind == _BYTES:
            return self.bytes(self.varint())
        if kind in (_LIST, _SET):
            header = self.byte()
            item_kind, count = header & 0x0F, header >> 4
            if count == 15:
                count = self.varint()
            return Items(item_kind, [self.value(item_kind) for _ in range(count)])
        if kind == _STRUCT:
            return self.struct()
        raise ValueError(f"type {kind} does not occur in a Parquet footer")


def _put_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_integer(out: bytearray, value: int) -> None:
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    _put_varint(out, zigzag)


def _put_struct(out: bytearray, value: ThriftStruct) -> None:
    last = 0
    for number, (kind, field_value) in value.fields.items():
        if 0 < number - last < 16:
            out.append(number - last << 4 | kind)
        else:
            out.append(kind)
            _put_integer(out, number)
        last = number
        if kind not in (_TRUE, _FALSE):
            _put(out, kind, field_value)
    out.append(0)


def _put(out: bytearray, kind: int, value: Any) -> None:
    if kind in _INTEGERS:
        _put_integer(out, value)
    elif kind in (_TRUE, _FALSE, _BYTE):
        out.append(value)
    elif kind == _DOUBLE:
        out += value
    elif kind == _BYTES:
        _put_varint(out, len(value))
        out += value
    elif kind in (_LIST, _SET):
        count = len(value.values)
        out.append(min(count, 15) << 4 | value.kind)
        if count >= 15:
            _put_varint(out, count)
        for item in value.values:
            _put(out, value.kind, item)
    else:
        _put_struct(out, value)
