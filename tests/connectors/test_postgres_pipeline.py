"""A pipeline from PostgreSQL into PostgreSQL: real checkpoints, a database that is away, a rollback."""

from __future__ import annotations

import pytest

from tests.kit.limits import Limits
from tests.kit.postgres import server, standby_of
from tests.kit.postgres_sinks import CONNECTION, connections
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually
from tidegate import Pipeline
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.execution.loop import Observer, Schedule, run_checkpoints
from tidegate.ledger import open_ledger
from tidegate.lifecycle.source_acts import accept_source
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend, PostgresAppend, PostgresUpsert
from tidegate.sources import PostgresChanges, PostgresTable

pytestmark = in_turn(seconds=45)

TABLES = (
    "DROP TABLE IF EXISTS orders, raw, totals, changed, tidegate_published, tidegate_history",
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(10,2), "
    "xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
    "CREATE INDEX ON orders (xid)",
    "CREATE PUBLICATION orders FOR TABLE orders",
    "SELECT pg_create_logical_replication_slot('orders', 'pgoutput')",
)


class ShopIntoPostgres:
    """Orders come into one table; totals for each customer are kept in another, and Delta has them all, too."""

    def __init__(self, folder, postgres, spark):
        self.postgres, self.spark = postgres, spark
        self.place = Place(str(folder), connections=connections(postgres))
        self.folder = folder

    def coordinator(self, num_retained=10):
        pipeline = Pipeline("shop")
        orders = pipeline.source("orders", PostgresTable("orders", connection=CONNECTION, xid_column="xid"))
        orders.sink("raw", PostgresAppend("raw", connection=CONNECTION, allow_rollback=True))
        orders.sink("delta", DeltaAppend("tables/orders"))
        totals = orders.aggregate(by="customer", spent="sum(amount)", uid="totals")
        totals.sink("totals", PostgresUpsert("totals", connection=CONNECTION, keys=["customer"], allow_rollback=True))
        changed = PostgresChanges("orders", connection=CONNECTION, slot="orders", publication="orders")
        pipeline.source("changes", changed).sink("changed", PostgresAppend("changed", connection=CONNECTION))
        ledger = open_ledger(f"{self.folder}/ledger", "shop")
        return Coordinator(pipeline.graph(self.place), ledger, Limits(num_retained=num_retained), self.place)

    def order(self, *rows):
        for id, customer, amount in rows:
            self.postgres.run(f"INSERT INTO orders VALUES ({id}, '{customer}', {amount})")

    def checkpoint(self, **limits):
        told = LoopRecorder()
        run_checkpoints(self.coordinator(**limits), lambda job=None: self.spark, Schedule(checkpoints=1), told)
        return told

    def shown(self):
        return (
            self.postgres.run("SELECT id FROM raw ORDER BY id"),
            [(customer, float(spent)) for customer, spent in self.postgres.run("SELECT * FROM totals ORDER BY 1")],
        )


class LoopRecorder(Observer):
    """What the loop says."""

    def __init__(self):
        self.errors, self.states = [], []

    def decided(self, plan, outcome, acks, seconds):
        self.states.append(outcome.state)

    def retrying(self, plan, error, tries_left):
        raise error

    def stuck(self, table, error):
        self.errors.append((table, error))


@pytest.fixture
def shop(tmp_path, spark):
    with server("wal_level=logical") as own:
        own.run(*TABLES)
        yield ShopIntoPostgres(tmp_path, own, spark)


