"""Rows that a target refuses only in publication: a person diverts them to quarantine, and the others are published."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.kit.postgres import Server
from tests.kit.postgres_sinks import CONNECTION, connections
from tests.kit.sampling import in_turn
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.checkpoint import quarantine_requests
from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.execution.by_hand.diverting import RefusedRows, divert, find_refusal, look_at
from tidegate.ledger.ledger import stamp
from tidegate.records.place import Place
from tidegate.records.records import Request
from tidegate.sinks import DeltaAppend, DeltaUpsert, PostgresAppend, Sink
from tidegate.sources import Files

pytestmark = in_turn(seconds=60)

GATE = "out-refused"
SCHEMA = (
    "n long, code string, amount decimal(12,2), at timestamp, tags array<string>, place struct<city: string, zip: int>"
)
TABLE = (
    "CREATE TABLE out (n bigint PRIMARY KEY, code text, amount numeric(12,2), at timestamptz, tags text[], place jsonb)"
)
Row = dict[str, Any]


@dataclass
class Shop(World):
    """Orders go to a target that refuses some, and all of them to a Delta table."""

    database: dict[str, str] = field(default_factory=dict)
    sink: Any = None
    refused: str = "quarantine"
    landed: int = 0

    @property
    def place(self) -> Place:
        return Place(str(self.root), connections=self.database)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        rows = pipeline.source("rows", Files("landing/*.json", schema=SCHEMA))
        sink: Sink = self.sink
        rows.sink("out", sink, refused=self.refused)  # type: ignore[arg-type]
        rows.sink("all", DeltaAppend("tables/all"))
        return pipeline

    def coordinator(self) -> Any:
        coordinator = super().coordinator()
        coordinator.spark = lambda: self.spark
        return coordinator

    def land(self, *numbers: int) -> None:
        self.landed += 1
        path = self.root / "landing" / f"{self.landed}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(order(n)) + "\n" for n in numbers))

    def make(self, run: str, *numbers: int) -> int:
        """A completed checkpoint, which is not published."""
        self.land(*numbers)
        id = self.trigger(run)
        self.work(id)
        self.complete(id)
        return id

    def refusal(self) -> RefusedRows:
        return find_refusal(self.coordinator(), "out")

    def divert(self, condition: str, **options: Any) -> TidegateError | None:
        """Divert rows. Return what the target still refuses."""
        _, error = divert(self.coordinator(), self.spark, self.refusal(), condition, by="ann", **options)
        return error

    def quarantined(self) -> list[Row]:
        rows = DeltaTable(str(self.folder / "quarantine" / GATE)).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: row["n"])

    def release(self, **correct: str) -> None:
        request = Request(
            **stamp("by hand"), number=1, gate=GATE, action="release", seen=1_000, by="ann", correct=correct
        )
        quarantine_requests.ask(self.ledger, request)


def order(n: int) -> Row:
    return {
        "n": n,
        "code": f"c{n}",
        "amount": f"{n}.50",
        "at": f"2026-01-01T00:00:{n % 60:02}Z",
        "tags": [f"t{n}"],
        "place": {"city": "Graz", "zip": n},
    }


@pytest.fixture
def shop(tmp_path: Path, spark: Any, postgres: Server) -> Shop:
    postgres.run(TABLE)
    postgres.run("INSERT INTO out (n) VALUES (3), (5)")
    shop = Shop(tmp_path, database=connections(postgres), sink=PostgresAppend("out", connection=CONNECTION))
    shop.spark = spark
    return shop


def numbers_in(postgres: Server) -> list[int]:
    """The orders in the database; those that others have put there have no code."""
    return [n for (n,) in postgres.run("SELECT n FROM out WHERE code IS NOT NULL ORDER BY n")]


def test_a_person_diverts_the_row_that_the_target_refuses_and_the_rest_is_published(shop, postgres):
    shop.make("one", 1, 2, 3)
    with pytest.raises(Invalid, match="out_pkey"):
        shop.publish()
    shop.land(4)
    with pytest.raises(Invalid, match="out_pkey"):
        shop.trigger("two")
    refusal = shop.refusal()
    assert (refusal.waiting, refusal.last, refusal.error.reason) == ((1,), None, "DATABASE_REFUSES")
    found = look_at(shop.coordinator(), shop.spark, refusal, "n = 3")
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
    shop.make("one", 1, 3)
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
    shop.make("two", 6)
    shop.publish()
    assert numbers_in(postgres) == [6]


def test_a_divert_that_comes_too_late_diverts_nothing(shop, postgres):
    shop.make("one", 1, 3)
    refusal = shop.refusal()
    postgres.run("DELETE FROM out")
    shop.publish()  # the target has been mended
    assert numbers_in(postgres) == [1, 3]
    _, error = divert(shop.coordinator(), shop.spark, refusal, "n = 3", by="ann")
    assert error is None
    assert numbers_in(postgres) == [1, 3]
    assert shop.quarantined() == []
    with pytest.raises(Rejected, match="nothing waits for table 'out'"):
        shop.refusal()
    shop.make("two", 6)
    shop.publish()
    assert numbers_in(postgres) == [1, 3, 6]


def test_a_rollback_cannot_return_to_between_a_divert_and_what_it_named(shop, postgres):
    shop.sink = PostgresAppend("kept", connection=CONNECTION, allow_rollback=True)
    postgres.run(
        "CREATE TABLE kept (n bigint PRIMARY KEY, code text, amount numeric(12,2), at timestamptz, tags text[], "
        "place jsonb, tidegate_checkpoint bigint)"
    )
    shop.land(1)
    shop.checkpoint("one")
    postgres.run("INSERT INTO kept (n) VALUES (3)")
    two = shop.make("two", 2, 3)
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
    shop = Shop(tmp_path, sink=table)
    shop.spark = spark
    shop.land(1)
    shop.checkpoint("one")
    shop.make("two", 2, 3, 4)
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


def test_what_cannot_be_diverted_is_told_before_anything_is_done(shop, postgres):
    shop.make("one", 1, 3)
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
            look_at(shop.coordinator(), shop.spark, refusal, condition)
    with pytest.raises(Rejected, match="0 waiting rows match 'n = 99'"):
        shop.divert("n = 99")
    with pytest.raises(Rejected, match="1 waiting rows match") as changed:
        shop.divert("n = 3", expected_rows=2)
    assert changed.value.reason == "CHANGED_MEANWHILE"
    assert shop.ledger.decision(2).outcome == "aborted", "an attempt that fails is no checkpoint"
    assert shop.divert("n = 3") is None
    assert numbers_in(postgres) == [1]
