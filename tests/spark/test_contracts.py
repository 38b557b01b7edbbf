"""A data contract as a gate: its schema, its rules about rows and about the whole table, on real Spark and Delta."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.kit.jvm import QUICK
from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.cli.main import main
from tidegate.coordinator import Triggered
from tidegate.execution.job.run_job import run_job
from tidegate.gates import Contract
from tidegate.records.records import Verdict
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pytestmark = in_turn(seconds=60)

CONTRACT = """
apiVersion: v3.1.0
kind: DataContract
id: orders
version: 1.0.0
status: active
schema:
  - name: orders
    description: One row for each order.
    properties:
      - name: id
        logicalType: integer
        required: true
      - name: email
        logicalType: string
        classification: confidential
        description: Where the receipt goes.
        logicalTypeOptions: {maxLength: 20, pattern: '^[^@]{1,9}@.+$'}
      - name: amount
        logicalType: number
        logicalTypeOptions: {minimum: 0, multipleOf: 0.05}
        quality:
          - {id: not-dear, type: sql, query: 'SELECT COUNT(*) FROM {object} WHERE {property} > 900', mustBe: 0}
      - name: day
        logicalType: date
        logicalTypeOptions: {minimum: '2026-01-01'}
      - name: unit
        logicalType: string
        quality:
          - {metric: invalidValues, arguments: {validValues: [kg, lb]}, mustBe: 0}
          - {id: unit-known, metric: missingValues, arguments: {missingValues: ['', 'N/A']}, mustBe: 0, severity: info}
      - name: lines
        logicalType: array
        logicalTypeOptions: {minItems: 1}
        items:
          logicalType: object
          properties:
            - {name: sku, logicalType: string, required: true}
            - {name: pieces, logicalType: integer, logicalTypeOptions: {minimum: 1}}
"""
SCHEMA = (
    "id long, email string, amount decimal(12,2), day date, unit string, lines array<struct<sku:string,pieces:int>>"
)
GOOD = {
    "id": 1,
    "email": "ada@example.org",
    "amount": 10.05,
    "day": "2026-02-03",
    "unit": "kg",
    "lines": [{"sku": "a", "pieces": 1}],
}
BAD = {
    "required(id)": {"id": None},
    "length(email)": {"email": "ada@a-very-long-name.example.org"},
    "pattern(email)": {"email": "nobody"},
    "range(amount)": {"amount": -0.05},
    "multipleOf(amount)": {"amount": 10.01},
    "not-dear": {"amount": 1000},
    "range(day)": {"day": "2025-12-31"},
    "invalidValues(unit)": {"unit": "stone"},
    "minItems(lines)": {"lines": []},
    "required(lines[].sku)": {"lines": [{"sku": "a", "pieces": 1}, {"sku": None, "pieces": 1}]},
    "range(lines[].pieces)": {"lines": [{"sku": "a", "pieces": 0}]},
}
"""For each rule a change to the good row that only it forbids."""


def play(root: Path, spark: Any, text: str = CONTRACT, schema: str = SCHEMA, **options: Any) -> SmallPipeline:
    (root / "contracts").mkdir(exist_ok=True)
    (root / "contracts" / "orders.odcs.yaml").write_text(text)
    options = {"on_failure": {"critical": "quarantine"}, **options}

    def build(pipeline: Pipeline) -> None:
        gate = Contract("contracts/orders.odcs.yaml", **options)
        rows = sources(pipeline, schema)
        rows.gate(gate, name="kept").sink("orders", DeltaAppend("tables/orders"))

    return SmallPipeline(root, spark, build)


def checkpoint(played: SmallPipeline) -> tuple[dict[str, Verdict], str]:
    coordinator = played.coordinator()
    triggered = coordinator.trigger(f"run {coordinator.ledger.view().last_id + 1}")
    assert isinstance(triggered, Triggered)
    ack = run_job(coordinator, triggered.plan.id, "main", played.spark)
    outcome = coordinator.complete(triggered.plan.id)
    coordinator.publish()
    return ack.gates, outcome.state


def test_each_rule_of_a_contract_sends_the_rows_that_break_it_to_quarantine(spark, tmp_path):
    played = play(tmp_path, spark)
    played.feed([GOOD, *({**GOOD, **change} for change in BAD.values())])
    verdicts, state = checkpoint(played)
    assert state == "completed"
    assert {rule.rule: rule.rows for rule in verdicts["kept"].broken} == dict.fromkeys(BAD, 1)
    assert [row["id"] for row in played.rows("tables/orders")] == [1]
    aside = played.rows("ledger/play/quarantine/kept")
    assert sorted(row["_tidegate_rules"] for row in aside) == sorted([rule] for rule in BAD)
    results = played.coordinator().ledger.unpack(verdicts["kept"].results)
    assert "nobody" not in str(results), "the contract calls the column confidential"
    assert results["meta"]["contract"] == {"id": "orders", "version": "1.0.0"}

    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["docs", "gates", "play", "-D", f"root={tmp_path / 'ledger'}", "--json"]) == 0
    assert json.loads(out.getvalue())["missing"] == [], "Great Expectations draws its pages of a contract, too"


OF_THE_TABLE = """
apiVersion: v3.1.0
kind: DataContract
id: orders
version: 1.0.0
status: active
schema:
  - name: orders
    properties:
      - {name: id, logicalType: integer, primaryKey: true}
      - name: unit
        logicalType: string
        quality:
          - {id: few-nulls, metric: nullValues, mustBeLessThan: 50, unit: percent, severity: warning}
          - {id: few-stones, metric: invalidValues, arguments: {validValues: [kg]}, mustBeLessThan: 3, severity: info}
    quality:
      - {id: enough, metric: rowCount, mustBeGreaterOrEqualTo: 3, severity: warning}
      - {id: twins, metric: duplicateValues, arguments: {properties: [unit]}, mustBeLessOrEqualTo: 1, severity: warning}
      - {id: one-kg, type: sql, query: "SELECT max(id) > 0 FROM ${table} WHERE unit = 'kg'", mustBe: true}
