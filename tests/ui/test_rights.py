"""Who may do what: every route as everybody, against one table that a person can read.

The roles of Airflow's Simple auth manager are coarse. Finer ones, as FAB and others have them, are made here by what
Airflow's auth manager says to each question that is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.ui.rights import ACTS, LOOKS, OURS, PEOPLE, QUESTION, needs
from tests.ui.routes import HOST, flat, path_of, routes


def test_the_table_knows_every_action():
    acts = {route.path.rpartition("/")[2] for route in flat(routes()) if "/actions/" in route.path}
    assert acts == set(ACTS)


@pytest.mark.parametrize("person", PEOPLE)
def test_everybody_gets_what_the_table_says_and_nothing_else(client: Any, be: Callable[[str], None], person: str):
    be(person)
    for route in flat(routes()):
        for method in route.methods & {"GET", "POST"}:
            body = {"unknown": True} if method == "POST" else None  # allowed, and refused before it does anything
            status = client.request(method, path_of(route), headers=HOST | OURS, json=body).status_code
            told = f"{method} {route.path} as {person}: {status}"
            if needs(route) <= PEOPLE[person]:
                assert status not in (401, 403, 405, 500), told
            else:
                assert status == 403, told


@pytest.mark.parametrize("person", PEOPLE)
def test_who_may_answer_a_gate_on_the_page_may_answer_it_in_airflow_and_nobody_else(
    client: Any, be: Callable[[str], None], person: str
):
    """So the task need not ask again who has answered: it could not, without Airflow's database."""
    be(person)
    answer = {"chosen_options": ["Approve"]}
    there = client.patch(QUESTION.format(dag_id="orders"), headers=HOST | OURS, json=answer).status_code
    assert there == (404 if ACTS["approve"] <= PEOPLE[person] else 403), "404: nothing is held"
    for action in ("approve", "reject"):
        here = client.post(f"/tidegate/api/v1/dags/orders/actions/{action}", headers=HOST | OURS, json={"unknown": 1})
        assert (here.status_code == 403) is (there == 403)


def test_who_may_do_everything_with_one_pipeline_may_do_nothing_with_another(
    client: Any, be: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    from airflow.api_fastapi.app import get_auth_manager

    be("User")
    manager = type(get_auth_manager())
    says = manager.is_authorized_dag
    monkeypatch.setattr(
        manager, "is_authorized_dag", lambda self, **asked: asked["details"].id == "orders" and says(self, **asked)
    )
    of_dags = [route for route in flat(routes()) if "{dag_id}" in route.path]
    assert len(of_dags) > 25
    for route in of_dags:
        for method in route.methods & {"GET", "POST"}:
            body = {"unknown": True} if method == "POST" else None
            ours = client.request(method, path_of(route), headers=HOST | OURS, json=body).status_code
            assert ours not in (401, 405, 500), route.path
            assert (ours == 403) is ("backfill" in needs(route)), f"{route.path}: the DAG of backfills is another one"
            other = client.request(method, path_of(route).replace("/orders", "/sixty"), headers=HOST | OURS, json=body)
            assert other.status_code == 403, f"{method} {route.path} of another pipeline: {other.status_code}"


@pytest.mark.parametrize("person", PEOPLE)
def test_the_list_and_the_metrics_tell_of_pipelines_whose_runs_one_may_see(
    client: Any, be: Callable[[str], None], person: str
):
    be(person)
    listed = [row["dag"] for row in client.get("/tidegate/api/v1/pipelines", headers=HOST).json()["pipelines"]]
    assert ("orders" in listed) is (PEOPLE[person] >= LOOKS)
    scraped = client.get("/tidegate/api/v1/metrics", headers=HOST).text
    assert ('pipeline="orders"' in scraped) is (PEOPLE[person] >= LOOKS)


@pytest.mark.parametrize("person", [name for name, rights in PEOPLE.items() if rights >= LOOKS])
def test_buttons_are_offered_to_those_whom_the_routes_let_in(client: Any, be: Callable[[str], None], person: str):
    be(person)
    may = client.get("/tidegate/api/v1/dags/orders/overview", headers=HOST).json()["permissions"]
    routes_of = {"rollback": "rollback", "drain": "drain", "trigger": "trigger", "edit": "suspend", "answer": "approve"}
    offered = {name: ACTS[act] <= PEOPLE[person] for name, act in routes_of.items()}
    assert {name: may[name] for name in offered} == offered


@pytest.mark.parametrize(
    ("base_url", "origin", "forwarded", "status"),
    [
        ("", "http://airflow.test", {}, 422),
        ("", "https://airflow.test", {}, 403),
        ("", "https://airflow.test", {"x-forwarded-proto": "https"}, 422),
        ("", "http://airflow.test", {"x-forwarded-proto": "https"}, 403),
        ("https://airflow.test", "https://airflow.test", {}, 422),
        ("https://elsewhere.test", "https://airflow.test", {}, 403),
    ],
)
def test_a_page_that_acts_has_come_by_the_same_scheme(
    client: Any, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch, base_url, origin, forwarded, status
):
    """Whoever sits on the wire can put a page on http://; it must not act on https://."""
    from tidegate.ui import access

    monkeypatch.setattr(access.conf, "get", lambda *_, **__: base_url)
    client.cookies.clear()
    client.cookies.set("_token", tokens["admin"])
    headers = HOST | {"origin": origin} | forwarded
    answer = client.post("/tidegate/api/v1/dags/orders/actions/suspend", headers=headers, json={"unknown": 1})
    assert answer.status_code == status


@pytest.mark.parametrize("where", ["checkpoints/{}", "compare?before={}&after=1", "rollback?to={}", "runs/{}"])
def test_a_number_that_nobody_can_count_to_is_refused(client: Any, tokens: dict[str, str], where: str):
    client.cookies.set("_token", tokens["viewer"])
    for number in ("9" * 40, "-1", "0x10", "99999999999"):
        answer = client.get(f"/tidegate/api/v1/dags/orders/{where.format(number)}")
        assert answer.status_code < 500, answer.text


def test_an_answer_that_a_browser_has_is_not_sent_again(client: Any, tokens: dict[str, str], monkeypatch):
    """Nor is any made into JSON by FastAPI, in the event loop where all of Airflow's requests wait."""
    monkeypatch.setattr("fastapi.routing.jsonable_encoder", lambda *_, **__: pytest.fail("in the event loop"))
    client.cookies.clear()
    client.cookies.set("_token", tokens["viewer"])
    first = client.get("/tidegate/api/v1/dags/orders/graph")
    assert first.headers["cache-control"] == "private, no-cache"
    again = client.get("/tidegate/api/v1/dags/orders/graph", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    overview = [client.get("/tidegate/api/v1/dags/orders/overview").headers["etag"] for _ in range(2)]
    assert overview[0] == overview[1], "the moment of the answer is no change"
    rows = client.get("/tidegate/api/v1/dags/orders/quarantine/enough")
    assert rows.headers["cache-control"] == "no-store", "rows are kept nowhere"
    assert "etag" not in rows.headers
