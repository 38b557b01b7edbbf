"""A sink of PostgreSQL without Spark: rows that Arrow staged, published by the sink's own code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.kit.postgres import Server
from tidegate.connectors.postgres.sink import PostgresSink
from tidegate.connectors.postgres.types import column_type
from tidegate.connectors.sink import Head, Publication, SinkContext, Staging
from tidegate.connectors.transactional import StagedPart
from tidegate.delta import StagedFile, sync_and_list
from tidegate.records import typed
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable, Restored
from tidegate.sinks import PostgresAppend

CONNECTION = "shop"
NO_PARTITIONS: Json = {"type": "struct", "fields": []}


def connections(server: Server, **changed: str) -> dict[str, str]:
    """The setting `connections` for a server."""
    return {f"{CONNECTION}.{name}": value for name, value in (server.options | changed).items()}


def staged_columns(types: dict[str, Any], not_null: Sequence[str] = ()) -> Json:
    """The schema of staged rows, as the sink's own expressions leave it."""
    fields = [
        {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": {
                "postgres": column_type(kind),
                "held_as": column_type(kind),
                "not_null": name in not_null,
            }
            if name != "tidegate_deleted"
            else {},
        }
        for name, kind in types.items()
    ]
    return {"type": "struct", "fields": fields}


KV = {"k": "long", "v": "string"}


class PostgresPublished:
    """One sink of one pipeline against a server."""

    def __init__(
        self,
        folder: Path,
        place: Place,
        sink: PostgresSink | None = None,
        *,
        uid: str = "u1",
        pipeline: str = "p",
        types: dict[str, str] = KV,
    ) -> None:
        self.types = types
        self.sink = sink or PostgresAppend("t", connection=CONNECTION)
        self.context = SinkContext(pipeline, uid, "s", place, home=str(folder))

    def stage(self, id: int, *rows: tuple[Any, ...], removed: Sequence[int] = (), attempt: str = "a") -> Json:
        """A committable of rows with, if nothing else is said, a key `k` and a text `v`, and whether the key is to be
        removed."""
        is_marked = rows and len(rows[0]) > len(self.types)
        types: dict[str, Any] = self.types | ({"tidegate_deleted": "boolean"} if is_marked else {})
        columns: list[Any] = list(zip(*rows, strict=True)) or [[] for _ in types]
        arrow = {
            "integer": pa.int32(),
            "long": pa.int64(),
            "string": pa.string(),
            "boolean": pa.bool_(),
            "double": pa.float64(),
        }
        table = pa.table({name: pa.array(each, arrow[types[name]]) for name, each in zip(types, columns, strict=True)})
        part = StagedPart(columns=staged_columns(types, self.sink.keys), files=self._files(id, table, attempt, "rows"))
        if removed:
            gone = pa.table({"k": pa.array(removed, pa.int64())})
            part = msgspec.structs.replace(
                part, removed_columns=staged_columns({"k": "long"}), removed=self._files(id, gone, attempt, "removed")
            )
        staged: Json = msgspec.to_builtins(part)
        return staged

    def _files(self, id: int, table: pa.Table, attempt: str, part: str) -> list[StagedFile]:
        location, folder = self.sink.staging_folder(self.context), f"{Staging(id, attempt).folder(self.context)}/{part}"
        path = Path(location.full(folder))
        path.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path / "part-0.parquet")
        return sync_and_list(location, folder, NO_PARTITIONS, written=table.num_rows)

    def settled(self, id: int, *rows: tuple[Any, ...]) -> Json:
        """A committable of rows of which some share a key, as a job settles them."""
        part = typed.convert(self.stage(id, *rows), StagedPart)
        settled: Json = msgspec.to_builtins(self.sink.settled(part, self.context, Staging(id, "a")))
        return settled

    def head(self) -> Head:
        return self.sink.head(self.context)

    def noted(self, committable: Json) -> Json:
        """The committable with the notes that a job adds to it."""
        part = typed.convert(committable, StagedPart)
        noted: Json = msgspec.to_builtins(PostgresSink.settled(self.sink, part, self.context, Staging(1, "a")))
        return noted

    def publish(self, id: int, *committables: Json, head: Head | None = None) -> PublishedTable | None:
        head = head or self.head()
        publication = Publication(id, 0, f"publisher-{id}", head.last_entry, committables)
        return self.sink.publish(publication, head, self.context)

    def checkpoint(self, id: int, *rows: tuple[Any, ...], removed: Sequence[int] = ()) -> PublishedTable:
        """Stage and publish."""
        done = self.publish(id, self.stage(id, *rows, removed=removed))
        assert done is not None
        return done

    def roll_back(self, id: int, to: int | None, how: Any = "restore") -> PublishedTable | None:
        """Publish a rollback, as it was examined."""
        way = self.sink.restore_plan(to, None, [], self.context)
        assert not way.rows_stay_reason, way.rows_stay_reason
        head = self.head()
        publication = Publication(
            id,
            1,
            f"publisher-{id}",
            head.last_entry,
            (),
            restore=Restored(how=how, to=way.target_version),
            target=to or 0,
        )
        return self.sink.restore(publication, head, self.context)