"""
"""Rules of which each row says nothing."""


def test_rules_about_all_rows_are_judged_over_the_table_as_it_will_be(spark, tmp_path):
    options = {"on_failure": {"critical": "quarantine", "warning": "warn"}, "over": "tables/orders"}
    played = play(tmp_path, spark, OF_THE_TABLE, "id long, unit string", **options)
    played.feed([{"id": 1, "unit": "kg"}, {"id": 2, "unit": None}])
    verdicts, _ = checkpoint(played)
    assert verdicts["kept"].outcome == "pass", "an id is not null"
    assert [rule.rule for rule in verdicts["kept-over-table"].broken] == ["few-nulls", "enough"], (
        "50 % are not below 50 %"
    )

    played.feed([{"id": 1, "unit": "kg"}, {"id": 3, "unit": "st"}, {"id": 4, "unit": "st"}, {"id": 5, "unit": "kg"}])
    verdicts, state = checkpoint(played)
    verdict = verdicts["kept-over-table"]
    assert state == "completed"
    assert [(rule.rule, rule.policy, rule.rows) for rule in verdict.broken] == [
        ("primaryKey(id) is unique", "quarantine", 2),
        ("twins", "warn", None),
    ], "an id of the table came again, and both units occur twice"
    assert sorted(row["id"] for row in played.rows("tables/orders")) == [1, 2, 3, 4, 5]
    assert [row["id"] for row in played.rows("ledger/play/quarantine/kept-over-table")] == [1]

    played.feed([{"id": 6, "unit": "st"}])
    verdicts, _ = checkpoint(played)
    assert [rule.rule for rule in verdicts["kept-over-table"].broken] == ["few-stones", "twins"]


def test_rows_without_the_columns_of_the_contract_abort_the_checkpoint(spark, tmp_path):
    played = play(tmp_path, spark, schema=SCHEMA.replace("day date", "day timestamp").replace("unit string, ", ""))
    played.feed([GOOD])
    verdicts, state = checkpoint(played)
    (broken,) = verdicts["kept"].broken
    assert (broken.rule, broken.policy, state) == ("schema", "abort", "aborted")
    assert broken.why == "column 'day' is timestamp, and the contract has logicalType date; column 'unit' is missing"


def test_a_contract_that_is_edited_judges_what_is_planned_next(spark, tmp_path):
    played = play(tmp_path, spark)
    coordinator = played.coordinator()
    played.feed([{**GOOD, "amount": 1000}])
    triggered = coordinator.trigger("run 1")
    assert isinstance(triggered, Triggered)
    path = tmp_path / "contracts" / "orders.odcs.yaml"
    path.write_text(CONTRACT.replace("> 900", "> 9000"))
    ack = run_job(coordinator, triggered.plan.id, "main", spark)
    coordinator.complete(triggered.plan.id)
    coordinator.publish()
    assert ack.gates["kept"].outcome == "quarantine", "by the contract of its plan"
    played.feed([{**GOOD, "amount": 1000}])
    assert checkpoint(played)[0]["kept"].outcome == "pass"


def test_a_sink_with_a_contract_judges_promises_and_describes_its_table(spark, tmp_path):
    (tmp_path / "contracts").mkdir()
    text = CONTRACT.replace(
        "{name: sku, logicalType: string,", "{name: sku, logicalType: string, description: Article.,"
    )
    levels = "slaProperties:\n  - {property: latency, value: 2, unit: h, element: orders.day}\n"
    (tmp_path / "contracts" / "orders.odcs.yaml").write_text(text + levels)

    def build(pipeline: Pipeline) -> None:
        contract = Contract("contracts/orders.odcs.yaml", on_failure="quarantine")
        sources(pipeline, SCHEMA).sink("orders", DeltaAppend("tables/orders"), contract=contract)

    played = SmallPipeline(tmp_path, spark, build)
    assert played.graph().promises == {"orders": 7200.0}
    played.feed([GOOD, {**GOOD, "id": None}])
    verdicts, state = checkpoint(played)
    assert (verdicts["orders-contract"].quarantined, state) == (1, "completed")
    table = DeltaTable(str(tmp_path / "tables" / "orders"))
    assert table.metadata().description == "One row for each order."
    fields = {field.name: field for field in table.schema().fields}
    assert fields["email"].metadata == {"comment": "Where the receipt goes."}
    assert fields["id"].metadata == {}
    assert fields["lines"].type.element_type.fields[0].metadata == {"comment": "Article."}
    described = spark.sql(f"DESCRIBE TABLE delta.`{tmp_path}/tables/orders`").collect()
    assert {row["col_name"]: row["comment"] for row in described}["email"] == "Where the receipt goes."


def test_a_column_that_a_table_gets_later_has_the_words_of_its_contract_too(spark, tmp_path):
    (tmp_path / "contracts").mkdir()
    path = tmp_path / "contracts" / "orders.odcs.yaml"
    head, columns = OF_THE_TABLE.partition("    properties:\n")[:2]
    path.write_text(f"{head}{columns}      - {{name: id, logicalType: integer}}\n")
    schema = ["id long"]

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, ", ".join(schema))
        sink = DeltaAppend("tables/orders", schema_evolution="add")
        rows.sink("orders", sink, contract=Contract("contracts/orders.odcs.yaml"))

    played = SmallPipeline(tmp_path, spark, build)
    played.feed([{"id": 1}])
    checkpoint(played)
    schema.append("unit string")
    path.write_text(path.read_text() + "      - {name: unit, logicalType: string, description: Pounds or not.}\n")
    played.feed([{"id": 2, "unit": "lb"}])
    assert checkpoint(played)[1] == "completed"
    fields = {field.name: field for field in DeltaTable(str(tmp_path / "tables" / "orders")).schema().fields}
    assert fields["unit"].metadata == {"comment": "Pounds or not."}


def test_a_table_is_judged_by_a_contract_as_it_stands(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidegate.toml").write_text('data = "."\n')
    for name, value in {"MODE": "local", "MASTER": "local[2]", "MEMORY": "2g", "CONF": json.dumps(QUICK)}.items():
        monkeypatch.setenv(f"TIDEGATE_SPARK_{name}", value)
    played = play(tmp_path, spark)
    played.feed([GOOD, {**GOOD, "id": 2, "amount": 30}])
    checkpoint(played)
    (tmp_path / "stricter.odcs.yaml").write_text(CONTRACT.replace("minimum: 0,", "minimum: 20,"))

    def checked(contract: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = main(["contract", "check", contract, "--table", "tables/orders"])
        return code, out.getvalue()

    assert checked("contracts/orders.odcs.yaml")[0] == 0
    code, told = checked("stricter.odcs.yaml")
    assert (code, "the table, version 0: range(amount): 1 of 2 rows break it" in told) == (1, True), told


def test_a_primary_key_by_which_a_sink_replaces_rows_needs_no_look_at_the_table(spark, tmp_path):
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "orders.odcs.yaml").write_text(OF_THE_TABLE)
    without = ["few-*", "enough", "twins", "one-kg"]

    def build(pipeline: Pipeline) -> None:
        contract = Contract("contracts/orders.odcs.yaml", without=without, on_failure="quarantine")
        rows = sources(pipeline, "id long, unit string")
        rows.sink("orders", DeltaUpsert("tables/orders", keys=["id"]), contract=contract)

    played = SmallPipeline(tmp_path, spark, build)
    for rows in ([{"id": 1, "unit": "kg"}], [{"id": 1, "unit": "lb"}, {"id": None, "unit": "lb"}]):
        played.feed(rows)
        verdicts, state = checkpoint(played)
    assert (verdicts["orders-contract"].quarantined, state) == (1, "completed")
    assert played.rows("tables/orders") == [{"id": 1, "unit": "lb"}]


def test_a_column_that_a_source_gets_by_itself_is_refused_by_name_behind_a_stage(spark, tmp_path):
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "orders.odcs.yaml").write_text(OF_THE_TABLE.replace("primaryKey: true", "required: true"))
    without = ["few-*", "enough", "twins", "one-kg"]

    def build(pipeline: Pipeline) -> None:
        gate = Contract("contracts/orders.odcs.yaml", extra="refuse", without=without, on_failure="quarantine")
        files = Files("landing/rows/*.json", schema="id long, unit string", on_new_column="evolve", on_type="rescue")
        rows = pipeline.source("rows", files)
        rows.select("* EXCEPT (_rescued)").gate(gate, name="kept").sink("orders", DeltaAppend("tables/orders"))

    played = SmallPipeline(tmp_path, spark, build)
    played.feed([{"id": 1, "unit": "kg", "vip": True}, {"id": "one", "unit": "kg"}])
    verdicts, state = checkpoint(played)
    assert (state, [(rule.rule, rule.rows) for rule in verdicts["kept"].broken]) == ("completed", [("required(id)", 1)])
    played.feed([{"id": 2, "unit": "kg"}])
    verdicts, state = checkpoint(played)
    (broken,) = verdicts["kept"].broken
    assert (broken.rule, broken.why, state) == ("schema", "column 'vip' is not in the contract", "aborted")


def test_odd_names_and_values_of_columns_are_judged_like_others(spark, tmp_path):
    text = """
