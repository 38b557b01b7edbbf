"""Which code has made a checkpoint: our fingerprint of it, and beside it the DAG's version in Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.simulation.toy_backfill import Endless
from tests.ui.known_dags import put_dag

VERSIONED = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("versioned", interval="never", root={root!r}, data={root!r})
pipeline.source("in", Generator(rows=2)).sink("a", DeltaAppend("a"))
dag = build_dag(pipeline, project={root!r})
"""


def test_a_checkpoint_names_its_code_and_its_dags_version(client: Any, tokens: dict[str, str], tmp_path: Path) -> None:
    put_dag(tmp_path, "versioned", VERSIONED)
    world = Endless(tmp_path)
    world.name = "versioned"
    headers = {"Authorization": f"Bearer {tokens['admin']}"}
    asked = client.post("/api/v2/dags/versioned/dagRuns", json={"logical_date": None}, headers=headers).json()
    by_airflow = world.checkpoint(f"airflow:versioned:{asked['dag_run_id']}")
    by_a_run_of_old = world.checkpoint("airflow:versioned:deleted in Airflow")

    def of(id: int) -> Any:
        return client.get(f"/tidegate/api/v1/dags/versioned/checkpoints/{id}", headers=headers).json()

    assert of(by_airflow)["run_id"] == asked["dag_run_id"]
    assert of(by_airflow)["dag_version"] == asked["dag_versions"][0]["version_number"]
    assert of(by_airflow)["details"]["code_fingerprint"]
    assert of(by_a_run_of_old)["dag_version"] is None
