"""What the API answers: pages of the history, one checkpoint, comparisons, previews, and errors that say what to do."""

from __future__ import annotations

import inspect
import re
import shutil
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tests.ui.known_dags import set_aside, sets_aside
from tests.ui.routes import flat, routes
from tidegate.checkpoint import suspension
from tidegate.history.details import CheckpointDetails, JobDetails, StateSize
from tidegate.history.table import remember
from tidegate.lifecycle import control
from tidegate.ui import views
from tidegate.ui.rows import quarantined

ORDERS = "/tidegate/api/v1/dags/orders"


@pytest.fixture(scope="module")
def ids(world: ToyWorld) -> list[int]:
    """Three completed checkpoints, and one that failed; the first one is only in the history."""
    if suspension.suspended(world.ledger.view(), 10**6) is not None:
        control.resume(world.ledger, "somebody", "")
    made = [world.checkpoint(f"airflow:orders:run {n}", rows=3) for n in range(3)]
    made.append(world.trigger("airflow:orders:bad (cleared 2)"))
    world.coordinator().abort(made[-1], "JOB_FAILED", "the file is gone\n  Help: put it back")
    remember(world.ledger, {})
    return made


@pytest.fixture
def get(client: Any, tokens: dict[str, str], ids: list[int]) -> Any:
    def ask(path: str, status: int = 200, **query: Any) -> Any:
        client.cookies.set("_token", tokens["viewer"])
        answer = client.get(f"{ORDERS}{path}", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask


@pytest.fixture
def act(client: Any, tokens: dict[str, str], ids: list[int]) -> Any:
    def ask(action: str, status: int = 200, **body: Any) -> Any:
        headers = {"Authorization": f"Bearer {tokens['user']}"}
        answer = client.post(f"{ORDERS}/actions/{action}", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask


def test_the_list_is_paged_sorted_and_filtered(get, ids):
    newest = get("/checkpoints", limit=2)
    assert [row["id"] for row in newest["checkpoints"]] == [ids[3], ids[2]]
    assert newest["total"] >= 4
    assert get("/checkpoints", text="(cleared 2)")["checkpoints"][0]["state"] == "aborted"
    assert {row["state"] for row in get("/checkpoints", state="aborted")["checkpoints"]} == {"aborted"}
    ascending = [row["id"] for row in get("/checkpoints", sort="id", order="asc", limit=200)["checkpoints"]]
    assert ascending == sorted(ascending)


@pytest.mark.parametrize(
    "query", [{"limit": 201}, {"limit": 0}, {"offset": -1}, {"sort": "details"}, {"state": "odd"}, {"since": "now"}]
)
def test_a_list_that_makes_no_sense_is_refused(get, query):
    get("/checkpoints", 422, **query)


def test_a_checkpoint_tells_its_run_and_its_neighbours(get, ids):
    told = get(f"/checkpoints/{ids[3]}")
    assert (told["run_id"], told["previous"], told["reason"]) == ("bad", ids[2], "JOB_FAILED")
    assert told["details"]["detail"].endswith("Help: put it back")
    assert told["details"]["missing_acks"] == ["main"]
    assert get("/runs/bad")["checkpoint"] == ids[3]
    assert get("/runs/none of ours")["checkpoint"] is None
    assert get(f"/checkpoints/{ids[0]}/manifest")["manifest"]["id"] == ids[0]
    assert get(f"/checkpoints/{ids[3]}/manifest")["manifest"] is None


def test_what_is_not_there_says_so(get):
    error = get("/checkpoints/99999999", 404)["error"]
    assert error["reason"] == "NO_SUCH_CHECKPOINT"
    assert error["help"]
    get("/checkpoints/0", 422)
    get("/checkpoints/1/gates/nobodys", 404)


def test_a_dag_that_is_no_pipeline_says_so(client, tokens):
    client.cookies.set("_token", tokens["viewer"])
    answer = client.get("/tidegate/api/v1/dags/nobodys/overview")
    assert answer.status_code == 404
    assert answer.json()["error"]["reason"] == "NO_SUCH_PIPELINE"


def test_the_overview_says_how_it_is_and_what_one_may(get, ids):
    told = get("/overview")
    assert told["health"]["state"] == "failed"
    assert told["health"]["remedy"][0] == "put it back"
    assert (told["health"]["run_id"], told["health"]["task"]) == ("bad", "job_main"), "whose log says more"
    assert told["latest"]["completed"]["id"] == ids[2]
    assert told["latest"]["failed"]["id"] == ids[3]
    assert "tidegate " not in " ".join(told["health"]["remedy"]), "here are buttons, not commands"
    acts = ("trigger", "edit", "answer", "rollback", "drain", "backfill", "swap")
    assert told["permissions"] == dict.fromkeys(acts, False)


def test_the_pipelines_are_listed_with_what_matters(client, tokens, ids):
    client.cookies.set("_token", tokens["viewer"])
    listed = client.get("/tidegate/api/v1/pipelines").json()["pipelines"]
    row = next(each for each in listed if each["dag"] == "orders")  # other tests have pipelines in this Airflow, too
    assert (row["dag"], row["state"], row["failures"], row["last_completed"]["id"]) == ("orders", "failed", 1, ids[2])
    assert row["age_seconds"] >= 0


def test_two_checkpoints_side_by_side(get, ids):
    told = get("/compare", before=ids[0], after=ids[2])
    assert told["measures"]["rows_out"] == {"before": 6, "after": 6}
    assert told["sources"]["in"]["before"]["end"] != told["sources"]["in"]["after"]["end"]
    assert not told["code_changed"]


def test_measures_are_summed_up_and_plotted(get, ids):
    assert get("/summary")["measures"]["rows_out"]["max"] == 6
    points = get("/plots", limit=2, name="rows_out")
    assert (points["id"], points["rows_out"], points["state"]) == (ids[2:], [6, None], ["completed", "aborted"])
    get("/plots", 422, name="details")


def test_the_graph_has_figures_of_the_chosen_checkpoint_and_by_default_of_the_newest(get, ids):
    assert get("/graph")["checkpoint"] == ids[3]
    told = get("/graph", checkpoint=ids[2])
    assert told["checkpoint"] == ids[2]
    sink = next(part for part in told["parts"] if part["role"] == "sink")
    assert (sink["name"], sink["rows"], sink["inputs"]) == ("a", 3, ["enough"])
    assert [(part["name"], part["rows"]) for part in told["parts"] if part["role"] == "source"] == [("in", 3)]


def test_a_sink_that_is_called_as_its_operator_is_has_figures_of_its_own():
    """As in the example: sink `totals` takes 50 rows, operator `totals` remembers 2,385 keys."""
    job = JobDetails(
        rows={"totals": 50},
        bytes={"totals": 900},
        seconds={"stage totals": 1.0, "state totals": 2.0},
        watermarks={"totals": "2026-01-01T00:00:00Z"},
        counts={"totals": {"late": 3}},
    )
    size = StateSize(rows=2385, bytes=70_000, delta=1)
    details = CheckpointDetails(jobs={"main": job}, states={"state.totals": size})
    sink, operator = (views._figures("totals", role, details) for role in ("sink", "operator"))
    assert (sink["rows"], sink["bytes"], sink["seconds"]) == (50, 900, 1.0)
    assert (sink["late"], sink["watermark"]) == (None, None)
    assert (operator["rows"], operator["bytes"], operator["seconds"], operator["late"]) == (2385, 70_000, 2.0, 3)
    none = views._figures("revenue", "sink", CheckpointDetails(states={"state.revenue": size}))
    assert none["rows"] is None


def test_a_rollback_is_shown_first_and_undoes_no_more_than_that(get, act, ids, world):
    shown = get("/rollback", to=ids[0])
    assert shown["undone"] == [ids[2], ids[1]]
    assert set(shown["tables"]) == {"a", "b"}
    refused = act("rollback", 409, to=ids[0], expected_undone=[ids[1]])["error"]
    assert refused["reason"] == "MORE_SINCE"
    assert str(ids[2]) in refused["message"]
    get("/rollback", 409, to=ids[3])
    padded = [*shown["undone"], *range(ids[3], ids[3] + 1000)]
    refused = act("rollback", 409, to=ids[0], expected_undone=padded)["error"]
    assert refused["reason"] == "NOT_SHOWN", "a list of all that might ever come is nothing that anybody was shown"
    assert {table["rows_stay_because"] for table in shown["tables"].values()} == {""}
    made = act("rollback", to=ids[0], expected_undone=shown["undone"], keep_rows_of=["a"], note="wrong prices")
    assert made["run_id"] in made["message"]
    words = {"to": ids[0], "expected_undone": shown["undone"], "keep_rows_of": ["a"], "note": "wrong prices"}
    assert_written_down(world, made["run_id"], "rollback", words)


def assert_written_down(world: ToyWorld, run_id: str, action: str, words: dict[str, Any]) -> None:
    """The run is told nothing but where it finds what it is to do; that is for no other run."""
    written, acted = world.ledger.acts(1)[0]
    assert acted is not None
    assert (written.action, written.request, written.run) == (action, words, f"airflow:orders:{run_id}")
    conf = conf_of(run_id)
    assert conf == {"request": written.key} | {name: words[name] for name in ("note", "savepoint") if name in words}
    assert world.ledger.act(written.key) == written


def conf_of(run_id: str) -> dict[str, Any]:
    from airflow.models import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        return dict(session.query(DagRun).filter_by(dag_id="orders", run_id=run_id).one().conf)


def test_the_last_checkpoint_is_asked_for_by_who_may_edit(act, world):
    act("trigger", 422, drain=True)
    made = act("drain", note="season over", savepoint="last-one")
    assert_written_down(world, made["run_id"], "drain", {"note": "season over", "savepoint": "last-one"})


def test_who_may_only_trigger_makes_checkpoints_and_nothing_else(act, monkeypatch, ids):
    """Roles of the Simple auth manager are not that fine: here it says no to editing."""
    from airflow.api_fastapi.app import get_auth_manager

    real = get_auth_manager().is_authorized_dag
    monkeypatch.setattr(
        type(get_auth_manager()),
        "is_authorized_dag",
        lambda self, **asked: (asked["method"] != "PUT" or asked.get("access_entity") is not None) and real(**asked),
    )
    act("trigger", note="fine")
    for action, body in {"drain": {}, "rollback": {"to": ids[0]}, "suspend": {}, "resume": {}}.items():
        act(action, 403, **body)


def test_what_people_do_is_written_down_also_if_it_fails(get, act):
    act("savepoint", name="once", note="for the audit")
    act("approve", 409, checkpoint=1)
    newest, before = get("/audit")["actions"][:2]
    assert (newest["action"], newest["succeeded"], newest["requested_by"]) == ("approve", False, "user in Airflow")
    assert (before["action"], before["succeeded"], before["request"]) == (
        "savepoint",
        True,
        {"name": "once", "note": "for the audit"},
    )
    act("dispose", name="once")


def test_rows_in_quarantine_are_shown_and_some_released_with_a_correction(get, act, world):
    rows = set_aside(world, {"amount": [-1, -2, None]}, rules=["positive"])
    told = get("/quarantine/enough", limit=2)
    assert (told["total"], told["columns"], len(told["rows"])) == (3, ["amount"], 2)
    assert told["rows"][0] == {
        "id": rows[0],
        "checkpoint": 1,
        "rules": ["positive"],
        "stays_because": None,
        "diverted_because": None,
        "values": {"amount": "-1"},
    }
    assert get("/quarantine/enough", offset=2)["rows"][0]["values"] == {"amount": None}
    assert get("/quarantine/enough", rule="none")["total"] == 0
    get("/quarantine/nobody", 404)
    wrong = {"amount": "much"}, {"nothing": "1"}
    assert [act("release", 400, gate="enough", correct=wrong[0])["error"]["reason"]] == ["BAD_VALUE"]
    act("release", 404, gate="enough", correct=wrong[1])
    act("release", 404, gate="enough", ids=["ff"])
    assert act("release", 409, gate="enough", rules=["none"])["error"]["reason"] == "NO_ROWS"
    refused = act("release", 404, gate="enough")["error"]
    assert (refused["reason"], "quarantines no rows" in refused["message"]) == ("NO_SUCH_GATE", True)
    assert world.ledger.requests("enough") == []
    sets_aside(world)
    told = act("release", gate="enough", ids=[rows[1]], correct={"amount": "2"}, note="a typing error")["message"]
    assert told == "Request 1: 1 row is released with the next checkpoint."
    (made,) = world.ledger.requests("enough")
    assert (made.ids, made.correct, made.action, made.by) == ([rows[1]], {"amount": "2"}, "release", "user in Airflow")
    assert get("/quarantine")["gates"]["enough"]["requests"][0]["number"] == 1


def test_rows_that_have_come_since_somebody_looked_are_not_released(act, world):
    set_aside(world, {"amount": [-1, -2, -3]}, rules=["positive"])
    sets_aside(world)
    before = len(world.ledger.requests("enough"))
    refused = act("release", 409, gate="enough", expected_rows=2)["error"]
    assert (refused["reason"], len(world.ledger.requests("enough"))) == ("MORE_SINCE", before)
    assert "3 rows are" in act("release", gate="enough", expected_rows=3)["message"]


def test_a_backfill_is_told_all_that_was_asked_for_and_refused_before_there_is_a_run(act, ids, monkeypatch):
    from types import SimpleNamespace

    from tidegate.ui import actions

    made: list[dict[str, Any]] = []

    def trigger_dag(dag_id: str, **words: Any) -> Any:
        made.append(words["conf"] | {"dag_id": dag_id})
        return SimpleNamespace(run_id="by hand")

    monkeypatch.setattr(actions, "trigger_dag", trigger_dag)
    for wrong in (
        {"begin_after": "99999"},
        {"begin_after": str(ids[0]), "stop_after": "99999"},
        {"begin_after": "nobody"},
    ):
        assert act("backfill", 404, **wrong)["error"]["reason"].startswith("NO_SUCH")
    act("backfill", 422, begin_after="1", batch_factor=0)
    assert made == []
    act(
        "backfill",
        begin_after=str(ids[0]),
        stop_after=str(ids[1]),
        batch_factor=7,
        pause_seconds=1.5,
        note="wrong prices",
    )
    act("backfill", begin_after=str(ids[0]), cuts="recorded", drop_manual_edits=True)
    act("backfill", 422, begin_after=str(ids[0]), cuts="some")
    act("backfill", name="prices")
    common = {"dag_id": "orders__backfill"}
    words = {"from": str(ids[0]), "to": str(ids[1]), "larger": 7, "pause": 1.5, "note": "wrong prices"}
    recorded = {"from": str(ids[0]), "cuts": "recorded", "drop_by_hand": True}
    assert made == [common | words, common | recorded, common | {"name": "prices"}]


def test_while_rows_are_read_for_somebody_else_nobody_waits_long(get, act, world, monkeypatch):
    """Airflow's web server has others to answer."""
    set_aside(world, {"amount": [1, 2]}, rules=["positive"])
    monkeypatch.setattr(quarantined, "_MAX_WAIT_S", 0.01)
    with quarantined._reading:
        assert get("/quarantine")["gates"]["enough"]["waiting"] == 2, "the log tells, no row is read"
        assert get("/quarantine/enough", 503)["error"]["reason"] == "BUSY"
        assert act("release", 503, gate="enough")["error"]["reason"] == "BUSY"
    assert get("/quarantine/enough")["total"] == 2
    told = get("/quarantine")["gates"]["enough"]
    assert (told["rules"], told["complete"]) == ({"positive": 2}, True)


def test_what_reads_rows_never_runs_on_the_event_loop():
    """A route that is a coroutine function would: then all of Airflow waits for it."""
    for route in flat(routes()):
        assert route.path == "/openapi.json" or not inspect.iscoroutinefunction(route.endpoint), route.path


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("trigger", {"unknown": 1}),
        ("trigger", {"savepoint": "Not A Name"}),
        ("savepoint", {}),
        ("savepoint", {"name": "../x"}),
        ("approve", {"checkpoint": 0}),
        ("rollback", {"to": "x"}),
        ("suspend", {"note": "x" * 1001}),
        ("release", {"gate": "a/b"}),
    ],
)
def test_bad_words_are_refused_before_anything_is_written(get, act, action, body):
    before = get("/audit")["actions"]
    act(action, 422, **body)
    assert get("/audit")["actions"] == before


