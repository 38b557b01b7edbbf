"""Other people's DAGs run when a table has changed, and only then: by a real scheduler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dags.project import MULTIPLIES, Made
from tests.dags.server import Airflow, Run
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Act
from tidegate.seams import new_id
from tidegate.versions.airflow import HAS_PARTITION_KEYS

pytestmark = in_turn(seconds=170)

READER = '''
"""Somebody else's DAG, which knows nothing of tidegate: it writes down why it was run."""
import json
from pathlib import Path

from airflow.sdk import DAG, Asset, task
{more}
with DAG({name!r}, schedule={schedule}, catchup=False) as dag:

    @task
    def note(triggering_asset_events=None, dag_run=None):
        told = [event.extra for events in triggering_asset_events.values() for event in events]
        key = getattr(dag_run, "partition_key", None)
        path = Path({folder!r}) / (dag_run.run_id.replace("/", "_") + ".json")
        text = json.dumps([extra | ({{"partition": key}} if key else {{}}) for extra in told])
        path.with_suffix(".tmp").write_text(text)
        path.with_suffix(".tmp").rename(path)

    note()
'''

HOURLY = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

pipeline = Pipeline("by_hour", interval="1 h")
rows = pipeline.source("rows", Files("by_hour/in/{start:%Y-%m-%dT%H}.json", schema="id long, file long"))
rows.sink("every", DeltaAppend("by_hour/every"))
dag = build_dag(pipeline, asset_partitions=True)
"""


class Reader:
    """A DAG of somebody else's."""

    def __init__(self, airflow: Airflow, name: str, schedule: str, more: str = "") -> None:
        self.name, self.airflow = name, airflow
        self.folder = airflow.home / f"told-{name}"
        self.folder.mkdir()
        text = READER.format(name=name, schedule=schedule, folder=str(self.folder), more=more)
        (airflow.project.dags / f"dag_{name}.py").write_text(text)
        airflow.known(name)

    def told(self, count: int) -> list[dict[str, Any]]:
        """What its runs were told, once it is so much, in the order of what they were told of. A scheduler that is
        late tells one run of several changes."""

        def extras() -> list[dict[str, Any]]:
            return [extra for path in self.folder.glob("*.json") for extra in json.loads(path.read_text())]

        eventually(f"{self.name} was told of {count} changes", lambda: len(extras()) >= count)
        return sorted(extras(), key=lambda extra: int(extra["checkpoint"]))


@pytest.fixture(scope="module")
def shop(airflow: Airflow) -> Made:
    made = airflow.project.pipeline("shop", stage=MULTIPLIES, interval="never")
    (made.folder / "factor").write_text("1")
    airflow.known("shop")
    return made


def request(airflow: Airflow, made: Made, dag_id: str, number: int, action: str, **asked: Any) -> Run:
    """A run that is to do what somebody has asked for on the page."""
    run_id = f"asked-{number}"
    act = Act(**stamp(new_id()), action=action, by="ann in Airflow", request=asked, run=f"airflow:{dag_id}:{run_id}")
    return airflow.trigger(dag_id, {"request": made.ledger.create_act(act)}, run_id)


def tidegate(made: Made, *arguments: str) -> None:
    command = [sys.executable, "-m", "tidegate", *arguments]
    done = subprocess.run(command, cwd=made.project.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_dag_runs_for_each_checkpoint_with_rows_and_for_what_changes_the_table_otherwise(
    airflow: Airflow, shop: Made
) -> None:
    reader = Reader(airflow, "report", f"[Asset('file://{shop.folder}/every')]")
    named = Reader(airflow, "by_name", "[asset('shop', 'every')]", "from tidegate.dag import asset")

    for _ in range(2):
        shop.feed()
        assert airflow.trigger("shop").ended() == "success"
    assert airflow.trigger("shop").ended() == "success", "a checkpoint without rows"
    shop.feed()
    assert airflow.trigger("shop").ended() == "success"
    assert shop.outcomes() == ["completed"] * 4
    for told in (reader.told(3), named.told(3)):
        assert [(extra["cause"], extra["checkpoint"], extra["rows"]) for extra in told] == [
            ("checkpoint", 1, Made.ROWS),
            ("checkpoint", 2, Made.ROWS),
            ("checkpoint", 4, Made.ROWS),
        ]
        assert [extra["version"] for extra in told] == sorted({extra["version"] for extra in told})
        assert {extra["table"] for extra in told} == {f"{shop.folder}/every"}

    back = request(airflow, shop, "shop", 1, "rollback", to=2, expected_undone=[4, 3], note="wrong prices")
    assert back.ended() == "success"
    told = reader.told(4)[-1]
    assert (told["cause"], told["checkpoint"], told["back_to"], told["reason"]) == ("rollback", 5, 2, "wrong prices")

    assert airflow.trigger("shop__backfill", {"from": "1", "name": "again"}).ended() == "success"
    assert len(reader.told(4)) == 4, "what is computed beside the pipeline changes no table"
    assert airflow.trigger("shop").ended() == "success", "the third file again"
    assert reader.told(5)[-1]["checkpoint"] == 6
    swap = request(airflow, shop, "shop__backfill", 2, "swap", name="again", note="prices")
    assert swap.ended() == "success", swap.log("swap")
    told = reader.told(6)[-1]
    assert (told["cause"], told["backfill"], told["back_to"], told["reason"]) == ("swap", "again", 1, "prices")
    assert len(named.told(6)) == 6
    shop.check(3)


def test_what_a_command_decides_is_told_at_once_and_once_even_if_the_dag_is_paused(airflow: Airflow) -> None:
    made = airflow.project.pipeline("by_command", interval="never")
    airflow.known("by_command")
    reader = Reader(airflow, "after_commands", f"[Asset('file://{made.folder}/latest')]")
    for _ in range(2):
        made.feed()
        assert airflow.trigger("by_command").ended() == "success"
    assert [extra["checkpoint"] for extra in reader.told(2)] == [1, 2]

    airflow.call("PATCH", "/dags/by_command", {"is_paused": True})
    target = f"dags.dag_{made.name}:pipeline"
    tidegate(made, "rollback", target, "--to", "1", "--yes", "--reason", "wrong prices")
    told = reader.told(3)[-1]
    assert (told["cause"], told["checkpoint"], told["back_to"], told["reason"]) == ("rollback", 3, 1, "wrong prices")
    tidegate(made, "run", target, "--checkpoints", "1")
    told = reader.told(4)[-1]
    assert (told["cause"], told["checkpoint"], told["rows"]) == ("checkpoint", 4, Made.ROWS)

    airflow.call("PATCH", "/dags/by_command", {"is_paused": False})
    made.feed()
    assert airflow.trigger("by_command").ended() == "success"
    told = reader.told(5)
    assert [(extra["cause"], extra["checkpoint"]) for extra in told[2:]] == [
        ("rollback", 3),
        ("checkpoint", 4),
        ("checkpoint", 5),
    ], "the run's own task has told nothing again"
    assert [made.ledger.announced(id).by for id in (3, 4)] == ["web server"] * 2  # type: ignore[union-attr]


def test_an_asset_that_another_dag_has_declared_by_another_name_is_told_and_holds_up_nobody(airflow: Airflow) -> None:
    folder = airflow.project.folder / "taken"
    reader = Reader(airflow, "declared_first", f"[Asset(name='sales', uri='file://{folder}/every')]")
    squatter = Reader(airflow, "same_name", "[Asset(name='taken/latest', uri='s3://elsewhere/latest')]")
    made = airflow.project.pipeline("taken", interval="never").feed()
    airflow.known("taken")
    assert airflow.trigger("taken").ended() == "success"
    assert [extra["checkpoint"] for extra in reader.told(1)] == [1]
    assert [extra["table"] for extra in squatter.told(1)] == [f"{made.folder}/latest"]


@pytest.mark.skipif(not HAS_PARTITION_KEYS, reason="this Airflow has no keys of partitions that a task can set")
def test_an_interval_is_a_partition_of_the_asset(airflow: Airflow) -> None:
    folder = airflow.project.folder / "by_hour"
    (airflow.project.dags / "dag_by_hour.py").write_text(HOURLY)
    airflow.known("by_hour")
    schedule = f"PartitionedAssetTimetable(assets=Asset('file://{folder}/every'))"
    reader = Reader(airflow, "partitioned", schedule, "from airflow.sdk import PartitionedAssetTimetable")
    hour(folder, 9, rows=2)
    ten = manual(airflow, 10)
    assert ten.ended() == "success"
    hour(folder, 10, rows=1)
    assert manual(airflow, 11).ended() == "success"
    hour(folder, 9, rows=0)
    ten.clear()
    assert ten.ended() == "success"
    told = reader.told(3)
    assert [(extra["partition"], extra["rows"]) for extra in told] == [
        ("2026-01-01T09:00:00", 2),
        ("2026-01-01T10:00:00", 1),
        ("2026-01-01T09:00:00", 0),
    ], "the last one has taken rows away"


def hour(folder: Path, number: int, rows: int) -> None:
    path = folder / "in" / f"2026-01-01T{number:02d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps({'id': number, 'file': n})}\n" for n in range(rows)))


def manual(airflow: Airflow, at: int) -> Run:
    """A run of the interval that ends at this hour."""
    body = {"logical_date": f"2026-01-01T{at:02d}:00:00Z", "conf": {}}
    return Run(airflow, "by_hour", airflow.call("POST", "/dags/by_hour/dagRuns", body)["dag_run_id"])
