"""Why a run is red, or has nothing to do, in words for its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.dag.names import job_task
from tidegate.dag.tasks.task import Task
from tidegate.protocol.rules import BAD_DECLARATION, ENVIRONMENT_FAILED
from tidegate.versions.airflow import AirflowFailException

if TYPE_CHECKING:
    from tidegate.execution.finish import Finished

__all__ = ["aborted", "failure", "overtaken", "refuse_failed_beside"]


def aborted(finished: Finished) -> str:
    """Why the run is red, and whether others continue."""
    outcome, suspension = finished.outcome, finished.suspension
    why = ": ".join(filter(None, (outcome.reason, outcome.detail)))
    told = (
        f"checkpoint {outcome.id} was aborted: {why}\n  Nothing of it was published, and its input is in the next "
        "checkpoint.\n  Help: correct what failed; the next run, or clearing this one, takes it up again"
    )
    if outcome.reason == "GATE_REJECTED":
        return f"{told}, once somebody says `tidegate resume`: until then the pipeline is SUSPENDED"
    if outcome.reason == BAD_DECLARATION:
        return f"{told}. With the same code, settings and suites, no run makes a checkpoint"
    if suspension is None:
        return told
    name, failed = suspension.pipeline, ", ".join(map(str, suspension.failed))
    return (
        f"{told}, once the pipeline is resumed\n  The pipeline is SUSPENDED: checkpoint {failed} failed in a row, more "
        f"than tolerable_failed_checkpoints allows. Its runs are skipped until somebody says: tidegate resume {name}"
    )


_MARKED = "a mark does no work: clear the task to have it done, or let the next run take the input"


def failure(task: Task, id: int) -> tuple[str, str]:
    """Why the checkpoint cannot complete: no task that could still ack is left when this one runs."""
    states = task.states()
    entry = task.coordinator.ledger.entry(id)
    missing = [job for job in entry.plan.acks if job not in entry.acks] if entry else []
    told = []
    for job in missing:
        state = states.get(job_task(job), "gone")
        why = task.pulled(job_task(job), "failure")
        marked = " (by hand?), but has not acked" if state == "success" else ""
        silent = (
            ", and left no word: its process was killed, or never started. Its log says more"
            if state == "failed"
            else ""
        )
        told.append(f"task {job_task(job)} is {state}{marked}" + (f": {why}" if why else silent))
    without_spark = [task.pulled(job_task(job), "of_environment") is True for job in missing]
    others = {states.get(job_task(job), "gone") for job in missing} - {"failed", "upstream_failed"}
    blameless = (
        any(without_spark)
        and not others
        and all(
            found or states.get(job_task(job)) == "upstream_failed"
            for found, job in zip(without_spark, missing, strict=True)
        )
    )
    marked_by_hand = {states.get(job_task(job), "gone") for job in missing} & {"success", "skipped"}
    help = f"\n  Help: {_MARKED}" if marked_by_hand else ""
    return ENVIRONMENT_FAILED if blameless else "JOB_FAILED", "; ".join(told) + help


def refuse_failed_beside(task: Task, id: int) -> None:
    """A job that the checkpoint went past, and that has failed since: the run shows it."""
    entry, states = task.coordinator.ledger.entry(id), task.states()
    for job in entry.overtakable if entry is not None else ():
        if entry is not None and job not in entry.acks and states.get(job_task(job)) == "failed":
            raise AirflowFailException(
                f"checkpoint {id} is completed and published without job {job!r}, which was busy, and has failed since"
                f": {task.pulled(job_task(job), 'failure')}\n  Nothing is lost: what it was to take is in flight, and "
                "the next checkpoint begins with it.\n  Help: correct what failed"
            )


def overtaken() -> str:
    """Why a scheduled run from before the first checkpoint has nothing to do."""
    return (
        "the pipeline's first checkpoint was planned by a later run, after this run's interval had ended: what was "
        "there by then is in that checkpoint. Nothing to do"
    )
