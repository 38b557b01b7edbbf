"""Kept proposals and their reports, by right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid
from tidegate.records.records import BackfillRecord, Json, ProposalReported
from tidegate.ui.answers import ProposalAnswer, ProposalReportAnswer, Proposals, ProposedTable

if TYPE_CHECKING:
    from tidegate.ledger.ledger import Ledger
    from tidegate.ui.pipelines import PipelineRef

__all__ = ["proposals", "report"]

_COUNTS = ("rows_before", "rows_after", "added", "removed", "changed")
_VALUES: Json = {"before": None, "after": None, "mean_change": None, "greatest_change": None}
"""What in the change of a column is made of values of rows."""
_BEYOND_BROWSERS = 2**53
"""JavaScript's numbers are doubles: from here on they cannot hold all whole numbers."""
_HIDDEN = "the replay stopped; who may read rows sees why"


def proposals(ledger: Ledger) -> Proposals:
    """Return all proposals, newest first."""
    lines = sorted(ledger.proposals(), key=lambda line: (line.created, line.name), reverse=True)
    return Proposals(proposals=[_proposal(line, ledger.proposal_reported(line.name)) for line in lines])


def report(pipeline: PipelineRef, ledger: Ledger, name: str) -> ProposalReportAnswer:
    """Return a proposal's report. Without the right to read rows it has none of their values."""
    line = next((line for line in ledger.proposals() if line.name == name), None)
    if line is None:
        raise Invalid(
            f"pipeline {ledger.pipeline!r} has no proposal {name!r}",
            expected=" or ".join(line.name for line in ledger.proposals()) or "a proposal that was kept",
            help="it was discarded, or accepted: see the page Proposals",
            reason="NO_SUCH_PROPOSAL",
        )
    reported = ledger.proposal_reported(name)
    told = _readable_by_browsers(reported.report) if reported is not None else None
    if told is not None and not pipeline.may_read_rows:
        told = _without_rows(told)
    return ProposalReportAnswer(proposal=_proposal(line, reported), report=told)


def _proposal(line: BackfillRecord, reported: ProposalReported | None) -> ProposalAnswer:
    tables = reported.report["tables"] if reported is not None else {}
    return ProposalAnswer(
        name=line.name,
        origin=line.origin,
        created_by=line.by,
        created_at=line.created,
        reported_at=reported.created if reported is not None else None,
        merge=reported.report["merge"]["action"] if reported is not None else None,
        is_sample=line.sample is not None,
        tables={name: ProposedTable(**{count: table[count] for count in _COUNTS}) for name, table in tables.items()},
    )


def _readable_by_browsers(report: Json) -> Json:
    """Return the report with examples whose whole numbers no browser rounds: large ones are texts."""
    tables = {name: {**table, "examples": _exact(table["examples"])} for name, table in report["tables"].items()}
    return {**report, "tables": tables}


def _exact(value: Any) -> Any:
    """Return a value of a row with the whole numbers that a JavaScript number cannot hold as texts."""
    if isinstance(value, dict):
        return {name: _exact(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_exact(inner) for inner in value]
    if isinstance(value, int) and abs(value) >= _BEYOND_BROWSERS:
        return str(value)
    return value


def _without_rows(report: Json) -> Json:
    tables = {}
    for name, table in report["tables"].items():
        columns = {column: {**change, **_VALUES} for column, change in table["columns"].items()}
        tables[name] = {**table, "columns": columns, "examples": []}
    return {**report, "tables": tables, "stopped": _HIDDEN if report["stopped"] else ""}
