"""Airflow's notifiers are called when a pipeline is suspended, recovers, or has quarantined rows; a held gate's too."""

from __future__ import annotations

import asyncio
import json
import runpy
import select
import socket
import socketserver
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pendulum
import pytest
from msgspec import structs

from tests.dags.in_process import run
from tests.dags.project import ODD_IS_BAD, Made, Project
from tests.kit.sampling import in_turn
from tests.kit.waiting import PATIENCE_S, eventually
from tidegate import Pipeline, seams
from tidegate.dag import build_dag
from tidegate.dag.tasks import notices
from tidegate.dag.tasks.deadlines import look_at_promises, look_from_triggerer
from tidegate.dag.tasks.notices import about_completed, checked_notifiers
from tidegate.errors import Invalid
from tidegate.history.promises import promises_now
from tidegate.history.schemas.drift import news_of
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import control
from tidegate.records.records import Drift, FoundColumn, HookProgress, KnownColumn, SourceSchema
from tidegate.seams import new_id
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files
from tidegate.versions.airflow import VERSION

pytestmark = in_turn(seconds=75)

WRITES_DOWN = """
import json
from airflow.sdk import BaseNotifier

class WriteDown(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text):
        super().__init__()
        self.text = text

    def notify(self, context):
        notice = context["tidegate"]
        with (HERE / "told").open("a") as file:
            print(json.dumps([notice["event"], notice["checkpoint"], self.text]), file=file)

def raises(context):
    raise RuntimeError("this notifier is broken")

NOTIFY = {
    event: [raises, WriteDown("{{ tidegate.pipeline }}: {{ tidegate.summary }}")]
    for event in ("held", "suspended", "quarantined", "drifted", "recovered", "stale", "fresh")
}
"""
NEEDS_A_TASK = """
class NamesTheTask(WriteDown):
    def notify(self, context):
        self.text = context["ti"].task_id
        super().notify(context)

NOTIFY = {event: [NamesTheTask("")] for event in NOTIFY}
"""
FAILS_IF_TOLD = """
if (HERE / "broken").exists():
    raise ValueError(f"this stage is {'broken'}")
"""


def told(made: Made) -> list[list[Any]]:
    path = made.folder / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_suspension_and_the_recovery_from_it_are_told_once(project: Project) -> None:
    made = project.pipeline(
        "suspends",
        stage=FAILS_IF_TOLD,
        gate=WRITES_DOWN,
        arguments="notify=NOTIFY",
        tolerable_failed_checkpoints=0,
    ).feed()
    (made.folder / "broken").touch()
    assert run(made, 1)[0] == "failed"
    (told_of,) = told(made)
    assert told_of[:2] == ["suspended", 1]
    assert told_of[2] == "suspends: it is suspended: checkpoint 1 was aborted (JOB_FAILED)"
    assert run(made, 2)[1]["trigger"] == "skipped"
    assert len(told(made)) == 1

    (made.folder / "broken").unlink()
    control.resume(made.ledger, "ann", "mended")
    assert run(made, 3)[0] == "success"
    assert told(made)[1:] == [["recovered", 3, "suspends: checkpoint 3 is completed, after 1 aborted one"]]
    assert run(made, 4)[0] == "success"
    assert len(told(made)) == 2


