"""Deadlines of Airflow's for the runs of a pipeline that promises fresh tables: somebody looks while a run is held up.

Tasks look at promises, but only when a try begins. If a run waits or hangs, no try begins, and its tables get old. So
each run has deadlines, as long after it was queued as the promises allow. If it has not succeeded by then, Airflow's
scheduler shows that on the run, and has `look_at_promises` called in a process of its own.

A run that misses its deadline proves nothing about a table: another run may have renewed it. So this looks at the
ledger as tasks do, and tells people of what is stale by then, unless they have been told. Runs of Airflow's backfill
wait for a replay, which may take long, so nobody looks for them.
"""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from tidegate.config import duration_text
from tidegate.dag.names import TRIGGER
from tidegate.dag.tasks.notices import Notifiers, send_promise_notices
from tidegate.errors import Invalid
from tidegate.execution.opening import open_coordinator
from tidegate.pipeline import Graph
from tidegate.versions.airflow import run_deadline

__all__ = ["look_at_promises", "promise_deadlines"]


def promise_deadlines(graph: Graph, notifiers: Notifiers, file: str) -> Sequence[Any]:
    """Return the deadlines of each run: one for each promise, if anybody wants to hear that it is broken."""
    if graph.by_interval or "stale" not in notifiers:
        return []
    deadlines = []
    for seconds in sorted(set(graph.promises.values())):
        deadline = run_deadline(
            f"{graph.name} is at most {duration_text(seconds)} old",
            timedelta(seconds=seconds),
            f"{look_at_promises.__module__}.{look_at_promises.__qualname__}",
            {"file": file, "dag_id": graph.name},
        )
        if deadline is not None:
            deadlines.append(deadline)
    return deadlines


def look_at_promises(file: str, dag_id: str, context: Any = None) -> None:
    """Tell people of tables that are too old, through the notifiers of a DAG file. Airflow calls it."""
    run = (context or {}).get("dag_run") or {}
    if str(run.get("run_type", "")) == "backfill":
        return
    for value in runpy.run_path(file).values():
        if isinstance(value, DAG) and value.dag_id == dag_id and value.has_task(TRIGGER):
            task: Any = value.get_task(TRIGGER)
            coordinator, settings = open_coordinator(task.pipeline, task.project)
            send_promise_notices(
                task.notifiers,
                context or {},
                coordinator.ledger,
                settings.tolerable_failed_checkpoints,
                again_if_failed=True,  # a notifier may need a task, which there is not
            )
            return
    raise Invalid(
        f"a deadline of DAG {dag_id!r} has passed, but {file} does not declare it any more",
        expected=f"a variable with the DAG {dag_id!r}",
        help="nothing to do: tasks of the DAG look at its promises, too",
        reason="NO_SUCH_PIPELINE",
    )
