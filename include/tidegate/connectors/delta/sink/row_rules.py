"""The rules that a Delta table declares for single rows: NOT NULL, CHECK constraints, lengths, computed columns.

delta-rs does not enforce them, and delta-spark only when it publishes (delta/log/features.py). So the job judges rows
by them while it stages, before the decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tidegate.connectors.row_rules import DeclaredRules, RowRule
from tidegate.delta import Snapshot, required_columns
from tidegate.delta.log.schema import columns, schema_parts
from tidegate.records import typed
from tidegate.records.names import quoted
from tidegate.records.records import Json, Struct

__all__ = ["declared_by", "rules_of"]

_CHECK: Final = "delta.constraints."
_LENGTH: Final = re.compile(r"(?:var)?char\((\d+)\)")


class _Rule(Struct, frozen=True, kw_only=True):
    """A rule of a table."""

    name: str
    keep: str
    """The SQL condition that a row must meet."""
    says: str
    columns: list[str] = []
    """The columns that the rows must have for it to be judged. Empty: all that the condition names."""


class _Declared(Struct, frozen=True, kw_only=True):
    """What a table declares."""

    names: list[str]
    """The table's columns."""
    not_null: list[str]
    rules: list[_Rule]
    not_judged: list[str] = []


def declared_by(snapshot: Snapshot) -> Json:
    """Return the rules of a table."""
    schema = snapshot.schema
    declared = _Declared(
        names=[field["name"] for field in schema["fields"]],
        not_null=sorted(required_columns(schema)),
        rules=[*_checks(snapshot), *_column_rules(schema)],
        not_judged=list(_rules_of_nested(schema)),
    )
    described: Json = msgspec.to_builtins(declared)
    return described


def _checks(snapshot: Snapshot) -> Iterator[_Rule]:
    for key, condition in sorted(snapshot.configuration.items()):
        if key.startswith(_CHECK):
            name = key.removeprefix(_CHECK)
            yield _Rule(name=name, keep=condition, says=f"the constraint {name!r} does not hold: {condition}")


def _column_rules(schema: Json) -> Iterator[_Rule]:
    for field in schema["fields"]:
        name, metadata = field["name"], field.get("metadata", {})
        length = _LENGTH.fullmatch(metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))
        if length:
            yield _Rule(
                name=f"{name} length",
                keep=f"{quoted(name)} IS NULL OR char_length({quoted(name)}) <= {length[1]}",
                says=f"column {name!r} is longer than {length[1]} characters",
                columns=[name],
            )
        if condition := _invariant(metadata):
            yield _Rule(
                name=f"{name} invariant",
                keep=condition,
                says=f"the invariant of column {name!r} does not hold: {condition}",
            )
        if computed := metadata.get("delta.generationExpression"):
            yield _Rule(
                name=f"{name} generated",
                keep=f"{quoted(name)} <=> ({computed})",
                says=f"column {name!r} is not what the table computes: {computed}",
                columns=[name],
            )


def _invariant(metadata: Json) -> str:
    text = metadata.get("delta.invariants")
    if not isinstance(text, str):
        return ""
    described: Any = msgspec.json.decode(text)
    return str(described.get("expression", {}).get("expression", ""))


def _rules_of_nested(schema: Json) -> Iterator[str]:
    """Yield the rules for values inside of others, in words."""
    for part in schema_parts(schema):
        length = part.metadata.get("__CHAR_VARCHAR_TYPE_STRING")
        if length is not None and (part.is_nested or not _LENGTH.fullmatch(length)):
            yield f"{part.subject} is declared {length}"
        if part.is_nested and part.is_required:
            yield f"{part.subject} must not be null"


def rules_of(output: Json, described: Json | None, *, nulls: bool) -> DeclaredRules:
    """Return a table's rules for rows with these columns.

    described: the result of `declared_by`. nulls: include NOT NULL of whole columns.
    """
    if described is None:
        return DeclaredRules()
    declared = typed.convert(described, _Declared)
    present = {name.casefold() for name in columns(output)}
    missing = [name for name in declared.names if name.casefold() not in present]
    rules = []
    if nulls:
        for name in declared.not_null:
            if name.casefold() in present:
                rules.append(_not_null(name))
    not_judged = list(declared.not_judged)
    for rule in declared.rules:
        if not {name.casefold() for name in rule.columns} <= present:
            continue  # the table fills the column itself
        absent = [name for name in missing if _mentions(rule.keep, name)]
        if absent:
            not_judged.append(f"{rule.name}, as the rows have no column {', '.join(absent)}: {rule.keep}")
        else:
            rules.append(RowRule(rule.name, f"NOT coalesce(({rule.keep}), false)", rule.says))
    return DeclaredRules(tuple(rules), tuple(not_judged))


def _not_null(name: str) -> RowRule:
    return RowRule(f"{name} not null", f"{quoted(name)} IS NULL", f"column {name!r} is null, and must not be")


def _mentions(condition: str, column: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", condition, re.IGNORECASE) is not None
