"""Pages that anybody can read: by a screen reader and by keyboard, light and dark, on a wide screen and on a phone.

axe-core looks at every page, as accessibility checkers do (github.com/dequelabs/axe-core).
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.dags.server import DATABASES
from tests.kit.sampling import in_turn, turn_of
from tests.kit.toy_world import ToyWorld
from tests.kit.waiting import eventually
from tests.ui.browser import Browser, Page
from tests.ui.known_dags import SIXTY, put_dag, put_table, set_aside
from tests.ui.states import break_rules, hold, propose, running, work
from tidegate import seams
from tidegate.checkpoint import suspension
from tidegate.history.table import remember
from tidegate.lifecycle import control, savepoint
from tidegate.records.records import FoundColumn

pytestmark = in_turn(seconds=42)

AXE = "4.14.1"
AXE_HASH = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
PHONE, WIDE, HIGH = 420, 1400, 900
SIDE_BY_SIDE = "compare?before={first}&after={last}"
SHOWS = {
    "overview": "Latest completed",
    "history": "in all",
    "checkpoint/{last}": "Barriers",
    "checkpoint/{failed}": "JOB_FAILED",
    "summary": "Start delay",
    "graph": "Select a part",
    "plots": "as numbers",
    SIDE_BY_SIDE: "Measures",
    "proposals": "proposal-readable",
    "proposal/proposal-readable": "topic is not compared",
    "quarantine": "rows here",
    "configuration": "Defaults (",
    "audit": "Actions from these pages",
}
SERIOUS = """
axe.run(document, {resultTypes: ["violations"]}).then(({ violations }) =>
  violations
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html).join(" | ")}`))
"""


@pytest.fixture(scope="session")
def axe() -> str:
    """The script, fetched from npm once and known by its hash."""
    kept = DATABASES / f"axe-{AXE}.js"
    if not kept.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("there is no npm on the PATH to fetch axe-core with")
        with tempfile.TemporaryDirectory() as folder:
            words = [npm, "pack", f"axe-core@{AXE}", "--silent", "--pack-destination", folder]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
            if done.returncode != 0:
                pytest.skip(f"npm cannot fetch axe-core: {done.stderr[-300:]}")
            packed = Path(folder, f"axe-core-{AXE}.tgz").read_bytes()
        assert base64.b64encode(hashlib.sha512(packed).digest()).decode() == AXE_HASH
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            found = archive.extractfile("package/axe.min.js")
            assert found is not None
            kept.write_bytes(found.read())
    return kept.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def ids(world: ToyWorld) -> dict[str, int]:
    """Checkpoints of all kinds, with a name, with rows that wait."""
    if suspension.suspended(world.ledger.view(), 10**6) is not None:
        control.resume(world.ledger, "somebody", "")
    first = world.checkpoint("airflow:orders:readable", rows=3)
    failed = world.trigger("airflow:orders:unreadable")
    world.coordinator().abort(failed, "JOB_FAILED", "the file is gone\n  Help: put it back")
    for n in range(30):
        last = world.checkpoint(f"airflow:orders:readable {n}", rows=3)
    savepoint.create(world.ledger, "readable", last, "mia", "for readers")
    propose(world, "proposal-readable")
    remember(world.ledger, {})
    set_aside(world, {"amount": [-1, -2], "customer": ["a", None]}, rules=["positive"])
    return {"first": first, "last": last, "failed": failed}


def opened(browser: Browser, served: str, token: str, theme: str, width: int) -> Page:
    page = browser.page(width, HIGH)
    page.cookie(served, "_token", token)
    page.call("Page.addScriptToEvaluateOnNewDocument", source=f"localStorage.setItem('theme', '{theme}')")
    return page


def goes(page: Page, served: str, where: str, text: str) -> None:
    page.goto(f"{served}/tidegate/dag/orders?{where.partition('?')[0]}#/{where}")
    page.has(text, "main")


SIDES = [("light", WIDE), ("dark", PHONE)]
if "SCREENSHOTS" in os.environ:  # for people who look at all of them: SCREENSHOTS=/where/to make test T=…
    SIDES += [("light", PHONE), ("dark", WIDE)]
else:
    SIDES = turn_of(SIDES, 2)


@pytest.mark.parametrize(("theme", "width"), SIDES)
def test_everybody_can_read_every_page(
    browser: Browser, served: str, tokens: dict[str, str], ids: dict[str, int], axe: str, theme: str, width: int
):
    page = opened(browser, served, tokens["admin"], theme, width)
    found: dict[str, Any] = {}
    for name, text in SHOWS.items():
        where = name.format(**ids)
        goes(page, served, where, text)
        assert page.run("document.documentElement.dataset.theme") == theme
        page.run(f"{axe}; 0")
        page.run("document.querySelectorAll('details').forEach((each) => each.open = true)")
        told = page.run(SERIOUS)
        if told:
            found[name] = told
        keep(page, f"{theme}-{width}-{where.partition('?')[0].replace('/', '-')}")
    page.goto(f"{served}/tidegate/pipelines")
    page.has("orders", "tbody")
    page.run(f"{axe}; 0")
    found |= {"pipelines": told} if (told := page.run(SERIOUS)) else {}
    keep(page, f"{theme}-{width}-pipelines")
    goes(page, served, "overview", "Latest completed")
    page.click("#act-trigger")
    page.run(f"{axe}; 0")
    found |= {"dialog": told} if (told := page.run(SERIOUS)) else {}
    keep(page, f"{theme}-{width}-dialog")
    page.close()
    assert found == {}, json.dumps(found, indent=1)


def keep(page: Page, name: str) -> None:
    """A picture of the whole page, for people, where SCREENSHOTS says."""
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        high = page.run("document.documentElement.scrollHeight")
        width = page.run("innerWidth")
        page.size(width, min(high, 4000))
        page.screenshot(Path(folder, f"{name}.png"))
        page.size(width, HIGH)


class State(NamedTuple):
    """What an operator meets at night: how it comes about, where it is seen, by what, and what is opened there."""

    make: Callable[[ToyWorld], int]
    where: str
    shows: str
    opens: tuple[tuple[str, str], ...] = ()
    """Selectors that are clicked, each with what the page shows then."""
    unfolds: bool = False
    """Whether sections are unfolded, which are folded on a phone, also if nothing is clicked."""


def _open(world: ToyWorld) -> int:
    id = world.trigger("airflow:orders:open to be read")
    work(world, id)
    return id


def _suspended(world: ToyWorld) -> int:
    control.suspend(world.ledger, "mia", "the supplier repairs its prices")
    return 0


def _differing(world: ToyWorld) -> int:
    made = [world.checkpoint(f"airflow:orders:paid {seams.new_id()}", rows=1) for _ in range(2)]
    folder = world.root / f"paid {made[0]}"
    for version, rows in enumerate([{"id": [1, 2], "paid": ["9.50", "1"]}, {"id": [1, 3], "paid": ["12.00", None]}]):
        write_deltalake(str(folder), pa.table(rows), mode="overwrite")
        put_table(world, made[version], "b", folder, version)
    return made[1]


def _waiting_rows(world: ToyWorld) -> int:
    rows = {"amount": [-n for n in range(1, 13)], "customer": [f"customer {n % 5}" for n in range(12)]}
    set_aside(world, rows, rules=["positive", "known customer"])
    return 0


def _drifting(world: ToyWorld) -> int:
    new = seams.new_id()  # each time another column
    return world.drifting_checkpoint(
        f"airflow:orders:drifting {new}",
        FoundColumn(path=f"vip_{new}", kind="new", type="boolean", records=1_204, file="2026/11/30/0007.json"),
        FoundColumn(path="customer.tier", kind="new", type="string", records=12, file="2026/11/30/0007.json"),
        FoundColumn(path="ID", kind="case", type="bigint", records=3, file="2026/11/30/0009.json"),
        FoundColumn(path="id", kind="type", type="string", records=2, file="2026/11/30/0008.json"),
    )


def _evolved(world: ToyWorld) -> int:
    _drifting(world)
    return world.drifting_checkpoint(f"airflow:orders:evolved {seams.new_id()}")


CHANGES = "[data-key^='changes '][data-key$=' b'] button"
STATES = {
    "held": State(hold, "checkpoint/{id}", "Approve"),
    "held-quarantining": State(
        lambda world: hold(world, quarantines=True), "checkpoint/{id}", "Quarantine",
        (("#act-quarantine", "What it will do"),),
    ),
    "held-approving": State(hold, "checkpoint/{id}", "Approve", (("#act-approve", "What it will do"),)),
    "open": State(_open, "checkpoint/{id}", "3 of 12 tasks"),
    "open-overview": State(_open, "overview", "3 of 12 tasks"),
    "broken-rules": State(
        lambda world: break_rules(world, "airflow:orders:to be judged"), "checkpoint/{id}", "For example",
        (("[data-key^='findings '] button", "-5"), ("[data-key^='trend '] button", "positive")),
    ),
    "broken-rules-overview": State(
        lambda world: break_rules(world, "airflow:orders:to be judged"), "overview", "For example"
    ),
    "table-differs": State(_differing, "checkpoint/{id}", "Barriers", ((CHANGES, "1 changed, by id."),)),
    "rollback": State(_differing, "checkpoint/{id}", "Barriers", (("#act-rollback", "What it will do"),)),
    "suspended": State(_suspended, "overview", "the button Resume"),
    "drifting": State(_drifting, "checkpoint/{id}", "Barriers", unfolds=True),
    "schemas": State(
        _evolved, "graph?checkpoint={id}&part=in", "Still waiting", (("[data-key='schema in'] button", "found by"),)
    ),
    "quarantine-rows": State(_waiting_rows, "quarantine", "12 rows here"),
}  # fmt: skip


@pytest.mark.parametrize("name", turn_of(list(STATES), 3))
def test_everybody_can_read_what_goes_wrong(
    browser: Browser, served: str, tokens: dict[str, str], ids: dict[str, int], axe: str, world: ToyWorld, name: str
):
    running(world)
    state = STATES[name]
    id = state.make(world)
    found: dict[str, Any] = {}
    try:
        turn = list(STATES).index(name) % len(SIDES)
        for theme, width in SIDES if "SCREENSHOTS" in os.environ else SIDES[turn : turn + 1]:
            page = opened(browser, served, tokens["admin"], theme, width)
            goes(page, served, state.where.format(id=id), state.shows)
            if state.opens or state.unfolds:
                page.run("document.querySelectorAll('details').forEach((each) => each.open = true)")
            for selector, text in state.opens:
                page.click(selector)
                eventually("it is loaded", lambda: page.there("dialog") or not page.there(selector))  # noqa: B023
                page.has(text)
            page.run(f"{axe}; 0")
            wide = page.run("document.documentElement.scrollWidth")
            if (told := page.run(SERIOUS)) or wide > width:
                found[f"{theme} {width}"] = told, wide
            keep(page, f"{theme}-{width}-state-{name}")
            if name in ("suspended", "held"):
                page.goto(f"{served}/tidegate/pipelines")
                page.has("attention", "main")
                keep(page, f"{theme}-{width}-state-{name}-in-the-list")
            page.close()
    finally:
        running(world)
    assert found == {}, json.dumps(found, indent=1)


BOXES = """
[...document.querySelectorAll(".graph rect:not(.stripe)")].map((each) => each.getBoundingClientRect())
  .map(({ left, top, right, bottom }) => [left, top, right, bottom])
"""
TOO_LONG = """
right = (each) => each.getBBox().x + each.getBBox().width,
[...document.querySelectorAll(".graph g")].flatMap((each) => [...each.querySelectorAll("text")]
  .filter((text) => right(text) > right(each.querySelector("rect")))
  .map((text) => text.textContent))
"""


STEEPEST = """
Math.max(...[...document.querySelectorAll(".graph path[marker-end]")].map((each) => each.getBBox().height))
"""


def test_a_graph_of_sixty_parts_can_be_read(browser: Browser, served: str, tokens: dict[str, str], tmp_path: Path):
    put_dag(tmp_path, "sixty", SIXTY)
    for theme, width in SIDES:
        page = opened(browser, served, tokens["admin"], theme, width)
        page.goto(f"{served}/tidegate/dag/sixty#/graph")
        page.has("counted_9", "main")
        boxes = page.run(BOXES)
        assert len(boxes) == 60
        crossing = [(a, b) for a in boxes for b in boxes if a < b and overlap(a, b)]
        assert crossing == [], "no part hides another one"
        assert page.run(TOO_LONG) == [], "no text leaves its box"
        assert page.run(STEEPEST) <= 400, "no line runs over many parts"
        assert page.run("document.documentElement.scrollWidth") <= width
        keep(page, f"{theme}-{width}-graph-of-sixty")
        page.click("#zoom-fit")
        page.has("100 %", "main")
        eventually("it fits", lambda: max(right for _, _, right, _ in page.look(BOXES)) <= width)  # noqa: B023
        keep(page, f"{theme}-{width}-graph-of-sixty-fitted")
        page.close()


def overlap(a: list[float], b: list[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def test_two_checkpoints_are_named_in_each_table_that_compares_them(
    browser: Browser, served: str, tokens: dict[str, str], ids: dict[str, int]
):
    page = opened(browser, served, tokens["admin"], "light", WIDE)
    goes(page, served, SIDE_BY_SIDE.format(**ids), "Source positions")
    heads = page.run("[...document.querySelectorAll('thead')].map((each) => each.innerText)")
    page.close()
    assert len(heads) == 3
    assert all(f"#{ids['first']}" in head and f"#{ids['last']}" in head for head in heads), heads


@pytest.mark.parametrize("width", [PHONE, WIDE])
def test_no_page_is_wider_than_its_screen_nor_longer_than_three(
    browser: Browser, served: str, tokens: dict[str, str], ids: dict[str, int], width: int
):
    page = opened(browser, served, tokens["admin"], "light", width)
    sizes: dict[str, tuple[int, int]] = {}
    for name, text in SHOWS.items():
        goes(page, served, name.format(**ids), text)
        wide, high = page.run("[document.documentElement.scrollWidth, document.querySelector('main').offsetHeight]")
        if wide > width or high > 3 * HIGH:
            sizes[name] = (wide, high)
    page.close()
    assert sizes == {}


def test_a_page_is_walked_and_an_action_taken_by_keyboard_alone(
    browser: Browser, served: str, tokens: dict[str, str], ids: dict[str, int]
):
    page = opened(browser, served, tokens["admin"], "light", WIDE)
    goes(page, served, "overview", "Latest completed")
    for _ in range(30):
        page.key("Tab")
        if page.run("document.activeElement.id") == "act-trigger":
            break
    assert page.run("document.activeElement.id") == "act-trigger"
    page.key("Enter")
    eventually("the dialog is there", lambda: page.there("dialog"))
    assert page.run("document.querySelector('dialog').contains(document.activeElement)")
    page.key("Escape")
    eventually("the dialog is gone", lambda: not page.there("dialog"))
    assert page.run("document.activeElement.id") == "act-trigger", "back where one was"
    page.close()
