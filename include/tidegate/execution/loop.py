"""Runs checkpoints one after the other in this process, for `tidegate run`, tests, and small deployments.

It uses the same coordinator and jobs as Airflow does. Only the schedule is a loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidegate import seams
from tidegate.checkpoint import troubles
from tidegate.checkpoint.compatibility import declined_error
from tidegate.checkpoint.context import PipelineContext
from tidegate.checkpoint.publishing.publish import Report
from tidegate.checkpoint.suspension import current_suspension
from tidegate.config.retries import Retries, retries_of_control, retries_of_jobs
from tidegate.coordinator import AlreadyCovered, Coordinator, Outcome, Triggered
from tidegate.errors import Corrupt, Rejected, TidegateError, Unavailable, name_of
from tidegate.execution.analysis import analyse, declaration_error
from tidegate.execution.deadline import DeadlinePassed, job_deadline, job_is_late, opened, remaining_seconds
from tidegate.execution.finish import (
    decide_earlier,
    finish,
    notify_if_suspended,
    notify_requested_suspension,
    record_failed_plan,
)
from tidegate.execution.input_watch import InputWatch, Pauses, is_due
from tidegate.execution.job.gates import warm_gates
from tidegate.execution.job.readiness import OVERTAKEN
from tidegate.execution.job.run_job import run_job
from tidegate.execution.notifications import notify_settled
from tidegate.execution.runs import abandoned_reason, new_run
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import control
from tidegate.protocol import rules
from tidegate.protocol.verdicts import QUARANTINED
from tidegate.records.records import Ack, Drain, Plan, Rank
from tidegate.stores import polling_pause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Observer", "Schedule", "run_checkpoints"]

POLL_S = 1.0

LOOK_S = 0.5
"""Shortest pause between checks for new input."""

MAX_PAUSE_S = 60.0
"""Longest pause after a failed checkpoint."""

INPUT_WAIT_S = 5.0
"""When draining, how long to wait for input that exists but may not be read yet (`min_age`)."""

T = TypeVar("T")


class Observer:
    """Notified of events as they happen. No method has to be overridden."""

    def waiting(self, why: str) -> None:
        """No checkpoint is planned right now, for this reason."""

    def resumed(self, failed: tuple[int, ...]) -> None:
        """The pipeline was suspended because these checkpoints failed, and continues now."""

    def planned(self, plan: Plan) -> None:
        """A checkpoint has been planned."""

    def covered(self, covered: AlreadyCovered) -> None:
        """The data interval is done already, so no checkpoint is needed."""

    def step(self, plan: Plan, what: str) -> None:
        """The checkpoint's job begins this step."""

    def retrying(self, plan: Plan, error: TidegateError, tries_left: int) -> None:
        """A job failed with a transient error, and is retried."""

    def decided(self, plan: Plan, outcome: Outcome, acks: list[Ack], seconds: float) -> None:
        """The checkpoint is completed and published, or aborted."""

    def stuck(self, table: str, error: TidegateError) -> None:
        """A table could not be published to; the next checkpoint tries again."""

    def published(self, stuck: Mapping[str, TidegateError]) -> None:
        """All tables were tried; these could not be published to."""


class SessionSource(Protocol):
    """Returns the Spark session for the jobs: `tidegate.spark.session.ReusedSession`."""

    def __call__(self, job: str | None = None) -> SparkSession: ...
    def drop(self) -> None: ...
    def cancel(self) -> None: ...


