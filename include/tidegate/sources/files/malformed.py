"""Malformed records: found while Spark reads, and reported with file and line. Their text is for whoever may read rows.

Spark's own modes are not enough. DROPMALFORMED loses rows. FAILFAST looks only at the columns that a query
happens to need, after filters that it happened to push down, so that the same file passes today and fails
tomorrow. Here every record is parsed whole and checked before anything downstream sees it, and the failure
carries a note that `malformed_record` turns into an error message for users.
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
from tidegate.sources.files.exact_values import as_declared, doubt, doubtful_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["MISFIT", "fail_at_malformed", "flag_malformed", "malformed_record", "message", "note"]

MARK: Final = "TIDEGATE_MALFORMED "
SAMPLE: Final = 256
"""Characters of a record that an error quotes."""

LINES_SEARCHED: Final = 2_000_000

MISFIT: Final = "misfit"
CAUSES: Final = {
    "": ("malformed record", "", "correct the file, or the schema and options of Files(…)"),
    "unread": (
        "malformed record",
        "one record, and nothing after it: Spark would read the first and lose the rest",
        "put each record on a line of its own, or all in one array; correct the file",
    ),
    "keys": (
        "record with keys that the schema lacks",
        "keys spelled as in the schema, including upper and lower case; with unknown_keys='refuse' no others",
        "spell the column in the schema as the file does, or correct the file",
    ),
    "bytes": (
        "record that is not UTF-8",
        "text in the encoding of the source; otherwise characters would be lost",
        "name the file's encoding, such as options={'encoding': 'ISO-8859-1'}, or convert it",
    ),
    MISFIT: (
        "a value that its column cannot hold",
        "decimals with no more places than their column has, since they would be rounded; timestamps in the years 1 "
        "to 9999, since a number is taken for seconds since 1970",
        "declare what the file holds, such as decimal(12,3), or long for milliseconds, and let a stage round it, or "
        "convert it with timestamp_millis(…)",
    ),
}
"""By the cause: the name of the problem, what was expected (empty: the schema), and what to do."""

SENT_CAUSES: Final = {
    "": ("malformed record", "", "correct what sends such records, or the schema of Kafka(…)"),
    "unread": (
        "more than one record",
        "one JSON object, and nothing after it",
        "send each record by itself",
    ),
    "keys": (
        "record with keys that the schema lacks",
        "keys spelled as in the schema, including upper and lower case; with unknown_keys='refuse' no others",
        "spell the column in the schema as the sender does, or correct the sender",
    ),
    "bytes": (
        "record that is not UTF-8",
        "text in UTF-8; otherwise characters would be lost",
        "correct what sends such records, or read them with value='bytes'",
    ),
    "key": (
        "record whose key is not UTF-8",
        "a key in UTF-8; otherwise characters would be lost",
        "correct what sends such records, or declare key='bytes'",
    ),
    "tombstone": (
        "record without a value",
        "records that have one, unless tombstones are skipped or kept",
        "set tombstones='keep', for a column _deleted that DeltaUpsert can delete by, or tombstones='skip'",
    ),
    MISFIT: (
        *CAUSES[MISFIT][:2],
        "declare what is sent, such as decimal(12,3), or long for milliseconds, and let a stage round it, or convert "
        "it with timestamp_millis(…)",
    ),
}
"""The same for records of a topic, which have no file."""


def fail_at_malformed(frame: DataFrame, columns: list[Field], corrupt: str, source: str) -> DataFrame:
    """Fail at the first record that has text in column `corrupt`, or a value that its column cannot hold. Good rows
    lose column `corrupt`.

    Spark treats input_file_name() as not deterministic, so it pushes nothing down through the filter. The note names
    every column, so none is pruned from the parser.
    """
    from pyspark.sql import functions as F

    fail = f"raise_error({note(quoted(corrupt), columns, source)})"
    misfit = f"raise_error({note(doubtful_values(columns), columns, source, why=MISFIT)})"
    good = f"CASE WHEN {quoted(corrupt)} IS NOT NULL THEN {fail} WHEN {doubt(columns)} THEN {misfit} ELSE true END"
    return frame.where(F.expr(good)).selectExpr(*as_declared(columns))


def flag_malformed(frame: DataFrame, columns: list[Field], corrupt: str, *, replaced: bool) -> DataFrame:
    """Keep all rows. `corrupt` depends on all columns, even if a query needs only some. replaced: the reader has
    replaced invalid bytes by U+FFFD."""
    from pyspark.sql import functions as F

    text, name = _rendered_row(columns), quoted(corrupt)
    when_replaced = f" WHEN contains({text}, '\ufffd') THEN {text}" if replaced else ""
    judged = (
        f"CASE WHEN {name} IS NOT NULL THEN substring(concat({name}, {text}), 1, length({name})) "
        f"WHEN {doubt(columns)} THEN {text}{when_replaced} END"
    )
    return frame.withColumn(corrupt, F.expr(judged)).selectExpr(*as_declared(columns), name)


def note(record: str, columns: list[Field], source: str, why: str = "", at: str = "") -> str:
    """Return SQL for the message of a failure: source, file, cause and record. why: one of CAUSES, or SQL that returns
    one. at: SQL for the place of a record that is in no file, whose causes are SENT_CAUSES."""
    cause = why if why.startswith("CASE ") else f"'{why}'"
    parsed = _rendered_row(columns)
    place = f"'at', {at}, " if at else ""
    return (
        f"concat('{MARK}', to_json(named_struct('source', '{source}', 'file', input_file_name(), {place}"
        f"'why', {cause}, 'record', left({record}, {SAMPLE}), 'sha', sha2({record}, 256), "
        f"'parsed', left({parsed}, {SAMPLE}))))"
    )


def message(source: str, at: str, why: str, record: str, parsed: str, plain: str = "") -> str:
    """Return the message of a failure that Python finds, not SQL: see `note`. plain: what is wrong, without a value."""
    told = {"source": source, "file": "", "at": at, "why": why, "record": record[:SAMPLE], "sha": "", "parsed": parsed}
    told["plain"] = plain
    return MARK + json.dumps(told)


def malformed_record(report: str) -> Invalid | None:
    """Return the error to show to users, if `report` (all that Spark says about a failure) contains our note."""
    start = report.find(MARK)
    if start < 0:
        return None
    try:
        fields = json.JSONDecoder().raw_decode(report, start + len(MARK))[0]
        path = unquote(re.sub("^file:/+", "/", fields["file"]))
        record, sha, parsed = fields.get("record") or "", fields.get("sha") or "", fields["parsed"]
    except (ValueError, KeyError, TypeError):
        return None  # cut short by the process that reported it
    cut = " …" if len(record) == SAMPLE else ""
    if at := fields.get("at"):
        place, causes = f"at {at}", SENT_CAUSES
    else:
        line = _line_number(path, sha)
        place, causes = f"in {path}{f', line {line}' if line else ''}", CAUSES
    place += f": {plain}" if (plain := fields.get("plain")) else ""
    problem, expected, help = causes[fields.get("why", "")]
    return Invalid(
        f"source {fields['source']!r}: {problem} {place}",
        expected=expected or "a record that fits the schema",
        help=f"{help}; or keep such records in a column of their own with on_corrupt='keep'",
        reason="MALFORMED_RECORD",
        quoted=f"{record}{cut}\nUnderstood was {parsed}",
    )


def _rendered_row(columns: list[Field]) -> str:
    return f"cast(struct({', '.join(quoted(column.name) for column in columns)}) AS string)"


def _line_number(path: str, sha: str) -> int | None:
    """Return the number of the line that hashes to `sha`, if the file is local and readable."""
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
