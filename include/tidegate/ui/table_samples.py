"""Some rows of a sink's table as of a checkpoint, for a look: bounded in rows, files and time."""

from __future__ import annotations

from typing import Any

from tidegate import offline, seams
from tidegate.delta import Snapshot
from tidegate.delta.dataset import dataset
from tidegate.delta.files.footers import open_parquet
from tidegate.errors import Invalid
from tidegate.ledger.refusals import no_such_sink, without_versions
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.ui.pipelines import Known
from tidegate.ui.quarantined import alone, cut

__all__ = ["rows"]

_MOST_FILES = 5_000
"""Of a table with more, the list of its files alone takes too long here."""
_LONGEST_S = 0.5
"""When this is over, what has been read is shown."""


def rows(pipeline: Known, id: int, sink: str, limit: int) -> Json:
    """The first rows of the table exactly as it stood after checkpoint `id`, in no particular order."""
    ledger = pipeline.ledger()
    published = offline.published_as_of(ledger, Place(pipeline.data, pipeline.options), id)
    table = published.tables.get(sink)
    if table is None:
        sinks = {name: each for name, each in published.tables.items() if "." not in name}
        raise no_such_sink(ledger.pipeline, sink, id, sinks, help="the checkpoint's page lists them")
    if not table.is_delta:
        raise without_versions(sink, table)
    with alone():
        snapshot = offline.open_as_of(table, pipeline.options)
        found = _first(snapshot, sink, limit)
    columns = list(dict.fromkeys(name for row in found for name in row))
    documents = [{name: cut(row.get(name)) for name in columns} for row in found]
    answer = {"checkpoint": id, "sink": sink, "table": table.uri, "version": table.version}
    return answer | {"columns": columns, "rows": documents}


def _first(snapshot: Snapshot, sink: str, limit: int) -> list[dict[str, Any]]:
    import pyarrow.dataset as ds

    until = seams.monotonic() + _LONGEST_S
    data = dataset(snapshot)
    if len(data.files) > _MOST_FILES:
        raise Invalid(
            f"the table of sink {sink!r} has {len(data.files):,} files: too many to be looked at here",
            expected=f"at most {_MOST_FILES:,}",
            help="`tidegate read` reads it elsewhere",
            reason="TOO_MANY_FILES",
        )
    found: list[dict[str, Any]] = []
    for file in data.get_fragments():
        if len(found) >= limit or (found and seams.monotonic() > until):
            break
        partition = ds.get_partition_keys(file.partition_expression)
        with open_parquet(snapshot.location, file.path) as parquet:
            for batch in parquet.iter_batches(batch_size=limit - len(found)):
                found += [row | partition for row in batch.to_pylist()]
                if len(found) >= limit:
                    break
    return found[:limit]
