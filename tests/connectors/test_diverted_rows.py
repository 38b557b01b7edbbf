"""Rows that a target refuses only in publication: a person diverts them to quarantine, and the others are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.kafka import Broker
from tests.kit.postgres import Server
from tests.kit.postgres_sinks import CONNECTION, connections
from tests.kit.refusing_targets import RefusingTarget, Row
from tests.kit.sampling import in_turn
from tidegate import seams
from tidegate.connectors.sink import Head, Publication
from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.execution.by_hand.diverting import find_refusal, preview_divert
from tidegate.sinks import DeltaAppend, DeltaUpsert, IcebergAppend, KafkaTopic, PostgresAppend

pytestmark = in_turn(seconds=60)

SCHEMA = (
    "n long, code string, amount decimal(12,2), at timestamp, tags array<string>, place struct<city: string, zip: int>"
)
TABLE = (
    "CREATE TABLE out (n bigint PRIMARY KEY, code text, amount numeric(12,2), at timestamptz, tags text[], place jsonb)"
)


def order(n: int) -> Row:
    return {
        "n": n,
        "code": f"c{n}",
        "amount": f"{n}.50",
        "at": f"2026-01-01T00:00:{n % 60:02}Z",
        "tags": [f"t{n}"],
        "place": {"city": "Graz", "zip": n},
    }


def orders(*numbers: int) -> list[Row]:
    return [order(n) for n in numbers]


def shop_of(folder: Path, spark: Any, sink: Any, **options: Any) -> RefusingTarget:
    """Orders go to a target that refuses some."""
    shop = RefusingTarget(folder, schema=SCHEMA, sink=sink, **options)
    shop.spark = spark
    return shop


@pytest.fixture
def shop(tmp_path: Path, spark: Any, postgres: Server) -> RefusingTarget:
    """A database has the orders 3 and 5 already, and a Delta table gets all orders."""
    postgres.run(TABLE)
    postgres.run("INSERT INTO out (n) VALUES (3), (5)")
    sink = PostgresAppend("out", connection=CONNECTION)
    return shop_of(tmp_path, spark, sink, connections=connections(postgres), beside=True)


def numbers_in(postgres: Server) -> list[int]:
    """The orders in the database; those that others have put there have no code."""
    return [n for (n,) in postgres.run("SELECT n FROM out WHERE code IS NOT NULL ORDER BY n")]


def test_a_person_diverts_the_row_that_the_target_refuses_and_the_rest_is_published(shop, postgres):
    shop.decide("one", *orders(1, 2, 3))
    with pytest.raises(Invalid, match="out_pkey"):
        shop.publish()
    shop.land(*orders(4))
    with pytest.raises(Invalid, match="out_pkey"):
        shop.trigger("two")
    refusal = shop.refusal()
    assert (refusal.waiting, refusal.last, refusal.error.reason) == ((1,), None, "DATABASE_REFUSES")
    found = preview_divert(shop.coordinator(), shop.spark, refusal, "n = 3")
    assert (found.by_checkpoint, [row["code"] for row in found.shown]) == ({1: 1}, ["c3"])
    assert numbers_in(postgres) == [], "a look changes nothing"

    assert shop.divert("n = 3", note="the shop has sent it twice", expected_rows=1) is None
    assert numbers_in(postgres) == [1, 2]
    (row,) = shop.quarantined()
    assert (row["n"], row["code"], row["tags"]) == (3, "c3", ["t3"])
    assert (row["place"], row["_tidegate_rules"]) == ({"city": "Graz", "zip": 3}, ["diverted"])
    assert row["_tidegate_checkpoint"] == 2
    said = row["_tidegate_why"]
    assert "out_pkey" in said
    assert said.endswith("; diverted by ann: the shop has sent it twice")
    assert sorted(row["n"] for row in shop.rows("tables/all")) == [1, 2, 3], "other tables are as they were"

    shop.checkpoint("three")
    assert numbers_in(postgres) == [1, 2, 4], "later checkpoints follow"
    shop.release(n="33")
    shop.checkpoint("four")
    assert numbers_in(postgres) == [1, 2, 4, 33]
    assert postgres.run("SELECT code, amount, tags FROM out WHERE n = 33")[0][0] == "c3"
    assert [row["_tidegate_settled"] for row in shop.quarantined()] == ["released"]


def test_a_target_that_refuses_one_row_after_the_other_is_answered_by_one_divert_after_the_other(shop, postgres):
    shop.decide("one", *orders(1, 3))
    with pytest.raises(Invalid, match="out_pkey"):
        shop.publish()
    postgres.run("DELETE FROM out WHERE n = 5")
    shop_two = shop.divert("n = 1")
    assert shop_two is not None
    assert "out_pkey" in shop_two.what, "it was the wrong row"
    assert numbers_in(postgres) == []
    assert shop.divert("n = 3") is None
    assert numbers_in(postgres) == []
    assert [row["n"] for row in shop.quarantined()] == [1, 3], "each is there once"
    shop.decide("two", *orders(6))
    shop.publish()
    assert numbers_in(postgres) == [6]


def test_a_divert_that_comes_too_late_diverts_nothing(shop, postgres):
    shop.decide("one", *orders(1, 3))
    refusal = shop.refusal()
    postgres.run("DELETE FROM out")
    shop.publish()  # the target has been mended
    assert numbers_in(postgres) == [1, 3]
    assert shop.divert("n = 3", refusal) is None
    assert numbers_in(postgres) == [1, 3]
    assert shop.quarantined() == []
    with pytest.raises(Rejected, match="nothing waits for table 'out'"):
        shop.refusal()
    shop.decide("two", *orders(6))
    shop.publish()
    assert numbers_in(postgres) == [1, 3, 6]


def test_a_rollback_cannot_return_to_between_a_divert_and_what_it_named(shop, postgres):
    shop.sink = PostgresAppend("kept", connection=CONNECTION, allow_rollback=True)
    postgres.run(
        "CREATE TABLE kept (n bigint PRIMARY KEY, code text, amount numeric(12,2), at timestamptz, tags text[], "
        "place jsonb, tidegate_checkpoint bigint)"
    )
    shop.land(*orders(1))
    shop.checkpoint("one")
    postgres.run("INSERT INTO kept (n) VALUES (3)")
    two = shop.decide("two", *orders(2, 3))
    with pytest.raises(Invalid, match="kept_pkey"):
        shop.publish()
    assert shop.divert("n = 3") is None
    coordinator = shop.coordinator()
    with pytest.raises(Rejected, match=rf"never was as of checkpoint {two}.*Choose {two + 1} or later, or 1 or before"):
        coordinator.roll_back(two, run="back", by="ann")
    back = coordinator.roll_back(1, run="back-1", by="ann")
    assert back.error is None
    assert shop.quarantined() == []
    assert [n for (n,) in postgres.run("SELECT n FROM kept WHERE code IS NOT NULL")] == [1]
    postgres.run("DELETE FROM kept WHERE code IS NULL")
    shop.checkpoint("again")
    assert [n for (n,) in postgres.run("SELECT n FROM kept ORDER BY n")] == [1, 2, 3], "they are read again"


@pytest.mark.parametrize("upserts", [False, True])
def test_rows_that_a_delta_table_refuses_since_it_has_a_new_constraint_are_diverted(tmp_path, spark, upserts):
    table = DeltaUpsert("tables/out", keys=["n"]) if upserts else DeltaAppend("tables/out", partition_by=["code"])
    shop = shop_of(tmp_path, spark, table)
    shop.land(*orders(1))
    shop.checkpoint("one")
    shop.decide("two", *orders(2, 3, 4))
    path = tmp_path / "tables/out"
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT not_three CHECK (n <> 3)")
    with pytest.raises(TidegateError) as refused:
        shop.publish()
    assert "not_three" in str(refused.value)
    assert shop.divert("n = 3") is None
    assert sorted(row["n"] for row in shop.rows("tables/out")) == [1, 2, 4]
    (row,) = shop.quarantined()
    assert (row["n"], row["code"], row["place"]) == (3, "c3", {"city": "Graz", "zip": 3})
    shop.release(n="33")
    shop.checkpoint("three")
    assert sorted(row["n"] for row in shop.rows("tables/out")) == [1, 2, 4, 33]


LARGE = "x" * 5_000


def numbers_sent(broker: Broker, topic: str) -> list[int]:
    return sorted(json.loads(record.value)["n"] for record in broker.read(topic))


@pytest.mark.parametrize("key", ["code", ["n"]])
def test_records_that_are_too_large_for_a_topic_by_now_are_diverted(tmp_path, spark, kafka_broker, key):
    topic = f"diverted-by-{key[0]}"
    kafka_broker.create_topic(topic)
    shop = shop_of(tmp_path, spark, KafkaTopic(topic, servers=kafka_broker.servers, key=key))
    shop.decide("one", order(1), order(2) | {"code": LARGE}, order(3))
    kafka_broker.change_topic(topic, max_message_bytes=2_000)
    with pytest.raises(Invalid) as refused:
        shop.publish()
    assert refused.value.reason == "RECORD_TOO_LARGE"
    assert numbers_sent(kafka_broker, topic) == []
    assert shop.divert("n = 2") is None
    assert numbers_sent(kafka_broker, topic) == [1, 3]
    (row,) = shop.quarantined()
    assert (row["n"], row["code"], row["tags"], row["place"]) == (2, LARGE, ["t2"], {"city": "Graz", "zip": 2})
    assert "larger than the topic accepts" in row["_tidegate_why"]

    shop.release()
    shop.land(order(4))
    shop.checkpoint("two")
    assert numbers_sent(kafka_broker, topic) == [1, 3, 4]
    assert shop.stays() == {2: "it breaks record size"}, "the gate knows the topic's rules by now"
    shop.release(code="c2")
    shop.checkpoint("three")
    assert numbers_sent(kafka_broker, topic) == [1, 2, 3, 4]
    assert shop.broken_rules() == {}


def test_what_a_topic_has_taken_in_part_cannot_be_diverted(tmp_path, spark, kafka_broker):
    """Its first records may have been read: without the others they would be sent again."""
    kafka_broker.create_topic("in-part")
    sink = KafkaTopic("in-part", servers=kafka_broker.servers, order_by=["n"], max_rows_per_transaction=1)
    shop = shop_of(tmp_path, spark, sink)
    id = shop.decide("one", order(1), order(2) | {"tags": [LARGE]}, order(3))
    kafka_broker.change_topic("in-part", max_message_bytes=2_000)
    with pytest.raises(Rejected, match=f"has a part of checkpoint {id} already") as rejected:
        shop.refusal()
    assert rejected.value.reason == "PARTLY_PUBLISHED"
    assert numbers_sent(kafka_broker, "in-part") == [1]
    kafka_broker.change_topic("in-part", max_message_bytes=10_000)
    shop.publish()
    assert numbers_sent(kafka_broker, "in-part") == [1, 2, 3]


def test_a_divert_does_not_apply_once_the_topic_has_begun_with_what_it_would_replace(tmp_path, spark, kafka_broker):
    """A publisher that was paused sends a part of all rows after the divert is decided, and before it is published."""
    kafka_broker.create_topic("begun")
    sink = KafkaTopic("begun", servers=kafka_broker.servers, order_by=["n"], max_rows_per_transaction=1)
    shop = shop_of(tmp_path, spark, sink)
    id = shop.decide("one", order(1) | {"tags": [LARGE]}, order(2), order(3) | {"tags": [LARGE, LARGE]})
    kafka_broker.change_topic("begun", max_message_bytes=2_000)
    refusal = shop.refusal()
    manifest = shop.ledger.entry(id).manifest
    committables = tuple(map(shop.ledger.unpack, manifest.tables["out"].committables))

    def another_publisher(point: str) -> None:
        if point == "S9.decision.after" and not numbers_sent(kafka_broker, "begun"):
            kafka_broker.change_topic("begun", max_message_bytes=8_000)
            publication = Publication(id, 0, "paused", None, committables)
            with pytest.raises(Invalid, match="larger than the topic accepts"):
                sink.publish(publication, Head(None, None), shop.coordinator().context("out"))

    with seams.installed(seams.Seams(fault=another_publisher)):
        still_refused = shop.divert("n = 1", refusal)
    assert still_refused is not None
    assert still_refused.reason == "RECORD_TOO_LARGE"
    assert numbers_sent(kafka_broker, "begun") == [1, 2]
    kafka_broker.change_topic("begun", max_message_bytes=20_000)
    shop.publish()
    assert shop.quarantined() == []
    shop.land(order(4))
    shop.checkpoint("two")
    assert numbers_sent(kafka_broker, "begun") == [1, 2, 3, 4], "each once"


def test_rows_for_a_table_of_iceberg_that_was_changed_are_diverted(tmp_path, spark):
    """Such a table refuses no single row. What it refuses waits as well, though, and some of it may be diverted."""
    from pyiceberg.catalog import load_catalog

    options = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    catalog = load_catalog("lake", **options)
    catalog.create_namespace("shop")
    connections = {f"lake.{name}": text for name, text in options.items()}
    sink = IcebergAppend("shop.orders", connection="lake")
    shop = shop_of(tmp_path, spark, sink, connections=connections)
    shop.land(order(1))
    shop.checkpoint("one")
    shop.decide("two", *orders(2, 3))

    def rename(old: str, new: str) -> None:
        with catalog.load_table("shop.orders").update_schema() as update:
            update.rename_column(old, new)

    def numbers() -> list[int]:
        return sorted(catalog.load_table("shop.orders").scan().to_arrow()["n"].to_pylist())

    rename("code", "renamed")
    assert shop.refusal().error.reason == "TABLE_CHANGED"
    assert shop.divert("n = 3") is not None
    rename("renamed", "code")
    shop.publish()
    assert numbers() == [1, 2]
    (row,) = shop.quarantined()
    assert (row["n"], row["tags"], row["place"]) == (3, ["t3"], {"city": "Graz", "zip": 3})
    shop.release()
    shop.checkpoint("three")
    assert numbers() == [1, 2, 3]


def test_what_cannot_be_diverted_is_told_before_anything_is_done(shop, postgres):
    shop.decide("one", *orders(1, 3))
    refusal = shop.refusal()
    with pytest.raises(Invalid, match="no sink 'nowhere'"):
        find_refusal(shop.coordinator(), "nowhere")
    with pytest.raises(Invalid, match="sink 'all' has no quarantine"):
        find_refusal(shop.coordinator(), "all")
    wrong = {
        "nothing = 1": "UNRESOLVED_COLUMN",
        "n": "is not a boolean",
        "n =": "PARSE",
        "rand() < 1": "rand has another",
    }
    for condition, said in wrong.items():
        with pytest.raises(Invalid, match=f"cannot be chosen by .*{said}"):
            preview_divert(shop.coordinator(), shop.spark, refusal, condition)
    with pytest.raises(Rejected, match="0 waiting rows match 'n = 99'"):
        shop.divert("n = 99")
    with pytest.raises(Rejected, match="1 waiting rows match") as changed:
        shop.divert("n = 3", expected_rows=2)
    assert changed.value.reason == "CHANGED_MEANWHILE"
    assert shop.ledger.decision(2).outcome == "aborted", "an attempt that fails is no checkpoint"
    assert shop.divert("n = 3") is None
    assert numbers_in(postgres) == [1]
