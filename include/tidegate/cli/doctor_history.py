"""The history's part of `tidegate doctor`: can all of it be read, and is it up to date? No checkpoint depends on it."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.checkpoint.history import HISTORY, journal_of
from tidegate.cli.doctor import Finding
from tidegate.cli.doctor_tables import torn
from tidegate.cli.targets import Target
from tidegate.errors import TidegateError

__all__ = ["check_history"]


def check_history(target: Target) -> Iterator[Finding]:
    """What there is to say about the table of what was settled."""
    settled = target.ledger.settled()
    if not settled:
        return
    advice = f"no checkpoint is harmed: move {target.ledger.home}/{HISTORY} away, and it begins anew with what is left"
    try:
        journal = journal_of(target.ledger, dict(target.settings.storage_options))
        last = journal.last(journal.opened())
        ids = journal.read(["id"])["id"].to_pylist()
    except TidegateError as error:
        yield Finding(target.name, "history", "bad", error.what, advice)
        return
    yield from torn(target, "log of history", journal.location)
    twice = len(ids) - len(set(ids))
    if twice:
        yield Finding(target.name, "history", "bad", f"{twice} checkpoints are in it more than once", advice)
    elif last < settled:
        told = f"it ends at checkpoint {last}, and {settled} is settled"
        yield Finding(target.name, "history", "note", told, "the next run writes what is missing; else see its log")
    else:
        yield Finding(target.name, "history", "ok", f"{len(ids):,} rows, up to checkpoint {last}")
