"""What the pages once told wrongly, or hid, and an independent look has found; each once, in a real browser."""

from __future__ import annotations

import msgspec
import pytest

from tests.kit.toy_world import ToyWorld
from tests.ui.browser import Page
from tests.ui.states import hold, running
from tidegate.history.table import remember
from tidegate.records.codec import encode
from tidegate.records.records import PublishedTable

OUT_OF_SIGHT = """
[...document.querySelectorAll("nav.tabs a")].map((each) => each.getBoundingClientRect())
  .filter(({ left, right, height }) => left < 0 || right > innerWidth || !height).length
"""
LISTED = """
[...document.querySelectorAll("[data-key='card Sinks'] > .scroll tbody tr")].map((each) => each.cells[0].innerText)
"""


@pytest.fixture
def page(page: Page, world: ToyWorld) -> Page:
    """The page of a pipeline that is running."""
    running(world)
    return page


def shows(page: Page, served: str, where: str, text: str) -> None:
    page.goto(f"{served}/tidegate/dag/orders?{where}#/{where}")
    page.has(text, "main")


def test_a_hold_names_its_rule_its_time_limit_and_what_follows_and_leads_to_the_task_that_waits(
    page: Page, served: str, world: ToyWorld
):
    id = hold(world, limit_s=3600)
    for where in ("overview", f"checkpoint/{id}"):
        shows(page, served, where, "Gate enough holds it because of positive: 2 of 9 rows.")
        page.has("Without an answer by ", "main")
        page.has(" UTC, it is rejected.", "main")
    shows(page, served, "overview", "holds it")
    linked = page.run("[...document.querySelectorAll(\".banner a[href*='/tasks/']\")].map((each) => each.pathname)")
    assert [path.rpartition("/")[2] for path in linked] == ["gate_enough"], "not a later one, which has not run yet"
    running(world)
    assert page.wrong == []


def test_on_a_phone_every_tab_is_in_sight(page: Page, served: str, world: ToyWorld):
    page.size(420, 900)
    shows(page, served, "overview", "Triggered")
    assert page.run("document.querySelectorAll('nav.tabs a').length") == 10
    assert page.run(OUT_OF_SIGHT) == 0


def test_jobs_of_an_aborted_checkpoint_are_not_said_to_be_completed(page: Page, served: str, world: ToyWorld):
    failed = world.trigger("airflow:orders:told right")
    world.coordinator().abort(failed, "JOB_FAILED", "the file is gone")
    world.checkpoint("airflow:orders:told right, then well", rows=1)
    remember(world.ledger, {})
    shows(page, served, f"checkpoint/{failed}", f"Checkpoint #{failed}")
    jobs = page.text("[data-key='card Jobs']")
    assert "failed" in jobs
    assert "completed" not in jobs
    assert "completed" not in page.text("[data-key='card Barriers']")


def test_state_and_quarantine_are_not_listed_among_sinks(page: Page, served: str, world: ToyWorld):
    id = world.checkpoint("airflow:orders:own tables", rows=1)
    published = world.ledger.published(id)
    assert published is not None
    tables = ("state.totals", "quarantine.enough")
    own = {name: PublishedTable(uri=f"/{name}", version=1, log_hash="x") for name in tables}
    put = msgspec.structs.replace(published, tables=published.tables | own, paths={})
    world.path(id, "published.json").write_bytes(encode(put))
    shows(page, served, f"checkpoint/{id}", "Sinks")
    assert sorted(page.run(LISTED)) == ["a", "b"]
    assert "tidegate's own tables" in page.text("[data-key='card Sinks']")
    assert page.wrong == []