def test_a_new_column_is_told_once(project: Project) -> None:
    made = project.pipeline("drifts", gate=WRITES_DOWN, arguments="notify=NOTIFY").feed()
    ledger = made.ledger
    vip = FoundColumn(path="vip", kind="new", type="boolean", records=2, file="2.json")
    address = FoundColumn(path="ann@example.org", kind="new", type="bigint", records=1)
    amount = FoundColumn(path="amount", kind="type", type="bigint", records=1, wider="bigint")
    schema = SourceSchema(ddl="id bigint, amount int", evolves=True)
    assert run(made, 1)[0] == "success"
    entry = ledger.entry(1)
    assert entry is not None
    assert list(about_completed(entry, ledger)) == []
    (name,) = entry.plan.sources
    plan = structs.replace(entry.plan, sources={name: structs.replace(entry.plan.sources[name], schema=schema)})
    acks = {}
    for job, acked in entry.acks.items():
        ack = structs.replace(acked.ack, drift={name: Drift(found=[address, amount, vip], records=3)})
        acks[job] = replace(acked, ack=ack)
    (notice,) = about_completed(replace(entry, plan=plan, acks=acks), ledger)
    assert (notice.event, notice.checkpoint) == ("drifted", 1)
    assert notice.summary == (
        f"checkpoint 1 has found at source {name}: new columns vip boolean; 1 key that becomes no column; amount "
        "becomes bigint"
    )
    known = structs.replace(schema, known={"vip": KnownColumn(type="boolean", checkpoint=1)})
    known.known["ann@example.org"] = KnownColumn(type="bigint", checkpoint=1)
    assert news_of(known, Drift(found=[address, vip], records=2), 2) == ""


def test_a_suspension_by_somebody_is_told_by_the_next_run(project: Project) -> None:
    made = project.pipeline("by_hand", gate=WRITES_DOWN, arguments="notify=NOTIFY").feed()
    assert run(made, 1)[0] == "success"
    control.suspend(made.ledger, "ann", "prices")
    for number in (2, 3):
        assert run(made, number)[1]["trigger"] == "skipped"
    assert told(made) == [["suspended", None, "by_hand: it is suspended: a person asked for it"]]


def test_damage_is_told_once(project: Project) -> None:
    made = project.pipeline("damaged", gate=WRITES_DOWN, arguments="notify=NOTIFY").feed()
    assert run(made, 1)[0] == "success"
    for commit in (made.folder / "every" / "_delta_log").glob("*.json"):
        commit.write_text('{"add": ')
    assert run(made, 2)[0] == "failed"
    run(made, 3)
    ((event, checkpoint, text),) = told(made)
    assert (event, checkpoint) == ("suspended", None)
    assert text.startswith("damaged: it is suspended: ")


def test_quarantined_rows_are_told_with_their_gate_and_no_value(project: Project) -> None:
    made = project.pipeline("odd", gate=WRITES_DOWN + ODD_IS_BAD, arguments="notify=NOTIFY").feed()
    (made.folder / "policy").write_text("quarantine")
    assert run(made, 1)[0] == "success"
    assert told(made) == [["quarantined", 1, "odd: checkpoint 1 has quarantined 2 rows at gate checked"]]


def test_a_broken_promise_is_told_once_and_again_when_it_is_kept(project: Project) -> None:
    promise = 'pipeline.promise("every", fresh="15 min")\n'
    made = project.pipeline("old", gate=promise + WRITES_DOWN, arguments="notify=NOTIFY").feed()
    assert run(made, 1)[0] == "success"
    assert told(made) == []
    control.suspend(made.ledger, "ann", "prices")
    later = seams.now() + timedelta(minutes=16)
    with seams.installed(replace(seams.current(), now=lambda: later)):
        for number in (2, 3):
            assert run(made, number)[1]["trigger"] == "skipped"
        assert [event for event, *_ in told(made)] == ["stale", "suspended"]
        assert told(made)[0][2].startswith("old: sink every is more than 15 min old since ")
        control.resume(made.ledger, "ann", "mended")
        assert run(made, 4)[0] == "success"
        assert run(made, 5)[0] == "success"
    assert [event for event, *_ in told(made)] == ["stale", "suspended", "fresh"]
    assert told(made)[-1][1] == 4


def test_a_deadline_tells_of_tables_as_tasks_do_and_not_of_its_run(project: Project) -> None:
    promise = 'pipeline.promise("every", fresh="15 min")\n'
    made = project.pipeline("overdue", gate=promise + WRITES_DOWN, arguments="notify=NOTIFY").feed()
    assert run(made, 1)[0] == "success"
    look_at_promises(str(made.dag_file), "overdue", {"dag_run": {"run_id": "held up"}})
    assert told(made) == [], "whatever has become of the run, the table is new enough"
    later = seams.now() + timedelta(minutes=16)
    with seams.installed(replace(seams.current(), now=lambda: later)):
        for _ in range(2):
            look_at_promises(str(made.dag_file), "overdue", {"dag_run": {"run_id": "held up"}})
        ((event, checkpoint, text),) = told(made)
        assert (event, checkpoint) == ("stale", 1)
        assert text.startswith("overdue: sink every is more than 15 min old since ")
        assert run(made, 2)[0] == "success"
    assert [event for event, *_ in told(made)] == ["stale", "fresh"], "no task repeats what the deadline has told"


