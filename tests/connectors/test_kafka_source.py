"""A topic of a real broker read by Spark: each record once, as planned, and no bad one unnoticed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from tests.kit.kafka import READER, READERS_PASSWORD, Broker, group_offsets, kafka, login_of, with_tls
from tests.kit.limits import Limits
from tests.kit.sampling import in_turn
from tests.kit.schema_registry import SchemaRegistry, schema_registry
from tests.kit.waiting import eventually
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.connectors.kafka import reading
from tidegate.connectors.source import PLACE
from tidegate.coordinator import Triggered
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.execution.job import small_input
from tidegate.execution.job.run_job import run_job
from tidegate.execution.job.small_input import FEW_ROWS
from tidegate.history.table import live_row
from tidegate.records.place import Place
from tidegate.records.readable import readable_text
from tidegate.records.records import Json, SourceSchema
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Kafka, SourceContext
from tidegate.spark.errors import translate
from tidegate.spark.session import SparkSettings
from tidegate.testing.source_contract import MemoryBlobs

pytestmark = in_turn(seconds=30)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long, amount decimal(10,2), at timestamp"


@pytest.fixture
def topic(kafka_broker: Broker) -> str:
    """A new one of two partitions."""
    name = f"orders-{uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=2)
    return name


@pytest.fixture
def context(tmp_path: Path) -> SourceContext:
    return SourceContext("shop", "orders", Place(str(tmp_path)), MemoryBlobs())


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as serving:
        yield serving


def source_of(broker: Broker, topic: str, **changes: Any) -> Kafka:
    source = Kafka(topic, **({"servers": broker.servers, "schema": SCHEMA} | changes))
    assert source.problems() == []
    return source


def read(spark: SparkSession, source: Kafka, context: SourceContext, start: Json | None = None) -> DataFrame:
    planned = source.plan(start, context)
    source.verify(planned.splits, context)
    return source.read(spark, planned.splits, context)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def refusal(frame: DataFrame) -> TidegateError:
    """The error that a user is told for what Spark says about these rows."""
    with pytest.raises(Exception, match=r".") as caught:
        frame.collect()
    found = translate(caught.value)
    assert found is not None
    return found


# -- what is read --------------------------------------------------------------------------------------


def test_only_committed_records_are_read_each_once_and_again_the_same(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    producer = kafka_broker.producer(transactional_id=topic)
    producer.init_transactions()
    kept = []
    for number in range(6):
        producer.begin_transaction()
        ids = range(number * 10, number * 10 + 10)
        values = [(f"k{id}", json.dumps({"id": id})) for id in ids]
        kafka_broker.send(topic, values, producer=producer)
        if number % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            kept += list(ids)
    source = source_of(kafka_broker, topic, max_offsets=25)
    eventually("the last transaction is decided", lambda: source.plan(None, context).lag)
    found: list[int] = []
    start = None
    while not (planned := source.plan(start, context)).is_empty:
        source.verify(planned.splits, context)
        first, again = (rows(source.read(spark, planned.splits, context).select("id")) for _ in range(2))
        assert first == again
        found += [id for (id,) in first]
        start = planned.end
    assert sorted(found) == kept


def test_keys_headers_times_and_places_are_columns_if_they_are_asked_for(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    noon = datetime.now(UTC).replace(microsecond=5000)
    kafka_broker.send(
        topic,
        [("k\u00e9y", json.dumps({"id": 1, "amount": 2.5, "at": noon.isoformat(), "more": [1]}))],
        partition=1,
        headers=[("source", b"\xff"), ("source", None)],
        timestamp_ms=round(noon.timestamp() * 1000),
    )
    everything = ("timestamp", "partition", "offset", "headers")
    frame = read(spark, source_of(kafka_broker, topic, key="string", metadata=everything), context)
    assert frame.columns == ["id", "amount", "at", "_key", "_timestamp", "_partition", "_offset", "_headers"]
    millis = ["unix_millis(at) AS at", "unix_millis(_timestamp) AS t"]
    (row,) = frame.selectExpr("* except (at, _timestamp)", *millis).collect()
    assert (row.id, row.amount) == (1, Decimal("2.50"))
    assert row.at == row.t == round(noon.timestamp() * 1000)
    assert (row._key, row._partition, row._offset) == ("k\u00e9y", 1, 0)
    assert [(each.key, each.value) for each in row._headers] == [("source", b"\xff"), ("source", None)]
    (bytes_key,) = read(spark, source_of(kafka_broker, topic, key="bytes"), context).collect()
    assert bytes(bytes_key._key) == "k\u00e9y".encode()


def test_each_record_is_named_by_its_partition_and_offset(
    kafka_broker: Broker, topic: str, context: SourceContext, spark: SparkSession
) -> None:
    kafka_broker.send(topic, [(f"k{id}", json.dumps({"id": id})) for id in range(3)], partition=1)
    source = source_of(kafka_broker, topic, schema="id long", metadata=["offset"])
    planned = source.plan(None, context)
    named = source.read_with_places(spark, planned.splits, context)
    assert named.columns == ["id", "_offset", PLACE]
    assert [row[2] for row in rows(named)] == [f"offset {n} of partition 1 of {topic}" for n in range(3)]


def test_text_and_bytes_are_one_column(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    kafka_broker.send(topic, [(None, "\u00e9"), (None, ""), (None, b"\xff\x00")], partition=0)
    raw = read(spark, source_of(kafka_broker, topic, value="bytes", schema=None), context)
    assert raw.dtypes == [("value", "binary")]
    assert [bytes(row.value) for row in raw.collect()] == ["\u00e9".encode(), b"", b"\xff\x00"]
    text = source_of(kafka_broker, topic, value="string", schema=None)
    told = refusal(read(spark, text, context))
    assert told.reason == "MALFORMED_RECORD"
    assert f"record that is not UTF-8 at partition 0, offset 2 of topic {topic}" in told.what
    kept = source_of(kafka_broker, topic, value="string", schema=None, on_corrupt="keep", metadata=["offset"])
    assert rows(read(spark, kept, context)) == [("", None, 1), ("\u00e9", None, 0), (None, "\\xFF\0", 2)]


# -- bad records ---------------------------------------------------------------------------------------

BAD = [
    ('{"id": "two"}', "malformed record"),
    ('{"id": 2', "malformed record"),
    ("", "malformed record"),
    ("null", "malformed record"),
    ('[{"id": 2}]', "malformed record"),
    ('{"id": 2}{"id": 3}', "more than one record"),
    ('{"id": 2} x', "more than one record"),
    ('{"ID": 2}', "record with keys that the schema lacks"),
    ('{"id": 2, "amount": 1.005}', "a value that its column cannot hold"),
    ('{"id": 2, "at": 1772366400000}', "a value that its column cannot hold"),
    (b'{"id": 2, "name": "\xff"}', "record that is not UTF-8"),
]


def test_each_bad_record_is_refused_with_its_place(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    kafka_broker.send(topic, [(None, value) for value, _ in BAD], partition=1)
    source = source_of(kafka_broker, topic)
    planned = source.plan(None, context)
    for offset, (_, problem) in enumerate(BAD):
        one = planned.splits | {"ranges": {"1": [offset, offset + 1]}}
        told = refusal(source.read(spark, one, context))
        assert isinstance(told, Invalid)
        assert told.reason == "MALFORMED_RECORD"
        assert f"source 'orders': {problem} at partition 1, offset {offset} of topic {topic}" in told.what
        assert "file" not in str(told)


@pytest.mark.parametrize("value", ['{"id": 2', '{"ID": 2}', '{"id": 2, "amount": 1.005}'])
def test_no_query_overlooks_a_bad_record(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext, value: str
) -> None:
    kafka_broker.send(topic, [(None, '{"id": 1}'), (None, value)], partition=1)
    frame = read(spark, source_of(kafka_broker, topic), context)
    for asked in (frame.select("at"), frame.where("id = 1"), frame.groupBy().count()):
        assert refusal(asked).reason == "MALFORMED_RECORD"


def test_bad_records_are_kept_with_their_text_beside_the_good_ones(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    kafka_broker.send(topic, [(None, '{"id": 1}'), *((None, value) for value, _ in BAD)], partition=1)
    source = source_of(kafka_broker, topic, on_corrupt="keep", metadata=["offset"])
    frame = read(spark, source, context)
    assert frame.columns == ["id", "amount", "at", "_corrupt_record", "_offset"]
    found = sorted(frame.collect(), key=lambda row: row._offset)
    assert (found[0].id, found[0]._corrupt_record) == (1, None)
    assert all((row.id, row.amount, row.at) == (None, None, None) for row in found[1:])
    texts = [value if isinstance(value, str) else readable_text(value)[0] for value, _ in BAD]
    assert [row._corrupt_record for row in found[1:]] == texts
    assert frame.where("_corrupt_record IS NOT NULL").count() == len(BAD)


def test_a_number_is_not_rounded_on_its_way_into_a_column_of_text_or_of_38_digits(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    digits = "123456789012345678901234567890123456.78"
    kafka_broker.send(topic, [(None, f'{{"s": 1.50, "m": {digits}, "o": {{"s": 1e3}}}}')], partition=0)
    schema = "s string, m decimal(38,2), o struct<s: string>"
    (row,) = read(spark, source_of(kafka_broker, topic, schema=schema), context).collect()
    assert (row.s, str(row.m), row.o.s) == ("1.50", digits, "1e3")


def test_keys_that_the_schema_lacks_are_ignored_or_refused(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    kafka_broker.send(topic, [(None, '{"id": 1, "more": {"deep": [1, "}"]}}')])
    assert [row.id for row in read(spark, source_of(kafka_broker, topic), context).collect()] == [1]
    told = refusal(read(spark, source_of(kafka_broker, topic, on_new_column="refuse"), context))
    assert "record with keys that the schema lacks" in told.what


def test_what_does_not_fit_the_schema_stays_with_its_record(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    values = ['{"id": 1}', '{"id": 2, "vip": true}', None, '{"id": "three", "amount": 1.005}', '{"id": 4']
    kafka_broker.send(topic, [(None, value) for value in values], partition=1)
    source = source_of(
        kafka_broker,
        topic,
        on_new_column="evolve",
        on_type="rescue",
        on_corrupt="keep",
        tombstones="keep",
        metadata=["offset"],
    )
    splits = source.plan(None, context).splits
    survey = source.survey(spark, splits, context)
    assert survey is not None
    assert survey.drift is not None
    assert [(found.path, found.kind, found.type, found.file) for found in survey.drift.found] == [
        ("amount", "type", "double", "partition 1"),
        ("id", "type", "string", "partition 1"),
        ("vip", "new", "boolean", "partition 1"),
    ]
    found = source.read(spark, splits, context)
    assert found.columns == ["id", "amount", "at", "_rescued", "_corrupt_record", "_deleted", "_offset"]
    assert [(row.id, row["_rescued"], row["_corrupt_record"]) for row in found.orderBy("_offset").collect()] == [
        (1, None, None),
        (2, '{"vip":true}', None),
        (None, None, None),
        (None, '{"id":"three","amount":1.005}', None),
        (None, None, '{"id": 4'),
    ]
    evolved = source.with_schema(SourceSchema(ddl=f"{source.declared_schema}, vip boolean"))
    rows = evolved.read(spark, splits, context).orderBy("_offset").collect()
    assert [(row.id, row.vip, row["_rescued"]) for row in rows[:2]] == [(1, None, None), (2, True, None)]


def one_record(value: str, registry: SchemaRegistry) -> tuple[bytes, dict[str, Any]]:
    """The value of a record in a format, and the arguments to read it with."""
    how: dict[str, Any] = {"value": value, "schema": "id long" if value in ("json", "avro") else None}
    if value != "avro":
        return b'{"id": 1}', how
    number = registry.register({"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]})
    return registry.encoded(number, {"id": 1}), how | {"registry": registry.url}


@pytest.mark.parametrize("value", ["json", "string", "bytes", "avro"])
def test_records_without_a_value_are_refused_skipped_or_kept(
    spark: SparkSession,
    kafka_broker: Broker,
    topic: str,
    context: SourceContext,
    registry: SchemaRegistry,
    value: Any,
) -> None:
    good, how = one_record(value, registry)
    kafka_broker.send(topic, [("a", good), ("b", None)], partition=0)
    how |= {"key": "string"}
    told = refusal(read(spark, source_of(kafka_broker, topic, **how), context))
    assert f"source 'orders': record without a value at partition 0, offset 1 of topic {topic}" in told.what
    assert "tombstones='keep'" in told.help
    skipped = read(spark, source_of(kafka_broker, topic, **how, tombstones="skip"), context)
    assert [row._key for row in skipped.collect()] == ["a"]
    kept = read(spark, source_of(kafka_broker, topic, **how, tombstones="keep"), context)
    assert kept.columns[-2:] == ["_deleted", "_key"]
    first, second = sorted(kept.collect(), key=lambda row: row._key)
    assert (first._deleted, first[0] is None, second._deleted, second[0]) == (False, False, True, None)


@pytest.mark.parametrize("value", ["json", "string", "bytes", "avro"])
def test_a_key_that_is_no_text_is_a_bad_record(
    spark: SparkSession,
    kafka_broker: Broker,
    topic: str,
    context: SourceContext,
    registry: SchemaRegistry,
    value: Any,
) -> None:
    good, how = one_record(value, registry)
    kafka_broker.send(topic, [("a", good), (b"\xff", good), (None, good), (b"\xff", None)], partition=0)
    how |= {"key": "string", "tombstones": "keep"}
    told = refusal(read(spark, source_of(kafka_broker, topic, **how), context))
    assert f"source 'orders': record whose key is not UTF-8 at partition 0, offset 1 of topic {topic}" in told.what
    assert "key='bytes'" in told.help
    if value == "bytes":
        return
    kept = read(spark, source_of(kafka_broker, topic, **how, on_corrupt="keep", metadata=["offset"]), context).collect()
    found = [(row._key, row[0] is None, row._corrupt_record is None) for row in sorted(kept, key=lambda r: r._offset)]
    assert found == [("a", False, True), (None, True, False), (None, False, True), (None, True, False)]


# -- Avro ----------------------------------------------------------------------------------------------

OLD = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
NEW = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "amount",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}],
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
        {"name": "unasked", "type": "string"},
    ],
}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def order(**changes: Any) -> Json:
    return {"id": 2, "amount": Decimal("2.500"), "at": NOON, "lines": [{"a": 1}], "unasked": "x"} | changes


def avro_source(broker: Broker, topic: str, registry: SchemaRegistry, **changes: Any) -> Kafka:
    schema = "id int, amount decimal(10,2), at timestamp, lines array<map<string,int>>"
    return source_of(broker, topic, **({"value": "avro", "registry": registry.url, "schema": schema} | changes))


def test_avro_is_read_by_the_schema_of_each_record(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext, registry: SchemaRegistry
) -> None:
    old, new = registry.register(OLD), registry.register(NEW)
    values = [registry.encoded(old, {"id": 1}), registry.encoded(new, order())]
    kafka_broker.send(topic, [("k", value) for value in values], partition=0)
    source = avro_source(kafka_broker, topic, registry, key="string", metadata=["offset", "headers"])
    frame = read(spark, source, context)
    first, second = sorted(frame.collect(), key=lambda row: row.id)
    assert tuple(first) == (1, None, None, None, "k", 0, None)
    assert (second.id, second.amount, second.lines, second._offset) == (2, Decimal("2.50"), [{"a": 1}], 1)
    assert frame.where("id = 2").selectExpr("unix_millis(at)").first()[0] == NOON.timestamp() * 1000


def test_bad_avro_is_refused_with_its_place_or_kept_in_base64(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext, registry: SchemaRegistry
) -> None:
    new = registry.register(NEW)
    cased = registry.register({"type": "record", "name": "o", "fields": [{"name": "ID", "type": "long"}]})
    good = registry.encoded(new, order())
    bad = {
        b'{"id": 1}': "malformed record",
        b"\0\0": "malformed record",
        b"\0\x7f\xff\xff\xff\x02": "the registry has no schema 2147483647",
        good[:8]: "malformed record",
        good + b"x": "more than one record",
        registry.encoded(cased, {"ID": 1}): "record with keys that the schema lacks",
        registry.encoded(new, order(amount=Decimal("1.005"))): "a value that its column cannot hold",
        registry.encoded(new, order(id=2**40)): "a value that its column cannot hold",
    }
    kafka_broker.send(topic, [(None, good), *((None, value) for value in bad)], partition=0)
    kept = avro_source(kafka_broker, topic, registry, on_corrupt="keep", metadata=["offset"])
    found = sorted(read(spark, kept, context).collect(), key=lambda row: row._offset)
    assert (found[0].id, found[0]._corrupt_record) == (2, None)
    assert [base64.b64decode(row._corrupt_record) for row in found[1:]] == list(bad)
    assert all(row.id is None for row in found[1:])
    strict = avro_source(kafka_broker, topic, registry)
    planned = strict.plan(None, context)
    for offset, problem in list(enumerate(bad.values(), 1))[::2]:
        one = planned.splits | {"ranges": {"0": [offset, offset + 1]}}
        told = refusal(strict.read(spark, one, context))
        assert told.reason == "MALFORMED_RECORD"
        assert f"at partition 0, offset {offset} of topic {topic}" in told.what
        assert problem in told.what


def test_fields_of_avro_that_the_schema_lacks_are_rescued_and_become_typed_columns(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext, registry: SchemaRegistry
) -> None:
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    inner = {
        "type": "record",
        "name": "inner",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "long"}],
    }
    fields = {"id": "long", "n": ["long", "double", "string"], "vip": "boolean", "seen": moment, "ID": "string"}
    fields |= {"inside": inner, "mixed": ["long", "inner"]}
    record = {"type": "record", "name": "r", "fields": [{"name": k, "type": v} for k, v in fields.items()]}
    number = registry.register(record)

    def sent(**changes: Any) -> bytes:
        row = {"id": 1, "n": 1, "vip": True, "seen": NOON, "ID": "x", "inside": {"a": 1, "b": 2}, "mixed": 5}
        return registry.encoded(number, row | changes)

    values = [sent(), sent(id=2, n=2**40), sent(id=3, n="many", mixed={"a": 1, "b": 2})]
    kafka_broker.send(topic, [(None, value) for value in values], partition=0)
    schema = "id long, n int, inside struct<a:bigint>"
    source = avro_source(
        kafka_broker, topic, registry, schema=schema, on_new_column="evolve", on_type="widen", metadata=["offset"]
    )
    splits = source.plan(None, context).splits
    survey = source.survey(spark, splits, context)
    assert survey is not None
    assert survey.drift is not None
    assert survey.drift.records == 3
    found = {column.path: (column.kind, column.type, column.wider, column.records) for column in survey.drift.found}
    assert found == {
        "ID": ("case", "string", "", 3),
        "inside.b": ("new", "bigint", "", 3),
        "mixed": ("new", "string", "", 3),
        "n": ("type", "string", "bigint", 2),
        "seen": ("new", "timestamp", "", 3),
        "vip": ("new", "boolean", "", 3),
    }
    rows = source.read(spark, splits, context).orderBy("_offset").collect()
    assert [(row.id, row.n, row.inside.a) for row in rows] == [(1, 1, 1), (2, None, 1), (3, None, 1)]
    assert json.loads(rows[1]["_rescued"]) == {
        "vip": True, "seen": "2026-03-01T12:00:00Z", "ID": "x", "inside.b": 2, "mixed": 5, "n": 2**40,
    }  # fmt: skip
    ddl = "id long, n bigint, inside struct<a:bigint>, mixed string, seen timestamp, vip boolean"
    evolved = source.with_schema(SourceSchema(ddl=ddl))
    after = evolved.read(spark, splits, context).orderBy("_offset").collect()
    assert [(row.n, row.vip, row.mixed) for row in after] == [
        (1, True, "5"), (2**40, True, "5"), (None, True, '{"a":1,"b":2}'),
    ]  # fmt: skip
    assert json.loads(after[2]["_rescued"]) == {"ID": "x", "inside.b": 2, "n": "many"}


def test_avro_with_a_field_that_the_schema_lacks_may_be_refused(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext, registry: SchemaRegistry
) -> None:
    kafka_broker.send(topic, [(None, registry.encoded(registry.register(NEW), order()))], partition=0)
    source = avro_source(kafka_broker, topic, registry, on_new_column="refuse")
    told = refusal(read(spark, source, context))
    assert "record with keys that the schema lacks" in told.what
    assert "'unasked'" in str(told.quoted)


def test_workers_log_in_at_the_registry_and_tell_when_it_is_away(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    with schema_registry() as registry:
        kafka_broker.send(topic, [(None, registry.encoded(registry.register(OLD), {"id": 1}))])
        registry.login = f"me:{READERS_PASSWORD}"
        options = {"bootstrap.servers": kafka_broker.servers, "schema.registry.basic.auth.user.info": registry.login}
        place = Place("/data", connections={f"events.{name}": value for name, value in options.items()})
        source = avro_source(kafka_broker, topic, registry, servers=None, connection="events")
        frame = read(spark, source, SourceContext("shop", "orders", place, context.blobs))
        assert [row.id for row in frame.collect()] == [1]
        registry.away = True
        told = refusal(frame)
        assert isinstance(told, Unavailable)
        assert "the schema registry does not answer: 503" in told.what


# -- what has changed since the plan -------------------------------------------------------------------


def test_records_that_go_between_check_and_read_fail_the_read(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    kafka_broker.send(topic, [(None, '{"id": 1}')] * 9, partition=0)
    frame = read(spark, source_of(kafka_broker, topic), context)
    kafka_broker.delete_records(topic, {0: 5})
    assert isinstance(refusal(frame), Unavailable), "it is tried again, and then the check tells what has gone"


class ReplacedInBetween(Kafka):
    """A topic that somebody deletes, makes again and fills right after Spark has read it."""

    def __init__(self, broker: Broker, topic: str, **how: Any) -> None:
        super().__init__(topic, servers=broker.servers, **how)
        self.broker = broker

    def describe(self) -> Json:
        return {"kind": self.kind, "topic": self.topic}

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        frame = super().read(spark, splits, context)
        found = frame.collect()
        self.broker.delete_topic(self.topic)
        self.broker.create_topic(self.topic)
        self.broker.send(self.topic, [(None, '{"id": 7}')] * 9)
        return spark.createDataFrame(found, frame.schema)


class ShopFromKafka(World):
    """A pipeline from a topic to a table."""

    def __init__(self, root: Path, spark: SparkSession, source: Kafka) -> None:
        self.root, self.spark, self.source = root, spark, source
        self.limits = Limits()

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("shop")
        pipeline.source("orders", self.source).sink("orders", DeltaAppend("tables/orders"))
        return pipeline

    def planned(self) -> int:
        triggered = self.coordinator().trigger(f"run {uuid4().hex}")
        assert isinstance(triggered, Triggered)
        return triggered.plan.id

    def completed(self, id: int) -> None:
        coordinator = self.coordinator()
        run_job(coordinator, id, "main", self.spark)
        assert coordinator.complete(id).state == "completed"
        coordinator.publish()


def test_a_topic_that_is_made_again_while_it_is_read_fails_the_attempt(
    spark: SparkSession, kafka_broker: Broker, topic: str, tmp_path: Path
) -> None:
    kafka_broker.send(topic, [(None, '{"id": 1}')] * 3)
    shop = ShopFromKafka(tmp_path, spark, ReplacedInBetween(kafka_broker, topic, schema="id long"))
    id = shop.planned()
    with pytest.raises(Invalid, match="was deleted and created again") as error:
        shop.completed(id)
    assert error.value.reason == "TOPIC_RECREATED"
    entry = shop.ledger.entry(id)
    assert entry is not None
    assert not entry.acks


def test_checkpoints_take_each_record_once_tell_what_waits_and_set_the_group(
    spark: SparkSession, kafka_broker: Broker, topic: str, tmp_path: Path
) -> None:
    kafka_broker.send(topic, [(f"k{id}", json.dumps({"id": id})) for id in range(10)])
    source = source_of(kafka_broker, topic, schema="id long", group=f"{topic}-watchers", max_offsets=6)
    shop = ShopFromKafka(tmp_path, spark, source)
    for waiting in (4, 0):
        id = shop.planned()
        shop.completed(id)
        entry = shop.ledger.entry(id)
        assert entry is not None
        row = live_row(shop.ledger, entry)
        assert row.waiting_rows == waiting
        assert (row.waiting_seconds is None) == (waiting == 0)
    assert sorted(row["id"] for row in shop.rows("tables/orders")) == list(range(10))
    assert sum(group_offsets(kafka_broker, f"{topic}-watchers").values()) == 10


class CountedShop(ShopFromKafka):
    """A pipeline that counts a topic's records by customer."""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("shop")
        counts = pipeline.source("orders", self.source).aggregate(by="customer", orders="count(*)", uid="counts")
        counts.sink("counts", DeltaUpsert("tables/counts", keys=["customer"]))
        return pipeline


