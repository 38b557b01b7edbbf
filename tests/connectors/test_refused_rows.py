"""Rows that a target would refuse: none stops a publication. They are in quarantine, with the rules that they break.

Each story has a target with rules of its own, and a batch with one row of each sort that it refuses, among good ones.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.kit.postgres import Server
from tests.kit.postgres_sinks import CONNECTION, connections
from tests.kit.refusing_targets import RefusingTarget, Row
from tests.kit.sampling import in_turn
from tidegate.connectors.postgres import literal
from tidegate.errors import Invalid
from tidegate.execution.analysis import analyse
from tidegate.sinks import DeltaAppend, DeltaUpsert, KafkaTopic, PostgresAppend, PostgresUpsert

pytestmark = in_turn(seconds=60)

# -- Delta ---------------------------------------------------------------------------------------------------


DELTA = (
    "CREATE TABLE delta.`{0}` (n bigint NOT NULL, code varchar(3), grade char(1), amount decimal(10,2), "
    "doubled bigint GENERATED ALWAYS AS (n * 2)) USING delta",
    "ALTER TABLE delta.`{0}` ADD CONSTRAINT positive CHECK (amount > 0)",
    "ALTER TABLE delta.`{0}` ADD CONSTRAINT small CHECK (n IS NULL OR n < 1000)",
)


def good(n: int, **changed: Any) -> Row:
    return {"n": n, "code": "abc", "grade": "a", "amount": "1.50", "doubled": 2 * n} | changed


DELTA_SCHEMA = "n long, code string, grade string, amount decimal(10,2), doubled long"
DELTA_ROWS = [
    good(1),
    good(2, code="abcd"),
    good(3, code="abc "),
    good(4, grade="bb"),
    good(5, amount="-1.00"),
    good(6, amount=None),
    good(7, doubled=15),
    good(8, code=None),
    good(1000, code="abcd", amount="0.00"),
]
DELTA_REFUSED = {
    2: ("code length",),
    3: ("code length",),
    4: ("grade length",),
    5: ("positive",),
    6: ("positive",),
    7: ("doubled generated",),
    1000: ("code length", "positive", "small"),
}


def delta_world(folder: Path, spark: Any, *, upsert: bool = False, refused: str = "quarantine") -> RefusingTarget:
    world = RefusingTarget(folder, schema=DELTA_SCHEMA, refused=refused)
    world.spark = spark
    world.sink = DeltaUpsert("tables/out", keys=["n"]) if upsert else DeltaAppend("tables/out")
    for statement in DELTA:
        spark.sql(statement.format(folder / "tables" / "out"))
    return world


@pytest.mark.parametrize("upsert", [False, True])
def test_rows_that_a_delta_table_refuses_are_in_quarantine_with_its_rules(tmp_path, spark, upsert):
    world = delta_world(tmp_path, spark, upsert=upsert)
    world.land(*DELTA_ROWS)
    assert world.checkpoint("one") == 1
    assert sorted(row["n"] for row in world.table("out")) == [1, 8]
    assert world.broken_rules() == DELTA_REFUSED
    verdict = world.verdict(1)
    assert (verdict.outcome, verdict.rows, verdict.quarantined) == ("quarantine", 9, 7)
    assert {rule.rule: rule.rows for rule in verdict.broken}["positive"] == 3

    world.land(good(9))
    world.release("positive", amount="5.00")
    world.checkpoint("two")
    assert sorted(row["n"] for row in world.table("out")) == [1, 5, 6, 8, 9], "corrected, and once"
    assert world.broken_rules() == {n: rules for n, rules in DELTA_REFUSED.items() if n not in (5, 6)}
    assert world.stays() == {1000: "corrected, it breaks small, code length"}
    world.land(good(10))
    world.release("code length")
    world.checkpoint("three")
    assert world.stays()[2] == "it breaks code length", "nobody can overrule the table"
    assert world.broken_rules() == {n: rules for n, rules in DELTA_REFUSED.items() if n not in (5, 6)}


def test_delta_itself_refuses_exactly_these_rows(tmp_path, spark):
    world = delta_world(tmp_path, spark)
    refused = []
    for row in DELTA_ROWS:
        frame = spark.createDataFrame([row | {"amount": row["amount"] and Decimal(row["amount"])}], DELTA_SCHEMA)
        try:
            frame.write.format("delta").mode("append").save(str(world.root / "tables" / "out"))
        except Exception:
            refused.append(row["n"])
    assert refused == list(DELTA_REFUSED)


def test_without_quarantine_such_a_row_is_found_before_anything_is_decided(tmp_path, spark):
    world = delta_world(tmp_path, spark, refused="abort")
    world.land(good(1), good(2, amount="-1.00"))
    id = world.trigger("one")
    with pytest.raises(Invalid, match="the constraint 'positive' does not hold: amount > 0") as found:
        world.work(id)
    assert found.value.reason == "BAD_ROWS"
    assert not world.ledger.entry(id).acks
    assert world.table("out") == []


def test_nulls_are_refused_in_a_column_of_a_plain_delta_table(tmp_path, spark):
    world = RefusingTarget(tmp_path, schema="n long, code string")
    world.spark, world.sink = spark, DeltaAppend("tables/out")
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/tables/out` (n bigint, code string NOT NULL) USING delta")
    world.land({"n": 1, "code": "a"}, {"n": 2, "code": None}, {"n": 3, "code": "b"})
    world.checkpoint("one")
    assert world.table("out") == [{"n": 1, "code": "a"}, {"n": 3, "code": "b"}]
    assert world.broken_rules() == {2: ("code not null",)}
    world.land({"n": 4, "code": "c"})
    world.checkpoint("two")
    assert world.verdict(2).outcome == "pass"
    assert len(world.table("out")) == 3


def test_a_rule_that_is_added_after_planning_judges_from_the_next_checkpoint_on(tmp_path, spark):
    """All attempts at a checkpoint judge alike. What would be refused by now fails the attempt, before the decision."""
    world = RefusingTarget(tmp_path, schema="n long, code string")
    world.spark, world.sink = spark, DeltaAppend("tables/out")
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/tables/out` (n bigint, code string) USING delta")
    world.land({"n": 1, "code": "a"}, {"n": 2, "code": "b"})
    id = world.trigger("one")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/tables/out` ADD CONSTRAINT no_b CHECK (code <> 'b')")
    with pytest.raises(Invalid, match="no_b"):
        world.work(id)
    world.coordinator().abort(id, "the table has changed")
    world.checkpoint("two")
    assert (world.table("out"), world.broken_rules()) == ([{"n": 1, "code": "a"}], {2: ("no_b",)})


def test_a_rule_that_is_dropped_after_planning_judges_once_more(tmp_path, spark):
    """Otherwise two attempts could put a row into two places."""
    world = delta_world(tmp_path, spark)
    world.land(good(1), good(2, amount="-1.00"))
    id = world.trigger("one")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/tables/out` DROP CONSTRAINT positive")
    world.work(id)
    world.complete(id)
    world.publish()
    assert world.broken_rules() == {2: ("positive",)}
    world.land(good(3))
    world.release("positive")
    world.checkpoint("two")
    assert sorted(row["n"] for row in world.table("out")) == [1, 2, 3], "by then the table takes it"


# -- PostgreSQL ----------------------------------------------------------------------------------------------


POSTGRES = (
    "CREATE TYPE mood AS ENUM ('good', 'bad')",
    "CREATE TABLE out (n integer PRIMARY KEY, code varchar(3) NOT NULL, amount numeric(6,2), rank smallint, "
    "feeling mood, token uuid, born date, note text, "
    "CONSTRAINT positive CHECK (amount > 0), "
    "CONSTRAINT known CHECK (code IN ('abc', 'de', 'é')), "
    "CONSTRAINT ranked CHECK (rank IS NULL OR rank BETWEEN 1 AND 999 OR rank > 9000), "
    "CONSTRAINT newer CHECK (born >= DATE '1900-01-01'), "
    "CONSTRAINT shouting CHECK (upper(note) <> note))",
)
POSTGRES_SCHEMA = (
    "n long, code string, amount decimal(12,4), rank int, feeling string, token string, born date, note string"
)
TOKEN = "6E8BC430-9C3A-11D9-9669-0800200C9A66"


def person(n: int, **changed: Any) -> Row:
    whole = {"n": n, "code": "abc", "amount": "1.5000", "rank": 3, "feeling": "good", "token": TOKEN}
    return whole | {"born": "1970-01-01", "note": "Quiet"} | changed


POSTGRES_ROWS = [
    person(1),
    person(2, code=None),
    person(3, code="abcd"),
    person(4, code="xy"),
    person(5, code="é"),
    person(6, amount="10000.0000"),
    person(7, amount="9999.9900"),
    person(8, amount="0.0000"),
    person(9, amount=None),
    person(10, rank=40000),
    person(11, rank=9001),
    person(12, rank=1000),
    person(13, feeling="sad"),
    person(14, feeling=None),
    person(15, token="no token"),
    person(16, born="1899-12-31"),
    person(17, note="zero\0byte"),
    person(2**31),
]
POSTGRES_REFUSED = {
    2: ("code not null",),
    3: ("code length", "known"),
    4: ("known",),
    6: ("amount range",),
    8: ("positive",),
    10: ("rank range",),
    12: ("ranked",),
    13: ("feeling value",),
    15: ("token type",),
    16: ("newer",),
    17: ("note zero byte",),
    2**31: ("n range",),
}


def postgres_world(folder: Path, spark: Any, server: Server, *, upsert: bool = False) -> RefusingTarget:
    world = RefusingTarget(folder, schema=POSTGRES_SCHEMA, connections=connections(server))
    world.spark = spark
    world.sink = PostgresAppend("out", connection=CONNECTION)
    if upsert:
        world.sink = PostgresUpsert("out", connection=CONNECTION, keys=["n"])
    server.run("DROP TYPE IF EXISTS mood CASCADE", *POSTGRES)
    return world


@pytest.mark.parametrize("upsert", [False, True])
def test_rows_that_a_table_of_postgres_refuses_are_in_quarantine_with_its_rules(tmp_path, spark, postgres, upsert):
    world = postgres_world(tmp_path, spark, postgres, upsert=upsert)
    world.land(*POSTGRES_ROWS)
    world.checkpoint("one")
    numbers = "SELECT n FROM out ORDER BY n"
    assert [n for (n,) in postgres.run(numbers)] == [1, 5, 7, 9, 11, 14]
    assert world.broken_rules() == POSTGRES_REFUSED
    assert world.verdict(1).quarantined == len(POSTGRES_REFUSED)

    world.land(person(18))
    world.release(code="abc", amount="2.0000", rank="7")
    world.checkpoint("two")
    assert [n for (n,) in postgres.run(numbers)] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 18]
    assert world.stays()[13] == "corrected, it breaks feeling value"
    assert sorted(world.broken_rules()) == [13, 15, 16, 17, 2**31]


def test_postgres_itself_refuses_exactly_these_rows(tmp_path, spark, postgres):
    """But the number with more places, which it would round in silence."""
    postgres_world(tmp_path, spark, postgres)
    refused = []
    for row in POSTGRES_ROWS:
        values = ", ".join("NULL" if value is None else literal(str(value)) for value in row.values())
        try:
            postgres.run(f"INSERT INTO out ({', '.join(row)}) VALUES ({values})")
        except Exception:
            refused.append(row["n"])
    assert refused == list(POSTGRES_REFUSED)


def test_a_number_that_would_be_rounded_is_refused(tmp_path, spark, postgres):
    world = postgres_world(tmp_path, spark, postgres)
    world.land(person(1, amount="1.0050"), person(2, amount="1.0100"))
    world.checkpoint("one")
    assert postgres.run("SELECT n, amount FROM out") == [(2, Decimal("1.01"))]
    assert world.broken_rules() == {1: ("amount range",)}


def test_a_column_that_is_narrowed_after_staging_is_a_named_wait(tmp_path, spark, postgres):
    """Published now, its numbers would be rounded."""
    world = postgres_world(tmp_path, spark, postgres)
    world.land(person(1, amount="1.2500"))
    id = world.trigger("one")
    world.work(id)
    world.complete(id)
    postgres.run("ALTER TABLE out ALTER COLUMN amount TYPE numeric(6,1)")
    with pytest.raises(Invalid, match=r"'amount' is now numeric\(6,1\), and was numeric\(6,2\)"):
        world.publish()
    postgres.run("ALTER TABLE out ALTER COLUMN amount TYPE numeric(6,2)")
    world.publish()
    assert postgres.run("SELECT n, amount FROM out") == [(1, Decimal("1.25"))]


def test_rules_that_single_rows_cannot_be_judged_by_are_named(tmp_path, spark, postgres):
    world = postgres_world(tmp_path, spark, postgres)
    world.land(person(1))
    world.checkpoint("one")
    results = world.ledger.unpack(world.verdict(1).results)
    assert results["not_judged"] == ["constraint shouting: (upper(note) <> note)", "unique key out_pkey"]
    notes: list[str] = []
    base = world.ledger.view().last_completed
    assert analyse(world.coordinator(), spark, base, notes=notes) == []
    assert notes == [
        "sink 'out': a row that breaks one of these rules of its target is only found by publishing it, which then "
        "waits: constraint shouting: (upper(note) <> note); unique key out_pkey"
    ], "so says `tidegate check`"


def test_a_key_that_is_taken_is_a_named_wait_until_somebody_makes_room(tmp_path, spark, postgres):
    world = postgres_world(tmp_path, spark, postgres)
    world.land(person(1), person(2))
    id = world.trigger("one")
    world.work(id)
    world.complete(id)
    postgres.run("INSERT INTO out (n, code) VALUES (2, 'abc')")
    with pytest.raises(Invalid, match='publishing checkpoint 1 to public.out failed: .*constraint "out_pkey"') as found:
        world.publish()
    assert found.value.reason == "DATABASE_REFUSES"
    assert "Key (n)=(2) already exists" in found.value.quoted
    assert "(2)" not in found.value.what, "values are only for those who may see rows"
    assert postgres.run("SELECT n FROM out") == [(2,)], "nothing of it is there"
    postgres.run("DELETE FROM out")
    world.publish()
    assert postgres.run("SELECT n FROM out ORDER BY n") == [(1,), (2,)]


# -- Kafka ---------------------------------------------------------------------------------------------------


def test_rows_that_a_topic_refuses_are_in_quarantine_with_its_rules(tmp_path, spark, kafka_broker):
    kafka_broker.create_topic("refusing", partitions=2, **{"max.message.bytes": 1500, "cleanup.policy": "compact"})
    schema = "n long, id string, place int, at timestamp, text string, bytes binary"
    world = RefusingTarget(tmp_path, schema=schema)
    world.spark = spark
    world.sink = KafkaTopic(
        "refusing",
        servers=kafka_broker.servers,
        key="id",
        omit=["bytes"],
        headers={"bytes": "bytes"},
        partition="place",
        timestamp="at",
    )
    now = datetime.now(UTC)

    def record(n: int, **changed: Any) -> Row:
        return {"n": n, "id": f"k{n}", "place": 1, "at": now.isoformat(), "text": "é", "bytes": "YWJj"} | changed

    world.land(
        record(1),
        record(2, text="é" * 700),
        record(3, bytes="YWJj" * 500),
        record(4, id=None),
        record(5, place=2),
        record(6, place=-1),
        record(7, place=None),
        record(8, at="1969-12-31T00:00:00Z"),
        record(9, at=(now + timedelta(days=2)).isoformat()),
        record(10, at=None),
        record(11, text="é" * 400),
    )
    world.checkpoint("one")
    sent = [json.loads(record.value)["n"] for record in kafka_broker.read("refusing")]
    assert sorted(sent) == [1, 7, 10, 11]
    assert world.broken_rules() == {
        2: ("record size",),
        3: ("record size",),
        4: ("key not null",),
        5: ("partition exists",),
        6: ("partition exists",),
        8: ("timestamp after 1970",),
        9: ("timestamp range",),
    }


def test_text_that_json_would_change_is_in_quarantine(tmp_path, spark, kafka_broker):
    kafka_broker.create_topic("texts")
    world = RefusingTarget(tmp_path, schema="n long, hex string")
    world.spark = spark
    world.sink = KafkaTopic("texts", servers=kafka_broker.servers)
    world.stage = lambda rows: rows.selectExpr("n", "CAST(unhex(hex) AS string) AS text")
    world.land({"n": 1, "hex": "41"}, {"n": 2, "hex": "47E8"}, {"n": 3, "hex": None})
    world.checkpoint("one")
    assert [json.loads(record.value) for record in kafka_broker.read("texts")] == [
        {"n": 1, "text": "A"},
        {"n": 3, "text": None},
    ]
    assert world.broken_rules() == {2: ("text encoding",)}
