"""What the API says of itself is so: each route's answer and its example are as its description has them, both ways."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.kit.api_answers import check_answer
from tests.kit.toy_world import ToyWorld
from tests.ui.known_dags import set_aside
from tests.ui.states import propose
from tidegate.lifecycle import savepoint

PATHS = {
    "me": "/me",
    "pipelines": "/pipelines",
    "overview": "/dags/orders/overview",
    "checkpoints": "/dags/orders/checkpoints?limit=3",
    "checkpoint": "/dags/orders/checkpoints/{last}",
    "manifest": "/dags/orders/checkpoints/{last}/manifest",
    "of_run": "/dags/orders/runs/shaped",
    "summary": "/dags/orders/summary",
    "configuration": "/dags/orders/configuration",
    "graph": "/dags/orders/graph",
    "plots": "/dags/orders/plots",
    "schemas": "/dags/orders/schemas",
    "compare": "/dags/orders/compare?before={first}&after={last}",
    "proposals": "/dags/orders/proposals",
    "proposal_report": "/dags/orders/proposals/shaped-1",
    "quarantine": "/dags/orders/quarantine",
    "quarantine_rows": "/dags/orders/quarantine/enough",
    "gate_trend": "/dags/orders/gates/enough",
    "measured": "/dags/orders/gates/enough/measured",
    "rollback": "/dags/orders/rollback?to={first}",
    "audit": "/dags/orders/audit",
}
ELSEWHERE = {"gate", "quarantined_by", "samples_of_part", "table_changes", "table_rows_as_of", "why"}
"""test_hostile.py has a pipeline with findings, test_table_samples.py one with tables, test_why_pages.py a question."""


@pytest.fixture(scope="module")
def ids(world: ToyWorld) -> dict[str, int]:
    """Two checkpoints, one of them with a name, and rows that wait."""
    first = world.checkpoint("airflow:orders:shaped", rows=3)
    last = world.checkpoint("airflow:orders:shaped too", rows=3)
    savepoint.create(world.ledger, "shaped", first, "mia", "for the description")
    set_aside(world, {"amount": [1]}, rules=["positive"])
    propose(world, "shaped-1")
    return {"first": first, "last": last}


def looks() -> dict[str, Any]:
    """The routes that answer with JSON, by the name of their function."""
    from tidegate.ui import api

    return {route.endpoint.__name__: route for route in api.router.routes if route.include_in_schema}


def test_every_route_is_held_against_its_description():
    assert set(looks()) == set(PATHS) | ELSEWHERE


@pytest.mark.parametrize("name", PATHS)
def test_a_route_answers_as_it_says(client: Any, tokens: dict[str, str], ids: dict[str, int], name: str):
    client.cookies.set("_token", tokens["op"])
    answer = client.get(f"/tidegate/api/v1{PATHS[name].format(**ids)}")
    assert answer.status_code == 200, answer.text
    check_answer(answer.content, looks()[name].answer)


@pytest.mark.parametrize("name", [*PATHS, *sorted(ELSEWHERE)])
def test_an_example_is_one(name: str):
    route = looks()[name]
    example = route.responses[200]["content"]["application/json"]["example"]
    assert msgspec.to_builtins(msgspec.convert(example, route.answer)) == example


def test_the_description_has_shapes_and_examples_of_all(client: Any, tokens: dict[str, str]):
    client.cookies.set("_token", tokens["viewer"])
    told = client.get("/tidegate/api/v1/openapi.json").json()
    for path, methods in told["paths"].items():
        for method, each in methods.items():
            (kind, content), *_ = each["responses"]["200"]["content"].items()
            if kind == "application/json":
                assert {"$ref", "type"} & set(content["schema"]), (method, path)
                assert method == "post" or content["example"], (method, path)
                assert "#/components/schemas/ErrorAnswer" in str(each["responses"]["404"]), (method, path)
