"""Judges JSON records that were read as texts, and makes rows of them: for files and for topics, by the same rules.

Spark's own reader of JSON files is faster, and is taken for files in which it can overlook nothing (see `reading`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.connectors.files.formats.exact_values import doubt, doubtful_values
from tidegate.connectors.files.formats.json_records import parse_records
from tidegate.connectors.files.formats.malformed import note
from tidegate.connectors.files.formats.misfits import Names, rescued_json, rows_without_misfits, with_misfits
from tidegate.connectors.schema.ddl import Column as Field
from tidegate.connectors.schema.drift import SchemaPolicy
from tidegate.records.names import quoted
from tidegate.spark.refusals.malformed_record import MISFIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["cases_of_malformed", "judge_records", "values_of_rows"]


def judge_records(
    texts: DataFrame,
    columns: Sequence[Field],
    carried: Sequence[str],
    policy: SchemaPolicy,
    parser: Mapping[str, str],
    names: Names,
    *,
    judge_keys: bool = True,
) -> DataFrame:
    """Return one row for each record: the columns as they are read, its text, and why it is malformed, or null.

    If the policy rescues, the rows have the misfits of each record, too.

    texts: has the columns `value` and `flaw`, as for `parse_records`, and those of `carried`.
    carried: SQL for further columns, which the result has, too.
    judge_keys: False if it is known that all keys are in the schema.
    """
    from pyspark.sql import functions as F

    frame = parse_records(
        texts,
        list(columns),
        carried,
        parser,
        text=names.text,
        why=names.why,
        all_keys=policy.on_new_column == "refuse",
        judge_keys=judge_keys and not policy.rescues,
    )
    if policy.rescues:
        return with_misfits(frame, columns, policy, parser, names)
    flaw = f"CASE WHEN {doubt(list(columns))} THEN '{MISFIT}' END"
    return frame.withColumn(names.why, F.expr(f"coalesce({quoted(names.why)}, {flaw})"))


def values_of_rows(
    columns: Sequence[Field], policy: SchemaPolicy, names: Names, *, is_kept: str | None = None
) -> list[str]:
    """Return SQL for the columns of the rows: those of the schema, and the rescue column if the policy rescues.

    is_kept: SQL that is true if a record's values are kept. Otherwise they are null. None: they always are.
    """
    selected = rows_without_misfits(columns, policy, names)
    if is_kept is not None:
        selected = [_nulled(sql, column, is_kept) for sql, column in zip(selected, columns, strict=True)]
    if policy.rescues:
        selected.append(f"{rescued_json(quoted(names.misfits))} AS {quoted(policy.rescue_column)}")
    return selected


def cases_of_malformed(columns: Sequence[Field], names: Names, source: str, place: str = "") -> str:
    """Return cases of a CASE in SQL that fail at a malformed record. place: SQL for its place, if that is no file."""
    text, why, shown = quoted(names.text), quoted(names.why), list(columns)
    misfit = note(doubtful_values(shown), shown, source, MISFIT, place, line=text)
    malformed = note(text, shown, source, f"CASE WHEN true THEN {why} END", place)
    return f"WHEN {why} = '{MISFIT}' THEN raise_error({misfit}) WHEN {why} IS NOT NULL THEN raise_error({malformed})"


def _nulled(sql: str, column: Field, condition: str) -> str:
    """Return SQL for a column that is null unless the condition is true."""
    name = quoted(column.name)
    return f"CASE WHEN {condition} THEN {sql.removesuffix(f' AS {name}')} END AS {name}"
