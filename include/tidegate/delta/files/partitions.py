"""Partition values: the folder names that Spark is made to write, and their form in Delta's log.

A folder's name goes through Spark's cast to string, in which a timestamp depends on the session's zone and
means two instants in one night each autumn. Timestamps are therefore written as microseconds.
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
"""What Spark escapes (ExternalCatalogUtils)."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
_YEARS = re.compile(r"(?!0000)[0-9]{4}-")
_REFUSED = "tidegate refuses to write a row"


def with_plain_partition_text(frame: DataFrame, schema: Json, partition_by: Sequence[str]) -> DataFrame:
    """Return the frame with partition columns whose text means the same everywhere. A text that cannot name a folder
    fails the write."""
    from pyspark.sql import functions as F

    by_name = columns(schema)
    plain = {}
    for name in partition_by:
        value = F.col(quoted(name))
        if by_name[name]["type"] == "timestamp":
            plain[name] = F.unix_micros(value)
        elif by_name[name]["type"] == "string":
            stands_for_null = f"partition column {name!r} is {_NULL}, which stands for null in the name of a folder"
            invalid = f"partition column {name!r} is not valid UTF-8, and so cannot name a folder"
            text = refuse_rows(value, value == F.lit(_NULL), stands_for_null)
            plain[name] = refuse_rows(text, ~F.is_valid_utf8(value), invalid)
    if not plain:
        return frame
    return frame.select(*(plain[name].alias(name) if name in plain else quoted(name) for name in frame.columns))


def refuse_rows(value: Column, refused: Column, why: str) -> Column:
    """Return the values of a column. A row for which `refused` holds fails the write, with `refused_row` as its
    error."""
    from pyspark.sql import functions as F

    return F.when(refused, F.raise_error(F.lit(f"{_REFUSED}: {why}."))).otherwise(value)


def refused_row(error: BaseException) -> Invalid | None:
    """Return tidegate's error if a write has failed because of a row that `refuse_rows` does not let pass."""
    found = re.search(rf"{_REFUSED}: (.*?)\.(\s|$|'|\")", str(error))
    return _unfit(found[1]) if found else None


def _unfit(what: str, quoted: str = "") -> Invalid:
    return Invalid(
        f"a row cannot be written: {what}",
        expected="values that every reader of the files takes for what they are",
        help="change such values in a stage before the sink, quarantine the rows with a gate, or declare the sink in "
        "another way",
        reason="BAD_ROWS",
        quoted=quoted,
    )


def partition_values(path: str, schema: Json, partition_by: Sequence[str]) -> dict[str, str | None]:
    """Return each partition column's value from the folders of `path` (relative to the attempt's folder).

    An empty string and null share a folder, as in Delta's own writer: Delta has no empty partition value. Raise Invalid
    for a moment or a day outside of the years 1 to 9999, which would make the table unreadable for delta-rs.
    """
    texts = dict(_split(folder, path) for folder in path.split("/")[:-1])
    if list(texts) != list(partition_by):
        raise _strange(path)
    by_name = columns(schema)
    return {name: _value(name, text, by_name[name]["type"]) for name, text in texts.items()}


def folder_of(name: str, text: str | None) -> str:
    """Return the folder for rows with this text in a partition column, as Spark names it."""
    return f"{_escape(name)}={_escape(text) if text else _NULL}"


def _split(folder: str, path: str) -> tuple[str, str]:
    name, equals, value = folder.partition("=")
    if not equals:
        raise _strange(path)
    return _unescape(name), _unescape(value)


def _value(name: str, text: str, kind: str) -> str | None:
    if text == _NULL:
        return None
    if kind == "timestamp" and (moment_text := micros_text(int(text))) is not None:
        return moment_text + "Z"
    if kind == "timestamp" or (kind in ("date", "timestamp_ntz") and not _YEARS.match(text)):
        moment = f"{text} microseconds since 1970" if kind == "timestamp" else text
        raise _unfit(f"partition column {name!r} is outside of the years 1 to 9999", quoted=moment)
    return decimal_text(Decimal(text)) if kind.startswith("decimal") else text


def refuse_unreadable(partitions: Iterable[Mapping[str, str | None]], schema: Json) -> None:
    """Raise Invalid for a decimal such as -0.5 in the partition values of a Delta table: delta-rs 1.6 takes it for
    "0.-5", and then no longer reads the table."""
    kinds = {name: field["type"] for name, field in columns(schema).items()}
    for partition in partitions:
        for name, text in partition.items():
            if text is None or not str(kinds.get(name)).startswith("decimal"):
                continue
            if text.startswith("-") and Decimal(text) % 1 != 0:
                raise _unfit(f"partition column {name!r} is below zero, and no whole number", quoted=text)


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _unescape(text: str) -> str:
    """Undo Spark's escaping: single ASCII characters, never UTF-8 bytes."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def _strange(path: str) -> Corrupt:
    return Corrupt(
        "the folder of a file that was staged does not name the partition values that Spark should have written",
        expected="one folder <column>=<value> for each partition column",
        help="does another program write into this folder? If not, please report it",
        reason="BAD_PARTITION",
        quoted=path,
    )
