"""Airflow's web app inside this process, with one pipeline whose ledger is made by hand: no scheduler, no Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.dags import conftest as dags  # sets Airflow's environment before anything imports Airflow
from tests.dags.server import migrate
from tests.unit.checkpoint.kit import World

ROLES = ("viewer", "user", "op", "admin")
DAG_FILE = """
from pathlib import Path
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.gates import Volume
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("orders", interval="never", root={root!r}, data={root!r})
rows = pipeline.source("in", Generator(rows=3))
rows.gate(Volume(least=1), name="enough").sink("a", DeltaAppend("a"))
dag = build_dag(pipeline, project={root!r})
"""


@pytest.fixture(scope="session")
def app() -> Any:
    os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] = ",".join(f"{role}:{role}" for role in ROLES)
    dags.HOME.mkdir(parents=True, exist_ok=True)
    migrate(dict(os.environ))
    from airflow.api_fastapi.app import create_app

    return create_app()


@pytest.fixture(scope="session")
def world(app: Any, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Pipeline `orders`, with a DAG that Airflow knows, and no checkpoint yet."""
    root = tmp_path_factory.mktemp("root")
    put_dag(root)
    return World(root)


def put_dag(root: Path) -> None:
    """Have Airflow know the DAG, as its DAG processor does."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session

    found: dict[str, Any] = {}
    file = root / "dags" / "orders_dag.py"
    file.parent.mkdir()
    file.write_text(DAG_FILE.format(root=str(root)))
    exec(compile(file.read_text(), str(file), "exec"), found)
    lazy = LazyDeserializedDAG.from_dag(found["dag"])
    with create_session() as session:
        DagBundlesManager().sync_bundles_to_db(session=session)
        session.commit()
        SerializedDAG.bulk_write_to_db("dags-folder", None, [lazy], session=session)
        session.commit()
        SerializedDagModel.write_dag(lazy, bundle_name="dags-folder", session=session)


@pytest.fixture(scope="session")
def client(app: Any, world: World) -> Any:
    """Talks to the whole web app, as nobody."""
    from starlette.testclient import TestClient

    return TestClient(app)


@pytest.fixture(scope="session")
def tokens(app: Any) -> dict[str, str]:
    """A token for a user of each role."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    return {
        role: get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=role, role=role.upper())) for role in ROLES
    }
