"""Runs of Airflow's own backfill of a pipeline that reads whatever is new. They compute nothing: all of one backfill
follow one run of the DAG for backfills, which replays from the backfill's first date on.

Each run waits, without a worker, until the replay has read all that the pipeline had completed by the end of the run's
data interval. So Airflow's grid shows how far it has come, whatever the order of the runs, and however many are active.
What is computed is swapped in by a person, since the right to ask for a backfill is not the right to do that.

A run knows neither its backfill nor the other runs. The scheduler, which does, writes the first date into the run's
conf (`dag/listeners.py`); without it the run is refused, with what would do it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from tidegate.dag.names import CONF_BACKFILL, CONF_FROM, TRIGGER
from tidegate.errors import Invalid, Rejected
from tidegate.ledger.refusals import NO_SUCH_CHECKPOINT
from tidegate.records.names import backfill_dag
from tidegate.versions.airflow import AirflowException, AirflowFailException, AirflowSkipException
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    from tidegate.dag.tasks.task import Task
    from tidegate.history.backfill import BackfillStatus
    from tidegate.ledger.ledger import Ledger

__all__ = ["follow", "followed"]

log = logging.getLogger(__name__)

LOOK_S = 10.0


class Follower(Protocol):
    """The task that waits: `dag/tasks/operators.py`."""

    @property
    def dag_id(self) -> Any: ...
    def wait_for_replay(self, task: Task, why: str, look_again: float) -> NoReturn: ...


def follow(step: Follower, task: Task) -> NoReturn:
    """See to it that the replay runs, and wait until it has come as far as this run's date. Then skip the task."""
    from tidegate.history.backfill import backfill_status

    conf = task.context["dag_run"].conf or {}
    told = conf.get(CONF_BACKFILL)
    if not isinstance(told, dict) or set(told) != {"id", "from"}:
        raise _refused(task)
    ledger, name, run_id = task.coordinator.ledger, f"airflow-{told['id']}", f"backfill__{told['id']}"
    if (discarded := ledger.line_discarded(name)) is not None:
        raise task.skip(f"backfill {name} is over: it was swapped in, or discarded, by {discarded.by}")
    dag_id = backfill_dag(step.dag_id)
    if not _exists(dag_id, run_id):
        begin_after = str(conf.get(CONF_FROM) or told["from"])
        refuse_too_early(ledger, begin_after, dag_id)
        _start(dag_id, run_id, {"name": name, "from": begin_after, "note": "Airflow's backfill"})
    record = ledger.line(name)
    status = backfill_status(ledger, record, task.coordinator.place.options) if record is not None else None
    wanted = _completed_by(task)
    if status is not None and (status.swap is not None or _has_caught_up(status, wanted)):
        raise task.skip(
            f"backfill {name} has read all that the pipeline had completed by then. It continues up to now, whatever "
            f"the last date was. To look at it, and to swap it in: the page Checkpoints of DAG {step.dag_id}, or "
            f"`tidegate backfill MODULE:PIPELINE --name {name} --swap`"
        )
    if not _exists(dag_id, run_id, ["queued", "running"]):
        raise Rejected(
            f"backfill {name} has not come so far: run {run_id} of DAG {dag_id} is not at work",
            expected="that run to read on",
            help=f"its log says why. Clear it once that is mended, then this run; or discard {name} on the page "
            f"Checkpoints of DAG {step.dag_id}. The pipeline itself is not affected",
            reason="LINE_STOPPED",
        )
    far = f"has read up to checkpoint {status.caught_up_to}, of {wanted}" if status is not None else "has not begun yet"
    step.wait_for_replay(task, f"backfill {name} {far}: run {run_id} of DAG {dag_id}", LOOK_S)


def refuse_too_early(ledger: Ledger, since: str, dag_id: str) -> None:
    """Refuse a first date before which no checkpoint is retained, before there is a run that could not begin either.

    dag_id: the DAG for backfills.
    """
    from tidegate.backfill.choosing import BEGINNING, nearest_start, origin_of

    try:
        origin_of(ledger, since)
    except Invalid as error:
        if error.reason != NO_SUCH_CHECKPOINT:
            raise
        nearest = nearest_start(ledger)
        again = f"begin Airflow's backfill at {nearest:%Y-%m-%d %H:%M:%S} UTC or later" if nearest is not None else ""
        whole = (
            f'to compute everything again, create it with the configuration {{"{CONF_FROM}": "{BEGINNING}"}}, '
            f"or trigger DAG {dag_id} with Begin after `{BEGINNING}`"
        )
        raise Rejected(
            f"{error.what}: a backfill from that date on has nothing to begin after",
            expected=error.expected,
            help=f"{'; '.join(filter(None, (again, whole)))}. Nothing has been planned, and the pipeline itself is not "
            "affected",
            reason=error.reason,
        ) from None


def followed(task: Task) -> AirflowException:
    """Return the exception with which the run's last task ends: skipped, or failed as its first one."""
    state = task.states().get(TRIGGER, "gone")
    if state == "skipped":
        return AirflowSkipException("this run has followed a backfill, and has made no checkpoint itself")
    why = task.pulled(TRIGGER, "failure")
    return AirflowFailException(f"task {TRIGGER} is {state}" + (f": {why}" if why else ""))


def _has_caught_up(status: BackfillStatus, wanted: int) -> bool:
    return status.head is not None and status.head > status.record.origin and status.caught_up_to >= wanted


def _completed_by(task: Task) -> int:
    """Return the last checkpoint that the pipeline had completed by the end of the run's data interval; 0: none."""
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


def _start(dag_id: str, run_id: str, conf: dict[str, Any]) -> None:
    """Let Airflow make the run that replays. If another run of the same backfill was faster, that one counts."""
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    log.info("Triggering run %s of DAG %s", run_id, dag_id)
    try:
        answer = SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=conf))
    except Exception as error:
        log.warning("Airflow has not made the run: %r", error)
        return
    if isinstance(answer, ErrorResponse):
        log.info("Airflow answers: %s", answer.error)


def _refused(task: Task) -> Rejected:
    dag_run = task.context["dag_run"]
    since = f"{dag_run.data_interval_start:%Y-%m-%d}" if dag_run.data_interval_start is not None else "WHEN"
    return Rejected(
        f"pipeline {task.pipeline.name!r} reads whatever is new: its checkpoints do not go by Airflow's dates, and each"
        " rests on those before it",
        expected="a backfill that computes everything since then again, and is swapped in at once",
        help=f"trigger DAG {backfill_dag(dag_run.dag_id)} with Begin after {since} (button Backfill on the page "
        f"Checkpoints), or say `tidegate backfill MODULE:PIPELINE --from {since}`: both do that beside the running "
        "pipeline, and show what it would change. Nothing has been planned",
        reason="BY_COMMAND",
    )
