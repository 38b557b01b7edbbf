"""Data Docs beside the ledger: the page of a checkpoint links to the run of each gate, and nothing in them can run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.aside_gate import Aside
from tests.kit.s3 import BUCKET, s3
from tests.kit.toy_world import ToyWorld
from tests.ui.browser import Browser
from tidegate.gates.expectations.data_docs import GATE_DOCS, INDEX, SITE, pages_of
from tidegate.pipeline.card import Card
from tidegate.records.names import entry_name

PAGE = "<!DOCTYPE html><title>t</title><h1>What orders found</h1><script>document.title = 'ran'</script>"


@pytest.fixture(scope="module")
def judged(world: ToyWorld) -> tuple[int, str]:
    """A checkpoint with a gate, and the address of its page."""
    world.gates = {"enough": Aside(quarantines=False)}
    try:
        id = world.checkpoint("airflow:orders:docs")
    finally:
        world.gates = {}
    path = f"validations/shop/orders/checkpoint-{entry_name(id)}/20261130T060000.000000Z/orders-enough.html"
    docs = Path(world.ledger.home, GATE_DOCS)
    file = docs / SITE / path
    file.parent.mkdir(parents=True)
    file.write_text(PAGE)
    (docs / SITE / "secret.json").write_text("{}")
    (docs / INDEX).write_text(json.dumps({entry_name(id): {"enough": path}}))
    return id, path


def test_a_checkpoint_names_the_pages_that_were_built(
    client: Any, tokens: dict[str, str], world: ToyWorld, judged: tuple[int, str]
) -> None:
    id, path = judged
    client.cookies.set("_token", tokens["viewer"])
    told = client.get(f"/tidegate/api/v1/dags/orders/checkpoints/{id}").json()
    assert told["data_docs"] == {"enough": path}
    assert pages_of(world.ledger, id + 1) == {}
    answer = client.get(f"/tidegate/docs/orders/{path}")
    assert (answer.status_code, answer.text) == (200, PAGE)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "script-src" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "secret.json",
        "nowhere.html",
        "%2e%2e/%2e%2e/%2e%2e/pipeline.json",
        "..%2f..%2f..%2fpipeline.json",
        "validations",
    ],
)
def test_nothing_else_is_given_out(client: Any, tokens: dict[str, str], judged: tuple[int, str], path: str) -> None:
    client.cookies.set("_token", tokens["viewer"])
    assert client.get(f"/tidegate/docs/orders/{path}").status_code == 404


def test_who_may_not_see_the_pipeline_gets_none(
    be: Callable[[str], None], client: Any, judged: tuple[int, str]
) -> None:
    be("a stranger")
    assert client.get(f"/tidegate/docs/orders/{judged[1]}").status_code == 403


def test_pages_in_an_object_store_are_served_with_the_login_of_the_settings(tmp_path: Path) -> None:
    from fastapi import HTTPException

    from tidegate.ui.pages import data_docs
    from tidegate.ui.pipelines import PipelineRef

    folder = str(tmp_path)
    card = Card(
        pipeline="orders",
        project=folder,
        root=f"s3://{BUCKET}/ledger",
        data=folder,
        by_interval=False,
        tolerable_failed_checkpoints=0,
        jobs=["main"],
        gates={},
        parts=[],
        settings=[],
    )
    with s3() as server:
        login = "\n".join(f"{name} = {json.dumps(value)}" for name, value in server.options.items())
        (tmp_path / "tidegate.toml").write_text(f"[storage_options]\n{login}\n")
        server.put(f"ledger/orders/{GATE_DOCS}/{INDEX}", json.dumps({entry_name(3): {"enough": "a/b.html"}}).encode())
        server.put(f"ledger/orders/{GATE_DOCS}/{SITE}/a/b.html", PAGE.encode())
        pipeline = PipelineRef("dag", card)
        assert pages_of(pipeline.ledger(), 3) == {"enough": "a/b.html"}
        assert pages_of(pipeline.ledger(), 4) == {}
        answer = data_docs(pipeline, "a/b.html")
        assert (answer.status_code, bytes(answer.body).decode()) == (200, PAGE)
        assert "script-src" not in answer.headers["content-security-policy"]
        for path in ("a/c.html", "../pages.json", "a/../a/b.html", f"../../../{INDEX}"):
            with pytest.raises(HTTPException, match="no such page"):
                data_docs(pipeline, path)


@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (420, "dark")])
def test_the_page_leads_there_and_no_script_runs(
    served: str, tokens: dict[str, str], judged: tuple[int, str], width: int, theme: str
) -> None:
    with Browser() as browser:
        page = browser.page(width, 1200)
        page.cookie(served, "_token", tokens["viewer"])
        page.call("Page.addScriptToEvaluateOnNewDocument", source=f"localStorage.setItem('theme', '{theme}')")
        page.goto(f"{served}/tidegate/dag/orders#/checkpoint/{judged[0]}")
        page.has("Gates", "main")
        page.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")  # folded on phones
        page.has("Data Docs", "main")
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(Path(folder, f"{theme}-{width}-data-docs.png"))
        link = page.run("[...document.querySelectorAll('main a')].find((a) => a.textContent === 'Data Docs').href")
        page.goto(link)
        page.has("What orders found")
        assert page.run("document.title") == "t"
