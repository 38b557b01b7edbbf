"""Errors of lookups that find nothing. Each is defined once, so that it reads the same wherever it is raised."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.ledger.log import EntryLog
from tidegate.records.records import PublishedTable

__all__ = [
    "how_to_make_one",
    "no_checkpoint_error",
    "no_such_checkpoint",
    "no_such_sink",
    "no_such_state",
    "without_versions",
]

NO_SUCH_CHECKPOINT = "NO_SUCH_CHECKPOINT"


def no_checkpoint_error(ledger: EntryLog, id: int) -> TidegateError:
    """The ledger has no entry with this id. The text lists the ids that exist."""
    ids = ledger.ids()
    existing = f"{ids[0]} to {ids[-1]}" if ids else "none yet"
    return no_such_checkpoint(
        ledger.pipeline,
        id,
        expected=f"one of its checkpoints: {existing}",
        help="older ones were deleted: the setting num_retained says how many completed ones are kept",
    )


def how_to_make_one(ledger: EntryLog) -> str:
    """The command that makes a checkpoint by hand. For an interval pipeline it includes an interval."""
    ids = ledger.ids()
    newest = ledger.entry(ids[-1]) if ids else None
    if newest is not None and newest.plan.by_interval:
        return "run it: tidegate run MODULE:PIPELINE --interval FROM/TO"
    return "run it: tidegate run MODULE:PIPELINE --checkpoints 1"


def no_such_checkpoint(
    pipeline: str,
    id: int,
    *,
    problem: str = "",
    expected: str = "a completed one that is retained",
    help: str = "",
    kind: type[TidegateError] = Rejected,
) -> TidegateError:
    """The checkpoint does not exist, or cannot be used.

    problem: why an existing one cannot be used, as in "was not completed".
    """
    what = f"pipeline {pipeline!r} has no checkpoint {id}"
    if problem:
        what = f"checkpoint {id} of pipeline {pipeline!r} {problem}"
    return kind(
        what,
        expected=expected,
        help=help or f"`tidegate list {pipeline}` shows them",
        reason=NO_SUCH_CHECKPOINT,
    )


def no_such_sink(pipeline: str, sink: str, checkpoint: int, tables: Iterable[str], *, help: str) -> Invalid:
    """No table of this sink had been published as of the checkpoint."""
    return Invalid(
        f"pipeline {pipeline!r} has no table of a sink {sink!r} as of checkpoint {checkpoint}",
        expected=" or ".join(tables) or "a sink that had received rows",
        help=help,
        reason="NO_SUCH_SINK",
    )


def without_versions(sink: str, table: PublishedTable) -> Invalid:
    """The sink's target is not a Delta table, so it cannot be read as of a checkpoint."""
    return Invalid(
        f"sink {sink!r} publishes to {table.uri}, which keeps no versions: it cannot be read as of a checkpoint",
        expected="a sink that publishes to a Delta table",
        help=f"read the target with its own client: it holds everything up to checkpoint {table.version}, and perhaps "
        "more",
        reason="NO_VERSIONS",
    )


def no_such_state(pipeline: str, operator: str, when: str, states: Iterable[str], *, help: str) -> Invalid:
    """The operator had no state at the time. when: as in "as of checkpoint 3"."""
    return Invalid(
        f"pipeline {pipeline!r} has no state of an operator {operator!r} {when}",
        expected=" or ".join(states) or "an operator that had stored state",
        help=help,
        reason="NO_SUCH_STATE",
    )