@dataclass
class Schedule:
    """The number of checkpoints to make, and their timing."""

    checkpoints: int | None = None
    until_idle: bool = False
    interval_s: float = 0.0
    """From the start of one checkpoint to the start of the next; 0: without a pause."""
    by_event: bool = False
    """Wait for new input before each checkpoint, for up to `max_pause_s`."""
    max_pause_s: float = 0.0
    initial_delay_s: float = 0.0
    """How long to wait before the first checkpoint. All later ones are delayed as well."""
    min_pause_s: float = 0.0
    tolerable_failures: int = 0
    interval: tuple[datetime, datetime] | None = None
    """The data interval to make, in at most one checkpoint."""
    reprocess: bool = False
    """Make the interval again even if it is done."""
    drain: Drain | None = None
    """End event time, after as many checkpoints as it takes to read all input."""
    savepoint: bool = False
    """The checkpoint becomes a savepoint, so it comes before other runs that wait."""
    aligned: bool = False
    """Wait for every job, whatever the settings say."""
    pause_after_failure_s: float = 0.0
    """Shortest pause after a failed checkpoint. It doubles with each further failure, up to MAX_PAUSE_S."""
    ends_at: frozenset[str] = frozenset()
    """Reasons of an abort after which the run ends, because the next checkpoint would fail in the same way."""
    stop: Callable[[], bool] = lambda: False
    """Called between checkpoints: returns whether to end the run. A checkpoint that has begun is always finished."""
    new_run: Callable[[], str] = new_run
    """Returns the run id of each checkpoint."""

    def has_next(self, plan: Plan, outcome: Outcome, made: int) -> bool:
        """Return whether another checkpoint follows."""
        if outcome.reason in self.ends_at:
            return False
        if outcome.reason == QUARANTINED:
            return True  # the next one finishes what this one has begun
        if plan.drain is not None and outcome.state == "completed":
            return False
        if self.drain is not None:
            return plan.draining is not None and outcome.state == "completed"
        return self.checkpoints is None or made < self.checkpoints

    def pause_after(self, failures: int) -> float:
        """Return how long to wait after this many failures in a row."""
        if not failures:
            return 0.0
        return min(self.pause_after_failure_s * 2.0 ** (failures - 1), MAX_PAUSE_S)

    @property
    def rank(self) -> Rank:
        """How urgent its checkpoints are. All but those of an endless run were requested by a user."""
        if self.savepoint:
            return "savepoint"
        is_endless = self.checkpoints is None and not self.until_idle and self.drain is None
        return "periodic" if is_endless else "manual"

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The reasons for which planning is refused that the run waits out.

        A table that cannot be published to ends a run of fixed length. An endless one waits until the table is repaired
        (P4).
        """
        if self.checkpoints is None and not self.until_idle:
            return ("CHECKPOINT_IN_PROGRESS", "TOO_MANY_UNPUBLISHED", "ROLLBACK_UNPUBLISHED")
        return ("CHECKPOINT_IN_PROGRESS",)


def run_checkpoints(
    coordinator: Coordinator, session: SessionSource, schedule: Schedule, observer: Observer
) -> list[Outcome]:
    """Make checkpoints until the schedule ends. Raise the last failure if too many checkpoints fail in a row."""
    coordinator.spark = session
    _resume_after_failures(coordinator, session, observer)
    outcomes: list[Outcome] = []
    failures = aborted = 0
    continues = True
    _pause(schedule.initial_delay_s, schedule, observer)
    watch = None
    if schedule.by_event:
        watch = InputWatch(coordinator, schedule.max_pause_s, abandoned_reason)
    while continues and not schedule.stop():
        if watch is not None:
            _wait_for_input(watch, schedule, observer)
        began = seams.monotonic()
        plan = _trigger(coordinator, schedule, observer)
        if plan is None and watch is not None:
            continue  # another run was faster
        if plan is None:
            break
        outcome, error = _finish_checkpoint(coordinator, plan, session, observer)
        outcomes.append(outcome)
        failures = failures + 1 if error is not None else 0
        if outcome.state == "aborted" and outcome.reason != QUARANTINED:
            aborted = aborted + 1
        else:
            aborted = 0
        if error is not None and failures > schedule.tolerable_failures:
            raise error
        continues = schedule.has_next(plan, outcome, len(outcomes))
        if continues and outcome.reason != QUARANTINED:
            pause = max(schedule.min_pause_s, schedule.pause_after(aborted))
            if plan.draining is not None and all(part.empty for part in plan.sources.values()):
                pause = max(pause, INPUT_WAIT_S)
            _pause(max(schedule.interval_s - (seams.monotonic() - began), pause), schedule, observer)
    return outcomes


def _wait_for_input(watch: InputWatch, schedule: Schedule, observer: Observer) -> None:
    """Wait until a checkpoint is due, or the pipeline is over. Planning reports that, and a source that does not
    answer."""
    began = seams.monotonic()
    pauses = Pauses(watch.pipeline, observer.waiting)
    while not schedule.stop():
        try:
            if watch.look() is not None or watch.is_over:
                return
        except Unavailable as error:
            observer.waiting(str(error))
            return
        observer.waiting("waiting for new input")
        pause_s = polling_pause(watch.pipeline.ledger.home, seams.monotonic() - began, LOOK_S)
        pauses.pause(watch, pause_s, schedule.stop)


def _resume_after_failures(coordinator: Coordinator, session: SessionSource, observer: Observer) -> None:
    """Resume a pipeline that failures have suspended. One that a user has suspended stays so.

    If the declaration was found to be wrong, analyse it again first.
    """
    if declined_error(coordinator) is not None:
        spark = session()
        if spark is not None:
            errors = analyse(coordinator, spark, coordinator.ledger.view().last_completed)
        else:
            errors = []
        if errors:
            raise declaration_error(errors)
        coordinator.ledger.forget_declined()

    def resume() -> None:
        suspension = coordinator.suspended()
        if suspension is not None and suspension.failed_checkpoints:
            coordinator.resume("tidegate run", "started again")
            observer.resumed(suspension.failed_checkpoints)

    retries = retries_of_control(coordinator.settings)
    _patiently(resume, retries, lambda error, tries_left: observer.waiting(str(error)))


def _trigger(coordinator: Coordinator, schedule: Schedule, observer: Observer) -> Plan | None:
    """Plan a checkpoint, as soon as other runs allow one. Return None if there is no work left."""
    run, began = schedule.new_run(), seams.monotonic()
    while not schedule.stop():
        try:
            with troubles.recording_errors(coordinator.ledger, run, "planning", sees_rows=False):
                triggered = _triggered(coordinator, run, schedule, observer)
        except Rejected as error:
            if error.reason == "SUSPENDED":
                notify_requested_suspension(coordinator)
            if error.reason not in schedule.waits_for and not _will_be_lifted(coordinator, error):
                raise
            observer.waiting(error.what)
            seams.sleep(polling_pause(coordinator.ledger.home, seams.monotonic() - began, POLL_S))
            continue
        except KeyboardInterrupt:
            _abort_interrupted_checkpoint(coordinator, run)
            raise
        except Exception:
            record_failed_plan(coordinator, run)
            raise
        if isinstance(triggered, AlreadyCovered):
            observer.covered(triggered)
            return None
        if triggered is None:
            _report_stuck(coordinator.ledger, run, coordinator.publish(), observer)
            notify_settled(coordinator)
            return None
        observer.planned(triggered.plan)
        return triggered.plan
    return None


def _will_be_lifted(pipeline: PipelineContext, error: Rejected) -> bool:
    """Return whether the pipeline is suspended by a process, such as a swap, and will be resumed by it.

    If that process is gone, resume the pipeline here.
    """
    ledger, tolerable = pipeline.ledger, pipeline.settings.tolerable_failed_checkpoints
    if error.reason != "SUSPENDED":
        return False
    return (
        control.lift_abandoned(ledger, tolerable, abandoned_reason)
        or control.waits_for_process(ledger, tolerable) is not None
        or current_suspension(pipeline) is None  # resumed in the meantime
    )


def _triggered(
    coordinator: Coordinator, run: str, schedule: Schedule, observer: Observer
) -> Triggered | AlreadyCovered | None:
    return _patiently(
        lambda: coordinator.trigger(
            run,
            give_up=abandoned_reason,
            only_if_new=schedule.until_idle or schedule.by_event,
            is_due=lambda view: schedule.by_event and is_due(coordinator.ledger, view, schedule.max_pause_s),
            interval=schedule.interval,
            reprocess=schedule.reprocess,
            drain=schedule.drain,
            aligned=schedule.aligned,
            rank=schedule.rank,
        ),
        retries_of_control(coordinator.settings),
        lambda error, tries_left: observer.waiting(str(error)),
    )


def _finish_checkpoint(
    coordinator: Coordinator, plan: Plan, session: SessionSource, observer: Observer
) -> tuple[Outcome, TidegateError | None]:
    """Run a planned checkpoint until it is completed and published, or aborted."""
    began = seams.monotonic()
    acks: list[Ack] = []
    error: TidegateError | None = None
    try:
        for job in plan.acks:
            acks += _job(coordinator, plan, job, session, observer)
    except KeyboardInterrupt:
        with contextlib.suppress(TidegateError):  # the next trigger aborts it
            coordinator.abort(plan.id, "CANCELLED", "stopped by hand")
        raise
    except TidegateError as failed:
        error = failed
    except Exception as unforeseen:  # a bug of ours: end the checkpoint all the same
        with contextlib.suppress(TidegateError):
            coordinator.abort(plan.id, "JOB_FAILED", name_of(unforeseen), counts=True)
            notify_if_suspended(coordinator, plan.id)
        raise
    with troubles.recording_errors(coordinator.ledger, plan.run, "deciding and publishing"):
        outcome = _patiently(
            lambda: _finish(coordinator, plan, error, observer),
            retries_of_control(coordinator.settings),
            lambda again, tries_left: observer.retrying(plan, again, tries_left),
        )
    observer.decided(plan, outcome, acks, seams.monotonic() - began)
    if error is not None and (isinstance(error, Corrupt) or outcome.reason == rules.BAD_DECLARATION):
        raise error
    return outcome, error if outcome.counts or outcome.reason == rules.ENVIRONMENT_FAILED else None


def _finish(coordinator: Coordinator, plan: Plan, error: TidegateError | None, observer: Observer) -> Outcome:
    failure = (_abort_reason(error), str(error)) if error is not None else None

    def wait(why: str) -> None:
        observer.waiting(why)
        seams.sleep(POLL_S)

    finished = finish(
        coordinator,
        plan.id,
        failure,
        give_up=abandoned_reason,
        wait=wait,
        step=lambda doing: observer.step(plan, doing),
    )
    _report_stuck(coordinator.ledger, plan.run, finished.report, observer)
    return finished.outcome


def _abort_reason(error: TidegateError) -> str:
    if error.of_environment:
        return rules.ENVIRONMENT_FAILED
    if error.reason == "CHECKPOINT_EXPIRED":
        return error.reason
    return "JOB_FAILED"


def _report_stuck(ledger: Ledger, run: str, report: Report, observer: Observer) -> None:
    observer.published(report.stuck)
    for table, stuck in report.stuck.items():
        troubles.record_error(ledger, run, f"publishing to {table}", stuck)
        observer.stuck(table, stuck)


def _abort_interrupted_checkpoint(coordinator: Coordinator, run: str) -> None:
    """Abort the run's checkpoint if it was planned before the run was interrupted. Other runs would wait for it."""
    with contextlib.suppress(TidegateError):
        entry = rules.entry_of_run(coordinator.ledger.view(run), run)
        if entry is not None:
            coordinator.abort(entry, "CANCELLED", "stopped by hand")


