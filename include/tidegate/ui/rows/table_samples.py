"""Samples of a sink's table: some rows as of a checkpoint, or the rows that differ between two checkpoints."""

from __future__ import annotations

from typing import Any

from tidegate import offline, seams
from tidegate.delta import Snapshot
from tidegate.delta.as_python import python_rows
from tidegate.delta.dataset import dataset
from tidegate.delta.files.footers import open_parquet
from tidegate.delta.row_changes import row_changes
from tidegate.errors import Invalid
from tidegate.ledger.refusals import no_such_sink, without_versions
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable
from tidegate.ui.answers import RowChangeAnswer, TableChanges, TableRows
from tidegate.ui.pipelines import PipelineRef
from tidegate.ui.rows.quarantined import alone, cut

__all__ = ["changes", "rows"]

_MAX_FILES = 5_000
"""Listing the files of a table with more takes too long here."""
_MAX_READ_S = 0.5
"""The time after which no further file is read."""


def rows(pipeline: PipelineRef, id: int, sink: str, limit: int) -> TableRows:
    """Return some rows of the table exactly as of checkpoint `id`, in no particular order."""
    table = _table(pipeline, id, sink)
    with alone():
        snapshot = offline.open_as_of(table, pipeline.options)
        first_rows = _first(snapshot, sink, limit)
    names: dict[str, None] = {}
    for row in first_rows:
        names |= dict.fromkeys(row)
    columns = list(names)
    rows = []
    for row in first_rows:
        rows.append({name: cut(row.get(name)) for name in columns})
    return TableRows(checkpoint=id, sink=sink, table=table.uri, version=table.version, columns=columns, rows=rows)


def changes(pipeline: PipelineRef, since: int, id: int, sink: str, limit: int) -> TableChanges:
    """Return how the table differs between checkpoint `since` and checkpoint `id`, by key if it has one."""
    old, new = _table(pipeline, since, sink), _table(pipeline, id, sink)
    if old.uri != new.uri:
        raise Invalid(
            f"sink {sink!r} wrote to {old.uri} at checkpoint {since}, and to {new.uri} at checkpoint {id}",
            expected="two checkpoints with the same table",
            help="`tidegate read` reads each of them",
            reason="OTHER_TABLE",
        )
    with alone():
        before = offline.open_as_of(old, pipeline.options)
        after = offline.open_as_of(new, pipeline.options)
        changes = row_changes(before, after, pipeline.card.keys.get(sink, []), limit)
    return TableChanges(
        checkpoint=id,
        since=since,
        sink=sink,
        table=new.uri,
        keys=changes.keys,
        columns=changes.columns,
        added=changes.added,
        removed=changes.removed,
        changed=changes.changed,
        rows=[RowChangeAnswer(before=_cut(row.before), after=_cut(row.after)) for row in changes.rows],
    )


def _cut(row: Json | None) -> dict[str, str | None] | None:
    if row is None:
        return None
    return {name: cut(value) for name, value in row.items()}


def _table(pipeline: PipelineRef, id: int, sink: str) -> PublishedTable:
    """Return a sink's table as of a checkpoint. Raise an error if it has no versions."""
    ledger = pipeline.ledger()
    published = offline.published_as_of(ledger, Place(pipeline.data, pipeline.options), id)
    table = published.tables.get(sink)
    if table is None:
        sinks = {name: each for name, each in published.tables.items() if "." not in name}
        raise no_such_sink(ledger.pipeline, sink, id, sinks, help="the checkpoint's page lists them")
    if not table.is_delta:
        raise without_versions(sink, table)
    return table


def _first(snapshot: Snapshot, sink: str, limit: int) -> list[dict[str, Any]]:
    import pyarrow.dataset as ds

    until = seams.monotonic() + _MAX_READ_S
    data = dataset(snapshot)
    if len(data.files) > _MAX_FILES:
        raise Invalid(
            f"the table of sink {sink!r} has {len(data.files):,} files: too many to read here",
            expected=f"at most {_MAX_FILES:,}",
            help="`tidegate read` reads it elsewhere",
            reason="TOO_MANY_FILES",
        )
    first_rows: list[dict[str, Any]] = []
    for file in data.get_fragments():
        if len(first_rows) >= limit or (first_rows and seams.monotonic() > until):
            break
        partition = ds.get_partition_keys(file.partition_expression)
        with open_parquet(snapshot.location, file.path) as parquet:
            for batch in parquet.iter_batches(batch_size=limit - len(first_rows)):
                for row in python_rows(batch):
                    first_rows.append(row | partition)
                if len(first_rows) >= limit:
                    break
    return first_rows[:limit]
