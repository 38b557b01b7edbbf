"""Whoever watches a pipeline by event asks for a checkpoint when a source has something new: of each kind, for real."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.kafka import Broker
from tests.kit.postgres import Server
from tests.kit.postgres_sinks import CONNECTION, connections
from tests.kit.s3 import BUCKET, S3Server, s3
from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToyFrame
from tidegate.execution.input_watch import InputWatch
from tidegate.records.place import Place
from tidegate.sources import DeltaTable, Files, Kafka, PostgresChanges, PostgresTable, Source

NEW_INPUT = "there is new input for in"


@dataclass
class Watched(ToyWorld):
    """A pipeline that reads a real source. Its ledger is on this disk."""

    at: Place = field(kw_only=True)

    @property
    def place(self) -> Place:
        return self.at


class Input(ABC):
    """Something that rows arrive in. `source` is what reads it."""

    place: Place
    source: Source

    @abstractmethod
    def arrive(self, number: int) -> None:
        """Let a row come in."""

    def come_close(self) -> None:  # noqa: B027
        """Let something happen there that brings no row."""


def unread(kind: type[Source], *arguments: Any, **options: Any) -> Source:
    """A source whose rows no Spark reads: here only what is planned matters."""
    return type(kind.__name__, (kind,), {"read": lambda *_: ToyFrame([])})(*arguments, **options)


class Folder(Input):
    def __init__(self, root: Path) -> None:
        self.folder = root / "landing"
        self.folder.mkdir()
        self.place = Place(str(root))
        self.source = unread(Files, "landing/*.json", schema="id long")

    def arrive(self, number: int) -> None:
        (self.folder / f"{number}.json").write_text(json.dumps({"id": number}) + "\n")

    def come_close(self) -> None:
        (self.folder / "note.txt").write_text("no row")


class Bucket(Input):
    def __init__(self, server: S3Server) -> None:
        self.server, self.folder = server, uuid4().hex
        self.place = Place(f"s3://{BUCKET}/{self.folder}", server.options)
        self.source = unread(Files, "landing/*.json", schema="id long")

    def arrive(self, number: int) -> None:
        self.server.put(f"{self.folder}/landing/{number}.json", json.dumps({"id": number}).encode() + b"\n")

    def come_close(self) -> None:
        self.server.put(f"{self.folder}/landing/note.txt", b"no row")


class Table(Input):
    def __init__(self, root: Path) -> None:
        self.table = root / "orders"
        self.place = Place(str(root))
        self.source = unread(DeltaTable, "orders")

    def arrive(self, number: int) -> None:
        write_deltalake(self.table, pa.table({"id": [number]}), mode="append")

    def come_close(self) -> None:
        from deltalake import DeltaTable as Written

        Written(self.table).optimize.compact()


class Topic(Input):
    def __init__(self, root: Path, broker: Broker) -> None:
        self.broker, self.topic = broker, f"orders-{uuid4().hex[:8]}"
        broker.create_topic(self.topic, partitions=2)
        self.place = Place(str(root))
        self.source = unread(Kafka, self.topic, servers=broker.servers, schema="id long")

    def arrive(self, number: int) -> None:
        self.broker.send(self.topic, [(str(number), json.dumps({"id": number}))])

    def come_close(self) -> None:
        """A transaction that has not ended: its records may never count."""
        self.producer = self.broker.producer(transactional_id=self.topic)
        self.producer.init_transactions()
        self.producer.begin_transaction()
        self.broker.send(self.topic, [("open", '{"id": 0}')], producer=self.producer)


class Rows(Input):
    MADE: ClassVar[tuple[str, ...]] = (
        "CREATE TABLE orders (id bigint PRIMARY KEY, xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
        "CREATE INDEX ON orders (xid)",
        "CREATE TABLE other (id bigint)",
    )

    def __init__(self, root: Path, server: Server) -> None:
        self.server = server
        server.run(*self.MADE)
        self.place = Place(str(root), connections=connections(server))
        self.source = unread(PostgresTable, "orders", connection=CONNECTION, xid_column="xid")

    def arrive(self, number: int) -> None:
        self.server.run(f"INSERT INTO orders (id) VALUES ({number})")

    def come_close(self) -> None:
        self.server.run("INSERT INTO other VALUES (1)")


class Changes(Rows):
    MADE: ClassVar[tuple[str, ...]] = (
        *Rows.MADE,
        "DROP PUBLICATION IF EXISTS arrivals",
        "CREATE PUBLICATION arrivals FOR TABLE orders",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'arrivals'",
        "SELECT pg_create_logical_replication_slot('arrivals', 'pgoutput')",
    )

    def __init__(self, root: Path, server: Server) -> None:
        super().__init__(root, server)
        options = {"connection": CONNECTION, "slot": "arrivals", "publication": "arrivals"}
        self.source = unread(PostgresChanges, "orders", **options)


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3() as server:
        yield server


@pytest.fixture(params=["folder", "bucket", "table", "topic", "rows", "changes"])
def input(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Input]:
    def needed(name: str) -> Any:
        return request.getfixturevalue(name)

    if request.param == "folder":
        yield Folder(tmp_path)
    elif request.param == "bucket":
        yield Bucket(needed("store"))
    elif request.param == "table":
        yield Table(tmp_path)
    elif request.param == "topic":
        yield Topic(tmp_path, needed("kafka_broker"))
    elif request.param == "rows":
        yield Rows(tmp_path, needed("postgres"))
    else:
        server = needed("postgres")
        yield Changes(tmp_path, server)
        server.run("SELECT pg_drop_replication_slot('arrivals')", "DROP PUBLICATION arrivals")


def test_each_arrival_is_noticed_once_and_nothing_else_is(input: Input, tmp_path: Path) -> None:
    world = Watched(tmp_path / "ledger", source=input.source, at=input.place)
    watch = InputWatch(world.coordinator(), 86_400.0)

    def look() -> str | None:
        arrival = watch.look()
        return arrival.reason if arrival is not None else None

    input.arrive(1)
    assert look() == "it is the first checkpoint"
    world.checkpoint("first")
    assert look() is None
    for number in (2, 3):
        input.arrive(10 * number)
        input.arrive(10 * number + 1)
        assert look() == NEW_INPUT
        assert look() is None, "both are read by the one that was asked for"
        world.checkpoint(f"run {number}")
        assert look() is None
    input.come_close()
    assert look() is None
    assert InputWatch(world.coordinator(), 86_400.0).look() is None, "one that begins anew sees no more"
