"""The parts of `tidegate.dag` by themselves: the table of errors, waiting, retries, the timetable, what a DAG says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pendulum
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferred

from tests.dags import by_hand
from tests.dags.by_hand import context
from tests.dags.project import Made, Project
from tests.kit.toy_world import ToyWorld
from tidegate import Pipeline, seams
from tidegate.config import load_settings
from tidegate.coordinator import Coordinator
from tidegate.dag import asset, build, build_dag, run_params
from tidegate.dag.tasks.gates import question
from tidegate.dag.tasks.operators import WAITING, JobOperator, TriggerOperator, as_airflow
from tidegate.dag.tasks.task import Cancelled, Task
from tidegate.dag.timetable import Every
from tidegate.dag.waiting import LedgerTrigger
from tidegate.errors import Corrupt, Fenced, Invalid, Rejected, Unavailable
from tidegate.execution.deadline import DeadlinePassed, SparkNeverReady
from tidegate.execution.runs import new_run
from tidegate.gates import Volume
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import control
from tidegate.lifecycle.savepoint import savepoints
from tidegate.pipeline.picture import picture
from tidegate.records.records import (
    Ack,
    Act,
    Hold,
    JobStats,
    Payload,
    RecordedRule,
    Verdict,
)
from tidegate.seams import new_id
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

# -- errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Invalid("x"), AirflowFailException),
        (Unavailable("x"), AirflowException),
        (Fenced("x"), AirflowSkipException),
        (Rejected("x", reason="SUSPENDED"), AirflowSkipException),
        (Rejected("x", reason="RETIRED"), AirflowSkipException),
        (Rejected("x", reason="STOPPED"), AirflowSkipException),
        (Rejected("x", reason="GATE_FAILED"), AirflowFailException),
        (Corrupt("x"), AirflowFailException),
    ],
)
def test_each_kind_of_error_has_airflow_do_one_thing(error, told):
    assert type(as_airflow(error)) is told


def test_what_airflow_shows_says_what_happened_and_what_to_do():
    text = str(as_airflow(Invalid("no such file", expected="a file", help="make one", reason="NO_FILE")))
    assert text.startswith("NO_FILE: no such file")
    assert "make one" in text


# -- waiting -------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Project(tmp_path / "project").pipeline("waits").feed()


def load(made: Made) -> Any:
    return by_hand.load(str(made.dag_file))


def others_checkpoint(dag: Any) -> tuple[Task, int]:
    """An open checkpoint of a process that is alive."""
    task = Task.open(dag.task_dict["trigger"].pipeline, dag.task_dict["trigger"].project, context(dag))
    triggered = task.coordinator.trigger(new_run())
    assert triggered is not None
    return task, triggered.plan.id


def test_a_run_waits_without_a_worker_while_others_are_at_work(made: Made):
    dag = load(made)
    task, id = others_checkpoint(dag)
    with pytest.raises(TaskDeferred) as deferred:
        dag.task_dict["trigger"].execute(context(dag))
    assert deferred.value.method_name == "resume"
    assert deferred.value.trigger.ids == [id]
    task.coordinator.abort(id, "CANCELLED")
    planned = dag.task_dict["trigger"].resume(context(dag), event="it is decided")
    assert planned == {"checkpoint": id + 1, "done": False}


@pytest.mark.parametrize(
    ("known", "savepoint", "rank"),
    [
        ({"run_type": "scheduled"}, None, []),
        ({"run_type": "manual"}, None, ["manual"]),
        ({"run_type": "manual"}, "before-release", ["savepoint"]),
    ],
)
def test_while_a_run_waits_others_know_how_urgent_it_is(
    made: Made, known: dict[str, str], savepoint: str | None, rank: list[str]
):
    dag = load(made)
    task, _ = others_checkpoint(dag)
    given = context(dag, **known)
    given["params"] = {**given["params"], "savepoint": savepoint}
    with pytest.raises(TaskDeferred):
        dag.task_dict["trigger"].execute(given)
    assert [waiter.rank for waiter in task.coordinator.ledger.waiters()] == rank


def fired(trigger: LedgerTrigger) -> str:
    async def first() -> str:
        async for event in trigger.run():
            return str(event.payload)
        raise AssertionError("it never fired")

    return asyncio.run(first())


def test_what_waits_wakes_when_a_checkpoint_is_decided(made: Made):
    task, id = others_checkpoint(load(made))
    place = task.settings.root, str(made.project.folder), "waits"
    assert fired(LedgerTrigger(*place, [id], look_again=0.1)) == "the maximum wait is over"
    task.coordinator.abort(id, "CANCELLED")
    again = LedgerTrigger(**LedgerTrigger(*place, [id]).serialize()[1])
    assert fired(again) == f"checkpoint {id} is aborted"


def test_where_the_triggerer_cannot_see_the_ledger_only_time_wakes_what_waits(tmp_path: Path):
    """Else the task would be woken to find nothing, and wait again, forever."""
    nowhere = LedgerTrigger(str(tmp_path / "nowhere"), str(tmp_path), "waits", [1], look_again=0.1)
    assert fired(nowhere) == "the maximum wait is over"


def test_the_triggerer_is_told_no_secrets_and_finds_the_class(made: Made):
    path, kept = LedgerTrigger("root", "project", "waits", [1]).serialize()
    assert path == "tidegate.dag.waiting.LedgerTrigger"
    assert "storage_options" not in json.dumps(kept)


@pytest.mark.parametrize("reason", sorted(WAITING))
def test_every_reason_to_wait_defers(made: Made, reason):
    dag = load(made)
    task = Task.open(dag.task_dict["trigger"].pipeline, dag.task_dict["trigger"].project, context(dag))
    with pytest.raises(TaskDeferred):
        dag.task_dict["trigger"].wait(task, Rejected("x", reason=reason), [])


def run_of_a_dead_process() -> str:
    code = "from tidegate.execution.runs import new_run; print(new_run())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_process_that_has_died_is_not_waited_for(made: Made):
    dag = load(made)
    task, id = others_checkpoint(dag)
    task.coordinator.abort(id, "CANCELLED")
    task.coordinator.trigger(run_of_a_dead_process())
    assert dag.task_dict["trigger"].execute(context(dag)) == {"checkpoint": 3, "done": False}
    assert made.outcomes() == ["CANCELLED", "RUN_GONE", "open"]


def test_a_pipeline_waits_for_a_swap_only_as_long_as_somebody_swaps(made: Made):
    """A worker that is killed in the middle of a swap leaves the pipeline suspended: the next run finds that out."""
    dag = load(made)
    task = Task.open(dag.task_dict["trigger"].pipeline, dag.task_dict["trigger"].project, context(dag))
    ledger = task.coordinator.ledger
    control.suspend(ledger, "backfill fix", "it is swapped in", run=new_run())
    with pytest.raises(AirflowSkipException, match="suspended by backfill fix"):
        dag.task_dict["trigger"].execute(context(dag))
    control.resume(ledger, "ann")
    control.suspend(ledger, "backfill fix", "it is swapped in", run=run_of_a_dead_process())
    assert dag.task_dict["trigger"].execute(context(dag))["checkpoint"] == 4 + 1
    task.coordinator.abort(5, "CANCELLED")
    control.suspend(ledger, "ann", "the feed is being repaired")
    assert not control.lift_abandoned(ledger, 0, lambda plan: "RUN_GONE")
    with pytest.raises(AirflowSkipException, match="suspended by ann"):
        dag.task_dict["trigger"].execute(context(dag))


def test_airflows_form_can_be_sent_as_it_is():
    """An empty text counts there as a field that is missing, and nobody can press the button."""
    for params in (run_params.params(), run_params.backfill_params()):
        assert "" not in [param.value for param in params.values()]


def test_unknown_conf_is_refused_before_anything_is_written(made: Made):
    dag = load(made)
    with pytest.raises(AirflowFailException, match="savepont") as refused:
        dag.task_dict["trigger"].execute(context(dag, conf={"savepont": "x", "note": "fine"}))
    assert "nothing but note, savepoint" in str(refused.value)
    assert not (made.project.folder / "ledger").exists()


def asked_for(task: Task, action: str, run_id: str, **words: Any) -> str:
    """As the Checkpoints page writes it down, once it knows that somebody may; answers with the key for the run."""
    made = Act(**stamp(new_id()), action=action, by="ann in Airflow", request=words, run=f"airflow:waits:{run_id}")
    return task.coordinator.ledger.create_act(made)


@pytest.mark.parametrize("conf", [{"rollback": {"to": 1, "undone": [2, 3], "suspend": True}}, {"drain": True}])
def test_who_may_only_trigger_can_neither_go_back_nor_end_the_pipeline(made: Made, conf: dict[str, Any]):
    """A task is told the name of whoever triggered its run, and no rights: so a run's conf cannot ask for it."""
    dag = load(made)
    with pytest.raises(AirflowFailException, match="UNKNOWN_CONF") as refused:
        dag.task_dict["trigger"].execute(context(dag, conf=conf) | {"params": conf})
    assert "page Checkpoints" in str(refused.value), "the way that there is"
    assert not (made.project.folder / "ledger").exists()


