"""The overview says which data contract a sink keeps, and who answers for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tests.ui.browser import Browser
from tests.ui.known_dags import put_dag

AGREED = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.gates import Contract
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("agreed", interval="never", root={root!r}, data={root!r})
rows = pipeline.source("in", Generator(rows=3))
rows.sink("a", DeltaAppend("a"), contract=Contract("a.odcs.yaml"))
rows.sink("b", DeltaAppend("b"), contract=Contract("b.odcs.yaml"))
dag = build_dag(pipeline, project={root!r})
"""
CONTRACT = """
apiVersion: v3.1.0
kind: DataContract
id: 53581432-6c55-4ba2-a65f-72344a91553a
name: Numbers
version: 1.2.0
status: active
domain: samples
description: {purpose: "Numbers <b>for</b> tests"}
team:
  name: Counting house
  members:
    - {username: former, role: Owner, dateOut: 2026-01-31}
    - {username: ada, name: Ada L., role: Data Owner}
schema:
  - name: numbers
    properties: [{name: key, logicalType: string}]
"""


@pytest.fixture(scope="module")
def agreed(app: Any, tmp_path_factory: pytest.TempPathFactory) -> ToyWorld:
    """A pipeline with a contract for one sink, and a broken one for the other."""
    root = tmp_path_factory.mktemp("agreed")
    (root / "tidegate.toml").write_text("")
    (root / "a.odcs.yaml").write_text(CONTRACT)
    (root / "b.odcs.yaml").write_text(CONTRACT.replace("status: active\n", ""))
    put_dag(root, "agreed", AGREED)
    world = ToyWorld(root)
    world.name = "agreed"
    world.checkpoint("airflow:agreed:one", rows=2)
    return world


def test_the_api_tells_whose_contract_it_is(client: Any, tokens: dict[str, str], agreed: ToyWorld) -> None:
    client.cookies.clear()
    client.cookies.set("_token", tokens["viewer"])
    a, b = client.get("/tidegate/api/v1/dags/agreed/overview").json()["contracts"]
    assert a == {
        "sink": "a",
        "file": "a.odcs.yaml",
        "name": "Numbers",
        "version": "1.2.0",
        "status": "active",
        "domain": "samples",
        "team": "Counting house",
        "owner": "Ada L.",
        "purpose": "Numbers <b>for</b> tests",
        "problem": "",
    }
    assert (b["sink"], b["name"]) == ("b", "")
    assert b["problem"].endswith("b.odcs.yaml:2: it has no status, which the standard requires")


SIDES = [("light", 1400), ("dark", 420)]
if "SCREENSHOTS" in os.environ:
    SIDES += [("light", 420), ("dark", 1400)]


@pytest.mark.parametrize(("theme", "width"), SIDES)
def test_the_overview_shows_the_owner_of_a_contract(
    served: str, tokens: dict[str, str], agreed: ToyWorld, theme: str, width: int
) -> None:
    with Browser() as browser:
        page = browser.page(width, 1200)
        page.cookie(served, "_token", tokens["viewer"])
        page.call("Page.addScriptToEvaluateOnNewDocument", source=f"localStorage.setItem('theme', '{theme}')")
        page.goto(f"{served}/tidegate/dag/agreed#/overview")
        page.has("Contract of a", "main")
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(Path(folder, f"{theme}-{width}-contracts.png"))
        page.has("Numbers 1.2.0, active", "main")
        page.has("Owner\nAda L.", "main")
        page.has("Team\nCounting house, samples", "main")
        page.has("Purpose\nNumbers <b>for</b> tests", "main")
        page.has("it has no status, which the standard requires", "main")
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.wrong == []
