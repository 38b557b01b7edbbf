"""Whoever may not read rows gets no value of one: by no route, in no text, however old the record is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tests.ui.known_dags import put_dag
from tests.ui.rights import OURS
from tests.ui.routes import HOST, flat, path_of, routes
from tidegate import seams
from tidegate.checkpoint import suspension
from tidegate.history.table import remember
from tidegate.ledger.ledger import stamp
from tidegate.records.records import (
    Ack,
    Act,
    Acted,
    JobStats,
    Manifest,
    Payload,
    Plan,
    Position,
    Range,
    RecordedRule,
    TablePart,
    Trouble,
    Verdict,
)

CANARY = "SECRET-CUSTOMER-77"
QUERIES = ("", "?text=SECRET-CUSTOMER", "?sort=why", "?before={0}&after={1}", "?to={0}", "?since={0}")


DAG = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.gates import Volume
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("quotes", interval="never", root={root!r}, data={root!r})
rows = pipeline.source("in", Generator(rows=3)).gate(Volume(least=1), name="enough")
rows.sink("a", DeltaAppend("a"))
rows.sink("b", DeltaAppend("b"))
dag = build_dag(pipeline, project={root!r})
"""


@pytest.fixture(scope="module")
def quotes(app: Any, tmp_path_factory: pytest.TempPathFactory) -> ToyWorld:
    root = tmp_path_factory.mktemp("quotes")
    put_dag(root, "quotes", DAG)
    made = ToyWorld(root)
    made.name = "quotes"
    return made


@pytest.fixture(scope="module")
def old_ids(quotes: ToyWorld) -> list[int]:
    """Checkpoints as older versions have recorded them: every text quotes a row, and so do positions and statistics."""
    ledger = quotes.ledger
    done = quotes.checkpoint("airflow:quotes:quotes", rows=3)
    manifest = ledger.entry(done).manifest
    stats = {"files": [{"path": f"customer={CANARY}/x.parquet", "stats": {"minValues": {"name": CANARY}}}]}
    quoting = Manifest(
        **stamp(seams.new_id()),
        id=manifest.id,
        base=manifest.base,
        base_manifest=manifest.base_manifest,
        positions={name: Position(kind="toy", at={"last": CANARY}) for name in manifest.positions},
        jobs=manifest.jobs,
        tables={name: TablePart(after=None, committables=[Payload(data=stats)]) for name in manifest.tables},
    )
    name = ledger.create_manifest(quoting)
    decision = json.loads(quotes.path(done, "decision.json").read_text()) | {"manifest": name}
    quotes.path(done, "decision.json").write_text(json.dumps(decision, indent=1))
    gated = Plan(
        **stamp(seams.new_id()),
        id=ledger.view().last_id + 1,
        kind="manual",
        run="airflow:quotes:gated",
        base=None,
        sources={"in": Range(kind="toy", start={"k": CANARY}, end={"k": CANARY}, splits=Payload(data={}), empty=False)},
        triggers=[],
        acks=["main"],
        commits=[],
        timeout_s=600.0,
        config={},
        config_fingerprint="",
        code_fingerprint="",
    )
    ledger.create_entry(gated)
    ledger.index_run(gated)
    rule = RecordedRule(rule="highest", policy="abort", severity="critical", rows=None, why=f"found {CANARY!r}")
    verdict = Verdict(
        outcome="abort", rows=1, quarantined=0, why=CANARY, broken=[rule], policy={}, results=Payload(data={})
    )
    ledger.create_ack(
        Ack(**stamp("x"), id=gated.id, job="main", prev=None, sinks={}, gates={"enough": verdict}, stats=JobStats())
    )
    quotes.coordinator().abort(gated.id, "GATE_FAILED", f"of 1 rows {CANARY}")
    failed = quotes.trigger("airflow:quotes:malformed")
    text = f'source \'in\': malformed record in /in/3.json, line 3: {{"customer": "{CANARY}"\n  Expected: {CANARY}'
    quotes.coordinator().abort(failed, "JOB_FAILED", text, counts=True)
    ids = [done, gated.id, failed]
    for id in ids:
        plan = quotes.path(id, "plan.json")
        plan.write_text(json.dumps({k: v for k, v in json.loads(plan.read_text()).items() if k != "quotes_rows"}))
    act = Act(
        **stamp(seams.new_id()), action="release", by="mia", request={"gate": "enough", "correct": {"name": CANARY}}
    )
    key = ledger.create_act(act)
    ledger.create_acted(
        key, Acted(**stamp(seams.new_id()), succeeded=False, message=f"column 'name' cannot be {CANARY!r}")
    )
    return ids


