"""The three kinds of task: `trigger` plans, each job works, `complete` decides and publishes.

None trusts what another one left in Airflow: each asks the ledger for its run's checkpoint. So they can be retried,
cleared one by one, or run twice at once, in any order.

What only a running task needs is imported when it runs: Airflow parses DAG files again and again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator

from tidegate.checkpoint import troubles
from tidegate.dag import run_params
from tidegate.dag.assets import AssetEvents
from tidegate.dag.links import LINKS
from tidegate.dag.names import COMPLETE, TRIGGER, job_task
from tidegate.dag.tasks import reasons
from tidegate.dag.tasks.asset_events import send_events
from tidegate.dag.tasks.following import follow, followed
from tidegate.dag.tasks.notices import Notice, Notifiers, about_completed, send_notice
from tidegate.dag.tasks.task import Cancelled, Task, end_anyway
from tidegate.errors import Corrupt, Fenced, Rejected, TidegateError, Unavailable, trace_without_values
from tidegate.execution.deadline import DeadlinePassed, cancel_in_time, job_deadline, job_is_late, opened
from tidegate.execution.job.readiness import OVERTAKEN
from tidegate.records.records import Ack, Plan
from tidegate.versions.airflow import AirflowException, AirflowFailException, AirflowSkipException

if TYPE_CHECKING:
    from typing_extensions import Self

    from tidegate.coordinator import Triggered
    from tidegate.execution.finish import Finished
    from tidegate.pipeline import Pipeline
    from tidegate.spark.session import ReusedSession

__all__ = [
    "COMPLETE",
    "DECLINED",
    "TRIGGER",
    "WAITING",
    "CompleteOperator",
    "JobOperator",
    "TriggerOperator",
    "as_airflow",
    "job_task",
]


WAITING = frozenset(
    {
        "CHECKPOINT_IN_PROGRESS",
        "BASE_IN_PROGRESS",
        "MIN_PAUSE",
        "TOO_MANY_UNPUBLISHED",
        "ROLLBACK_UNPUBLISHED",
        "HELD",
    }
)
"""Why a task waits: others are at work, a pause is on, or a person is to say something."""

DECLINED = frozenset({"SUSPENDED", "STOPPED", "FINISHED", "RETIRED", OVERTAKEN})
"""Why a run makes no checkpoint, or a checkpoint does not wait for a job, which is no failure."""


def as_airflow(error: TidegateError) -> AirflowException:
    """The exception that has Airflow do what the table says."""
    told = f"{error.reason}: {error}"
    if isinstance(error, Unavailable):
        return AirflowException(told)
    if isinstance(error, Fenced) or (isinstance(error, Rejected) and error.reason in DECLINED):
        return AirflowSkipException(told)
    return AirflowFailException(told)


log = logging.getLogger(__name__)


class PipelineTask(BaseOperator):
    """Base of the operators: maps errors to Airflow's, waits without a worker, and ends on request."""

    shallow_copy_attrs = ("pipeline", "notifiers")
    operator_extra_links = LINKS[:1]
    sees_rows = True
    """Whether an unexpected exception may quote one."""

    def __init__(self, *, pipeline: Pipeline, project: str, notifiers: Notifiers | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.notifiers = notifiers or {}
        self.project = project
        self._cancel: Callable[[], None] = _skip_job
        self._over: threading.Event | None = None

    def prepare_for_execution(self) -> Self:
        """Return the copy that runs, without assets: see `asset_events`."""
        task = super().prepare_for_execution()
        task.inlets, task.outlets = [], []
        return task

    def resume(self, context: Any, event: Any = None) -> Any:
        """Continue after waiting: by asking again. Whatever made the trigger fire may have changed since."""
        log.info("Asking again: %s", event)
        return self.execute(context)

    def on_kill(self) -> None:
        """SIGTERM. Airflow leaves it at this call, and the process would continue: so it is ended from here."""
        cancel_in_time(self._cancel)
        if self._over is not None:
            end_anyway(self._over)
        raise Cancelled(f"task {self.task_id} was told to end; its Spark work is cancelled")

    @contextlib.contextmanager
    def at_work(self, context: Any) -> Iterator[Task]:
        """Wrap one try: turn an error of tidegate into the exception for which Airflow does the right thing."""
        task: Task | None = None
        self._over = over = threading.Event()
        try:
            task = Task.of(self.pipeline, self.project, context)
            yield task
        except TidegateError as error:
            if task is not None:
                task.failed(str(error), of_environment=error.of_environment, quoted=error.quoted)
                self.note(task, error)
            raise self._without_values(self.as_airflow(error, task), error) from None
        except AirflowException:
            raise
        except Exception as unforeseen:
            told = troubles.unforeseen(unforeseen, sees_rows=self.sees_rows)
            if task is not None:
                task.failed(told.what, quoted=told.quoted)
                self.note(task, told)
            raise self._without_values(AirflowException(f"{told.reason}: {told.what}"), unforeseen) from None
        finally:
            over.set()

    def _without_values(self, refusal: AirflowException, error: Exception) -> AirflowException:
        """Log where an error was raised. Airflow would log its causes as well, whose messages may quote rows."""
        if not isinstance(refusal, AirflowSkipException):
            log.error("Where it failed, without what may quote rows:\n%s", trace_without_values(error))
        return refusal

    def cancels(self, cancel: Callable[[], None] | None) -> None:
        """Say what is to be called if the task is told to end. None: nothing runs in Spark any more."""
        self._cancel = cancel or _skip_job

    def notify(self, task: Task, notice: Notice) -> None:
        """Tell people, through the notifiers that the DAG file lists for such an event."""
        send_notice(self.notifiers, task.context, notice)

    def note(self, task: Task, error: TidegateError) -> None:
        """Let the pipeline know of the error."""
        task.note(self.task_id, error)
        if isinstance(error, Corrupt):
            _suspend(task, error)
            self.notify(task, Notice("suspended", self.pipeline.name, None, f"it is suspended: {error.reason}"))

    def as_airflow(self, error: TidegateError, task: Task | None) -> AirflowException:
        """Return the exception by which Airflow is told."""
        return as_airflow(error)

    @contextlib.contextmanager
    def sessions(self, task: Task, job: str | None = None) -> Iterator[ReusedSession]:
        """Spark, opened when asked for, let go of when the task is told to end."""
        from tidegate.spark.session import ReusedSession, control_settings

        with ReusedSession(control_settings(task.settings, job)) as sessions:
            self._cancel = sessions.cancel
            task.coordinator.spark = sessions  # for the targets that only delta-spark can publish to
            try:
                yield sessions
            finally:
                self._cancel = _skip_job

    def triggered(self, task: Task, *, only_if_new: bool = False) -> Triggered:
        """The run's checkpoint, planned now if it has none; or wait until one is allowed.

        only_if_new: skip the task if nothing is new, unless a checkpoint is due without input.
        """
        from tidegate.checkpoint.control import lift_abandoned
        from tidegate.coordinator import AlreadyCovered
        from tidegate.execution.finish import notify_requested_suspension
        from tidegate.execution.input_watch import is_due

        task.end_unattended()
        if task.follows:
            follow(self, task)
        try:
            with self.sessions(task):
                triggered = task.coordinator.trigger(
                    task.name(),
                    kind=task.kind,
                    give_up=task.abandon_reason,
                    interval=task.interval,
                    reprocess=task.reprocess,
                    drain=run_params.drain_of(task),
                    aligned=run_params.is_named(task),
                    rank=run_params.rank_of(task),
                    only_if_new=only_if_new and not is_due(task.coordinator.ledger.view(), task.settings.max_pause),
                )
        except Rejected as error:
            if error.reason == "BEFORE_FIRST_CHECKPOINT":
                raise task.skip(reasons.overtaken()) from error
            if error.reason == "SUSPENDED":
                tolerable = task.coordinator.settings.tolerable_failed_checkpoints
                if lift_abandoned(task.coordinator.ledger, tolerable, task.abandon_reason):
                    return self.triggered(task, only_if_new=only_if_new)
                suspension = notify_requested_suspension(task.coordinator)
                if suspension is not None:
                    self.notify(task, Notice("suspended", self.pipeline.name, None, "somebody has suspended it"))
            others = [e.id for e in task.coordinator.ledger.view().still_open() if e.plan.run != task.run]
            self.wait(task, error, others if error.reason == "CHECKPOINT_IN_PROGRESS" else [])
        if isinstance(triggered, AlreadyCovered):
            raise task.skip(triggered.why)
        if triggered is None:
            raise task.skip("nothing is new: an earlier run has read what this one was to read")
        return triggered

    def wait_for_replay(self, task: Task, why: str, look_again: float) -> NoReturn:
        """Give the worker back until it is time to look again how far a backfill has come."""
        log.info("Waiting: %s", why)
        self._defer(task, [], "", look_again)

    def wait(self, task: Task, error: Rejected, ids: list[int], job: str = "") -> NoReturn:
        """Give the worker back until it is worth asking again. Raises the error if waiting does not help."""
        if error.reason not in WAITING:
            raise error
        log.info("Waiting: %s", error)
        self._defer(task, ids, job, _patience(task, error))

    def _defer(self, task: Task, ids: list[int], job: str, look_again: float) -> NoReturn:
        from tidegate.dag.waiting import LedgerTrigger

        self.defer(
            trigger=LedgerTrigger(
                root=task.settings.root,
                project=self.project,
                pipeline=self.pipeline.name,
                ids=ids,
                job=job,
                look_again=look_again,
            ),
            method_name="resume",
        )


class TriggerOperator(PipelineTask):
    """Ends what is dead, publishes what is pending, and fixes which input belongs to this run's checkpoint."""

    ui_color = "#d6eaf8"
    sees_rows = False

    def execute(self, context: Any) -> dict[str, Any]:
        """Small references only: data never goes through Airflow."""
        with self.at_work(context) as task:
            task.refuse_unknown_conf()
            run_params.refuse_taken_savepoint(task)
            if note := context["params"].get("note"):
                log.info("Note: %s", note)
            with self.sessions(task):
                gone_back = run_params.roll_back_if_requested(task)
            if gone_back is not None:
                raise AirflowSkipException(f"entry {gone_back} goes back: there is nothing to do for jobs")
            triggered = self.triggered(task, only_if_new=task.by_event)
            plan = triggered.plan
            done = triggered.adopted and task.coordinator.ledger.published(plan.id) is not None
            _log_plan(plan, triggered.adopted, done)
            return {"checkpoint": plan.id, "done": done}


class JobOperator(PipelineTask):
    """Runs one job of the run's checkpoint on Spark. Its only effect is its ack."""

    ui_color = "#fdebd0"

    def __init__(self, *, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job

    def execute(self, context: Any) -> dict[str, Any]:
        """Do it, or find that it is done."""
        from tidegate.execution.job.run_job import ask_job

        with self.at_work(context) as task:
            plan = self._plan(task)
            try:
                ack = ask_job(task.coordinator, plan.id, self.job, task.is_job_running)
            except Rejected as error:  # not its turn: the same job of the checkpoint below is still at work
                self.wait(task, error, list(getattr(error, "ids", ())), self.job)
            if ack is not None:
                log.info("Job %s of checkpoint %s is done already: nothing to do", self.job, plan.id)
                return {"checkpoint": plan.id}
            self._work(task, plan)
            return {"checkpoint": plan.id}

    def _plan(self, task: Task) -> Plan:
        """The run's checkpoint. If it was aborted and somebody has cleared this task, the run gets another one."""
        last = task.last()
        entry = task.coordinator.ledger.entry(last) if last is not None else None
        if entry is not None and not entry.aborted:
            return entry.plan
        if entry is not None and task.abandon_reason(
            entry.plan
        ):  # Airflow has ended the run, and forgotten this process
            raise Fenced(f"job {self.job!r} stops: its checkpoint {entry.id} was aborted, and its run is over")
        return self.triggered(task).plan

    def _work(self, task: Task, plan: Plan) -> None:
        do = self._submit if task.settings.spark.mode == "submit" else self._run
        try:
            ack = do(task, plan)
        except DeadlinePassed as passed:
            # It may have been done in time: a session that is closed, or a driver that ends, takes its time, too.
            with contextlib.suppress(TidegateError):
                if task.coordinator.ledger.ack(plan.id, self.job) is not None:
                    log.info("Job %s of checkpoint %s is done; what came after it took too long", self.job, plan.id)
                    return
            late = job_is_late(self.job, plan, passed)
            task.failed(str(late), of_environment=late.of_environment)
            task.note(self.task_id, late)  # what an earlier try has met is no cause any more
            raise AirflowFailException(f"{late.reason}: {late}") from None
        rows = ", ".join(f"{count:,} rows for {sink}" for sink, count in ack.stats.rows.items())
        log.info("Job %s of checkpoint %s is done: %s", self.job, plan.id, rows or "nothing to publish")

    def _run(self, task: Task, plan: Plan) -> Ack:
        """In this process, with a session on a Spark server."""
        from tidegate.execution.job.gates import warm_gates
        from tidegate.execution.job.run_job import run_job

        warm_gates(task.coordinator.graph)
        with (
            self.sessions(task, self.job) as sessions,
            job_deadline(task.coordinator, plan, self.job, sessions.cancel),
        ):
            task.step("getting Spark ready")
            spark = opened(sessions, self.job)
            return run_job(task.coordinator, plan.id, self.job, spark, task.step, task.is_job_running)

    def _submit(self, task: Task, plan: Plan) -> Ack:
        """As an application of its own, by spark-submit."""
        from tidegate.dag.tasks.submitting import submitting

        with (
            submitting(task, plan.id, self.job) as process,
            job_deadline(task.coordinator, plan, self.job, process.cancel),
        ):
            self._cancel = process.cancel
            try:
                task.step(f"submitting the job to {task.settings.spark.master}")
                return process.run()
            finally:
                self._cancel = _skip_job


class CompleteOperator(PipelineTask):
    """Decides the run's checkpoint: completed and published, or aborted and the run red."""

    ui_color = "#d5f5e3"

    def __init__(self, *, asset_events: AssetEvents = "rows", by_partition: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asset_events = asset_events
        self.by_partition = by_partition

    def execute(self, context: Any) -> dict[str, Any]:
        """Runs whatever became of the other tasks."""
        with self.at_work(context) as task:
            if task.follows:  # a run of then that Airflow has cleared for it has a checkpoint, which nothing is done to
                raise followed(task)
            id = task.last()
            if id is None or _is_from_before_clear(task, id):
                raise _nothing_planned(task)
            finished = self._finish(task, id)
            outcome = finished.outcome
            if outcome.state == "retired":
                raise AirflowSkipException(f"checkpoint {id} was decided and retired long ago: nothing to do")
            if outcome.state == "aborted":
                raise AirflowFailException(reasons.aborted(finished))
            self._refuse_unpublished(id, finished)
            reasons.refuse_failed_beside(task, id)
            return self._completed(task, id)

    def _finish(self, task: Task, id: int) -> Finished:
        from tidegate.checkpoint.approvals import awaits_person
        from tidegate.execution.finish import finish

        # First without a reason: all acks may be in, and what has expired is told as that.
        outcome = task.coordinator.complete(id)
        failure = reasons.failure(task, id) if outcome.state == "open" else None

        def wait(why: str) -> None:
            entry, base = task.coordinator.entry_and_base(id)
            if entry is not None and awaits_person(entry):
                answer = "answer it on the checkpoint's page, or by `tidegate approve` or `tidegate reject`"
                self.wait(task, Rejected(why, help=answer, reason="HELD"), [id])
            if entry is not None and base is not None and base.open:
                held = Rejected(
                    f"checkpoint {id} waits for {base.id}, on which it rests",
                    help=f"nothing, as long as the run of checkpoint {base.id} is at work; `tidegate explain` tells",
                    reason="BASE_IN_PROGRESS",
                )
                self.wait(task, held, [base.id])

        with self.sessions(task):
            finished = finish(task.coordinator, id, failure, give_up=task.abandon_reason, wait=wait, step=task.step)
        task.measure()
        if finished.suspension is not None:
            failed = ", ".join(map(str, finished.suspension.failed)) or str(id)
            why = f"it is suspended: checkpoint {failed} was aborted ({finished.outcome.reason})"
            self.notify(task, Notice("suspended", self.pipeline.name, id, why))
        return finished

    def _refuse_unpublished(self, id: int, finished: Finished) -> None:
        for table, error in finished.report.stuck.items():
            raise Unavailable(
                f"checkpoint {id} is completed, but sink {table!r} could not be published to: {error.what}",
                help="nothing is lost: it is tried again now, and by each later run",
                reason=error.reason,
                quoted=error.quoted,
            ) from error

    def _completed(self, task: Task, id: int) -> dict[str, Any]:
        run_params.carry_out_requests(task, id)
        came_late = (task.pulled(TRIGGER, "return_value") or {}).get("done", False)
        if came_late:
            raise AirflowSkipException(f"checkpoint {id} was completed and published before: nothing to do")
        send_events(self, task, id, self.asset_events, by_partition=self.by_partition)
        entry = task.coordinator.ledger.entry(id)
        if entry is not None and self.notifiers:
            for notice in about_completed(entry, task.coordinator.ledger):
                self.notify(task, notice)
        log.info("Checkpoint %s is completed and published", id)
        return {"checkpoint": id}


def _skip_job() -> None:
    """Nothing runs in Spark."""


def _suspend(task: Task, error: Corrupt) -> None:
    """Suspend the pipeline after damage: it needs a person, and until then no run makes it worse."""
    from tidegate.execution.finish import notify_requested_suspension

    with contextlib.suppress(TidegateError):
        task.coordinator.suspend(task.run, str(error))
        notify_requested_suspension(task.coordinator)


def _patience(task: Task, error: Rejected) -> float:
    """After how many seconds to look again, should the ledger tell nothing."""
    if error.reason == "MIN_PAUSE" or error.wait_s is not None:
        return max(error.wait_s or task.settings.min_pause, 0.1)
    return 30.0 if error.reason in ("TOO_MANY_UNPUBLISHED", "ROLLBACK_UNPUBLISHED") else 60.0


def _log_plan(plan: Plan, adopted: bool, done: bool) -> None:
    state = "was completed before: nothing to do" if done else "is this run's already" if adopted else "is planned"
    ends = ", the last one: event time comes to its end" if plan.drain is not None else ""
    if plan.draining is not None:
        ends = "; the end was asked for, and more waits than it takes: the next runs read on, then comes the end"
    log.info("Checkpoint %s %s%s", plan.id, state, ends)
    for name, part in plan.sources.items():
        log.info("  %s: %s", name, part.summary or ("nothing new" if part.empty else "new input"))


def _is_from_before_clear(task: Task, id: int) -> bool:
    """Return whether the run's checkpoint is from before it was cleared, and `trigger` has planned none since."""
    if task.states().get(TRIGGER) not in ("skipped", "failed", "upstream_failed"):
        return False
    entry = task.coordinator.ledger.entry(id)
    if entry is None or entry.open:
        return entry is None and bool(task.earlier)
    return entry.aborted or entry.plan.run in task.earlier


def _nothing_planned(task: Task) -> Exception:
    """The run has made no checkpoint: either it was not to have one, or `trigger` failed."""
    from tidegate.execution.finish import record_failed_plan

    why = task.pulled(TRIGGER, "failure")
    state = task.states().get(TRIGGER, "gone")
    if state != "skipped":
        record_failed_plan(task.coordinator, task.run)
        task.measure()
    told = f"this run has made no checkpoint, because task {TRIGGER} is {state}" + (f": {why}" if why else "")
    return AirflowSkipException(told) if state == "skipped" else AirflowFailException(told)