def _job(coordinator: Coordinator, plan: Plan, job: str, session: SessionSource, observer: Observer) -> list[Ack]:
    """Run one job, and return its ack; no ack if the checkpoint does not wait for the job.

    The job is retried while Spark or storage does not answer and while it is not its turn, until the checkpoint's
    timeout.
    """

    def retrying(error: TidegateError, tries_left: int) -> None:
        session.drop()  # it may be the cause
        troubles.record_error(coordinator.ledger, plan.run, f"job {job}", error)
        observer.retrying(plan, error, tries_left)

    def attempt() -> Ack:
        observer.step(plan, "getting Spark ready")
        warm_gates(coordinator.graph)
        with job_deadline(coordinator, plan, job, lambda: session.cancel()):
            spark = opened(session, job)
            return run_job(coordinator, plan.id, job, spark, lambda doing: observer.step(plan, doing))

    def pause(seconds: float) -> None:
        remaining = None
        with contextlib.suppress(TidegateError):  # the next attempt will raise it, too
            remaining = remaining_seconds(coordinator, plan, job)
        seams.sleep(seconds if remaining is None else min(seconds, max(remaining, 0.0)))

    while True:
        try:
            return [_patiently(attempt, retries_of_jobs(coordinator.settings), retrying, pause)]
        except DeadlinePassed as passed:
            session.drop()  # a query that hangs may continue there
            acked = coordinator.ledger.ack(plan.id, job)
            if acked is None:
                raise job_is_late(job, plan, passed) from None
            return [acked.ack]  # the job was done in time
        except Rejected as error:
            if error.reason == OVERTAKEN:
                observer.waiting(error.what)
                return []
            if error.reason != "BASE_IN_PROGRESS":
                raise
            observer.waiting(error.what)
            decide_earlier(coordinator, plan.id, abandoned_reason)
            seams.sleep(POLL_S)


def _patiently(
    call: Callable[[], T],
    retries: Retries,
    on_retry: Callable[[TidegateError, int], None],
    wait: Callable[[float], None] = seams.sleep,
) -> T:
    """Call the function, and retry it after pauses while it raises Unavailable."""
    for tried, pause in enumerate(retries.pauses()):
        try:
            return call()
        except Unavailable as error:
            on_retry(error, retries.times - tried)
            wait(pause)
    return call()


def _pause(seconds: float, schedule: Schedule, observer: Observer) -> None:
    until = seams.monotonic() + seconds
    while (remaining := until - seams.monotonic()) > 0 and not schedule.stop():
        observer.waiting(f"next checkpoint in {remaining:.0f} s")
        seams.sleep(min(remaining, POLL_S))
