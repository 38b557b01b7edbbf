"""The three kinds of task: `trigger` plans, a job task computes, `complete` decides and publishes.

No task relies on another one's XComs: each looks up its run's checkpoint in the ledger. So tasks can be retried,
cleared one by one, or run twice at once, in any order.

Modules that only a running task needs are imported when it runs, because Airflow keeps parsing DAG files.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator

from tidegate.checkpoint import troubles
from tidegate.dag import run_params
from tidegate.dag.assets import AssetEvents
from tidegate.dag.lineage import provider
from tidegate.dag.links import LINKS
from tidegate.dag.names import COMPLETE, TRIGGER, job_task
from tidegate.dag.tasks import reasons
from tidegate.dag.tasks.asset_events import send_events, unannounced_changes
from tidegate.dag.tasks.following import follow, followed, start_run
from tidegate.dag.tasks.notices import Notice, Notifiers, about_completed, send_notice, send_promise_notices
from tidegate.dag.tasks.task import Cancelled, Task, kill_unless_finished
from tidegate.errors import Corrupt, Fenced, Rejected, TidegateError, Unavailable, trace_without_values
from tidegate.execution.deadline import DeadlinePassed, cancel_in_time, job_deadline, job_is_late, opened
from tidegate.execution.job.readiness import OVERTAKEN
from tidegate.protocol.verdicts import QUARANTINED
from tidegate.records.records import Ack, Plan
from tidegate.versions.airflow import AirflowException, AirflowFailException, AirflowSkipException

if TYPE_CHECKING:
    from typing_extensions import Self

    from tidegate.coordinator import Triggered
    from tidegate.dag.lineage.facts import TaskDatasets
    from tidegate.execution.finish import Finished
    from tidegate.pipeline import Pipeline
    from tidegate.pipeline.hooks import Suspension
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
"""Reasons for a task to wait: another run is in progress, a pause, or an answer that a person must give."""

DECLINED = frozenset({"SUSPENDED", "STOPPED", "FINISHED", "RETIRED", OVERTAKEN})
"""Reasons for which a task is skipped instead of failed: its run makes no checkpoint, or a checkpoint overtook it."""


def as_airflow(error: TidegateError) -> AirflowException:
    """Return the exception that makes Airflow retry, skip or fail the task."""
    text = f"{error.reason}: {error}"
    if isinstance(error, Unavailable):
        return AirflowException(text)
    if isinstance(error, Fenced) or (isinstance(error, Rejected) and error.reason in DECLINED):
        return AirflowSkipException(text)
    return AirflowFailException(text)


log = logging.getLogger(__name__)


class PipelineTask(BaseOperator):
    """Base class of the operators: maps errors to Airflow's, waits without a worker, and ends on request."""

    shallow_copy_attrs = ("pipeline", "notifiers")
    operator_extra_links = LINKS[:1]
    sees_rows = True
    """Whether an unexpected exception may quote a row."""

    def __init__(self, *, pipeline: Pipeline, project: str, notifiers: Notifiers | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.notifiers = notifiers or {}
        self.project = project
        self._cancel: Callable[[], None] = _skip_cancellation
        self._done: threading.Event | None = None
        self._lineage: TaskDatasets | None = None

    def prepare_for_execution(self) -> Self:
        """Return the copy that runs, without assets (see `asset_events`)."""
        task = super().prepare_for_execution()
        task.inlets, task.outlets = [], []
        provider.postpone_start(task)
        return task

    def send_lineage(self, look_up: Callable[[], TaskDatasets]) -> None:
        """Look up what OpenLineage's provider is to send about this task. Never raises."""
        self._lineage = provider.looked_up(look_up)

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the task's datasets to OpenLineage's provider: its start is sent at its end."""
        return provider.describe(self._lineage)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        return provider.describe(self._lineage)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        return provider.describe(self._lineage)

    def resume(self, context: Any, event: Any = None) -> Any:
        """Start over after waiting: what made the trigger fire may have changed since."""
        log.info("Trying again: %s", event)
        return self.execute(context)

    def on_kill(self) -> None:
        """End the process on SIGTERM. Airflow only calls this method, and would let the process continue."""
        cancel_in_time(self._cancel)
        if self._done is not None:
            kill_unless_finished(self._done)
        raise Cancelled(f"task {self.task_id} is cancelled, and so is its Spark work")

    @contextlib.contextmanager
    def opened_task(self, context: Any) -> Iterator[Task]:
        """Wrap one try: turn tidegate's errors into the exceptions that Airflow handles accordingly."""
        task: Task | None = None
        self._done = done = threading.Event()
        try:
            task = Task.open(self.pipeline, self.project, context)
            self._check_promises(task)
            yield task
        except TidegateError as error:
            if task is not None:
                task.failed(str(error), of_environment=error.of_environment, quoted=error.quoted)
                self.note(task, error)
            raise self._without_values(self.as_airflow(error, task), error) from None
        except AirflowException:
            raise
        except Exception as unforeseen:
            unexpected = troubles.unforeseen(unforeseen, sees_rows=self.sees_rows)
            if task is not None:
                task.failed(unexpected.what, quoted=unexpected.quoted)
                self.note(task, unexpected)
            raise self._without_values(
                AirflowException(f"{unexpected.reason}: {unexpected.what}"), unforeseen
            ) from None
        finally:
            done.set()

    def _without_values(self, refusal: AirflowException, error: Exception) -> AirflowException:
        """Log where an error was raised, and return `refusal`, to be raised without a cause.

        Airflow would log the causes as well, and their messages may quote rows.
        """
        if not isinstance(refusal, AirflowSkipException):
            log.error("Traceback, without texts that may quote rows:\n%s", trace_without_values(error))
        return refusal

    def set_cancel(self, cancel: Callable[[], None] | None) -> None:
        """Set the function to call when the task is cancelled, or None while nothing runs in Spark."""
        self._cancel = cancel or _skip_cancellation

    def notify(self, task: Task, notice: Notice) -> None:
        """Tell people, through the notifiers that the DAG file lists for such an event."""
        send_notice(self.notifiers, task.context, notice)

    def _check_promises(self, task: Task) -> None:
        """Tell people of tables that have become too old, or new again. Each try of each task looks, so also one that
        waits, and the task that nothing is planned in because the pipeline is suspended."""
        send_promise_notices(
            self.notifiers, task.context, task.coordinator.ledger, task.settings.tolerable_failed_checkpoints
        )

    def _notify_suspended(self, task: Task, suspension: Suspension | None, why: str, id: int | None = None) -> None:
        """Tell people of a suspension. None: the hooks were called before, and so were the notifiers."""
        if suspension is not None:
            self.notify(task, Notice("suspended", self.pipeline.name, id, f"it is suspended: {why}"))

    def note(self, task: Task, error: TidegateError) -> None:
        """Record the error for the pipeline, and suspend it after damage."""
        task.note(self.task_id, error)
        if isinstance(error, Corrupt):
            self._notify_suspended(task, _suspend(task, error), error.reason)

    def as_airflow(self, error: TidegateError, task: Task | None) -> AirflowException:
        """Return the exception to raise in Airflow."""
        return as_airflow(error)

    @contextlib.contextmanager
    def sessions(self, task: Task, job: str | None = None) -> Iterator[ReusedSession]:
        """Yield Spark sessions that open on first use, and whose work is cancelled when the task is."""
        from tidegate.spark.session import ReusedSession, control_settings

        with ReusedSession(control_settings(task.settings, job)) as sessions:
            self._cancel = sessions.cancel
            task.coordinator.spark = sessions  # for tables that only delta-spark can publish to
            try:
                yield sessions
            finally:
                self._cancel = _skip_cancellation

    def triggered(self, task: Task, *, only_if_new: bool = False) -> Triggered:
        """Return the run's checkpoint. Plan it if the run has none, and wait if it is not allowed yet.

        only_if_new: skip the task without new input, unless a checkpoint is due anyway.
        """
        from tidegate.coordinator import AlreadyCovered
        from tidegate.execution.finish import notify_requested_suspension
        from tidegate.execution.input_watch import is_due
        from tidegate.lifecycle.control import lift_abandoned

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
                    only_if_new=only_if_new,
                    is_due=lambda view: is_due(task.coordinator.ledger, view, task.settings.max_pause),
                )
        except Rejected as error:
            if error.reason == "BEFORE_FIRST_CHECKPOINT":
                raise task.skip(reasons.overtaken()) from error
            if error.reason == "SUSPENDED":
                tolerable = task.coordinator.settings.tolerable_failed_checkpoints
                if lift_abandoned(task.coordinator.ledger, tolerable, task.abandon_reason):
                    return self.triggered(task, only_if_new=only_if_new)
                self._notify_suspended(task, notify_requested_suspension(task.coordinator), "a person asked for it")
            ids: list[int] = []
            if error.reason == "CHECKPOINT_IN_PROGRESS":
                open_entries = task.coordinator.ledger.view().still_open()
                ids = [entry.id for entry in open_entries if entry.plan.run != task.run]
            self.wait(task, error, ids)
        if isinstance(triggered, AlreadyCovered):
            raise task.skip(triggered.why)
        if triggered is None:
            raise task.skip("no new input: an earlier run has already read it")
        return triggered

    def wait_for_replay(self, task: Task, why: str, look_again: float) -> NoReturn:
        """Defer the task until it is time to check a backfill's progress again."""
        log.info("Waiting: %s", why)
        self._defer(task, [], "", look_again)

    def wait(self, task: Task, error: Rejected, ids: list[int], job: str = "") -> NoReturn:
        """Defer the task until it is worth trying again. Raise the error if waiting does not help."""
        if error.reason not in WAITING:
            raise error
        log.info("Waiting: %s", error)
        self._defer(task, ids, job, _retry_interval(task, error))

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
    """Aborts dead checkpoints, publishes pending ones, and fixes the input of this run's checkpoint."""

    ui_color = "#d6eaf8"
    sees_rows = False

    def execute(self, context: Any) -> dict[str, Any]:
        """Plan the checkpoint, and return its number: data never passes through Airflow."""
        from tidegate.dag.lineage.facts import of_plan

        with self.opened_task(context) as task:
            task.refuse_unknown_conf()
            run_params.refuse_used_savepoint_name(task)
            if note := context["params"].get("note"):
                log.info("Note: %s", note)
            with self.sessions(task):
                rollback = run_params.roll_back_if_requested(task)
            if rollback is not None:
                raise AirflowSkipException(f"entry {rollback} is a rollback: jobs have nothing to do")
            triggered = self.triggered(task, only_if_new=task.by_event)
            plan = triggered.plan
            self.send_lineage(lambda: of_plan(task.coordinator, plan))
            done = triggered.adopted and task.coordinator.ledger.published(plan.id) is not None
            _log_plan(plan, adopted=triggered.adopted, done=done)
            if not triggered.adopted:
                task.emit_spans(plan.id, "planning")
            return {"checkpoint": plan.id, "done": done}


