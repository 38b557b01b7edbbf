"""One try of one task: whom it works for, what it may ask Airflow, and how it is told to end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from tidegate.checkpoint.manifests import jobs_without_ack
from tidegate.config import Settings
from tidegate.dag.names import CONF_BACKFILL, CONF_FROM, job_task
from tidegate.dag.runs import run_gone_reason
from tidegate.errors import Fenced, Invalid, Rejected, TidegateError
from tidegate.execution.opening import open_coordinator
from tidegate.records.airflow_login import ask_airflow_by
from tidegate.records.names import airflow_run
from tidegate.records.records import REQUEST, Plan
from tidegate.versions.airflow import AirflowSkipException, find_connection

if TYPE_CHECKING:
    from tidegate.coordinator import Coordinator
    from tidegate.pipeline import Pipeline

__all__ = ["NEED_MORE", "Cancelled", "Task", "open_coordinator"]

log = logging.getLogger(__name__)

NEED_MORE = frozenset({"drain", "rollback"})
"""Actions that need a request, because a parameter is not enough."""


ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed", "gone"})
"""States of a task that does nothing more."""

END_S = 30.0
"""The time that a task has to end once it was told to."""


class Cancelled(KeyboardInterrupt):
    """Airflow wants the task to end: marked, cleared, deleted, or its worker is shut down."""


def end_anyway(over: threading.Event) -> None:
    """Kill this process unless its work is over soon.

    Cancelled may come when it does harm: after a call that it broke off, a channel of gRPC may wait forever
    to be closed; in a finalizer Python ignores it. To be killed is safe at every step; Airflow tries again.
    """

    def wait() -> None:
        if not over.wait(END_S):
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True, name="end-anyway").start()


@dataclass
class Task:
    """The context of one try of a task."""

    coordinator: Coordinator
    settings: Settings
    context: Any
    pipeline: Pipeline
    project: str
    run: str
    earlier: tuple[str, ...] = ()
    """The names of the run before it was cleared, the last one first."""

    @classmethod
    def of(cls, pipeline: Pipeline, project: str, context: Any) -> Task:
        """Open everything that a try needs. Nothing is kept between tries."""
        ask_airflow_by(find_connection)
        coordinator, settings = open_coordinator(pipeline, project)
        dag_run = context["dag_run"]
        cleared = (dag_run.clear_number or 0) if coordinator.graph.by_interval else 0
        names = [airflow_run(dag_run.dag_id, dag_run.run_id, number) for number in range(cleared, -1, -1)]
        return cls(coordinator, settings, context, pipeline, project, names[0], tuple(names[1:]))

    # -- what Airflow knows --------------------------------------------------------------------------

    @property
    def kind(self) -> Literal["scheduled", "manual"]:
        """The kind of event that started the run. A backfill's runs count as scheduled."""
        run_type = self.context["dag_run"].run_type
        return "manual" if getattr(run_type, "value", run_type) == "manual" else "scheduled"

    @property
    def interval(self) -> tuple[datetime, datetime] | None:
        """The run's data interval. That of a run by hand is Airflow's guess: only interval pipelines go by it."""
        dag_run = self.context["dag_run"]
        start, end = dag_run.data_interval_start, dag_run.data_interval_end
        if start is None or end is None or (self.kind == "manual" and not self.coordinator.graph.by_interval):
            return None
        return start, end

    @property
    def by_event(self) -> bool:
        """True if a watcher of the sources has asked for the run. Then it makes no checkpoint if nothing is new."""
        run_type = self.context["dag_run"].run_type
        return self.settings.by_event and getattr(run_type, "value", run_type) == "asset_triggered"

    @property
    def backfill(self) -> bool:
        """True if somebody requested exactly this interval. A schedule only requests new input."""
        run_type = self.context["dag_run"].run_type
        return bool(getattr(run_type, "value", run_type) == "backfill")

    @property
    def follows(self) -> bool:
        """True if the run makes no checkpoint, but follows a replay: its pipeline does not go by intervals."""
        return self.backfill and not self.coordinator.graph.by_interval

    @property
    def reprocess(self) -> bool:
        """True if an interval that is done is to be processed again: the run was cleared, by hand or by a backfill."""
        return bool(self.earlier)

    def refuse_unknown_conf(self) -> None:
        """Airflow checks the parameters that it knows and lets any other through: a mistyped one would do nothing."""
        known = set(self.context["params"].keys() if self.context.get("dag") is None else self.context["dag"].params)
        ours = {REQUEST}
        if self.backfill:
            ours |= {CONF_BACKFILL}
        if self.follows:
            ours |= {CONF_FROM}
        unknown = sorted(set(self.context["dag_run"].conf or {}) - known - ours)
        if unknown:
            elsewhere = NEED_MORE & set(unknown)
            page = "the DAG's page Checkpoints, or `tidegate`, does that for users who may edit the DAG"
            raise Invalid(
                f"the run was given {', '.join(map(repr, unknown))}, which this DAG does not know",
                expected=f"nothing but {', '.join(sorted(known))}",
                help=f"{page if elsewhere else 'trigger again without it'}; nothing has been planned",
                reason="UNKNOWN_CONF",
            )

    def abandon_reason(self, plan: Plan) -> str | None:
        """Why nobody else will end the checkpoint `plan`; a hint. Airflow not answering is no reason."""
        try:
            return run_gone_reason(plan)
        except Exception as error:
            log.warning("Cannot tell whether the run of checkpoint %s continues: %r", plan.id, error)
            return None

    def failed(self, why: str, *, of_environment: bool = False, quoted: str = "") -> None:
        """Record for `complete` why this task failed. Only people read the text; `of_environment` decides whether the
        failure counts against the pipeline. quoted: values of rows, which nobody else reads than whoever may read
        XComs."""
        with contextlib.suppress(Exception):
            self.context["ti"].xcom_push("failure", why[:2000])
            self.context["ti"].xcom_push("of_environment", of_environment)
            self.context["ti"].xcom_push("quoted", quoted[:2000] or None)

    def note(self, step: str, error: TidegateError) -> None:
        """Record the error as the pipeline's last one, as a hint for people. Not if another process is in charge
        (Fenced), nothing is wrong (Rejected), or only this run's conf is (UNKNOWN_CONF)."""
        from tidegate.checkpoint import troubles

        if not isinstance(error, Fenced | Rejected) and error.reason != "UNKNOWN_CONF":
            troubles.record_error(self.coordinator.ledger, self.run, step, error)
            self.measure()

    def measure(self) -> None:
        """Send the pipeline's metrics to whatever Airflow sends its own to."""
        from tidegate.dag import metrics

        metrics.emit(self)

    def skip(self, why: str) -> AirflowSkipException:
        """Return the exception for a task with nothing to do, and record the reason for `complete`."""
        self.failed(why)
        return AirflowSkipException(why)

    def pulled(self, task_id: str, key: str) -> Any:
        """Return the XCom of another task of the run, or None."""
        with contextlib.suppress(Exception):
            return self.context["ti"].xcom_pull(task_ids=task_id, key=key)
        return None

    def states(self) -> dict[str, str]:
        """The states of the run's tasks, by task id."""
        ti = self.context["ti"]
        found = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
        return {name: str(getattr(state, "value", state)) for name, state in found.items()}

    def is_job_running(self, plan: Plan, job: str) -> bool:
        """Return whether somebody may be working on the job in another run's checkpoint; a hint.

        If Airflow does not answer, somebody may be.
        """
        prefix, _, rest = plan.run.partition(":")
        dag_id, _, run_id = rest.partition(":")
        ti = self.context["ti"]
        if prefix != "airflow" or dag_id != ti.dag_id:
            return run_gone_reason(plan) is None
        try:
            found = ti.get_task_states(dag_id=dag_id, run_ids=[run_id]).get(run_id, {})
        except Exception as error:
            log.warning("Cannot tell whether job %s of checkpoint %s is at work: %r", job, plan.id, error)
            return True
        state = found.get(job_task(job), "gone")
        return str(getattr(state, "value", state)) not in ENDED

    # -- what the ledger knows -----------------------------------------------------------------------

    def last(self) -> int | None:
        """Return the run's checkpoint: the one that is open or completed, otherwise the last aborted one."""
        from tidegate.protocol import rules

        for run in (self.run, *self.earlier):
            view = self.coordinator.ledger.view(run)
            own = rules.own_entry(view, run)
            if own is not None:
                return own
            entries = [*view.entries, *(entry for entry in view.own_outside_view if not isinstance(entry, int))]
            last = max((entry.id for entry in entries if entry.plan.run == run), default=None)
            if last is not None:
                return last
        return None

    def name(self) -> str:
        """Return the name of the run at its trigger.

        If tasks are cleared while an interval is in progress, the run keeps the name: under a new one it would wait for
        itself.
        """
        last = self.last()
        entry = self.coordinator.ledger.entry(last) if last is not None and self.earlier else None
        return entry.plan.run if entry is not None and entry.open else self.run

    def end_unattended(self) -> None:
        """End the run's own checkpoint if its time is over before its jobs begin: the machine was off, or the run was
        cleared the next day. No failure of the pipeline, so that the run gets another one."""
        last = self.last()
        entry = self.coordinator.ledger.entry(last) if last is not None else None
        if entry is None or not entry.open or not jobs_without_ack(self.coordinator.ledger, entry):
            return
        if self.coordinator.ledger.expired(entry.plan):
            late = f"its run came back to it after its timeout of {entry.plan.timeout_s:g} s, and gets another one"
            self.coordinator.abort(entry.id, "RUN_GONE", late)

    def step(self, what: str) -> None:
        """Tell the task's log what happens now."""
        log.info("%s", what)
