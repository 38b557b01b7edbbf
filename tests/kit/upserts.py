"""An upsert into a Delta table, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.kit.delta import head, rows_of, schema, staged, table_at
from tidegate.connectors.delta.sink.table import StagedBatch, staged_result
from tidegate.connectors.sink import Publication, SinkContext, Staging
from tidegate.delta import StagedFile, read_commit
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable
from tidegate.sinks import DeltaUpsert

KAV = schema(k="long", a="long", v="string")


Row = tuple[int | None, float | None, str]


class Upserted:
    """A table that takes batches through the sink's own publish, without Spark."""

    def __init__(self, folder: Path, order_by: Sequence[str] = "a", columns: Json = KAV) -> None:
        self.columns = columns
        self.location = table_at(folder)
        self.sink = DeltaUpsert("table", keys=["k"], order_by=order_by)
        self.context = SinkContext("p", "u1", "s", Place(str(folder)))
        self.id = 0
        self.after: int | None = None

    def publish(self, *batches: tuple[list[Row], list[Row]]) -> None:
        """One checkpoint: for each of its batches the changed rows and the deleted ones."""
        id = self.id + 1
        committables = [self.staged(id, *batch, attempt=f"attempt-{place}") for place, batch in enumerate(batches)]
        assert self.published(id, *committables) is not None

    def staged(
        self,
        id: int,
        changed: Sequence[Row],
        deleted: Sequence[Row] = (),
        *,
        attempt: str = "attempt",
        ahead: bool = False,
    ) -> Json:
        """What an attempt stages. ahead: it rewrites the table's files, as workers would."""
        staging = Staging(id, attempt)
        files = self._files(staging, "changed", changed)
        deletes = self._files(staging, "deleted", deleted)
        batch = StagedBatch(columns=self.columns, files=files, deletes=deletes)
        if ahead:
            folder = f"{staging.folder(self.context)}/ahead"
            done = self.sink._prerewrite(head(self.location), batch, staging, folder, in_turn)
            assert done is not None
            batch = msgspec.structs.replace(batch, ahead=done)
        return staged_result(batch, len(changed) + len(deleted)).committable or {}

    def published(self, id: int, *committables: Json) -> PublishedTable | None:
        """Publish what was staged as the checkpoint that comes next."""
        publication = Publication(
            id=id, generation=0, attempt=f"a{id}", previous=self.after, committables=tuple(committables)
        )
        found = self.sink.publish(publication, self.sink.head(self.context), self.context)
        self.id = self.after = id
        return found

    def _files(self, staging: Staging, name: str, rows: Sequence[Row]) -> list[StagedFile]:
        if not rows:
            return []
        columns = {"k": [k for k, _, _ in rows], "a": [a for _, a, _ in rows], "v": [v for _, _, v in rows]}
        return staged(self.location, f"{staging.folder(self.context)}/{name}", columns, self.columns)

    def rows(self) -> list[tuple[object, ...]]:
        return rows_of(self.location)

    def added_last(self, part: str) -> set[str]:
        """The files that the last commit has added, with this in their paths."""
        commit = read_commit(self.location, head(self.location).version)
        assert commit is not None
        return {path for path in commit.added_paths() if part in path}


def in_turn(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Do the work of workers: everything reaches them, and comes back, as bytes."""
    from pyspark.serializers import CloudPickleSerializer

    wire: Any = CloudPickleSerializer()
    work, given = wire.dumps(function), wire.loads(wire.dumps(list(items)))
    return [wire.loads(wire.dumps(wire.loads(work)(item))) for item in given]
