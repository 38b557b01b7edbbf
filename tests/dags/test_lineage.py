"""OpenLineage's provider for Airflow tells a collector what each checkpoint has read and changed: a real Airflow."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import orders_feed
from tests.dags.collector import Collector, Event, problems
from tests.dags.project import MULTIPLIES, ODD_IS_BAD
from tests.dags.server import Airflow, Run
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Act
from tidegate.seams import new_id

pytestmark = in_turn(seconds=300)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as started:
        yield started


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Airflow]:
    """A real Airflow, whose provider waits for the collector for as long as it takes."""
    transport = {"type": "http", "url": collector.url, "timeout": 3600}
    settings = {"TRANSPORT": json.dumps(transport), "NAMESPACE": "here", "EXECUTION_TIMEOUT": "3600"}
    with Airflow(
        tmp_path_factory.mktemp("airflow"),
        **{f"AIRFLOW__OPENLINEAGE__{name}": text for name, text in settings.items()},
    ) as started:
        yield started


class ShopWithLineage:
    """A pipeline with a gate, and what is told of it."""

    def __init__(self, airflow: Airflow, collector: Collector, name: str) -> None:
        self.airflow, self.collector = airflow, collector
        self.made = airflow.project.pipeline(name, stage=MULTIPLIES, gate=ODD_IS_BAD, interval="never")
        (self.made.folder / "factor").write_text("1")
        self.policy("quarantine")
        airflow.known(name)
        self.requests = 0

    def policy(self, policy: str) -> None:
        """What the gate does with odd ids."""
        (self.made.folder / "policy").write_text(policy)

    def told(self, run: Run, task: str = "complete", tries: int = 1) -> Event:
        """How the end of a task was told."""
        return self.collector.end_of(f"{run.dag_id}.{task}", run.run_id, tries)

    def outputs(self, event: Event) -> dict[str, Any]:
        """What an event tells of each table."""
        folder = f"{self.made.folder}/"
        assert {dataset["namespace"] for dataset in event["outputs"]} <= {"file"}
        return {dataset["name"].removeprefix(folder): dataset for dataset in event["outputs"]}

    def request(self, dag_id: str, action: str, **asked: Any) -> Run:
        """A run that is to do what somebody has asked for on the page."""
        self.requests += 1
        run_id = f"asked-{self.requests}"
        by_run = f"airflow:{dag_id}:{run_id}"
        act = Act(**stamp(new_id()), action=action, by="ann in Airflow", request=asked, run=by_run)
        return self.airflow.trigger(dag_id, {"request": self.made.ledger.create_act(act)}, run_id)

    def tidegate(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tidegate", *arguments]
        folder = self.made.project.folder
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def change_of(output: Any) -> dict[str, Any]:
    """Why a table has changed, without the keys that every facet has."""
    facet = output["outputFacets"]["tidegate_change"]
    return {key: value for key, value in facet.items() if not key.startswith("_")}


def origins_of(output: Any) -> dict[str, list[tuple[str, str]]]:
    """By column, the columns of inputs that it is made of: each with the last part of its dataset's name, and how."""
    fields = output["facets"]["columnLineage"]["fields"]
    found: dict[str, list[tuple[str, str]]] = {}
    for column, lineage in fields.items():
        found[column] = []
        for origin in lineage["inputFields"]:
            (how,) = origin["transformations"]
            assert (origin["namespace"], how["type"]) == ("file", "DIRECT")
            found[column].append((f"{origin['name'].rpartition('/')[2]}.{origin['field']}", how["subtype"]))
    return found


def rules_of(event: Event) -> dict[str, tuple[bool, str | None]]:
    """The rules that an event tells of: whether they were kept, and how severe it is that they were not."""
    (source,) = event["inputs"]
    assertions = source["inputFacets"]["dataQualityAssertions"]["assertions"]
    return {rule["name"]: (rule["success"], rule.get("severity")) for rule in assertions}


