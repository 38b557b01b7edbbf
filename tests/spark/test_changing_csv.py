"""CSV files whose headers and values change: fields are columns by their names, and nothing is lost."""

from __future__ import annotations

import json
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.connectors.files.rescuing_csv import unfit_double
from tidegate.connectors.source import SourceContext
from tidegate.ledger import Ledger, LocalStore
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

pytestmark = in_turn(seconds=60)

SCHEMA = "id long, name string, amount decimal(12,2), day date"


def source(**options: Any) -> Files:
    given = {"header": "true", **options.pop("options", {})}
    return Files("in/*.csv", schema=options.pop("schema", SCHEMA), options=given, missing_columns="null", **options)


def read(root: Path, spark: Any, source: Files, **texts: str) -> list[dict[str, Any]]:
    """The rows of files with these texts, without columns that are null."""
    (root / "in").mkdir(exist_ok=True)
    for name, text in texts.items():
        (root / "in" / f"{name}.csv").write_bytes(text.encode())
    context = SourceContext("orders", "orders", Place(str(root)), Ledger(LocalStore(root / "ledger"), "orders"))
    splits = source.plan(None, context).splits
    source.verify(splits, context)
    rows = []
    for row in source.read(spark, splits, context).collect():
        short = {name: value for name, value in row.asDict().items() if value is not None}
        if "_rescued" in short:
            short["_rescued"] = json.loads(short["_rescued"])
        rows.append(short)
    return rows


def test_fields_are_columns_by_their_names_in_any_order_and_case(tmp_path: Path, spark: Any) -> None:
    rows = read(
        tmp_path,
        spark,
        source(),
        a="AMOUNT,id,Name\n1.50,1,Ann\n",
        b='day,note,name,id\n2026-01-31,"of, no column",Bob,2\n',
        c="id,name,amount,day\n3,Cid,2,2026-02-01\n",
    )
    assert [(row["id"], row["name"], row.get("amount"), str(row.get("day"))) for row in rows] == [
        (1, "Ann", Decimal("1.50"), "None"),
        (2, "Bob", None, "2026-01-31"),
        (3, "Cid", Decimal("2.00"), "2026-02-01"),
    ]


SHORT = "id,vip,name,amount\n1,,Ann,2\n7,yes,Bob\n"
SHORT_OF_A_FURTHER_FIELD = "id,name,amount,vip\n1,Ann,2,yes\n7,Bob,3\n"
LONG = "id,name,vip\n1,Ann,yes\n7,Smith, Bob,yes\n"


@pytest.mark.parametrize("text", [SHORT, SHORT_OF_A_FURTHER_FIELD, LONG])
@pytest.mark.parametrize("policy", [{}, {"on_type": "rescue"}])
def test_fields_that_are_dropped_count_when_a_record_is_checked(
    tmp_path: Path, spark: Any, text: str, policy: dict[str, Any]
) -> None:
    with pytest.raises(Exception, match="TIDEGATE_MALFORMED"):
        read(tmp_path, spark, source(**policy), a=text)
    kept = read(tmp_path, spark, source(on_corrupt="keep", **policy), a=text)
    assert [row.get("_corrupt_record") for row in kept] == [None, text.splitlines()[2]]


def test_fields_that_are_dropped_count_with_spark_connect(tmp_path: Path, connect_spark: Any) -> None:
    kept = read(tmp_path, connect_spark, source(on_corrupt="keep", options={"enforceschema": "false"}), a=LONG)
    assert [row.get("_corrupt_record") for row in kept] == [None, "7,Smith, Bob,yes"]


def test_a_header_with_further_fields_is_not_compared_by_position(tmp_path: Path, spark: Any) -> None:
    rows = read(tmp_path, spark, source(options={"enforceschema": "false"}), a="vip,name,id\nyes,Ann,1\n")
    assert rows == [{"id": 1, "name": "Ann"}]


def test_spark_checks_the_header_of_a_file_that_only_it_can_decompress(tmp_path: Path, spark: Any) -> None:
    (tmp_path / "in").mkdir()
    files = Files(
        "in/*.deflate", "csv", schema="id long, name string", options={"header": "true"}, missing_columns="null"
    )
    (tmp_path / "in" / "a.csv.deflate").write_bytes(zlib.compress(b"id,name\n1,Ann\n"))
    assert read(tmp_path, spark, files) == [{"id": 1, "name": "Ann"}]
    (tmp_path / "in" / "a.csv.deflate").write_bytes(zlib.compress(b"name,id\nAnn,1\n"))
    with pytest.raises(Exception, match="CSV header does not conform to the schema"):
        read(tmp_path, spark, files)


def test_fields_that_are_no_columns_are_rescued_by_record(tmp_path: Path, spark: Any) -> None:
    rows = read(
        tmp_path,
        spark,
        source(on_new_column="rescue"),
        a='id,vip,ID,a b,\n1,yes,7,,\n2,,,"x, ""y""",z\n'.replace('""', '\\"'),
        b="id\n3\n",
    )
    assert rows == [
        {"id": 1, "_rescued": {"vip": "yes", "ID": "7"}},
        {"id": 2, "_rescued": {"a b": 'x, "y"', "": "z"}},
        {"id": 3},
    ]


