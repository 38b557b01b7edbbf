"""Pages while time passes: what a reader has opened stays, addresses are kept, and a server or a login may be away.

In a real Chromium, against Airflow's own web server in this process.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.dags.conftest import HOME
from tests.kit.sampling import in_turn
from tests.kit.toy_world import ToyWorld
from tests.kit.waiting import eventually
from tests.ui.browser import Browser, Page
from tidegate import seams
from tidegate.checkpoint import suspension
from tidegate.history.table import remember
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import control, savepoint
from tidegate.records.records import Amount, JobNote

pytestmark = in_turn(seconds=40)

FRAME = "document.querySelector('iframe')?.contentDocument"
REFRESH = "window.dispatchEvent(new CustomEvent('tidegate:changed'))"


@pytest.fixture(scope="module")
def ids(world: ToyWorld) -> list[int]:
    if suspension.suspended(world.ledger.view(), 10**6) is not None:
        control.resume(world.ledger, "somebody", "")
    made = [world.checkpoint(f"airflow:orders:live {n}", rows=3) for n in range(3)]
    remember(world.ledger, {})
    return made


@pytest.fixture
def page(page: Page, ids: list[int]) -> Page:
    """The page of a pipeline that has these checkpoints."""
    return page


def shows(page: Page, served: str, where: str, text: str) -> None:
    page.goto(f"{served}/tidegate/dag/orders#/{where}")
    page.has(text, "main")


def test_a_redraw_closes_and_moves_nothing_that_a_reader_has_opened(page: Page, served: str, world: ToyWorld, ids):
    page.size(1400, 300)
    shows(page, served, f"checkpoint/{ids[0]}", "Barriers")
    page.run("document.querySelectorAll('details').forEach((each) => each.open = true)")
    page.click(f"[data-key='manifest {ids[0]}'] button")
    page.has('"positions"', f"[data-key='manifest {ids[0]}']")
    page.run("window.scrollTo(0, 400); window.seen = [...document.querySelectorAll('details, pre, table')]; 0")
    before = page.run("window.scrollY")
    assert before > 100
    savepoint.create(world.ledger, "while-looking", ids[0], "mia", "")
    page.run(REFRESH)
    page.has("savepoint while-looking", "main")
    assert page.run("seen.length") > 5
    assert page.run("seen.every((each) => each.isConnected)")
    assert page.run("seen.filter((each) => each.nodeName === 'DETAILS').every((each) => each.open)")
    assert page.run("window.scrollY") == before
    savepoint.dispose(world.ledger, "while-looking")
    assert page.wrong == []


def test_a_new_checkpoint_moves_no_row_out_from_under_a_reader(page: Page, served: str, world: ToyWorld, ids):
    shows(page, served, "history", f"#{ids[-1]}")
    page.run(f"window.seen = document.querySelector('#row-{ids[0]}').closest('tr'); 0")
    page.click(f"#pick-{ids[0]}")
    page.run("document.querySelector('#filter').focus(); document.querySelector('#filter').value = 'half a wo'")
    made = world.checkpoint("airflow:orders:another", rows=1)
    page.run(REFRESH)
    page.has(f"#{made}", "tbody")
    assert page.run(f"document.querySelector('#row-{ids[0]}').closest('tr') === seen")
    assert page.run(f"document.querySelector('#pick-{ids[0]}').checked")
    assert page.run("document.activeElement.id + document.activeElement.value") == "filterhalf a wo"


def test_ticks_of_a_page_that_has_been_redrawn_still_count(page: Page, served: str, world: ToyWorld, ids):
    """A handler that holds on to a button of an earlier drawing would switch that one on."""
    shows(page, served, "history", f"#{ids[-1]}")
    page.click(f"#pick-{ids[0]}")
    page.run(REFRESH)
    made = world.checkpoint("airflow:orders:between", rows=1)
    page.run(REFRESH)
    page.has(f"#{made}", "tbody")
    assert page.run("document.querySelector('#compare').disabled")
    page.click(f"#pick-{ids[1]}")
    page.click("#compare")
    page.has("Source positions", "main")
    assert page.run("location.hash") == f"#/compare?before={ids[0]}&after={ids[1]}"


def test_an_open_checkpoint_tells_what_its_job_does_and_for_how_long(page: Page, served: str, world: ToyWorld, ids):
    id = world.trigger("airflow:orders:open")
    shows(page, served, f"checkpoint/{id}", "the last completed one took")
    began = page.text(".lanes")
    eventually("the clock goes on, though nobody has said anything", lambda: page.text(".lanes") not in ("", began))
    note = JobNote(
        **stamp(seams.new_id()),
        id=id,
        job="main",
        started=seams.now().isoformat(),
        step="stage a",
        current_step_seconds=7.0,
        step_seconds={"read": 0.5, "gate enough": 1.5},
        read={"in": Amount(rows=1200, bytes=34_000)},
        tasks_done=3,
        tasks=12,
        bytes_read=9_000,
    )
    world.ledger.hint_progress(note)
    page.has('at "stage a" for', ".doing")
    page.has("3 of 12 tasks (25 %) · 9.0 kB read · 1,200 rows in · 34.0 kB in · 2 steps done", ".doing")
    told = page.text(".doing")
    eventually("it counts on by itself", lambda: page.text(".doing") not in ("", told))
    world.coordinator().abort(id, "CANCELLED", "by hand")
    page.has("CANCELLED", "main")
    assert not page.there(".doing")
    assert world.ledger.progress("main") is not None, "it stays where it is, and is of another checkpoint from then on"


def test_an_open_checkpoint_does_not_look_done_from_the_first_moment(page: Page, served: str, world: ToyWorld, ids):
    world.checkpoint("airflow:orders:in no time", rows=1)
    page.goto(f"{served}/tidegate/dag/orders")
    lanes = page.run("document.querySelector('link[href$=\"/lanes.js\"]').href")
    row = {"planned": "2026-03-01T10:00:00Z", "decided": None, "published": None, "progress": {}}
    row |= {"details": {"jobs": {}, "missing_acks": ["main"], "overtaken_jobs": {}}}
    widths = []
    for now in ("2026-03-01T10:00:06Z", "2026-03-01T10:00:30Z", "2026-03-01T10:02:00Z"):
        drawn = f"import('{lanes}').then(({{ lanes }}) => lanes({json.dumps(row)}, '{now}', 60))"
        widths.append(page.run(f"{drawn}.then((each) => each.querySelector('.process-part').style.width)"))
    assert widths == ["10%", "50%", "100%"]


def test_an_error_and_what_to_do_about_it_are_told_apart(page: Page, served: str, world: ToyWorld, ids):
    failed = world.trigger("airflow:orders:told apart")
    world.coordinator().abort(failed, "JOB_FAILED", "the file is gone\n  Expected: a file\n  Help: put it back")
    world.checkpoint("airflow:orders:told apart, then well", rows=1)
    remember(world.ledger, {})
    for where, shown in (("overview", "[data-key='card Latest failed']"), (f"checkpoint/{failed}", ".banner")):
        shows(page, served, where, "Latest failed" if where == "overview" else f"Checkpoint #{failed}")
        told = page.run(f'[...document.querySelectorAll("{shown} .told p")].map((each) => each.innerText)')
        assert told == ["the file is gone", "Expected a file", "What to do put it back"], where
    assert page.wrong == []


def test_the_address_of_a_view_is_airflows_own_and_survives_a_reload(page: Page, served: str, ids: list[int]):
    page.goto(f"{served}/dags/orders/plugin/checkpoints")
    page.here = FRAME
    page.has("Status", "nav")
    page.click("#tab-history")
    page.click(f"#row-{ids[0]}")
    page.has(f"Checkpoint #{ids[0]}", "main")
    assert page.run("location.pathname + location.hash") == f"/dags/orders/plugin/checkpoints#/checkpoint/{ids[0]}"
    page.run("window.isBeforeReload = true")
    page.call("Page.reload")
    eventually("it is reloaded", lambda: page.is_new("isBeforeReload"))
    page.has(f"Checkpoint #{ids[0]}", "main")
    page.run(f"{FRAME}.querySelector(\"a[href='#/checkpoint/{ids[1]}']\").click()")
    page.has(f"Checkpoint #{ids[1]}", "main")
    page.run("history.back()")
    page.has(f"Checkpoint #{ids[0]}", "main")
    eventually("the address has followed", lambda: page.look("location.hash") == f"#/checkpoint/{ids[0]}")
    page.run(f"location.hash = '#/checkpoint/{ids[2]}'")  # somebody pastes an address
    page.has(f"Checkpoint #{ids[2]}", "main")


def test_a_connection_that_is_lost_is_a_small_notice_that_goes_by_itself(page: Page, served: str, ids: list[int]):
    shows(page, served, f"checkpoint/{ids[0]}", "Barriers")
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.call("Network.emulateNetworkConditions", offline=True, **offline)
    page.run(REFRESH)
    page.has("No connection to Airflow since", "#connection")
    page.has("Barriers", "main")
    page.call("Network.emulateNetworkConditions", offline=False, **offline)
    eventually("the notice is gone", lambda: not page.there("#connection"))
    assert all("net::ERR_INTERNET_DISCONNECTED" in each for each in page.wrong), page.wrong


def test_a_login_that_has_expired_leads_to_the_login_and_back(page: Page, served: str, ids: list[int]):
    shows(page, served, f"checkpoint/{ids[0]}", "Barriers")
    page.call("Network.clearBrowserCookies")
    page.run(REFRESH)
    logs_in(page)
    page.has("Barriers", "main")
    assert page.run("location.pathname + location.hash") == f"/tidegate/dag/orders#/checkpoint/{ids[0]}"


def test_who_opens_a_page_without_a_login_gets_to_it_through_the_login(browser: Browser, served: str, ids: list[int]):
    nobody = browser.page()
    nobody.goto(f"{served}/tidegate/dag/orders#/checkpoint/{ids[0]}")
    logs_in(nobody)
    nobody.has("Barriers", "main")
    assert nobody.run("location.pathname + location.hash") == f"/tidegate/dag/orders#/checkpoint/{ids[0]}"
    nobody.close()


def logs_in(page: Page) -> None:
    """By the form of Airflow's Simple auth manager."""
    passwords = json.loads((HOME / "simple_auth_manager_passwords.json.generated").read_text())
    fields: dict[str, Any] = {"username": "admin", "password": passwords["admin"]}
    for name, value in fields.items():
        eventually("there is the form", lambda name=name: page.there(f"input[name={name}]"))
        # React hears only of what its own setter has not seen.
        page.run(
            f"(() => {{ const it = document.querySelector('input[name={name}]');"
            " Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value')"
            f".set.call(it, {json.dumps(value)}); it.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
        )
    page.click("button[type=submit]")
