"""Render a checkpoint's view for commands: as one flat document for scripts, and as cells and short texts."""

from __future__ import annotations

from typing import Any

from tidegate.cli.targets import Target
from tidegate.errors import TidegateError
from tidegate.gates.examples import examples_of
from tidegate.history.details import GateDetails
from tidegate.history.row import Measure
from tidegate.history.view import CheckpointView, ListedCheckpoint
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.refusals import no_checkpoint_error
from tidegate.protocol.view import Entry
from tidegate.records import typed
from tidegate.records.records import Json, Lag

__all__ = [
    "Examples",
    "act_text",
    "checkpoint_document",
    "clock",
    "find_examples",
    "find_view",
    "format_cell",
    "input_text",
    "lag_text",
    "measure_text",
    "rows_text",
    "size_text",
]

Examples = dict[str, dict[str, list[str]]]
"""Values that broke rules, by gate and rule."""


def find_view(target: Target, id: int, *, sizes: bool = True) -> tuple[CheckpointView, Entry | None]:
    """Return one checkpoint of any age, with its records, or None if they are retired. Raise Rejected if it never
    existed."""
    from tidegate.history.query import CheckpointHistory, view_of

    entry = target.ledger.entry(id)
    if entry is not None:
        return view_of(target.ledger, entry, sizes=sizes), entry
    view = CheckpointHistory(target.ledger, target.settings.storage_options).find(id)
    if view is None:
        raise no_checkpoint_error(target.ledger, id)
    return view, None


def find_examples(ledger: Ledger, entry: Entry | None) -> Examples:
    """Return values that broke rules. Only the records have them. If results are lost, `tidegate doctor` reports it."""
    examples: Examples = {}
    for acked in entry.acks.values() if entry is not None else ():
        for gate, verdict in acked.ack.gates.items():
            if not verdict.broken:
                continue
            try:
                examples[gate] = examples_of(ledger.unpack(verdict.results))
            except TidegateError:
                examples[gate] = {}
    return examples


def checkpoint_document(view: CheckpointView, examples: Examples) -> dict[str, Any]:
    """Return a short document of one checkpoint, for scripts."""
    details = view.details
    return {
        "id": view.id,
        "state": view.displayed_state,
        "reason": view.cause,
        "detail": act_text(view),
        "undone_by": view.undone_by,
        "replaced_by": view.replaced_by,
        "back_to": view.back_to,
        "backfill": view.backfill,
        "kind": view.kind,
        "interval": view.interval,
        "base": view.base,
        "run": view.run,
        "planned": view.planned,
        "decided": view.decided,
        "seconds": view.seconds,
        "sources": {name: source.text for name, source in details.sources.items()},
        "jobs": typed.document_of(details.jobs),
        "gates": {name: _gate(gate, examples.get(name, {})) for name, gate in details.gates.items()},
        "missing_acks": details.missing_acks,
        "overtaken_jobs": typed.document_of(details.overtaken_jobs),
        "rows": details.staged_rows,
        "tables": typed.document_of(details.tables),
    }


def act_text(view: CheckpointView) -> str:
    """Return who performed the act, or the recorded detail of an abort."""
    if view.outcome == "aborted":
        return view.details.detail
    if view.details.rollback is not None:
        line, since = view.details.rollback.line, f"checkpoint {view.back_to}" if view.back_to else "the beginning"
        if line is None:
            return f"to {since}, by {view.by}"
        return f"backfill {line.name} from {since}, by {view.by}"
    if view.details.control is not None:
        return f"by {view.by}"
    return view.details.detail


def _gate(gate: GateDetails, examples: dict[str, list[str]]) -> Json:
    document: Json = typed.document_of(gate)
    for rule in document["broken"]:
        rule["examples"] = examples.get(rule["rule"], [])
    return document


# -- cells of tables -----------------------------------------------------------------------------------


def format_cell(row: ListedCheckpoint, name: str) -> str:
    """Return a cell of a list. Figures are shorter there than in the text about one checkpoint."""
    if name == "planned":
        return clock(row.planned)
    if name == "state":
        return row.described_state
    if name == "reason":
        return row.reason or (f"by {row.by}" if row.by else "")
    value = getattr(row, name)
    if value is None:
        return ""
    if name == "seconds":
        return f"{value:.1f}"
    if name == "lag_seconds":
        return f"{value:,.0f} s"
    if name in ("bytes_out", "state_bytes"):
        return size_text(value)
    if name in ("rows_out", "late", "quarantined"):
        return f"{value:,}"
    return str(value)


def input_text(view: CheckpointView) -> str:
    """Describe the input from each source."""
    texts = {name: source.text for name, source in view.details.sources.items()}
    return "; ".join(f"{name}: {text}" if text else name for name, text in texts.items())


# -- small texts ---------------------------------------------------------------------------------------


def clock(created: str | None) -> str:
    """Return a record's time in UTC, to the second."""
    return (created or "")[:19].replace("T", " ")


def rows_text(rows: dict[str, int]) -> str:
    """ "orders 120, rejected 3"."""
    return ", ".join(f"{name} {count:,}" for name, count in rows.items())


def size_text(size: float) -> str:
    """Return a size in a suitable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            if unit == "B":
                return f"{size:,.0f} {unit}"
            return f"{size:,.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def lag_text(lag: Lag | None) -> str:
    """Return a source's backlog, such as "1,200 rows, 3.4 MB, the oldest for 90 s". Empty if nothing is known to
    wait."""
    if lag is None or not lag.waits:
        return ""
    if lag.files:
        files = f"{lag.files:,} file{'' if lag.files == 1 else 's'}"
    else:
        files = ""
    rows = f"{lag.rows:,} rows" if lag.rows else ""
    if lag.seconds is not None:
        oldest = f"the oldest for {lag.seconds:,.0f} s"
    else:
        oldest = ""
    return ", ".join(filter(None, (files, rows, size_text(lag.bytes) if lag.bytes else "", oldest)))


def measure_text(measure: Measure, value: float) -> str:
    """Return a measure's value with its unit."""
    if measure.unit == "s":
        if value < 100:
            return f"{value:,.2f} s"
        return f"{value:,.0f} s"
    if measure.unit == "bytes":
        return size_text(value)
    return f"{value:,.0f}"
