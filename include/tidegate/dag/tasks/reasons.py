"""Messages for a run's log that say why it failed, or why it has nothing to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidegate.dag.names import job_task
from tidegate.dag.tasks.task import Task
from tidegate.protocol.rules import BAD_DECLARATION, ENVIRONMENT_FAILED
from tidegate.versions.airflow import AirflowFailException

if TYPE_CHECKING:
    from tidegate.execution.finish import Finished

__all__ = ["aborted", "failure", "overtaken", "refuse_failed_overtaken_job"]


def aborted(finished: Finished) -> str:
    """Say why the run failed, and whether later runs continue."""
    outcome, suspension = finished.outcome, finished.suspension
    why = ": ".join(filter(None, (outcome.reason, outcome.detail)))
    text = (
        f"checkpoint {outcome.id} was aborted: {why}\n  Nothing of it was published, and its input is in the next "
        "checkpoint.\n  Help: correct what failed; the next run, or clearing this one, reads the input again"
    )
    if outcome.reason == "GATE_REJECTED":
        return f"{text}, once you run `tidegate resume`: until then the pipeline is SUSPENDED"
    if outcome.reason == BAD_DECLARATION:
        return f"{text}. With the same code, settings and suites, no run makes a checkpoint"
    if suspension is None:
        return text
    name, failed = suspension.pipeline, ", ".join(map(str, suspension.failed))
    return (
        f"{text}, once the pipeline is resumed\n  The pipeline is SUSPENDED: checkpoint {failed} failed in a row, more "
        f"than tolerable_failed_checkpoints allows. Its runs are skipped until you run: tidegate resume {name}"
    )


_MARKED = "marking a task does no work: clear the task to run it, or let the next run read the input"


def failure(task: Task, id: int) -> tuple[str, str]:
    """Return the reason code and the text of why the checkpoint cannot complete.

    Called when no task that could still ack is left.
    """
    entry = task.coordinator.ledger.entry(id)
    if entry:
        missing = [job for job in entry.plan.acks if job not in entry.acks]
    else:
        missing = []
    all_states = task.states()
    states = {job: all_states.get(job_task(job), "gone") for job in missing}
    text = "; ".join(_job_failure(task, job, state) for job, state in states.items())
    if {"success", "skipped"} & set(states.values()):
        text += f"\n  Help: {_MARKED}"
    return ENVIRONMENT_FAILED if _is_environments_fault(task, states) else "JOB_FAILED", text


def _job_failure(task: Task, job: str, state: str) -> str:
    text = f"task {job_task(job)} is {state}"
    if state == "success":
        text += " (by hand?), but has not acked"
    why = task.pulled(job_task(job), "failure")
    if why:
        return f"{text}: {why}"
    if state == "failed":
        return f"{text}, without a message: its process was killed, or never started. Its log says more"
    return text


def _is_environments_fault(task: Task, states: Mapping[str, str]) -> bool:
    """Return whether the jobs failed only for lack of Spark, apart from those that never ran because of that."""
    lacked_spark = False
    for job, state in states.items():
        if state not in ("failed", "upstream_failed"):
            return False
        if task.pulled(job_task(job), "of_environment") is True:
            lacked_spark = True
        elif state != "upstream_failed":
            return False
    return lacked_spark


def refuse_failed_overtaken_job(task: Task, id: int) -> None:
    """Raise if a job that the checkpoint overtook has failed since, so that the run shows it."""
    entry, states = task.coordinator.ledger.entry(id), task.states()
    if entry is None:
        return
    for job in entry.overtakable:
        if job not in entry.acks and states.get(job_task(job)) == "failed":
            raise AirflowFailException(
                f"checkpoint {id} is completed and published without job {job!r}, which was busy, and has failed since"
                f": {task.pulled(job_task(job), 'failure')}\n  Nothing is lost: its rows are in flight, and the next "
                "checkpoint begins with them.\n  Help: correct what failed"
            )


def overtaken() -> str:
    """Say why a scheduled run from before the first checkpoint has nothing to do."""
    return (
        "a later run planned the pipeline's first checkpoint after this run's interval had ended, so that checkpoint "
        "has read this run's input. Nothing to do"
    )
