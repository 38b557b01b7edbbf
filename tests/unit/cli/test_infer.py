"""`tidegate new source NAME --infer FILE…` declares a source for files like a sample of them."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def inferred(tidegate, *files):
    said = tidegate("new", "source", "orders", "--infer", *map(str, files), "--json")
    assert said.code == 0, said.json
    return said.json


def columns(document):
    return {column["name"]: column["type"] for column in document["columns"] if not column["why_not"]}


def of_json(folder, tidegate, *records, name="1.json"):
    (folder / name).write_text("\n".join(json.dumps(record) for record in records))
    return inferred(tidegate, folder / name)


def test_a_column_has_the_narrowest_type_of_all_its_values(folder, tidegate):
    document = of_json(
        folder,
        tidegate,
        {"whole": 1, "large": 2**63, "number": 1, "text": "a", "yes": True, "mixed": 1, "tags": ["a"], "none": [None]},
        {"whole": None, "large": 1, "number": 1.5, "text": "", "mixed": "x", "tags": [], "none": []},
    )
    assert columns(document) == {
        "whole": "bigint",
        "large": "decimal(38,0)",
        "number": "double",
        "text": "string",
        "yes": "boolean",
        "mixed": "string",
        "tags": "array<string>",
        "none": "array<string>",
    }
    assert (document["records"], document["is_all"]) == (2, True)


def test_dates_and_times_are_proposed_where_every_value_is_one(folder, tidegate):
    document = of_json(
        folder,
        tidegate,
        {"day": "2026-02-28", "at": "2026-01-31T10:00:00Z", "local": "2026-01-31 10:00:00", "no": "2026-02-28"},
        {"day": "2024-02-29", "at": "2026-01-31T10:00:00.123456+02:00", "local": None, "no": "2026-02-30"},
    )
    assert columns(document) == {"day": "date", "at": "timestamp", "local": "timestamp_ntz", "no": "string"}


def test_objects_are_structs_and_keys_that_are_data_are_maps(folder, tidegate):
    document = of_json(
        folder,
        tidegate,
        {
            "customer": {"name": "Ann", "vip": None},
            "items": [{"sku": "a"}, {"n": 2}],
            "by": {f"k{n}": n for n in range(101)},
        },
        {"customer": {"name": "Bob", "of": {"since": 2020}}},
    )
    assert columns(document) == {
        "customer": "struct<name string, of struct<since bigint>>",
        "items": "array<struct<sku string, n bigint>>",
        "by": "map<string, bigint>",
    }


def test_keys_that_are_no_columns_are_left_out_and_named(folder, tidegate):
    document = of_json(folder, tidegate, {"id": 1, "ID": 2, "a b": 3, "a.b": 4, 'a"b': 5, "none": None})
    assert columns(document) == {"id": "bigint"}
    code = document["declaration"]
    for name in ("ID", "a b", "a.b", 'a"b', "none"):
        assert f"# left out: {json.dumps(name)}: " in code
    compile(code, "declaration", "exec")


def test_money_is_proposed_as_a_decimal(folder, tidegate):
    code = of_json(folder, tidegate, {"amount": 9.5, "ratio": 0.123}, {"amount": 123456789012.25})["declaration"]
    assert "# amount: if it is money, write decimal(18,2), which keeps each cent" in code
    assert "# ratio" not in code


def test_csv_is_read_with_its_separator(folder, tidegate):
    with gzip.open(folder / "1.csv.gz", "wt") as file:
        file.write("id;zip;price;day;ok\n1;0101;9.50;2026-01-01;true\n2;;10;2026-01-02;FALSE\n")
    document = inferred(tidegate, folder / "1.csv.gz")
    assert columns(document) == {"id": "bigint", "zip": "string", "price": "double", "day": "date", "ok": "boolean"}
    assert document["options"] == {"header": "true", "sep": ";"}
    assert document["pattern"] == f"{folder}/*.csv.gz"


def test_parquet_has_its_own_types(folder, tidegate):
    rows = pa.table(
        {
            "id": pa.array([1], pa.int32()),
            "paid": pa.array([None], pa.decimal128(12, 2)),
            "at": pa.array([None], pa.timestamp("us", tz="UTC")),
            "of": pa.array([{"a": [1.5]}]),
        }
    )
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    for place in ("a", "b"):
        pq.write_table(rows, folder / place / "1.parquet")
    document = inferred(tidegate, folder / "a/1.parquet", folder / "b/1.parquet")
    assert columns(document) == {
        "id": "int",
        "paid": "decimal(12,2)",
        "at": "timestamp",
        "of": "struct<a array<double>>",
    }
    assert document["pattern"] == f"{folder}/**/*.parquet"


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("1.json", '{"id": 1}\n[1]', "line 2 is not one JSON object"),
        ("1.json", "", "has no records"),
        ("1.json", '{"a b": 1}', "no key of the sample can be a column"),
        ("1.txt", "a", "an unknown format"),
        ("1.csv", "id,name\n1\n", "more or fewer values than the header"),
        ("1.parquet", "a", "cannot be read"),
        ("1.json.gz", "a", "cannot be read"),
    ],
)
def test_a_sample_that_cannot_be_read_is_refused(folder, tidegate, name, text, what):
    (folder / name).write_text(text)
    said = tidegate("new", "source", "orders", "--infer", str(folder / name), "--json")
    assert said.code in (2, 3)
    assert what in said.json["error"]["message"]
    assert said.json["error"]["help"]


def test_nothing_is_written(folder, tidegate):
    before = sorted(folder.rglob("*"))
    of_json(folder, tidegate, {"id": 1})
    assert [path.name for path in sorted(folder.rglob("*")) if path not in before] == ["1.json"]