@pytest.mark.parametrize(
    ("action", "body", "says"),
    [
        ("resume", {"after_end": True}, "after_end is called restart_finished"),
        ("rollback", {"to": 1, "undone": [], "keep": []}, "undone is called expected_undone"),
        ("rollback", {"to": 1, "undone": [], "keep": []}, "keep is called keep_rows_of"),
        ("release", {"gate": "enough", "shown": 1}, "shown is called expected_rows"),
        ("backfill", {"begin_after": "1", "to": "2"}, "to is called stop_after"),
        ("backfill", {"begin_after": "1", "larger": 2}, "larger is called batch_factor"),
        ("backfill", {"begin_after": "1", "pause": 2}, "pause is called pause_seconds"),
        ("swap", {"drop_by_hand": True}, "drop_by_hand is called drop_manual_edits"),
    ],
)
def test_the_old_name_of_a_parameter_is_refused_with_the_new_one(get, act, action, body, says):
    before = get("/audit")["actions"]
    (problem,) = act(action, 422, **body)["detail"]
    assert says in problem["msg"]
    assert get("/audit")["actions"] == before


def test_the_api_describes_itself(client, tokens):
    client.cookies.set("_token", tokens["viewer"])
    told = client.get("/tidegate/api/v1/openapi.json").json()
    assert len(told["paths"]) > 20
    for path, methods in told["paths"].items():
        assert all(each.get("description") for each in methods.values()), path


