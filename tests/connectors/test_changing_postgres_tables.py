"""A real table of PostgreSQL whose columns change while a pipeline reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.kit.postgres_sinks import CONNECTION, connections
from tests.kit.sampling import in_turn
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend
from tidegate.sources import PostgresChanges, PostgresTable

pytestmark = in_turn(seconds=45)


@dataclass
class Shop(World):
    """Orders as an application inserts them."""

    postgres: Any = None
    policy: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return Place(str(self.root), connections=connections(self.postgres))

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        table = PostgresTable(
            "sold", connection=CONNECTION, xid_column="xid", schema="id bigint, n int, name string", **self.policy
        )
        pipeline.source("orders", table).sink("orders", DeltaAppend("tables/orders", schema_evolution="add"))
        return pipeline

    def orders(self) -> dict[int, dict[str, Any]]:
        rows = {}
        for row in self.table("orders"):
            short = {name: value for name, value in row.items() if name != "id" and value is not None}
            if "_rescued" in short:
                short["_rescued"] = json.loads(short["_rescued"])
            rows[row["id"]] = short
        return rows

    def found(self, id: int) -> list[tuple[str, str, str, int]]:
        entry = self.ledger.entry(id)
        assert entry is not None
        drift = entry.acks["main"].ack.drift.get("orders")
        return [(each.path, each.kind, each.type, each.records) for each in drift.found] if drift else []


@pytest.fixture
def orders(tmp_path, postgres, spark):
    postgres.run(
        "DROP TABLE IF EXISTS sold",
        "CREATE TABLE sold (id bigint, n int, name varchar(9), xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
        "CREATE INDEX ON sold (xid)",
        "INSERT INTO sold VALUES (1, 5, 'Ann')",
    )
    orders = Shop(tmp_path, postgres=postgres)
    orders.spark = spark
    return orders


def test_columns_are_added_widened_and_dropped_between_increments(orders):
    orders.policy = {"on_new_column": "evolve", "on_type": "rescue", "missing_columns": "null"}
    orders.checkpoint("one")
    orders.postgres.run(
        'ALTER TABLE sold ADD COLUMN vip boolean, ADD COLUMN "N" int, ALTER COLUMN n TYPE bigint',
        "ALTER TABLE sold ALTER COLUMN name TYPE varchar(99)",
        """INSERT INTO sold (id, n, name, vip, "N") VALUES (2, 6, 'Bob', true, 1)""",
        "INSERT INTO sold (id, n, name) VALUES (3, 5000000000, 'Cid')",
    )
    assert orders.found(orders.checkpoint("two")) == [
        ("N", "case", "int", 1),
        ("n", "type", "bigint", 1),
        ("vip", "new", "boolean", 1),
    ]
    orders.postgres.run(
        "ALTER TABLE sold DROP COLUMN name",
        "INSERT INTO sold (id, n, vip) VALUES (4, 8, false)",
    )
    orders.checkpoint("three")
    orders.postgres.run(
        "ALTER TABLE sold DROP COLUMN vip, ADD COLUMN name int",
        "INSERT INTO sold (id, n, name) VALUES (5, 9, 77)",
    )
    assert orders.found(orders.checkpoint("four")) == [("name", "type", "int", 1)]
    assert orders.orders() == {
        1: {"n": 5, "name": "Ann"},
        2: {"n": 6, "name": "Bob", "_rescued": {"N": 1, "vip": True}},
        3: {"name": "Cid", "_rescued": {"n": 5_000_000_000}},
        4: {"n": 8, "vip": False},
        5: {"n": 9, "_rescued": {"name": 77}},
    }


def test_what_no_policy_takes_is_refused_before_anything_is_written(orders):
    orders.postgres.run("ALTER TABLE sold ALTER COLUMN n TYPE bigint", "ALTER TABLE sold DROP COLUMN name")
    told = "column 'name' is gone; column 'n' is bigint, and int is declared"
    with pytest.raises(Invalid, match=told):
        orders.checkpoint("one")
    assert orders.table("orders") == []


SLOT = "tidegate_sold"


class Changes(Shop):
    """The same orders, by their changes."""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        table = PostgresChanges(
            "sold",
            connection=CONNECTION,
            slot=SLOT,
            publication=SLOT,
            schema="id bigint, n int, name string",
            **self.policy,
        )
        pipeline.source("orders", table).sink("orders", DeltaAppend("tables/orders", schema_evolution="widen"))
        return pipeline

    def changes(self) -> list[tuple[str, dict[str, Any]]]:
        """Each change with its values, in the order of the log."""
        rows = sorted(self.table("orders"), key=lambda row: (row["_commit_lsn"], row["_change_number"]))
        added = ("_commit_lsn", "_change_number", "_xid", "_commit_timestamp", "_unchanged", "_change_type")
        found = []
        for row in rows:
            kept = {
                name: value
                for name, value in row.items()
                if value is not None and name not in added and not name.startswith("_tidegate")
            }
            found.append((row["_change_type"], kept))
        return found


@pytest.fixture
def changed(tmp_path, postgres, spark):
    drop = f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
    postgres.run(
        drop,
        f"DROP PUBLICATION IF EXISTS {SLOT}",
        "DROP TABLE IF EXISTS sold",
        "CREATE TABLE sold (id bigint PRIMARY KEY, n int, name varchar(9))",
        "ALTER TABLE sold REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION {SLOT} FOR TABLE sold",
        f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')",
    )
    changed = Changes(tmp_path, postgres=postgres)
    changed.spark = spark
    yield changed
    postgres.run(drop, f"DROP PUBLICATION IF EXISTS {SLOT}")


def test_changes_of_a_table_follow_its_columns_by_the_policy(changed):
    changed.policy = {"on_new_column": "evolve", "on_type": "widen", "missing_columns": "null"}
    changed.postgres.run("INSERT INTO sold VALUES (1, 5, 'Ann')")
    changed.checkpoint("one")
    changed.postgres.run(
        'ALTER TABLE sold ADD COLUMN vip boolean, ADD COLUMN "N" int, ALTER COLUMN n TYPE bigint',
        """INSERT INTO sold (id, n, name, vip, "N") VALUES (2, 6, 'Bob', true, 1)""",
        "UPDATE sold SET n = 5000000000 WHERE id = 1",
    )
    assert changed.found(changed.checkpoint("two")) == [
        ("N", "case", "int", 1),
        ("n", "type", "bigint", 1),
        ("vip", "new", "boolean", 1),
    ]
    changed.postgres.run("ALTER TABLE sold DROP COLUMN name", "UPDATE sold SET n = n + 1 WHERE id = 1")
    changed.checkpoint("three")
    assert changed.changes() == [
        ("insert", {"id": 1, "n": 5, "name": "Ann"}),
        ("insert", {"id": 2, "n": 6, "name": "Bob", "_rescued": '{"vip":true,"N":1}'}),
        ("update_preimage", {"id": 1, "n": 5, "name": "Ann"}),
        ("update_postimage", {"id": 1, "name": "Ann", "_rescued": '{"n":5000000000}'}),
        ("update_preimage", {"id": 1, "n": 5_000_000_000}),
        ("update_postimage", {"id": 1, "n": 5_000_000_001}),
    ]


def test_changes_that_no_policy_takes_are_refused_before_anything_is_written(changed):
    changed.postgres.run("ALTER TABLE sold ADD COLUMN vip boolean", "INSERT INTO sold VALUES (1, 5, 'Ann', true)")
    changed.policy = {"on_new_column": "refuse"}
    with pytest.raises(Invalid, match="column 'vip' \\(boolean\\) is not in the schema"):
        changed.checkpoint("one")
    assert changed.table("orders") == []


def test_columns_that_the_source_of_changes_adds_cannot_be_declared():
    source = PostgresChanges("t", connection="c", slot="s", publication="p", schema="id bigint, _xid bigint")
    assert "schema: the source adds the column '_xid' itself; leave it out" in source.problems()
