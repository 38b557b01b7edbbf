"""Columns whose type becomes wider, in a Delta table and in the rows that go there.

A table's column becomes wider by a change of the log alone, with Delta's feature typeWidening: its files keep their
narrower values, and readers convert them. So the table becomes wider, and never narrower again: after a rollback, rows
with a narrower type are cast.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tidegate.connectors.schema.widening import is_wider
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

    unchanged: columns that keep their type.
    """
    others = columns(wide)
    fields = []
    for field in schema["fields"]:
        other = others.get(field["name"])
        may_change = field["name"] not in unchanged
        wider = other is not None and may_change and _is_wider(field["type"], other["type"])
        fields.append({**field, "type": other["type"]} if wider and other is not None else field)
    return {**schema, "fields": fields}


def _is_wider(before: Any, now: Any) -> bool:
    return isinstance(before, str) and isinstance(now, str) and is_wider(render(before), render(now))
