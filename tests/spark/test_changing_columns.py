"""Columns that come, and values of another type, while a pipeline runs: nothing is lost, and every table follows."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.sampling import in_turn
from tests.kit.world import World
from tests.spark.mended_shop import OneSession, never
from tidegate import Pipeline
from tidegate.backfill import begin, replay, swap
from tidegate.connectors.source import SourceContext
from tidegate.errors import Invalid
from tidegate.execution.loop import Observer, Schedule
from tidegate.gates import Expectations
from tidegate.history.query import CheckpointHistory
from tidegate.history.schemas.timeline import timelines
from tidegate.ledger import Ledger, LocalStore
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pytestmark = in_turn(seconds=60)


class Shop(World):
    """Orders as they come, and totals by country."""

    policy: dict[str, Any] = {}
    schema = "id long, country string, amount int"

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        files = Files("landing/*.json", schema=self.schema, **self.policy)
        orders = pipeline.source("orders", files)
        orders.sink("orders", DeltaAppend("tables/orders", schema_evolution="add"))
        totals = orders.aggregate(by="country", spent="sum(amount)", uid="totals")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["country"]))
        return pipeline

    def land(self, name: str, *records: Any) -> None:
        folder = self.root / "landing"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(json.dumps(record) for record in records))

    def orders(self) -> dict[int, dict[str, Any]]:
        """Orders by id, without columns that are null."""
        return {
            row["id"]: {name: value for name, value in row.items() if name != "id" and value is not None}
            for row in self.table("orders")
        }


def shop(tmp_path: Path, spark: Any, **policy: Any) -> Shop:
    shop = Shop(tmp_path)
    shop.spark, shop.policy = spark, policy
    return shop


def test_a_new_column_is_rescued_first_and_a_column_from_the_next_checkpoint_on(tmp_path: Path, spark: Any) -> None:
    orders = shop(tmp_path, spark, on_new_column="evolve")
    orders.land("1.json", {"id": 1, "country": "AT", "amount": 5})
    orders.checkpoint("one")
    orders.land("2.json", {"id": 2, "country": "AT", "amount": 7, "vip": True}, {"id": 3, "country": "DE", "amount": 1})
    second = orders.checkpoint("two")
    drift = orders.ledger.entry(second).acks["main"].ack.drift["orders"]
    assert [(column.path, column.type, column.records, column.file) for column in drift.found] == [
        ("vip", "boolean", 1, "2.json")
    ]
    orders.land("3.json", {"id": 4, "country": "DE", "amount": 2, "vip": False})
    third = orders.checkpoint("three")
    assert orders.ledger.entry(third).plan.sources["orders"].schema.ddl.endswith("`vip` boolean")
    assert orders.orders() == {
        1: {"country": "AT", "amount": 5},
        2: {"country": "AT", "amount": 7, "_rescued": '{"vip":true}'},
        3: {"country": "DE", "amount": 1},
        4: {"country": "DE", "amount": 2, "vip": False},
    }
    assert {row["country"]: row["spent"] for row in orders.table("totals")} == {"AT": 12, "DE": 3}


def test_what_fits_no_column_stays_with_its_row(tmp_path: Path, spark: Any) -> None:
    schema = "id long, customer struct<name string, tags array<string>>, amount decimal(12,2), at timestamp"
    source = Files("in/*.json", schema=schema, on_new_column="rescue", on_type="rescue")
    rows = rescued(
        tmp_path,
        spark,
        source,
        {"id": 1, "customer": {"name": "Ann", "tags": ["a"], "vip": True, "of": {"since": 2020}}, "amount": 1.5},
        {"id": "two", "amount": 1.005, "ID": 7, "note": 'it\'s "ö"'},
        {"id": 3, "amount": 99999999999.1, "at": "yesterday", "customer": "Bob"},
        {"id": 4, "at": "2026-01-31T10:00:00Z", "items": [{"sku": "a"}, {"sku": "b", "n": 2}], "gone": None},
        {"id": 5},
    )
    assert rows == [
        {
            "id": 1,
            "amount": "1.50",
            "customer": "Ann",
            "rescued": {"customer.of": {"since": 2020}, "customer.vip": True},
        },
        {"rescued": {"ID": 7, "amount": 1.005, "id": "two", "note": 'it\'s "ö"'}},
        {"id": 3, "rescued": {"amount": 99999999999.1, "at": "yesterday", "customer": "Bob"}},
        {"id": 4, "at": "2026-01-31", "rescued": {"gone": None, "items": [{"sku": "a"}, {"n": 2, "sku": "b"}]}},
        {"id": 5},
    ]


def test_only_what_the_policy_names_is_rescued(tmp_path: Path, spark: Any) -> None:
    schema = "id long, customer struct<name string, tags array<string>>, amount decimal(12,2), at timestamp"
    records = ({"id": "two", "new": 1}, {"id": 3, "new": 2})
    keys = Files("in/*.json", schema=schema, on_new_column="rescue", on_corrupt="keep")
    types = Files("in/*.json", schema=schema, on_type="rescue")
    strict = Files("in/*.json", schema=schema, on_type="rescue", on_new_column="refuse", on_corrupt="keep")
    assert rescued(tmp_path, spark, keys, *records) == [
        {"corrupt": '{"id": "two", "new": 1}'},
        {"id": 3, "rescued": {"new": 2}},
    ]
    assert rescued(tmp_path, spark, types, *records) == [{"rescued": {"id": "two"}}, {"id": 3}]
    assert rescued(tmp_path, spark, strict, *records) == [
        {"corrupt": '{"id": "two", "new": 1}'},
        {"corrupt": '{"id": 3, "new": 2}'},
    ]


def test_a_key_in_another_case_is_dropped_beside_its_column_and_malformed_in_its_place(
    tmp_path: Path, spark: Any
) -> None:
    for policy in ({}, {"on_type": "rescue"}):
        source = Files("in/*.json", schema="id long, `größe` long", on_corrupt="keep", **policy)
        texts = ('{"id": 1, "ID": 2, "größe": 3, "GRÖSSE": 4}', '{"Id": 1}', '{"GRÖßE": 1}', '{"größe": 5, "GRÖßE": 6}')
        rows = read(tmp_path, spark, source, "\n".join(texts))
        kept = [(row["id"], row["größe"], row["_corrupt_record"]) for row in rows]
        assert kept == [(1, 3, None), (None, None, texts[1]), (None, None, texts[2]), (None, 5, None)], policy


def test_a_malformed_record_is_refused_as_ever(tmp_path: Path, spark: Any) -> None:
    source = Files("in/*.json", schema="id long", on_new_column="evolve", on_type="rescue")
    key_twice = '{"id": 1, "new": {"a": 1, "a": 2}}'
    for text in ('{"id": 1', '{"id": 1} {"id": 2}', "[1]", "17", key_twice):
        with pytest.raises(Exception, match="TIDEGATE_MALFORMED"):
            read(tmp_path, spark, source, text)


def test_nothing_is_lost_whatever_shape_a_record_or_a_column_has(tmp_path: Path, spark: Any) -> None:
    schema = "m long, __m0 long, of array<struct<a int>>, by map<string, struct<a int>>, `a\\b` long"
    source = Files("in/*.json", schema=schema, on_new_column="rescue", on_type="rescue")
    records = (
        '{"m":"x","__m0":"y"}',  # names that the checks might use themselves
        '{"m":"x","of":[{"a":1},{"a":"x"}]}',
        '{"of":[{"a":"x","b":1}]}',
        '{"m":"x","by":{"one":{"a":"x"}}}',
        '{"a\\b":1}',  # the key is a, backspace
    )
    rows = read(tmp_path, spark, source, "\n".join(records))
    assert [row["_rescued"] for row in rows] == list(records)
    fine = read(tmp_path, spark, source, '{"m":1,"of":[{"a":1},null,{"a":null}],"by":{"one":{"a":2}},"a\\\\b":3}')
    assert [(row["a\\b"], row["_rescued"]) for row in fine] == [(3, None)]


def test_options_decide_what_a_column_can_hold(tmp_path: Path, spark: Any) -> None:
    options = {"dateFormat": "dd.MM.yyyy"}
    source = Files("in/*.json", schema="d date", on_type="rescue", options=options)
    rows = read(tmp_path, spark, source, '{"d":"2026-01-31"}')
    assert [(row.d, row["_rescued"]) for row in rows] == [(None, '{"d":"2026-01-31"}')]


def test_a_list_of_records_is_read_alike_if_malformed_ones_are_kept(tmp_path: Path, spark: Any) -> None:
    source = Files("in/*.json", schema="id long", on_new_column="rescue", on_corrupt="keep")
    rows = read(tmp_path, spark, source, '[{"id":1},{"id":2}]')
    assert [(row.id, row["_corrupt_record"]) for row in rows] == [(1, None), (2, None)]


def read(root: Path, spark: Any, source: Files, text: str) -> Any:
    """The rows of one file with this text."""
    (root / "in").mkdir(exist_ok=True)
    (root / "in" / "one.json").write_text(text)
    context = SourceContext("orders", "orders", Place(str(root)), Ledger(LocalStore(root / "ledger"), "orders"))
    splits = source.plan(None, context).splits
    return source.read(spark, splits, context).collect()


def rescued(root: Path, spark: Any, source: Files, *records: Any) -> list[dict[str, Any]]:
    """The rows of one file with these records, in short."""
    rows = []
    for row in read(root, spark, source, "\n".join(json.dumps(record, ensure_ascii=False) for record in records)):
        short = {
            "id": row.id,
            "customer": row.customer.name if row.customer else None,
            "amount": str(row.amount) if row.amount is not None else None,
            "at": f"{row.at:%Y-%m-%d}" if row.at else None,
            "rescued": json.loads(row["_rescued"]) if row["_rescued"] else None,
            "corrupt": row["_corrupt_record"] if source.on_corrupt == "keep" else None,
        }
        rows.append({name: value for name, value in short.items() if value is not None})
    return rows


def test_a_rollback_returns_to_the_columns_of_its_target(tmp_path: Path, spark: Any) -> None:
    orders = shop(tmp_path, spark, on_new_column="evolve")
    orders.land("1.json", {"id": 1, "country": "AT", "amount": 5, "vip": True})
    first = orders.checkpoint("one")
    orders.land("2.json", {"id": 2, "country": "AT", "amount": 7, "vip": True, "channel": "web"})
    orders.checkpoint("two")
    assert orders.coordinator().roll_back(first, run="back", by="ann").error is None
    assert set(orders.orders()) == {1}
    again = orders.checkpoint("three")
    schema = orders.ledger.entry(again).plan.sources["orders"].schema
    assert schema.ddl.endswith("`amount` int, `vip` boolean"), "what the first has found, and nothing of the second"
    assert orders.orders()[2] == {"country": "AT", "amount": 7, "vip": True, "_rescued": '{"channel":"web"}'}
    changes = timelines(CheckpointHistory(orders.ledger, {}))["orders"].changes
    assert [(change.checkpoint, [(new.name, new.found_by) for new in change.columns]) for change in changes] == [
        (first, []),
        (again, [("vip", first)]),
    ], "what was rolled back is no part of the timeline"


class Chain(World):
    """Orders through a gate and operators that remember whole rows."""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        files = Files("landing/*.json", schema="id long, country string", on_new_column="evolve", on_type="rescue")
        more = Files("more/*.json", schema="id long, paid boolean", on_new_column="evolve", rescue_column="_more")
        checked = pipeline.source("orders", files).gate(Expectations("orders", on_failure="quarantine"), name="checked")
        joined = checked.join(pipeline.source("more", more), on="id", how="left", uid="joined")
        sinks = {
            "joined": (joined, ["id"]),
            "latest": (checked.latest(by="country", order_by="id", uid="latest"), ["country"]),
            "top": (checked.top_n(2, by="country", order_by="id DESC", uid="top"), ["country", "rank"]),
        }
        for name, (stream, keys) in sinks.items():
            stream.sink(name, DeltaUpsert(f"tables/{name}", keys=keys, schema_evolution="add"))
        return pipeline

    def land(self, folder: str, name: str, *records: Any) -> None:
        (self.root / folder / name).write_text("\n".join(json.dumps(record) for record in records))


def test_gates_and_operators_that_remember_rows_follow_new_columns(tmp_path: Path, spark: Any) -> None:
    chain = Chain(tmp_path)
    chain.spark = spark
    for folder in ("landing", "more", "include/expectations"):
        (tmp_path / folder).mkdir(parents=True)
    rule = "{type: expect_column_values_to_not_be_null, kwargs: {column: id}, id: has_id}"
    (tmp_path / "include/expectations/orders.yaml").write_text(f"expectations:\n  - {rule}\n")
    chain.land("landing", "1.json", {"id": 1, "country": "AT"}, {"id": "?", "country": "DE"})
    chain.land("more", "1.json", {"id": 1, "paid": True})
    chain.checkpoint("one")
    chain.land("landing", "2.json", {"id": 2, "country": "AT", "vip": True}, {"id": 3, "country": "DE"})
    chain.land("more", "2.json", {"id": 2, "paid": True, "method": "card"})
    chain.checkpoint("two")
    chain.land("landing", "3.json", {"id": 4, "country": "AT", "vip": False}, {"id": "!", "country": "FR", "vip": True})
    chain.land("more", "3.json", {"id": 4, "paid": False, "method": "cash"}, {"id": 3, "paid": True, "method": "cash"})
    chain.checkpoint("three")
    joined = {row["id"]: row for row in chain.table("joined")}
    assert {id: (row["paid"], row["vip"], row["method"]) for id, row in joined.items()} == {
        1: (True, None, None),
        2: (True, None, None),
        3: (True, None, "cash"),
        4: (False, False, "cash"),
    }
    assert joined[2]["_rescued"] == '{"vip":true}'
    latest = {row["country"]: (row["id"], row["vip"]) for row in chain.table("latest")}
    assert latest == {"AT": (4, False), "DE": (3, None)}
    firsts = [(row["id"], row["vip"]) for row in chain.table("top") if row["rank"] == 1]
    assert sorted(firsts) == [(3, None), (4, False)]
    aside = {row["_rescued"]: row for row in chain.rows("ledger/orders/quarantine/checked")}
    assert aside['{"id":"!"}']["vip"] is True, "the quarantine has the column, too"


@pytest.mark.parametrize("cuts", ["own", "recorded"])
def test_a_backfill_knows_the_columns_of_today_or_of_the_past(tmp_path: Path, spark: Any, cuts: Any) -> None:
    orders = shop(tmp_path, spark, on_new_column="evolve")
    orders.land("1.json", {"id": 1, "country": "AT", "amount": 5, "vip": True, "channel": "web"})
    orders.checkpoint("one")
    orders.land("2.json", {"id": 2, "country": "AT", "amount": 7, "vip": True, "channel": "web"})
    orders.checkpoint("two")
    orders.schema = "id long, country string, amount int, vip boolean"  # somebody declares it now
    line = begin(orders.coordinator(), "declared", 0, by="ann", cuts=cuts)
    replay(line, OneSession(spark), Schedule(), Observer())
    assert swap(line, by="ann", choices={}, wait=never).error is None
    orders.publish()
    channel = {"own": {"channel": "web"}, "recorded": {"_rescued": '{"channel":"web"}'}}[cuts]
    assert orders.orders() == {
        1: {"country": "AT", "amount": 5, "vip": True, **channel},
        2: {"country": "AT", "amount": 7, "vip": True, "channel": "web"},
    }
    orders.land("3.json", {"id": 3, "country": "AT", "amount": 1, "vip": False, "channel": "app"})
    orders.checkpoint("three")
    assert orders.orders()[3] == {"country": "AT", "amount": 1, "vip": False, "channel": "app"}


def test_moments_of_parquet_files_keep_their_microseconds(tmp_path: Path, spark: Any) -> None:
    orders = shop(tmp_path, spark, on_new_column="rescue", format="parquet")
    (tmp_path / "landing").mkdir()
    moment = [datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=timezone.utc)]
    known = {"id": [1], "country": ["AT"], "amount": pa.array([5], pa.int32())}
    further = {"at": pa.array(moment, pa.timestamp("us", "UTC")), "local": pa.array(moment, pa.timestamp("us"))}
    pq.write_table(pa.table({**known, **further}), tmp_path / "landing" / "1.json")
    orders.checkpoint("one")
    rescued = json.loads(orders.orders()[1]["_rescued"])
    assert rescued["local"] == "2026-01-31T12:00:00.123456"
    assert datetime.fromisoformat(rescued["at"].replace("Z", "+00:00")) == moment[0]


def test_columns_of_parquet_files_are_rescued_and_become_columns(tmp_path: Path, spark: Any) -> None:
    orders = shop(tmp_path, spark, on_new_column="evolve", format="parquet")
    (tmp_path / "landing").mkdir()

    def land(name: str, **columns: list[Any]) -> None:
        pq.write_table(pa.table(columns), tmp_path / "landing" / f"{name}.json")

    land("1", id=[1], country=["AT"], amount=pa.array([5], pa.int32()))
    land("2", id=[2, 3], country=["AT", "DE"], amount=pa.array([7, 1], pa.int32()), vip=[True, None], n=[1.5, 2.5])
    second = orders.checkpoint("one")
    entry = orders.ledger.entry(second)
    assert entry is not None
    found = entry.acks["main"].ack.drift["orders"]
    assert [(column.path, column.type, column.records, column.file) for column in found.found] == [
        ("n", "double", 2, "2.json"),
        ("vip", "boolean", 2, "2.json"),
    ]
    land("3", id=[4], country=["DE"], amount=pa.array([2], pa.int32()), vip=[False], n=["many"])
    land("4", id=[5], country=["DE"], amount=pa.array([3], pa.int32()), nothing=pa.nulls(1))
    third = orders.ledger.entry(orders.checkpoint("two"))
    assert third is not None
    kinds = {column.path: column.type for column in third.acks["main"].ack.drift["orders"].found}
    assert kinds == {"n": "string", "nothing": "void"}
    assert orders.orders() == {
        1: {"country": "AT", "amount": 5},
        2: {"country": "AT", "amount": 7, "_rescued": '{"vip":true,"n":1.5}'},
        3: {"country": "DE", "amount": 1, "_rescued": '{"n":2.5}'},
        4: {"country": "DE", "amount": 2, "vip": False, "_rescued": '{"n":"many"}'},
        5: {"country": "DE", "amount": 3},
    }
    strict = Files("landing/*.json", "parquet", schema=Shop.schema, on_new_column="refuse")
    context = SourceContext("orders", "orders", Place(str(tmp_path)), orders.ledger)
    with pytest.raises(Invalid, match="column 'vip' is not in the schema"):
        strict.verify(strict.plan(None, context).splits, context)
