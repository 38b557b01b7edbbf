"""Detects malformed records while Spark reads, and reports them with file and line to users who may read rows.

Spark's own modes are not enough. DROPMALFORMED loses rows. FAILFAST only checks the columns that a query needs, after
the filters that happen to be pushed down, so the same file may pass today and fail tomorrow. Here every record is
parsed completely and checked before any operator downstream sees it, and the failure contains a note that
`malformed_record` turns into an error message for users.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tidegate.connectors.files.formats.exact_values import as_declared, doubt, doubtful_values
from tidegate.connectors.schema.ddl import Column as Field
from tidegate.records.names import quoted
from tidegate.spark.refusals.malformed_record import MARK, MISFIT, SAMPLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["fail_on_malformed", "flag_malformed", "message", "note"]


def fail_on_malformed(frame: DataFrame, columns: list[Field], corrupt: str, source: str) -> DataFrame:
    """Fail at the first record with text in the column `corrupt`, or with a value that its column cannot hold.

    The result does not have the column `corrupt`. Spark treats input_file_name() as nondeterministic, so it pushes
    nothing down through the filter. The note refers to every column, so Spark prunes none from the parser.
    """
    from pyspark.sql import functions as F

    fail = f"raise_error({note(quoted(corrupt), columns, source)})"
    misfit = f"raise_error({note(doubtful_values(columns), columns, source, cause=MISFIT)})"
    good = f"CASE WHEN {quoted(corrupt)} IS NOT NULL THEN {fail} WHEN {doubt(columns)} THEN {misfit} ELSE true END"
    return frame.where(F.expr(good)).selectExpr(*as_declared(columns))


def flag_malformed(frame: DataFrame, columns: list[Field], corrupt: str, *, replaced: bool) -> DataFrame:
    """Keep all rows, with the text of malformed ones in the column `corrupt`.

    `corrupt` depends on all columns, so that the parser checks them all even if a query needs only some.
    replaced: the reader has replaced invalid bytes by U+FFFD.
    """
    from pyspark.sql import functions as F

    text, name = _rendered_row(columns), quoted(corrupt)
    when_replaced = f" WHEN contains({text}, '\ufffd') THEN {text}" if replaced else ""
    corrupt_text = (
        f"CASE WHEN {name} IS NOT NULL THEN substring(concat({name}, {text}), 1, length({name})) "
        f"WHEN {doubt(columns)} THEN {text}{when_replaced} END"
    )
    return frame.withColumn(corrupt, F.expr(corrupt_text)).selectExpr(*as_declared(columns), name)


def note(record: str, columns: list[Field], source: str, cause: str = "", place: str = "", line: str = "") -> str:
    """Return SQL for the message of a failure: source, file, cause and record.

    cause: one of CAUSES, or SQL that returns one.
    place: SQL for the place of a record that is not in a file. Its causes are SENT_CAUSES.
    line: SQL for the record's line, if `record` is only a part of it.
    """
    cause_sql = cause if cause.startswith("CASE ") else f"'{cause}'"
    parsed = _rendered_row(columns)
    place_sql = f"'at', {place}, " if place else ""
    return (
        f"concat('{MARK}', to_json(named_struct('source', '{source}', 'file', input_file_name(), {place_sql}"
        f"'why', {cause_sql}, 'record', left({record}, {SAMPLE}), 'sha', sha2({line or record}, 256), "
        f"'parsed', left({parsed}, {SAMPLE}))))"
    )


def message(source: str, place: str, cause: str, record: str, parsed: str, plain: str = "") -> str:
    """Return the same message as `note`, for a failure that Python detects. plain: the problem without a value."""
    fields = {
        "source": source,
        "file": "",
        "at": place,
        "why": cause,
        "record": record[:SAMPLE],
        "sha": "",
        "parsed": parsed,
        "plain": plain,
    }
    return MARK + json.dumps(fields)


def _rendered_row(columns: list[Field]) -> str:
    return f"cast(struct({', '.join(quoted(column.name) for column in columns)}) AS string)"