def test_a_deadline_whose_notifiers_all_fail_leaves_it_to_the_next_task(project: Project) -> None:
    promise = 'pipeline.promise("every", fresh="15 min")\n'
    made = project.pipeline("needs_a_task", gate=promise + WRITES_DOWN + NEEDS_A_TASK, arguments="notify=NOTIFY").feed()
    assert run(made, 1)[0] == "success"
    later = seams.now() + timedelta(minutes=16)
    with seams.installed(replace(seams.current(), now=lambda: later)):
        look_at_promises(str(made.dag_file), "needs_a_task", {"dag_run": {"run_id": "held up"}})
        assert told(made) == []
        assert run(made, 2)[0] == "success"
    assert [event for event, *_ in told(made)] == ["stale", "fresh"]


LATE = 'pipeline.promise("every", fresh="1 s")\n'
HELPER = """
from tidegate import Pipeline
from tidegate.dag import build_dag

def make(pipeline, notify):
    return build_dag(pipeline, notify=notify)
"""


def look(made: Made, dag_file: Path, **run: str) -> None:
    """What Airflow's triggerer calls after a deadline."""
    folders = str(dag_file.parent)
    deadline = {"id": uuid.uuid4(), "deadline_time": pendulum.now("UTC")}
    context = {"dag_run": {"run_id": "waits", **run}, "deadline": deadline}
    asyncio.run(look_from_triggerer(str(dag_file), made.name, "", folders, context))


def test_a_deadline_is_looked_at_by_a_process_of_its_own_and_not_for_runs_that_wait_for_a_replay(
    project: Project,
) -> None:
    made = project.pipeline("in_process", gate=LATE + WRITES_DOWN, interval="never", arguments="notify=NOTIFY").feed()
    assert run(made, 1)[0] == "success"
    (made.folder / "told").unlink(missing_ok=True)
    forget_told(made)
    eventually("the promise is broken", lambda: not all(each.is_kept for each in promises_now(made.ledger, 0)))
    look(made, made.dag_file, run_type="backfill")
    assert told(made) == []
    for _ in range(2):
        look(made, made.dag_file, run_type="scheduled")
    assert [event for event, *_ in told(made)] == ["stale"]


def test_a_dag_that_a_helper_module_builds_is_found_by_its_dag_file(project: Project) -> None:
    made = project.pipeline("by_helper", gate=LATE + WRITES_DOWN, interval="never", arguments="notify=NOTIFY").feed()
    assert run(made, 1)[0] == "success"
    (made.folder / "told").unlink(missing_ok=True)
    forget_told(made)
    (project.dags / "building_helper.py").write_text(HELPER)
    text = made.dag_file.read_text()
    assert "build_dag(pipeline, notify=NOTIFY)" in text
    helped = project.dags / "dag_by_helper_too.py"
    helped.write_text("import building_helper\n" + text.replace("build_dag(", "building_helper.make("))
    eventually("the promise is broken", lambda: not all(each.is_kept for each in promises_now(made.ledger, 0)))
    look(made, helped)
    assert [event for event, *_ in told(made)] == ["stale"]