def test_values_that_their_columns_cannot_hold_are_rescued_as_they_are(tmp_path: Path, spark: Any) -> None:
    rows = read(
        tmp_path,
        spark,
        source(on_type="rescue"),
        a="id,name,amount,day\n1,Ann,1.5,2026-01-31\ntwo,,12 EUR,31.1.\n3,,1.005,\n4,,99999999999.1,12026-01-01\n",
    )
    assert rows[1:] == [
        {"_rescued": {"id": "two", "amount": "12 EUR", "day": "31.1."}},
        {"id": 3, "_rescued": {"amount": "1.005"}},
        {"id": 4, "_rescued": {"amount": "99999999999.1", "day": "12026-01-01"}},
    ]
    assert (rows[0]["id"], rows[0]["amount"], "_rescued" in rows[0]) == (1, Decimal("1.50"), False)


def test_without_a_header_values_are_rescued_by_position(tmp_path: Path, spark: Any) -> None:
    options = {"header": "false", "sep": ";", "dateFormat": "d.M.yyyy", "nullValue": "-"}
    rows = read(tmp_path, spark, source(on_type="rescue", options=options), a="1;-;-;31.1.2026\n2;x;-;2026-01-31\n")
    assert [(row["id"], str(row.get("day")), row.get("_rescued")) for row in rows] == [
        (1, "2026-01-31", None),
        (2, "None", {"day": "2026-01-31"}),
    ]


def test_a_record_with_too_few_or_too_many_fields_is_malformed_as_ever(tmp_path: Path, spark: Any) -> None:
    text = "id,name,amount,day,vip\n1,,,,yes\n2\n3,,,,,\n4,,,,,,more\n"
    kept = read(tmp_path, spark, source(on_new_column="rescue", on_type="rescue", on_corrupt="keep"), a=text)
    assert kept[0] == {"id": 1, "_rescued": {"vip": "yes"}}
    assert [row["_corrupt_record"] for row in kept[1:]] == ['"2"', "3,,,,,", "4,,,,,,more"]
    with pytest.raises(Exception, match="TIDEGATE_MALFORMED"):
        read(tmp_path, spark, source(on_new_column="rescue"), a=text)


def test_only_what_the_policy_names_is_rescued_of_csv(tmp_path: Path, spark: Any) -> None:
    text = "id,vip\n1,yes\ntwo,no\n"
    kept = read(tmp_path, spark, source(on_new_column="rescue", on_corrupt="keep"), a=text)
    assert kept == [{"id": 1, "_rescued": {"vip": "yes"}}, {"_corrupt_record": "two,no"}]
    kept = read(tmp_path, spark, source(on_type="rescue", on_corrupt="keep"), a=text)
    assert kept == [{"id": 1}, {"_rescued": {"id": "two"}}]


def test_bytes_that_are_no_text_are_refused_beside_a_rescue_column(tmp_path: Path, spark: Any) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.csv").write_bytes("id,name,vip\n1,Genève,yes\n".encode("latin-1"))
    with pytest.raises(Exception, match="TIDEGATE_MALFORMED"):
        read(tmp_path, spark, source(on_new_column="rescue"))
    (row,) = read(tmp_path, spark, source(on_new_column="rescue", options={"encoding": "ISO-8859-1"}))
    assert row == {"id": 1, "name": "Genève", "_rescued": {"vip": "yes"}}


def test_a_file_may_have_one_field(tmp_path: Path, spark: Any) -> None:
    rows = read(tmp_path, spark, source(on_type="rescue", schema="id long, n int"), a='id\n1\n"2"\ntwo\n"a, b"\n')
    assert rows == [{"id": 1}, {"id": 2}, {"_rescued": {"id": "two"}}, {"_rescued": {"id": "a, b"}}]


class Shop(World):
    """Orders as they come, as CSV."""

    policy: dict[str, Any]

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        files = Files("landing/*.csv", schema="id long, name string", options={"header": True}, **self.policy)
        pipeline.source("orders", files).sink("orders", DeltaAppend("tables/orders", schema_evolution="add"))
        return pipeline

    def land(self, name: str, text: str) -> None:
        folder = self.root / "landing"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_a_new_field_becomes_a_column_of_text(tmp_path: Path, spark: Any) -> None:
    orders = Shop(tmp_path)
    orders.spark, orders.policy = spark, {"on_new_column": "evolve", "on_type": "rescue", "max_files": 2}
    orders.land("1.csv", "id,name\n1,Ann\n")
    orders.land("2.csv", "name,vip,id,empty\nBob,yes,2,\n,,x,\n")
    first = orders.ledger.entry(orders.checkpoint("one"))
    assert first is not None
    found = first.acks["main"].ack.drift["orders"]
    assert [(each.path, each.kind, each.type, each.records, each.file) for each in found.found] == [
        ("id", "type", "string", 1, "2.csv"),
        ("vip", "new", "string", 1, "2.csv"),
    ]
    orders.land("3.csv", "VIP,id,name\nno,3,Cid\n")
    orders.land("4.csv", "id,name\n4,Dan\n")
    orders.checkpoint("two")
    rows = [(row["id"], row["name"], row["vip"], row["_rescued"]) for row in orders.table("orders")]
    assert sorted(rows, key=str) == [
        (1, "Ann", None, None),
        (2, "Bob", None, '{"vip":"yes"}'),
        (3, "Cid", "no", None),
        (4, "Dan", None, None),
        (None, None, None, '{"id":"x"}'),
    ]


