"""What gates' verdicts, and the answers to those that hold, mean for a checkpoint. Pure, like protocol.py."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.protocol.view import Entry
from tidegate.records.records import Answer, Handle, Verdict

__all__ = ["REJECTED", "Holding", "Undecided", "gate_failure", "rejection", "unanswered"]

REJECTED = "GATE_REJECTED"
"""The reason of an abort that a person, or the time limit in their place, has chosen."""


@dataclass(frozen=True)
class Holding:
    """A verdict that nobody has answered."""

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
    """D1: which verdicts say that the entry must not complete, and why; "" if none does."""
    told = []
    for acked in entry.acks.values():
        for gate, verdict in acked.ack.gates.items():
            if verdict.outcome == "abort":
                whys = [*(f"{each.rule}: {each.why}" for each in verdict.broken if each.policy == "abort"), verdict.why]
                told.append(f"gate {gate!r}: " + "; ".join(filter(None, whys)))
    return "; ".join(told)[:2000]


def unanswered(entry: Entry) -> tuple[Holding, ...]:
    """The verdicts that hold the entry."""
    return tuple(each for each in _holding(entry) if _answer(entry, each) is None)


def rejection(entry: Entry) -> str:
    """Who said no to it, and why; "" if nobody did."""
    for each in _holding(entry):
        answer = _answer(entry, each)
        if answer is not None and not answer.approve:
            return f"gate {each.gate!r}: rejected by {answer.by}" + (f": {answer.note}" if answer.note else "")
    return ""


def _holding(entry: Entry) -> list[Holding]:
    return [
        Holding(gate, job, acked.handle, verdict)
        for job, acked in sorted(entry.acks.items())
        for gate, verdict in acked.ack.gates.items()
        if verdict.outcome == "hold"
    ]


def _answer(entry: Entry, holding: Holding) -> Answer | None:
    """The answer to exactly what is held: under a number that is used anew there may be another's."""
    answer = entry.answers.get(holding.gate)
    return answer if answer is not None and answer.ack == holding.ack else None