def test_airflow_reads_the_dag_file_and_not_the_module_that_builds_the_dag(
    airflow_db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tidegate.toml").write_text("")
    (tmp_path / "elsewhere").mkdir()
    helper = tmp_path / "elsewhere" / "builds_for_others.py"
    helper.write_text("from tidegate.dag import build_dag\n\ndef make(pipeline):\n    return build_dag(pipeline)\n")
    monkeypatch.syspath_prepend(str(helper.parent))
    dag_file = tmp_path / "dags" / "helped.py"
    dag_file.parent.mkdir()
    dag_file.write_text(
        "from builds_for_others import make\n"
        "from tidegate import Pipeline\nfrom tidegate.sinks import DeltaAppend\n"
        "from tidegate.sources import Generator\n"
        "pipeline = Pipeline('helped', interval='never')\n"
        "pipeline.source('in', Generator(rows=1)).sink('out', DeltaAppend('out'))\ndag = make(pipeline)\n"
    )
    as_airflow_does = runpy.run_path(str(dag_file), run_name="unusual_prefix_0123_helped")
    assert as_airflow_does["dag"].fileloc == str(dag_file)
    assert as_airflow_does["dag"].get_task("trigger").project == str(tmp_path)
    assert runpy.run_path(str(dag_file))["dag"].fileloc == str(helper), "nobody reads it for Airflow"


def test_two_who_look_at_one_moment_tell_once(project: Project) -> None:
    made = project.pipeline("at_once", gate=LATE + WRITES_DOWN, interval="never", arguments="notify=NOTIFY").feed()
    assert run(made, 1)[0] == "success"
    (made.folder / "told").unlink(missing_ok=True)
    forget_told(made)
    eventually("the promise is broken", lambda: not all(each.is_kept for each in promises_now(made.ledger, 0)))
    with made.ledger.telling(60) as is_my_turn:
        assert is_my_turn
        look_at_promises(str(made.dag_file), "at_once")
        assert told(made) == []
    look_at_promises(str(made.dag_file), "at_once")
    assert [event for event, *_ in told(made)] == ["stale"]

    forget_told(made)
    (Path(made.ledger.home) / "telling.json").write_text(json.dumps({"format": 1}))  # of a process that was killed
    with made.ledger.telling(-1) as is_my_turn:
        assert is_my_turn
    assert not (Path(made.ledger.home) / "telling.json").exists()


def forget_told(made: Made) -> None:
    """Let nobody have been told of a promise yet."""
    known = made.ledger.hook_progress() or HookProgress(**stamp(new_id()))
    made.ledger.record_hook_progress(structs.replace(known, **stamp(new_id()), broken_promises=[]))


@pytest.mark.skipif(VERSION < (3, 1), reason="this Airflow has no deadlines")
@pytest.mark.parametrize(
    ("executor", "process", "notify", "has_deadline"),
    [
        ("LocalExecutor", "client", {"stale": print}, True),
        ("tidegate.dag.executor.ForkingLocalExecutor", "client", {"stale": print}, True),
        ("KubernetesExecutor", "client", {"stale": print}, True),
        ("LocalExecutor,KubernetesExecutor", "client", {"stale": print}, True),
        ("LocalExecutor", "client", {"held": print}, False),
        ("LocalExecutor", "", {"stale": print}, False),
    ],
)
def test_runs_have_a_deadline_for_each_promise_that_somebody_wants_to_hear_of(
    airflow_db: Path, monkeypatch: pytest.MonkeyPatch, executor: str, process: str, notify: Any, has_deadline: bool
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", process)
    pipeline = Pipeline("promising", interval="1 min")
    pipeline.source("rows", Files("in/*.json", schema="id long")).sink("every", DeltaAppend("every"))
    pipeline.promise("every", fresh="15 min")
    from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference  # type: ignore[attr-defined]

    own = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(hours=1), AsyncCallback("asyncio.sleep"))
    expected = [timedelta(minutes=15)] if has_deadline else []
    for given, hours in (
        ({}, []),
        ({"deadline": own}, [timedelta(hours=1)]),
        ({"deadline": [own]}, [timedelta(hours=1)]),
    ):
        dag = build_dag(pipeline, notify=notify, backfill=False, **given)
        found = dag.deadline if isinstance(dag.deadline, list) else [dag.deadline]
        assert [each.interval for each in found if each is not None] == hours + expected


@pytest.mark.skipif(VERSION < (3, 1), reason="this Airflow has no deadlines")
def test_the_deadline_of_an_interval_comes_when_its_table_gets_too_old_and_names_its_logins(
    airflow_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")
    pipeline = Pipeline("hourly", interval="1 h")
    rows = pipeline.source("rows", Files("in/{start:%Y-%m-%dT%H}.json", schema="id long"))
    rows.sink("every", DeltaAppend("every"))
    pipeline.promise("every", fresh="150 min")

    class Mails:
        smtp_conn_id = ""

        def __init__(self) -> None:
            self.smtp_conn_id = "office_mail"

        def __call__(self, context: Any) -> None:
            pass

    for schedule, minutes in (None, 90), ("@daily", 150):
        deadlines: Any = build_dag(pipeline, notify={"stale": Mails()}, schedule=schedule).deadline
        (deadline,) = deadlines
        assert deadline.interval == timedelta(minutes=minutes)
        assert deadline.callback.kwargs["logins"] == "office_mail"


def test_a_promise_that_the_schedule_cannot_keep_is_refused_when_the_dag_is_built(airflow_db: Path) -> None:
    pipeline = Pipeline("hasty", interval="15 min")
    pipeline.source("rows", Files("in/*.json", schema="id long")).sink("every", DeltaAppend("every"))
    pipeline.promise("every", fresh="15 min")
    with pytest.raises(Invalid, match="fresh within 15 min, and interval is 15 min"):
        build_dag(pipeline, project=str(airflow_db))
    assert build_dag(pipeline, project=str(airflow_db), schedule="* * * * *").dag_id == "hasty"


class Mailbox(socketserver.ThreadingTCPServer):
    """As much of a mail server as is needed to receive one mail after the other."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Session)
        self.mails: list[str] = []


class Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.say("220 here")
        while command := self.rfile.readline().decode().strip():
            if command.upper() == "DATA":
                self.say("354 go on")
                lines = []
                while (line := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                    lines.append(line)
                assert isinstance(self.server, Mailbox)
                self.server.mails.append("\n".join(lines))
            if command.upper() == "QUIT":
                self.say("221 bye")
                return
            self.say("250 fine")

    def say(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


MAILS = """
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
MAIL = SmtpNotifier(to="ann@example.com", from_email="airflow@example.com", smtp_conn_id="mail",
                    subject="{{ tidegate.summary }}", html_content="see {{ tidegate.pipeline }}")
"""


def mails(project: Project, name: str, server: Any, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A pipeline that mails when rows are quarantined, and has such rows."""
    host, port = server[:2]
    connection = {"conn_type": "smtp", "host": host, "port": port, "extra": {"disable_ssl": True, "disable_tls": True}}
    monkeypatch.setenv("AIRFLOW_CONN_MAIL", json.dumps(connection))
    made = project.pipeline(name, gate=MAILS + ODD_IS_BAD, arguments="notify={'quarantined': MAIL}").feed()
    (made.folder / "policy").write_text("quarantine")
    return made


def test_airflows_own_notifier_sends_a_mail(
    project: Project, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mails(project, "mails", mailbox.server_address, monkeypatch)
    assert run(made, 1)[0] == "success"
    (mail,) = mailbox.mails
    assert "Subject: checkpoint 1 has quarantined 2 rows at gate checked" in mail


def test_a_mail_server_that_does_not_answer_or_is_away_holds_no_checkpoint_up(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "LIMIT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = mails(project, "patient", silent.getsockname(), monkeypatch)
        assert run(made, 1)[0] == "success"
        assert select.select([silent], [], [], PATIENCE_S)[0], "somebody has connected, and still waits to be greeted"
    made.feed()
    assert run(made, 2)[0] == "success", "nobody listens there any more"
    assert made.published == [1, 2]


@pytest.mark.parametrize("given", [{"broken": []}, {"held": ["ann@example.com"]}, ["held"]])
def test_what_is_no_event_or_no_notifier_is_refused(given: Any) -> None:
    with pytest.raises(Invalid, match="build_dag: notify"):
        checked_notifiers(given)