def test_what_was_asked_for_is_done_by_the_run_that_it_was_asked_for(made: Made):
    """A request that was seen on a page, or guessed, is of no use to anybody else; and nothing else is a request."""
    dag = load(made)
    task = Task.open(dag.task_dict["trigger"].pipeline, dag.task_dict["trigger"].project, context(dag))
    task.coordinator.ledger.start()
    keys = [asked_for(task, action, "theirs", to=1, undone=[2]) for action in ("rollback", "drain")]
    keys += [asked_for(task, "suspend", "mine"), "../../../pipeline", "2026-01-01T000000000-0123456789abcdef"]
    for key in [*keys, 7, ["x"]]:
        with pytest.raises(AirflowFailException, match="NOT_ASKED_FOR"):
            dag.task_dict["trigger"].execute(context(dag, "mine", conf={"request": key}))
    assert task.coordinator.ledger.ids() == []
    assert dag.task_dict["trigger"].execute(context(dag, "theirs", conf={"request": keys[1]}))["checkpoint"] == 1


def test_a_run_goes_back_if_that_was_asked_for_on_the_page(made: Made):
    """Once, however often it is tried; and no more than whoever asked was shown."""
    dag = load(made)
    task = Task.open(dag.task_dict["trigger"].pipeline, dag.task_dict["trigger"].project, context(dag))
    ledger = task.coordinator.ledger

    def checkpoint(run_id: str) -> int:
        at = context(dag, run_id) | {"params": {}, "outlet_events": defaultdict(OutletEvent)}
        id = dag.task_dict["trigger"].execute(at)["checkpoint"]
        attempt = f"{ledger.plan(id).attempt}-by-hand"
        ledger.create_ack(Ack(**stamp(attempt), id=id, job="main", prev=None, sinks={}, stats=JobStats()))
        assert dag.task_dict["complete"].execute(at) == {"checkpoint": id}
        return int(id)

    first, second, third = (checkpoint(f"run {n}") for n in range(3))
    short = asked_for(task, "rollback", "unseen", to=first, undone=[second])
    with pytest.raises(AirflowFailException, match="CHANGED_MEANWHILE"):
        dag.task_dict["trigger"].execute(context(dag, "unseen", conf={"request": short}))
    key = asked_for(task, "rollback", "back", to=first, undone=[third, second], suspend=True, note="wrong prices")
    for _ in range(2):
        with pytest.raises(AirflowSkipException, match=f"entry {third + 1} is a rollback"):
            dag.task_dict["trigger"].execute(context(dag, "back", conf={"request": key, "note": "wrong prices"}))
    record = ledger.plan(third + 1).rollback
    assert (record.target, record.by, record.suspended.reason) == (first, "ann in Airflow", "wrong prices")
    with pytest.raises(AirflowFailException, match="NOT_ASKED_FOR"):
        dag.task_dict["trigger"].execute(context(dag, "again", conf={"request": key}))
    assert ledger.ids() == [first, second, third, third + 1]


