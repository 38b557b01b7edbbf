"""Verify one pipeline: its records, its tables, the files of both, its history, and what its sources have skipped."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.errors import TidegateError
from tidegate.verify import files, history, ledger, tables
from tidegate.verify.finding import Finding, Subject

__all__ = ["verify_pipeline"]


def verify_pipeline(subject: Subject, repair: bool = False) -> Iterator[Finding]:
    """Yield the findings about one pipeline.

    repair: delete files of aborted checkpoints, and files that nothing names. The order of the checks makes this safe
    while the pipeline runs (C1 in docs/protocol.md): first which checkpoints are settled, then which files the records
    name, then which files are on storage. If a record is damaged, it is unknown which files are named, so files are not
    checked at all.
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
    """Return the entry up to which everything is decided and published, or 0 if that is unknown.

    This comes before all other checks: files that are written from now on belong to later entries. With 0, no file
    counts as left over.
    """
    try:
        return subject.ledger.view().settled
    except TidegateError:
        return 0
