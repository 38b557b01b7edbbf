"""Gates' verdicts, the answers to those that hold, and what both mean for a checkpoint. Pure, like rules.py."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.protocol.view import Entry
from tidegate.records.records import Answer, Handle, Verdict

__all__ = ["QUARANTINED", "REJECTED", "Holding", "Undecided", "gate_failure", "rejection", "unanswered"]

REJECTED = "GATE_REJECTED"
"""The reason of an abort that a person chose, or the time limit in their place."""
QUARANTINED = "GATE_QUARANTINED"
"""The reason of an abort that a person chose so that the next checkpoint quarantines what a gate has held."""


@dataclass(frozen=True)
class Holding:
    """A verdict that holds a checkpoint."""

    gate: str
    job: str
    ack: Handle
    verdict: Verdict


@dataclass(frozen=True)
class Undecided:
    """D5: these verdicts wait for an answer."""

    id: int
    holding: tuple[Holding, ...]


def gate_failure(entry: Entry) -> str:
    """D1: return the verdicts that forbid the entry to complete, with their reasons; "" if none does."""
    failures = []
    for acked in entry.acks.values():
        for gate, verdict in acked.ack.gates.items():
            if verdict.outcome == "abort":
                reasons = [f"{rule.rule}: {rule.why}" for rule in verdict.broken if rule.policy == "abort"]
                reasons.append(verdict.why)
                failures.append(f"gate {gate!r}: " + "; ".join(filter(None, reasons)))
    return "; ".join(failures)[:2000]


def unanswered(entry: Entry) -> tuple[Holding, ...]:
    """Return the verdicts that hold the entry and have no answer yet."""
    return tuple(holding for holding in _holding(entry) if _answer(entry, holding) is None)


def rejection(entry: Entry) -> tuple[str, str] | None:
    """Return the reason and the detail of the abort that an answer asks for, or None. Of two answers, a plain rejection
    goes first: it suspends the pipeline."""
    refused = None
    for holding in _holding(entry):
        answer = _answer(entry, holding)
        if answer is None or answer.approve:
            continue
        text = f"gate {holding.gate!r}: {answer.choice} by {answer.by}"
        detail = f"{text}: {answer.note}" if answer.note else text
        if not answer.quarantine:
            return REJECTED, detail
        refused = refused or (QUARANTINED, detail)
    return refused


def _holding(entry: Entry) -> list[Holding]:
    return [
        Holding(gate, job, acked.handle, verdict)
        for job, acked in sorted(entry.acks.items())
        for gate, verdict in acked.ack.gates.items()
        if verdict.outcome == "hold"
    ]


def _answer(entry: Entry, holding: Holding) -> Answer | None:
    """Return the answer to exactly this verdict. A reused id may have an answer to an earlier verdict."""
    answer = entry.answers.get(holding.gate)
    if answer is not None and answer.ack == holding.ack:
        return answer
    return None
