"""Every GET route of the pages and the API, asked by each kind of person, in Airflow's web app inside this process."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec

from tests.dags import conftest as dags  # sets Airflow's environment before anything imports Airflow
from tests.dags.server import migrate
from tests.kit.api_answers import check_answer
from tests.kit.prometheus import parsed
from tests.ui.known_dags import put_dag
from tests.ui.rights import PEOPLE, needs, right_asked_for
from tests.ui.routes import HOST, flat, routes
from tests.views.shops import CANARY, DAG, Shops

__all__ = ["Web"]

VALUES = {
    "gate": ("checked", "sizes", "sales-refused"),
    "sink": ("sales", "totals", "rows"),
    "part": ("sales", "totals", "checked", "rows"),
    "run_id:path": ("manual__x",),
    "run_id": ("manual__x",),
    "version": ("1",),
    "name": ("app.js",),
}


class Web:
    """Airflow's web app, and its users."""

    def __init__(self) -> None:
        os.environ |= {
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "viewer:viewer",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        }
        dags.HOME.mkdir(parents=True, exist_ok=True)
        migrate(dict(os.environ))
        from airflow.api_fastapi.app import create_app, get_auth_manager
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
        from starlette.testclient import TestClient

        self.client = TestClient(create_app(), raise_server_exceptions=False)
        self.manager = type(get_auth_manager())
        self.token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="viewer", role="VIEWER"))
        self.routes = [each for each in flat(routes()) if "GET" in each.methods and "/static/" not in each.path]
        self.asked = 0
        self.answered: Counter[int] = Counter()

    def knows(self, shops: Shops) -> None:
        """Its DAGs, as Airflow's DAG processor would have read them now."""
        for name in ("orders", "other", "daily"):
            put_dag(shops.folder, name, DAG.replace("PIPELINE", name))

    def pause(self) -> None:
        """Pause the DAG, or let it continue."""
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session

        with create_session() as session:
            dag = session.get(DagModel, "orders")
            assert dag is not None
            dag.is_paused = not dag.is_paused

    @contextlib.contextmanager
    def as_person(self, person: str) -> Iterator[None]:
        has = PEOPLE[person]

        def is_authorized(
            manager: Any, *, method: str, details: Any = None, access_entity: Any = None, **_: Any
        ) -> bool:
            return right_asked_for(method, access_entity, details.id if details is not None else None) in has

        seen = {"orders", "other", "daily"} if "see" in has else {"another"}
        with (
            mock.patch.object(self.manager, "is_authorized_dag", is_authorized),
            mock.patch.object(self.manager, "get_authorized_dag_ids", return_value=seen),
        ):
            self.client.cookies.clear()
            self.client.cookies.set("_token", self.token)
            yield

    def look(self, ids: dict[str, list[int]], people: list[str], dice: random.Random) -> list[str]:
        """What is wrong with any answer about these pipelines and their checkpoints."""
        wrong: list[str] = []
        for person in people:
            with self.as_person(person):
                for route in self.routes:
                    for name in ids if "{dag_id}" in route.path else ["orders"]:
                        for path in _paths(route.path.replace("{dag_id}", name), ids[name], dice):
                            wrong += self._one(route, path, person)
        return wrong

    def _one(self, route: Any, path: str, person: str) -> Iterator[str]:
        self.asked += 1
        answer = self.client.get(f"/tidegate{path}", headers=HOST)
        self.answered[answer.status_code] += 1
        text, may = answer.text, needs(route) <= PEOPLE[person] and "see" in PEOPLE[person]
        if answer.status_code >= 500 and not (answer.status_code == 503 and "help" in text):
            yield f"GET {path} as {person}: {answer.status_code}: {text[:400]}"
        if answer.status_code == 200 and not may and "{dag_id}" in route.path and needs(route):
            yield f"GET {path} as {person}: is let in"
        if CANARY in text and "values" not in PEOPLE[person]:
            place = text.index(CANARY)
            yield f"GET {path} as {person}: quotes a row: …{text[max(0, place - 200) : place + 60]}"
        if answer.status_code != 200:
            return
        if path.endswith("/metrics"):
            try:
                parsed(text)
            except AssertionError as error:
                yield f"GET {path} as {person}: is no Prometheus text: {error}"
        if route.include_in_schema and hasattr(route, "answer"):
            try:
                check_answer(answer.content, route.answer)
            except (AssertionError, msgspec.MsgspecError) as error:
                yield f"GET {path} as {person}: is not as described: {str(error)[:600]}"

    def states(self) -> dict[str, str]:
        """What the list of pipelines says of each, to somebody who may see all."""
        with self.as_person("User"):
            found = self.client.get("/tidegate/api/v1/pipelines", headers=HOST).json()
        return {each["pipeline"]: each["state"] for each in found["pipelines"] if each["state"]}


def _paths(path: str, ids: list[int], dice: random.Random) -> list[str]:
    """A route's paths: of every checkpoint, if it is about one."""
    found = [path.replace("{id}", str(id)) for id in (ids if "{id}" in path else [0])]
    for name, values in VALUES.items():
        found = list(dict.fromkeys(each.replace(f"{{{name}}}", value) for each in found for value in values))
    if "/compare" in path and ids:
        found = [f"{path}?before={dice.choice(ids)}&after={dice.choice(ids)}"]
    if path.endswith("/rollback") and ids:
        found = [f"{path}?to={dice.choice(ids)}"]
    if path.endswith("/checkpoints"):
        found += [f"{path}?sort=seconds", f"{path}?text={CANARY[:4]}", f"{path}?state=completed"]
    return found