def test_a_run_that_goes_back_keeps_the_rows_that_the_page_was_told_to_keep(made: Made):
    dag = load(made)
    task = Task.open(dag.task_dict["trigger"].pipeline, dag.task_dict["trigger"].project, context(dag))
    task.coordinator.ledger.start()
    key = asked_for(task, "rollback", "back", to=1, undone=[2], keep=["copied"])
    rolled_back = mock.Mock(side_effect=Rejected("as far as it goes"))
    at = context(dag, "back", conf={"request": key})
    with mock.patch("tidegate.lifecycle.rollback.roll_back", rolled_back), pytest.raises(AirflowFailException):
        dag.task_dict["trigger"].execute(at)
    assert rolled_back.call_args.kwargs["choices"] == {"copied": "keep"}


def test_a_run_may_make_a_savepoint_of_its_checkpoint(made: Made):
    """Once, however often its tasks run; a name that is taken is refused before anything is planned."""
    dag = load(made)

    def at(run_id: str) -> dict[str, Any]:
        known = context(dag, run_id, conf={"savepoint": "good"})
        return known | {
            "params": {"savepoint": "good", "note": "before prices"},
            "outlet_events": defaultdict(OutletEvent),
        }

    with mock.patch.object(Coordinator, "trigger", autospec=True, side_effect=Coordinator.trigger) as triggered:
        id = dag.task_dict["trigger"].execute(at("first"))["checkpoint"]
    assert triggered.call_args.kwargs["aligned"], "so that it can be copied"
    task = Task.open(dag.task_dict["trigger"].pipeline, dag.task_dict["trigger"].project, at("first"))
    ledger = task.coordinator.ledger
    attempt = f"{ledger.plan(id).attempt}-by-hand"
    ledger.create_ack(Ack(**stamp(attempt), id=id, job="main", prev=None, sinks={}, stats=JobStats()))
    for _ in range(2):
        assert dag.task_dict["complete"].execute(at("first")) == {"checkpoint": id}
    assert [(each.name, each.entry, each.pin.note) for each in savepoints(ledger)] == [("good", id, "before prices")]
    assert dag.task_dict["trigger"].execute(at("first"))["checkpoint"] == id, "its own name"
    with pytest.raises(AirflowFailException, match="NAME_TAKEN"):
        dag.task_dict["trigger"].execute(at("second"))
    assert ledger.ids() == [id]


