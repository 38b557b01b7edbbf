"""What every source promises, shown on each of them, with rows read by Spark.

A world puts rows where its source finds them; the tests know nothing else about it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.kit.kafka import Broker
from tests.kit.sources import MemoryBlobs, drain
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.sources import DeltaTable, Files, Generator, Kafka, Source, SourceContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long, country string"


class World(ABC):
    """A place with a source, to which rows come."""

    source: Source

    def __init__(self, root: Path) -> None:
        self.context = SourceContext("shop", "orders", Place(str(root)), MemoryBlobs())
        self.root = root
        self.batches = 0
        self.rows: list[tuple[int, str | None]] = []

    def arrive(self, count: int = 3) -> None:
        """`count` new rows come."""
        first = len(self.rows)
        fresh = [(id, [None, "DE", "a=b %"][id % 3]) for id in range(first, first + count)]
        self.rows += fresh
        self.put(fresh)
        self.batches += 1

    @abstractmethod
    def put(self, rows: list[tuple[int, str | None]]) -> None: ...

    def read(self, spark: SparkSession, splits: Json) -> DataFrame:
        """As a job does: check first."""
        self.source.verify(splits, self.context)
        return self.source.read(spark, splits, self.context).select("id", "country")

    def read_rows(self, spark: SparkSession, splits: Json) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in self.read(spark, splits).collect()), key=repr)


class JsonByName(World):
    order: Any = "name"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (root / "landing").mkdir()
        self.source = Files("landing/*.json", schema=SCHEMA, order=self.order, max_files=2)

    def put(self, rows: list[tuple[int, str | None]]) -> None:
        lines = [json.dumps({"id": id, "country": country}) for id, country in rows]
        (self.root / f"landing/{self.batches:04d} [x].json").write_text("\n".join(lines))


class JsonByArrival(JsonByName):
    order = "arrival"

    def put(self, rows: list[tuple[int, str | None]]) -> None:
        super().put(rows)
        name = f"{self.batches:04d} [x].json"
        (self.root / "landing" / name).rename(self.root / "landing" / f"{9999 - self.batches}.json")


class CsvKept(World):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (root / "landing").mkdir()
        self.source = Files(
            "landing/*.csv", schema=SCHEMA, on_corrupt="keep", max_files=2, options={"header": True, "nullValue": "-"}
        )

    def put(self, rows: list[tuple[int, str | None]]) -> None:
        lines = ["id,country", *(f"{id},{country or '-'}" for id, country in rows)]
        (self.root / f"landing/{self.batches:04d}.csv").write_text("\n".join(lines))


class Parquet(World):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (root / "landing").mkdir()
        self.source = Files("landing/**/*.parquet", schema=SCHEMA, max_bytes=1500)

    def put(self, rows: list[tuple[int, str | None]]) -> None:
        folder = self.root / f"landing/country={self.batches}"
        folder.mkdir()
        pq.write_table(table(rows), folder / "x.parquet")


class Delta(World):
    mode: Any = "append"
    partition_by: Any = None

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        write_deltalake(
            str(root / "table"),
            table([]),
            partition_by=self.partition_by,
            configuration={"delta.enableChangeDataFeed": "true"},
        )
        self.source = DeltaTable("table", mode=self.mode, max_files=2)

    def put(self, rows: list[tuple[int, str | None]]) -> None:
        write_deltalake(str(self.root / "table"), table(rows), mode="append")


class DeltaPartitioned(Delta):
    partition_by = ("country",)


class DeltaChanges(Delta):
    mode = "changes"


class Generated(World):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.source = Generator(rows=2, total=0, columns={"id": "id", "country": "array(null, 'DE', 'a=b %')[id % 3]"})

    def put(self, rows: list[tuple[int, str | None]]) -> None:
        assert isinstance(self.source, Generator)
        self.source.total = (self.source.total or 0) + len(rows)


class KafkaTopic(World):
    def __init__(self, root: Path, broker: Broker) -> None:
        super().__init__(root)
        self.broker = broker
        self.topic = f"contract-{uuid4().hex[:8]}"
        broker.create_topic(self.topic, partitions=2)
        self.source = Kafka(self.topic, servers=broker.servers, schema=SCHEMA, max_offsets=4)

    def put(self, rows: list[tuple[int, str | None]]) -> None:
        values = [json.dumps({"id": id, "country": country}) for id, country in rows]
        self.broker.send(self.topic, [(f"key{n}", value) for n, value in enumerate(values)])


def table(rows: list[tuple[int, str | None]]) -> pa.Table:
    return pa.table(
        {"id": pa.array([id for id, _ in rows], pa.int64()), "country": pa.array([c for _, c in rows], pa.string())}
    )


WORLDS = [JsonByName, JsonByArrival, CsvKept, Parquet, Delta, DeltaPartitioned, DeltaChanges, Generated, KafkaTopic]


@pytest.fixture(params=WORLDS, ids=lambda world: world.__name__)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param is KafkaTopic:
        return KafkaTopic(tmp_path, request.getfixturevalue("kafka_broker"))
    return request.param(tmp_path)  # type: ignore[no-any-return]


def test_from_the_beginning_to_the_end_in_small_ranges_each_row_comes_exactly_once(
    world: World, spark: SparkSession
) -> None:
    for _ in range(3):
        world.arrive()
    plans, end = drain(world.source, world.context)
    assert len(plans) > 1
    world.arrive(5)
    later, end = drain(world.source, world.context, end)
    rows = [row for plan in [*plans, *later] for row in world.read_rows(spark, plan.splits)]
    assert Counter(rows) == Counter(world.rows)
    assert [plan.more for plan in plans] == [True] * (len(plans) - 1) + [False]


def test_planned_again_from_the_same_start_a_range_starts_at_the_same_place(world: World, spark: SparkSession) -> None:
    world.arrive()
    _, start = drain(world.source, world.context)
    world.arrive()
    first = world.source.plan(start, world.context)
    assert world.source.plan(start, world.context).splits == first.splits
    world.arrive()
    again = world.source.plan(start, world.context)
    assert world.read_rows(spark, again.splits)[0] == world.read_rows(spark, first.splits)[0]


def test_a_range_read_twice_gives_the_same_rows_whatever_has_come_since(world: World, spark: SparkSession) -> None:
    world.arrive()
    planned = world.source.plan(None, world.context)
    before = world.read_rows(spark, planned.splits)
    world.arrive()
    assert world.read_rows(spark, planned.splits) == before != []


def test_an_empty_range_has_no_rows_and_all_columns(world: World, spark: SparkSession) -> None:
    world.arrive()
    plans, end = drain(world.source, world.context)
    full = world.source.read(spark, plans[0].splits, world.context)
    planned = world.source.plan(end, world.context)
    assert planned.empty
    assert planned.end == end
    assert not planned.more
    world.source.verify(planned.splits, world.context)
    empty = world.source.read(spark, planned.splits, world.context)
    assert empty.dtypes == full.dtypes
    assert empty.count() == 0
    assert full.unionAll(empty).count() == full.count()


def test_positions_and_splits_survive_as_json(world: World, spark: SparkSession) -> None:
    world.arrive()
    planned = world.source.plan(None, world.context)
    splits = json.loads(json.dumps(planned.splits))
    assert splits == planned.splits
    assert world.read_rows(spark, splits) == world.read_rows(spark, planned.splits)
    end = json.loads(json.dumps(planned.end))
    assert end == planned.end
    assert world.source.plan(end, world.context).splits == world.source.plan(planned.end, world.context).splits


def test_reading_starts_no_job_of_spark(world: World, spark: SparkSession) -> None:
    world.arrive()
    planned = world.source.plan(None, world.context)
    spark.sparkContext.setJobGroup("reading", "none is expected here")
    try:
        world.read(spark, planned.splits)
        jobs = spark.sparkContext.statusTracker().getJobIdsForGroup("reading")
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", "")
    # Delta's own readers look into their log by Spark.
    assert jobs == [] or isinstance(world, DeltaChanges)


def test_the_declaration_is_sound_and_its_description_plain(world: World) -> None:
    assert world.source.problems() == []
    described = world.source.describe()
    assert described["kind"] == world.source.kind
    assert json.loads(json.dumps(described)) == described
