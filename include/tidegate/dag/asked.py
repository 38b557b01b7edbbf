"""What a run's parameters ask for: a name for its checkpoint, that it is the last one, or to go back to one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow.sdk import Param

from tidegate.config.keys import RETENTIONS

if TYPE_CHECKING:
    from tidegate.dag.task import Task
    from tidegate.model.records import Drain

__all__ = ["drain_of", "go_back", "is_named", "keep_word", "params", "refuse_taken"]

log = logging.getLogger(__name__)


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
        "drain": Param(
            False,
            type="boolean",
            title="Drain",
            description="This run's checkpoint is the last one: event time comes to its end, windows and timers fire. "
            "Then the pipeline is finished, and later runs are skipped.",
        ),
        "rollback": Param(
            None,
            type=["null", "object"],
            properties={
                "to": {"type": "integer", "minimum": 1},
                "undone": {"type": "array", "items": {"type": "integer"}},
                "suspend": {"type": "boolean"},
            },
            required=["to", "undone"],
            additionalProperties=False,
            title="Rollback",
            description="Instead of making a checkpoint, go back to one. The page of the checkpoint asks for this, and "
            "shows first what no longer counts then.",
        ),
    }


def drain_of(task: Task) -> Drain | None:
    """What the run's plan says of the end of time, if the run is to bring it."""
    from tidegate.model.records import Drain

    given = task.context["params"]
    return Drain(by=task.run, reason=given.get("note") or "") if given.get("drain") else None


def is_named(task: Task) -> bool:
    """Whether the run's checkpoint is to be a savepoint: then it waits for every job, so that it can be copied."""
    return bool(task.context["params"].get("savepoint"))


def refuse_taken(task: Task) -> None:
    """A savepoint's name that another checkpoint has: said before anything is planned."""
    from tidegate.checkpoint.savepoint import check_free

    if name := task.context["params"].get("savepoint"):
        check_free(task.coordinator.ledger, name, task.last())


def go_back(task: Task) -> int | None:
    """Go back to a checkpoint, if the run was asked to. No more is undone than whoever asked was shown."""
    from tidegate.checkpoint import rollback

    given = task.context["params"].get("rollback")
    if not given:
        return None
    to, note = int(given["to"]), task.context["params"].get("note") or ""
    why = note or f"rolled back to checkpoint {to}"
    made = task.last()
    if made is None:
        _refuse_more(task, to, given["undone"])
    suspend = why if given.get("suspend") else ""
    done = rollback.roll_back(
        task.coordinator, to, run=task.run, by=_who(task), choices={}, reason=note, suspend=suspend
    )
    log.info("Rollback %s is decided: the next checkpoint goes on from %s", done.id, to)
    return done.id


def _who(task: Task) -> str:
    """Who has triggered the run, if Airflow tells."""
    user = getattr(task.context["dag_run"], "triggering_user_name", None)
    return f"{user} in Airflow" if user else task.run


def _refuse_more(task: Task, to: int, undone: list[int]) -> None:
    """What was completed after somebody had looked is not undone unseen."""
    from tidegate.checkpoint.proposal import examine
    from tidegate.errors import Rejected

    more = sorted(set(examine(task.coordinator, to, {}).undone) - set(undone))
    if more:
        raise Rejected(
            f"checkpoint {', '.join(map(str, more))} would be undone, too: it has been completed since somebody looked",
            expected="what whoever asked was shown",
            help="look again at what it will do, then decide",
            reason="MORE_SINCE",
        )


def keep_word(task: Task, id: int) -> None:
    """The run's checkpoint becomes a savepoint, and the end is the end, if that was asked for. Once, however often it
    is tried."""
    from tidegate.checkpoint import control
    from tidegate.checkpoint.history import remember
    from tidegate.checkpoint.savepoint import create

    ledger, given = task.coordinator.ledger, task.context["params"]
    if name := given.get("savepoint"):
        made = create(ledger, name, id, task.run, given.get("note") or "")
        log.info("Checkpoint %s is savepoint %s", made.entry, made.name)
    last = control.finished(ledger.view())
    if not given.get("drain") or last is None or last.id != id:
        return
    log.info("Pipeline %s is finished, with checkpoint %s: later runs are skipped", ledger.pipeline, id)
    if task.settings.retention == RETENTIONS[-1]:
        control.cancel(ledger, task.run, f"it is finished, and retention is {RETENTIONS[-1]}", final=True)
        remember(ledger, task.coordinator.place.options)
        task.coordinator.retire()
        log.info("retention is %s: its checkpoints and states are removed, but for savepoints", RETENTIONS[-1])
