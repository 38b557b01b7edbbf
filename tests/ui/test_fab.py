"""The table of test_rights.py once more, with real users and roles of Airflow's FAB auth manager.

It needs the package apache-airflow-providers-fab, which is not among those of this project. So it is played beside a
copy of them, and skipped elsewhere:

    uv venv --python .venv/bin/python /tmp/fab
    uv pip freeze --python .venv/bin/python | grep -v tidegate > /tmp/fab/these
    uv pip install --python /tmp/fab/bin/python -c /tmp/fab/these -r /tmp/fab/these apache-airflow-providers-fab
    PYTHONPATH=$PWD/include:$PWD /tmp/fab/bin/python -m pytest tests/ui/test_fab.py
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ui.rights import LOOKS, OURS, QUESTION, needs

ALL = LOOKS | {"values", "trigger", "edit", "answer", "backfill"}
READS = [("can_read", "DAGs"), ("can_read", "DAG Runs"), ("can_read", "Website")]
ROLES: dict[str, tuple[list[tuple[str, str]], set[str]]] = {
    "a stranger": ([("can_read", "Website")], set()),
    "only another DAG": ([("can_read", "DAG:another"), ("can_read", "DAG Runs"), ("can_read", "XComs")], set()),
    "only this DAG": (
        [
            ("can_read", "DAG:orders"),
            ("can_edit", "DAG:orders"),
            ("can_read", "DAG Runs"),
            ("can_create", "DAG Runs"),
            ("can_read", "XComs"),
            ("can_edit", "HITL Detail"),
        ],
        ALL - {"backfill"},
    ),
    "no XCom": ([*READS, ("can_edit", "DAGs"), ("can_create", "DAG Runs"), ("can_edit", "HITL Detail")],
                ALL - {"values"}),
    "no runs": ([("can_read", "DAGs"), ("can_edit", "DAGs"), ("can_read", "XComs")], {"see", "values", "edit"}),
    "trigger only": ([*READS, ("can_create", "DAG Runs")], LOOKS),
    "edit only": ([*READS, ("can_edit", "DAGs")], LOOKS | {"edit"}),
    "answers": ([*READS, ("can_edit", "DAGs"), ("can_edit", "HITL Detail")], LOOKS | {"edit", "answer"}),
    "Viewer": ([], LOOKS | {"values"}),
    "User": ([], ALL),
    "Op": ([], ALL),
    "Admin": ([], ALL),
}  # fmt: skip
"""By role its permissions, and what they come to here. FAB lets nobody trigger or answer who may not edit the DAG."""


@pytest.mark.skipif(importlib.util.find_spec("airflow.providers.fab") is None, reason="FAB is not installed here")
def test_everybody_gets_what_the_table_says_also_from_fab(tmp_path: Path) -> None:
    env = os.environ | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__AUTH_MANAGER": "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(Path(__file__).resolve().parents[2] / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__FAB__UPDATE_FAB_PERMS": "True",
    }
    for words in (["-m", "airflow", "db", "migrate"], ["-m", "tests.ui.test_fab", str(tmp_path)]):
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def play(folder: Path) -> list[str]:
    """Every route as everybody; answers with what is not as the table says."""
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from starlette.testclient import TestClient

    from tests.kit.toy_world import ToyWorld
    from tests.ui.known_dags import put_dag
    from tests.ui.routes import HOST, flat, path_of, routes

    client = TestClient(create_app())
    root = folder / "root"
    root.mkdir()
    put_dag(root)
    ToyWorld(root).checkpoint("airflow:orders:fab", rows=3)
    tokens, wrong = tokens_by_role(get_auth_manager()), []
    for role, (_, has) in ROLES.items():
        client.cookies.clear()
        client.cookies.set("_token", tokens[role])
        for route in flat(routes()):
            for method in route.methods & {"GET", "POST"}:
                body = {"unknown": True} if method == "POST" else None
                answer = client.request(method, path_of(route), headers=HOST | OURS, json=body)
                allowed = answer.status_code not in (401, 403, 405, 500)
                if allowed is not (needs(route) <= has):
                    wrong.append(f"{method} {route.path} as {role}: {answer.status_code} {answer.text[:200]}")
        question = client.patch(QUESTION.format(dag_id="orders"), headers=HOST | OURS, json={"chosen_options": ["Yes"]})
        if question.status_code != (404 if "answer" in has else 403):
            wrong.append(f"Airflow's own question as {role}: {question.status_code}")
        for route in flat(routes()):
            for method in (
                route.methods & {"GET", "POST"} if role == "only this DAG" and "{dag_id}" in route.path else ()
            ):
                other = client.request(
                    method, path_of(route).replace("/orders", "/another"), headers=HOST | OURS, json={}
                )
                if other.status_code != 403:
                    wrong.append(f"{method} {route.path} of another DAG as {role}: {other.status_code}")
        listed = [row["dag"] for row in client.get("/tidegate/api/v1/pipelines", headers=HOST).json()["pipelines"]]
        if ("orders" in listed) is not (has >= LOOKS):
            wrong.append(f"the list as {role}: {listed}")
    return wrong


def tokens_by_role(manager: Any) -> dict[str, str]:
    """A user of each role, and the token of each."""
    tokens = {}
    with manager.flask_app.app_context():
        security = manager.security_manager
        security.bulk_sync_roles([{"role": role, "perms": perms} for role, (perms, _) in ROLES.items() if perms])
        for number, role in enumerate(ROLES):
            found = security.find_role(role)
            user = security.add_user(f"user{number}", "A", "B", f"user{number}@airflow.test", found, password="secret")
            assert user, role
            tokens[role] = manager.generate_jwt(user)
    return tokens


if __name__ == "__main__":
    found = play(Path(sys.argv[1]))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
