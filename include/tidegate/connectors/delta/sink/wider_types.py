"""Columns whose type becomes wider, in a Delta table and in the rows that go there.

A table's column becomes wider by a change of the log alone, with Delta's feature typeWidening: its files keep their
narrower values, and readers convert them. So the table becomes wider, and never narrower again: after a rollback, rows
with a narrower type are cast.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tidegate.connectors.schema.widening import is_wider, wider_type
from tidegate.delta.log.commit_file import TYPE_WIDENING
from tidegate.delta.log.schema import Difference, columns, render
from tidegate.delta.log.snapshot import Snapshot
from tidegate.records.records import Json

__all__ = ["has_narrower_files", "is_widening", "with_wider_types_of"]


def has_narrower_files(snapshot: Snapshot) -> bool:
    """Return whether files of the table may have narrower types than its columns."""
    return TYPE_WIDENING in snapshot.protocol.features


def is_widening(change: Difference, output: Json, table: Json) -> bool:
    """Return whether a difference is an output's column of a wider type than the table's."""
    if change.kind != "type":
        return False
    before, now = (columns(schema)[change.column]["type"] for schema in (table, output))
    return _is_wider(before, now)


def with_wider_types_of(wide: Json, schema: Json, unchanged: Collection[str] = ()) -> Json:
    """Return a schema whose columns have the types of another one where those are wider.

    If each of two decimals holds numbers that the other one does not, as after a rollback, a third type holds both.

    unchanged: columns that keep their type.
    """
    others = columns(wide)
    fields = []
    for field in schema["fields"]:
        other = others.get(field["name"])
        may_change = field["name"] not in unchanged
        wider = _wider(field["type"], other["type"]) if other is not None and may_change else None
        fields.append({**field, "type": wider} if wider is not None else field)
    return {**schema, "fields": fields}


def _wider(own: Any, other: Any) -> str | None:
    """Return the type that a column becomes to hold values of another type, too. None: it keeps its own."""
    if _is_wider(own, other):
        return str(other)
    if not (isinstance(own, str) and isinstance(other, str)):
        return None
    both_are_decimals = own.startswith("decimal") and other.startswith("decimal")
    return wider_type(own, other) if both_are_decimals else None


def _is_wider(before: Any, now: Any) -> bool:
    return isinstance(before, str) and isinstance(now, str) and is_wider(render(before), render(now))
