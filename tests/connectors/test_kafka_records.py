"""Rows as records of Kafka: what Spark makes of them, what a consumer gets, and a pipeline that goes back."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.kit.kafka import Broker
from tests.kit.sampling import in_turn
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.main import main
from tidegate.cli.targets import open_target
from tidegate.connectors.sink import Publication, Staging
from tidegate.errors import Corrupt, Invalid, Rejected
from tidegate.execution.job.run_job import run_job
from tidegate.execution.runs import new_run
from tidegate.records.place import Place
from tidegate.sinks import KafkaTopic, SinkContext
from tidegate.sources import Files

pytestmark = in_turn(seconds=30)


class Sending:
    """A sink, and what its topic has after a checkpoint."""

    def __init__(self, broker: Broker, folder: Any, spark: Any, **declared: Any) -> None:
        self.broker, self.spark, self.topic = broker, spark, f"records-{os.urandom(3).hex()}"
        told = {"partitions": 3} | declared
        self.sink = KafkaTopic(self.topic, servers=broker.servers, **told)
        assert self.sink.problems() == []
        self.context = SinkContext("p", "u1", "s", Place(str(folder)), home=str(folder / "home"))
        self.sink.check(self.context)
        self.id = 0

    def send(self, rows: Any, withdrawn: Any = None) -> list[Any]:
        """Publish one checkpoint; return all records that are there then."""
        self.id += 1
        frame, staging = self.spark.sql(rows), Staging(self.id, "a")
        if withdrawn is None:
            prepared = self.sink.prepare(frame, self.context, staging)
        else:
            prepared = self.sink.prepare_with_retractions(frame, self.spark.sql(withdrawn), self.context, staging)
        if prepared.committable is not None:
            batches = (json.loads(json.dumps(prepared.committable)),)
            head = self.sink.head(self.context)
            assert (
                self.sink.publish(Publication(self.id, 0, "m", head.last_entry, batches), head, self.context)
                is not None
            )
        return self.broker.read(self.topic)


@pytest.fixture
def sending(kafka_broker: Broker, tmp_path: Any, spark: Any) -> Any:
    return lambda **declared: Sending(kafka_broker, tmp_path, spark, **declared)


def test_a_row_is_a_json_object_that_loses_nothing(sending):
    to = sending(key="id")
    (record,) = to.send(
        "SELECT 7L AS id, 'ä \"x\"' AS text, CAST(1.10 AS decimal(10,2)) AS amount, CAST(null AS int) AS none, "
        "timestamp'2026-01-02 03:04:05.678901+02:00' AS at, timestamp_ntz'2026-01-02 03:04:05.000001' AS wall, "
        "date'2026-01-02' AS day, array(1, null) AS many, named_struct('a', true) AS inner, X'00FF' AS raw"
    )
    assert record.key == b"7"
    text = record.value.decode()
    assert json.loads(text, parse_float=Decimal) == {
        "id": 7,
        "text": 'ä "x"',
        "amount": Decimal("1.10"),
        "none": None,
        "at": "2026-01-02T01:04:05.678901Z",
        "wall": "2026-01-02T03:04:05.000001",
        "day": "2026-01-02",
        "many": [1, None],
        "inner": {"a": True},
        "raw": "AP8=",
    }


@pytest.mark.parametrize(
    ("column", "key"),
    [
        ("'ä'", "ä".encode()),
        ("X'00FF'", b"\x00\xff"),
        ("-3", b"-3"),
        ("true", b"true"),
        ("date'2026-01-02'", b"2026-01-02"),
        ("CAST(1.10 AS decimal(9,2))", b"1.10"),
        ("CAST(null AS string)", None),
    ],
)
def test_the_text_of_a_column_is_the_key(sending, column, key):
    (record,) = sending(key="k").send(f"SELECT {column} AS k, 1 AS v")
    assert record.key == key


def test_several_columns_are_a_key_as_json(sending):
    (record,) = sending(key=["a", "at"]).send("SELECT 'x' AS a, timestamp'2026-01-02 00:00:00+00:00' AS at, 1 AS v")
    assert json.loads(record.key) == {"a": "x", "at": "2026-01-02T00:00:00.000000Z"}


def test_keys_are_in_the_partitions_that_java_chooses(sending):
    """By murmur2 of the key: 'u1' and 'u2' as Java's DefaultPartitioner places them among three."""
    records = sending(key="k").send("SELECT * FROM VALUES ('u1'), ('u2'), ('u3'), ('u4') AS t(k)")
    assert {record.key.decode(): record.partition for record in records} == {
        key: (murmur2(key.encode()) & 0x7FFFFFFF) % 3 for key in ("u1", "u2", "u3", "u4")
    }


