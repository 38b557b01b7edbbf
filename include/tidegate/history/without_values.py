"""Views of a checkpoint for people who may not read rows, without the values of rows.

Errors, notes and logs contain no values (`errors.py: quoted`). Texts recorded by older versions may quote some
anywhere, so these are replaced as a whole: no pattern distinguishes a value from a word. A source's position is opaque
and may contain a value, such as the last key that was read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from tidegate.history.details import CheckpointDetails, GateDetails
from tidegate.history.schemas.drift import drift_without_rows
from tidegate.protocol.view import Acked, Entry
from tidegate.records.records import Control, Json, Manifest, RecordedRule, Rollback, Trouble, Verdict

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "LEFT_OUT",
    "details_without_rows",
    "entry_without_rows",
    "manifest_without_rows",
    "rows_without_texts",
    "trouble_without_rows",
]

LEFT_OUT: Final = "(left out: an older version has recorded it, and it may quote rows, which you may not read)"


def rows_without_texts(rows: pa.Table) -> pa.Table:
    """Return the rows of a history without texts that may quote values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts, marks = rows["why"], rows["quotes_rows"]
    hidden = pc.and_(pc.fill_null(marks, True), pc.fill_null(pc.not_equal(texts, ""), False))
    safe_texts = pc.if_else(hidden, pa.scalar(LEFT_OUT, texts.type), texts)
    return rows.set_column(rows.schema.get_field_index("why"), "why", safe_texts)


def details_without_rows(details: CheckpointDetails, *, quotes_rows: bool) -> CheckpointDetails:
    """Return a checkpoint's details without values of rows. quotes_rows: an older version wrote their texts."""
    sources = {}
    for name, source in details.sources.items():
        drift = None
        if source.drift is not None:
            drift = drift_without_rows(source.drift)
        sources[name] = msgspec.structs.replace(source, start=None, end=None, drift=drift)
    details = msgspec.structs.replace(details, sources=sources)
    if not quotes_rows:
        return details
    return msgspec.structs.replace(
        details,
        detail=_hidden(details.detail),
        control=_act(details.control),
        rollback=_rollback(details.rollback),
        gates={name: _gate(gate) for name, gate in details.gates.items()},
    )


def entry_without_rows(entry: Entry) -> Entry:
    """Return an entry without texts that may quote values."""
    if not entry.plan.quotes_rows:
        return entry
    decision = entry.decision
    plan = msgspec.structs.replace(entry.plan, control=_act(entry.control), rollback=_rollback(entry.rollback))
    return replace(
        entry,
        plan=plan,
        acks={job: _acked(acked) for job, acked in entry.acks.items()},
        decision=msgspec.structs.replace(decision, detail=_hidden(decision.detail)) if decision is not None else None,
    )


def trouble_without_rows(trouble: Trouble | None) -> Trouble | None:
    """Return the last error without texts that may quote values."""
    if trouble is None or not trouble.quotes_rows:
        return trouble
    return msgspec.structs.replace(trouble, what=LEFT_OUT, expected="", help="")


def manifest_without_rows(manifest: Manifest) -> Json:
    """Return a manifest as JSON without the data of sources and sinks: positions, and the files of tables, which have
    the least and greatest value of each column, and partition values in their names."""
    document: Json = msgspec.to_builtins(manifest)
    for position in document["positions"].values():
        position["at"] = None
    payloads: list[Json] = []
    for table in document["tables"].values():
        payloads += table["committables"]
        if table["diverted"] is not None:
            payloads += table["diverted"]["committables"]
    for parts in document["in_flight"].values():
        for part in parts:
            payloads += part["channels"].values()
    for payload in payloads:
        payload["data"] = None
    return document


def _hidden(text: str) -> str:
    return LEFT_OUT if text else ""


def _act(control: Control | None) -> Control | None:
    if control is None:
        return None
    return msgspec.structs.replace(control, reason=_hidden(control.reason))


def _rollback(rollback: Rollback | None) -> Rollback | None:
    if rollback is None:
        return None
    return msgspec.structs.replace(rollback, reason=_hidden(rollback.reason), suspended=_act(rollback.suspended))


def _acked(acked: Acked) -> Acked:
    gates = {name: _verdict(verdict) for name, verdict in acked.ack.gates.items()}
    return replace(acked, ack=msgspec.structs.replace(acked.ack, gates=gates))


def _verdict(verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(verdict, why=_hidden(verdict.why), broken=_rules(verdict.broken))


def _gate(gate: GateDetails) -> GateDetails:
    return msgspec.structs.replace(gate, why=_hidden(gate.why), broken=_rules(gate.broken))


def _rules(broken: list[RecordedRule]) -> list[RecordedRule]:
    return [msgspec.structs.replace(rule, why=_hidden(rule.why)) for rule in broken]
