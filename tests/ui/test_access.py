"""Every route, as everybody, by every method: nobody gets what is not theirs, and no route is without protection."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.ui.airflow_with_roles import ROLES
from tests.ui.routes import HOST, flat, path_of, routes

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MAY_LOOK = set(ROLES)
MAY_ACT = {"user", "op", "admin"}
OURS = {"origin": "http://airflow.test"}


def ask(client: Any, method: str, path: str, role: str | None, tokens: dict[str, str], **headers: str) -> int:
    client.cookies.clear()
    if role is not None:
        client.cookies.set("_token", tokens[role])
    asked = client.request(method, path, headers=HOST | headers, json={} if method == "POST" else None)
    return int(asked.status_code)


def test_there_are_routes_to_look_at():
    assert len(flat(routes())) > 25


def test_nobody_gets_anything_without_a_login(client, tokens):
    for route in flat(routes()):
        for method in METHODS:
            status = ask(client, method, path_of(route), None, tokens, **OURS)
            assert status in (401, 403, 405), f"{method} {route.path} without a login: {status}"


@pytest.mark.parametrize("role", ROLES)
def test_everybody_gets_what_is_theirs_and_nothing_else(client, tokens, role):
    for route in flat(routes()):
        allowed = MAY_ACT if "POST" in route.methods else MAY_LOOK
        for method in METHODS:
            status = ask(client, method, path_of(route), role, tokens, **OURS)
            told = f"{method} {route.path} as {role}: {status}"
            if method not in route.methods:
                assert status == 405, told
            elif role in allowed:
                assert status not in (401, 403, 405, 500), told
            else:
                assert status == 403, told


def test_a_dag_that_one_may_not_see_is_hidden_behind_every_route(client, tokens, monkeypatch):
    """Simple roles know no DAGs apart: here Airflow's auth manager says no to this one."""
    from airflow.api_fastapi.app import get_auth_manager

    real = get_auth_manager().is_authorized_dag
    monkeypatch.setattr(
        type(get_auth_manager()),
        "is_authorized_dag",
        lambda self, **asked: asked["details"].id != "orders" and real(**asked),
    )
    for route in flat(routes()):
        if "{dag_id}" in route.path:
            for method in route.methods:
                assert ask(client, method, path_of(route), "admin", tokens, **OURS) == 403, route.path


@pytest.mark.parametrize("origin", [None, "http://evil.test", "http://airflow.test.evil.test", "null"])
def test_what_acts_must_come_from_airflows_own_pages(client, tokens, origin):
    for route in flat(routes()):
        if "POST" in route.methods:
            headers = {"origin": origin} if origin else {}
            assert ask(client, "POST", path_of(route), "admin", tokens, **headers) == 403, route.path


@pytest.mark.parametrize("header", ["Bearer ", "Bearer", "bearer   ", "Bearer \t", "Basic abc", ""])
def test_a_header_without_a_token_makes_a_browser_no_script(client, tokens, header):
    """Airflow goes by the cookie then, which a browser sends from whatever page it shows."""
    for route in flat(routes()):
        if "POST" in route.methods:
            status = ask(client, "POST", path_of(route), "admin", tokens, authorization=header)
            assert status == 403, f"{route.path} with {header!r}: {status}"


def test_no_route_holds_a_connection_to_airflows_database_while_it_reads_the_pipeline(client, tokens, monkeypatch):
    """Airflow's web server stands still while its pool is empty: twenty open pages were enough for that."""
    from airflow import settings

    from tidegate.ui.pipelines import PipelineRef

    pool = settings.engine.pool
    taken: dict[str, int] = {}
    path = ""
    real = PipelineRef.ledger

    def ledger(pipeline: PipelineRef) -> Any:
        taken[path] = max(pool.checkedout(), taken.get(path, 0))
        return real(pipeline)

    monkeypatch.setattr(PipelineRef, "ledger", ledger)
    for route in flat(routes()):
        path = path_of(route)
        ask(client, next(iter(route.methods)), path, "admin", tokens, **OURS)
    assert len(taken) > 15, taken
    assert set(taken.values()) == {0}, taken