def test_a_life_is_told_as_it_was(airflow: Airflow, collector: Collector) -> None:
    shop = ShopWithLineage(airflow, collector, "shop")
    made = shop.made

    # A checkpoint with rows, of which a gate quarantines some.
    made.feed()
    run = airflow.trigger("shop")
    assert run.ended() == "success"
    for task in ("trigger", "job_main", "gate_checked"):
        event = shop.told(run, task)
        assert (event["eventType"], event["outputs"]) == ("COMPLETE", []), "nothing counts yet"
        (source,) = event["inputs"]
        assert (source["namespace"], source["name"]) == ("file", f"{made.folder}/in")
        (read,) = source["inputFacets"]["tidegate_ranges"]["ranges"]
        assert (read["source"], read["empty"], read["upTo"]["after"]) == ("rows", False, "00001.json")
    completed = shop.told(run)
    (source,) = completed["inputs"]
    size = (made.folder / "in" / "00001.json").stat().st_size
    statistics = source["inputFacets"]["inputStatistics"]
    assert (statistics["size"], statistics["fileCount"]) == (size, 1)
    assert rules_of(completed) == {"checked": (False, "warn"), "even": (False, "warn")}
    told = shop.outputs(completed)
    assert set(told) == {"every", "latest"}
    for output in told.values():
        assert [(field["name"], field["type"]) for field in output["facets"]["schema"]["fields"]] == [
            ("id", "long"),
            ("file", "long"),
        ]
        assert origins_of(output) == {
            "id": [("in.id", "IDENTITY")],
            "file": [("in.file", "TRANSFORMATION")],
        }, "through a function of DataFrames, as Spark's plan tells it"
        assert output["facets"]["version"]["datasetVersion"] == "0"
        assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2
        assert output["outputFacets"]["outputStatistics"]["size"] > 0
        assert change_of(output) == {"cause": "checkpoint", "checkpoint": 1, "rows": 2}

    # The same task once more tells the same.
    run.clear("complete")
    assert run.ended() == "success"
    again = shop.told(run, tries=2)
    assert (again["inputs"], again["outputs"]) == (completed["inputs"], completed["outputs"])
    assert again["run"]["facets"]["tidegate_checkpoint"] == completed["run"]["facets"]["tidegate_checkpoint"]

    # Without input.
    run = airflow.trigger("shop")
    assert run.ended() == "success"
    event = shop.told(run)
    assert event["run"]["facets"]["tidegate_checkpoint"]["state"] == "completed"
    assert event["outputs"] == []
    assert event["inputs"][0]["inputFacets"]["tidegate_ranges"]["ranges"][0]["empty"] is True

    # A gate stops it: no table has changed.
    shop.policy("abort")
    made.feed()
    run = airflow.trigger("shop")
    assert run.ended() == "failed"
    event = shop.told(run)
    assert (event["eventType"], event["outputs"]) == ("FAIL", [])
    facet = event["run"]["facets"]["tidegate_checkpoint"]
    assert (facet["checkpoint"], facet["state"], facet["reason"]) == (3, "aborted", "GATE_FAILED")
    assert rules_of(event) == {"checked": (False, "error"), "even": (False, "error")}
    assert rules_of(shop.told(run, "gate_checked")) == rules_of(event)

    # A person lets it pass.
    shop.policy("hold")
    run = airflow.trigger("shop")
    run.until("gate_checked", "deferred", "awaiting_input")
    shop.tidegate("approve", "shop", "4")
    assert run.ended() == "success"
    event = shop.told(run)
    assert rules_of(event) == {"checked": (False, "error"), "even": (False, "error")}
    assert change_of(shop.outputs(event)["every"]) == {"cause": "checkpoint", "checkpoint": 4, "rows": 4}

    # Quarantined rows are released, without new input.
    shop.policy("quarantine")
    shop.tidegate("quarantine", "release", "dags.dag_shop:pipeline", "checked", "--all", "--yes")
    run = airflow.trigger("shop")
    assert run.ended() == "success"
    change = change_of(shop.outputs(shop.told(run))["every"])
    assert change == {"cause": "release", "checkpoint": 5, "rows": 2, "released": 2}

    # Back, which reads nothing.
    run = shop.request("shop", "rollback", to=4, expected_undone=[5], note="too early")
    assert run.ended() == "success"
    event = shop.told(run)
    assert event["inputs"] == []
    told = shop.outputs(event)
    assert set(told) == {"every", "latest"}
    assert change_of(told["every"]) == {
        "cause": "rollback",
        "checkpoint": 6,
        "rows": 0,
        "backTo": 4,
        "reason": "too early",
    }
    assert told["every"]["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "OVERWRITE"
    assert int(told["every"]["facets"]["version"]["datasetVersion"]) == 3

    # What was computed again is swapped in.
    assert airflow.trigger("shop__backfill", {"from": "4", "name": "again"}).ended() == "success"
    made.feed()
    assert airflow.trigger("shop").ended() == "success"
    run = shop.request("shop__backfill", "swap", name="again", note="new prices")
    assert run.ended() == "success", run.log("swap")
    told = shop.outputs(shop.told(run, "swap"))
    change = change_of(told["every"])
    assert (change["cause"], change["backTo"], change["backfill"]) == ("swap", 4, "again")

    ours = [event for event in collector.events if event["job"]["name"].startswith("shop")]
    assert {wrong for event in ours for wrong in problems(event)} == set()


def test_each_column_of_the_shipped_example_is_told_with_the_columns_that_it_comes_from(
    airflow: Airflow, collector: Collector
) -> None:
    folder = airflow.project.folder
    for name in ("jobs", "include/expectations"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = folder / "jobs" / "orders.py"
    code.write_text(code.read_text().replace('interval="1 min"', 'interval="never"'))
    orders_feed.feed(folder, files=2, rows=50)
    shutil.copy(ROOT / "dags" / "orders.py", airflow.project.dags / "orders.py")
    airflow.known("orders")
    run = airflow.trigger("orders")
    assert run.ended() == "success"
    event = collector.end_of("orders.complete", run.run_id)
    assert problems(event) == []
    assert {dataset["name"].rpartition("/")[2] for dataset in event["inputs"]} == {"orders", "payments"}
    (totals,) = (dataset for dataset in event["outputs"] if dataset["name"] == f"{folder}/tables/totals")
    assert origins_of(totals) == {
        "customer_id": [("orders.customer_id", "IDENTITY")],
        "spent": [("orders.amount", "AGGREGATION")],
        "last": [("payments.at", "AGGREGATION")],
    }


def test_a_collector_that_does_not_answer_holds_up_no_checkpoint(airflow: Airflow, collector: Collector) -> None:
    shop = ShopWithLineage(airflow, collector, "patient")
    shop.made.feed()

    def told() -> list[str]:
        names = [event["job"]["name"] for event in collector.events]
        return [name for name in names if name.startswith("patient")]

    collector.answers.clear()
    try:
        assert airflow.trigger("patient").ended() == "success"
        eventually("somebody is kept waiting", collector.kept_waiting.is_set)
        assert not told()
        assert shop.made.published == [1]
    finally:
        collector.answers.set()
    eventually("what waited is told", told)
