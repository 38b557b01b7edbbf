"""The pages of proposals in a real Chromium: the list, a report by right, and the end of one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.waiting import eventually
from tests.simulation.toy_backfill import Endless
from tests.ui.browser import Page
from tests.ui.known_dags import put_dag
from tests.ui.rights import OURS
from tests.ui.routes import HOST
from tests.ui.states import propose
from tidegate import seams
from tidegate.backfill import begin
from tidegate.ledger.ledger import stamp
from tidegate.records.records import KeySample, ProposalReported

PROJECT = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("proposed", interval="never", root={root!r}, data={root!r})
pipeline.source("in", Generator(rows=2)).sink("a", DeltaAppend("a"))
dag = build_dag(pipeline, project={root!r})
"""


def seen(page: Page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(Path(folder, f"{name}.png"))


@pytest.fixture
def backfilled_by_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow knows a DAG for backfills beside the pipeline's."""
    from tidegate.ui import access, previews

    monkeypatch.setattr(access, "has_dag", lambda dag_id: True)
    monkeypatch.setattr(previews, "has_dag", lambda dag_id: True)


@pytest.mark.usefixtures("backfilled_by_airflow")
def test_proposals_are_listed_reported_and_ended_by_a_click(page: Page, served: str, tmp_path: Path) -> None:
    put_dag(tmp_path, "proposed", PROJECT)
    world = Endless(tmp_path)
    world.name = "proposed"
    for number in range(3):
        world.checkpoint(f"airflow:proposed:run {number}")
    begin(world.coordinator(), "proposal-1", 0, by="mia on build-7", cuts="recorded", purpose="proposal")
    propose(world, "proposal-1")
    begin(world.coordinator(), "proposal-2", 2, by="ben on build-8", cuts="recorded", purpose="proposal")

    page.goto(f"{served}/tidegate/dag/proposed#/proposals")
    page.has("proposal-1", "tbody")
    page.has("a: 41 rows", "tbody")
    page.has("no report", "tbody")
    seen(page, "proposals")
    page.goto(f"{served}/tidegate/dag/proposed#/proposal/proposal-1")
    for text in (
        "tidegate backfill jobs.orders:pipeline --from beginning",
        "If it is merged: does not continue → differs",
        "a: changed 12 → 40",
        "amount (40)",
        "code string is new",
        "12.25 → 13",
        "amount = 20",
        "operator totals is declared differently: by",
        "positive 1",
        "8.2 kB",
        "topic is not compared",
    ):
        page.has(text, "main")
    seen(page, "proposal")
    assert "undefined" not in page.text("main")
    page.click("#act-accept-proposal-1")
    page.has("A run with the code that is deployed reads 3 checkpoints more, and compares all tables again", "dialog")
    page.has("a, as of the report: 1 added, 0 removed, 40 changed.", "dialog")
    page.has("becomes savepoint before-proposal-1", "dialog")
    seen(page, "proposal-accept")
    # Both at one moment: the browser has closed the first dialog by then, and not yet said so.
    page.run(
        "document.querySelector('#dialog-cancel').click()\ndocument.querySelector('#act-discard-proposal-1').click()"
    )
    page.has("Its hidden tables and its report are removed.", "dialog")
    page.has("The pipeline's tables stay as they are.", "dialog")
    seen(page, "proposal-discard")
    page.goto(f"{served}/tidegate/dag/proposed#/proposal/proposal-2")
    page.has("It has no report", "main")
    page.goto(f"{served}/tidegate/dag/proposed#/proposal/gone")
    eventually("it is told", lambda: "has no proposal 'gone'" in page.text("main"))


def test_who_may_not_read_rows_sees_counts_and_no_values(client: Any, be: Callable[[str], None], world: Any) -> None:
    world.checkpoint("airflow:orders:proposed", rows=1)
    propose(world, "by-right")
    for person, reads in (("Viewer", True), ("no XCom", False)):
        be(person)
        answer = client.get("/tidegate/api/v1/dags/orders/proposals/by-right")
        assert answer.status_code == 200, answer.text
        table = answer.json()["report"]["tables"]["a"]
        assert (table["changed"], table["columns"]["amount"]["rows"]) == (40, 40)
        assert bool(table["examples"]) is reads
        assert ("4711" in json.dumps(table)) is reads


def test_acceptance_needs_the_right_to_swap_and_limits_at_which_it_looks(
    client: Any, be: Callable[[str], None], world: Any, backfilled_by_airflow: None
) -> None:
    world.checkpoint("airflow:orders:accepted", rows=1)
    propose(world, "accepted")
    for person, status in (("Viewer", 403), ("no XCom", 200)):
        be(person)
        body: dict[str, Any] = {"name": "accepted", "preview": True}
        answer = client.post("/tidegate/api/v1/dags/orders/actions/swap", json=body, headers=HOST | OURS)
        assert answer.status_code == status, answer.text
    for limit, problem in (("gate", "does not look at 'gate' again"), ("rows < 3", "is not a limit")):
        for preview in (True, False):
            body = {"name": "accepted", "preview": preview, "fail_on": [limit]}
            answer = client.post("/tidegate/api/v1/dags/orders/actions/swap", json=body, headers=HOST | OURS)
            assert (answer.status_code >= 400, problem in answer.text) == (True, True), answer.text


def test_neither_a_sample_nor_what_nobody_has_kept_is_accepted(
    client: Any, be: Callable[[str], None], world: Any, backfilled_by_airflow: None
) -> None:
    world.checkpoint("airflow:orders:refused", rows=1)
    propose(world, "whole")
    line = world.ledger.line("whole")
    sample = KeySample(share=0.1, by="id", sources={"in": "id"})
    for name, more in (("not-kept", {}), ("sampled", {"sample": sample})):
        world.ledger.create_line(msgspec.structs.replace(line, name=name, **more))
    whole = world.ledger.proposal_reported("whole")
    world.ledger.hint_proposal_reported("sampled", ProposalReported(**stamp(seams.new_id()), report=whole.report))
    be("no XCom")
    for name, problem in (("not-kept", "was not kept"), ("sampled", "has read only 0.1 of the keys")):
        for preview in (True, False):
            body = {"name": name, "preview": preview}
            answer = client.post("/tidegate/api/v1/dags/orders/actions/swap", json=body, headers=HOST | OURS)
            assert (answer.status_code >= 400, problem in answer.text) == (True, True), answer.text


def test_a_browser_sees_whole_numbers_that_its_own_cannot_hold(
    client: Any, be: Callable[[str], None], world: Any
) -> None:
    world.checkpoint("airflow:orders:large", rows=1)
    propose(world, "large", key=2**53 + 1)
    be("Viewer")
    (example,) = client.get("/tidegate/api/v1/dags/orders/proposals/large").json()["report"]["tables"]["a"]["examples"]
    assert example["key"] == {"id": "9007199254740993"}
