"""Runs of Airflow's own backfill of a continuous pipeline. They compute nothing: all runs of one backfill follow a
single run of the DAG for backfills, which replays from the backfill's first date on.

Each run is deferred until the replay has read everything that the pipeline had completed by the end of the run's data
interval. So Airflow's grid shows the progress, in any order of the runs and with any number of them active. A person
swaps the result in, because the right to start a backfill is not the right to change the tables.

A run knows neither its backfill nor the other runs. The scheduler knows both, and writes the first date into the run's
conf (`dag/listeners.py`). Without it the run is refused, with advice on what to do instead.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from tidegate.dag.names import CONF_BACKFILL, TRIGGER
from tidegate.errors import Rejected
from tidegate.records.names import backfill_dag
from tidegate.versions.airflow import AirflowException, AirflowFailException, AirflowSkipException
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    from tidegate.dag.tasks.task import Task
    from tidegate.history.backfill import BackfillStatus

__all__ = ["follow", "followed", "start_run"]

log = logging.getLogger(__name__)

POLL_S = 10.0


class Follower(Protocol):
    """The task that waits: `dag/tasks/operators.py`."""

    @property
    def dag_id(self) -> Any: ...
    def wait_for_replay(self, task: Task, why: str, look_again: float) -> NoReturn: ...


def follow(step: Follower, task: Task) -> NoReturn:
    """Make sure that the replay runs, wait until it has reached this run's date, then skip the task."""
    from tidegate.backfill.by_airflow import begin_after, refuse_impossible_start
    from tidegate.history.backfill import backfill_status

    conf = task.context["dag_run"].conf or {}
    backfill_conf = conf.get(CONF_BACKFILL)
    if not isinstance(backfill_conf, dict) or set(backfill_conf) != {"id", "from"}:
        raise _refused(task)
    ledger, backfill_id = task.coordinator.ledger, backfill_conf["id"]
    name, run_id = f"airflow-{backfill_id}", f"backfill__{backfill_id}"
    discarded = ledger.line_discarded(name)
    if discarded is not None:
        raise task.skip(f"backfill {name} is over: it was swapped in, or discarded, by {discarded.by}")
    dag_id = backfill_dag(step.dag_id)
    if not _exists(dag_id, run_id):
        since = begin_after(conf, backfill_conf["from"])
        # Airflow's processes have checked this before they created the run, if they could read the ledger.
        refuse_impossible_start(ledger, since, dag_id, name)
        start_run(dag_id, run_id, {"name": name, "from": since, "note": "Airflow's backfill"})
    record = ledger.line(name)
    status = None
    if record is not None:
        status = backfill_status(ledger, record, task.coordinator.place.options)
    target = _last_completed_in_interval(task)
    if status is not None and (status.swap is not None or _has_caught_up(status, target)):
        raise task.skip(
            f"backfill {name} has read all that the pipeline had completed by the end of this run's interval. It "
            "continues up to now, even past the backfill's last date. To look at it, and to swap it in: the page "
            f"Checkpoints of DAG {step.dag_id}, or `tidegate backfill MODULE:PIPELINE --name {name} --swap`"
        )
    if not _exists(dag_id, run_id, ["queued", "running"]):
        raise Rejected(
            f"backfill {name} has not reached this run's date: run {run_id} of DAG {dag_id} has stopped",
            expected="that run to continue",
            help=f"its log says why it stopped. Clear it once the cause is fixed, then this run; or discard {name} on "
            f"the page Checkpoints of DAG {step.dag_id}. The pipeline itself is not affected",
            reason="LINE_STOPPED",
        )
    progress = "has not begun yet"
    if status is not None:
        progress = f"has read up to checkpoint {status.caught_up_to} of {target}"
    step.wait_for_replay(task, f"backfill {name} {progress}: run {run_id} of DAG {dag_id}", POLL_S)


def followed(task: Task) -> AirflowException:
    """Return the exception that ends the run's last task: skipped or failed, like its first one."""
    state = task.states().get(TRIGGER, "gone")
    if state == "skipped":
        return AirflowSkipException("this run followed a backfill, and made no checkpoint itself")
    why = task.pulled(TRIGGER, "failure")
    return AirflowFailException(f"task {TRIGGER} is {state}: {why}" if why else f"task {TRIGGER} is {state}")


def _has_caught_up(status: BackfillStatus, target: int) -> bool:
    return status.head is not None and status.head > status.record.origin and status.caught_up_to >= target


def _last_completed_in_interval(task: Task) -> int:
    """Return the last checkpoint that the pipeline had completed by the end of the run's data interval, or 0."""
    end = task.context["dag_run"].data_interval_end
    ledger = task.coordinator.ledger
    for id in reversed(ledger.ids()):
        decision = ledger.decision(id)
        if decision is None or decision.manifest is None:
            continue
        if end is None or parse_time(decision.created) <= end:
            return id
    return 0


def _exists(dag_id: str, run_id: str, states: list[str] | None = None) -> bool:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=states) > 0


def start_run(dag_id: str, run_id: str, conf: dict[str, Any]) -> None:
    """Have Airflow create a run, unless that exists already, for example because another task has created it first."""
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    log.info("Triggering run %s of DAG %s", run_id, dag_id)
    try:
        answer = SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=conf))
    except Exception as error:
        log.warning("Airflow did not create the run: %r", error)
        return
    if isinstance(answer, ErrorResponse):
        log.info("Airflow answered: %s", answer.error)


def _refused(task: Task) -> Rejected:
    dag_run = task.context["dag_run"]
    if dag_run.data_interval_start is not None:
        since = f"{dag_run.data_interval_start:%Y-%m-%d}"
    else:
        since = "WHEN"
    return Rejected(
        f"pipeline {task.pipeline.name!r} is continuous: its checkpoints are not tied to Airflow's data intervals, and "
        "each depends on the previous one",
        expected="a backfill that computes everything since then again, and is swapped in as a whole",
        help=f"trigger DAG {backfill_dag(dag_run.dag_id)} with Begin after {since} (button Backfill on the page "
        f"Checkpoints), or run `tidegate backfill MODULE:PIPELINE --from {since}`: both compute it while the pipeline "
        "runs, and show what would change. Nothing has been planned",
        reason="BY_COMMAND",
    )
