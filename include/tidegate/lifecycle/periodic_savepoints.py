"""Periodic savepoints: name the last checkpoint at an interval, and retain the last few of these savepoints.

    savepoint_interval     the time between two periodic savepoints
    savepoints_retained    how many of them stay; older ones are disposed of

They are ordinary savepoints with the same pins, and the same commands show, verify, roll back to and dispose of them.
Only their names show that they are disposed of automatically.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tidegate.config.keys import KEYS
from tidegate.errors import Invalid, Rejected
from tidegate.lifecycle.savepoint import create, dispose, savepoints
from tidegate.records.records import Json

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.ledger.ledger import Ledger

__all__ = ["PERIODIC", "keep_periodically"]

PERIODIC = "periodic-"
"""The prefix of the names of periodic savepoints."""


def keep_periodically(pipeline: PipelineContext) -> str | None:
    """Create a periodic savepoint of the last published checkpoint, if one is due. Return its name.

    Any process may call this at any time: two concurrent calls create the same savepoint, because its name contains the
    checkpoint's number. A surplus one is disposed of by the next call. Without the setting nothing happens.
    """
    settings = pipeline.settings.record()
    interval_s = _parsed(settings, "savepoint_interval")
    num_retained = _parsed(settings, "savepoints_retained")
    ledger = pipeline.ledger
    newest = ledger.view().settled if interval_s is not None else 0
    if not newest:
        return None
    periodic = [savepoint for savepoint in savepoints(ledger) if savepoint.name.startswith(PERIODIC)]
    created = None
    last = periodic[0].entry if periodic else None
    if last is None or (last < newest and _seconds_between(ledger, last, newest) >= interval_s):
        with contextlib.suppress(Rejected):  # newer checkpoints completed in the meantime, and retention removed it
            created = create(ledger, f"{PERIODIC}{newest}", newest, "tidegate")
            periodic.insert(0, created)
    for savepoint in periodic[num_retained:]:
        with contextlib.suppress(Invalid):  # another process has disposed of it
            dispose(ledger, savepoint.name)
    return created.name if created is not None else None


def _parsed(settings: Json, name: str) -> Any:
    return KEYS[name].parse(settings.get(name, KEYS[name].default))


def _seconds_between(ledger: Ledger, before: int, now: int) -> float:
    """Return the seconds between two checkpoints, by the store's clock, or infinity if one of them is removed."""
    older, newer = ledger.age_of_decision(before), ledger.age_of_decision(now)
    return float("inf") if older is None or newer is None else older - newer
