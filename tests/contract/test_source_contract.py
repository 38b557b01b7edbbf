"""Our sources keep the contract of tidegate.testing, and read nothing before Spark has to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.kit.kafka import Broker
from tests.kit.sampling import in_turn
from tidegate.sources import DeltaTable, Files, Generator, Kafka, Source
from tidegate.testing import SourceContract, TestSource

SCHEMA = "id long, name string"

Rows = Sequence[tuple[int, str | None]]


class OurContract(SourceContract):
    looks_by_spark = False
    """Whether its reader starts jobs of Spark before anybody asks for rows."""

    def test_small_ranges_are_planned_where_a_bound_says_so(self) -> None:
        for _ in range(3):
            self.arrive()
        plans, _ = self.drained()
        assert len(plans) > 1

    def test_reading_starts_no_job_of_spark(self) -> None:
        self.arrive()
        planned = self.plan()
        self.spark.sparkContext.setJobGroup("reading", "none is expected here")
        try:
            self.read(planned.splits)
            jobs = self.spark.sparkContext.statusTracker().getJobIdsForGroup("reading")
        finally:
            self.spark.sparkContext.setLocalProperty("spark.jobGroup.id", "")
        assert jobs == [] or self.looks_by_spark


class FilesContract(OurContract):
    batches = 0

    def create(self) -> None:
        (self.folder / "landing").mkdir()

    def put(self, rows: Rows) -> None:
        self.write(rows)
        self.batches += 1

    def write(self, rows: Rows) -> None:
        raise NotImplementedError

    def spoil(self) -> None:
        file = next(path for path in sorted(self.folder.rglob("landing/**/*")) if path.is_file())
        file.unlink()


class TestJsonByName(FilesContract):
    order: Any = "name"

    def source(self) -> Source:
        return Files("landing/*.json", schema=SCHEMA, order=self.order, max_files=2)

    def file_name(self) -> str:
        return f"{self.batches:04d} [x].json"

    def write(self, rows: Rows) -> None:
        lines = [json.dumps({"id": id, "name": name}) for id, name in rows]
        (self.folder / "landing" / self.file_name()).write_text("\n".join(lines))


@in_turn(seconds=30)
class TestJsonByArrival(TestJsonByName):
    order = "arrival"

    def file_name(self) -> str:
        return f"{9999 - self.batches}.json"


class TestCsvKept(FilesContract):
    def source(self) -> Source:
        options = {"header": True, "nullValue": "-"}
        return Files("landing/*.csv", schema=SCHEMA, on_corrupt="keep", max_files=2, options=options)

    def write(self, rows: Rows) -> None:
        lines = ["id,name", *(f"{id},{name or '-'}" for id, name in rows)]
        (self.folder / f"landing/{self.batches:04d}.csv").write_text("\n".join(lines))


@in_turn(seconds=30)
class TestParquet(FilesContract):
    def source(self) -> Source:
        return Files("landing/**/*.parquet", schema=SCHEMA, max_bytes=1500)

    def write(self, rows: Rows) -> None:
        folder = self.folder / f"landing/name={self.batches}"
        folder.mkdir()
        pq.write_table(table(rows), folder / "x.parquet")


class TestDelta(OurContract):
    mode: Any = "append"
    partition_by: Any = None

    def create(self) -> None:
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.path, table([]), partition_by=self.partition_by, configuration=feed)

    @property
    def path(self) -> str:
        return str(self.folder / "table")

    def source(self) -> Source:
        return DeltaTable("table", mode=self.mode, max_files=2)

    def put(self, rows: Rows) -> None:
        write_deltalake(self.path, table(rows), mode="append")

    def spoil(self) -> None:
        for file in self.folder.glob("table/**/*.parquet"):
            file.unlink()


@in_turn(seconds=30)
class TestDeltaPartitioned(TestDelta):
    partition_by = ("name",)


@in_turn(seconds=30)
class TestDeltaChanges(TestDelta):
    mode = "changes"
    looks_by_spark = True  # Delta's own reader of changes looks into the log by it


class TestGenerator(OurContract):
    def create(self) -> None:
        columns = {"id": "id", "name": "array(null, 'DE', 'a=b %')[id % 3]"}
        self.generator = Generator(rows=2, total=0, columns=columns)

    def source(self) -> Source:
        return self.generator

    def put(self, rows: Rows) -> None:
        self.generator.total = (self.generator.total or 0) + len(rows)


class TestTheTestSource(OurContract):
    def create(self) -> None:
        self.given = TestSource(SCHEMA)

    def source(self) -> Source:
        return self.given

    def put(self, rows: Rows) -> None:
        self.given.arrive(*({"id": id, "name": name} for id, name in rows))

    def spoil(self) -> None:
        self.given.lose(0)


@in_turn(seconds=30)
class TestKafka(OurContract):
    broker: Broker

    @pytest.fixture(autouse=True, scope="class")
    def _with_broker(self, request: pytest.FixtureRequest, kafka_broker: Broker) -> None:
        request.cls.broker = kafka_broker

    def create(self) -> None:
        self.topic = f"contract-{uuid4().hex[:8]}"
        self.broker.create_topic(self.topic, partitions=2)

    def source(self) -> Source:
        return Kafka(self.topic, servers=self.broker.servers, schema=SCHEMA, max_offsets=4)

    def put(self, rows: Rows) -> None:
        values = [json.dumps({"id": id, "name": name}) for id, name in rows]
        self.broker.send(self.topic, [(f"key{n}", value) for n, value in enumerate(values)])

    def spoil(self) -> None:
        self.broker.delete_topic(self.topic)


def table(rows: Rows) -> pa.Table:
    return pa.table(
        {"id": pa.array([id for id, _ in rows], pa.int64()), "name": pa.array([name for _, name in rows], pa.string())}
    )