def test_a_run_may_be_the_last_one(made: Made):
    """Event time comes to its end with its checkpoint. Later runs are skipped; with never_retain nothing stays."""
    settings = made.project.folder / "tidegate.toml"
    settings.write_text(f'retention = "never_retain"\n{settings.read_text()}')
    dag = load(made)
    task = Task.open(dag.task_dict["trigger"].pipeline, dag.task_dict["trigger"].project, context(dag))
    task.coordinator.ledger.start()
    given = {"request": asked_for(task, "drain", "first", note="season over")}

    def at(run_id: str) -> dict[str, Any]:
        return context(dag, run_id, conf=given) | {"params": {}, "outlet_events": defaultdict(OutletEvent)}

    id = dag.task_dict["trigger"].execute(at("first"))["checkpoint"]
    ledger, plan = task.coordinator.ledger, task.coordinator.ledger.plan(id)
    assert (plan.drain.reason, plan.drain.by) == ("season over", "ann in Airflow")
    ledger.create_ack(Ack(**stamp(f"{plan.attempt}-x"), id=id, job="main", prev=None, sinks={}, stats=JobStats()))
    for _ in range(2):
        assert dag.task_dict["complete"].execute(at("first")) == {"checkpoint": id}
    with pytest.raises(AirflowSkipException, match="cancelled for good by airflow:waits:first: it is finished"):
        dag.task_dict["trigger"].execute(context(dag, "second"))
    assert (ledger.discarded().id, ledger.ids()) == (id, [id, id + 1])


class OutletEvent:
    """What goes with an asset's event."""

    extra: dict[str, Any]


def test_a_retry_finds_the_checkpoint_that_its_run_has(made: Made):
    dag = load(made)
    first = dag.task_dict["trigger"].execute(context(dag))
    assert dag.task_dict["trigger"].execute(context(dag)) == first
    assert dag.task_dict["trigger"].resume(context(dag)) == first
    assert made.outcomes() == ["open"]


def test_a_damaged_ledger_fails_the_run_without_a_retry(made: Made):
    dag = load(made)
    dag.task_dict["trigger"].execute(context(dag))
    (made.project.folder / "ledger" / "waits" / "checkpoints" / "00000001" / "plan.json").write_text("{")
    at = context(dag)
    with pytest.raises(AirflowFailException, match=r"plan\.json"):
        dag.task_dict["trigger"].execute(at)
    assert "plan.json" in at["ti"].left["failure"]


# -- being told to end ---------------------------------------------------------------------------------


def test_a_task_that_is_told_to_end_cancels_its_spark_work_and_ends(made: Made):
    job = load(made).task_dict["job_main"]
    cancelled = []
    job._cancel = lambda: cancelled.append(True)
    with pytest.raises(Cancelled):
        job.on_kill()
    assert cancelled