def murmur2(data: bytes) -> int:
    """As in Kafka's org.apache.kafka.common.utils.Utils."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_headers_partition_and_time_come_from_columns(sending):
    to = sending(
        value="string",
        headers={"trace-id": "trace", "raw": "bytes"},
        checkpoint_header="checkpoint",
        partition="p",
        timestamp="at",
        topic_config={"retention.ms": "-1"},
    )
    records = to.send(
        "SELECT * FROM VALUES ('first', 't1', X'01', 2, timestamp'2026-01-02 00:00:00.123+00:00'), "
        "('second', null, X'02', 0, null) AS t(value, trace, bytes, p, at)"
    )
    by_value = {record.value: record for record in records}
    first, second = by_value[b"first"], by_value[b"second"]
    assert (first.partition, second.partition) == (2, 0)
    assert first.headers == (("trace-id", b"t1"), ("raw", b"\x01"), ("checkpoint", b"1"))
    assert second.headers == (("trace-id", None), ("raw", b"\x02"), ("checkpoint", b"1"))
    assert first.timestamp_ms == int(datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000) + 123
    assert second.timestamp_ms > first.timestamp_ms, "without a time of its own it is that of sending"


def test_bytes_go_as_they_are_and_null_is_a_tombstone(sending):
    records = sending(key="k", value="bytes").send("SELECT 'a' AS k, X'00FF' AS value UNION ALL SELECT 'b', null")
    assert {record.key: record.value for record in records} == {b"a": b"\x00\xff", b"b": None}


def test_rows_are_sent_in_the_order_that_is_asked_for(sending):
    to = sending(value="string", partitions=1, order_by="n")
    records = to.send("SELECT CAST(id AS string) AS value, (id * 7919) % 1000 AS n FROM range(0, 1000, 1, 8)")
    assert [int(record.value) * 7919 % 1000 for record in records] == list(range(1000))


def test_columns_can_be_left_out(sending):
    (record,) = sending(omit=["trace"], headers=["trace"]).send("SELECT 1 AS a, 't' AS trace")
    assert (json.loads(record.value), record.headers) == ({"a": 1}, (("trace", b"t"),))


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"key": "nope"}, "key column 'nope' is not in the output (id, at, value)"),
        ({"key": "at"}, "key column 'at' is timestamp, not string"),
        ({"headers": ["id"]}, "header column 'id' is int, not string or binary"),
        ({"partition": "value"}, "partition column 'value' is string"),
        ({"timestamp": "id"}, "timestamp column 'id' is int, not timestamp"),
        ({"value": "bytes"}, "column 'value' is string, not binary"),
        ({"omit": ["id", "at", "value"]}, "omit leaves no column"),
        ({"order_by": "nope"}, "order_by column 'nope' is not in the output"),
    ],
)
def test_an_output_that_does_not_fit_is_refused_before_anything_is_staged(sending, declared, problem):
    to = sending(**declared)
    with pytest.raises(Invalid) as refused:
        to.send("SELECT 1 AS id, current_timestamp() AS at, 'x' AS value")
    assert refused.value.reason == "BAD_OUTPUT"
    assert problem in refused.value.what
    assert to.sink.attempts(1, to.context) == []


def test_a_partition_that_the_topic_lacks_is_refused_before_the_decision(sending):
    to = sending(value="string", partition="p")
    with pytest.raises(Invalid, match="a row asks for a partition that the topic .* does not have: it has 3"):
        to.send("SELECT 'x' AS value, 3 AS p")


@pytest.mark.parametrize(
    ("settings", "at", "limit"),
    [
        ({}, "current_timestamp() + interval 2 hours", "message.timestamp.after.max.ms"),
        ({"message.timestamp.before.max.ms": "60000"}, "current_timestamp() - interval 2 hours", "before.max.ms"),
    ],
)
def test_a_time_that_the_topic_does_not_take_is_refused_before_the_decision(sending, settings, at, limit):
    to = sending(timestamp="at", partitions=1, topic_config={"retention.ms": "-1"} | settings)
    with pytest.raises(Invalid) as refused:
        to.send(f"SELECT 1 AS id, {at} AS at UNION ALL SELECT 2, null")
    assert refused.value.reason == "BAD_TIME"
    assert limit in refused.value.expected
    assert to.broker.read(to.topic) == []
    assert len(to.send("SELECT 1 AS id, current_timestamp() AS at UNION ALL SELECT 2, null")) == 2
    own_times = sending(timestamp="at", topic_config={"message.timestamp.type": "LogAppendTime"} | settings)
    own_times.id = to.id
    assert len(own_times.send(f"SELECT 1 AS id, {at} AS at")) == 1


@pytest.mark.parametrize(
    "at", ["1970-01-01 00:00:00Z", "1970-01-01 00:00:00.000999Z", "1969-12-31 23:59:59Z", "-0044-03-15 00:00:00Z"]
)
def test_a_time_that_kafka_would_take_for_none_is_refused_before_the_decision(sending, at):
    to = sending(timestamp="at", partitions=1, topic_config={"retention.ms": "-1"})
    with pytest.raises(Invalid, match="a row asks for a timestamp") as refused:
        to.send(f"SELECT 1 AS id, timestamp'{at}' AS at UNION ALL SELECT 2, current_timestamp()")
    assert refused.value.reason == "BAD_TIME"
    assert to.broker.read(to.topic) == []
    first, second = to.send("SELECT 1 AS id, timestamp'1970-01-01 00:00:00.001Z' AS at UNION ALL SELECT 2, null")
    assert sorted([first.timestamp_ms, second.timestamp_ms])[0] == 1
    own_times = sending(timestamp="at", topic_config={"message.timestamp.type": "LogAppendTime"})
    own_times.id = to.id
    assert len(own_times.send(f"SELECT 1 AS id, timestamp'{at}' AS at")) == 1


# -- streams that replace rows ---------------------------------------------------------------------------


def test_a_key_that_is_gone_gets_a_tombstone_and_a_row_that_changed_does_not(sending):
    to = sending(key=["k"], topic_config={"cleanup.policy": "compact"})
    to.send("SELECT * FROM VALUES ('a', 1), ('b', 1), ('c', 1) AS t(k, v)", withdrawn="SELECT 'a' AS k, 0 AS v LIMIT 0")
    records = to.send("SELECT 'a' AS k, 2 AS v", withdrawn="SELECT * FROM VALUES ('a', 1), ('b', 1) AS t(k, v)")
    last = {json.loads(record.key)["k"]: record.value and json.loads(record.value)["v"] for record in records}
    assert last == {"a": 2, "b": None, "c": 1}
    assert len(records) == 5
    records = to.send("SELECT 'a' AS k, 0 AS v LIMIT 0", withdrawn="SELECT 'a' AS k, 2 AS v")
    assert len(records) == 6, "a checkpoint that only removes is sent, too"


def test_a_key_that_a_later_attempt_of_the_checkpoint_removes_stays_removed(sending):
    to = sending(key=["k"], partitions=1)
    nothing = to.spark.sql("SELECT 'a' AS k, 1 AS v LIMIT 0")
    rows = to.spark.sql("SELECT 'a' AS k, 1 AS v")
    first = to.sink.prepare_with_retractions(rows, nothing, to.context, Staging(1, "first")).committable
    second = to.sink.prepare_with_retractions(nothing, rows, to.context, Staging(1, "second")).committable
    publication = Publication(1, 0, "m", None, (first, second))
    assert to.sink.publish(publication, to.sink.head(to.context), to.context) is not None
    assert [record.value is None for record in to.broker.read(to.topic)] == [False, True]


@pytest.mark.parametrize("rows", ["SELECT 'a' AS k, 1 AS v UNION ALL SELECT 'a', 2", "SELECT null AS k, 1 AS v"])
def test_a_key_that_does_not_identify_a_row_is_refused(sending, rows):
    with pytest.raises(Invalid) as refused:
        sending(key="k").send(rows.replace("null", "CAST(null AS string)"), withdrawn="SELECT 'x' AS k, 1 AS v LIMIT 0")
    assert refused.value.reason == "DUPLICATE_KEYS"


@pytest.mark.parametrize("declared", [{}, {"key": "k", "order_by": "v"}, {"key": "k", "partition": "p"}])
def test_what_does_not_go_with_replaced_rows_is_told_when_the_pipeline_is_declared(declared):
    assert KafkaTopic("t", servers="s", **declared).update_problems("totals") != []
    assert KafkaTopic("t", servers="s", key="k").update_problems("totals") == []


# -- a pipeline ----------------------------------------------------------------------------------------------


@dataclass
class ShopIntoKafka(World):
    """Orders and totals into Kafka."""

    name: str = field(default="shop", init=False)
    servers: str = ""
    suffix: str = ""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("shop")
        orders = pipeline.source("orders", Files("landing/*.json", schema="id long, who string", max_files=1))
        orders.sink("log", self.topic("log", key="id"))
        orders.aggregate(by="who", n="count(*)", uid="totals").sink("totals", self.topic("totals", key=["who"]))
        return pipeline

    def topic(self, name: str, key: Any) -> KafkaTopic:
        return KafkaTopic(f"{name}-{self.suffix}", servers=self.servers, key=key, partitions=1)

    def land(self, id: int) -> None:
        (self.root / "landing").mkdir(exist_ok=True)
        (self.root / f"landing/{id}.json").write_text(json.dumps({"id": id, "who": "ann"}))


def test_a_pipeline_sends_each_checkpoint_and_going_back_asks_about_what_was_sent(kafka_broker, tmp_path, spark):
    shop = ShopIntoKafka(tmp_path, servers=kafka_broker.servers, suffix=os.urandom(3).hex())
    shop.spark = spark
    for id in (1, 2):
        shop.land(id)
        shop.checkpoint(f"run {id}")

    def sent(name: str) -> list[Any]:
        return [json.loads(record.value) for record in kafka_broker.read(f"{name}-{shop.suffix}")]

    assert [row["id"] for row in sent("log")] == [1, 2]
    assert [row["n"] for row in sent("totals")] == [1, 2]
    with pytest.raises(Rejected) as refused:
        shop.coordinator().roll_back(1, run=new_run(), by="a person")
    assert "records cannot be removed from the topic" in str(refused.value)
    assert "--keep" in str(refused.value)
    done = shop.coordinator().roll_back(1, run=new_run(), by="a person", choices={"log": "keep", "totals": "keep"})
    assert done.error is None
    shop.checkpoint("run 3")
    assert [row["id"] for row in sent("log")] == [1, 2, 2], "computed again, so sent again"
    assert [row["n"] for row in sent("totals")] == [1, 2, 2]
    shop.land(4)
    shop.checkpoint("run 4")
    assert [row["id"] for row in sent("log")] == [1, 2, 2, 4]


PROJECT = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, KafkaTopic
from tidegate.sources import Files

pipeline = Pipeline("shop")
orders = pipeline.source("orders", Files("landing/*.json", schema="id long", max_files=1))
orders.sink("out", KafkaTopic("{topic}", servers="{servers}", key="id", partitions=1))
orders.sink("table", DeltaAppend("tables/orders"))
"""


