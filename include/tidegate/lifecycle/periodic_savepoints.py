"""Periodic savepoints: every so often the last checkpoint gets a name by itself, and the last so many of these stay.

    savepoint_interval     how long after the last one the next is made
    savepoints_retained    how many of them stay; older ones are disposed of

They are savepoints like those that a person has named: the same pins, shown, verified, gone back to and disposed of by
the same commands. Only their names tell that nobody is asked before one goes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tidegate.config.keys import KEYS
from tidegate.errors import Invalid, Rejected
from tidegate.lifecycle.savepoint import create, dispose, savepoints

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.ledger.ledger import Ledger

__all__ = ["PERIODIC", "keep_periodically"]

PERIODIC = "periodic-"
"""How the names of these savepoints begin."""


def keep_periodically(pipeline: PipelineContext) -> str | None:
    """Name the last checkpoint that is on all tables, if it is time; answers with the name. Any process, any time.

    Two at the same moment make the same one, for its name is the checkpoint's number. What is one too many goes with
    the next. Without the setting nothing is made and none is disposed of.
    """
    settings = pipeline.limits.record()
    every, most = (
        KEYS[name].parse(settings.get(name, KEYS[name].default))
        for name in ("savepoint_interval", "savepoints_retained")
    )
    ledger = pipeline.ledger
    if every is None or not (newest := ledger.view().settled):
        return None
    own = [each for each in savepoints(ledger) if each.name.startswith(PERIODIC)]
    made = None
    if not own or (own[0].entry < newest and _apart(ledger, own[0].entry, newest) >= every):
        with contextlib.suppress(Rejected):  # retention was faster, of a checkpoint that is the last no more
            made = create(ledger, f"{PERIODIC}{newest}", newest, "tidegate")
            own.insert(0, made)
    for each in own[most:]:
        with contextlib.suppress(Invalid):  # somebody else has
            dispose(ledger, each.name)
    return made.name if made is not None else None


def _apart(ledger: Ledger, before: int, now: int) -> float:
    """Seconds between two checkpoints, by the store's clock. One that is gone was long ago."""
    older, newer = ledger.age_of_decision(before), ledger.age_of_decision(now)
    return float("inf") if older is None or newer is None else older - newer
