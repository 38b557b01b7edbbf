"""Verify one pipeline: its records, its tables, the files of both, its history, and what its sources have skipped."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.errors import TidegateError
from tidegate.verify import files, history, ledger, tables
from tidegate.verify.finding import Finding, Subject

__all__ = ["verify_pipeline"]


def verify_pipeline(subject: Subject, repair: bool = False) -> Iterator[Finding]:
    """Yield what is found about one pipeline.

    repair: remove what aborted checkpoints left behind, and what nothing names. The order of the checks is what makes
    that safe while the pipeline runs (C1 in docs/protocol.md): first what is settled, then what records name, then
    what is on storage. If a record is damaged, nobody knows what is named, so files are not even looked at.
    """
    settled = _settled(subject)
    entries, findings = ledger.check_ledger(subject, repair)
    yield from findings
    yield from tables.check_tables(subject, entries, repair)
    if entries and all(finding.state != "bad" for finding in findings):
        yield from files.check_files(subject, entries, settled, repair)
        yield from history.check_history(subject)
        yield from history.check_sources(subject)


def _settled(subject: Subject) -> int:
    """Return the entry up to which everything is decided and published, before anything else is looked at.

    Whatever is written from then on is named by records that are read later, or by none that existed yet. 0: nobody
    can tell, so nothing counts as left over.
    """
    try:
        return subject.ledger.view().settled
    except TidegateError:
        return 0
