"""An upsert into a Delta table, without Spark."""

from __future__ import annotations

from pathlib import Path

from tests.kit.delta import rows_of, schema, staged, table_at
from tidegate.delta import StagedFile
from tidegate.records.place import Place
from tidegate.sinks import DeltaUpsert
from tidegate.sinks.base import Publication, SinkContext
from tidegate.sinks.delta.table import StagedBatch, staged_result

KAV = schema(k="long", a="long", v="string")


Row = tuple[int | None, int | None, str]


class Upserted:
    """A table that takes batches through the sink's own publish, without Spark."""

    def __init__(self, folder: Path) -> None:
        self.location = table_at(folder)
        self.sink = DeltaUpsert("table", keys=["k"], order_by="a")
        self.context = SinkContext("p", "u1", "s", Place(str(folder)))
        self.id = 0
        self.after: int | None = None

    def publish(self, *batches: tuple[list[Row], list[Row]]) -> None:
        """One checkpoint: for each of its batches the changed rows and the deleted ones."""
        self.id += 1
        committables = []
        for place, (changed, deleted) in enumerate(batches):
            files = self._staged(f"{place}-changed", changed)
            deletes = self._staged(f"{place}-deleted", deleted)
            batch = StagedBatch(columns=KAV, files=files, deletes=deletes)
            committables.append(staged_result(batch, len(changed) + len(deleted)).committable or {})
        publication = Publication(
            id=self.id, generation=0, attempt=f"a{self.id}", after=self.after, committables=tuple(committables)
        )
        assert self.sink.publish(publication, self.sink.head(self.context), self.context) is not None
        self.after = self.id

    def _staged(self, name: str, rows: list[Row]) -> list[StagedFile]:
        if not rows:
            return []
        columns = {"k": [k for k, _, _ in rows], "a": [a for _, a, _ in rows], "v": [v for _, _, v in rows]}
        return staged(self.location, f"tidegate/u1-s/{self.id:08d}/attempt/{name}", columns, KAV)

    def rows(self) -> list[tuple[object, ...]]:
        return rows_of(self.location)