def test_what_a_person_has_suspended_has_not_failed_and_no_log_tells_of_it(get, client, tokens, world, ids):
    control.resume(world.ledger, "somebody", "")
    done = world.checkpoint("airflow:orders:before it was suspended", rows=1)
    control.suspend(world.ledger, "mia", "the supplier repairs its prices")
    try:
        condition = get("/overview")["health"]
        assert (condition["state"], condition["checkpoint"]) == ("suspended", done)
        assert (condition["run_id"], condition["task"]) == (None, None)
        (row,) = [
            each for each in client.get("/tidegate/api/v1/pipelines").json()["pipelines"] if each["dag"] == "orders"
        ]
        assert (row["state"], row["failures"]) == ("suspended", 0)
    finally:
        control.resume(world.ledger, "somebody", "")


def test_a_script_that_has_changed_has_another_address_without_a_restart(client, tokens, tmp_path, monkeypatch):
    """Addresses of scripts are kept by browsers for a year; the files are read again when one has changed."""
    from tidegate.ui import pages

    def address() -> str:
        client.cookies.set("_token", tokens["viewer"])
        page = client.get("/tidegate/dag/orders").text
        return re.findall(r'"([^"]*/static/[0-9a-f]{16}/app.js)"', page)[0]

    shutil.copytree(pages.STATIC, tmp_path / "static")
    monkeypatch.setattr(pages, "STATIC", tmp_path / "static")
    before, script = address(), tmp_path / "static" / "app.js"
    assert address() == before
    script.write_text("// new\n" + script.read_text())
    after = address()
    assert after != before
    assert client.get(after).text.startswith("// new")