class JobOperator(PipelineTask):
    """Runs one job of the run's checkpoint on Spark. Its only effect is its ack."""

    ui_color = "#fdebd0"

    def __init__(self, *, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job

    def execute(self, context: Any) -> dict[str, Any]:
        """Run the job, unless it is already done."""
        from tidegate.dag.lineage.facts import of_job
        from tidegate.execution.job.run_job import ask_job

        with self.opened_task(context) as task:
            plan = self._plan(task)
            look_up = partial(of_job, task.coordinator, plan.id, self.job)
            self.send_lineage(look_up)
            try:
                ack = ask_job(task.coordinator, plan.id, self.job, task.is_job_running)
            except Rejected as error:  # not its turn: the same job of an earlier checkpoint is still running
                self.wait(task, error, list(getattr(error, "ids", ())), self.job)
            if ack is not None:
                log.info("%s: already done, nothing to do", self._about(plan))
                return {"checkpoint": plan.id}
            self._work(task, plan)
            self.send_lineage(look_up)
            return {"checkpoint": plan.id}

    def _plan(self, task: Task) -> Plan:
        """Return the plan of the run's checkpoint. If that was aborted and this task cleared, the run gets a new
        one."""
        last = task.last()
        entry = task.coordinator.ledger.entry(last) if last is not None else None
        if entry is not None:
            if not entry.aborted:
                return entry.plan
            if task.abandon_reason(entry.plan):  # Airflow has ended the run, and lost track of this process
                raise Fenced(f"job {self.job!r} stops: its checkpoint {entry.id} was aborted, and its run is over")
        return self.triggered(task).plan

    def _about(self, plan: Plan) -> str:
        """Return what each line of the log begins with."""
        return f"Checkpoint {plan.id}, job {self.job}"

    def _work(self, task: Task, plan: Plan) -> None:
        run = self._submit if task.settings.spark.mode == "submit" else self._run
        try:
            ack = run(task, plan)
        except DeadlinePassed as passed:
            # The job may have acked in time: closing a session or ending a driver takes time as well.
            with contextlib.suppress(TidegateError):
                if task.coordinator.ledger.ack(plan.id, self.job) is not None:
                    log.info("%s: done; the clean-up after it took too long", self._about(plan))
                    return
            late = job_is_late(self.job, plan, passed)
            task.failed(str(late), of_environment=late.of_environment)
            task.note(self.task_id, late)  # replaces the error of an earlier try, which is no longer the cause
            raise AirflowFailException(f"{late.reason}: {late}") from None
        task.emit_spans(plan.id, f"job {self.job}")
        rows = ", ".join(f"{count:,} rows for {sink}" for sink, count in ack.stats.rows.items())
        log.info("%s: done, %s", self._about(plan), rows or "nothing to publish")

    def _run(self, task: Task, plan: Plan) -> Ack:
        """Run the job in this process, with a session on a Spark server."""
        from tidegate.execution.job.gates import warm_gates
        from tidegate.execution.job.run_job import run_job

        warm_gates(task.coordinator.graph)
        with (
            self.sessions(task, self.job) as sessions,
            job_deadline(task.coordinator, plan, self.job, sessions.cancel),
        ):
            step = task.steps(self._about(plan))
            step("getting Spark ready")
            spark = opened(sessions, self.job)
            return run_job(task.coordinator, plan.id, self.job, spark, step, task.is_job_running)

    def _submit(self, task: Task, plan: Plan) -> Ack:
        """Run the job as a separate application, with spark-submit."""
        from tidegate.dag.tasks.submitting import submitting

        with (
            submitting(task, plan.id, self.job) as process,
            job_deadline(task.coordinator, plan, self.job, process.cancel),
        ):
            self._cancel = process.cancel
            try:
                task.steps(self._about(plan))(f"submitting the job to {task.settings.spark.master}")
                return process.run()
            finally:
                self._cancel = _skip_cancellation


class CompleteOperator(PipelineTask):
    """Decides the run's checkpoint: either it is completed and published, or it is aborted and the run fails."""

    ui_color = "#d5f5e3"

    def __init__(self, *, asset_events: AssetEvents = "rows", by_partition: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asset_events = asset_events
        self.by_partition = by_partition

    def execute(self, context: Any) -> dict[str, Any]:
        """Decide and publish. Runs in any case, even if other tasks failed."""
        from tidegate.dag.lineage.facts import of_checkpoint

        with self.opened_task(context) as task:
            if task.follows:  # if Airflow cleared an old run for a backfill, that run's checkpoint stays as it is
                raise followed(task)
            id = task.last()
            if id is None or _is_from_before_clear(task, id):
                raise _without_checkpoint(task)
            finished = self._finish(task, id)
            outcome = finished.outcome
            if outcome.state == "retired":
                raise AirflowSkipException(f"checkpoint {id} was decided and retired long ago: nothing to do")
            self.send_lineage(lambda: of_checkpoint(task.coordinator, id, partial(unannounced_changes, task, id)))
            if outcome.reason == QUARANTINED:
                raise _reread_input(task, id, outcome.detail)
            if outcome.state == "aborted":
                raise AirflowFailException(reasons.aborted(finished))
            self._refuse_unpublished(id, finished)
            reasons.refuse_failed_overtaken_job(task, id)
            return self._completed(task, id)

    def _finish(self, task: Task, id: int) -> Finished:
        from tidegate.checkpoint.approvals import awaits_person
        from tidegate.execution.finish import finish
        from tidegate.proposal.expiry import discard_expired

        # First without a reason: all acks may be there, and an expired checkpoint must be reported as expired.
        outcome = task.coordinator.complete(id)
        failure = reasons.failure(task, id) if outcome.state == "open" else None

        def wait(why: str) -> None:
            entry, base = task.coordinator.entry_and_base(id)
            if entry is not None and awaits_person(entry):
                answer = "answer it on the checkpoint's page, or by `tidegate approve` or `tidegate reject`"
                self.wait(task, Rejected(why, help=answer, reason="HELD"), [id])
            if entry is not None and base is not None and base.open:
                base_is_open = Rejected(
                    f"checkpoint {id} waits for checkpoint {base.id}, on which it depends",
                    help=f"nothing to do while the run of checkpoint {base.id} is in progress; see `tidegate explain`",
                    reason="BASE_IN_PROGRESS",
                )
                self.wait(task, base_is_open, [base.id])

        with self.sessions(task):
            step = task.steps(f"Checkpoint {id}")
            finished = finish(task.coordinator, id, failure, give_up=task.abandon_reason, wait=wait, step=step)
        discard_expired(task.coordinator, task.settings.proposal_ttl)
        task.measure()
        if finished.suspension is not None:
            failed = ", ".join(map(str, finished.suspension.failed)) or str(id)
            why = f"checkpoint {failed} was aborted ({finished.outcome.reason})"
            self._notify_suspended(task, finished.suspension, why, id)
        return finished

    def _refuse_unpublished(self, id: int, finished: Finished) -> None:
        for table, error in finished.report.stuck.items():
            raise Unavailable(
                f"checkpoint {id} is completed, but sink {table!r} could not be published to: {error.what}",
                help="nothing is lost: this task tries again, and so does each later run",
                reason=error.reason,
                quoted=error.quoted,
            ) from error

    def _completed(self, task: Task, id: int) -> dict[str, Any]:
        run_params.carry_out_requests(task, id)
        was_done = (task.pulled(TRIGGER, "return_value") or {}).get("done", False)
        if was_done:
            raise AirflowSkipException(f"checkpoint {id} was completed and published before: nothing to do")
        task.emit_spans(id, "deciding", "publishing")
        send_events(self, task, id, self.asset_events, by_partition=self.by_partition)
        entry = task.coordinator.ledger.entry(id)
        if entry is not None and self.notifiers:
            for notice in about_completed(entry, task.coordinator.ledger):
                self.notify(task, notice)
            self._check_promises(task)
        log.info("Checkpoint %s is completed and published", id)
        return {"checkpoint": id}


def _reread_input(task: Task, id: int, why: str) -> AirflowSkipException:
    """Start the run that reads the input of an aborted checkpoint again. Return the exception that ends this one."""
    plan = task.coordinator.ledger.plan(id)
    if plan is not None:
        start_run(task.context["dag_run"].dag_id, f"quarantine__{id}__{plan.attempt}", {})
    return AirflowSkipException(
        f"checkpoint {id} was aborted, so that what its gate held goes to quarantine: {why}\n  Another run of this DAG "
        "reads its input again, now. It publishes the rest"
    )


def _skip_cancellation() -> None:
    """Do nothing: no Spark work is running."""


def _suspend(task: Task, error: Corrupt) -> Suspension | None:
    """Suspend a damaged pipeline: a person has to look, and until then no run makes it worse. Return the suspension if
    it was told now."""
    from tidegate.execution.finish import notify_requested_suspension

    with contextlib.suppress(TidegateError):
        task.coordinator.suspend(task.run, str(error))
        return notify_requested_suspension(task.coordinator)
    return None


def _retry_interval(task: Task, error: Rejected) -> float:
    """Return the seconds after which to try again even if the ledger shows no change."""
    if error.reason == "MIN_PAUSE" or error.wait_s is not None:
        return max(error.wait_s or task.settings.min_pause, 0.1)
    if error.reason in ("TOO_MANY_UNPUBLISHED", "ROLLBACK_UNPUBLISHED"):
        return 30.0
    return 60.0


def _log_plan(plan: Plan, *, adopted: bool, done: bool) -> None:
    if done:
        state = "was completed before: nothing to do"
    elif adopted:
        state = "was already planned by this run"
    else:
        state = "is planned"
    drain = ""
    if plan.draining is not None:
        drain = "; a drain was requested, but it cannot take all waiting input: later runs read the rest, then drain"
    elif plan.drain is not None:
        drain = ", the last one: it ends event time"
    log.info("Checkpoint %s %s%s", plan.id, state, drain)
    for name, part in plan.sources.items():
        log.info("  %s: %s", name, part.summary or ("nothing new" if part.empty else "new input"))


def _is_from_before_clear(task: Task, id: int) -> bool:
    """Return whether the run's checkpoint is older than its clearing, and `trigger` has planned no new one."""
    if task.states().get(TRIGGER) not in ("skipped", "failed", "upstream_failed"):
        return False
    entry = task.coordinator.ledger.entry(id)
    if entry is None or entry.open:
        return entry is None and bool(task.earlier)
    return entry.aborted or entry.plan.run in task.earlier


def _without_checkpoint(task: Task) -> Exception:
    """Return the exception for a run without a checkpoint: `trigger` was skipped, or it failed."""
    from tidegate.execution.finish import record_failed_plan

    why = task.pulled(TRIGGER, "failure")
    state = task.states().get(TRIGGER, "gone")
    if state != "skipped":
        record_failed_plan(task.coordinator, task.run)
        task.measure()
    text = f"this run made no checkpoint, because task {TRIGGER} is {state}"
    if why:
        text += f": {why}"
    if state == "skipped":
        return AirflowSkipException(text)
    return AirflowFailException(text)
