"""Malformed records: found while Spark reads, told apart by file, line and text.

Spark's own modes do not do. DROPMALFORMED loses rows. FAILFAST looks only at the columns that a query
happens to need, after filters that it happened to push down, so that the same file is fine today and not
tomorrow. Here every record is parsed whole and judged before anything downstream sees it, and the failure
carries a note that `malformed_record` turns into an error for people.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import itertools
import json
import os
import re
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from tidegate.errors import Invalid
from tidegate.records.names import quoted
from tidegate.sources.ddl import Column as Field
from tidegate.sources.files.exact_values import doubt, doubtful_values, narrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["flagged", "free_name", "malformed_record", "note", "refused"]

MARK: Final = "TIDEGATE_MALFORMED "
SAMPLE: Final = 256
"""Characters of a record in an error; records may hold what nobody should read in a log."""

LINES_SEARCHED: Final = 2_000_000

MISFIT: Final = "misfit"
WHYS: Final = {
    "": ("malformed record", "", "correct the file, or the schema and options of Files(…)"),
    "unread": (
        "malformed record",
        "one record, and nothing behind it: Spark would read the first and lose the rest",
        "put each record on a line of its own, or all in one array; correct the file",
    ),
    "keys": (
        "record with keys that the schema lacks",
        "keys spelled as in the schema, upper and lower case, too; and with unknown_keys='refuse' no others",
        "spell the column in the schema as the file does, or correct the file",
    ),
    "bytes": (
        "record that is no UTF-8",
        "text in the encoding of the source, else letters would be lost",
        "say how the file is encoded, such as options={'encoding': 'ISO-8859-1'}, or convert it",
    ),
    MISFIT: (
        "a value that its column cannot hold",
        "decimals with no more places than their column has, for they would be rounded; moments in the years 1 to "
        "9999, for a number is taken for seconds since 1970",
        "declare what the file holds, such as decimal(12,3), or long for milliseconds, and let a stage round it, or "
        "make it a moment by timestamp_millis(…)",
    ),
}
"""By what is wrong with a record: what it is, what was expected (else the schema), and what to do."""


def refused(frame: DataFrame, columns: list[Field], corrupt: str, source: str) -> DataFrame:
    """Fail at the first record that has a text in column `corrupt`, or a value that its column cannot hold; without
    that column otherwise.

    input_file_name() is not deterministic to Spark: nothing is pushed down through the filter. The note names
    every column: none is pruned from what is parsed.
    """
    from pyspark.sql import functions as F

    fail = f"raise_error({note(quoted(corrupt), columns, source)})"
    misfit = f"raise_error({note(doubtful_values(columns), columns, source, why=MISFIT)})"
    good = f"CASE WHEN {quoted(corrupt)} IS NOT NULL THEN {fail} WHEN {doubt(columns)} THEN {misfit} ELSE true END"
    return frame.where(F.expr(good)).selectExpr(*narrow(columns))


def flagged(frame: DataFrame, columns: list[Field], corrupt: str, *, replaced: bool) -> DataFrame:
    """Keep all rows; `corrupt` is judged by all columns even if a query needs only some. replaced: bytes that are no
    text have become U+FFFD."""
    from pyspark.sql import functions as F

    text, name = _text(columns), quoted(corrupt)
    lost = f" WHEN contains({text}, '\ufffd') THEN {text}" if replaced else ""
    judged = (
        f"CASE WHEN {name} IS NOT NULL THEN substring(concat({name}, {text}), 1, length({name})) "
        f"WHEN {doubt(columns)} THEN {text}{lost} END"
    )
    return frame.withColumn(corrupt, F.expr(judged)).selectExpr(*narrow(columns), name)


def note(record: str, columns: list[Field], source: str, why: str = "") -> str:
    """SQL for the message of a failure: who, where, what. why: one of WHYS; or SQL that gives one."""
    cause = why if why.startswith("CASE ") else f"'{why}'"
    return (
        f"concat('{MARK}', to_json(named_struct('source', '{source}', 'file', input_file_name(), 'why', {cause}, "
        f"'record', left({record}, {SAMPLE}), 'sha', sha2({record}, 256), 'parsed', left({_text(columns)}, {SAMPLE}))))"
    )


def malformed_record(said: str) -> Invalid | None:
    """The error for people, if `said` (all that Spark reports of a failure) carries our note."""
    at = said.find(MARK)
    if at < 0:
        return None
    try:
        found = json.JSONDecoder().raw_decode(said, at + len(MARK))[0]
        path = unquote(re.sub("^file:/+", "/", found["file"]))
        record, sha, parsed = found["record"], found["sha"], found["parsed"]
    except (ValueError, KeyError, TypeError):
        return None  # cut short by whoever reported it
    line = _line(path, sha)
    cut = " …" if len(record) == SAMPLE else ""
    where = f"in {path}{f', line {line}' if line else ''}: {record}{cut}"
    what, expected, help = WHYS[found.get("why", "")]
    return Invalid(
        f"source {found['source']!r}: {what} {where}",
        expected=expected or f"a record that fits the schema; understood was {parsed}",
        help=f"{help}; or keep such records in a column of their own with on_corrupt='keep'",
        reason="MALFORMED_RECORD",
    )


def free_name(name: str, columns: list[Field]) -> str:
    """`name`, or one like it that no column has."""
    taken = {column.name.lower() for column in columns}
    while name in taken:
        name += "_"
    return name


def _text(columns: list[Field]) -> str:
    return f"cast(struct({', '.join(quoted(column.name) for column in columns)}) AS string)"


def _line(path: str, sha: str) -> int | None:
    """The number of the line that hashes to `sha`, if the file is at hand."""
    if not os.path.isfile(path):
        return None
    opener: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(os.path.splitext(path)[1], open)
    try:
        with opener(path, "rb") as file:
            lines: IO[bytes] = file
            for number, line in enumerate(itertools.islice(lines, LINES_SEARCHED), 1):
                if hashlib.sha256(line.rstrip(b"\r\n")).hexdigest() == sha:
                    return number
    except (OSError, EOFError):
        return None
    return None
