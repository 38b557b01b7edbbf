"""Drops the last columns of a Parquet file without rewriting it: only the footer is changed.

What they take up stays in the file, where nobody looks. They are to be short: bits that are nearly always the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.delta.files.access import unavailable
from tidegate.delta.files.thrift import Items, ThriftStruct, decode, encode
from tidegate.errors import Corrupt

__all__ = ["drop_columns"]

_MAGIC = b"PAR1"
_SPARKS = b"org.apache.spark.sql.parquet.row.metadata"
"""The key under which Spark stores the schema that it has written, and by which it reads."""

# Fields of Parquet's footer, by their numbers in its format.
_SCHEMA, _GROUPS, _NOTES, _ORDERS = 2, 4, 5, 7
_NAME, _CHILDREN = 4, 5
_CHUNKS, _BYTES, _PACKED = 1, 2, 6
_ABOUT, _CHUNK_BYTES, _CHUNK_PACKED = 3, 6, 7
_KEY, _VALUE = 1, 2


def drop_columns(path: Path, names: Sequence[str]) -> None:
    """Drop trailing plain columns with these names from an uncommitted Parquet file by editing its footer."""
    try:
        with path.open("r+b") as file:
            size = file.seek(0, 2)
            file.seek(max(size - 8, 0))
            length = int.from_bytes(file.read(4), "little")
            if file.read(4) != _MAGIC or length > size - 12:
                raise ValueError("it does not end as a Parquet file does")
            start = file.seek(-8 - length, 2)
            footer = decode(file.read(length))
            _forget(footer, names)
            encoded = encode(footer)
            file.seek(start)
            file.write(encoded + len(encoded).to_bytes(4, "little") + _MAGIC)
            file.truncate()
    except (ValueError, LookupError, AttributeError, TypeError) as error:  # bad footers decode to anything
        raise Corrupt(
            f"{path} is not the Parquet file that was written there: {error}",
            expected="the file exactly as Spark wrote it",
            help="does another program write into this folder? If not, please report it",
            reason="BAD_PARQUET",
        ) from error
    except OSError as error:
        raise unavailable(str(path), error) from error


def _forget(footer: ThriftStruct, names: Sequence[str]) -> None:
    schema, dropped = footer.get(_SCHEMA).values, len(names)
    last_names = [element.get(_NAME).decode() for element in schema[-dropped:]]
    if last_names != list(names):
        raise ValueError(f"its last columns are {', '.join(last_names)}, not {', '.join(names)}")
    del schema[-dropped:]
    schema[0].put(_CHILDREN, schema[0].get(_CHILDREN) - dropped)
    for group in footer.get(_GROUPS).values:
        _forget_chunks(group, dropped)
    if (orders := footer.get(_ORDERS)) is not None:
        del orders.values[-dropped:]
    for note in (footer.get(_NOTES) or Items(0, [])).values:
        if note.get(_KEY) == _SPARKS:
            row_schema: Any = msgspec.json.decode(note.get(_VALUE))
            row_schema["fields"] = [field for field in row_schema["fields"] if field["name"] not in names]
            note.put(_VALUE, msgspec.json.encode(row_schema))


def _forget_chunks(group: ThriftStruct, dropped: int) -> None:
    chunks = group.get(_CHUNKS).values
    about = [chunk.get(_ABOUT) for chunk in chunks[-dropped:]]
    del chunks[-dropped:]
    group.put(_BYTES, group.get(_BYTES) - sum(chunk.get(_CHUNK_BYTES) for chunk in about))
    if group.get(_PACKED) is not None:
        group.put(_PACKED, group.get(_PACKED) - sum(chunk.get(_CHUNK_PACKED) for chunk in about))
