"""Planted secrets: no page, no answer of the API and no documentation shows one, to anybody."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tests.kit.limits import Limits
from tests.kit.toy_world import ToyWorld
from tests.ui.known_dags import CANARY, set_aside
from tests.ui.routes import HOST, flat, path_of, routes
from tidegate.history.table import remember

QUERIES = {"/compare": "?before={0}&after={1}", "/rollback": "?to={0}"}


@dataclass(frozen=True)
class Earlier(Limits):
    """What an earlier version has kept in its plans, when it masked less."""

    def record(self) -> dict[str, Any]:
        conf = {"spark.hadoop.fs.azure.sas.box": CANARY, "spark.executorEnv.DB_PWD": CANARY}
        return {"num_retained": 1, "spark.conf": conf, "root": f"https://host/x?sig={CANARY}"}


def test_no_route_shows_a_secret(client: Any, tokens: dict[str, str], world: ToyWorld):
    earlier = replace(world, limits=Earlier())
    ids = [earlier.checkpoint(f"airflow:orders:secret {n}", rows=1) for n in range(2)]
    failed = earlier.trigger("airflow:orders:secret 2")
    earlier.coordinator().abort(failed, "JOB_FAILED", f"https://host/x?sig={CANARY} password={CANARY}")
    remember(world.ledger, {})
    set_aside(world, {"amount": [1]}, rules=["positive"])
    client.cookies.clear()
    client.cookies.set("_token", tokens["admin"])
    paths = {path_of(route) for route in flat(routes()) if "GET" in route.methods and "/static/" not in route.path}
    paths |= {path.replace("/checkpoints/1", f"/checkpoints/{id}") for path in paths for id in (*ids, failed)}
    answers = {}
    for path in paths:
        query = next((more.format(*ids) for end, more in QUERIES.items() if path.endswith(end)), "")
        answers[path] = client.get(path + query, headers=HOST)
    for path in ("/api/v2/dags/orders", "/api/v2/dags/orders/details", "/api/v2/dags/orders/tasks"):
        answers[path] = client.get(path, headers={"Authorization": f"Bearer {tokens['admin']}"})
        assert answers[path].status_code == 200
    assert [path for path, answer in answers.items() if CANARY in answer.text] == []
    assert "***" in answers["/tidegate/api/v1/dags/orders/configuration"].text
    assert "fs.azure.sas" in answers[f"/tidegate/api/v1/dags/orders/checkpoints/{ids[1]}"].text
