"""What a run is asked for: by its parameters, what whoever may trigger it may ask (a note, a name for its checkpoint);
by a request that the Checkpoints page has written down for it, what needs more (the end of time, to go back)."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from airflow.sdk import Param

from tidegate.config.keys import RETENTIONS
from tidegate.dag.tasks.task import NEED_MORE
from tidegate.errors import Rejected
from tidegate.records.names import airflow_run
from tidegate.records.records import REQUEST

if TYPE_CHECKING:
    from tidegate.dag.tasks.task import Task
    from tidegate.records.records import Act, Drain

__all__ = ["drain_of", "go_back", "is_named", "keep_word", "params", "refuse_taken"]

log = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9T-]{1,30}-[0-9a-f]{16}")


def params() -> dict[str, Param]:
    """What Airflow's form offers for a run by hand."""
    return {
        "note": Param(
            "", type="string", maxLength=1000, title="Note", description="Why this run: kept in the task's log."
        ),
        "savepoint": Param(
            "",
            type="string",
            pattern="^([a-z0-9][a-z0-9_-]{0,62})?$",
            title="Savepoint",
            description="A name for this run's checkpoint: it stays until it is disposed of. It waits for every job.",
        ),
    }


def requested(task: Task) -> Act | None:
    """What somebody has asked of just this run on the Checkpoints page, where it was asked whether they may.

    A task cannot know what whoever has triggered its run may do: Airflow tells it a name, and no rights. So what needs
    more than the right to trigger is no parameter. The page writes it down for a run that does not exist yet, and
    tells the run under which key; no other run can take it up, and this one does it once, however often it is tried.
    """
    dag_run = task.context["dag_run"]
    key = (dag_run.conf or {}).get(REQUEST)
    if key is None:
        return None
    act = task.coordinator.ledger.act(key) if isinstance(key, str) and _KEY.fullmatch(key) else None
    if act is None or act.action not in NEED_MORE or act.run != airflow_run(dag_run.dag_id, dag_run.run_id):
        raise Rejected(
            f"nobody has asked for {str(key)[:100]!r} to be done by this run",
            expected="a request that the DAG's page Checkpoints has written down for this run",
            help="ask there, or by `tidegate`; nothing has been planned",
            reason="NOT_ASKED_FOR",
        )
    return act


def drain_of(task: Task) -> Drain | None:
    """What the run's plan says of the end of time, if the run is to bring it."""
    from tidegate.records.records import Drain

    act = requested(task)
    return Drain(by=act.by, reason=_note(act)) if act is not None and act.action == "drain" else None


def is_named(task: Task) -> bool:
    """Whether the run's checkpoint is to be a savepoint: then it waits for every job, so that it can be copied."""
    return bool(task.context["params"].get("savepoint"))


def refuse_taken(task: Task) -> None:
    """A savepoint's name that another checkpoint has: said before anything is planned."""
    from tidegate.lifecycle.savepoint import check_free

    if name := task.context["params"].get("savepoint"):
        check_free(task.coordinator.ledger, name, task.last())


def go_back(task: Task) -> int | None:
    """Go back to a checkpoint, if the run was asked to. No more is undone than whoever asked was shown."""
    from tidegate.lifecycle import rollback

    act = requested(task)
    if act is None or act.action != "rollback":
        return None
    to, note = int(act.asked["to"]), _note(act)
    why = note or f"rolled back to checkpoint {to}"
    suspend = why if act.asked.get("suspend") else ""
    shown = [int(id) for id in act.asked.get("undone", ())]
    done = rollback.roll_back(
        task.coordinator, to, run=task.run, by=act.by, choices={}, reason=note, suspend=suspend, shown=shown
    )
    log.info("Rollback %s is decided: the next checkpoint goes on from %s", done.id, to)
    return done.id


def _note(act: Act) -> str:
    return str(act.asked.get("note", ""))


def keep_word(task: Task, id: int) -> None:
    """The run's checkpoint becomes a savepoint, and the end is the end, if that was asked for. Once, however often it
    is tried."""
    from tidegate.checkpoint import control
    from tidegate.history.table import remember
    from tidegate.lifecycle.savepoint import create

    ledger, given = task.coordinator.ledger, task.context["params"]
    if name := given.get("savepoint"):
        made = create(ledger, name, id, task.run, given.get("note") or "")
        log.info("Checkpoint %s is savepoint %s", made.entry, made.name)
    last = control.finished(ledger.view())
    if drain_of(task) is None or last is None or last.id != id:
        return
    log.info("Pipeline %s is finished, with checkpoint %s: later runs are skipped", ledger.pipeline, id)
    if task.settings.retention == RETENTIONS[-1]:
        control.cancel(ledger, task.run, f"it is finished, and retention is {RETENTIONS[-1]}", final=True)
        remember(ledger, task.coordinator.place.options)
        task.coordinator.retire()
        log.info("retention is %s: its checkpoints and states are removed, but for savepoints", RETENTIONS[-1])
