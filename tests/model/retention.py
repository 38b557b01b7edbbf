"""Retention in the model: it keeps the last completed checkpoint, and what others need (docs/protocol.md, G1, G2)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.lines import rollbacks
from tests.model.stepper import Step, Stepper, put
from tests.model.world import RETENTION
from tidegate.protocol.backfill import spared_for_lines
from tidegate.protocol.view import rollback_of
from tidegate.records.records import Pin


def look(at: Stepper) -> Iterator[Step]:
    """The lowest entry that nobody needs."""
    for id, fact in enumerate(at.log, 1):
        left = fact.retired and at.broken("delete at once what has a tombstone") and not is_pinned(at, id)
        if not fact.gone and (left or may_go(at, id)):
            yield f"will retire {id}", at.go(("GT", id))
            return


def may_go(at: Stepper, id: int) -> bool:
    """G1, as of now."""
    undoing, settled = rollbacks(at.log), at.state.hint
    counting = [
        below for below in range(1, settled + 1) if at.log[below - 1].made and rollback_of(below, undoing) is None
    ]
    if not counting or id >= counting[-1]:
        return False
    if is_pinned(at, id):
        return False
    lines = [
        Pin(attempt="x", created="", owner="line", kind="line", entry=entry, manifest="")
        for owner, entry in at.state.pins
        if owner[0] == "line"
    ]
    spared = spared_for_lines(lines) if not at.broken("the line's pin spares its origin alone") else None
    return spared is None or id < spared


def is_pinned(at: Stepper, id: int) -> bool:
    """Whether anybody has pinned this very entry."""
    return any(pinned == id for _, pinned in at.state.pins)


def claim(at: Stepper, id: int) -> Iterator[Step]:
    """The tombstone."""
    log = put(at.log, id, at.log[id - 1]._replace(retired=True))
    if at.log[id - 1].retired and at.broken("delete at once what has a tombstone"):
        yield f"finds the tombstone of {id}", at.go(("GX", id))
        return
    yield f"creates the tombstone of {id}", at.go(("GR", id), log=log)


def look_again(at: Stepper, id: int) -> Iterator[Step]:
    """G2: then the pins and the log once more."""
    if may_go(at, id):
        yield f"finds that nobody needs {id}", at.go(("GX", id))
    else:
        yield f"leaves {id}", at.go(RETENTION)


def delete(at: Stepper, id: int) -> Iterator[Step]:
    """What the entry alone names, and its records."""
    log = put(at.log, id, at.log[id - 1]._replace(gone=True))
    yield f"deletes {id}", at.go(RETENTION, log=log)
