"""Converts partition values between the folder names that Spark writes and the form in Delta's log.

Spark casts a value to a string for the folder's name. For a timestamp, that depends on the session's time zone, and is
ambiguous in one night each autumn. So timestamps are written as microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from tidegate.delta.files.stats import decimal_text, micros_text
from tidegate.delta.log.schema import columns
from tidegate.errors import Corrupt, Invalid
from tidegate.records.names import quoted
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "folder_of",
    "partition_values",
    "refuse_rows",
    "refuse_unreadable",
    "refused_row",
    "with_plain_partition_text",
]

_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
_SPECIAL = re.compile(r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""The characters that Spark escapes (ExternalCatalogUtils)."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
_YEARS = re.compile(r"(?!0000)[0-9]{4}-")
_REFUSED = "tidegate refuses to write a row"


def with_plain_partition_text(frame: DataFrame, schema: Json, partition_by: Sequence[str]) -> DataFrame:
    """Return the frame with partition columns whose texts do not depend on the session. A text that cannot be a
    folder's name fails the write."""
    from pyspark.sql import functions as F

    by_name = columns(schema)
    plain = {}
    for name in partition_by:
        value = F.col(quoted(name))
        if by_name[name]["type"] == "timestamp":
            plain[name] = F.unix_micros(value)
        elif by_name[name]["type"] == "string":
            is_null_name = f"partition column {name!r} is {_NULL}, which stands for null in the name of a folder"
            is_invalid = f"partition column {name!r} is not valid UTF-8, so it cannot name a folder"
            text = refuse_rows(value, value == F.lit(_NULL), is_null_name)
            plain[name] = refuse_rows(text, ~F.is_valid_utf8(value), is_invalid)
    if not plain:
        return frame
    selected: list[Column | str] = []
    for name in frame.columns:
        selected.append(plain[name].alias(name) if name in plain else quoted(name))
    return frame.select(*selected)


def refuse_rows(value: Column, refused: Column, problem: str) -> Column:
    """Return the values of a column. A row for which `refused` is true fails the write. `refused_row` recognizes the
    error."""
    from pyspark.sql import functions as F

    return F.when(refused, F.raise_error(F.lit(f"{_REFUSED}: {problem}."))).otherwise(value)


def refused_row(error: BaseException) -> Invalid | None:
    """Return tidegate's error if a write failed because of `refuse_rows`, else None."""
    match = re.search(rf"{_REFUSED}: (.*?)\.(\s|$|'|\")", str(error))
    return _bad_row_error(match[1]) if match else None


def _bad_row_error(problem: str, quoted: str = "") -> Invalid:
    return Invalid(
        f"a row cannot be written: {problem}",
        expected="values that every reader of the files reads correctly",
        help='declare the sink with refused="quarantine", or change such values in a stage before it',
        reason="BAD_ROWS",
        quoted=quoted,
    )


def partition_values(path: str, schema: Json, partition_by: Sequence[str]) -> dict[str, str | None]:
    """Return each partition column's value from the folders of `path` (relative to the attempt's folder).

    As in Delta's own writer, empty strings and nulls share a folder: Delta has no empty partition value. Raise Invalid
    for a time outside of the years 1 to 9999, with which delta-rs could not read the table any more.
    """
    texts = dict(_split(folder, path) for folder in path.split("/")[:-1])
    if list(texts) != list(partition_by):
        raise _bad_folder_error(path)
    by_name = columns(schema)
    return {name: _value(name, text, by_name[name]["type"]) for name, text in texts.items()}


def folder_of(name: str, text: str | None) -> str:
    """Return the folder for rows with this text in a partition column, as Spark names it."""
    return f"{_escape(name)}={_escape(text) if text else _NULL}"


def _split(folder: str, path: str) -> tuple[str, str]:
    name, equals, value = folder.partition("=")
    if not equals:
        raise _bad_folder_error(path)
    return _unescape(name), _unescape(value)


def _value(name: str, text: str, kind: str) -> str | None:
    if text == _NULL:
        return None
    outside = f"partition column {name!r} is outside of the years 1 to 9999"
    if kind == "timestamp":
        moment = micros_text(int(text))
        if moment is None:
            raise _bad_row_error(outside, quoted=f"{text} microseconds since 1970")
        return moment + "Z"
    if kind in ("date", "timestamp_ntz") and not _YEARS.match(text):
        raise _bad_row_error(outside, quoted=text)
    if kind.startswith("decimal"):
        return decimal_text(Decimal(text))
    return text


def refuse_unreadable(partitions: Iterable[Mapping[str, str | None]], schema: Json) -> None:
    """Raise Invalid for a decimal such as -0.5 in a Delta table's partition values: delta-rs 1.6 converts it to "0.-5",
    and can then no longer read the table."""
    kinds = {name: field["type"] for name, field in columns(schema).items()}
    for partition in partitions:
        for name, text in partition.items():
            if text is None or not str(kinds.get(name)).startswith("decimal"):
                continue
            if text.startswith("-") and Decimal(text) != Decimal(text).to_integral_value():
                raise _bad_row_error(f"partition column {name!r} is below zero, and not a whole number", quoted=text)


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _unescape(text: str) -> str:
    """Undo Spark's escaping: single ASCII characters, never UTF-8 bytes."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def _bad_folder_error(path: str) -> Corrupt:
    return Corrupt(
        "the folder of a staged file does not name the partition values that Spark should have written",
        expected="one folder <column>=<value> for each partition column",
        help="does another program write into this folder? If not, please report it",
        reason="BAD_PARTITION",
        quoted=path,
    )
