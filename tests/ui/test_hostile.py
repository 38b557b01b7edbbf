"""What is stored may be anything: no name, value or error is ever more than text on a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.kit.toy_world import ToyWorld
from tests.kit.waiting import eventually
from tests.ui.browser import Browser, Page
from tests.ui.known_dags import set_aside
from tidegate import seams
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import control, savepoint
from tidegate.records.records import Ack, Decision, Hold, JobStats, Payload, Plan, Range, RecordedRule, Verdict

pytestmark = in_turn(seconds=65)

PAYLOADS = [
    "<script>hit()</script>",
    "<img src=x onerror=hit()>",
    "<svg onload=hit()>",
    "<svg><script>hit()</script></svg>",
    "<iframe srcdoc='<script>parent.hit()</script>'>",
    "<body onload=hit()>",
    "<details open ontoggle=hit()>",
    "<input autofocus onfocus=hit()>",
    "<select autofocus onfocus=hit()>",
    "<video src=x onerror=hit()>",
    "<audio src=x onerror=hit()>",
    "<marquee onstart=hit()>",
    "<object data='javascript:hit()'>",
    "<embed src='javascript:hit()'>",
    "<a href='javascript:hit()'>x</a>",
    "<form action='javascript:hit()'><button>x",
    "<math><mtext><script>hit()</script></mtext></math>",
    "<style>@import 'javascript:hit()'</style>",
    "<link rel=stylesheet href='javascript:hit()'>",
    "<meta http-equiv=refresh content='0;url=javascript:hit()'>",
    "<base href='javascript:hit()//'>",
    "javascript:hit()",
    "JaVaScRiPt:hit()",
    " javascript:hit()",
    "java\tscript:hit()",
    "data:text/html,<script>hit()</script>",
    "vbscript:hit()",
    "//evil.test/x.js",
    '"><script>hit()</script>',
    "'><script>hit()</script>",
    "</title><script>hit()</script>",
    "</textarea><script>hit()</script>",
    "</style><script>hit()</script>",
    "</script><script>hit()</script>",
    "<!--><script>hit()</script>-->",
    "<![CDATA[<script>hit()</script>]]>",
    "{{constructor.constructor('hit()')()}}",
    "${hit()}",
    "#{hit()}",
    "<%= hit() %>",
    "';hit();//",
    '";hit();//',
    "\\';hit();//",
    "\u2028hit()\u2029",
    "&lt;script&gt;hit()&lt;/script&gt;",
    "&#60;script&#62;hit()&#60;/script&#62;",
    "\u003cscript\u003ehit()\u003c/script\u003e",
    "<scr<script>ipt>hit()</scr</script>ipt>",
    "<IMG SRC=JaVaScRiPt:hit()>",
    "__proto__",
    "constructor",
]


@pytest.fixture(scope="module")
def page(served: str, tokens: dict[str, str]) -> Iterator[Page]:
    with Browser() as browser:
        opened = browser.page()
        opened.cookie(served, "_token", tokens["admin"])
        opened.call("Page.addScriptToEvaluateOnNewDocument", source="window.hits = 0; window.hit = () => window.hits++")
        yield opened


LINKS = "[...document.querySelectorAll('a')].map((each) => new URL(each.href.baseVal ?? each.href, location).protocol)"
"""Those in a drawing have an address that is drawn, too."""


def hostile(world: ToyWorld, payload: str) -> int:
    """A checkpoint in whose records everything that is free text is the payload. Held, so that it asks a person."""
    ledger = world.ledger
    ledger.start()
    view = ledger.view()
    id, base = view.last_id + 1, view.last_completed
    plan = Plan(
        **stamp(seams.new_id()),
        id=id,
        kind="manual",
        run=f"airflow:orders:{payload}",
        base=base.id if base is not None else None,
        sources={
            payload: Range(
                kind=payload,
                start={payload: payload},
                end={payload: payload},
                splits=Payload(data={}),
                empty=False,
                summary=payload,
            )
        },
        triggers=[],
        acks=["main", payload.replace("/", "|")],  # a file's name
        commits=[payload],
        timeout_s=600.0,
        config={payload: payload, "timeout": payload},
        config_fingerprint=payload,
        code_fingerprint=payload,
    )
    assert ledger.create_entry(plan).is_new
    ledger.index_run(plan)
    rule = RecordedRule(rule=payload, policy="hold", severity=payload, rows=1, why=payload)
    found = {"expectation_config": {"id": payload, "type": payload, "kwargs": {"column": payload}}, "success": False}
    results = {"results": [found | {"result": {"partial_unexpected_list": [payload, {payload: payload}]}}]}
    said = Verdict(
        outcome="hold", rows=1, quarantined=0, why=payload, broken=[rule], policy={},
        hold=Hold(limit_s=None, default="reject"), results=Payload(data=results),
    )  # fmt: skip
    stats = JobStats(
        seconds={f"stage {payload}": 1.0, payload: 0.5},
        rows={payload: 1},
        bytes={payload: 1},
        files={payload: 1},
        watermarks={payload: payload},
        idle=[payload],
        counts={payload: {payload: 1, "late": 2}},
    )
    ledger.create_ack(
        Ack(**stamp(payload), id=id, job="main", prev=None, sinks={}, gates={"enough": said}, stats=stats)
    )
    return id


def end(world: ToyWorld, id: int, payload: str) -> None:
    decided = Decision(**stamp(payload), id=id, outcome="aborted", reason=payload, detail=payload)
    world.ledger.create_decision(decided)


def test_nothing_that_is_stored_ever_runs(page: Page, served: str, world: ToyWorld):
    """Each payload everywhere; then every page is looked at, and everything on it is opened."""
    ids = [hostile(world, PAYLOADS[0])]
    end(world, ids[0], PAYLOADS[0])
    for payload in PAYLOADS[1:]:
        ids.append(hostile(world, payload))
        end(world, ids[-1], payload)
    control.suspend(world.ledger, PAYLOADS[1], PAYLOADS[1])
    assert page.wrong == []
    pages = ["history?limit=200", "summary", "graph", "plots", "configuration", "audit"]
    pages += [f"checkpoint/{id}" for id in ids] + [f"compare?before={ids[0]}&after={ids[1]}", "overview"]
    page.goto(f"{served}/tidegate/dag/orders")
    page.has(PAYLOADS[1], "main")  # the overview: each page from here on is another one than that before it
    for where in pages:
        page.run(f"window.shownBefore = document.querySelector('main').firstChild; location.hash = '#/{where}'")
        eventually(f"{where} is drawn", lambda: page.look("document.querySelector('main').firstChild !== shownBefore"))
        assert "wrong" not in str(page.run("document.querySelector('main').children[0].className")), page.text()
        page.run("document.querySelectorAll('details, main .card button').forEach((each) => each.click())")
        page.run("document.querySelectorAll('main a').forEach((each) => each.getAttribute('href'))")
        links = page.run(LINKS)
        assert set(links) <= {"http:"}, where
    page.run("location.hash = '#/history?limit=200'")
    page.has(PAYLOADS[0], "main")
    page.has(PAYLOADS[1], "main")
    assert page.run("window.hits") == 0
    assert page.run("document.querySelectorAll('main script, main img, main iframe, main object').length") == 0
    assert page.wrong == []


def test_the_content_policy_is_in_force(page: Page, served: str):
    """Should markup ever get in: it does not run, and fetches nothing from elsewhere."""
    page.goto(f"{served}/tidegate/dag/orders")
    page.has("orders", "h1")
    page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=hit()>')")
    page.run("document.body.append(Object.assign(document.createElement('script'), {textContent: 'hit()'}))")
    page.run(
        "document.body.append(Object.assign(document.createElement('script'), {src: 'data:text/javascript,hit()'}))"
    )
    eventually("the policy has said no", lambda: [page.run("0")] and len(page.wrong) >= 3)
    assert page.run("window.hits") == 0
    assert all("Content Security Policy" in each for each in page.wrong), page.wrong
    page.wrong.clear()


def test_a_dialog_shows_what_people_have_written_as_text(page: Page, served: str, world: ToyWorld):
    control.resume(world.ledger, "somebody", "")
    world.checkpoint("fine", rows=3)
    savepoint.create(world.ledger, "named", None, PAYLOADS[1], PAYLOADS[0])
    control.suspend(world.ledger, PAYLOADS[0], PAYLOADS[1])
    page.goto(f"{served}/tidegate/dag/orders#/overview")
    page.has("named", "main")
    page.click("#act-resume")
    page.has(PAYLOADS[1], "dialog")
    page.has("What it will do", "#dialog-effects")  # asked for before it is resumed below, which that would refuse
    page.click("#dialog-cancel")
    control.resume(world.ledger, "somebody", "")
    assert page.run("window.hits") == 0
    assert page.wrong == []


def test_rows_in_quarantine_are_shown_as_text(page: Page, served: str, world: ToyWorld):
    set_aside(world, {PAYLOADS[2]: PAYLOADS}, rules=PAYLOADS)
    page.goto(f"{served}/tidegate/dag/orders#/quarantine")
    for payload in PAYLOADS[:3]:
        page.has(payload, "main")
    page.click("#act-release-rows")
    page.has(PAYLOADS[2], "dialog")
    assert page.run("window.hits") == 0
    assert [each for each in page.wrong if "/actions/release" not in each] == []  # no code declares this gate: refused
    page.wrong.clear()


def test_samples_are_few_and_short(client: Any, tokens: dict[str, str], world: ToyWorld):
    id = hostile(world, "x" * 200)
    client.cookies.set("_token", tokens["viewer"])
    told = client.get(f"/tidegate/api/v1/dags/orders/checkpoints/{id}/gates/enough").json()
    assert max(len(value) for rule in told["rules"] for value in rule["values"]) == 256
    end(world, id, "x")


def test_settings_are_told_with_their_origins(client: Any, tokens: dict[str, str], world: ToyWorld):
    client.cookies.set("_token", tokens["viewer"])
    told = client.get("/tidegate/api/v1/dags/orders/configuration").json()
    origins = {each["key"]: each["origin"] for each in told["settings"]}
    assert (origins["root"], origins["num_retained"]) == ("code", "default")
