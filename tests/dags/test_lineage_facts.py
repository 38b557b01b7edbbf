"""What is told of datasets: their names, where from and where to they were read, their columns, and nothing of rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.dags.collector import problems
from tidegate import Pipeline
from tidegate.connectors.sink import Sink
from tidegate.connectors.source import Source
from tidegate.dag.lineage import provider
from tidegate.dag.lineage.facets import operator_lineage
from tidegate.dag.lineage.facts import ColumnOrigin, OutputFacts, TaskDatasets, of_gate, of_plan
from tidegate.dag.lineage.naming import DatasetName, dataset_of, dataset_of_address
from tidegate.execution.opening import open_coordinator
from tidegate.gates import References
from tidegate.history.asset_events.changes import SinkChange
from tidegate.pipeline.graph.nodes import SinkNode, SourceNode
from tidegate.records.place import Place
from tidegate.records.records import Payload, RecordedRule, Verdict
from tidegate.sinks import DeltaAppend, FileExport, IcebergAppend, KafkaTopic, PostgresAppend
from tidegate.sources import DeltaTable, Files, Kafka, PostgresChanges

SHOP = {"shop.host": "db.example.com,other", "shop.dbname": "shop", "shop.user": "ann"}


@pytest.mark.parametrize(
    ("address", "namespace", "name"),
    [
        ("file:///tables/revenue", "file", "/tables/revenue"),
        ("s3://bucket/tables/revenue/", "s3://bucket", "tables/revenue"),
        ("s3://bucket", "s3://bucket", "/"),
        ("gs://bucket/tables/revenue", "gs://bucket", "tables/revenue"),
        ("abfs://box@acme.dfs.core.windows.net/t", "abfss://box@acme.dfs.core.windows.net", "t"),
        ("hdfs://node:8020/tables/revenue", "hdfs://node:8020", "/tables/revenue"),
        ("kafka://broker:9092/orders", "kafka://broker:9092", "orders"),
        ("postgres://db:5432/shop/public/orders", "postgres://db:5432", "shop.public.orders"),
    ],
)
def test_a_name_follows_the_conventions_of_openlineage(address: str, namespace: str, name: str) -> None:
    assert dataset_of_address(address) == DatasetName(namespace, name)


DATABASE = "postgres://db.example.com:5432"
AZURE = "abfss://box@acme.dfs.core.windows.net"
CHANGES = {"slot": "s", "publication": "p"}
DECLARED: list[tuple[Source | Sink, str, str]] = [
    (Files("in/orders/*.json", schema="id long"), "file", "/data/in/orders"),
    (DeltaTable("s3a://bucket/orders"), "s3://bucket", "orders"),
    (Kafka("orders", servers="one:9092,two:9092", value="text"), "kafka://one:9092", "orders"),
    (PostgresChanges("orders", connection="shop", **CHANGES), DATABASE, "shop.public.orders"),
    (DeltaAppend("revenue"), "file", "/data/revenue"),
    (DeltaAppend(f"{AZURE}/t"), AZURE, "t"),
    (FileExport("s3://bucket/out", format="json"), "s3://bucket", "out"),
    (KafkaTopic("totals", servers="one", key="id", value="json"), "kafka://one:9092", "totals"),
    (PostgresAppend("sales.totals", connection="shop"), DATABASE, "shop.sales.totals"),
    (IcebergAppend("sales.totals", connection="lake"), "tidegate://shop", "it"),
    (PostgresAppend("totals", connection="not_here"), "tidegate://shop", "it"),
    (PostgresChanges("totals", connection="not_here", **CHANGES), "tidegate://shop", "source it"),
]


@pytest.mark.parametrize(("declared", "namespace", "name"), DECLARED)
def test_a_source_and_a_sink_are_named_by_what_they_read_and_write(
    declared: Source | Sink, namespace: str, name: str
) -> None:
    node = SourceNode("it", declared) if isinstance(declared, Source) else SinkNode("it", declared, "rows")
    assert dataset_of("shop", node, Place("/data", connections=SHOP)) == DatasetName(namespace, name)


def project(folder: Path) -> str:
    (folder / "tidegate.toml").write_text('root = "ledger"\ndata = "."\n')
    return str(folder)


def event_of(lineage: TaskDatasets) -> dict[str, Any]:
    """What the provider makes of it, in an event that has nothing else."""
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
    from openlineage.client.serde import Serde

    told = operator_lineage(lineage)
    event = RunEvent(
        eventType=RunState.COMPLETE,
        eventTime="2026-01-01T00:00:00+00:00",
        run=Run("0198a7b6-0000-7000-8000-000000000000", told.run_facets),
        job=Job("here", "shop.complete"),
        inputs=told.inputs,
        outputs=told.outputs,
    )
    sent: dict[str, Any] = Serde.to_dict(event)
    assert problems(sent) == []
    return sent


@pytest.mark.parametrize("by", ["a join", "a gate"])
def test_a_delta_table_is_told_with_its_version_and_columns_and_so_is_one_to_look_up(tmp_path: Path, by: str) -> None:
    for number in range(3):
        write_deltalake(tmp_path / "orders", pa.table({"id": [number], "customer": [7]}), mode="append")
    write_deltalake(tmp_path / "customers", pa.table({"customer": [7], "name": ["Ann"]}))
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", DeltaTable("orders"))
    if by == "a join":
        orders.join(table="customers", on="customer", uid="named").sink("out", DeltaAppend("out"))
    else:
        orders.gate(References("customer", to="customers"), name="known").sink("out", DeltaAppend("out"))
    coordinator, _ = open_coordinator(pipeline, project(tmp_path))
    told = []
    for _ in range(2):
        triggered = coordinator.trigger("run", kind="manual")
        told.append(event_of(of_plan(coordinator, triggered.plan)))
    assert told[0] == told[1], "another try tells the same"
    inputs = {dataset["name"]: dataset for dataset in told[0]["inputs"]}
    assert set(inputs) == {f"{tmp_path}/orders", f"{tmp_path}/customers"}
    read = inputs[f"{tmp_path}/orders"]
    assert read["facets"]["version"]["datasetVersion"] == "2"
    assert [field["name"] for field in read["facets"]["schema"]["fields"]] == ["id", "customer"]
    (part,) = read["inputFacets"]["tidegate_ranges"]["ranges"]
    assert (part["source"], part["kind"], part["empty"], part["upTo"]["version"]) == ("orders", "delta", False, 2)
    joined = inputs[f"{tmp_path}/customers"]
    assert joined["facets"]["version"]["datasetVersion"] == "0"
    assert [field["name"] for field in joined["facets"]["schema"]["fields"]] == ["customer", "name"]


def test_a_gate_tells_its_rules_and_no_value_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Files("in/*.json", schema="id long, amount double"))
    orders.sink("out", DeltaAppend("out"))
    coordinator, _ = open_coordinator(pipeline, project(tmp_path))
    triggered = coordinator.trigger("run", kind="manual")
    entry = coordinator.ledger.entry(triggered.plan.id)
    kept = {"id": "id_is_set", "type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}
    broken = {"id": "amount_0", "type": "expect_column_values_to_be_between", "kwargs": {"column": "amount"}}
    found = {"element_count": 9, "unexpected_count": 2, "partial_unexpected_list": [-4711.0, -4712.0]}
    verdict = Verdict(
        outcome="quarantine",
        rows=9,
        quarantined=2,
        broken=[RecordedRule(rule="amount_0", policy="quarantine", severity="critical", rows=2, why="-4711.0 is bad")],
        policy={},
        results=Payload(
            data={
                "results": [
                    {"success": True, "expectation_config": kept, "result": {"unexpected_count": 0}},
                    {"success": False, "expectation_config": broken, "result": found},
                ]
            }
        ),
    )
    told = event_of(of_gate(coordinator, entry, "orders", verdict))
    assert "471" not in str(told)
    whole, first, second = told["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (whole["success"], whole["actual"], whole["params"]["quarantined"]) == (False, "quarantine", 2)
    assert (first["success"], first["column"], first["actual"]) == (True, "id", "0 rows")
    assert "severity" not in first
    assert (second["success"], second["column"], second["actual"]) == (False, "amount", "2 rows")
    assert (second["name"], second["severity"], second["params"]["policy"]) == ("amount_0", "warn", "quarantine")


def test_nested_columns_are_told_as_openlineage_nests_them() -> None:
    point = {"type": "struct", "fields": [{"name": "x", "type": "double"}]}
    columns = {
        "fields": [
            {"name": "price", "type": "decimal(10,2)"},
            {"name": "path", "type": {"type": "array", "elementType": point}},
            {"name": "tags", "type": {"type": "map", "keyType": "string", "valueType": "long"}},
        ]
    }
    output = OutputFacts(DatasetName("file", "/t"), SinkChange(1, rows=2), columns=columns, version="4")
    (told,) = event_of(TaskDatasets(outputs=[output]))["outputs"]

    def plain(fields: list[dict[str, Any]]) -> list[Any]:
        return [(field["name"], field["type"], plain(field["fields"])) for field in fields]

    assert plain(told["facets"]["schema"]["fields"]) == [
        ("price", "decimal(10,2)", []),
        ("path", "array", [("_element", "struct", [("x", "double", [])])]),
        ("tags", "map", [("key", "string", []), ("value", "long", [])]),
    ]


def test_a_column_is_told_with_the_columns_that_it_is_made_of() -> None:
    origins = [ColumnOrigin(DatasetName("file", "/o"), "amount", "aggregation")]
    output = OutputFacts(DatasetName("file", "/t"), SinkChange(1, rows=2), made_of={"spent": origins})
    (told,) = event_of(TaskDatasets(outputs=[output]))["outputs"]
    (field,) = told["facets"]["columnLineage"]["fields"]["spent"]["inputFields"]
    assert (field["namespace"], field["name"], field["field"]) == ("file", "/o", "amount")
    (transformation,) = field["transformations"]
    assert (transformation["type"], transformation["subtype"]) == ("DIRECT", "AGGREGATION")


def test_a_table_that_a_rollback_empties_is_told_so() -> None:
    change = SinkChange(9, back_to=3)
    output = OutputFacts(DatasetName("file", "/t"), change, emptied=True)
    (told,) = event_of(TaskDatasets(outputs=[output]))["outputs"]
    assert told["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "TRUNCATE"
    assert "outputStatistics" not in told["outputFacets"], "a rollback writes no rows"


def test_what_cannot_be_looked_up_fails_no_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(provider, "is_enabled", lambda: True)

    def look_up() -> TaskDatasets:
        raise OSError("the store is away")

    assert provider.looked_up(look_up) is None
    assert "OpenLineage gets no datasets of this task: OSError" in caplog.text
    assert provider.describe(None) is None


def test_without_the_provider_nothing_is_looked_up_and_tasks_are_as_they_were() -> None:
    """In a process of its own, where OpenLineage cannot be imported."""
    program = """
import sys
sys.modules["openlineage"] = sys.modules["airflow.providers.openlineage.conf"] = None
from tidegate import Pipeline
from tidegate.dag.lineage import provider
from tidegate.dag.plugin import TidegatePlugin
from tidegate.dag.tasks.operators import TriggerOperator

task = TriggerOperator(task_id="trigger", pipeline=Pipeline("shop"), project=".")
ready = task.prepare_for_execution()
assert ready.params is task.params
assert provider.looked_up(lambda: 1 / 0) is None
assert ready.get_openlineage_facets_on_complete(None) is None
for listener in TidegatePlugin.listeners[1:]:
    listener.on_task_instance_success(task_instance=type("Instance", (), {"task": ready})())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
