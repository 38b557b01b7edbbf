"""Makes a swap reversible: the pipeline's last checkpoint before it becomes a savepoint, under a new name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from tidegate.errors import Rejected, TidegateError
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import savepoint
from tidegate.records.names import MAX_NAME_LENGTH
from tidegate.records.records import Plan

__all__ = ["create_undo_savepoint", "next_name"]


def next_name(ledger: Ledger, line: str) -> str:
    """Return the name that the checkpoint before a swap of this backfill would get now."""
    used_names = {existing.name for existing in savepoint.savepoints(ledger)}
    return next(name for name in _names(line) if name not in used_names)


def create_undo_savepoint(ledger: Ledger, swap: Plan) -> str | None:
    """Name the checkpoint that a decided swap follows, if it has no such name yet. Return the name, or None if there
    was no checkpoint, or it could not be named. Any process may repeat this."""
    assert swap.rollback is not None
    assert swap.rollback.line is not None
    if swap.base is None:
        return None
    line = swap.rollback.line.name
    for name in _names(line):
        try:
            return savepoint.create(ledger, name, swap.base, swap.rollback.by, f"before backfill {line}").name
        except Rejected as error:
            if error.reason != "NAME_TAKEN":
                return None
        except TidegateError:
            return None
    raise AssertionError("unreachable")


def _names(line: str) -> Iterator[str]:
    for number in count(1):
        suffix = f"-{number}" if number > 1 else ""
        yield f"before-{line}"[: MAX_NAME_LENGTH - len(suffix)] + suffix
