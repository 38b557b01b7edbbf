"""The pages after a swap, in a real Chromium: it is called a swap, what it has replaced is not rolled back, and a click
takes it back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_gate import ToyGate
from tests.kit.toys import NO_SPARK
from tests.kit.waiting import eventually
from tests.simulation.toy_backfill import Endless, backfilled, replayed
from tests.ui.browser import Page
from tests.ui.known_dags import put_dag
from tidegate.backfill import begin
from tidegate.backfill.discard import discard_named
from tidegate.coordinator import Triggered
from tidegate.execution.job.run_job import run_job
from tidegate.history.table import remember
from tidegate.lifecycle import savepoint
from tidegate.lifecycle.savepoint import savepoints

MENDED = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("{name}", interval="never", root={root!r}, data={root!r})
pipeline.source("in", Generator(rows=2)).sink("a", DeltaAppend("a"))
dag = build_dag(pipeline, project={root!r})
"""


class Swapped:
    """A pipeline into which a backfill was swapped, after which it has gone on; and a user at its pages."""

    def __init__(self, root: Path, name: str, origin: int, page: Page, served: str) -> None:
        put_dag(root, name, MENDED.replace("{name}", name))
        self.world = Endless(root)
        self.world.name = name
        for number in range(3):
            self.world.checkpoint(f"airflow:{name}:run {number}")
        self.id = backfilled(self.world, origin).id
        discard_named(self.world.coordinator(), "fix", "ann")
        self.world.checkpoint(f"airflow:{name}:after")
        remember(self.world.ledger, {})
        self.page, self.served, self.name = page, served, name

    def at(self, where: str, text: str) -> None:
        self.page.goto(f"{self.served}/tidegate/dag/{self.name}#/{where}")
        self.page.has(text, "main")
        if folder := os.environ.get("SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(Path(folder, f"{self.name}-{where.replace('/', '-')}.png"))


@pytest.mark.parametrize("origin", [1, 0], ids=["from a checkpoint", "from the beginning"])
def test_a_swap_is_called_a_swap_and_is_taken_back_by_a_click(
    page: Page, served: str, tmp_path: Path, origin: int
) -> None:
    swapped = Swapped(tmp_path, "from-checkpoint" if origin else "from-beginning", origin, page, served)
    since = f"#{origin}" if origin else "the beginning"

    swapped.at("history", "swap")
    page.has("replaced by backfill fix, #4", "tbody")
    states = page.text("tbody")
    assert states.count("replaced by backfill fix, #4") == 3 - origin
    assert "rolled back" not in states
    assert "restart" not in states
    swapped.at("checkpoint/3", "Checkpoint #3")
    page.has("by backfill fix, #4", "main")
    eventually("one can go back there, since its name keeps it", lambda: page.there("#act-rollback"))
    page.has("savepoint before-fix", "main")

    swapped.at(f"checkpoint/{swapped.id}", "Swap #4 of backfill fix")
    told = page.text("main")
    assert "null" not in told
    assert "#0" not in told
    assert "Back to" not in told
    page.has(since, "main")
    page.has("#3, savepoint before-fix", "main")

    swapped.at("overview", "Latest swap")
    assert "Latest rollback" not in page.text("main")
    assert "null" not in page.text("main")
    page.click("#act-take-back")
    page.has("Roll back to checkpoint #3?", "dialog")
    page.has("Undone: the swap of backfill fix.", "dialog")
    page.has("No longer counts: checkpoint 5.", "dialog")
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(Path(folder, f"{swapped.name}-dialog.png"))
    page.click("#dialog-send")
    eventually("a run is asked for", lambda: not page.there("dialog"))
    assert act_of(swapped.world) == {"to": 3, "expected_undone": [5]}
    assert page.wrong == []

    rolled_back = swapped.world.coordinator().roll_back(3, run="the run", by="admin in Airflow")
    swapped.at("history", "rollback")
    page.has("rolled back", "tbody")
    assert page.text("tbody").count("rolled back") == 2, "the swap, and what came after it"
    swapped.at(f"checkpoint/{rolled_back.id}", "Back to")
    swapped.at("overview", "Latest rollback")
    assert not page.there("#act-take-back"), "there is no swap that counts"
    assert page.wrong == []


def act_of(world: Endless) -> dict[str, Any]:
    """What the last rollback that was asked for is to do."""
    acts = [act for act, _ in world.ledger.acts(9) if act.action == "rollback"]
    return {name: acts[0].request.get(name) for name in ("to", "expected_undone")}


@pytest.fixture
def backfilled_by_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow knows a DAG for backfills beside each pipeline's."""
    from tidegate.ui import access, previews

    monkeypatch.setattr(access, "has_dag", lambda dag_id: True)
    monkeypatch.setattr(previews, "has_dag", lambda dag_id: True)


def lived(root: Path, name: str) -> Endless:
    put_dag(root, name, MENDED.replace("{name}", name))
    world = Endless(root)
    world.name = name
    for number in range(3):
        world.checkpoint(f"airflow:{name}:run {number}")
    return world


@pytest.mark.usefixtures("backfilled_by_airflow")
def test_the_dialog_of_a_swap_tells_the_name_that_it_will_give(page: Page, served: str, tmp_path: Path) -> None:
    world = lived(tmp_path, "to-swap")
    savepoint.create(world.ledger, "before-fix", 1, "ann")
    replayed(begin(world.coordinator(), "fix", 0, by="ann"))
    page.goto(f"{served}/tidegate/dag/to-swap#/overview")
    page.has("Begins after", "main")
    page.has("the beginning", "main")
    page.click("#act-swap-fix")
    page.has("Checkpoint 3, or a later one, becomes savepoint before-fix-2", "dialog")
    assert [found.name for found in savepoints(world.ledger)] == ["before-fix"], "it was only asked about"
    assert page.wrong == []


@pytest.mark.usefixtures("backfilled_by_airflow")
def test_a_hold_inside_a_backfill_is_answered_by_a_click_on_the_backfill(
    page: Page, served: str, tmp_path: Path
) -> None:
    world = lived(tmp_path, "held")
    world.gates = {"multiples": ToyGate(every=3, hold_for=86_400.0, unanswered="reject")}
    line = begin(world.coordinator(), "fix", 1, by="ann", cuts="recorded")
    triggered = line.backfill.trigger("by hand")
    assert isinstance(triggered, Triggered)
    run_job(line.backfill, triggered.plan.id, "main", NO_SPARK)
    assert line.backfill.complete(triggered.plan.id).state == "open"
    page.goto(f"{served}/tidegate/dag/held#/overview")
    page.has("Its checkpoint 2 is held by gate multiples.", "main")
    page.has("no multiples", "main")
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(Path(folder, "held-in-a-backfill.png"))
    page.click("#act-reject-fix")
    page.has("The backfill stops at its checkpoint 2", "dialog")
    page.click("#dialog-cancel")
    eventually("the dialog is gone", lambda: not page.there("dialog"))
    page.click("#act-approve-fix")
    page.has("The backfill continues with exactly the judged rows", "dialog")
    page.click("#dialog-send")
    eventually("it is answered", lambda: line.backfill.ledger.answer(2, "multiples") is not None)
    assert line.backfill.complete(2).state == "completed"
    assert world.ledger.answer(2, "multiples") is None, "the pipeline's checkpoint 2 is another one"
    assert page.wrong == []
