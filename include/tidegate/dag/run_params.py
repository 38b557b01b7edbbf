"""The requests to a run.

Anyone who may trigger a run can set its parameters (a note, a name for its checkpoint). Requests that need more rights
(to drain, to roll back) are records that the Checkpoints page creates for a run.
"""

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
    from tidegate.records.records import Act, Drain, Rank

__all__ = [
    "backfill_params",
    "carry_out_requests",
    "drain_of",
    "is_named",
    "params",
    "rank_of",
    "refuse_taken_savepoint",
    "requested",
    "roll_back_if_requested",
]

log = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9T-]{1,30}-[0-9a-f]{16}")


def _text(longest: int, title: str, description: str) -> Param:
    """Return a parameter that may be left empty. None and not "": Airflow's form takes an empty text for a missing one,
    and lets nobody press its button."""
    return Param(None, type=["null", "string"], maxLength=longest, title=title, description=description)


def _name(title: str, description: str) -> Param:
    """Return the same for a name of something that tidegate keeps."""
    pattern = "^([a-z0-9][a-z0-9_-]{0,62})?$"
    return Param(None, type=["null", "string"], pattern=pattern, title=title, description=description)


def params() -> dict[str, Param]:
    """Return the parameters in Airflow's form for a manual run."""
    return {
        "note": _text(
            1000,
            "Note",
            "Why this run: kept in the task's log.",
        ),
        "savepoint": _name(
            "Savepoint",
            "A name for this run's checkpoint: it stays until it is disposed of. It waits for every job.",
        ),
    }


def backfill_params() -> dict[str, Param]:
    """Return the parameters in Airflow's form for a backfill: what `tidegate backfill` takes."""
    return {
        "from": _text(
            200,
            "Begin after",
            "A checkpoint's number, a savepoint's name, or the last checkpoint before a time (UTC), such "
            "as 2026-03-01; or beginning. Empty: the backfill that there is continues.",
        ),
        "name": _name(
            "Name",
            "A name for the backfill. Empty: one with the date of this run, or the name of the one that there is.",
        ),
        "to": _text(
            200,
            "Stop at",
            "For a look at a part: stop when it has read what this checkpoint had, and compare with the "
            "tables as of then. Without it the next run reads the rest.",
        ),
        "larger": Param(
            1,
            type="integer",
            minimum=1,
            title="Larger",
            description="Read so many times as much in a checkpoint as the sources' bounds allow.",
        ),
        "cuts": Param(
            None,
            type=["null", "string"],
            enum=[None, "own", "recorded"],
            title="Cuts",
            description="own: read as much at once as the sources' bounds allow. recorded: one checkpoint for each "
            "that the pipeline has made, with exactly its input, so that the same code gives the same rows. Empty: "
            "own, or as the backfill has begun.",
        ),
        "drop_by_hand": Param(
            False,
            type="boolean",
            title="Drop changes by hand",
            description="Lose what somebody has changed in states by hand since then. Without it that is refused.",
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Only tell, in the task check, what would be read and changed, and what is gone.",
        ),
        "diff": _text(
            200,
            "Rows that differ",
            "A sink: some of its rows that differ now and after a swap are put into the XCom of compare.",
        ),
        "pause": Param(
            0,
            type="number",
            minimum=0,
            title="Pause",
            description="Seconds to wait between two checkpoints of the backfill, so that it takes less of Spark.",
        ),
        "note": _text(
            1000,
            "Note",
            "Why: kept with the backfill.",
        ),
    }


