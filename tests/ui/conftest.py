"""Airflow's web app inside this process, with one pipeline whose ledger is made by hand: no scheduler, no Spark."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.dags import conftest as dags  # sets Airflow's environment before anything imports Airflow
from tests.dags.server import migrate
from tests.kit.toy_world import ToyWorld
from tests.kit.waiting import eventually
from tests.ui.airflow_with_roles import ROLES
from tests.ui.browser import Browser, Page
from tests.ui.known_dags import put_dag
from tests.ui.rights import PEOPLE, right_asked_for

IN_TIME = (
    "tidegate.ui.api.BUDGET_S",
    "tidegate.ui.app.BUDGET_S",
    "tidegate.ui.rows.origins.MAX_SEARCH_S",
    "tidegate.ui.rows.table_samples._MAX_READ_S",
)
"""How long a request looks, of which it then shows what it has found. Here it shows all, however busy the machine."""


@pytest.fixture(scope="session")
def app() -> Iterator[Any]:
    os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] = ",".join(f"{role}:{role}" for role in ROLES)
    dags.HOME.mkdir(parents=True, exist_ok=True)
    migrate(dict(os.environ))
    from airflow.api_fastapi.app import create_app

    made = create_app()
    with pytest.MonkeyPatch.context() as patch:
        for limit in IN_TIME:
            patch.setattr(limit, 600.0)
        yield made


@pytest.fixture(scope="session")
def world(app: Any, tmp_path_factory: pytest.TempPathFactory) -> ToyWorld:
    """Pipeline `orders`, with a DAG that Airflow knows, and no checkpoint yet. It takes all its input, so
    that it is never behind because of what another test has fed."""
    root = tmp_path_factory.mktemp("root")
    put_dag(root)
    return ToyWorld(root, bound=100_000)


@pytest.fixture(scope="session")
def client(app: Any, world: ToyWorld) -> Any:
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


@pytest.fixture
def be(client: Any, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Become somebody."""
    from airflow.api_fastapi.app import get_auth_manager

    manager = type(get_auth_manager())

    def become(person: str) -> None:
        has = PEOPLE[person]

        def is_authorized_dag(self: Any, *, method: str, details: Any = None, access_entity: Any = None, **_: Any):
            return right_asked_for(method, access_entity, details.id if details is not None else None) in has

        monkeypatch.setattr(manager, "is_authorized_dag", is_authorized_dag)
        monkeypatch.setattr(
            manager, "get_authorized_dag_ids", lambda *_, **__: {"orders", "quotes"} if "see" in has else {"another"}
        )
        client.cookies.clear()
        client.cookies.set("_token", tokens["viewer"])

    yield become
    client.cookies.clear()


@pytest.fixture(scope="session")
def served(app: Any, world: ToyWorld, tokens: dict[str, str]) -> Iterator[str]:
    """The web app on a port of this machine. Airflow makes the secret of its tokens with the first one of them."""
    import uvicorn

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually("the web app answers", lambda: server.started)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser, served: str, tokens: dict[str, str]) -> Iterator[Page]:
    """A tab of an admin, at no page yet."""
    opened = browser.page()
    opened.cookie(served, "_token", tokens["admin"])
    yield opened
    opened.close()