apiVersion: v3.0.2
kind: DataContract
id: odd
version: 1.0.0
status: active
schema:
  - name: odd
    properties:
      - name: 'a {b}'
        logicalType: string
        required: true
        quality:
          - {id: words, metric: invalidValues, arguments: {validValues: ["it's", '{}', "\\\\", no]}, mustBe: 0}
          - {id: missing, metric: missingValues, arguments: {missingValues: ["'"]}, mustBe: 0}
          - {id: nulls, metric: nullValues, mustBeLessThan: 10}
          - {id: pairs, metric: duplicateValues, mustBeLessThan: 3}
          - {id: query, type: sql, query: "SELECT COUNT(*) FROM {object} WHERE {property} RLIKE 'x{2}'", mustBe: 0}
"""
    played = play(tmp_path, spark, text, "id long, `a {b}` string", per_checkpoint=True)
    words = ["it's", "{}", "\\", "no", "No", "'", "xx", None, "it's"]
    played.feed([{"id": id, "a {b}": word} for id, word in enumerate(words)])
    verdicts, state = checkpoint(played)
    found = {rule.rule: rule.rows for rule in verdicts["kept"].broken}
    assert (state, found) == ("completed", {"required(a {b})": 1, "words": 3, "missing": 2, "query": 1})
    assert sorted(row["id"] for row in played.rows("tables/orders")) == [0, 1, 2, 3, 8]
