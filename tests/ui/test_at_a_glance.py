"""What a page tells without a scroll or a click: how fresh the data is, how the last checkpoints went, and where in the
graph the work is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.kit.toy_world import ToyWorld
from tests.kit.waiting import eventually
from tests.ui.browser import Browser, Page
from tests.ui.known_dags import put_dag, set_aside
from tests.ui.states import hold, running, work
from tidegate.history.table import remember
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Decision

pytestmark = in_turn(seconds=60)

PHONE, WIDE = 420, 1400
CHAINED = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.gates import Volume
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Generator

pipeline = Pipeline("chained", interval="never", root={root!r}, data={root!r})
orders = pipeline.source("orders", Generator(rows=3))
payments = pipeline.source("payments", Generator(rows=3))
checked = orders.gate(Volume(least=1), name="checked")
clean = pipeline.stage(checked, name="clean")(lambda checked: checked)
once = clean.deduplicate(by=["key"], uid="once")
paid = once.join(payments, on=["key"], uid="paid")
revenue = paid.aggregate(by=["country"], n="count(*)", uid="revenue")
totals = paid.aggregate(by=["key"], n="count(*)", uid="totals")
revenue.sink("revenue", DeltaUpsert("revenue", keys=["country"]))
totals.sink("totals", DeltaUpsert("totals", keys=["key"]))
paid.sink("paid_orders", DeltaAppend("paid"))
dag = build_dag(pipeline, project={root!r})
"""
"""As deep and as wide as the example of the documentation."""


@pytest.fixture(scope="module")
def ids(world: ToyWorld) -> dict[str, int]:
    """More checkpoints than a strip shows, of which one has failed."""
    running(world)
    for n in range(50):
        world.checkpoint(f"airflow:orders:strip {n}", rows=1)
    failed = world.trigger("airflow:orders:strip failed")
    world.coordinator().abort(failed, "JOB_FAILED", "the file is gone\n  Help: put it back")
    last = world.checkpoint("airflow:orders:strip last", rows=1)
    remember(world.ledger, {})
    return {"failed": failed, "last": last}


def goes(page: Page, served: str, where: str, text: str, dag: str = "orders") -> None:
    page.goto(f"{served}/tidegate/dag/{dag}?{where.partition('?')[0]}#/{where}")
    page.has(text, "main")


BARS = """
[...document.querySelectorAll(".strip a")].map((each) => [each.getAttribute("href"), each.title, each.className])
"""
GRAPH = """
(() => {
  const frame = document.querySelector(".graph");
  const { left, right } = frame.getBoundingClientRect();
  const rects = [...frame.querySelectorAll(".part rect:not(.stripe)")];
  const boxes = rects.map((each) => each.getBoundingClientRect());
  const letters = [...frame.querySelectorAll("text.name")].map((each) => each.getBoundingClientRect().height);
  return {
    boxes: boxes.length,
    outside: boxes.filter((box) => box.left < left || box.right > right).length,
    scrolls: frame.scrollWidth > frame.clientWidth || frame.scrollHeight > frame.clientHeight + 1,
    smallest: Math.min(...letters),
  };
})()
"""
STATES = """
Object.fromEntries([...document.querySelectorAll(".graph .part")].map((each) => [each.dataset.key, each.dataset.state]))
"""


def test_the_last_fifty_checkpoints_are_a_strip_of_links_that_say_how_they_ended(
    page: Page, served: str, ids: dict[str, int]
):
    goes(page, served, "overview", "Last completed")
    bars = page.run(BARS)
    assert len(bars) == 50
    assert [bar[0] for bar in bars] == [f"#/checkpoint/{id}" for id in range(ids["last"] - 49, ids["last"] + 1)]
    failed = next(bar for bar in bars if bar[0] == f"#/checkpoint/{ids['failed']}")
    assert failed[1].startswith(f"#{ids['failed']} aborted · JOB_FAILED")
    assert failed[2] == "bad"
    assert {bar[2] for bar in bars if bar != failed} == {"good"}
    page.run("document.querySelector('.strip a:last-child').focus()")
    page.key("ArrowLeft")
    page.key("Enter")
    page.has(f"Checkpoint #{ids['failed']}", "main")
    assert page.run("document.querySelector('.strip [aria-current]').title").startswith(f"#{ids['failed']} ")
    assert page.wrong == []


