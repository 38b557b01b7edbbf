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
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from tidegate.errors import Invalid
from tidegate.model.names import quoted
from tidegate.sources.ddl import Column as Field

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["flagged", "free_name", "joined_lines", "malformed_record", "note", "refused"]

MARK: Final = "TIDEGATE_MALFORMED "
SAMPLE: Final = 256
"""Characters of a record in an error; records may hold what nobody should read in a log."""

LINES_SEARCHED: Final = 2_000_000


def refused(frame: DataFrame, columns: list[Field], corrupt: str, source: str) -> DataFrame:
    """Fail at the first record that has a text in column `corrupt`; without that column otherwise.

    input_file_name() is not deterministic to Spark: nothing is pushed down through the filter. The note names
    every column: none is pruned from what is parsed.
    """
    from pyspark.sql import functions as F

    fail = f"raise_error({note(quoted(corrupt), columns, source)})"
    good = f"CASE WHEN {quoted(corrupt)} IS NOT NULL THEN {fail} ELSE true END"
    return frame.where(F.expr(good)).drop(corrupt)


def flagged(frame: DataFrame, columns: list[Field], corrupt: str) -> DataFrame:
    """Keep all rows; `corrupt` is judged by all columns even if a query needs only some."""
    from pyspark.sql import functions as F

    text, name = _text(columns), quoted(corrupt)
    judged = f"CASE WHEN {name} IS NOT NULL THEN substring(concat({name}, {text}), 1, length({name})) END"
    return frame.withColumn(corrupt, F.expr(judged))


def joined_lines(columns: list[Field], options: Mapping[str, str]) -> Column:
    """A condition on the lines of JSON files: begins with a good object, but something follows it.

    Spark takes the first object of a line and loses the rest in silence. Such lines come from files that were put
    together without a newline between them. Cheap tests come first: the exact ones are for the few lines left.
    """
    from pyspark.sql import functions as F

    value, fields = F.col("value"), ", ".join(column.ddl for column in columns)
    corrupt = free_name("_corrupt", columns)
    parser = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
    first = F.from_json(value, f"{fields}, {corrupt} string", parser)
    wrapped = F.concat(F.lit('{"r":['), value, F.lit("]}"))
    whole = F.from_json(wrapped, f"r array<string>, {corrupt} string", parser)
    ends = ~F.rtrim(value).endswith("}") & (F.trim(value) != F.lit(""))
    return (
        (value.contains("}{") | value.contains("} {") | ends)
        & first[corrupt].isNull()
        & (whole[corrupt].isNotNull() | (F.size(whole["r"]) != F.lit(1)))
    )


def note(record: str, columns: list[Field], source: str) -> str:
    """SQL for the message of a failure: who, where, what."""
    return (
        f"concat('{MARK}', to_json(named_struct('source', '{source}', 'file', input_file_name(), "
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
    return Invalid(
        f"source {found['source']!r}: malformed record in {path}{f', line {line}' if line else ''}: {record}{cut}",
        expected=f"a record that fits the schema; understood was {parsed}",
        help="correct the file, or the schema and options of Files(…); or keep such records in a column of "
        "their own with on_corrupt='keep'",
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
