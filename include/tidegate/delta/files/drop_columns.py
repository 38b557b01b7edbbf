"""Drops the last columns of a Parquet file without rewriting it, by editing the footer.

Their data remains in the file, unreferenced, so they should be small, such as bits that are nearly always the same.
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
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
"""The key under which Spark stores the schema of the rows, and looks it up when it reads."""

# The numbers of fields in the format of Parquet's footer.
_SCHEMA, _GROUPS, _METADATA, _ORDERS = 2, 4, 5, 7
_NAME, _CHILDREN = 4, 5
_CHUNKS, _BYTES, _PACKED = 1, 2, 6
_CHUNK_METADATA, _CHUNK_BYTES, _CHUNK_PACKED = 3, 6, 7
_KEY, _VALUE = 1, 2


def drop_columns(path: Path, names: Sequence[str]) -> None:
    """Drop trailing plain columns with these names from an uncommitted Parquet file by editing its footer."""
    try:
        with path.open("r+b") as file:
            size = file.seek(0, 2)
            file.seek(max(size - 8, 0))
            length = int.from_bytes(file.read(4), "little")
            if file.read(4) != _MAGIC or length > size - 12:
                raise ValueError("it does not end like a Parquet file")
            start = file.seek(-8 - length, 2)
            footer = decode(file.read(length))
            _drop_from_footer(footer, names)
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


def _drop_from_footer(footer: ThriftStruct, names: Sequence[str]) -> None:
    schema, dropped = footer.get(_SCHEMA).values, len(names)
    last_names = [element.get(_NAME).decode() for element in schema[-dropped:]]
    if last_names != list(names):
        raise ValueError(f"its last columns are {', '.join(last_names)}, not {', '.join(names)}")
    del schema[-dropped:]
    schema[0].put(_CHILDREN, schema[0].get(_CHILDREN) - dropped)
    for group in footer.get(_GROUPS).values:
        _drop_from_group(group, dropped)
    orders = footer.get(_ORDERS)
    if orders is not None:
        del orders.values[-dropped:]
    for entry in (footer.get(_METADATA) or Items(0, [])).values:
        if entry.get(_KEY) == _SPARK_SCHEMA:
            row_schema: Any = msgspec.json.decode(entry.get(_VALUE))
            row_schema["fields"] = [field for field in row_schema["fields"] if field["name"] not in names]
            entry.put(_VALUE, msgspec.json.encode(row_schema))


def _drop_from_group(group: ThriftStruct, dropped: int) -> None:
    chunks = group.get(_CHUNKS).values
    dropped_metadata = [chunk.get(_CHUNK_METADATA) for chunk in chunks[-dropped:]]
    del chunks[-dropped:]
    group.put(_BYTES, group.get(_BYTES) - sum(metadata.get(_CHUNK_BYTES) for metadata in dropped_metadata))
    if group.get(_PACKED) is not None:
        group.put(_PACKED, group.get(_PACKED) - sum(metadata.get(_CHUNK_PACKED) for metadata in dropped_metadata))