def test_orders_arrive_once_survive_an_outage_and_go_back(shop):
    shop.order((1, "ann", 5), (2, "bob", 7))
    assert shop.checkpoint().states == ["completed"]
    first = shop.shown()
    assert first == ([(1,), (2,)], [("ann", 5.0), ("bob", 7.0)])

    shop.order((3, "ann", 10))
    coordinator = shop.coordinator()
    shop.postgres.run("ALTER TABLE totals RENAME COLUMN spent TO spend")
    with pytest.raises(Invalid, match="'spent' .* is not in the table"):
        shop.checkpoint()
    shop.postgres.run("ALTER TABLE totals RENAME COLUMN spend TO spent")
    assert shop.checkpoint().states == ["completed"]
    second = shop.shown()
    assert second == ([(1,), (2,), (3,)], [("ann", 15.0), ("bob", 7.0)])

    shop.postgres.crash()
    with pytest.raises(Unavailable, match="connection 'shop'"):
        coordinator.trigger("while it is away")
    shop.postgres.start()

    with pytest.raises(Rejected, match="it is unknown which rows to remove|Choose --keep changed"):
        shop.coordinator().roll_back(1, run="back", by="ann")
    done = shop.coordinator().roll_back(1, run="back", by="ann", choices={"changed": "keep"})
    assert done.error is None
    assert shop.shown() == first

    shop.order((4, "bob", 1))
    assert shop.checkpoint().states == ["completed"]
    assert shop.shown() == ([(1,), (2,), (3,), (4,)], [("ann", 15.0), ("bob", 8.0)])
    kinds = shop.postgres.run("SELECT _change_type, id, count(*) FROM changed GROUP BY 1, 2 ORDER BY 2")
    assert kinds == [("insert", 1, 1), ("insert", 2, 1), ("insert", 3, 2), ("insert", 4, 1)], "3 was kept, read again"


def test_retention_lets_the_slot_move_on_and_forgets_what_was_replaced(shop):
    slot = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
    before = shop.postgres.run(slot)
    for id in range(1, 5):
        shop.order((id, "ann", 1))
        assert shop.checkpoint(num_retained=2).states == ["completed"]
    assert shop.postgres.run(slot) > before
    assert shop.postgres.run("SELECT count(*) FROM changed") == [(4,)]


def test_after_a_failover_that_lost_rows_the_pipeline_goes_back_and_then_reads_what_the_standby_got(tmp_path, spark):
    with server("wal_level=logical", "fsync=off", "wal_keep_size=64MB") as primary, standby_of(primary) as standby:
        primary.run(*TABLES[1:3])
        world = Rows(tmp_path, primary, spark)
        world.order(1, 2)
        assert world.checkpoint().states == ["completed"]
        ((end,),) = primary.run("SELECT pg_current_wal_insert_lsn()")
        caught_up = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
        eventually("the standby has all", lambda: standby.run(caught_up) == [(True,)])
        standby.stop()
        world.order(3, 4, 5)
        assert world.checkpoint().states == ["completed"]
        assert world.shown() == [1, 2, 3, 4, 5]

        primary.stop()
        standby.start()
        standby.promote()
        world = Rows(tmp_path, standby, spark)
        world.order(*range(103, 120))  # with the ids of transactions that were read
        assert refusal(world.checkpoint) == "OTHER_TIMELINE"
        assert refusal(world.accept) == "OLDER_COPY"
        assert world.coordinator().roll_back(1, run="back", by="ann").error is None
        assert refusal(world.checkpoint) == "OTHER_TIMELINE"
        world.accept()
        assert world.checkpoint().states == ["completed"]
        assert world.shown() == [id for (id,) in standby.run("SELECT id FROM orders ORDER BY id")]
        world.order(200)
        assert world.checkpoint().states == ["completed"]
        assert world.shown()[-1] == 200


class Rows:
    """Rows of one table come into Delta."""

    def __init__(self, folder, postgres, spark):
        self.postgres, self.spark, self.folder = postgres, spark, folder
        self.place = Place(str(folder), connections=connections(postgres))

    def coordinator(self):
        pipeline = Pipeline("rows")
        orders = pipeline.source("orders", PostgresTable("orders", connection=CONNECTION, xid_column="xid"))
        orders.sink("delta", DeltaAppend("tables/orders"))
        return Coordinator(
            pipeline.graph(self.place), open_ledger(f"{self.folder}/ledger", "rows"), Limits(), self.place
        )

    def order(self, *ids):
        for id in ids:
            self.postgres.run(f"INSERT INTO orders VALUES ({id}, 'ann', {id})")

    def checkpoint(self):
        told = LoopRecorder()
        run_checkpoints(self.coordinator(), lambda job=None: self.spark, Schedule(checkpoints=1), told)
        return told

    def accept(self):
        return accept_source(self.coordinator(), "orders", "ann", "the standby took over")

    def shown(self):
        return sorted(
            row["id"] for row in self.spark.read.format("delta").load(f"{self.folder}/tables/orders").collect()
        )


def refusal(call):
    with pytest.raises(Invalid) as refused:
        call()
    return refused.value.reason