def test_a_few_records_of_several_partitions_are_computed_by_one_worker(
    spark: SparkSession, kafka_broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [(f"k{id}", json.dumps({"customer": id})) for id in range(100)]
    source = source_of(kafka_broker, topic, schema="customer long")
    shop = CountedShop(tmp_path, spark, source)
    files = []
    for most in (FEW_ROWS, 99):
        monkeypatch.setattr(small_input, "FEW_ROWS", most)
        kafka_broker.send(topic, records)
        id = shop.planned()
        shop.completed(id)
        entry = shop.ledger.entry(id)
        assert entry is not None
        assert entry.plan.sources["orders"].summary == "100 offsets in 2 of 2 partitions"
        files.append(entry.acks["main"].ack.stats.files["counts"])
    assert files == [1, 2]
    assert {row["customer"]: row["orders"] for row in shop.rows("tables/counts")} == dict.fromkeys(range(100), 2)


# -- logins, and jars ----------------------------------------------------------------------------------


def test_spark_logs_in_too_and_shows_the_password_nowhere(
    spark: SparkSession, kafka_broker: Broker, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    kafka_broker.send(topic, [(None, '{"id": 1}')] * 3)
    kafka_broker.allow(READER, "TOPIC", topic, "DESCRIBE", "READ", "DESCRIBE_CONFIGS")
    place = Place("/data", connections=login_of(kafka_broker))
    context = SourceContext("shop", "orders", place, MemoryBlobs())
    source = Kafka(topic, connection="events", schema="id long")
    eventually("rights apply", lambda: _plans(source, context))
    frame = read(spark, source, context)
    assert frame.count() == 3
    frame.explain(mode="extended")
    frame.explain(mode="formatted")
    out = capfd.readouterr()
    assert "kafka" in out.out.lower()
    assert READERS_PASSWORD not in out.out + out.err


def test_tidegate_and_spark_log_in_by_scram_over_tls(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    password = 'canary "of\\a; pass=w\u00f6rd'
    with kafka(logins={READER: READERS_PASSWORD}, properties=with_tls(tmp_path)) as broker:
        broker.create_topic("orders")
        broker.send("orders", [(None, '{"id": 1}')] * 3)
        broker.add_scram_login("scram", password)
        broker.allow("scram", "TOPIC", "orders", "DESCRIBE", "READ", "DESCRIBE_CONFIGS")
        tls = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "scram"}

        def logged_in(**changes: str) -> SourceContext:
            place = Place("/data", connections=login_of(broker, **tls | changes))
            return SourceContext("shop", "orders", place, MemoryBlobs())

        source = Kafka("orders", connection="events", schema="id long")
        context = logged_in(sasl_password=password, ssl_ca_location=str(tmp_path / "ca.pem"))
        eventually("rights apply", lambda: _plans(source, context))
        frame = read(spark, source, context)
        assert frame.count() == 3
        frame.explain(mode="extended")
        for wrong in (
            logged_in(sasl_password="canary", ssl_ca_location=str(tmp_path / "ca.pem")),
            logged_in(sasl_password=password),
        ):
            with pytest.raises(Invalid) as error:
                source.plan(None, wrong)
            assert error.value.reason == "BAD_LOGIN"
            assert "canary" not in str(error.value)
    out = capfd.readouterr()
    assert "canary" not in out.out + out.err


def test_a_spark_server_logs_in_too_and_keeps_the_password_out_of_its_log_and_plans(
    connect_spark: SparkSession, connect_settings: SparkSettings, kafka_broker: Broker, topic: str
) -> None:
    kafka_broker.send(topic, [(None, '{"id": 1}'), (None, '{"id": "x"}')], partition=0)
    kafka_broker.allow(READER, "TOPIC", topic, "DESCRIBE", "READ", "DESCRIBE_CONFIGS")
    context = SourceContext("shop", "orders", Place("/data", connections=login_of(kafka_broker)), MemoryBlobs())
    source = Kafka(topic, connection="events", schema="id long", key="string", metadata=["headers"])
    eventually("rights apply", lambda: _plans(source, context))
    frame = read(connect_spark, source, context)
    told = refusal(frame)
    assert f"malformed record at partition 0, offset 1 of topic {topic}" in told.what
    said = frame._explain_string(extended=True) + str(told)
    logs = "".join(path.read_text(errors="replace") for path in Path(connect_settings.home).rglob("*.log"))
    assert "KafkaRelation" in said
    assert topic in logs
    assert READERS_PASSWORD not in said + logs


def _plans(source: Kafka, context: SourceContext) -> bool:
    try:
        return not source.plan(None, context).is_empty
    except Invalid:
        return False


def test_a_spark_without_the_jars_is_told_which(
    spark: SparkSession, kafka_broker: Broker, topic: str, context: SourceContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka_broker.send(topic, [(None, '{"id": 1}')])
    monkeypatch.setattr(reading, "_FORMAT", "kafka_without_its_jars")
    with pytest.raises(Invalid, match="this Spark cannot read Kafka") as error:
        read(spark, source_of(kafka_broker, topic), context)
    assert error.value.reason == "KAFKA_JARS"
    assert "spark-sql-kafka-0-10_2.13" in error.value.expected