LOST = """
import os, signal, sys, threading, time
from tidegate.dag.tasks import task

task.END_S = 0.1
over = threading.Event()

def told_to_end(*_):
    task.kill_unless_finished(over)
    raise task.Cancelled

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass

signal.signal(signal.SIGTERM, told_to_end)
Finalized()
if sys.argv[1] == "ends":
    over.set()
    [watching] = [thread for thread in threading.enumerate() if thread.name == "kill-unless-done"]
    watching.join()
    sys.exit(0)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize(("what", "code"), [("goes on", -9), ("ends", 0)])
def test_a_task_that_was_told_to_end_where_nobody_hears_it_ends_all_the_same(what: str, code: int):
    """In a finalizer, where Python ignores whatever is raised."""
    done = subprocess.run([sys.executable, "-c", LOST, what], capture_output=True, text=True, timeout=120)
    assert "Exception ignored" in done.stderr
    assert done.returncode == code


@pytest.mark.parametrize("mode", ["connect", "submit"])
def test_a_job_that_acked_in_time_is_done_however_long_its_driver_takes_to_end(tmp_path: Path, mode: str):
    """The deadline passed while Spark shut down: the task was red, and its checkpoint completed."""
    world = ToyWorld(tmp_path)
    plan = world.ledger.plan(world.trigger("run"))
    told: list[tuple[str, bool]] = []
    noted: list[str] = []
    task: Any = SimpleNamespace(
        coordinator=world.coordinator(),
        settings=SimpleNamespace(spark=SimpleNamespace(mode=mode)),
        failed=lambda why, of_environment: told.append((why, of_environment)),
        note=lambda step, error: noted.append(error.reason),
    )

    def late(*_: object) -> None:
        raise DeadlinePassed

    def too_late_to_end(*_: object) -> None:
        world.work(plan.id)
        raise DeadlinePassed

    def without_spark(*_: object) -> None:
        raise SparkNeverReady

    about = {"task_id": "job_main", "job": "main", "_about": lambda plan: "job main"}
    operator: Any = SimpleNamespace(**about, _run=late, _submit=late)
    with pytest.raises(AirflowFailException, match="CHECKPOINT_EXPIRED"):
        JobOperator._work(operator, task, plan)
    assert told[0][1] is False, "word is left for `complete`"
    operator = SimpleNamespace(**about, _run=without_spark, _submit=without_spark)
    with pytest.raises(AirflowFailException, match="Spark was not ready for job 'main'"):
        JobOperator._work(operator, task, plan)
    assert told[1][1] is True, "that is not the pipeline's fault"
    assert noted == ["CHECKPOINT_EXPIRED", "SPARK_START"], "whatever an earlier try has met"
    told.clear()
    operator = SimpleNamespace(**about, _run=too_late_to_end, _submit=too_late_to_end)
    JobOperator._work(operator, task, plan)
    assert not told
    assert world.coordinator().complete(plan.id).state == "completed"


def test_a_deadline_that_passes_while_spark_starts_says_so(tmp_path: Path):
    world = ToyWorld(tmp_path)
    plan = world.ledger.plan(world.trigger("run"))

    class Starting:
        def __call__(self, job: str) -> None:
            raise DeadlinePassed

        def cancel(self) -> None:
            raise AssertionError("there is nothing to cancel")

    operator: Any = SimpleNamespace(
        job="main",
        _about=lambda plan: "job main",
        sessions=lambda task, job: contextlib.nullcontext(Starting()),
    )
    task: Any = SimpleNamespace(coordinator=world.coordinator(), steps=lambda of: lambda step: None)
    with pytest.raises(SparkNeverReady):
        JobOperator._run(operator, task, plan)


# -- retries -------------------------------------------------------------------------------------------


def restart(**restart: object) -> dict[str, Any]:
    return build.for_jobs(load_settings(code={"restart": restart}, env={}, start=Path("/")))


def test_restart_strategies_become_retries():
    assert restart(strategy="none") == {"retries": 0}
    assert restart(strategy="fixed", attempts=4, delay="3 s") == {"retries": 4, "retry_delay": timedelta(seconds=3)}
    assert restart(strategy="failure_rate", attempts=5, per="5 min") == {  # of 10 min that the checkpoint has
        "retries": 10,
        "retry_delay": timedelta(minutes=1),
    }
    assert restart() == {
        "retries": 3,
        "retry_delay": timedelta(seconds=1),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=1),
    }


# -- the timetable -------------------------------------------------------------------------------------


def restriction(earliest: str | None = None, catchup: bool = True, latest: str | None = None) -> Any:
    from airflow.timetables.base import TimeRestriction

    begin, end = (pendulum.parse(at) if at else None for at in (earliest, latest))
    return TimeRestriction(begin, end, catchup)  # type: ignore[arg-type]


def test_runs_are_an_interval_apart_without_holes():
    every = Every(2.5, delay=1)
    info = every.next_dagrun_info(last_automated_data_interval=None, restriction=restriction("2026-01-01T00:00:02"))
    starts = []
    for _ in range(3):
        assert info is not None
        starts.append(info.data_interval.start.isoformat())
        assert info.run_after == info.data_interval.end.add(seconds=1)
        again = restriction("2026-01-01T00:00:02")
        info = every.next_dagrun_info(last_automated_data_interval=info.data_interval, restriction=again)
    assert starts == [f"2026-01-01T00:00:{second}+00:00" for second in ("02.500000", "05", "07.500000")]


def test_what_was_missed_is_one_run():
    every = Every(60)
    long_ago = every.infer_manual_data_interval(run_after=pendulum.parse("2020-01-01"))
    info = every.next_dagrun_info(last_automated_data_interval=long_ago, restriction=restriction(catchup=False))
    assert info is not None
    assert 0 <= (pendulum.now("UTC") - info.run_after).total_seconds() < 61


DAYS = 86400


def following(every: Every, last: tuple[str, str], now: str, catchup: bool = True, count: int = 1) -> list[Any]:
    """The next runs behind an interval: when they begin, and what is theirs."""
    from airflow.timetables.base import DataInterval

    before = DataInterval(pendulum.parse(last[0]), pendulum.parse(last[1]))  # type: ignore[arg-type]
    found = []
    with seams.installed(seams.Seams(now=lambda: datetime.fromisoformat(now).replace(tzinfo=UTC))):
        for _ in range(count):
            info = every.next_dagrun_info(last_automated_data_interval=before, restriction=restriction(catchup=catchup))
            assert info is not None
            before = info.data_interval
            found.append(tuple(f"{at:%d %H:%M}" for at in (before.start, before.end, info.run_after)))
    return found


def test_a_delay_moves_the_run_and_not_its_interval():
    every = Every(DAYS, delay=600)
    found = following(every, ("2026-01-01", "2026-01-02"), "2026-01-03T00:05", count=2)
    assert found == [("02 00:00", "03 00:00", "03 00:10"), ("03 00:00", "04 00:00", "04 00:10")]
    by_hand = every.infer_manual_data_interval(run_after=pendulum.parse("2026-01-03T00:05"))
    assert by_hand.end == pendulum.parse("2026-01-02"), "that of the third is not due yet"
    later = following(Every(DAYS, delay=30 * 3600), ("2026-01-01", "2026-01-02"), "2026-01-03T07:00")
    assert later == [("02 00:00", "03 00:00", "04 06:00")]


def test_another_interval_or_delay_leaves_nothing_out_and_makes_nothing_twice():
    """The first one goes from where the last one ended to where the calendar has its next."""
    found = following(Every(DAYS), ("2026-01-01T04:00", "2026-01-01T05:00"), "2026-01-03T09:00", count=2)
    assert found == [("01 05:00", "02 00:00", "02 00:00"), ("02 00:00", "03 00:00", "03 00:00")]
    found = following(Every(DAYS, 600), ("2026-01-01T00:10", "2026-01-02T00:10"), "2026-01-03T09:00", count=2)
    assert found == [("02 00:10", "03 00:00", "03 00:10"), ("03 00:00", "04 00:00", "04 00:10")]


def test_intervals_that_were_missed_are_made_up_for_but_not_without_end():
    found = following(Every(DAYS), ("2026-01-01", "2026-01-02"), "2026-01-06T09:00", count=4)
    assert [each[0] for each in found] == ["02 00:00", "03 00:00", "04 00:00", "05 00:00"]
    (first,) = following(Every(3600), ("2025-01-01", "2025-01-02"), "2026-01-06T09:30")
    assert first[0] == f"{pendulum.datetime(2026, 1, 6, 9).subtract(hours=1000):%d %H:%M}"


def test_a_backfill_gets_all_that_lies_between_its_dates():
    every, last, starts = Every(3600), None, []
    while info := every.next_dagrun_info(
        last_automated_data_interval=last, restriction=restriction("2020-01-01T00:10", latest="2020-01-01T04:00")
    ):
        starts.append(f"{info.data_interval.start:%H:%M}")
        last = info.data_interval
    assert starts == ["01:00", "02:00", "03:00", "04:00"]


def test_only_an_interval_pipeline_catches_up_by_default_and_not_from_the_beginning_of_time():
    pipeline = Pipeline("days", interval="1 day")
    rows = pipeline.source("in", Files("in/{start:%Y-%m-%d}/*.json", schema="id long"))
    rows.sink("out", DeltaAppend("out"))
    dag = build_dag(pipeline)
    assert dag.catchup
    with seams.installed(seams.Seams(now=lambda: datetime(2026, 1, 6, 9, tzinfo=UTC))):
        info = dag.timetable.next_dagrun_info(
            last_automated_data_interval=None, restriction=restriction(dag.start_date.isoformat())
        )
    assert f"{info.data_interval.start:%Y-%m-%d}" == "2026-01-06"
    assert not build_dag(pipeline, catchup=False).catchup
    assert not build_dag(pipeline, schedule="@daily").catchup
    assert build_dag(pipeline, schedule="@daily", start_date=pendulum.datetime(2026, 1, 1)).catchup
    assert not build_dag(some_pipeline()).catchup


def test_never_means_by_hand_only():
    never = Every(0)
    assert not never.can_be_scheduled
    assert never.next_dagrun_info(last_automated_data_interval=None, restriction=restriction("2026-01-01")) is None
    assert never.summary == "by hand"


def test_a_timetable_survives_being_stored():
    every = Every(90, 5)
    again = Every.deserialize(json.loads(json.dumps(every.serialize())))
    assert (again.summary, again.serialize()) == ("every 90 s, 5 s late", every.serialize())


# -- the DAG -------------------------------------------------------------------------------------------


def some_pipeline(**settings: object) -> Pipeline:
    pipeline = Pipeline("shop", root="/r", data="/d", **settings)
    orders = pipeline.source("orders", Files("orders/*.json", schema="id long"))

    @pipeline.stage(orders, outputs=["good", "bad"])
    def checked(orders: Any) -> Any:
        return {"good": orders, "bad": orders}

    checked["good"].sink("kept", DeltaAppend("kept"))
    checked["bad"].sink("refused", DeltaAppend("refused"))
    return pipeline


def test_at_least_once_the_dag_does_not_say_that_rows_are_out_of_sight():
    once, exactly = build_dag(some_pipeline(mode="at_least_once")), build_dag(some_pipeline())
    assert "jobs write rows to their tables as soon as they have them" in once.doc_md
    assert "Its rows are in the tables at once" in once.task_dict["job_main"].doc_md
    assert "At least once" not in exactly.doc_md
    assert "invisible until `complete` has decided" in exactly.task_dict["job_main"].doc_md


def test_the_dag_is_the_pipeline():
    dag = build_dag(some_pipeline(interval="90 s", max_concurrent_checkpoints=3))
    assert dag.dag_id == "shop"
    assert {name: sorted(task.upstream_task_ids) for name, task in dag.task_dict.items()} == {
        "trigger": [],
        "job_main": ["trigger"],
        "complete": ["job_main", "trigger"],
    }
    assert dag.timetable.summary == "every 90 s"
    assert (dag.catchup, dag.max_active_runs) == (False, 4)
    late = build_dag(some_pipeline(interval="90 s", initial_delay="20 s"))
    assert late.timetable.summary == "every 90 s, 20 s late"
    assert dag.tags == {"tidegate", "shop"}
    assert dag.task_dict["complete"].outlets[:2] == [asset("shop", "kept"), asset("shop", "refused")]


def test_what_the_user_gives_is_kept():
    def alarm(context: object) -> None: ...

    dag = build_dag(
        some_pipeline(),
        dag_id="other",
        schedule="0 3 * * *",
        tags=["mine"],
        params={"mine": 1},
        doc_md="Ask Ann.",
        on_failure_callback=alarm,
        default_args={"owner": "ann", "on_failure_callback": alarm},
        owner_links={"ann": "mailto:ann@example.com"},
    )
    assert dag.dag_id == "other"
    assert dag.timetable.expression == "0 3 * * *"
    assert dag.tags == {"tidegate", "shop", "mine"}
    assert set(dag.params) == {"note", "savepoint", "mine"}
    assert dag.doc_md is not None
    assert dag.doc_md.startswith("Ask Ann.")
    assert dag.on_failure_callback is alarm
    assert dag.task_dict["job_main"].on_failure_callback == [alarm]
    assert dag.task_dict["job_main"].owner == "ann"
    assert dag.owner_links == {"ann": "mailto:ann@example.com"}


def test_a_dag_may_be_scheduled_on_the_assets_of_another():
    dag = build_dag(some_pipeline(), schedule=[asset("orders", "orders"), asset("orders", "order_events")])
    assert {asset.uri for asset in dag.timetable.asset_condition.objects} == {
        "tidegate://orders/orders",
        "tidegate://orders/order_events",
    }


def test_a_job_whose_upstream_was_marked_green_by_hand_fails_and_says_why(tmp_path: Path):
    """Nobody will ever do that job, so waiting for it would be forever."""
    dag = load(Project(tmp_path / "project").pipeline("apart", gate='seen = seen.job("apart")').feed())
    dag.task_dict["trigger"].execute(context(dag))
    with pytest.raises(AirflowFailException, match=r"UPSTREAM_MISSING: job 'apart' .* reads from job 'main'"):
        dag.task_dict["job_apart"].execute(context(dag))


def test_each_job_is_a_task_behind_those_that_it_takes_from():
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Files("landing/*.json", schema="id long"))
    checked = orders.gate(Volume(least=1), name="checked")
    scored = pipeline.stage(checked.job("scoring"), name="scored")(lambda frame: frame)
    scored.sink("scores", DeltaAppend("tables/scores"))
    checked.job("copying").sink("copies", DeltaAppend("tables/copies"))
    dag = build_dag(pipeline)
    assert {name: sorted(task.upstream_task_ids) for name, task in dag.task_dict.items()} == {
        "trigger": [],
        "job_main": ["trigger"],
        "gate_checked": ["job_main"],
        "job_scoring": ["job_main", "trigger"],
        "job_copying": ["job_main", "trigger"],
        "complete": ["gate_checked", "job_copying", "job_main", "job_scoring", "trigger"],
    }
    text = dag.task_dict["job_scoring"].doc_md
    assert text is not None
    assert "- Takes from other jobs: `checked`" in text
    assert picture(pipeline.graph()).splitlines() == [
        "orders               source · files",
        "└─▶ checked          gate · volume",
        "    ├─▶ scored       stage, in job scoring",
        "    │   └─▶ scores   sink · delta-append",
        "    └─▶ copies       sink · delta-append, in job copying",
    ]


def test_the_documentation_shows_the_pipeline_and_no_secrets():
    pipeline = some_pipeline(storage_options={"password": "canary"}, spark={"conf": {"spark.my.token": "canary"}})
    text = build_dag(pipeline).doc_md
    assert text is not None
    assert "canary" not in text
    assert "| `interval` | 5 min | default |" in text
    assert "When a run is red" in text
    assert picture(pipeline.graph()).splitlines() == [
        "orders            source · files",
        "└─▶ checked       stage",
        "    ├─▶ kept      sink · delta-append, takes checked.good",
        "    └─▶ refused   sink · delta-append, takes checked.bad",
    ]


def test_a_dag_is_stored_the_same_way_each_time_it_is_parsed(made: Made, monkeypatch: pytest.MonkeyPatch):
    from airflow.serialization.serialized_objects import DagSerialization

    stored = [json.dumps(DagSerialization.to_dict(load(made)), sort_keys=True, default=str) for _ in range(2)]
    assert stored[0] == stored[1]


def test_parsing_a_dag_file_imports_nothing_heavy(made: Made):
    code = f"""