def test_five_thousand_new_fields_are_bounded_and_told(tmp_path: Path, spark: Any) -> None:
    orders = Shop(tmp_path)
    orders.spark, orders.policy = spark, {"on_new_column": "evolve"}
    keys = [f"k{number}" for number in range(5_000)]
    orders.land("1.csv", ",".join(["id", "name", *keys]) + "\n1,Ann" + ",1" * 5_000 + "\n")
    first = orders.ledger.entry(orders.checkpoint("one"))
    assert first is not None
    found = first.acks["main"].ack.drift["orders"]
    assert (len(found.found), found.more, found.records) == (1000, 1, 1)
    orders.land("2.csv", ",".join(["id", "name", *keys]) + "\n2,Bob" + ",2" * 5_000 + "\n")
    second = orders.ledger.entry(orders.checkpoint("two"))
    assert second is not None
    schema = second.plan.sources["orders"].schema
    assert schema is not None
    assert schema.ddl == "`id` bigint, `name` string"
    assert [len(json.loads(row["_rescued"])) for row in orders.table("orders")] == [5_000, 5_000]


def test_a_column_of_csv_becomes_as_wide_as_its_numbers(tmp_path: Path, spark: Any) -> None:
    orders = Numbers(tmp_path)
    orders.spark = spark
    orders.land("1.csv", "id,n,rate,amount,name\n1,5,7,1.25,7\n")
    orders.checkpoint("one")
    orders.land("2.csv", "id,n,rate,amount,name\n2,5000000000,2.5,1.2575,x\n3,+007,007,many,y\n4,2,1e3,,\n")
    second = orders.ledger.entry(orders.checkpoint("two"))
    assert second is not None
    found = second.acks["main"].ack.drift["orders"].found
    assert [(each.path, each.type, each.records, each.wider) for each in found] == [
        ("amount", "string", 2, "decimal(8,4)"),
        ("n", "bigint", 1, "bigint"),
        ("rate", "double", 2, "double"),
    ]
    orders.land("3.csv", "id,n,rate,amount,name\n5,5000000001,0.5,2.0001,z\n6,1,9007199254740993,3,z\n7,1,12d,3,z\n")
    orders.checkpoint("three")
    rows = {row["id"]: row for row in orders.table("orders")}
    assert [(rows[id]["n"], rows[id]["rate"]) for id in (1, 2, 3, 4)] == [(5, 7.0), (None, None), (7, 7.0), (2, None)]
    assert json.loads(rows[2]["_rescued"]) == {"n": "5000000000", "rate": "2.5", "amount": "1.2575"}
    assert (rows[5]["n"], rows[5]["rate"], rows[5]["amount"]) == (5_000_000_001, 0.5, Decimal("2.0001"))
    assert (rows[6]["rate"], rows[6]["_rescued"]) == (None, '{"rate":"9007199254740993"}'), "a double would round it"
    assert (rows[7]["rate"], rows[7]["_rescued"]) == (None, '{"rate":"12d"}'), "as while the column was one of ints"


def test_a_double_takes_only_plain_numbers_that_it_does_not_round(spark: Any) -> None:
    fit = ["7", " +007 ", "5.", ".5", "-1.5e3", "9007199254740992", "9007199254740993.5", "NaN", "n/a", "Inf"]
    unfit = ["12d", "7f", "0x1p4", "x", "", "9007199254740993", "\t9007199254740993", "-9007199254740993.", "NaN(n)"]
    rows = spark.createDataFrame([(text,) for text in [*fit, *unfit, None]], "text string")
    found = rows.selectExpr("text", f"{unfit_double('text', {'nanValue': 'n/a'})} AS unfit").collect()
    assert [row.text for row in found if row.unfit] == unfit


class Numbers(Shop):
    """Numbers of several types, as CSV."""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        schema = "id long, n int, rate int, amount decimal(6,2), name string"
        files = Files("landing/*.csv", schema=schema, options={"header": True}, on_type="widen")
        pipeline.source("orders", files).sink("orders", DeltaAppend("tables/orders", schema_evolution="widen"))
        return pipeline
