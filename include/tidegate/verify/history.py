"""Verify what is known of a pipeline's past: the history table, and what sources and intervals have left out."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.checkpoint.skipping import gaps, making_up, never_read
from tidegate.errors import TidegateError
from tidegate.history.schemas.drift import drift_of
from tidegate.history.table import HISTORY, journal_of
from tidegate.protocol.view import Entry
from tidegate.verify.finding import Finding, Subject
from tidegate.verify.tables import check_log_checkpoints

__all__ = ["check_history", "check_sources"]

_MAX_LISTED = 5


def check_history(subject: Subject) -> Iterator[Finding]:
    """Check the history table: it has each settled checkpoint once."""
    settled = subject.ledger.settled()
    if not settled:
        return
    advice = f"no checkpoint is harmed: move {subject.ledger.home}/{HISTORY} away, and it begins anew with what is left"
    try:
        journal = journal_of(subject.ledger, subject.settings.storage_options)
        last = journal.last(journal.opened())
        ids = journal.read(["id"])["id"].to_pylist()
    except TidegateError as error:
        yield Finding(subject.name, "history", "bad", error.what, advice)
        return
    yield from check_log_checkpoints(subject, "log of history", journal.location)
    duplicates = len(ids) - len(set(ids))
    if duplicates:
        yield Finding(subject.name, "history", "bad", f"{duplicates} checkpoints are in it more than once", advice)
    elif last < settled:
        detail = f"it ends at checkpoint {last}, and {settled} is settled"
        yield Finding(subject.name, "history", "note", detail, "the next run writes what is missing; else see its log")
    else:
        yield Finding(subject.name, "history", "ok", f"{len(ids):,} rows, up to checkpoint {last}")


def check_sources(subject: Subject) -> Iterator[Finding]:
    """Report what each source has skipped, as of the newest plan, and which intervals were left out."""
    view = subject.ledger.view()
    if missed := gaps(subject.ledger, view):
        listed = ", ".join(map(str, missed[:_MAX_LISTED])) + (", …" if len(missed) > _MAX_LISTED else "")
        detail = f"no checkpoint has made {listed} (UTC)"
        yield Finding(subject.name, "intervals", "bad", detail, making_up(subject.name, missed))
    for name, unread in never_read(view).items():
        yield Finding(subject.name, f"source {name}", "bad", unread.what, unread.help)
    if view.last_completed is not None:
        yield from _keys_without_column(subject, view.last_completed)


def _keys_without_column(subject: Subject, last: Entry) -> Iterator[Finding]:
    """Report new keys of the last completed checkpoint that stay in the rescue column, though keys may become
    columns."""
    for name, part in last.plan.sources.items():
        drifts = [acked.ack.drift[name] for acked in last.acks.values() if name in acked.ack.drift]
        if part.schema is None or not part.schema.evolves or not drifts:
            continue
        drift = drift_of(part.schema, drifts[0], last.id)
        staying = [misfit for misfit in drift.misfits if misfit.why_not]
        if staying:
            listed = "; ".join(f"{misfit.path}: {misfit.why_not}" for misfit in staying[:_MAX_LISTED])
            more = "; …" if len(staying) > _MAX_LISTED or drift.more else ""
            detail = f"keys of checkpoint {last.id} that do not become columns: {listed}{more}"
            help = "their values are in the rescue column. To have them as columns, declare them in the schema"
            yield Finding(subject.name, f"source {name}", "note", detail, help)
