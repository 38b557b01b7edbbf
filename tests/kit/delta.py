"""Tables without Spark: files that Arrow writes where Spark would, and commits on top of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.delta import (
    CommitStamp,
    Location,
    Snapshot,
    StagedFile,
    append,
    create,
    open_table,
    owner_of,
    read_table,
    sync_and_list,
)

KV: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"name": "k", "type": "long", "nullable": True, "metadata": {}},
        {"name": "v", "type": "string", "nullable": True, "metadata": {}},
    ],
}


def schema(**kinds: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return {"type": "struct", "fields": fields}


def table_at(folder: Path) -> Location:
    return Location(str(folder / "table"))


def stamp(id: int, *, uid: str = "u1", pipeline: str = "p", sink: str = "s", attempt: str | None = None) -> CommitStamp:
    return CommitStamp(
        app_id=f"tidegate/{uid}/{sink}",
        id=id,
        pipeline=pipeline,
        generation=0,
        attempt=attempt or f"attempt-{id}",
        owner=owner_of(pipeline, sink, uid),
    )


def staged(
    location: Location,
    folder: str,
    rows: pa.Table | dict[str, list[Any]],
    columns: dict[str, Any] = KV,
    partition_by: tuple[str, ...] = (),
    **options: Any,
) -> list[StagedFile]:
    """What `stage` makes of `rows` in `folder`; rows of a partition are told by the folder's name."""
    rows = rows if isinstance(rows, pa.Table) else pa.table(rows)
    with location.create(f"{folder}/part-{len(location.walk(folder))}.parquet") as out:
        pq.write_table(rows, out, **options)
    root = folder.split("/")[0] if partition_by else folder
    return sync_and_list(location, root, columns, partition_by, written=None)


def kv(*pairs: tuple[int | None, str]) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([key for key, _ in pairs], pa.int64()),
            "v": pa.array([value for _, value in pairs], pa.string()),
        }
    )


def made(location: Location, *pairs: tuple[int | None, str], id: int = 1) -> Snapshot:
    """A table with these rows at version 0."""
    assert create(location, KV, staged(location, f"first-{id}", kv(*pairs)), stamp(id)) is not None
    return head(location)


def appended(location: Location, id: int, *pairs: tuple[int | None, str]) -> Snapshot:
    assert append(head(location), staged(location, f"next-{id}", kv(*pairs)), stamp(id)) is not None
    return head(location)


def head(location: Location, version: int | None = None) -> Snapshot:
    found = open_table(location, version)
    assert found is not None
    return found


def rows_of(location: Location, version: int | None = None) -> list[tuple[Any, ...]]:
    rows = read_table(head(location, version)).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def log_file(location: Location, version: int) -> Path:
    return location.local(f"_delta_log/{version:020d}.json")


def actions(location: Location, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log_file(location, version).read_text().splitlines()]


def by_foreigner(location: Location, *pairs: tuple[int | None, str]) -> None:
    """Rows that somebody else appends."""
    from deltalake import write_deltalake

    write_deltalake(location.url, kv(*pairs), mode="append", storage_options=dict(location.options))