def test_the_age_of_the_newest_data_continues_by_itself(page: Page, served: str, ids: dict[str, int]):
    goes(page, served, "configuration", "Defaults (")
    page.has(f"Last completed #{ids['last']}", "main")
    told = page.text(".age")
    eventually("it has grown older", lambda: page.text(".age") not in ("", told))


def test_the_list_has_a_strip_and_the_age_of_each_pipeline(page: Page, served: str, ids: dict[str, int]):
    page.goto(f"{served}/tidegate/pipelines")
    page.has("orders", "tbody")
    eventually("the strip is read", lambda: len(page.look(BARS)) >= 50)
    assert page.there("tbody .age")
    assert any(f"/dags/orders/plugin/checkpoints#/checkpoint/{ids['failed']}" in bar[0] for bar in page.run(BARS))


@pytest.mark.parametrize("width", [PHONE, WIDE])
def test_the_whole_graph_is_in_sight_and_readable(
    browser: Browser, served: str, tokens: dict[str, str], tmp_path: Path, width: int
):
    put_dag(tmp_path, "chained", CHAINED)
    page = browser.page(width, 900)
    page.cookie(served, "_token", tokens["admin"])
    goes(page, served, "graph", "paid_orders", "chained")
    shown = page.run(GRAPH)
    smallest = shown.pop("smallest")
    assert shown == {"boxes": 11, "outside": 0, "scrolls": False}
    assert smallest >= 9, "of letters, in pixels"
    assert page.run("document.documentElement.scrollWidth") <= width
    page.close()


def test_the_graph_shows_the_state_of_each_part_in_the_checkpoint_that_is_chosen(
    page: Page, served: str, world: ToyWorld, ids: dict[str, int]
):
    goes(page, served, "graph", f"Checkpoint #{ids['last']}")
    assert set(page.run(STATES).values()) == {"done"}
    page.click(f".strip a[href='#/graph?checkpoint={ids['failed']}']")
    page.has(f"Checkpoint #{ids['failed']}", "main")
    assert page.run(STATES)["in"] == "failed"
    page.click("#graph-newest")
    open_id = world.trigger("airflow:orders:strip open")
    work(world, open_id)  # at stage a
    page.has(f"Checkpoint #{open_id}", "main")
    eventually("it runs", lambda: page.look(STATES).get("sink a") == "running")
    assert page.run(STATES) == {"in": "done", "enough": "done", "sink a": "running", "sink b": "waiting"}
    world.coordinator().abort(open_id, "CANCELLED", "by hand")
    held = hold(world)
    goes(page, served, f"graph?checkpoint={held}", f"Checkpoint #{held}")
    eventually("it is held", lambda: page.look(STATES).get("enough") == "held")
    running(world)
    assert page.wrong == []


def test_a_checkpoint_has_one_table_of_its_jobs(page: Page, served: str, ids: dict[str, int]):
    heads = ["Job", "State", "Duration", "Rows in", "Rows out", "Bytes out", "Spilled", "Slowest part"]
    for where, parent in (
        ("overview", "[data-key='card Latest completed']"),
        ("checkpoint/{last}", "[data-key='card Jobs']"),
    ):
        goes(page, served, where.format(**ids), "Slowest part")
        shown = page.run(
            f"[...document.querySelectorAll(\"{parent} table\")[0].querySelectorAll('th')].map((e) => e.innerText)"
        )
        assert shown[:8] == heads
    titles = page.run("[...document.querySelectorAll('main .card')].map((each) => each.querySelector('h2')?.innerText)")
    assert all(titles), "no card is without a name"


