"""A Delta sink without Spark: batches that Arrow staged, published by the sink's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.kit.delta import KV, kv, rows_of, staged
from tidegate.connectors.delta.sink.table import DeltaSink, StagedBatch, staged_result
from tidegate.connectors.sink import Head, Publication, SinkContext, Staging
from tidegate.delta import Location, StagedFile, locate
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable
from tidegate.sinks import DeltaAppend


class Published:
    """One sink of one pipeline against the table `t`."""

    def __init__(self, folder: Path, sink: DeltaSink | None = None, *, uid: str = "u1", pipeline: str = "p") -> None:
        self.sink = sink or DeltaAppend("t")
        self.context = SinkContext(pipeline, uid, "s", Place(str(folder)))

    @property
    def location(self) -> Location:
        return locate(self.context.place, self.sink.path)

    def stage(self, id: int, rows: pa.Table | None = None, columns: Json = KV, **batch: Any) -> Json:
        """A committable."""
        folder = Staging(id, f"attempt{id}").folder(self.context)
        files = self.files(folder, kv((id, f"row {id}")) if rows is None else rows, columns)
        committable = staged_result(StagedBatch(columns=columns, files=files, **batch), 1).committable
        assert committable is not None
        return committable

    def files(self, folder: str, rows: pa.Table, columns: Json = KV) -> list[StagedFile]:
        return staged(self.location, folder, rows, columns)

    def head(self) -> Head:
        return self.sink.head(self.context)

    def publish(
        self, id: int, *committables: Json, head: Head | None = None, attempt: str = ""
    ) -> PublishedTable | None:
        head = head or self.head()
        publication = Publication(id, 0, attempt or f"publisher-{id}", head.last_entry, committables)
        return self.sink.publish(publication, head, self.context)

    def checkpoint(self, id: int, rows: pa.Table | None = None, columns: Json = KV, **batch: Any) -> PublishedTable:
        done = self.publish(id, self.stage(id, rows, columns, **batch))
        assert done is not None
        return done

    def rows(self) -> list[tuple[Any, ...]]:
        return rows_of(self.location)
