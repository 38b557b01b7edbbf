"""Approvals of the pipeline's checkpoints that carry over to a backfill, because the judged rows are the same (L9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tidegate.checkpoint.approvals import TIME_LIMIT
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.backfill import Approved, JudgedHold, decide_shared_approval
from tidegate.protocol.verdicts import Holding
from tidegate.protocol.view import Entry
from tidegate.records.codec import fingerprint
from tidegate.records.records import Answer, Json, Plan, Verdict

__all__ = ["approvals_of", "carried_answer"]


def carried_answer(live: Ledger, entry: Entry, holding: Holding) -> tuple[int, Answer] | None:
    """Return the live checkpoint whose approval also holds for this verdict of a backfill, and the approval."""
    answers: dict[int, Answer] = {}
    approved: dict[int, Approved] = {}
    for id in entry.plan.replays:
        replayed = live.entry(id)
        if replayed is None or not replayed.completed:
            continue
        approval = _approval(replayed, holding.gate)
        if approval is not None:
            verdict, answers[id] = approval
            judged = _judged(replayed.plan, holding.gate, verdict)
            approved[id] = Approved(judged, by_person=answers[id].by != TIME_LIMIT)
    held = _judged(entry.plan, holding.gate, holding.verdict)
    approved_id = decide_shared_approval(entry.plan.replays, held, approved)
    if approved_id is not None:
        return (approved_id, answers[approved_id])
    return None


def approvals_of(live: Ledger, plans: Iterable[Plan]) -> Iterator[tuple[int, str, bool]]:
    """Yield the approvals of live checkpoints: the checkpoint, the gate, and whether it may carry over, which is
    certain once the backfill has judged the same rows."""
    for plan in plans:
        entry = live.entry(plan.id)
        if entry is None:
            continue
        gates: set[str] = set()
        for acked in entry.acks.values():
            gates |= acked.ack.gates.keys()
        for gate in sorted(gates):
            approval = _approval(entry, gate)
            if approval is not None:
                verdict, answer = approval
                yield plan.id, gate, answer.by != TIME_LIMIT and verdict.rows_hash != ""


def _approval(entry: Entry, gate: str) -> tuple[Verdict, Answer] | None:
    """Return the verdict with which a gate held a checkpoint, and the approval that followed."""
    answer = entry.answers.get(gate)
    if answer is None:
        return None
    for acked in entry.acks.values():
        verdict = acked.ack.gates.get(gate)
        if verdict is not None and verdict.outcome == "hold":
            if answer.approve and answer.ack == acked.handle:
                return (verdict, answer)
            return None
    return None


def _judged(plan: Plan, gate: str, verdict: Verdict) -> JudgedHold:
    ranges: Json = {}
    for name, part in plan.sources.items():
        if not (name.startswith(QUARANTINE) and part.empty):
            ranges[name] = [part.start, part.end]
    rules: Json = {
        "rows": verdict.rows,
        "quarantined": verdict.quarantined,
        "released": verdict.released,
        "broken": [[rule.rule, rule.policy, rule.severity, rule.rows] for rule in verdict.broken],
    }
    return JudgedHold(
        declaration=fingerprint(
            {"gate": verdict.policy, "hold": msgspec.to_builtins(verdict.hold), "suite": _suite(plan, gate)}
        ),
        ranges=fingerprint(ranges),
        rules=fingerprint(rules),
        rows=verdict.rows_hash,
    )


def _suite(plan: Plan, gate: str) -> Json | str | None:
    """Return the plan's fixed inputs of a gate: the suite's text, and versions of tables. The declaration only names
    the suite's file."""
    fixed = plan.fixed_inputs.get(gate)
    if fixed is None:
        return None
    if fixed.blob is None:
        return fixed.data
    return fixed.blob.sha
