"""Workers rewrite the files of an upsert's table in an object store, ahead of its publishing: the same rows as ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.delta import rows_of
from tests.kit.s3 import BUCKET, S3Server, s3
from tidegate.connectors.delta.sink import prerewritten
from tidegate.connectors.sink import Publication, SinkContext, Staging
from tidegate.delta import locate
from tidegate.records.place import Place
from tidegate.sinks import DeltaUpsert

Change = tuple[int | None, str | None, int | None, str]
"""A key, its part, an order, and a value: "gone" if the row is to be removed."""

FIRST: list[Change] = [(k, "ab"[k % 2], 10, f"row {k}") for k in range(8)] + [(None, None, 10, "no key")]
SECOND: list[Change] = [
    (1, "b", 20, "newer"),
    (1, "b", 20, "newer"),  # twice, but the same
    (2, "a", 20, "gone"),
    (20, "a", 1, "added"),
    (None, None, 20, "still no key"),
]
LATE: list[Change] = [(3, "b", 5, "late"), (3, "b", 4, "later still"), (4, "a", 5, "gone"), (21, "b", 5, "added")]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3() as server:
        yield server


class BucketTable:
    """A table in the bucket that takes checkpoints, rewritten ahead or not."""

    def __init__(self, spark: Any, server: S3Server, name: str, sink: DeltaUpsert, *, ahead: bool) -> None:
        self.spark, self.sink, self.ahead = spark, sink, ahead
        self.context = SinkContext("p", "u", "s", Place(f"s3://{BUCKET}/{name}", server.options))
        self.location = locate(self.context.place, sink.path)

    def stage(self, id: int, changes: list[Change]) -> Any:
        frame = self.spark.createDataFrame(changes, "k long, part string, at long, v string").repartition(2)
        staging = Staging(id, f"attempt-{id}", on_open_base=not self.ahead)
        return self.sink.prepare(frame, self.context, staging).committable

    def publish(self, id: int, committable: Any) -> None:
        head = self.sink.head(self.context)
        publication = Publication(id, 0, f"publisher-{id}", head.last_entry, (committable,))
        assert self.sink.publish(publication, head, self.context) is not None


@pytest.mark.parametrize(
    "sink",
    [
        DeltaUpsert("t", keys=["k"], order_by="at", delete_when="v = 'gone'"),
        DeltaUpsert("t", keys=["part", "k"], partition_by="part"),
    ],
    ids=["with an order and removed rows", "with partitions"],
)
def test_the_rows_are_the_same(
    spark: Any, server: S3Server, sink: DeltaUpsert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prerewritten, "MIN_BYTES", 0)
    name = "partitions" if sink.partition_by else "order"
    worlds = [BucketTable(spark, server, f"{name}-{ahead}", sink, ahead=ahead) for ahead in (True, False)]
    last = [*SECOND, *LATE] if sink.order_by else SECOND
    for id, changes in enumerate([FIRST, last], 1):
        staged = [world.stage(id, changes) for world in worlds]
        assert ["ahead" in each for each in staged] == [id == 2, False]
        with server.asked() as asked:
            worlds[0].publish(id, staged[0])
        read = [each for each in asked if each.startswith("GET") and ".parquet?" in each and "_log" not in each]
        assert id == 1 or not read, "the publisher needs no row of the table, nor of the batch"
        worlds[1].publish(id, staged[1])
    assert rows_of(worlds[0].location) == rows_of(worlds[1].location)
    assert len(rows_of(worlds[0].location)) == 10
