"""Deadlines of Airflow's for the runs of a pipeline that promises fresh tables: somebody looks while a run is held up.

Tasks look at promises, but only when a try begins. If a run waits or hangs, no try begins, and its tables get old. So
each run has deadlines, as long after it was queued as the promises allow. If it has not succeeded by then, Airflow's
scheduler notes that, and its triggerer calls `look_from_triggerer`. That looks in a process of its own, which loads the
DAG file for its notifiers: the triggerer is one process for everybody's triggers.

A run that misses its deadline proves nothing about a table: another run may have renewed it. So the process looks at
the ledger as tasks do, and tells people of what is stale by then, unless they have been told. Runs of Airflow's
backfill wait for a replay, which may take long, so nobody looks for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import runpy
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from airflow.sdk import DAG

from tidegate.config import Settings, duration_text
from tidegate.dag.names import TRIGGER
from tidegate.dag.tasks.notices import Notifiers, send_promise_notices
from tidegate.errors import Invalid, Unavailable
from tidegate.execution.opening import airflow_logins, open_coordinator
from tidegate.pipeline import Graph
from tidegate.records.airflow_login import AirflowConnection, connection_id, variables_of
from tidegate.versions.airflow import (
    DAG_MODULE_PREFIX,
    can_import_airflow,
    find_connection_from_trigger,
    run_deadline,
)

__all__ = ["look_at_promises", "look_from_triggerer", "promise_deadlines"]

PATIENCE_S: Final = 300.0
"""How long the process that looks may take: it imports the DAG file, and notifiers wait for servers."""
_AT_ONCE: Final = asyncio.Semaphore(2)
"""How many processes may look at one time. When Airflow's scheduler comes back, all deadlines pass at one moment."""
_BETWEEN: Final = "\n"
"""Between several names in one argument of a callback: Airflow hashes these, so they are no lists."""


def promise_deadlines(
    graph: Graph, notifiers: Notifiers, settings: Settings, file: str, period_s: float
) -> Sequence[Any]:
    """Return the deadlines of each run: one for each promise, if anybody wants to hear that it is broken.

    period_s: for an interval pipeline, how long an interval is. Without the one that a run makes, the table ends where
    that interval begins: it is older than it by this much when the run is queued.
    """
    if "stale" not in notifiers:
        return []
    logins = {connection_id(name) for name in airflow_logins(settings, [])}
    logins.update(_logins_of(notifiers))
    arguments = {
        "file": file,
        "dag_id": graph.name,
        "logins": _BETWEEN.join(sorted(logins)),
        "folders": _BETWEEN.join(_import_folders(file)),
    }
    deadlines = []
    for seconds in sorted(set(graph.promises.values())):
        deadline = run_deadline(
            f"{graph.name} is at most {duration_text(seconds)} old",
            timedelta(seconds=max(seconds - period_s, 0.0)),
            f"{look_from_triggerer.__module__}.{look_from_triggerer.__qualname__}",
            arguments,
        )
        if deadline is not None:
            deadlines.append(deadline)
    return deadlines


def _logins_of(notifiers: Notifiers) -> Iterator[str]:
    """Yield the names of the connections that notifiers name, such as `smtp_conn_id`."""
    for notifier in (*notifiers.get("stale", ()), *notifiers.get("fresh", ())):
        for name, value in getattr(notifier, "__dict__", {}).items():
            if name.endswith("conn_id") and isinstance(value, str) and value:
                yield value


def _import_folders(file: str) -> list[str]:
    """Return the folders above the DAG file from which this process imports modules, such as that of DAG files."""
    above = {os.fspath(folder) for folder in Path(file).absolute().parents}
    return [folder for folder in sys.path if folder and os.path.abspath(folder) in above]


async def look_from_triggerer(file: str, dag_id: str, logins: str, folders: str, context: Any = None) -> str:
    """Tell people of tables that are too old, from a process of its own. Airflow calls it after a deadline."""
    run = (context or {}).get("dag_run") or {}
    if str(run.get("run_type", "")) == "backfill":
        return "a run of a backfill: nobody looks"
    path = [*sys.path, *folders.split(_BETWEEN)]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, path)), **await _login_variables(logins)}
    request = json.dumps([file, dag_id, context or {}], default=str).encode()  # it has times and ids of Airflow's
    async with _AT_ONCE:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__), stdin=PIPE, env=can_import_airflow({**os.environ, **own})
        )
        try:
            await asyncio.wait_for(process.communicate(request), PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    if process.returncode:
        raise Unavailable(
            f"the promises of DAG {dag_id!r} could not be looked at: the process has ended with {process.returncode}",
            help="the triggerer's log has its traceback. It needs the DAG file and what that imports, as tasks do",
            reason="LOOK_FAILED",
        )
    return "looked"


async def _login_variables(logins: str) -> dict[str, str]:
    """Return the variables by which the process finds these connections. One that is not there is left to whoever
    needs it."""
    connections = []
    for id in filter(None, logins.split(_BETWEEN)):
        found = await find_connection_from_trigger(id)
        if found is not None:
            connections.append(AirflowConnection.from_airflow(id, found))
    return variables_of(connections)


def look_at_promises(file: str, dag_id: str, context: Any = None) -> None:
    """Tell people of tables that are too old, through the notifiers of a DAG file."""
    for value in runpy.run_path(file, run_name=f"{DAG_MODULE_PREFIX}promises").values():
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


if __name__ == "__main__":
    look_at_promises(*json.load(sys.stdin))