def everything(client: Any, ids: list[int]) -> dict[str, str]:
    """All that a person gets, by what was asked for: every route, every checkpoint, in every form."""
    answers = {}
    paths = {
        path_of(route).replace("/orders", "/quotes")
        for route in flat(routes())
        if "GET" in route.methods and "/static/" not in route.path
    }
    paths |= {path.replace("/checkpoints/1", f"/checkpoints/{id}") for path in paths for id in ids}
    for path in sorted(paths):
        for query in QUERIES if not path.endswith(("/pipelines", "/metrics")) else ("",):
            asked = path + query.format(*ids)
            answers[asked] = client.get(asked, headers=HOST).text
    for action in ("trigger", "resume", "rollback", "suspend", "savepoint", "approve", "release"):
        body = {"preview": True} | ({"to": ids[0]} if action == "rollback" else {})
        answers[action] = client.post(
            f"/tidegate/api/v1/dags/quotes/actions/{action}",
            headers=HOST | OURS,
            json=body,
        ).text
    return answers


def quoting(answers: dict[str, str]) -> list[str]:
    return [asked for asked, text in answers.items() if CANARY in text]


@pytest.mark.parametrize("written_down", [False, True], ids=["in the ledger", "in the history"])
def test_what_older_versions_have_recorded_of_rows_is_for_those_who_may_read_rows(
    client: Any, be: Callable[[str], None], quotes: ToyWorld, old_ids: list[int], written_down: bool
):
    if written_down:
        assert remember(quotes.ledger, {}) >= 0
    ledger = quotes.ledger
    ledger.hint_trouble(
        Trouble(
            **stamp(seams.new_id()),
            run="airflow:quotes:z",
            step="trigger",
            entry=None,
            after=ledger.view().last_id,
            kind="invalid",
            reason="BAD_ROWS",
            what=CANARY,
            expected=CANARY,
            help=CANARY,
        )
    )
    be("no XCom")
    assert quoting(everything(client, old_ids)) == []
    be("User")
    found = quoting(everything(client, old_ids))
    for part in ("/pipelines", "/overview", f"/checkpoints/{old_ids[0]}/manifest", "/checkpoints", "/audit"):
        assert any(asked.endswith(part) for asked in found), part
    for part in ("/compare", f"/checkpoints/{old_ids[1]}", f"/checkpoints/{old_ids[2]}"):
        assert any(part in asked for asked in found), part


def test_nobody_finds_out_by_searching_what_is_not_shown_to_them(
    client: Any, be: Callable[[str], None], old_ids: list[int]
):
    search = f"/tidegate/api/v1/dags/quotes/checkpoints?text={CANARY[:9]}"
    be("no XCom")
    assert client.get(search, headers=HOST).json()["total"] == 0
    be("User")
    assert client.get(search, headers=HOST).json()["total"] > 0


def test_a_suspension_by_failures_of_an_older_version_tells_its_code_and_no_row(
    client: Any, be: Callable[[str], None], quotes: ToyWorld, old_ids: list[int]
):
    be("no XCom")
    told = client.get("/tidegate/api/v1/dags/quotes/overview", headers=HOST).text
    assert "JOB_FAILED" in told or "BAD_ROWS" in told
    assert CANARY not in told
    assert suspension.suspended(quotes.ledger.view(), 0) is not None
