"""What Airflow answers who asks for its own backfill of a continuous pipeline: if it cannot begin, it is refused before
Airflow has made a run, with what to do; everything else is Airflow's business."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tests.simulation.toy_backfill import Endless
from tests.ui.known_dags import put_dag
from tidegate.backfill import begin

PIPELINE = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files, Generator

pipeline = Pipeline("{name}", interval="1 min", root={root!r}, data={root!r})
pipeline.source("in", {source}).sink("a", DeltaAppend("a"))
dag = build_dag(pipeline, project={root!r})
"""
OTHER = "from airflow.sdk import DAG\ndag = DAG({name!r}, schedule={schedule!r})\n"
WHATEVER_IS_NEW = "Generator(rows=2)"
BY_INTERVAL = 'Files("in/{{start:%Y}}.json", schema="id long")'
ALL = '{{"from": "beginning"}}'


class Asked:
    """Somebody who asks Airflow for a backfill of a DAG."""

    def __init__(self, client: Any, tokens: dict[str, str], folder: Path, name: str) -> None:
        self.client, self.folder, self.name = client, folder, name
        self.token = tokens["admin"]

    def known(self, source: str = WHATEVER_IS_NEW, *, backfills: bool = True) -> ToyWorld:
        """Let Airflow know the pipeline, and its DAG for backfills."""
        put_dag(self.folder, self.name, PIPELINE.replace("{name}", self.name).replace("{source}", source))
        if backfills:
            put_dag(self.folder, f"{self.name}__backfill", OTHER.format(name=f"{self.name}__backfill", schedule=None))
        world = Endless(self.folder)
        world.name = self.name
        return world

    def backfill(self, conf: dict[str, Any] | None = None) -> tuple[int, str]:
        """Four minutes of an hour ago; what Airflow answers."""
        now = datetime.now(UTC).replace(second=0, microsecond=0)
        body = {
            "dag_id": self.name,
            "from_date": (now - timedelta(hours=1)).isoformat(),
            "to_date": (now - timedelta(minutes=57)).isoformat(),
            "dag_run_conf": conf or {},
            "reprocess_behavior": "completed",
        }
        answer = self.client.post(
            "/api/v2/backfills", json=body, headers={"Authorization": f"Bearer {self.token}", "Origin": "http://x"}
        )
        return answer.status_code, answer.text

    def made(self) -> tuple[int, int]:
        """How many backfills Airflow has, and how many runs."""
        headers = {"Authorization": f"Bearer {self.token}"}
        backfills = self.client.get(f"/api/v2/backfills?dag_id={self.name}", headers=headers).json()
        runs = self.client.get(f"/api/v2/dags/{self.name}/dagRuns", headers=headers).json()
        return backfills["total_entries"], runs["total_entries"]


@pytest.fixture
def asked(client: Any, tokens: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> Asked:
    name = request.node.name.removeprefix("test_")[:40].strip("_")
    return Asked(client, tokens, tmp_path, name)


def retired(world: ToyWorld) -> None:
    world.limit(num_retained=2)
    for n in range(4):
        world.checkpoint(f"run{n}", rows=1)
        world.coordinator().retire()
    assert world.ledger.ids() == [3, 4]


def test_where_history_is_gone_the_nearest_start_is_told_and_no_run_is_made(asked: Asked) -> None:
    retired(asked.known())
    status, text = asked.backfill()
    assert status == 422
    assert "has no checkpoint from before" in text
    assert "begin Airflow's backfill at" in text
    assert "retain_per_day" in text
    assert asked.made() == (0, 0)
    assert asked.backfill({"from": "no-such-savepoint"})[0] == 422
    assert asked.made() == (0, 0)


def test_from_the_beginning_it_begins_whatever_is_retained(asked: Asked) -> None:
    retired(asked.known())
    assert asked.backfill({"from": "beginning"})[0] == 200
    assert asked.made() == (1, 4)


def test_before_the_first_checkpoint_it_begins_as_long_as_that_is_retained(asked: Asked) -> None:
    asked.known().checkpoint("first", rows=1)
    assert asked.backfill()[0] == 200
    assert asked.made() == (1, 4)


def test_beside_another_backfill_it_is_refused_with_that_ones_name(asked: Asked) -> None:
    world = asked.known()
    world.checkpoint("first", rows=1)
    begin(world.coordinator(), "new-prices", 0, by="ann")
    status, text = asked.backfill()
    assert status == 422
    assert "has a backfill already: new-prices" in text
    assert asked.made() == (0, 0)


def test_without_a_dag_that_computes_it_is_refused(asked: Asked) -> None:
    asked.known(backfills=False).checkpoint("first", rows=1)
    status, text = asked.backfill()
    assert status == 422
    assert f"Airflow has no DAG {asked.name}__backfill" in text
    assert asked.made() == (0, 0)


def test_a_pipeline_by_interval_is_backfilled_by_airflow_as_ever(asked: Asked) -> None:
    asked.known(BY_INTERVAL, backfills=False)
    assert asked.backfill()[0] == 200


def test_a_dag_of_somebody_else_is_none_of_our_business(asked: Asked) -> None:
    put_dag(asked.folder, asked.name, OTHER.format(name=asked.name, schedule="* * * * *"))
    assert asked.backfill()[0] == 200


def test_if_the_ledger_cannot_be_read_the_runs_will_tell(asked: Asked) -> None:
    world = asked.known()
    world.checkpoint("first", rows=1)
    shutil.rmtree(world.ledger.home)
    Path(world.ledger.home).write_text("no folder")
    assert asked.backfill()[0] == 200
