"""Reports of kept proposals, and what has changed since one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.errors import Invalid
from tidegate.ledger.ledger import stamp
from tidegate.proposal.report import ProposalReport, SinceLast
from tidegate.records import typed
from tidegate.records.records import BackfillRecord, ProposalReported

if TYPE_CHECKING:
    from tidegate.ledger.ledger import Ledger

__all__ = ["LAST", "find_report", "list_kept_proposals", "since", "store_report"]

LAST = "LAST"
_COUNTS = ("rows_before", "rows_after", "added", "removed", "changed")


def store_report(ledger: Ledger, name: str, report: ProposalReport) -> None:
    """Store the report of a kept proposal in the ledger."""
    ledger.hint_proposal_reported(name, ProposalReported(**stamp(seams.new_id()), report=typed.document_of(report)))


def list_kept_proposals(ledger: Ledger) -> list[BackfillRecord]:
    """Return the proposals that were kept, the oldest first: those with a report. The others are being made, or are
    what a killed process has left."""
    kept = [line for line in ledger.proposals() if ledger.proposal_reported(line.name) is not None]
    return sorted(kept, key=lambda line: (line.created, line.name))


def find_report(ledger: Ledger, name: str) -> tuple[str, str, ProposalReport]:
    """Return a kept proposal's name, when its report was made, and the report. LAST: the newest of all."""
    kept = {line.name: reported for line in ledger.proposals() if (reported := ledger.proposal_reported(line.name))}
    if name == LAST and kept:
        name = max(kept, key=lambda each: (kept[each].created, each))
    if name not in kept:
        raise Invalid(
            f"pipeline {ledger.pipeline!r} has no report of a proposal {name!r}",
            expected=" or ".join([*kept, LAST]) if kept else "a proposal that was kept",
            help="name one of these" if kept else "make one with --keep, or leave out --compare-with",
            reason="NO_SUCH_PROPOSAL",
        )
    return name, kept[name].created, typed.convert(kept[name].report, ProposalReport)


def since(kept: tuple[str, str, ProposalReport], report: ProposalReport) -> SinceLast:
    """Return what differs from the report of a kept proposal."""
    name, created, before = kept
    tables = {}
    compares_tables = not (before.stopped or report.stopped)
    for table in sorted({*before.tables, *report.tables}) if compares_tables else ():
        old, new = before.tables.get(table), report.tables.get(table)
        pairs = {count: [getattr(old, count, 0), getattr(new, count, 0)] for count in _COUNTS}
        changed = {count: pair for count, pair in pairs.items() if pair[0] != pair[1]}
        if changed:
            tables[table] = changed
    verdicts = [{gate.gate: gate.after for gate in each.gates} for each in (before, report)]
    gates = [gate for gate in sorted({*verdicts[0], *verdicts[1]}) if verdicts[0].get(gate) != verdicts[1].get(gate)]
    merge: list[str] = [before.merge.action, report.merge.action]
    return SinceLast(
        proposal=name,
        created=created,
        same_code=before.code.after == report.code.after,
        same_checkpoints=_input(before) == _input(report),
        merge=merge if merge[0] != merge[1] else [],
        tables=tables,
        gates=gates if compares_tables else [],
        compares_tables=compares_tables,
    )


def _input(report: ProposalReport) -> tuple[object, ...]:
    return report.begins_after, report.replayed, report.sample
