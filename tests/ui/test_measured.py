"""The page of a checkpoint plots what a gate has measured, and the band in which it was expected."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tests.ui.browser import Browser
from tests.ui.known_dags import put_dag
from tidegate.gates import Anomaly, GateContext, Judgement

MEASURED = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.gates import Anomaly
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("measured", interval="never", root={root!r}, data={root!r})
rows = pipeline.source("in", Generator(rows=3))
usual = rows.gate(Anomaly("count(*)", after=5), name="usual")
usual.sink("a", DeltaAppend("a")).sink("b", DeltaAppend("b"))
dag = build_dag(pipeline, project={root!r})
"""


class CountOfToys(Anomaly):
    """Counts rows without Spark, and judges the number as it always does. By two groups, of which one has half."""

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        count = len(frame.rows)
        values: dict[str, float | None] = {'["<b>DE</b>"]': float(count), '["FR"]': count / 2}
        counts = {'["<b>DE</b>"]': count // 2, '["FR"]': count - count // 2}
        return self.judge_values(values, counts, {}, 0.0, context)


@pytest.fixture(scope="module")
def measured(app: Any, tmp_path_factory: pytest.TempPathFactory) -> ToyWorld:
    """A pipeline with 40 checkpoints, of which the last but five had three times as many rows."""
    root = tmp_path_factory.mktemp("measured")
    put_dag(root, "measured", MEASURED)
    world = ToyWorld(root, bound=100_000)
    world.name = "measured"
    world.limit(num_retained=100)
    world.gates = {"usual": CountOfToys("count(*)", by="country", after=5)}
    dice = random.Random(1)
    for number in range(1, 41):
        rows = 150 if number == 35 else dice.randrange(48, 53)
        world.checkpoint(f"airflow:measured:{number}", rows=rows)
    return world


def test_the_api_has_each_groups_numbers_for_those_who_may_read_rows(
    client: Any, tokens: dict[str, str], measured: Any
):
    client.cookies.clear()
    client.cookies.set("_token", tokens["op"])
    told = client.get("/tidegate/api/v1/dags/measured/gates/usual/measured").json()
    assert (told["function"], len(told["checkpoints"])) == ("count(*)", 40)
    assert [group["group"] for group in told["groups"]] == ["<b>DE</b>", "FR"]
    for group in told["groups"]:
        at = told["checkpoints"].index(35)
        assert [place for place, unusual in enumerate(group["unusual"]) if unusual] == [at]
        assert told["outcomes"][at] == "warn"
        assert group["low"][0] is None, "its history was too short"
        assert group["low"][at] < group["expected"][at] < group["high"][at] < group["values"][at]
    assert client.get("/tidegate/api/v1/dags/measured/gates/nobodys/measured").json()["groups"] == []


SIDES = [("light", 1400), ("dark", 420)]
if "SCREENSHOTS" in os.environ:
    SIDES += [("light", 420), ("dark", 1400)]


@pytest.mark.parametrize(("theme", "width"), SIDES)
def test_the_page_plots_them(measured: ToyWorld, served: str, tokens: dict[str, str], theme: str, width: int):
    with Browser() as browser:
        page = browser.page(width, 1200)
        page.cookie(served, "_token", tokens["op"])
        page.call("Page.addScriptToEvaluateOnNewDocument", source=f"localStorage.setItem('theme', '{theme}')")
        page.goto(f"{served}/tidegate/dag/measured#/checkpoint/35")
        page.has("Gates", "main")
        page.run("for (const folded of document.querySelectorAll('main details')) folded.open = true")  # as on a phone
        page.has("of 2 of 2 groups is unusual", "main")
        page.click("[data-key='bands 35 usual'] button")
        page.has("count(*) of <b>DE</b>", "main")
        assert page.run("document.querySelectorAll('.plot svg .band').length") == 2
        assert page.run("document.querySelectorAll('.plot svg .unusual').length") == 2
        assert page.run("document.documentElement.scrollWidth") <= width
        if folder := os.environ.get("SCREENSHOTS"):
            page.run("document.querySelector('.plot svg').scrollIntoView({block: 'center'})")
            page.screenshot(Path(folder, f"{theme}-{width}-bands.png"))
        assert page.wrong == []