@pytest.mark.parametrize("where", ["root", "data"])
def test_pages_log_in_to_stores_as_the_settings_say_wherever_they_are(app, tmp_path, monkeypatch, where):
    import msgspec

    from tidegate.pipeline.card import Card
    from tidegate.records import airflow_login
    from tidegate.ui.pipelines import PipelineRef

    (tmp_path / "tidegate.toml").write_text('storage = "airflow:lake"\n')
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://key:secret@/")
    monkeypatch.setattr(airflow_login, "_ask", None)
    folder = str(tmp_path)
    card = Card(
        pipeline="orders",
        project=folder,
        root=folder,
        data=folder,
        by_interval=False,
        tolerable_failed_checkpoints=0,
        jobs=["main"],
        gates={},
        parts=[],
        settings=[],
    )
    assert PipelineRef("dag", card).options == {}
    card = msgspec.structs.replace(card, **{where: "s3://lake"})
    assert dict(PipelineRef("dag", card).options) == {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}


def test_a_script_with_a_token_needs_no_origin(client, tokens):
    client.cookies.clear()
    answer = client.post(
        "/tidegate/api/v1/dags/orders/actions/suspend",
        headers={"authorization": f"Bearer {tokens['admin']}"},
        json={"note": "by a script"},
    )
    assert answer.status_code == 200, answer.text
    assert "suspended" in answer.json()["message"]
    back = client.post(
        "/tidegate/api/v1/dags/orders/actions/resume", headers={"authorization": f"Bearer {tokens['admin']}"}, json={}
    )
    assert back.status_code == 200, back.text


def test_every_answer_forbids_foreign_scripts_and_frames(client, tokens):
    for route in flat(routes()):
        client.cookies.set("_token", tokens["admin"])
        if "GET" in route.methods:
            told = client.get(path_of(route), headers=HOST).headers
            assert "script-src 'self'" in told["content-security-policy"], route.path
            assert "frame-ancestors 'self'" in told["content-security-policy"]
            assert told["x-content-type-options"] == "nosniff"


def test_files_outside_of_the_folder_are_not_served(client, tokens):
    client.cookies.set("_token", tokens["admin"])
    for name in ("..%2Fapp.py", "%2e%2e%2fapi.py", "page.html", "nothing.js"):
        assert client.get(f"/tidegate/static/1/{name}").status_code == 404


def test_files_are_fetched_once_until_they_change(client, tokens):
    client.cookies.set("_token", tokens["viewer"])
    page = client.get("/tidegate/pipelines").text
    (address,) = re.findall(r'src="(/tidegate/static/[0-9a-f]{16}/app\.js)"', page)
    assert client.get(address).headers["cache-control"] == "private, max-age=31536000, immutable"
    old = client.get("/tidegate/static/0123456789abcdef/app.js")  # of a page that is open while the files change
    assert (old.status_code, old.headers["cache-control"]) == (200, "private, max-age=0, no-store")
    imported, left = set(), {"app.js"}
    while left:
        script = left.pop()
        imported.add(script)
        text = client.get(address.replace("app.js", script)).text
        left |= set(re.findall(r'from "\./(\w+\.js)"', text)) - imported
    named = set(re.findall(r'modulepreload" href="[^"]*/(\w+\.js)"', page))
    assert named == imported - {"app.js"}, "none waits until another one has been read, and none is fetched too early"


@pytest.mark.parametrize(("base_url", "root"), [("", ""), ("http://host:8080", ""), ("https://host/team/", "/team")])
def test_pages_are_where_airflow_is(client, tokens, base_url, root):
    """Behind a proxy Airflow may be below a path: frames, scripts and calls of the API begin with it."""
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    from tidegate.ui.app import make_app
    from tidegate.ui.plugin import PREFIX, views

    app = f"{root}{PREFIX}"
    assert [view["href"] for view in views(base_url)] == [
        f"{app}/pipelines",
        f"{app}/dag/{{DAG_ID}}",
        f"{app}/run/{{DAG_ID}}/{{RUN_ID}}",
    ]
    for view in views(base_url):
        assert view["icon"].startswith("data:image/svg+xml,"), "otherwise Airflow shows an icon of its own"
        assert view["icon_dark_mode"] != view["icon"]
    airflow = FastAPI(root_path=root)
    airflow.mount(PREFIX, make_app())
    airflow.state = client.app.state
    page = TestClient(airflow, cookies={"_token": tokens["viewer"]}).get(f"{app}/dag/orders")
    assert f'data-base="{app}"' in page.text
    assert set(re.findall(r'(?:src|href)="(.*?)/static/', page.text)) == {app}
