"""Malformed records: found while Spark reads, and reported with file and line. Their text is for whoever may read rows.

Spark's own modes are not enough. DROPMALFORMED loses rows. FAILFAST looks only at the columns that a query
happens to need, after filters that it happened to push down, so that the same file passes today and fails
tomorrow. Here every record is parsed whole and checked before anything downstream sees it, and the failure
carries a note that `malformed_record` turns into an error message for users.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tidegate.connectors.ddl import Column as Field
from tidegate.connectors.files.formats.exact_values import as_declared, doubt, doubtful_values
from tidegate.records.names import quoted
from tidegate.spark.refusals.malformed_record import MARK, MISFIT, SAMPLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["fail_at_malformed", "flag_malformed", "message", "note"]


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


def _rendered_row(columns: list[Field]) -> str:
    return f"cast(struct({', '.join(quoted(column.name) for column in columns)}) AS string)"