def requested(task: Task, actions: frozenset[str] = NEED_MORE) -> Act | None:
    """Return the act that somebody requested of this run on the Checkpoints page, which has checked their rights.

    A task cannot know the rights of the user who triggered its run: Airflow passes it a name only. So requests that
    need more than the right to trigger are no parameters. The page records the request for a run that does not exist
    yet, and passes its key to that run. No other run can take it up, and this run performs it once, however often it is
    tried.
    """
    dag_run = task.context["dag_run"]
    key = (dag_run.conf or {}).get(REQUEST)
    if key is None:
        return None
    act = task.coordinator.ledger.act(key) if isinstance(key, str) and _KEY.fullmatch(key) else None
    if act is None or act.action not in actions or act.run != airflow_run(dag_run.dag_id, dag_run.run_id):
        raise Rejected(
            f"nobody has asked for {str(key)[:100]!r} to be done by this run",
            expected="a request that the DAG's page Checkpoints has written down for this run",
            help="ask there, or by `tidegate`; nothing has been planned",
            reason="NOT_ASKED_FOR",
        )
    return act


def drain_of(task: Task) -> Drain | None:
    """Return the drain for the run's plan, if the run was requested to end event time."""
    from tidegate.records.records import Drain

    act = requested(task)
    return Drain(by=act.by, reason=_note(act)) if act is not None and act.action == "drain" else None


def is_named(task: Task) -> bool:
    """Return whether the run's checkpoint becomes a savepoint: then it waits for every job, so that it can be
    copied."""
    return bool(task.context["params"].get("savepoint"))


def rank_of(task: Task) -> Rank:
    """Return how urgent the run's checkpoint is."""
    return "savepoint" if is_named(task) else "manual" if task.kind == "manual" else "periodic"


def refuse_taken_savepoint(task: Task) -> None:
    """Raise Rejected, before anything is planned, if another checkpoint has the name of the requested savepoint."""
    from tidegate.lifecycle.savepoint import check_free

    if name := task.context["params"].get("savepoint"):
        check_free(task.coordinator.ledger, name, task.last())


def roll_back_if_requested(task: Task) -> int | None:
    """Roll back, if the run was requested to. Undoes no checkpoints but those that the requester was shown."""
    from tidegate.lifecycle import rollback
    from tidegate.lifecycle.rollback_proposal import How

    act = requested(task)
    if act is None or act.action != "rollback":
        return None
    to, note = int(act.parameters["to"]), _note(act)
    why = note or f"rolled back to checkpoint {to}"
    suspend = why if act.parameters.get("suspend") else ""
    shown = [int(id) for id in act.parameters.get("expected_undone", ())]
    choices: dict[str, How] = dict.fromkeys(act.parameters.get("keep_rows_of", ()), "keep")
    rolled_back = rollback.roll_back(
        task.coordinator, to, run=task.run, by=act.by, choices=choices, reason=note, suspend=suspend, shown=shown
    )
    log.info("Rollback %s is decided: the next checkpoint continues from %s", rolled_back.id, to)
    return rolled_back.id


def _note(act: Act) -> str:
    return str(act.parameters.get("note", ""))


def carry_out_requests(task: Task, id: int) -> None:
    """Perform the requests that follow a checkpoint: make it a savepoint, and finish a drained pipeline.

    Each is performed once, however often the task is tried.
    """
    from tidegate.checkpoint import control
    from tidegate.history.table import remember
    from tidegate.lifecycle.savepoint import create

    ledger, run_params = task.coordinator.ledger, task.context["params"]
    name = run_params.get("savepoint")
    if name:
        savepoint = create(ledger, name, id, task.run, run_params.get("note") or "")
        log.info("Checkpoint %s is savepoint %s", savepoint.entry, savepoint.name)
    last = control.finished(ledger.view())
    if drain_of(task) is None or last is None or last.id != id:
        return
    log.info("Pipeline %s is finished, with checkpoint %s: later runs are skipped", ledger.pipeline, id)
    if task.settings.retention == RETENTIONS[-1]:
        try:
            control.cancel(ledger, task.run, f"it is finished, and retention is {RETENTIONS[-1]}", final=True)
        except Rejected as error:
            if error.reason != "BACKFILL_IN_PROGRESS":
                raise
            log.warning("Nothing is removed, though retention is %s: %s", RETENTIONS[-1], error)
            return
        remember(ledger, task.coordinator.place.options)
        task.coordinator.retire()
        log.info("retention is %s: its checkpoints and states are removed, but for savepoints", RETENTIONS[-1])
