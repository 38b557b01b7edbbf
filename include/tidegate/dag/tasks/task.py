"""The context of one try of a task: its pipeline, its run, what Airflow and the ledger know of them, and its end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from tidegate.checkpoint.manifests import jobs_without_ack
from tidegate.config import Settings
from tidegate.dag.names import CONF_BACKFILL, job_task
from tidegate.dag.runs import ended_run_reason
from tidegate.errors import Fenced, Invalid, Rejected, TidegateError
from tidegate.execution.opening import open_coordinator
from tidegate.records.airflow_login import _ask_airflow_with
from tidegate.records.names import CONF_FROM, airflow_run
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
"""The time that a task has to end after Airflow has cancelled it."""


class Cancelled(KeyboardInterrupt):
    """Airflow cancels the task: it was marked, cleared or deleted, or its worker is shut down."""


def kill_unless_finished(done: threading.Event) -> None:
    """Kill this process unless its work is done soon.

    Raising Cancelled does not always end it: if it interrupts a call, closing a gRPC channel may hang forever, and in a
    finalizer Python ignores it. A kill is safe at every step, and Airflow tries again.
    """

    def wait() -> None:
        if not done.wait(END_S):
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True, name="kill-unless-done").start()


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
    """The run's earlier names, from before it was cleared, latest first."""

    @classmethod
    def open(cls, pipeline: Pipeline, project: str, context: Any) -> Task:
        """Open everything that a try needs. Tries share nothing."""
        _ask_airflow_with(find_connection)
        coordinator, settings = open_coordinator(pipeline, project)
        dag_run = context["dag_run"]
        if coordinator.graph.by_interval:
            cleared = dag_run.clear_number or 0
        else:
            cleared = 0
        names = []
        for number in range(cleared, -1, -1):
            names.append(airflow_run(dag_run.dag_id, dag_run.run_id, number))
        return cls(coordinator, settings, context, pipeline, project, names[0], tuple(names[1:]))

    # -- what Airflow knows --------------------------------------------------------------------------

    @property
    def kind(self) -> Literal["scheduled", "manual"]:
        """The kind of event that started the run. A backfill's runs count as scheduled."""
        run_type = self.context["dag_run"].run_type
        if getattr(run_type, "value", run_type) == "manual":
            return "manual"
        return "scheduled"

    @property
    def interval(self) -> tuple[datetime, datetime] | None:
        """The run's data interval. Airflow guesses that of a manual run, so only interval pipelines use it."""
        dag_run = self.context["dag_run"]
        start, end = dag_run.data_interval_start, dag_run.data_interval_end
        if start is None or end is None or (self.kind == "manual" and not self.coordinator.graph.by_interval):
            return None
        return start, end

    @property
    def by_event(self) -> bool:
        """True if a watcher of the sources triggered the run. It then makes no checkpoint without new input."""
        run_type = self.context["dag_run"].run_type
        return self.settings.by_event and getattr(run_type, "value", run_type) == "asset_triggered"

    @property
    def backfill(self) -> bool:
        """True if a run of Airflow's backfill: it asks for exactly this interval, a schedule only for new input."""
        run_type = self.context["dag_run"].run_type
        return bool(getattr(run_type, "value", run_type) == "backfill")

    @property
    def follows(self) -> bool:
        """True if the run makes no checkpoint, but follows a replay, because its pipeline is continuous."""
        return self.backfill and not self.coordinator.graph.by_interval

    @property
    def reprocess(self) -> bool:
        """True if a finished interval must be processed again: the run was cleared, by hand or by a backfill."""
        return bool(self.earlier)

    def refuse_unknown_conf(self) -> None:
        """Refuse parameters that the DAG does not declare. Airflow accepts them, and a mistyped one has no effect."""
        dag = self.context.get("dag")
        params = set(self.context["params"].keys() if dag is None else dag.params)
        internal = {REQUEST}
        if self.backfill:
            internal.add(CONF_BACKFILL)
        if self.follows:
            internal.add(CONF_FROM)
        unknown = sorted(set(self.context["dag_run"].conf or {}) - params - internal)
        if not unknown:
            return
        if NEED_MORE.isdisjoint(unknown):
            advice = "trigger again without it"
        else:
            advice = "the DAG's page Checkpoints, or `tidegate`, does that for users who may edit the DAG"
        raise Invalid(
            f"the run's conf has {', '.join(map(repr, unknown))}, which is not a parameter of this DAG",
            expected=f"nothing but {', '.join(sorted(params))}",
            help=f"{advice}; nothing has been planned",
            reason="UNKNOWN_CONF",
        )

    def abandon_reason(self, plan: Plan) -> str | None:
        """Return why no other process will end the checkpoint `plan`, as a hint. None if Airflow does not answer."""
        try:
            return ended_run_reason(plan)
        except Exception as error:
            log.warning("Could not check whether the run of checkpoint %s continues: %r", plan.id, error)
            return None

    def failed(self, why: str, *, of_environment: bool = False, quoted: str = "") -> None:
        """Record for `complete` why this task failed.

        Only people read the text. `of_environment` decides whether the failure counts against the pipeline.
        quoted: values of rows, for users who may read XComs.
        """
        with contextlib.suppress(Exception):
            self.context["ti"].xcom_push("failure", why[:2000])
            self.context["ti"].xcom_push("of_environment", of_environment)
            self.context["ti"].xcom_push("quoted", quoted[:2000] or None)

    def note(self, step: str, error: TidegateError) -> None:
        """Record the error as the pipeline's last one, as a hint for people.

        Skip it if another process has taken over (Fenced), nothing is wrong (Rejected), or only this run's conf is
        wrong (UNKNOWN_CONF).
        """
        from tidegate.checkpoint import troubles

        if not isinstance(error, Fenced | Rejected) and error.reason != "UNKNOWN_CONF":
            troubles.record_error(self.coordinator.ledger, self.run, step, error)
            self.measure()

    def measure(self) -> None:
        """Send the pipeline's metrics to Airflow's metrics back end."""
        from tidegate.dag import metrics

        metrics.emit(self)

    def emit_spans(self, id: int, *names: str) -> None:
        """Emit these parts of the checkpoint as spans below Airflow's span of the task, if Airflow traces."""
        from tidegate.history.traces import emit_parts

        emit_parts(self.coordinator.ledger, id, names)

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
        """Return the states of the run's tasks, by task id."""
        ti = self.context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
        return {name: str(getattr(state, "value", state)) for name, state in states.items()}

    def is_job_running(self, plan: Plan, job: str) -> bool:
        """Return whether the job may be running in another run's checkpoint, as a hint.

        True if Airflow does not answer.
        """
        prefix, _, airflow_id = plan.run.partition(":")
        dag_id, _, run_id = airflow_id.partition(":")
        ti = self.context["ti"]
        if prefix != "airflow" or dag_id != ti.dag_id:
            return ended_run_reason(plan) is None
        try:
            states = ti.get_task_states(dag_id=dag_id, run_ids=[run_id]).get(run_id, {})
        except Exception as error:
            log.warning("Could not check whether job %s of checkpoint %s is running: %r", job, plan.id, error)
            return True
        state = states.get(job_task(job), "gone")
        return str(getattr(state, "value", state)) not in ENDED

    # -- what the ledger knows -----------------------------------------------------------------------

    def last(self) -> int | None:
        """Return the run's checkpoint: the one that is open or completed, otherwise the last aborted one."""
        from tidegate.protocol import rules

        for run in (self.run, *self.earlier):
            view = self.coordinator.ledger.view(run)
            current = rules.entry_of_run(view, run)
            if current is not None:
                return current
            entries = [*view.entries, *(entry for entry in view.own_outside_view if not isinstance(entry, int))]
            last = max((entry.id for entry in entries if entry.plan.run == run), default=None)
            if last is not None:
                return last
        return None

    def name(self) -> str:
        """Return the run's name for planning.

        If tasks are cleared while their interval is in progress, the run keeps its earlier name: under a new one it
        would wait for itself.
        """
        last = self.last()
        entry = None
        if last is not None and self.earlier:
            entry = self.coordinator.ledger.entry(last)
        if entry is not None and entry.open:
            return entry.plan.run
        return self.run

    def end_unattended(self) -> None:
        """Abort the run's checkpoint if it expired before its jobs began, so that the run gets a new one.

        The machine was off, or the run was cleared a day later: that is no failure of the pipeline.
        """
        last = self.last()
        entry = self.coordinator.ledger.entry(last) if last is not None else None
        if entry is None or not entry.open or not jobs_without_ack(self.coordinator.ledger, entry):
            return
        if self.coordinator.ledger.expired(entry.plan):
            late = f"its run resumed after its timeout of {entry.plan.timeout_s:g} s, and gets a new checkpoint"
            self.coordinator.abort(entry.id, "RUN_GONE", late)

    def steps(self, of: str) -> Callable[[str], None]:
        """Return a function that writes each step to the task's log, after what it is a step of."""
        return lambda step: log.info("%s: %s", of, step)