import sys, airflow.sdk
exec(compile(open({str(made.dag_file)!r}).read(), {str(made.dag_file)!r}, "exec"))
heavy = "pyspark", "delta", "deltalake", "great_expectations", "obstore", "pyarrow", "pandas", "grpc"
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("[]"), done.stdout[-500:] + done.stderr[-2000:]


def test_a_mistake_in_the_pipeline_is_told_where_the_dag_is_parsed():
    with pytest.raises(Invalid, match="has no sink"):
        build_dag(Pipeline("nothing"))


def test_tasks_can_be_copied_with_their_pipeline(made: Made):
    dag = load(made)
    part = dag.partial_subset("job_main", include_downstream=True)
    job = part.task_dict["job_main"]
    assert isinstance(job, JobOperator)
    assert job.pipeline.name == "waits"
    assert not isinstance(job, TriggerOperator)


def test_the_example_is_built_from_its_dag_file():
    dag = by_hand.load(str(Path(__file__).resolve().parents[2] / "dags" / "orders.py"))
    assert dag.dag_id == "orders"
    assert dag.timetable.summary == "every 1 min"
    assert "payments" in dag.doc_md
    assert [a.uri for a in dag.task_dict["complete"].outlets] == [
        "tidegate://orders/revenue",
        "tidegate://orders/totals",
        f"file://{Path(dag.fileloc).parents[1]}/data/tables/revenue",
        f"file://{Path(dag.fileloc).parents[1]}/data/tables/totals",
    ]


