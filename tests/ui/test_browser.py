"""The pages inside a real Airflow, in a real Chromium: every page and every action, by who may and who may not.

One Airflow, one pipeline, one story: each test continues where the one before it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.dags.project import MULTIPLIES, ODD_IS_BAD, Made
from tests.dags.server import Run
from tests.kit.sampling import in_turn, only_with_all, turn_of
from tests.kit.waiting import eventually
from tests.ui.airflow_dialogs import fill_backfill, run_backfill
from tests.ui.airflow_with_roles import AirflowWithRoles
from tests.ui.broken_pipelines import Walk
from tests.ui.browser import Browser, Page

pytestmark = in_turn(seconds=300)

FRAME = "document.querySelector('iframe')?.contentDocument"
PAGES = (
    "overview",
    "history",
    "checkpoint/1",
    "summary",
    "graph",
    "plots",
    "compare",
    "quarantine",
    "configuration",
    "audit",
)


@pytest.fixture(scope="module")
def walk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """A real Airflow in which roles matter, with a pipeline that is well, and five that are going to break."""
    home = tmp_path_factory.mktemp("airflow")
    made = AirflowWithRoles(home, AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL="2")
    made.project.pipeline("shop", gate=ODD_IS_BAD, interval="never").feed()
    (made.project.folder / "shop" / "policy").write_text("quarantine")
    walk = Walk(made)
    walk.declare()
    with made as started:
        started.known("shop")
        yield walk


@pytest.fixture(scope="module")
def airflow(walk: Walk) -> AirflowWithRoles:
    return walk.airflow


@pytest.fixture(scope="module")
def broken(walk: Walk) -> Walk:
    """All five, broken."""
    for name in walk.made:
        walk.airflow.known(name)
    walk.breaks()
    return walk


@pytest.fixture(scope="module")
def newcomer(browser: Browser, airflow: AirflowWithRoles) -> Page:
    """Somebody who may act, and has never seen any of it."""
    return airflow.page(browser, "user")


@pytest.fixture(scope="module")
def made(airflow: AirflowWithRoles) -> Made:
    shop = Made(airflow.project, "shop")
    shop.fed = 1
    return shop


@pytest.fixture(scope="module")
def page(browser: Browser, airflow: AirflowWithRoles) -> Page:
    """A user at the DAG's tab, in Airflow's own page: the tab is a frame in it."""
    opened = airflow.page(browser, "user")
    opened.goto(f"http://127.0.0.1:{airflow.port}/dags/shop/plugin/checkpoints")
    opened.here = FRAME
    return opened


def at(page: Page, where: str) -> None:
    page.run(f"document.querySelector('iframe').contentWindow.location.hash = '#/{where}'")


def done(page: Page, button: str, **fields: Any) -> None:
    """Press a button, fill in what it asks, say yes, and wait: until then the page takes nothing else."""
    page.click(f"#{button}")
    for name, value in fields.items():
        if value is True:
            page.click(f"#field-{name}")
        else:
            page.type(f"#field-{name}", value)
    sent(page)


def sent(page: Page) -> None:
    page.click("#dialog-send")
    try:
        eventually("the dialog is gone", lambda: not page.there("dialog"))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{page.text('dialog')}") from None


def ended(airflow: AirflowWithRoles, count: int) -> str:
    """The state of the newest of so many runs, when it has ended."""
    runs = eventually(f"there are {count} runs", lambda: (r := airflow.runs("shop")) and len(r) >= count and r)
    return str(runs[-1].ended())


def test_a_checkpoint_is_made_and_watched(page: Page, airflow: AirflowWithRoles, made: Made):
    page.has("has no checkpoint yet")
    done(page, "act-trigger", note="the first one")
    assert ended(airflow, 1) == "success"
    at(page, "history")
    page.has("#1")
    page.has("completed", "tbody")
    page.click("#row-1")
    page.has("Checkpoint #1", "main")
    page.has("checked", "main")
    page.has("2 quarantined", "main")
    assert page.wrong == []


def test_every_page_shows_what_it_is_for(page: Page, airflow: AirflowWithRoles, made: Made):
    made.feed()
    airflow.trigger("shop")
    assert ended(airflow, 2) == "success"
    shows = {
        "overview": "Latest completed",
        "history": "2 in all",
        "checkpoint/2": "Barriers",
        "summary": "p95",
        "graph": "gate · even",
        "plots": "as numbers",
        "compare?before=1&after=2": "Source positions",
        "quarantine": "4 rows here",
        "configuration": "Defaults (",
        "audit": "the first one",
    }
    shown: dict[str, str] = {}
    for where, text in shows.items():
        at(page, where)
        page.has(text, "main")
        page.run(f"{FRAME}.querySelectorAll('details').forEach((each) => each.open = true)")
        shown[where] = page.text("main")
    assert not {"False", "True", "None"} & set(shown["configuration"].split()), "as tidegate.toml has them"
    assert page.wrong == []


def test_a_held_checkpoint_is_approved_and_another_one_rejected(page: Page, airflow: AirflowWithRoles, made: Made):
    (made.folder / "policy").write_text("hold")
    for verdict, state in (("approve", "completed"), ("reject", "aborted")):
        made.feed()
        run = airflow.trigger("shop")
        run.until("gate_checked", "deferred", "awaiting_input")
        id = made.entries[-1].id
        at(page, f"checkpoint/{id}")
        page.has("Held by gate checked", "main")
        done(page, f"act-{verdict}", note="looked at it")
        assert run.ended() == ("success" if verdict == "approve" else "failed")
        page.has(state, "main")
        page.has("by user in Airflow: looked at it", "main")
    (made.folder / "policy").write_text("quarantine")


def test_a_suspended_pipeline_says_why_and_continues(page: Page, airflow: AirflowWithRoles, made: Made):
    at(page, "overview")
    page.has("suspended", "header")
    done(page, "act-resume", note="the rules are mended")
    page.has("Suspend", "header")
    done(page, "act-suspend", note="the feed is being repaired")
    page.has("the feed is being repaired", ".banner")
    done(page, "act-resume")
    page.has("Suspend", "header")


def test_a_checkpoint_gets_a_name_and_is_gone_back_to(page: Page, airflow: AirflowWithRoles, made: Made):
    at(page, "checkpoint/2")
    done(page, "act-savepoint", name="before-sale", note="prices")
    page.has("savepoint before-sale", "main")
    before = len(airflow.runs("shop"))
    page.click("#act-rollback")
    page.has("No longer count", "dialog")
    page.has("#3", "dialog")
    sent(page)
    assert ended(airflow, before + 1) == "success"
    last = made.entries[-1]
    assert (last.rollback.target, last.rollback.by) == (2, "user in Airflow")
    at(page, "history")
    page.has("rolled back", "tbody")
    page.has("rollback", "tbody")
    at(page, "overview")
    done(page, "act-dispose-before-sale")
    eventually("it has no name", lambda: not page.there("[data-key='savepoint before-sale']"))


def test_a_run_by_hand_cannot_ask_for_what_needs_more_than_to_trigger(airflow: AirflowWithRoles, made: Made):
    before = made.ledger.ids()
    run = airflow.trigger("shop", conf={"rollback": {"to": 2, "undone": [*range(3, 99)], "suspend": True}})
    assert run.ended() == "failed"
    assert made.ledger.ids() == before


def test_one_row_in_quarantine_is_corrected_and_released(page: Page, airflow: AirflowWithRoles, made: Made):
    at(page, "quarantine")
    page.has("even", "tbody")
    page.click("tbody input")
    done(page, "act-release-rows", column="id", value="4200", note="it is fine like that")
    eventually("the request is there", lambda: made.ledger.requests("checked"))
    before = len(airflow.runs("shop"))
    page.click("#act-trigger")  # pressed twice, asked once
    done(page, "act-trigger")
    assert ended(airflow, before + 1) == "success"
    at(page, f"checkpoint/{made.entries[-1].id}")
    page.has("1 released", "main")
    assert [id for id, _ in made.rows("every") if id == 4200] == [4200]


def test_all_of_it_is_written_down(page: Page, made: Made):
    at(page, "audit")
    page.has("rollback", "tbody")
    acts = [act.action for act, acted in made.ledger.acts(50) if acted is not None and acted.succeeded]
    assert set(acts) >= {"trigger", "approve", "reject", "resume", "suspend", "savepoint", "rollback", "release"}
    assert {act.by for act, _ in made.ledger.acts(50)} == {"user in Airflow"}


def test_the_run_has_a_tab_and_the_navigation_an_entry(browser: Browser, airflow: AirflowWithRoles):
    url = f"http://127.0.0.1:{airflow.port}"
    opened = airflow.page(browser, "viewer")
    run = airflow.runs("shop")[0].run_id
    opened.goto(f"{url}/dags/shop/runs/{run}/plugin/checkpoint")
    opened.here = FRAME
    opened.has("Checkpoint #1", "main")
    opened.goto(f"{url}/plugin/tidegate")
    opened.has("shop", "main")
    opened.click("#pipeline-shop")
    eventually("the DAG's page is there", lambda: "/dags/shop/plugin/checkpoints" in opened.look("location.href"))
    opened.has("Status", "nav")
    assert opened.wrong == []


def test_who_may_only_look_is_offered_nothing_and_gets_nothing(browser: Browser, airflow: AirflowWithRoles):
    url = f"http://127.0.0.1:{airflow.port}"
    opened = airflow.page(browser, "viewer")
    opened.goto(f"{url}/tidegate/dag/shop")
    opened.has("Latest completed", "main")
    assert not opened.there("[id^=act-]")
    status = opened.run(
        "fetch('/tidegate/api/v1/dags/shop/actions/suspend', {method: 'POST', body: '{}',"
        " headers: {'Content-Type': 'application/json'}}).then((answer) => answer.status)"
    )
    assert status == 403
    nobody = browser.page()
    nobody.goto(f"{url}/tidegate/dag/shop")
    eventually("Airflow asks who it is", lambda: nobody.look("location.pathname") == "/auth/login")


@pytest.mark.parametrize("role", ["op", "admin"])
def test_others_who_may_are_offered_the_same(browser: Browser, airflow: AirflowWithRoles, role: str):
    opened = airflow.page(browser, role)
    opened.goto(f"http://127.0.0.1:{airflow.port}/tidegate/dag/shop")
    opened.has("Suspend", "header")
    assert opened.there("#act-trigger")


def test_it_is_light_or_dark_as_airflow_is_and_follows(page: Page):
    theme = f"{FRAME}.documentElement.dataset.theme"
    seen = "getComputedStyle({}.documentElement).backgroundColor"
    for name, other in (("dark", "light"), ("light", "dark")):
        page.run(f"document.documentElement.classList.replace('{other}', '{name}'); 0")
        page.run(f"document.documentElement.classList.add('{name}'); 0")
        eventually(f"the frame is {name}", lambda name=name: page.look(theme) == name)
        eventually("there is no seam", lambda: page.look(seen.format("document")) == page.look(seen.format(FRAME)))


def test_a_page_is_walked_by_keyboard(browser: Browser, airflow: AirflowWithRoles):
    opened = airflow.page(browser, "viewer")
    opened.goto(f"http://127.0.0.1:{airflow.port}/tidegate/dag/shop#/overview")
    opened.has("Latest completed", "main")
    walked = []
    for _ in range(6):
        opened.key("Tab")
        walked.append(opened.run("document.activeElement.id"))
    assert [id for id in walked if id][:3] == ["tab-overview", "tab-history", "tab-summary"]
    assert walked.index("tab-overview") <= 2, "a strip of fifty bars is one stop"
    opened.run("document.getElementById('tab-history').focus()")
    opened.key("Enter")
    opened.has("in all", "main")
    opened.key("/")
    assert opened.run("document.activeElement.id") == "filter"


@pytest.mark.parametrize("where", PAGES)
def test_nothing_is_wider_than_a_phone(browser: Browser, airflow: AirflowWithRoles, where: str):
    opened = airflow.page(browser, "viewer", width=390, height=800)
    opened.goto(f"http://127.0.0.1:{airflow.port}/tidegate/dag/shop#/{where}")
    opened.has("shop", "h1")
    assert opened.run("document.documentElement.scrollWidth") <= 390
    opened.close()


# What broke: where the cause is told, and what to do about it.
WALK = {
    "bad_rows": (
        (
            "4 of 4 rows are bad, and at most 20 % may be",
            "00001.json",
            "For example: expect_column_values_to_be_between(file) 1",
        ),
        ("correct the writer of the source, or the gate's rules and limits", "then let it continue: the button Resume"),
    ),
    "lost_file": (("JOB_FAILED", "00001.json"), ("restore them and try again", "the button Resume")),
    "killed": (("without a message: its process was killed",), ("spark.memory", "the button Resume")),
    "full_disk": (("The disk that holds", "full_disk/ledger", "too little"), ("make room on the disk that holds",)),
    "changed": (
        ("STATE_CHANGED", "deduplicate 'once': by is file, and was id"),
        ("revert the change; or give a changed result another name",),
    ),
}


@pytest.mark.parametrize("name", turn_of(list(WALK), 5))
def test_a_newcomer_finds_out_with_one_click_what_broke_and_what_to_do(newcomer: Page, broken: Walk, name: str):
    """From the page of the DAG that is red, and from that of its run."""
    run = broken.runs[name].run_id
    for page, tab in ((name, "checkpoints"), (f"{name}/runs/{run}", "checkpoint")):
        newcomer.here = "document"
        newcomer.goto(f"http://127.0.0.1:{broken.airflow.port}/dags/{page}")
        newcomer.click(f"a[href$='/plugin/{tab}']")
        newcomer.here = FRAME
        causes, remedies = WALK[name]
        for text in causes:
            newcomer.has(text, ".banner")
        for text in remedies:
            newcomer.has(text, ".banner ol")


def test_all_that_is_broken_stands_on_the_list_with_its_cause(newcomer: Page, broken: Walk):
    newcomer.here = "document"
    newcomer.goto(f"http://127.0.0.1:{broken.airflow.port}/tidegate/pipelines")
    for causes, _ in WALK.values():
        newcomer.has(causes[0], "tbody")


def test_what_is_mended_as_told_continues(newcomer: Page, broken: Walk):
    broken.marker.unlink()
    broken.airflow.trigger("full_disk")
    newcomer.goto(f"http://127.0.0.1:{broken.airflow.port}/tidegate/dag/killed")
    done(newcomer, "act-resume", note="it has more memory now")
    newcomer.has("Suspend", "header")
    newcomer.goto(f"http://127.0.0.1:{broken.airflow.port}/tidegate/dag/full_disk")
    newcomer.has("full_disk is well: checkpoint", ".banner")


@only_with_all
def test_what_a_bug_made_is_computed_again_by_airflows_own_dialog_and_swapped_in_on_the_page(
    browser: Browser, airflow: AirflowWithRoles
):
    made = airflow.project.pipeline("mended", stage=MULTIPLIES, interval="10 s")
    (made.folder / "factor").write_text("1")
    made.feed()
    eventually("the first file is right", lambda: made.holds(1), 240)
    since = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)  # the dialog knows minutes
    eventually("the bug begins", lambda: datetime.now(UTC) > since)
    (made.folder / "factor").write_text("100")
    made.feed(2)
    eventually("two files are wrong", lambda: 300 in {file for _, file in made.rows("latest")}, 180)
    (made.folder / "factor").write_text("1")

    page = airflow.page(browser, "user")
    page.goto(f"http://127.0.0.1:{airflow.port}/dags/mended")
    fill_backfill(page, since, since + timedelta(minutes=1))
    run_backfill(page, airflow)
    replay = eventually("the replay begins", lambda: next(iter(airflow.runs("mended__backfill")), None))
    assert (replay.ended(), replay.run_id) == ("success", "backfill__1")
    followers = airflow.call("GET", "/dags/mended/dagRuns?run_type=backfill")["dag_runs"]
    followed = [Run(airflow, "mended", each["dag_run_id"]).ended() for each in followers]
    assert followed
    assert set(followed) == {"success"}

    page.goto(f"http://127.0.0.1:{airflow.port}/dags/mended/plugin/checkpoints")
    page.here = FRAME
    page.has("airflow-1", "main")
    page.has("What a swap would change", "main")
    page.click("#act-swap-airflow-1")
    page.has("Rows after", "dialog")
    sent(page)
    swap = eventually("the swap begins", lambda: airflow.runs("mended__backfill")[1:])[0]
    assert swap.ended() == "success"
    made.check(3)
    at(page, "audit")
    page.has("swap", "tbody")

    at(page, "overview")
    done(page, "act-suspend", note="to look at the result")
    eventually("nothing is open", lambda: not list(made.ledger.view().still_open()))
    at(page, "overview")
    page.has("Latest swap", "main")
    page.has("before-airflow-1", "main")
    before = {run.run_id for run in airflow.runs("mended")}
    page.click("#act-take-back")
    page.has("Undone: the swap of backfill airflow-1.", "dialog")
    sent(page)
    eventually("it is taken back", lambda: made.entries[-1].rollback is not None and made.entries[-1].completed, 240)
    (back,) = [run for run in airflow.runs("mended") if run.run_id not in before and run.run_id.startswith("manual")]
    assert back.ended() == "success"
    at(page, "history")
    page.has("rollback", "tbody")
    assert 300 in {file for _, file in made.rows("latest")}, "as it was before the swap"
    assert [each for each in page.wrong if "/tidegate/" in each] == [], "Airflow's own page may find sqlite busy"
