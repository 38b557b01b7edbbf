"""A checkpoint's records as one flat document: what `list` and `show` print, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from tidegate.checkpoint import approvals as holding
from tidegate.errors import TidegateError
from tidegate.gates.examples import examples_of
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.progress import behind
from tidegate.protocol.view import Entry, View, rolled_back_by
from tidegate.records.records import Ack, Published, Verdict

__all__ = [
    "ACTS",
    "clock",
    "examples",
    "rows_text",
    "seconds_between",
    "size_text",
    "state_of",
    "summary_of",
    "summary_of_row",
]


ACTS = {"suspend": "suspended", "resume": "resumed", "stop": "stopped", "cancel": "cancelled", "drain": "finished"}
"""What an entry that is no checkpoint has done to the pipeline."""


def state_of(entry: Entry, published: Published | None) -> str:
    """open, held, aborted, completed, rollback; or completed but not yet visible on every table."""
    if entry.control is not None:
        return ACTS[entry.control.action]
    if entry.restart is not None and published is not None:
        return "rollback"
    if entry.decision is None:
        return "held" if holding.pending_approvals_text(View((entry,)), [entry.id]) else "open"
    if entry.completed and published is None:
        return "completed, unpublished"
    return entry.decision.outcome


def summary_of(ledger: Ledger, entry: Entry) -> dict[str, Any]:
    """One checkpoint in short."""
    plan, decision = entry.plan, entry.decision
    published = ledger.published(entry.id)
    undone = rolled_back_by(entry.id, ledger.rollbacks()) if entry.completed else None
    act = entry.control or entry.restart
    by = (
        f"to checkpoint {entry.restart.target}, by {entry.restart.by}"
        if entry.restart
        else f"by {act.by}"
        if act
        else ""
    )
    aborted, past = entry.aborted and entry.control is None, behind(entry)
    return {
        "id": entry.id,
        "state": "rolled back" if undone is not None else state_of(entry, published),
        "reason": act.reason if act and not aborted else decision.reason if decision else "",
        "detail": by if act and not aborted else decision.detail if decision else "",
        "undone_by": undone,
        "back_to": entry.restart.target if entry.restart is not None else None,
        "kind": plan.kind,
        "interval": str(entry.interval) if entry.interval is not None else None,
        "base": plan.base,
        "run": plan.run,
        "planned": plan.created,
        "decided": decision.created if decision else None,
        "seconds": seconds_between(plan.created, decision.created) if decision else None,
        "sources": {name: part.summary or ("nothing new" if part.empty else "") for name, part in plan.sources.items()},
        "jobs": {name: _job(acked.ack) for name, acked in sorted(entry.acks.items())},
        "gates": {name: _gate(said, examples(ledger, said)) for name, said in _verdicts(entry)},
        "missing_acks": [job for job in plan.acks if job not in entry.acks and job not in past],
        "behind": past,
        "rows": _rows(entry),
        "tables": {
            name: {"uri": table.uri, "version": table.version, "rows": table.rows, "log_hash": table.log_hash}
            for name, table in (published.tables if published else {}).items()
        },
    }


def summary_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same of one whose records are gone, from its row of the history with `details`."""
    details = row["details"]
    rows: dict[str, int] = {}
    for job in details["jobs"].values():
        for sink, count in job["rows"].items():
            rows[sink] = rows.get(sink, 0) + count
    copied = ("id", "state", "undone_by", "back_to", "kind", "interval", "base", "run", "planned", "decided", "seconds")
    return {name: row[name] for name in copied} | {
        "reason": row["reason"],
        "detail": details["detail"] or row["why"],
        "sources": {name: part["summary"] for name, part in details["sources"].items()},
        "jobs": details["jobs"],
        "gates": details["gates"],
        "missing_acks": details["missing"],
        "behind": details.get("behind", {}),
        "rows": rows,
        "tables": details["tables"],
    }


def examples(ledger: Ledger, said: Verdict) -> dict[str, list[str]]:
    """Values that broke the verdict's rules. One whose results are lost has none; `tidegate doctor` looks for that."""
    if not said.broken:
        return {}
    try:
        return examples_of(ledger.unpack(said.results))
    except TidegateError:
        return {}


def _verdicts(entry: Entry) -> Iterator[tuple[str, Verdict]]:
    return ((name, said) for _, acked in sorted(entry.acks.items()) for name, said in acked.ack.gates.items())


def _gate(said: Verdict, found: dict[str, list[str]]) -> dict[str, Any]:
    broken = [
        {"rule": e.rule, "policy": e.policy, "rows": e.rows, "why": e.why, "examples": found.get(e.rule, [])}
        for e in said.broken
    ]
    told = {"outcome": said.outcome, "why": said.why, "rows": said.rows, "broken": broken}
    return told | {"quarantined": said.quarantined, "released": said.released}


def _job(ack: Ack) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(ack.stats)
    return {"attempt": ack.attempt, "acked": ack.created, **told}


def _rows(entry: Entry) -> dict[str, int]:
    """Staged rows per sink."""
    rows: dict[str, int] = {}
    for acked in entry.acks.values():
        for sink, count in acked.ack.stats.rows.items():
            rows[sink] = rows.get(sink, 0) + count
    return rows


# -- small texts ---------------------------------------------------------------------------------------


def clock(created: str | None) -> str:
    """A record's time for people, in UTC, to the second."""
    return (created or "")[:19].replace("T", " ")


def seconds_between(earlier: str, later: str) -> float | None:
    """How long, by the writers' clocks; None if they make no sense."""
    try:
        seconds = (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except ValueError:
        return None
    return round(seconds, 3) if seconds >= 0 else None


def rows_text(rows: dict[str, int]) -> str:
    """ "orders 120, rejected 3"."""
    return ", ".join(f"{name} {count:,}" for name, count in rows.items())


def size_text(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")