# -- gates ---------------------------------------------------------------------------------------------


def test_what_a_person_is_asked_shows_what_was_found_and_only_shows_it():
    """Rules come from outside: Airflow renders them as Markdown. Values are for those who may read rows."""
    broken = [RecordedRule(rule="once|<b>", policy="hold", severity="critical", rows=3, why="3 of 9 rows break it")]
    verdict = Verdict(
        outcome="hold",
        rows=9,
        quarantined=1,
        hold=Hold(limit_s=60.0, default="approve"),
        broken=broken,
        policy={},
        results=Payload(data={}),
    )
    text = question("checked", 7, verdict, "orders", page="/dags/orders/runs/one/plugin/checkpoint", quarantine=True)
    assert "**9** rows judged, **1** to be quarantined" in text
    assert "| once\\|\\<b\\> | critical | 3 | 3 of 9 rows break it | hold |" in text
    assert "are on [the page of checkpoint 7](/dags/orders/runs/one/plugin/checkpoint)." in text
    assert "**Quarantine**: checkpoint 7 is aborted, and its input is read again at once." in text
    assert "**Quarantine**" not in question("checked", 7, verdict, "orders", page="/", quarantine=False)
    assert "After 60 s without an answer: approve." in text


def test_a_jobs_task_has_its_own_pool_and_queue_in_airflow():
    pipeline = some_pipeline(jobs={"main": {"priority_weight": 5}})
    own = {"pool": "gpu", "pool_slots": 2, "queue": "large", "executor": "LocalExecutor"}
    every = pipeline.source("all", Files("all/*.json", schema="id long"))
    every.job("scoring", spark={"spark.sql.shuffle.partitions": 400}, **own).sink("every", DeltaAppend("every"))
    dag = build_dag(pipeline, default_args={"pool": "others", "queue": "others"})
    scoring, main = dag.get_task("job_scoring"), dag.get_task("job_main")
    assert {name: getattr(scoring, name) for name in own} == own
    assert (main.pool, main.queue, main.priority_weight) == ("others", "others", 5)
    assert (dag.get_task("complete").pool, dag.get_task("complete").priority_weight) == ("others", 1)
    assert "- Has its own settings: `executor = LocalExecutor`, `pool = gpu`, " in scoring.doc_md
    assert "`spark.sql.shuffle.partitions = 400`" in scoring.doc_md
    assert "| `jobs.scoring.pool` | gpu | code |" in dag.doc_md


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"pool_slots": 0}, "jobs.main.pool_slots = 0 (code): expected"),
        ({"pool": ["gpu"]}, "pool is the name of an Airflow pool"),
        ({"spark.executor.memory": "8g"}, "spark.mode = 'connect' (default) runs all jobs in one Spark"),
    ],
)
def test_what_a_job_cannot_have_is_refused_when_the_dag_is_built(own: dict[str, object], told: str):
    with pytest.raises(Invalid) as refused:
        build_dag(some_pipeline(jobs={"main": own}))
    assert told in str(refused.value)


def test_a_gate_is_a_task_between_its_job_and_the_end():
    pipeline = Pipeline("gated", root="/nowhere", data="/nowhere")
    rows = pipeline.source("rows", Files("in/*.json", schema="id long"))
    rows.gate(Volume(), name="enough").sink("out", DeltaAppend("out"))
    dag = build_dag(pipeline)
    assert dag.get_task("gate_enough").upstream_task_ids == {"job_main"}
    assert dag.get_task("complete").upstream_task_ids == {"trigger", "job_main", "gate_enough"}
    assert "gate · volume" in dag.doc_md
