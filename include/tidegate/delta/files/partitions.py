"""Partition values: the folder names that Spark is made to write, and their form in Delta's log.

A folder's name goes through Spark's cast to string, in which a timestamp depends on the session's zone and
means two instants in one night each autumn. Timestamps are therefore written as microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from tidegate.delta.files.stats import decimal_text, micros_text
from tidegate.delta.log.schema import columns
from tidegate.errors import Corrupt
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["folder_of", "partition_values", "with_plain_partition_text"]

_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
_SPECIAL = re.compile(r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""What Spark escapes (ExternalCatalogUtils)."""
_NULL = "__HIVE_DEFAULT_PARTITION__"


def with_plain_partition_text(frame: DataFrame, schema: Json, partition_by: Sequence[str]) -> DataFrame:
    """Return the frame with partition columns whose text means the same everywhere."""
    by_name = columns(schema)
    micros = {name for name in partition_by if by_name[name]["type"] == "timestamp"}
    if not micros:
        return frame
    quoted = {name: "`" + name.replace("`", "``") + "`" for name in by_name}
    return frame.selectExpr(
        *(f"unix_micros({quoted[name]}) AS {quoted[name]}" if name in micros else quoted[name] for name in by_name)
    )


def partition_values(path: str, schema: Json, partition_by: Sequence[str]) -> dict[str, str | None]:
    """Return each partition column's value from the folders of `path` (relative to the attempt's folder).

    An empty string and null share a folder, as in Delta's own writer: Delta has no empty partition value.
    """
    texts = dict(_split(folder, path) for folder in path.split("/")[:-1])
    if list(texts) != list(partition_by):
        raise _strange(path)
    by_name = columns(schema)
    return {name: _value(text, by_name[name]["type"], path) for name, text in texts.items()}


def folder_of(name: str, text: str | None) -> str:
    """Return the folder for rows with this text in a partition column, as Spark names it."""
    return f"{_escape(name)}={_escape(text) if text else _NULL}"


def _split(folder: str, path: str) -> tuple[str, str]:
    name, equals, value = folder.partition("=")
    if not equals:
        raise _strange(path)
    return _unescape(name), _unescape(value)


def _value(text: str, kind: str, path: str) -> str | None:
    if text == _NULL:
        return None
    if kind == "timestamp":
        if (moment_text := micros_text(int(text))) is None:
            raise _strange(path)
        return moment_text + "Z"
    return decimal_text(Decimal(text)) if kind.startswith("decimal") else text


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _unescape(text: str) -> str:
    """Undo Spark's escaping: single ASCII characters, never UTF-8 bytes."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def _strange(path: str) -> Corrupt:
    return Corrupt(
        f"the folder of {path!r} does not name the partition values that Spark should have written",
        expected="one folder <column>=<value> for each partition column",
        help="does another program write into this folder? If not, please report it",
        reason="BAD_PARTITION",
    )
