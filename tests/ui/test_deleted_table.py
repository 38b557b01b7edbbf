"""A rollback on the pages: to a table that somebody has deleted, and what becomes of the run that does one."""

from __future__ import annotations

import shutil
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.toy_world import ToyWorld
from tests.ui.known_dags import put_dag, put_table
from tests.ui.rights import OURS
from tests.ui.routes import HOST

DAG = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("deleted", interval="never", root={root!r}, data={root!r})
rows = pipeline.source("in", Generator(rows=3))
rows.sink("a", DeltaAppend("a"))
rows.sink("b", DeltaAppend("b"))
dag = build_dag(pipeline, project={root!r})
"""
API = "/tidegate/api/v1/dags/deleted"


@pytest.fixture(scope="module")
def deleted(app: Any, tmp_path_factory: pytest.TempPathFactory) -> ToyWorld:
    root = tmp_path_factory.mktemp("deleted")
    put_dag(root, "deleted", DAG)
    made = ToyWorld(root)
    made.name = "deleted"
    return made


@pytest.fixture
def admin(client: Any, tokens: dict[str, str]) -> Any:
    client.cookies.clear()
    client.cookies.set("_token", tokens["admin"])
    yield client
    client.cookies.clear()


def test_a_way_back_to_a_table_that_somebody_has_deleted_is_refused_with_what_helps(
    admin: Any, deleted: ToyWorld, tmp_path: Any
):
    from deltalake import write_deltalake

    id = deleted.checkpoint("airflow:deleted:one", rows=1)
    write_deltalake(str(tmp_path / "a"), pa.table({"id": [1]}))
    put_table(deleted, id, "a", tmp_path / "a", 0)
    look = f"{API}/rollback?to={id}"
    assert admin.get(look, headers=HOST).json()["tables"]["a"]["uri"] == str(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    body = {"to": id, "expected_undone": [], "preview": True}
    asked = admin.post(f"{API}/actions/rollback", headers=HOST | OURS, json=body)
    for answer in (admin.get(look, headers=HOST), asked):
        assert answer.status_code == 409
        error = answer.json()["error"]
        assert error["reason"] == "TABLE_GONE"
        assert f"--to {id} --leave a" in error["help"]
        assert "VACUUM" not in answer.text


@pytest.mark.parametrize(
    ("state", "done", "told"),
    [("queued", None, "not begun"), ("running", None, "is running"), ("failed", False, "failed")],
)
def test_an_action_is_done_when_the_run_is_that_does_it(
    admin: Any, deleted: ToyWorld, state: str, done: bool | None, told: str
):
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    id = deleted.checkpoint(f"airflow:deleted:before {state}", rows=1)
    made = admin.post(
        f"{API}/actions/rollback", headers=HOST | OURS, json={"to": id, "expected_undone": [], "note": state}
    ).json()
    for end, is_done in ((state, done), ("success", True)):
        with create_session() as session:
            session.query(DagRun).filter_by(dag_id="deleted", run_id=made["run_id"]).one().state = end
        newest = admin.get(f"{API}/audit", headers=HOST).json()["actions"][0]
        assert newest["request"]["note"] == state
        assert newest["succeeded"] is is_done
        assert end == "success" or told in newest["message"]
