"""Decides which tables delta-rs can commit to, and which need delta-spark to enforce their rules.

Based on tests of delta-rs 1.6.6, which tests/spark/test_features.py repeats. It refuses row tracking, identity columns,
in-commit timestamps, column defaults, clustering, type widening and unknown features. But it silently commits to tables
with rules that it does not enforce: constraints, generated columns, lengths of char and varchar. It also commits to
column-mapped tables, in which Spark then reads the new columns as null. Type widening requires nothing of commits, so
where tidegate writes the commit file itself, such tables need no delta-spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.delta.log.catalog import refuse_catalog
from tidegate.delta.log.commit_file import TYPE_WIDENING, can_be_put
from tidegate.delta.log.schema import schema_parts
from tidegate.errors import Invalid
from tidegate.records.records import Json

if TYPE_CHECKING:
    from tidegate.delta.log.snapshot import Snapshot

__all__ = [
    "refuse_unsafe",
    "required_columns",
    "spark_reasons",
    "spark_reasons_to_rewrite",
]

_HARMLESS = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "generatedColumns",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
}
"""Features that a table may have. Its properties and its schema show whether it uses the problematic ones."""

_FIELD_RULES = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
    "CURRENT_DEFAULT": "a column default",
    "__CHAR_VARCHAR_TYPE_STRING": "a char or varchar length",
}


def spark_reasons(snapshot: Snapshot) -> list[str]:
    """Return the reasons why appends to this table must go through delta-spark. If empty, delta-rs commits them."""
    harmless = _HARMLESS | {TYPE_WIDENING} if can_be_put(snapshot, ()) else _HARMLESS
    reasons = []
    for feature in sorted(snapshot.protocol.features - harmless):
        reasons.append(f"the table feature {feature}")
    for key, value in sorted(snapshot.configuration.items()):
        if key.startswith("delta.constraints."):
            reasons.append(f"the check constraint {key.removeprefix('delta.constraints.')!r}")
        if key == "delta.columnMapping.mode" and value != "none":
            reasons.append(f"column mapping by {value}")
    reasons += _reasons_of_parts(snapshot.schema)
    return reasons


def spark_reasons_to_rewrite(snapshot: Snapshot) -> list[str]:
    """Return the reasons why upserts into this table must go through delta-spark."""
    reasons = spark_reasons(snapshot)
    if snapshot.configuration.get("delta.enableChangeDataFeed", "").lower() == "true":
        reasons.append("the change data feed, for which every changed row must be written again")
    if snapshot.has_deletion_vectors:
        reasons.append("deletion vectors, whose files delta-rs cannot name when it removes them")
    return reasons


def refuse_unsafe(snapshot: Snapshot, *, rewrites: bool) -> None:
    """Raise Invalid for a target to which no engine can publish safely."""
    refuse_catalog(snapshot.location.url, snapshot.protocol.features)
    key = "delta.setTransactionRetentionDuration"
    if key in snapshot.configuration:
        raise Invalid(
            f"{snapshot.location.url} has {key}={snapshot.configuration[key]}: the table forgets what was published",
            expected="a table that keeps transaction ids forever, as Delta does by default",
            help=f"ALTER TABLE delta.`{snapshot.location.url}` UNSET TBLPROPERTIES ('{key}')",
            reason="FORGETFUL_TABLE",
        )
    if rewrites and snapshot.configuration.get("delta.appendOnly", "").lower() == "true":
        raise Invalid(
            f"{snapshot.location.url} has delta.appendOnly=true, but this sink replaces rows",
            expected="a table whose rows may be replaced, or a DeltaAppend sink of a continuous pipeline",
            help="unset the property, or use another table",
            reason="APPEND_ONLY",
        )


def required_columns(schema: Json) -> set[str]:
    """Return the top-level columns that the table declares NOT NULL."""
    return {field["name"] for field in schema["fields"] if not field["nullable"]}


def _reasons_of_parts(schema: Json) -> Iterator[str]:
    for part in schema_parts(schema):
        if part.type == "variant":
            yield f"the variant column {part.path!r}"
        for key, rule in _FIELD_RULES.items():
            if key in part.metadata:
                yield f"{rule} on {part.path!r}"
        if part.is_nested and part.is_required:
            yield f"NOT NULL on {part.subject}"
