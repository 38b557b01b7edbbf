"""How the schemas of sources that follow their input have changed: by checkpoint, and between two checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tidegate.connectors.schema.ddl import parse_ddl
from tidegate.history.details import CheckpointDetails
from tidegate.history.query import CheckpointHistory
from tidegate.history.selection import REPLACED

__all__ = ["ChangedColumn", "ComparedSchema", "PlannedSchema", "SourceTimeline", "differences", "timelines"]

MAX_CHECKPOINTS = 2_000
"""How many checkpoints, the last ones, are looked through."""


class ChangedColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column that differs between two schemas."""

    name: str
    before: str | None
    """Its type, or null if it was not there."""
    after: str | None
    """Its type, or null if it is gone."""
    found_by: int | None = None
    """The checkpoint that found it in the input, or null if it was declared."""
    file: str | None = None
    """The first file of that checkpoint that had it. Null if you may not read rows."""


class ComparedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of a source in two checkpoints."""

    before: str
    after: str
    """As DDL. Empty if the source does not follow its input, or is not there."""
    columns: list[ChangedColumn]
    """Those that differ."""


class PlannedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint whose plan was the first with a schema."""

    checkpoint: int
    planned: str
    schema: str
    """As DDL."""
    columns: list[ChangedColumn]
    """What differs from the schema before it; for the first one, nothing."""


class SourceTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The schemas of a source, oldest first."""

    changes: list[PlannedSchema]
    is_complete: bool
    """False: there are older checkpoints, which were not looked through."""


def _difference(before: str, after: str) -> list[ChangedColumn]:
    """Return the columns that differ between two schemas, in the order of the later one, then those that are gone."""
    if before:
        old = {column.name: column.type for column in parse_ddl(before)}
    else:
        old = {}
    if after:
        new = {column.name: column.type for column in parse_ddl(after)}
    else:
        new = {}
    changed = []
    for name in [*new, *(name for name in old if name not in new)]:
        if old.get(name) != new.get(name):
            changed.append(ChangedColumn(name=name, before=old.get(name), after=new.get(name)))
    return changed


def timelines(history: CheckpointHistory) -> dict[str, SourceTimeline]:
    """Return how the schema of each source has changed, over the checkpoints that count. Sources whose schema does not
    follow their input are left out."""
    ids = history.rows.ids("completed", REPLACED)
    recent = ids[:MAX_CHECKPOINTS][::-1]
    changes: dict[str, list[PlannedSchema]] = {}
    origins: dict[str, dict[str, tuple[int, str | None, str]]] = {}
    details_of = history.details_of(recent)
    for id in recent:
        row = history.rows.find(id)
        if row is not None:
            planned = row["planned"].isoformat(timespec="milliseconds")
        else:
            planned = ""
        for name, source in details_of[id].sources.items():
            if not source.schema:
                continue
            listed = changes.setdefault(name, [])
            if not listed or listed[-1].schema != source.schema:
                differing = _difference(listed[-1].schema, source.schema) if listed else []
                columns = _with_origins(differing, origins.get(name, {}))
                listed.append(PlannedSchema(checkpoint=id, planned=planned, schema=source.schema, columns=columns))
            for misfit in source.drift.misfits if source.drift is not None else ():
                if (misfit.becomes_column or misfit.becomes_type) and misfit.path is not None:
                    origins.setdefault(name, {})[misfit.path] = id, misfit.file, misfit.becomes_type
    is_complete = len(ids) <= MAX_CHECKPOINTS
    return {name: SourceTimeline(changes=listed, is_complete=is_complete) for name, listed in sorted(changes.items())}


def _with_origins(
    columns: Iterable[ChangedColumn], origins: Mapping[str, tuple[int, str | None, str]]
) -> list[ChangedColumn]:
    """Add who found the reason of a change. found: by column, the checkpoint, its file, and the wider type, if any."""
    listed = []
    for column in columns:
        checkpoint, file, wider = origins.get(column.name, (None, None, ""))
        if checkpoint is not None and (column.before is None or column.after == wider):
            column = msgspec.structs.replace(column, found_by=checkpoint, file=file)
        listed.append(column)
    return listed


def differences(before: CheckpointDetails, after: CheckpointDetails) -> dict[str, ComparedSchema]:
    """Return how the schemas of sources that follow their input differ between two checkpoints."""
    compared = {}
    for name in sorted({*before.sources, *after.sources}):
        old, new = (details.sources[name].schema if name in details.sources else "" for details in (before, after))
        if old or new:
            compared[name] = ComparedSchema(before=old, after=new, columns=_difference(old, new))
    return compared
