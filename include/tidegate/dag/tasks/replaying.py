"""Replay a backfill inside a task, and log its progress. Imported only when a task runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.backfill import replay
from tidegate.checkpoint.approvals import awaits_person
from tidegate.execution.loop import Observer, Schedule
from tidegate.records.names import part_of_run
from tidegate.spark.session import reused_session

if TYPE_CHECKING:
    from tidegate.backfill import OpenBackfill
    from tidegate.coordinator import Outcome
    from tidegate.dag.tasks.operators import PipelineTask
    from tidegate.dag.tasks.task import Task
    from tidegate.errors import TidegateError
    from tidegate.records.records import Ack, Plan

__all__ = ["LogObserver", "catch_up"]

log = logging.getLogger(__name__)


def catch_up(step: PipelineTask, task: Task, line: OpenBackfill, pause_s: float) -> int:
    """Replay until the backfill has caught up. Return the number of completed checkpoints."""
    _end_abandoned(task, line)
    schedule = Schedule(
        tolerable_failures=0,  # the task fails, and Airflow retries it
        min_pause_s=pause_s,
        new_run=lambda: part_of_run(task.run, seams.new_id()),
    )
    with reused_session(task.settings) as sessions:
        step.set_cancel(sessions.cancel)
        try:
            outcomes = replay(line, sessions, schedule, LogObserver(task))
        finally:
            step.set_cancel(None)
    return sum(outcome.state == "completed" for outcome in outcomes)


def _end_abandoned(task: Task, line: OpenBackfill) -> None:
    """Abort the backfill's open checkpoints whose run is over, and those that an earlier try of this task began."""
    own_prefix = part_of_run(task.run, "")[:-1]
    for entry in line.backfill.ledger.view().still_open():
        if awaits_person(entry):
            continue
        if entry.plan.run.startswith(own_prefix):
            line.backfill.abort(entry.id, "RUN_GONE", "the task that began it was ended, and is tried again")
            continue
        reason = task.abandon_reason(entry.plan)
        if reason is not None:
            line.backfill.abort(entry.id, reason, "")


class LogObserver(Observer):
    """Logs the backfill's progress, and sends metrics."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._waiting = ""

    def waiting(self, why: str) -> None:
        if why.startswith("next checkpoint in") or why == self._waiting:
            return  # log each reason once
        self._waiting = why
        log.info("Waiting: %s", why)

    def planned(self, plan: Plan) -> None:
        self._waiting = ""
        summaries = "; ".join(f"{name}: {part.summary or 'a range'}" for name, part in plan.sources.items())
        log.info("Checkpoint %s of the backfill: %s", plan.id, summaries)

    def retrying(self, plan: Plan, error: TidegateError, tries_left: int) -> None:
        log.warning("Checkpoint %s of the backfill: %s; trying again, at most %s times", plan.id, error, tries_left)

    def decided(self, plan: Plan, outcome: Outcome, acks: list[Ack], seconds: float) -> None:
        why = ": ".join(filter(None, (outcome.reason, outcome.detail)))
        log.info("Checkpoint %s of the backfill is %s in %.1f s%s", plan.id, outcome.state, seconds, why and f": {why}")
        self._task.measure()

    def stuck(self, table: str, error: TidegateError) -> None:
        log.warning("The shadow of %s is not published yet: %s", table, error)
