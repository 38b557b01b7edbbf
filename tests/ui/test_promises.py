"""Pages say how old the tables are for which a pipeline has promised something, and which promise is broken."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tests.ui.browser import Browser
from tests.ui.known_dags import put_dag
from tidegate import Pipeline, seams

PROMISED = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("promised", interval="never", root={root!r}, data={root!r})
rows = pipeline.source("in", Generator(rows=3))
rows.sink("a", DeltaAppend("a")).sink("b", DeltaAppend("b"))
dag = build_dag(pipeline, project={root!r})
"""
BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Promised(ToyWorld):
    """It promises more for one of its tables than for the other."""

    def pipeline(self) -> Pipeline:
        pipeline = super().pipeline()
        pipeline.promise("a", fresh="15 min")
        pipeline.promise("b", fresh="1 day")
        return pipeline


@pytest.fixture(scope="module")
def old(app: Any, tmp_path_factory: pytest.TempPathFactory) -> Promised:
    """A pipeline whose last checkpoint was planned at noon."""
    root = tmp_path_factory.mktemp("promised")
    put_dag(root, "promised", PROMISED)
    world = Promised(root)
    world.name = "promised"
    with seams.installed(replace(seams.current(), now=lambda: BEGAN)):
        world.checkpoint("airflow:promised:one", rows=2)
    return world


@pytest.fixture
def later(old: Promised) -> Iterator[None]:
    """Two hours and a quarter after that."""
    with seams.installed(replace(seams.current(), now=lambda: BEGAN + timedelta(hours=2, minutes=15))):
        yield


def test_the_api_says_which_promise_is_broken(client: Any, tokens: dict[str, str], later: None) -> None:
    client.cookies.clear()
    client.cookies.set("_token", tokens["viewer"])
    about = client.get("/tidegate/api/v1/dags/promised/overview").json()
    a, b = about["promises"]
    assert a == {
        "sink": "a",
        "fresh_seconds": 900.0,
        "kept": False,
        "breaks_at": "2026-03-01T12:15:00.000+00:00",
        "input_until": "2026-03-01T12:00:00.000+00:00",
        "checkpoint": 1,
    }
    assert (b["sink"], b["kept"], b["breaks_at"]) == ("b", True, "2026-03-02T12:00:00.000+00:00")
    assert (about["health"]["state"], about["health"]["reason"]) == ("stale", "PROMISE_BROKEN")
    listed = client.get("/tidegate/api/v1/pipelines").json()["pipelines"]
    assert [row["promises"] for row in listed if row["pipeline"] == "promised"] == [[a, b]]
    scraped = client.get("/tidegate/api/v1/metrics").text
    assert 'tidegate_promiseBroken{pipeline="promised",sink="a"} 1' in scraped
    assert 'tidegate_promiseBroken{pipeline="promised",sink="b"} 0' in scraped


SIDES = [("light", 1400), ("dark", 420)]
if "SCREENSHOTS" in os.environ:
    SIDES += [("light", 420), ("dark", 1400)]


@pytest.mark.parametrize(("theme", "width"), SIDES)
def test_the_overview_and_the_list_show_since_when_a_promise_is_broken(
    served: str, tokens: dict[str, str], later: None, theme: str, width: int
) -> None:
    with Browser() as browser:
        page = browser.page(width, 1200)
        page.cookie(served, "_token", tokens["viewer"])
        page.call("Page.addScriptToEvaluateOnNewDocument", source=f"localStorage.setItem('theme', '{theme}')")
        page.goto(f"{served}/tidegate/dag/promised#/overview")
        if folder := os.environ.get("SCREENSHOTS"):
            page.has("Promises", "main")
            page.screenshot(Path(folder, f"{theme}-{width}-promises.png"))
        page.has("sink a is more than 15 min old since 2026-03-01 12:15:00 UTC", ".banner")
        page.has("At most\n15 min old", "main")
        page.has("Broken since\n2026-03-01 12:15:00 UTC, by ", "main")
        page.has("Kept until", "main")
        assert page.run("document.documentElement.scrollWidth") <= width
        page.goto(f"{served}/tidegate/pipelines")
        page.has("promise: a at most 15 min old, since 2026-03-01 12:15:00 UTC", "tbody")
        if folder:
            page.screenshot(Path(folder, f"{theme}-{width}-pipelines.png"))
        assert page.wrong == []
