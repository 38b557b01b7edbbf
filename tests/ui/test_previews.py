"""What an action would do, before it is done: told in its dialog, refused there as it would be, and never done."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.kit.aside_gate import Aside
from tests.kit.toy_world import ToyWorld
from tests.kit.waiting import eventually
from tests.ui.browser import Browser, Page
from tests.ui.known_dags import set_aside, sets_aside
from tests.ui.routes import flat, routes
from tests.ui.states import hold, running
from tidegate.checkpoint import approvals
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import control, savepoint
from tidegate.records.records import Ack, JobStats, LateBehind, Payload, Retired, Verdict

ORDERS = "/tidegate/api/v1/dags/orders"


@pytest.fixture
def orders(world: ToyWorld) -> Iterator[ToyWorld]:
    """Running, with a completed checkpoint, and left running."""
    running(world)
    world.checkpoint("airflow:orders:previewed", rows=1)
    yield world
    running(world)


@pytest.fixture
def post(client: Any, tokens: dict[str, str]) -> Any:
    def ask(action: str, **body: Any) -> tuple[int, Any]:
        client.cookies.clear()
        headers = {"Authorization": f"Bearer {tokens['user']}"}
        answer = client.post(f"{ORDERS}/actions/{action}", json=body, headers=headers)
        return answer.status_code, answer.json()

    return ask


@pytest.fixture
def effects(post: Any) -> Any:
    def of(action: str, **body: Any) -> str:
        status, answer = post(action, preview=True, **body)
        assert (status, answer.get("succeeded")) == (200, False), answer
        return " ".join(answer["effects"])

    return of


def test_every_action_has_one():
    from tidegate.ui.previews import PREVIEWS

    acts = {route.path.rpartition("/")[2] for route in flat(routes()) if "/actions/" in route.path}
    assert {name.replace(" ", "-") for name in PREVIEWS} == acts


def test_a_preview_tells_what_would_be_done_and_does_nothing(effects, orders: ToyWorld):
    last = orders.ledger.view().last_id
    earlier = orders.checkpoint("airflow:orders:one more", rows=1)
    savepoint.create(orders.ledger, "told", last, "mia", "")
    set_aside(orders, {"amount": [-1, -2]}, rules=["positive"])
    sets_aside(orders)
    before = everything(orders)
    assert f"after checkpoint {earlier}, and reads all new input" in effects("trigger")
    assert "savepoint tonight" in effects("trigger", savepoint="tonight")
    assert "it ends event time" in effects("drain")
    assert f"Checkpoint {earlier} is savepoint good" in effects("savepoint", name="good", checkpoint=earlier)
    assert f"Checkpoint {last} stays for now: it is among the last" in effects("dispose", name="told")
    assert effects("suspend").endswith("No checkpoint is open.")
    told = effects("rollback", to=last, expected_undone=[])
    assert f"No longer counts: checkpoint {earlier}. a, b: restored as of checkpoint {last}" in told
    assert "2 rows, after gate enough" in effects("release", gate="enough", correct={"amount": "3"})
    assert "Discarded with the next checkpoint: 2 rows." in effects("release", gate="enough", discard=True)
    assert everything(orders) == before


def test_a_checkpoint_with_another_name_stays_and_an_open_one_is_ended_by_a_rollback(effects, orders: ToyWorld):
    last = orders.ledger.view().settled
    for name in ("one-name", "also"):
        savepoint.create(orders.ledger, name, last, "mia", "")
    assert effects("dispose", name="one-name") == f"Checkpoint {last} keeps the name also, and stays."
    for name in ("one-name", "also"):
        savepoint.dispose(orders.ledger, name)
    opened = orders.trigger("airflow:orders:open")
    assert f"Aborted: checkpoint {opened}." in effects("rollback", to=last, expected_undone=[])


def test_a_checkpoint_that_retention_is_removing_gets_no_name(post, orders: ToyWorld):
    last = orders.ledger.view().settled
    orders.checkpoint("airflow:orders:after it", rows=1)
    orders.ledger.create_retired(Retired(**stamp("retention"), id=last))
    beforehand = post("savepoint", name="late", checkpoint=last, preview=True)
    assert (beforehand[0], beforehand[1]["error"]["reason"]) == (409, "RETIRED")
    assert post("savepoint", name="late", checkpoint=last) == beforehand


def test_a_release_tells_which_rows_an_operator_would_lose_and_how_they_count_nevertheless(effects, orders: ToyWorld):
    at = [datetime(2026, 3, 1, hour, tzinfo=UTC) for hour in (10, 12, 13)]
    held_by = orders.checkpoint("airflow:orders:holds back", rows=1)  # stories before this one may have gone back
    set_aside(orders, {"amount": [-1, -2, -3], "at": at}, rules=["positive"], by=held_by)
    orders.gates = {"enough": Aside(quarantines=True)}
    once = LateBehind(operator="once", what="deduplicate 'once'", column="at", stream="enough")
    later = LateBehind(operator="later", what="window 'later'", column="moment", stream="renamed", stages=["renamed"])
    found = {"outcome": "quarantine", "rows": 9, "quarantined": 3, "broken": [], "behind": [once, later]}
    verdict = Verdict(**found, policy={}, results=Payload(data={}))
    nothing = Payload(data={})
    ack = Ack(
        **stamp("x"),
        id=orders.trigger("airflow:orders:judged"),
        job="main",
        prev=None,
        sinks={"a": nothing, "b": nothing},
        gates={"enough": verdict},
        memory={"once.watermark": {"at": "2026-03-01T12:00:00Z"}},
        stats=JobStats(),
    )
    orders.gates = {}
    orders.ledger.create_ack(ack)
    told = effects("release", gate="enough")
    assert "Deduplicate 'once' takes rows from 2026-03-01 12:00:00 UTC on, by at." in told
    assert "1 row stays in quarantine: too late for deduplicate 'once', whose watermark is at 2026-03-01" in told
    assert "Window 'later' uses moment as stage 'renamed' computes it: the checkpoint finds out which rows" in told
    release = "tidegate quarantine release orders enough --all --in-place"
    assert f"released in place, where they were held back: {release}" in told
    assert f"then a backfill from checkpoint {held_by - 1} with recorded cuts" in told


def everything(world: ToyWorld) -> list[Any]:
    files = sorted(str(path) for path in world.folder.rglob("*") if path.is_file())
    return [files, world.ledger.ids(), world.ledger.acts(100)]


def test_an_answer_to_a_gate_is_told_with_the_rows_that_it_is_about(effects, orders: ToyWorld):
    id = hold(orders)
    assert effects("approve", checkpoint=id) == (
        f"Checkpoint {id} completes, and exactly the judged rows are published: 7 rows for a, 1 row for b. "
        "2 rows to quarantine."
    )
    told = effects("reject", checkpoint=id)
    assert f"Checkpoint {id} is aborted, and no table gets its rows: 7 rows for a, 1 row for b." in told
    assert f"Checkpoint {id} is held by gate enough: the run waits" in effects("trigger")
    assert f"Checkpoint {id} still waits for an answer." in effects("suspend")


def test_what_a_quarantine_takes_out_is_told_and_refused_where_there_is_none(post, effects, orders: ToyWorld):
    id = hold(orders, quarantines=True)
    told = effects("reject", checkpoint=id, quarantine=True)
    assert f"Checkpoint {id} is aborted, and its input is read again at once." in told
    assert "To quarantine: the rows of gate enough that break positive; the others are published." in told
    assert "suspended" not in told
    orders.coordinator().abort(id, "CANCELLED")
    words = {"checkpoint": hold(orders), "quarantine": True}
    assert post("reject", preview=True, **words) == post("reject", **words)
    assert post("reject", **words)[1]["error"]["reason"] == "CANNOT_QUARANTINE"
    orders.coordinator().abort(words["checkpoint"], "CANCELLED")


def test_what_a_resumption_lets_through_is_told(effects, orders: ToyWorld):
    approvals.answer(orders.ledger, hold(orders), None, approve=False, by="mia")
    orders.coordinator().complete(orders.ledger.view().last_id)
    assert "holds the next checkpoint again" in effects("resume")
    assert "quarantines the rows" in effects("resume", quarantine_all=True)
    assert "plans no checkpoint unless the pipeline is resumed" in effects("trigger")


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("resume", {}),
    ("trigger", {"savepoint": "taken"}),
    ("trigger", {"savepoint": "17"}),
    ("drain", {"savepoint": "taken"}),
    ("savepoint", {"name": "taken", "checkpoint": 999_999}),
    ("savepoint", {"name": "fresh", "checkpoint": 999_999}),
    ("dispose", {"name": "nobody"}),
    ("approve", {"checkpoint": 999_999}),
    ("reject", {"checkpoint": 1, "gate": "nobody"}),
    ("rollback", {"to": 999_999}),
    ("release", {"gate": "nobody"}),
    ("release", {"gate": "enough", "rules": ["none"]}),
    ("release", {"gate": "enough", "correct": {"nothing": "1"}}),
    ("release", {"gate": "enough", "correct_sql": {"nothing": "1"}}),
    ("release", {"gate": "enough", "correct_sql": {"amount": "1"}, "discard": True}),
    ("rejudge", {"gate": "nobody"}),
    ("rejudge", {"gate": "enough", "expected_rows": 7}),
    ("release", {"gate": "enough", "expected_rows": 7}),
    ("release", {"gate": "enough"}),
    ("backfill", {"begin_after": "999999"}),
]


@pytest.mark.parametrize(("action", "body"), REFUSED)
def test_what_would_be_refused_is_refused_beforehand(post, orders: ToyWorld, action: str, body: dict[str, Any]):
    """In the same words: whoever reads them in the dialog need not try."""
    savepoint.create(orders.ledger, "taken", orders.ledger.view().settled, "mia", "")
    set_aside(orders, {"amount": [-1, -2]}, rules=["positive"])
    beforehand, done = post(action, preview=True, **body), post(action, **body)
    savepoint.dispose(orders.ledger, "taken")
    assert beforehand[0] >= 400, beforehand
    assert beforehand == done


def test_a_resumption_that_would_be_refused_is_refused_beforehand(post, orders: ToyWorld):
    control.suspend(orders.ledger, "mia", "")
    beforehand = post("resume", preview=True, quarantine_all=True)
    assert (beforehand[0], beforehand[1]["error"]["reason"]) == (409, "NOT_REJECTED")
    assert post("resume", quarantine_all=True) == beforehand


@pytest.fixture
def page(served: str, tokens: dict[str, str], orders: ToyWorld) -> Iterator[Page]:
    with Browser() as browser:
        opened = browser.page()
        opened.cookie(served, "_token", tokens["admin"])
        opened.goto(f"{served}/tidegate/dag/orders")
        yield opened


def test_a_dialog_tells_what_it_will_do_and_refuses_before_it_is_sent(page: Page, orders: ToyWorld):
    savepoint.create(orders.ledger, "in-use", orders.ledger.view().settled, "mia", "")
    acts = orders.ledger.acts(100)
    page.click("#act-trigger")
    page.has("What it will do", "#dialog-effects")
    page.has("reads all new input", "#dialog-effects")
    page.type("#field-savepoint", "in-use")
    page.has("exists already", "dialog [role=alert]")
    assert page.run("document.querySelector('#dialog-send').disabled")
    assert page.text("#dialog-effects") == ""
    changed = "(() => { const it = document.querySelector('#field-savepoint'); it.value = 'other'; it.dispatchEvent("
    changed += "new Event('input', {bubbles: true})); return document.querySelector('#dialog-send').disabled })()"
    assert not page.run(changed), "who changes what was refused may send it at once"
    assert page.text("dialog [role=alert]") == ""
    page.type("#field-savepoint", "tonight")
    page.has("savepoint tonight", "#dialog-effects")
    assert not page.run("document.querySelector('#dialog-send').disabled")
    page.click("#dialog-cancel")
    eventually("the dialog is gone", lambda: not page.there("dialog"))
    assert orders.ledger.acts(100) == acts
    savepoint.dispose(orders.ledger, "in-use")
