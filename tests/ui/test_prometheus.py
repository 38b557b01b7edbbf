"""What Prometheus scrapes. Who may is told by test_access.py, with all other routes."""

from __future__ import annotations

from typing import Any

from tests.kit.prometheus import parsed
from tests.kit.toy_world import ToyWorld
from tests.ui.known_dags import SIXTY, put_dag


def scraped(client: Any, token: str) -> dict[Any, float]:
    client.cookies.clear()
    answer = client.get("/tidegate/api/v1/metrics", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parsed(answer.text)


def test_a_script_with_a_token_gets_all_that_it_may_see(
    client: Any, tokens: dict[str, str], world: ToyWorld, monkeypatch
):
    of_orders = (("pipeline", "orders"),)
    before = scraped(client, tokens["viewer"])
    assert before["readable", of_orders] == 1
    assert ("numberOfCompletedCheckpoints", of_orders) in before
    from airflow.api_fastapi.app import get_auth_manager

    monkeypatch.setattr(type(get_auth_manager()), "get_authorized_dag_ids", lambda *_, **__: set())
    assert scraped(client, tokens["viewer"]) == {}


def test_one_that_is_damaged_says_so_and_hides_no_other(client: Any, tokens: dict[str, str], world: ToyWorld):
    put_dag(world.root, "sixty", SIXTY)
    id = world.checkpoint("airflow:orders:damaged", rows=1)
    plan = world.path(id, "plan.json")
    kept = plan.read_bytes()
    plan.write_text("{")
    try:
        told = scraped(client, tokens["viewer"])
        of_orders = (("pipeline", "orders"),)
        assert {name: value for (name, labels), value in told.items() if labels == of_orders} == {"readable": 0}
        assert told["readable", (("pipeline", "sixty"),)] == 1
    finally:
        plan.write_bytes(kept)
