"""A run's parameters and requests.

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
    "refuse_used_savepoint_name",
    "requested",
    "roll_back_if_requested",
]

log = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9T-]{1,30}-[0-9a-f]{16}")


def _text(longest: int, title: str, description: str) -> Param:
    """Return an optional parameter. Its default is None, because Airflow's form treats "" as missing and would not let
    the user submit it."""
    return Param(None, type=["null", "string"], maxLength=longest, title=title, description=description)


def _name(title: str, description: str) -> Param:
    """Return an optional parameter for the name of a savepoint or a backfill."""
    pattern = "^([a-z0-9][a-z0-9_-]{0,62})?$"
    return Param(None, type=["null", "string"], pattern=pattern, title=title, description=description)


def params() -> dict[str, Param]:
    """Return the parameters in Airflow's form for a manual run."""
    return {
        "note": _text(
            1000,
            "Note",
            "Why this run is triggered. Kept in the task's log.",
        ),
        "savepoint": _name(
            "Savepoint",
            "A name for this run's checkpoint, which is then kept until you dispose of it. It waits for every job.",
        ),
    }


def backfill_params() -> dict[str, Param]:
    """Return the parameters in Airflow's form for a backfill: what `tidegate backfill` takes."""
    return {
        "from": _text(
            200,
            "Begin after",
            "A checkpoint's number, a savepoint's name, or a time (UTC) such as 2026-03-01 for the last checkpoint "
            "before it; or beginning. Empty: continue the existing backfill.",
        ),
        "name": _name(
            "Name",
            "A name for the backfill. Empty: a name with this run's date, or the existing backfill.",
        ),
        "to": _text(
            200,
            "Stop at",
            "Stop after this checkpoint, to inspect a partial result: it is compared with the tables as of that "
            "checkpoint. A later run without this field reads the rest.",
        ),
        "larger": Param(
            1,
            type="integer",
            minimum=1,
            title="Larger",
            description="Read this many times the sources' bounds in each checkpoint.",
        ),
        "cuts": Param(
            None,
            type=["null", "string"],
            enum=[None, "own", "recorded"],
            title="Cuts",
            description="own: read as much at once as the sources' bounds allow. recorded: one checkpoint for each "
            "of the pipeline's, with exactly its input, so that the same code returns the same rows. Empty: own, or "
            "the way in which the backfill began.",
        ),
        "drop_by_hand": Param(
            False,
            type="boolean",
            title="Drop changes by hand",
            description="Discard manual changes of state since then. Without this, such a backfill is refused.",
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Only report, in the task check, what would be read and changed, and which input is gone.",
        ),
        "diff": _text(
            200,
            "Rows that differ",
            "A sink. The task compare puts some of its rows that a swap would change into its XCom.",
        ),
        "pause": Param(
            0,
            type="number",
            minimum=0,
            title="Pause",
            description="Seconds to wait between two checkpoints of the backfill, to use less of Spark.",
        ),
        "note": _text(
            1000,
            "Note",
            "Why. Kept with the backfill.",
        ),
    }


def requested(task: Task, actions: frozenset[str] = NEED_MORE) -> Act | None:
    """Return the act that a user requested of this run on the Checkpoints page, which has checked their rights.

    A task cannot know the rights of the user who triggered its run: Airflow only passes it a name. So requests that
    need more than the right to trigger are not parameters. The page records the request for a run that does not exist
    yet, and passes its key to that run. No other run can use it, and this run performs it once, in any number of tries.
    """
    dag_run = task.context["dag_run"]
    key = (dag_run.conf or {}).get(REQUEST)
    if key is None:
        return None
    act = None
    if isinstance(key, str) and _KEY.fullmatch(key):
        act = task.coordinator.ledger.act(key)
    if act is None or act.action not in actions or act.run != airflow_run(dag_run.dag_id, dag_run.run_id):
        raise Rejected(
            f"no request {str(key)[:100]!r} is recorded for this run",
            expected="a request that the DAG's page Checkpoints has recorded for this run",
            help="make the request there, or use `tidegate`; nothing has been planned",
            reason="NOT_ASKED_FOR",
        )
    return act


def drain_of(task: Task) -> Drain | None:
    """Return the drain for the run's plan, if the run was requested to end event time."""
    from tidegate.records.records import Drain

    act = requested(task)
    if act is not None and act.action == "drain":
        return Drain(by=act.by, reason=_note(act))
    return None


def is_named(task: Task) -> bool:
    """Return whether the run's checkpoint becomes a savepoint: it then waits for every job, so that it can be
    copied."""
    return bool(task.context["params"].get("savepoint"))


def rank_of(task: Task) -> Rank:
    """Return how urgent the run's checkpoint is."""
    if is_named(task):
        return "savepoint"
    return "manual" if task.kind == "manual" else "periodic"


def refuse_used_savepoint_name(task: Task) -> None:
    """Raise Rejected, before anything is planned, if another savepoint has the requested name."""
    from tidegate.lifecycle.savepoint import check_free

    if name := task.context["params"].get("savepoint"):
        check_free(task.coordinator.ledger, name, task.last())


def roll_back_if_requested(task: Task) -> int | None:
    """Roll back, if that was requested. Undoes only the checkpoints that the requester was shown."""
    from tidegate.lifecycle import rollback
    from tidegate.lifecycle.rollback_preview import How

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
    log.info("Rollback %s is decided: the next checkpoint continues from checkpoint %s", rolled_back.id, to)
    return rolled_back.id


def _note(act: Act) -> str:
    return str(act.parameters.get("note", ""))


def carry_out_requests(task: Task, id: int) -> None:
    """Make the checkpoint a savepoint and finish a drained pipeline, if requested: each once, in any number of
    tries."""
    from tidegate.checkpoint import suspension
    from tidegate.history.table import remember
    from tidegate.lifecycle import control
    from tidegate.lifecycle.savepoint import create

    ledger, run_params = task.coordinator.ledger, task.context["params"]
    name = run_params.get("savepoint")
    if name:
        savepoint = create(ledger, name, id, task.run, run_params.get("note") or "")
        log.info("Checkpoint %s is savepoint %s", savepoint.entry, savepoint.name)
    last = suspension.finished(ledger.view())
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
        log.info("retention is %s: its checkpoints and states are removed, except savepoints", RETENTIONS[-1])
