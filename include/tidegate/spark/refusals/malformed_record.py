"""The error for a malformed record, from the note that a reader put into Spark's error message.

Only users who may read rows see its text. `connectors/files/formats/malformed.py` and the readers of Kafka write the
notes.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import itertools
import json
import os
import re
from typing import IO, Any, Final
from urllib.parse import unquote

from tidegate.errors import Invalid

__all__ = ["CAUSES", "MARK", "MISFIT", "SAMPLE", "SENT_CAUSES", "malformed_record"]

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
        "keys spelled as in the schema, including upper and lower case; with on_new_column='refuse' no others",
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
        "keys spelled as in the schema, including upper and lower case; with on_new_column='refuse' no others",
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
"""The same for records of a topic."""


def malformed_record(report: str) -> Invalid | None:
    """Return the error for users, if `report` (Spark's messages about a failure) contains a reader's note."""
    start = report.find(MARK)
    if start < 0:
        return None
    try:
        fields = json.JSONDecoder().raw_decode(report, start + len(MARK))[0]
        path = unquote(re.sub("^file:/+", "/", fields["file"]))
        record, sha, parsed = fields.get("record") or "", fields.get("sha") or "", fields["parsed"]
    except (ValueError, KeyError, TypeError):
        return None  # truncated by the process that reported it
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
