"""A topic whose schemas are in a registry, and whose columns follow a source that changes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.kit.kafka import Broker
from tests.kit.sampling import in_turn
from tests.kit.schema_registry import SchemaRegistry, schema_registry
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.connectors.kafka.avro.encoding import HEAD_BYTES, avro_problems, avro_schema, decoder, encoder, head_of
from tidegate.connectors.kafka.records import SIZE
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend, KafkaTopic
from tidegate.sources import Files

slow = in_turn(seconds=60)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as registry:
        yield registry


class Shop(World):
    """Orders as they come, in a table and in a topic."""

    broker: Broker
    registry: SchemaRegistry
    topic: str

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        files = Files("landing/*.json", schema="id long, n int", on_new_column="evolve", on_type="widen")
        orders = pipeline.source("orders", files)
        orders.sink("orders", DeltaAppend("tables/orders", schema_evolution="widen"))
        orders.sink(
            "topic",
            KafkaTopic(self.topic, servers=self.broker.servers, value="avro", registry=self.registry.url, partitions=1),
        )
        return pipeline

    def land(self, name: str, *records: Any) -> None:
        folder = self.root / "landing"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(map(json.dumps, records)))

    def sent(self) -> list[dict[str, Any]]:
        """The records of the topic, without fields that are null."""
        rows = []
        for record in self.broker.read(self.topic):
            row = self.registry.decoded(record.value)
            rows.append({name: value for name, value in row.items() if value is not None})
        return rows


@slow
def test_each_checkpoint_has_its_schema_and_one_that_the_registry_refuses_sends_nothing(
    tmp_path: Path, spark: Any, kafka_broker: Broker, registry: SchemaRegistry
) -> None:
    orders = Shop(tmp_path)
    orders.spark, orders.broker, orders.registry = spark, kafka_broker, registry
    orders.topic = f"avro-{os.urandom(4).hex()}"
    orders.land("1.json", {"id": 1, "n": 7}, {"id": 2, "n": 8, "vip": True})
    orders.checkpoint("one")
    orders.land("2.json", {"id": 3, "n": 9, "vip": False}, {"id": 4, "n": 5_000_000_000})
    orders.checkpoint("two")
    first, second = registry.subjects[f"{orders.topic}-value"]
    assert orders.sent() == [
        {"id": 1, "n": 7},
        {"id": 2, "n": 8, "_rescued": '{"vip":true}'},
        {"id": 3, "n": 9, "vip": False},
        {"id": 4, "_rescued": '{"n":5000000000}'},
    ]
    old, new = (json.loads(registry.schemas[number]) for number in (first, second))
    third = next(record.value for record in kafka_broker.read(orders.topic) if record.value[1:5] == head_of(second)[1:])
    as_of_old = fastavro.schemaless_reader(io.BytesIO(third[HEAD_BYTES:]), new, old)
    assert (as_of_old["id"], "vip" in as_of_old) == (3, False), "who knows only the old schema reads the record"

    registry.compatibility = "FULL"  # and with it, nobody may get a bigint who reads ints
    orders.land("3.json", {"id": 5, "n": 5_000_000_001})
    id = orders.trigger("three")
    with pytest.raises(Invalid, match="does not take the columns of this checkpoint") as refused:
        orders.work(id)
    assert refused.value.reason == "SCHEMA_INCOMPATIBLE"
    assert len(orders.sent()) == len(orders.table("orders")) == 4
    registry.compatibility = "BACKWARD"
    orders.work(id)
    orders.complete(id)
    orders.publish()
    assert orders.sent()[4:] == [{"id": 5, "n": 5_000_000_001}]
    assert len(registry.subjects[f"{orders.topic}-value"]) == 3


COLUMNS = {
    "flag": "boolean", "small": "short", "n": "integer", "big": "long", "x": "double", "text": "string",
    "raw": "binary", "day": "date", "at": "timestamp", "local": "timestamp_ntz", "price": "decimal(12,3)",
}  # fmt: skip
VALUES = {
    "flag": True, "small": 3, "n": -5, "big": 2**60, "x": "NaN", "text": "später", "raw": "AAH/", "day": "2026-02-28",
    "at": "2026-03-01T12:00:00.000001Z", "local": "1969-12-31T23:59:59.999999", "price": Decimal("2.500"),
}  # fmt: skip


def schema_of(columns: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in columns.items()]}


def test_each_type_becomes_one_of_avro_and_comes_back() -> None:
    inner = schema_of({"a": "long", "when": "timestamp"})
    columns = COLUMNS | {"list": {"type": "array", "elementType": inner}}
    columns |= {"map": {"type": "map", "keyType": "string", "valueType": "date"}}
    schema = avro_schema(schema_of(columns), "orders.out")
    text = json.dumps(
        {key: value if key != "price" else 2.5 for key, value in VALUES.items()}
        | {"list": [{"a": 1, "when": "2026-03-01T00:00:00.000000Z"}, None], "map": {"k": "2026-01-01"}}
    )
    encoded = encoder(schema)(text)
    row = fastavro.schemaless_reader(io.BytesIO(encoded), json.loads(schema))
    assert (row["big"], row["raw"], row["day"], row["price"]) == (
        2**60, b"\0\x01\xff", date(2026, 2, 28), Decimal("2.500"),
    )  # fmt: skip
    assert row["at"] == datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)
    assert row["local"] == datetime(1969, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001
    assert row["x"] != row["x"], "NaN"
    assert row["list"] == [{"a": 1, "when": datetime(2026, 3, 1, tzinfo=UTC)}, None]
    again = json.loads(decoder(schema)(head_of(7) + encoded))
    assert (again["at"], again["local"]) == (VALUES["at"], VALUES["local"])
    assert encoder(schema)(None) is None
    nothing = encoder(schema)(json.dumps(dict.fromkeys(columns)))
    assert set(fastavro.schemaless_reader(io.BytesIO(nothing), json.loads(schema)).values()) == {None}


def test_what_avro_does_not_have_is_named() -> None:
    columns: dict[str, Any] = {"a b": "long", "v": "variant"}
    columns["m"] = {"type": "map", "keyType": "long", "valueType": "long"}
    columns["s"] = schema_of({"x-y": "long"})
    assert avro_problems(schema_of(columns)) == [
        "column 'a b' cannot be a field of Avro: its name needs letters, digits and _ only",
        "column 'v' is variant, which Avro does not have",
        "column 'm' is a map whose keys are no text, which Avro does not have",
        "column 's.x-y' cannot be a field of Avro: its name needs letters, digits and _ only",
    ]


def test_each_record_of_a_schema_has_a_valid_name_of_its_own() -> None:
    inner = schema_of({"x": "long"})
    columns = {"a_b": inner, "a": schema_of({"b": inner}), "r": inner}
    schema = json.loads(avro_schema(schema_of(columns), "4you.r"))
    fastavro.parse_schema(schema)
    assert schema["name"] == "_4you_r"
    first, second, _ = (field["type"][1] for field in schema["fields"])
    assert (first["name"], second["name"], second["fields"][0]["type"][1]["name"]) == ("r_a_b", "r_a", "r_a_b_2")


def test_a_row_is_judged_by_the_size_that_its_record_has_with_its_head(spark: Any) -> None:
    sink = KafkaTopic("orders", servers="broker:9092", value="avro", registry="http://r:8081")
    frame = spark.createDataFrame([(5, "some text")], "id long, name string")
    schema = json.loads(frame.schema.json())
    _, size = sink.form.parts_to_judge(schema)
    staged = replace(sink.form, head=head_of(7)).staged(frame)
    assert frame.select(size).first()[0] == staged.select(SIZE).first()[0] > HEAD_BYTES


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, "registry is missing"),
        ({"registry": "http://r:8081", "value": "json"}, 'registry and subject are for value="avro"'),
        ({"registry": "http://me:secret@r:8081"}, "registry contains a login"),
        ({"registry": ""}, "registry is ''"),
    ],
)
def test_a_bad_declaration_of_a_registry_is_refused(changes: dict[str, Any], problem: str) -> None:
    sink = KafkaTopic("orders", servers="broker:9092", **{"value": "avro", **changes})
    assert any(problem in text for text in sink.problems()), sink.problems()