def test_rows_in_quarantine_can_be_read_and_chosen_on_a_phone(
    browser: Browser, served: str, tokens: dict[str, str], world: ToyWorld, ids: dict[str, int]
):
    columns: dict[str, list[Any]] = {f"column_{n}": ["a value of some length"] for n in range(12)}
    set_aside(world, columns, rules=["expect_column_values_to_be_between(amount)"])
    page = browser.page(PHONE, 900)
    page.cookie(served, "_token", tokens["admin"])
    goes(page, served, "quarantine", "1 row here")
    texts = page.run("[...document.querySelectorAll('tbody td')].filter((e) => e.offsetWidth).map((e) => e.innerText)")
    assert "expect_column_values_to_be_between(amount)" in texts[0], "why, next to what chooses it"
    assert texts[-1] == "a value of some length"
    assert page.run("document.querySelector('.scroll').scrollWidth <= document.querySelector('.scroll').clientWidth")
    page.click("tbody input")
    page.has("Release 1 row", "main")
    page.close()


SLOW = """
window.realFetch ??= window.fetch;
window.held = [];
window.fetch = (...words) => new Promise((go) => window.held.push(() => go(window.realFetch(...words))));
"""


def test_a_click_shows_at_once_that_it_was_taken_and_an_error_where_it_was_made(
    page: Page, served: str, world: ToyWorld, ids: dict[str, int]
):
    goes(page, served, f"checkpoint/{ids['last']}", "Roll back to here")
    page.run(SLOW)
    page.click("#act-rollback")
    assert page.run("document.querySelector('#act-rollback').getAttribute('aria-busy')") == "true"
    page.run("window.fetch = window.realFetch; window.held.forEach((go) => go())")
    page.has("No longer count", "dialog")
    assert not page.there("#act-rollback[aria-busy]")
    page.click("#dialog-cancel")

    page.run("window.fetch = () => Promise.resolve(new Response(JSON.stringify({error: {message: 'the table is gone',"
             " help: 'put it back'}}), {status: 409}))")  # fmt: skip
    page.click("#act-rollback")
    page.has("the table is gone — Help: put it back", "#act-rollback + .said")
    page.run("window.fetch = window.realFetch")

    goes(page, served, "overview", "Latest completed")
    page.click("#act-suspend")
    page.has("What it will do", "dialog")
    page.run(SLOW)
    page.click("#dialog-send")
    assert page.run("document.querySelector('#dialog-send').getAttribute('aria-busy')") == "true"
    assert page.run("document.querySelector('#dialog-send').disabled")
    page.run("window.fetch = window.realFetch; window.held.forEach((go) => go())")
    eventually("it is done", lambda: not page.there("dialog"))
    running(world)


def test_durations_counts_and_positions_are_written_as_people_write_them(page: Page, served: str, ids: dict[str, int]):
    goes(page, served, "overview", "Latest completed")
    place = page.run("document.querySelector('link[href$=\"/format.js\"]').href")

    def shown(function: str, *values: Any) -> list[Any]:
        script = f"import('{place}').then((f) => {json.dumps(values)}.map((value) => f.{function}(value)))"
        found: list[Any] = page.run(script)
        return found

    assert shown("seconds", 0.4, 59.97, 60, 119.6, 3599.7, 7199.0) == [
        "400 ms",
        "1 min",
        "1 min",
        "2 min",
        "1 h",
        "2 h",
    ]
    assert shown("count", 2.5, 1234.4, 0) == ["3", "1,234", "0"]
    assert shown("rate", 2.54, 123.4) == ["2.5", "123"]
    assert shown("positionTexts", {"at": 3, "seen": [{}, {}, {}, {}], "in": {"a": None}})[0] == [
        "at: 3",
        "seen: 4 entries",
        "in.a: –",
    ]


def test_a_cause_that_the_banner_tells_is_not_told_again(page: Page, served: str, world: ToyWorld, ids: dict[str, int]):
    failed = world.trigger("airflow:orders:told once")
    decision = Decision(**stamp("0"), id=failed, outcome="aborted", reason="JOB_FAILED", detail="the disk has gone")
    world.ledger.create_decision(decision)
    try:
        goes(page, served, "overview", "as told above")
        assert page.text("main").lower().count("the disk has gone") == 1
    finally:
        running(world)
        world.checkpoint("airflow:orders:told once, then well", rows=1)
