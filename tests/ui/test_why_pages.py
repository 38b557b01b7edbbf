"""Why a table has a row, asked by a click beside the row in a real Chromium: by right, and the answer can be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.api_answers import check_answer
from tests.kit.toy_world import ToyWorld
from tests.ui.browser import Page
from tests.ui.known_dags import put_dag, put_table
from tidegate import seams
from tidegate.ledger.ledger import stamp
from tidegate.provenance.explanation import CauseCheckpoint, Explanation, NamedCorrection, NamedRecord, Step
from tidegate.records import typed
from tidegate.records.records import Act, RowExplained
from tidegate.ui.answers import WhyAnswer

BACKFILLS = "from airflow.sdk import DAG\ndag = DAG('orders__backfill', schedule=None)\n"
PLACE = "record 3 of landing/orders/region=alpine/2026-03-01/export-of-the-morning-0001.json"
ANSWER = Explanation(
    pipeline="orders", sink="b", checkpoint=7, since=6, row={"id": 1, "paid": "12.00"}, copies=1, begins_after=2,
    needs_older_state=True, why_older="only the last 5 checkpoints were asked about",
    records=[
        NamedRecord(source="in", checkpoint=6, place=PLACE, values={"id": 1, "amount": 9.5}, is_proven=True),
        NamedRecord(source="in", checkpoint=7, place=None, values={"id": 1, "amount": 2.5}, is_proven=False),
    ],
    corrections=[
        NamedCorrection(checkpoint=7, gate="enough", requests=["request 1 by ann: release, with amount corrected"],
                        is_proven=True),
    ],
    checkpoints=[
        CauseCheckpoint(id=6, time="2026-03-01T10:11:02.120+00:00", row={"id": 1, "paid": "9.50"},
                        states={"totals": [{"id": 1, "total": 9.5}]}),
        CauseCheckpoint(id=7, time="2026-03-01T10:12:02.120+00:00", row={"id": 1, "paid": "12.00"}, states={}),
    ],
    path=[Step(name="in", kind="Generator", inputs=[], does="3 rows"),
          Step(name="totals", kind="aggregate", inputs=["in"], does="by id: total = sum(amount)")],
    manual_edits=[], other_code=True, candidates=40, replays=12,
)  # fmt: skip


@pytest.fixture
def id(world: ToyWorld, tmp_path: Path) -> int:
    """A checkpoint with a real table, of a pipeline with a DAG for backfills."""
    import pyarrow as pa
    from deltalake import write_deltalake

    made = world.checkpoint("airflow:orders:paid", rows=1)
    write_deltalake(str(tmp_path / "paid"), pa.table({"id": [1, 2], "paid": ["12.00", None]}))
    put_table(world, made, "b", tmp_path / "paid", 0)
    put_dag(tmp_path, "orders__backfill", BACKFILLS)
    return made


def answer(world: ToyWorld, key: str, explanation: Explanation | None = ANSWER, problem: str = "") -> None:
    """Let the run have found this."""
    document = typed.document_of(explanation) | {"unproven": 1} if explanation is not None else None
    help = "ask as of another checkpoint" if problem else ""
    explained = RowExplained(**stamp(seams.new_id()), answer=document, problem=problem, help=help)
    world.ledger.hint_explained(key, explained)


def asked(world: ToyWorld) -> Act:
    (act, _), *_ = world.ledger.acts(1)
    assert act.action == "why"
    return act


def seen(page: Page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for theme in ("light", "dark"):
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            page.screenshot(Path(folder, f"{name}-{theme}.png"))


def test_a_click_beside_a_row_asks_and_its_page_shows_the_answer(
    page: Page, served: str, world: ToyWorld, id: int
) -> None:
    page.goto(f"{served}/tidegate/dag/orders#/checkpoint/{id}")
    page.has("Show some rows", "main")
    page.click(f"[data-key='rows {id} b'] button")
    page.has("12.00", f"[data-key='rows {id} b']")
    seen(page, "rows")
    page.click(f"[data-key='rows {id} b'] tbody tr button")
    page.has("Why is this row in b?", "main")
    page.has("The answer comes here by itself.", "main")
    act = asked(world)
    assert (act.parameters["sink"], act.parameters["checkpoint"]) == ("b", id)
    assert act.parameters["values"] == {"id": "1", "paid": "12.00"}
    assert act.run.startswith("airflow:orders__backfill:manual__"), "only this run may answer"
    seen(page, "asked")
    answer(world, act.key)
    page.has("It is so since #6, because of 2 records and 1 correction.", "main")
    for text in (PLACE, "perhaps needed", "release, with amount corrected", "total = 9.5", "sum(amount)", "#2"):
        page.has(text, "main")
    assert "undefined" not in page.text("main")
    seen(page, "answer")
    page.size(420, 900)
    width = page.run("document.documentElement.scrollWidth")
    assert width <= 420, "nothing is cut off on a phone"
    seen(page, "answer-phone")


def test_a_question_without_an_answer_says_why(page: Page, served: str, world: ToyWorld, id: int) -> None:
    page.goto(f"{served}/tidegate/dag/orders#/checkpoint/{id}")
    page.has("Show some rows", "main")
    page.click(f"[data-key='rows {id} b'] button")
    page.has("12.00", f"[data-key='rows {id} b']")
    page.click(f"[data-key='rows {id} b'] tbody tr button")
    page.has("Why is this row in b?", "main")
    answer(world, asked(world).key, None, "the recorded input does not give this row\n    it was made by other code")
    page.has("There is no answer", "main")
    page.has("ask as of another checkpoint", "main")
    seen(page, "no-answer")


def test_only_who_may_read_rows_and_backfill_may_ask_and_only_who_may_read_rows_sees_the_answer(
    client: Any, be: Callable[[str], None], world: ToyWorld, id: int
) -> None:
    body = {"sink": "b", "checkpoint": id, "values": {"id": "1"}}
    path, origin = "/tidegate/api/v1/dags/orders/actions/why", {"origin": str(client.base_url)}
    for person, allowed in (("User", True), ("no XCom", False), ("Viewer", False), ("edit only", False)):
        be(person)
        told = client.post(path, json=body, headers=origin)
        assert (told.status_code == 200) is allowed, (person, told.text)
    key = asked(world).key
    answer(world, key)
    be("Viewer")
    told = client.get(f"/tidegate/api/v1/dags/orders/why/{key}")
    check_answer(told.content, WhyAnswer)
    assert told.headers["cache-control"] == "no-store", "rows are kept nowhere"
    be("no XCom")
    assert client.get(f"/tidegate/api/v1/dags/orders/why/{key}").status_code == 403
    audit = client.get("/tidegate/api/v1/dags/orders/audit?limit=1").json()["actions"][0]
    assert (audit["action"], audit["request"]["values"]) == ("why", {"id": "***"})


def test_answers_are_kept_for_a_while_and_never_without_end(world: ToyWorld) -> None:
    keys = [f"2026-01-01T00000{number:04d}-0123456789abcdef" for number in range(60)]
    for key in keys:
        answer(world, key, None, "none")
    assert world.ledger.explained(keys[0]) is None
    assert world.ledger.explained(keys[-1]) is not None
    assert len(world.ledger.store.names("explained")) == 50
    for key in keys:
        world.ledger.store.delete(f"explained/{key}.json")


def test_a_page_does_not_wait_for_an_answer_that_is_no_longer_kept(
    page: Page, served: str, world: ToyWorld, id: int
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    page.goto(f"{served}/tidegate/dag/orders#/checkpoint/{id}")
    page.has("Show some rows", "main")
    page.click(f"[data-key='rows {id} b'] button")
    page.has("12.00", f"[data-key='rows {id} b']")
    page.click(f"[data-key='rows {id} b'] tbody tr button")
    page.has("The answer comes here by itself.", "main")
    run_id = asked(world).run.split(":", 2)[2]
    with create_session() as session:
        session.query(DagRun).filter_by(dag_id="orders__backfill", run_id=run_id).one().state = "success"
    page.has("The answer is no longer kept.", "main")
