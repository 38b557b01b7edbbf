"""Runs that are cleared while they are at work, or after others have overtaken them; told without a scheduler."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tests.dags import by_hand
from tests.dags.by_hand import context
from tests.dags.project import Made, Project
from tidegate.coordinator import Coordinator
from tidegate.dag.tasks.task import Task
from tidegate.errors import Corrupt
from tidegate.ledger.ledger import Ledger, open_ledger, stamp
from tidegate.records.records import Ack, JobStats

HOURLY = '''
"""Made by a test."""
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

pipeline = Pipeline("hourly", interval="1 h")
rows = pipeline.source("rows", Files("hourly/in/{start:%Y-%m-%dT%H}.json", schema="id long"))
rows.sink("every", DeltaAppend("hourly/every"))
dag = build_dag(pipeline)
'''
DAY = datetime(2026, 1, 1, tzinfo=UTC)


def hour(number: int) -> dict[str, Any]:
    start = DAY + timedelta(hours=number)
    return {"data_interval_start": start, "data_interval_end": start + timedelta(hours=1), "run_type": "scheduled"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.fixture
def made(project: Project) -> Made:
    return project.pipeline("overtaken").feed()


@pytest.fixture
def hourly(project: Project) -> Any:
    (project.folder / "hourly" / "in").mkdir(parents=True)
    (project.dags / "dag_hourly.py").write_text(HOURLY)
    return by_hand.load(str(project.dags / "dag_hourly.py"))


def ledger_of(project: Project, name: str = "hourly") -> Ledger:
    return open_ledger(str(project.folder / "ledger"), name)


def coordinator_of(dag: Any, at: dict[str, Any]) -> Coordinator:
    trigger = dag.task_dict["trigger"]
    return Task.open(trigger.pipeline, trigger.project, at).coordinator


def completed(dag: Any, at: dict[str, Any]) -> int:
    """A checkpoint of nothing, by a run."""
    id = int(dag.task_dict["trigger"].execute(at)["checkpoint"])
    coordinator = coordinator_of(dag, at)
    stats = JobStats(seconds={}, rows={}, bytes={}, files={})
    coordinator.ledger.create_ack(Ack(**stamp(f"by-hand-{id}"), id=id, job="main", prev=None, sinks={}, stats=stats))
    assert coordinator.complete(id).state == "completed"
    return id


def ended(dag: Any, at: dict[str, Any], **states: str) -> None:
    at["ti"].states = states
    dag.task_dict["complete"].execute(at)


# -- interval pipelines --------------------------------------------------------------------------------


def test_a_run_that_is_cleared_while_it_is_at_work_continues_with_its_checkpoint(project: Project, hourly: Any):
    """Under its new name it would wait for its own checkpoint, which nobody ends while the run continues."""
    trigger = hourly.task_dict["trigger"]
    first = trigger.execute(context(hourly, **hour(1)))
    again = trigger.execute(context(hourly, clear_number=1, **hour(1)))
    assert again == first
    assert ledger_of(project).ids() == [1]


def test_a_run_that_is_cleared_when_its_checkpoint_is_decided_makes_its_interval_again(project: Project, hourly: Any):
    trigger = hourly.task_dict["trigger"]
    id = trigger.execute(context(hourly, **hour(1)))["checkpoint"]
    coordinator_of(hourly, context(hourly)).abort(id, "CANCELLED")
    assert trigger.execute(context(hourly, clear_number=1, **hour(1)))["checkpoint"] == id + 1
    assert ledger_of(project).entry(id + 1).plan.run == "airflow:hourly:r (cleared 1)"


@pytest.mark.parametrize(("trigger", "raised"), [("failed", AirflowFailException), ("skipped", AirflowSkipException)])
def test_an_interval_that_could_not_be_planned_again_is_not_green(hourly: Any, trigger: str, raised: type[Exception]):
    """What the run had made before it was cleared is not what was asked for."""
    completed(hourly, context(hourly, **hour(1)))
    with pytest.raises(raised, match=f"made no checkpoint, because task trigger is {trigger}"):
        ended(hourly, context(hourly, clear_number=1, **hour(1)), trigger=trigger, job_main="upstream_failed")


# -- continuous pipelines ------------------------------------------------------------------------------


def test_a_failed_run_whose_input_is_in_a_later_checkpoint_is_not_red_when_cleared(made: Made):
    dag = by_hand.load(str(made.dag_file))
    failed = dag.task_dict["trigger"].execute(context(dag, "first", **hour(2)))["checkpoint"]
    coordinator_of(dag, context(dag)).abort(failed, "JOB_FAILED", "the disk is full", counts=True)
    later = completed(dag, context(dag, "second", **{**hour(2), "data_interval_end": DAY + timedelta(hours=4)}))
    cleared = context(dag, "first", **hour(2))
    with pytest.raises(AirflowSkipException, match=f"checkpoint {later} passed it"):
        dag.task_dict["trigger"].execute(cleared)
    assert f"checkpoint {later} passed it" in cleared["ti"].left["failure"], "word for `complete`"
    with pytest.raises(AirflowSkipException, match="because task trigger is skipped"):
        ended(dag, cleared, trigger="skipped", job_main="skipped")
    with pytest.raises(AirflowFailException, match="the disk is full"):
        ended(dag, context(dag, "first", **hour(2)), trigger="success", job_main="failed")


def test_a_scheduled_run_that_a_later_one_overtook_is_not_red(made: Made):
    """Unpausing a DAG starts two runs at once. A backfill by dates is told the command that does it."""
    dag = by_hand.load(str(made.dag_file))
    completed(dag, context(dag, "later", **hour(3)))
    with pytest.raises(AirflowSkipException, match="a later run planned"):
        dag.task_dict["trigger"].execute(context(dag, "earlier", **hour(2)))
    with pytest.raises(AirflowFailException, match="tidegate backfill MODULE:PIPELINE --from"):
        dag.task_dict["trigger"].execute(context(dag, "backfill", **hour(2) | {"run_type": "backfill"}))


def test_a_run_that_comes_back_too_late_gets_another_checkpoint_and_no_failure_is_counted(made: Made):
    """The machine was off, or the run was cleared the next day: its jobs would have no time left."""
    dag = by_hand.load(str(made.dag_file))
    late = dag.task_dict["trigger"].execute(context(dag))["checkpoint"]
    plan = made.project.folder / "ledger" / "overtaken" / "checkpoints" / f"{late:08d}" / "plan.json"
    os.utime(plan, (time.time() - 86400,) * 2)
    assert dag.task_dict["trigger"].execute(context(dag)) == {"checkpoint": late + 1, "done": False}
    decision = made.entries[0].decision
    assert decision is not None
    assert (decision.reason, decision.counts) == ("RUN_GONE", False)


# -- suspended by failures -----------------------------------------------------------------------------


def test_the_red_run_that_suspends_says_so_and_how_to_continue(project: Project):
    made = project.pipeline("strict", tolerable_failed_checkpoints=0).feed()
    made.dag_file.write_text(made.dag_file.read_text() + "told = []\npipeline.on_suspended(told.append)\n")
    dag = by_hand.load(str(made.dag_file))
    id = dag.task_dict["trigger"].execute(context(dag))["checkpoint"]
    with pytest.raises(AirflowFailException, match=r"SUSPENDED: checkpoint 1 failed .*tidegate resume strict"):
        ended(dag, context(dag), trigger="success", job_main="failed")
    (hook,) = dag.task_dict["complete"].pipeline.graph().on_suspended
    (told,) = hook.__self__
    assert (told.pipeline, told.failed) == ("strict", (id,))
    with pytest.raises(AirflowSkipException, match="tidegate resume strict"):
        dag.task_dict["trigger"].execute(context(dag, "next"))


def test_damage_tells_the_hooks_too(made: Made):
    made.dag_file.write_text(made.dag_file.read_text() + "told = []\npipeline.on_suspended(told.append)\n")
    dag = by_hand.load(str(made.dag_file))
    dag.task_dict["trigger"].execute(context(dag))
    told = dag.task_dict["trigger"].pipeline.graph().on_suspended[0].__self__
    task = Task.open(dag.task_dict["trigger"].pipeline, str(made.project.folder), context(dag))
    with (
        pytest.raises(AirflowFailException, match="a file is gone"),
        dag.task_dict["trigger"].opened_task(context(dag)),
    ):
        raise Corrupt("a file is gone")
    assert [(each.pipeline, each.by, each.failed) for each in told] == [("overtaken", task.run, ())]


def test_a_run_that_could_not_plan_tells_the_hooks_and_suspends_nothing(project: Project):
    made = project.pipeline("unfed", tolerable_failed_checkpoints=0)
    code = "told = []\npipeline.on_suspended(told.append)\npipeline.hook('broken', on_trigger=lambda it: [])\n"
    made.dag_file.write_text(made.dag_file.read_text() + code)
    dag = by_hand.load(str(made.dag_file))
    told = dag.task_dict["complete"].pipeline.graph().on_suspended[0].__self__
    for _ in range(2):  # the task is tried again
        with pytest.raises(AirflowException, match="HOOK_STATE"):
            dag.task_dict["trigger"].execute(context(dag))
        assert told == [], "it may be tried again"
    with pytest.raises(AirflowFailException, match="made no checkpoint, because task trigger is failed"):
        ended(dag, context(dag), trigger="failed", job_main="upstream_failed")
    (said,) = told
    assert (said.pipeline, said.failed, said.suspended) == ("unfed", (), False)
    assert said.why.startswith("a run could not plan a checkpoint: HOOK_STATE: ")
    assert coordinator_of(dag, context(dag)).suspended() is None
