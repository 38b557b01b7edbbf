"""The options of the question that Airflow asks about a held checkpoint, and what it shows once it is answered."""

from __future__ import annotations

from tidegate.records.records import Answer

__all__ = ["APPROVE", "ELSEWHERE", "QUARANTINE", "REJECT", "closing", "option_of"]

APPROVE, QUARANTINE, REJECT = "Approve", "Quarantine", "Reject"
ELSEWHERE = "Answered elsewhere"
"""Not an option, but what a question shows to which no answer counts any more."""

_OPTIONS = {"approved": APPROVE, "quarantined": QUARANTINE, "rejected": REJECT}


def option_of(answer: Answer) -> str:
    """Return the option that is the same answer."""
    return _OPTIONS[answer.choice]


def closing(answer: Answer | None, checkpoint: int) -> list[str]:
    """Return the option and the note with which the question is closed, by the answer that counts."""
    if answer is None:
        return [ELSEWHERE, f"checkpoint {checkpoint} was decided without an answer here"]
    who = f"{answer.choice} by {answer.by}"
    return [option_of(answer), f"{who}: {answer.note}" if answer.note else who]
