"""Takes the last columns out of a Parquet file without writing it anew: only its footer says that they are there.

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
"""Under this key Spark notes the schema that it has written; it goes by it when it reads."""

# Fields of Parquet's footer, by their numbers in its format.
_SCHEMA, _GROUPS, _NOTES, _ORDERS = 2, 4, 5, 7
_NAME, _CHILDREN = 4, 5
_CHUNKS, _BYTES, _PACKED = 1, 2, 6
_ABOUT, _CHUNK_BYTES, _CHUNK_PACKED = 3, 6, 7
_KEY, _VALUE = 1, 2


def drop_columns(path: Path, names: Sequence[str]) -> None:
    """Let a file of nobody else's have no columns of these names. They are its last ones, and plain ones."""
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
            said = encode(footer)
            file.seek(start)
            file.write(said + len(said).to_bytes(4, "little") + _MAGIC)
            file.truncate()
    except (
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:  # what is no footer may be decoded to anything
        raise Corrupt(
            f"{path} is not the Parquet file that was written there: {error}",
            expected="the file exactly as Spark wrote it",
            help="does another program write into this folder? If not, please report it",
            reason="BAD_PARQUET",
        ) from error
    except OSError as error:
        raise unavailable(str(path), error) from error


def _forget(footer: ThriftStruct, names: Sequence[str]) -> None:
    schema, gone = footer.get(_SCHEMA).values, len(names)
    there = [element.get(_NAME).decode() for element in schema[-gone:]]
    if there != list(names):
        raise ValueError(f"its last columns are {', '.join(there)}, not {', '.join(names)}")
    del schema[-gone:]
    schema[0].put(_CHILDREN, schema[0].get(_CHILDREN) - gone)
    for group in footer.get(_GROUPS).values:
        _forget_chunks(group, gone)
    if (orders := footer.get(_ORDERS)) is not None:
        del orders.values[-gone:]
    for note in (footer.get(_NOTES) or Items(0, [])).values:
        if note.get(_KEY) == _SPARKS:
            told: Any = msgspec.json.decode(note.get(_VALUE))
            told["fields"] = [field for field in told["fields"] if field["name"] not in names]
            note.put(_VALUE, msgspec.json.encode(told))


def _forget_chunks(group: ThriftStruct, gone: int) -> None:
    chunks = group.get(_CHUNKS).values
    about = [chunk.get(_ABOUT) for chunk in chunks[-gone:]]
    del chunks[-gone:]
    group.put(_BYTES, group.get(_BYTES) - sum(each.get(_CHUNK_BYTES) for each in about))
    if group.get(_PACKED) is not None:
        group.put(_PACKED, group.get(_PACKED) - sum(each.get(_CHUNK_PACKED) for each in about))
