"""`tidegate contract` checks contracts and tables, compares contracts, and starts one from a pipeline's sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties, DeltaTable, write_deltalake

CONTRACT = """apiVersion: v3.1.0
kind: DataContract
id: orders
version: 1.0.0
status: active
schema:
  - name: orders
    properties:
      - {name: id, logicalType: integer, primaryKey: true}
      - {name: amount, logicalType: number, logicalTypeOptions: {minimum: 0}}
slaProperties:
  - {property: latency, value: 2, unit: h}
"""
PIPELINE = """
from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.sinks import DeltaUpsert
from tidegate.sources import Files

pipeline = Pipeline("contracted_shop", interval="1 min")
orders = pipeline.source("orders", Files("landing/*.json", schema="id long, amount double"))
checked = orders.gate(Expectations("orders"), name="checked")
checked.sink("orders", DeltaUpsert("tables/orders", keys=["id"]))
pipeline.promise("orders", fresh="30 min")
"""
SUITE = """
expectations:
  - {type: expect_column_values_to_not_be_null, kwargs: {column: amount}, severity: warning}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a contract, a pipeline and the table of its sink."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidegate.toml").write_text('data = "."\n')
    (tmp_path / "orders.odcs.yaml").write_text(CONTRACT)
    (tmp_path / "contracted_shop.py").write_text(PIPELINE)
    suites = tmp_path / "include" / "expectations"
    suites.mkdir(parents=True)
    (suites / "orders.yaml").write_text(SUITE)
    rows = pa.table({"id": pa.array([1], pa.int64()), "amount": [1.5]})
    write_deltalake(tmp_path / "tables" / "orders", rows, description="All orders")
    return tmp_path


def test_a_good_contract_is_told_rule_by_rule(project: Path, tidegate: Any) -> None:
    told = tidegate("contract", "check", "orders.odcs.yaml")
    assert told.code == 0, told.err
    assert "primaryKey(id) is unique  over the table  critical     9" in told.out
    assert "range(amount)             row by row      critical    10" in told.out
    assert "Promised: at most 2 h old" in told.out
    described = tidegate("contract", "check", "orders.odcs.yaml", "--json").json["schemas"]["orders"]
    assert [rule["rule"] for rule in described["rules"]] == [
        "range(amount)",
        "primaryKey(id)",
        "primaryKey(id) is unique",
    ]


def test_a_broken_contract_is_told_with_file_and_line(project: Path, tidegate: Any) -> None:
    Path("orders.odcs.yaml").write_text(CONTRACT.replace("logicalType: number", "logicalType: decimal"))
    told = tidegate("contract", "check", "orders.odcs.yaml")
    assert told.code == 2
    assert "orders.odcs.yaml:10: property amount: logicalType 'decimal' is not known" in told.err
    missing = tidegate("contract", "check", "order.odcs.yaml")
    assert missing.code == 2
    assert "orders.odcs.yaml" in missing.err, "those that are there"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sink", "orders"), "--sink and --source are parts of a pipeline"),
        (("contracted_shop:pipeline",), "may have several sinks and sources"),
        (("contracted_shop:pipeline", "--sink", "order"), "the pipeline has no sink 'order'"),
        (("contracted_shop:pipeline", "--source", "in", "--no-spark"), "the pipeline has no source 'in'"),
        (("--table", "tables/order"), "no Delta table exists at"),
        (("--schema", "items"), "no schema object 'items'"),
    ],
)
def test_what_is_not_there_to_be_compared_is_refused(
    project: Path, tidegate: Any, words: tuple[str, ...], message: str
) -> None:
    told = tidegate("contract", "check", "orders.odcs.yaml", *words)
    assert (told.code, message in told.err) == (2, True), told.err


def test_a_table_is_compared_as_it_stands(project: Path, tidegate: Any) -> None:
    command = ("contract", "check", "orders.odcs.yaml", "contracted_shop:pipeline", "--sink", "orders", "--no-spark")
    kept = tidegate(*command)
    assert kept.code == 0, kept.err
    assert "The contract is kept." in kept.out
    assert "primaryKey(id) is unique: the sink replaces rows by these columns, so they are unique" in kept.out

    Path("orders.odcs.yaml").write_text(CONTRACT.replace("name: amount", "name: price"))
    broken = tidegate(*command)
    assert broken.code == 1
    assert "- the table, version 0: column 'price' is missing" in broken.out
    assert tidegate("contract", "check", "orders.odcs.yaml", "--table", "tables/orders", "--no-spark").code == 1


def test_changes_are_told_and_what_breaks_is_no(project: Path, tidegate: Any) -> None:
    Path("new.odcs.yaml").write_text(CONTRACT.replace("minimum: 0", "minimum: 1").replace("value: 2", "value: 1"))
    told = tidegate("contract", "diff", "orders.odcs.yaml", "new.odcs.yaml")
    assert told.code == 1
    assert "breaking  orders.amount.minimum: 0 was, 1 is" in told.out
    assert "Version 1.0.0 after 1.0.0 promises that nothing breaks: raise the first number." in told.out
    document = tidegate("contract", "diff", "orders.odcs.yaml", "new.odcs.yaml", "--json").json
    assert [(change["path"], change["effect"]) for change in document["changes"]] == [
        ("orders.amount.minimum", "breaking"),
        ("slaProperties.latency", "warning"),
    ]
    assert tidegate("contract", "diff", "orders.odcs.yaml", "orders.odcs.yaml").code == 0


def test_a_contract_is_started_from_the_table_of_a_sink_and_what_judges_its_rows(project: Path, tidegate: Any) -> None:
    table = DeltaTable(project / "tables" / "orders")
    table.alter.add_constraint({"sold": "amount >= 0"}, commit_properties=CommitProperties())
    told = tidegate("contract", "export", "contracted_shop:pipeline", "orders", "--write", "contracts/new.odcs.yaml")
    assert told.code == 0, told.err
    written = yaml.safe_load(Path("contracts/new.odcs.yaml").read_text())
    (orders,) = written["schema"]
    assert orders["description"] == "All orders"
    assert orders["properties"] == [
        {
            "name": "id",
            "logicalType": "integer",
            "physicalType": "bigint",
            "primaryKey": True,
            "primaryKeyPosition": 1,
        },
        {"name": "amount", "logicalType": "number", "physicalType": "double"},
    ]
    constraint, expectation = orders["quality"]
    assert constraint["query"] == "SELECT COUNT(*) FROM {object} WHERE NOT (amount >= 0)"
    assert expectation["implementation"]["type"] == "expect_column_values_to_not_be_null"
    assert expectation["severity"] == "warning"
    assert written["slaProperties"] == [{"property": "latency", "value": 30, "unit": "min"}]

    kept = tidegate("contract", "check", "contracts/new.odcs.yaml", "--table", "tables/orders", "--no-spark")
    assert (kept.code, "The contract is kept." in kept.out) == (0, True), kept.err
    again = tidegate("contract", "export", "contracted_shop:pipeline", "orders", "--write", "contracts/new.odcs.yaml")
    assert (again.code, "already exists" in again.err) == (1, True)