def test_a_lost_mark_holds_everything_until_the_command_puts_it_back(
    kafka_broker, tmp_path, spark, monkeypatch, capsys
):
    topic, module = f"out-{os.urandom(3).hex()}", f"shop_{os.urandom(3).hex()}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\ndata = "."\n')
    (tmp_path / f"{module}.py").write_text(PROJECT.format(topic=topic, servers=kafka_broker.servers))
    (tmp_path / "landing").mkdir()

    def coordinator() -> Any:
        return coordinator_of(open_target(f"{module}:pipeline", {}, started=False))

    def checkpoint(id: int) -> None:
        (tmp_path / f"landing/{id}.json").write_text(json.dumps({"id": id}))
        run_job(coordinator(), coordinator().trigger(f"run {id}").plan.id, "main", spark)
        coordinator().complete(id)
        coordinator().publish()

    def mark(*words: str) -> tuple[int, str]:
        code = main(["mark", f"{module}:pipeline", *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    checkpoint(1)
    checkpoint(2)
    assert mark("--sink", "out") == (0, f"kafka:{kafka_broker.servers}/{topic}: checkpoint 2 is the last one\n")
    kafka_broker.delete_topic(f"{topic}.tidegate.shop.out")
    with pytest.raises(Corrupt, match="contradict each other") as damaged:
        coordinator().publish()
    assert "`tidegate mark MODULE:PIPELINE --sink out`" in damaged.value.help
    assert mark("--sink", "table", "--last", "2")[0] == 2
    assert "is not completed" in mark("--sink", "out", "--last", "3")[1]
    assert mark("--sink", "out", "--last", "2")[0] == 2, "there is no terminal to ask"
    assert mark("--sink", "out", "--last", "2", "--yes")[0] == 0
    coordinator().publish()
    checkpoint(3)
    assert [json.loads(record.value) for record in kafka_broker.read(topic)] == [{"id": id} for id in (1, 2, 3)]
    assert mark("--sink", "out", "--last", "none", "--yes")[1].endswith("no mark\n")
