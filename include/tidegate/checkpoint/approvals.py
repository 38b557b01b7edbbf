"""Approvals and rejections of held checkpoints, by a person or by the time limit (docs/protocol.md, D5).

The answer is one record, created if absent. A click in Airflow, a command and the time limit race to create it; the
losers obey it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from tidegate import seams
from tidegate.errors import Invalid, Rejected
from tidegate.gates.quarantine.table import quarantine_name
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.protocol.verdicts import Holding, Undecided, unanswered
from tidegate.protocol.view import Entry, View
from tidegate.records.moments import moment_of
from tidegate.records.records import Answer

__all__ = [
    "HELD",
    "TIME_LIMIT",
    "answer",
    "answer_overdue",
    "answerable",
    "approval_text",
    "awaits_person",
    "can_quarantine",
    "carry",
    "deadline",
    "pending_approvals_text",
    "sync_answers",
]

HELD = "HELD"
"""The reason for which a checkpoint with all its acks is still open."""
TIME_LIMIT = "the time limit"


def answer(
    ledger: Ledger, id: int, gate: str | None, *, approve: bool, by: str, note: str = "", quarantine: bool = False
) -> list[Answer]:
    """Approve or reject checkpoint `id` at one gate that holds it, or at all. Return the answers that count.

    Raise Rejected if it does not wait for an answer (any more). quarantine: reject it only so that its input is read
    again at once, with the rows for which the gate holds it in quarantine. The pipeline is not suspended.
    """
    entry, waiting = answerable(ledger, id, gate)
    if quarantine:
        refuse_quarantine(entry, waiting)
    return [
        _create(ledger, id, holding, approve=approve, by=by, note=note, quarantine=quarantine) for holding in waiting
    ]


def can_quarantine(entry: Entry, gate: str) -> bool:
    """Return whether the input can be read again at once, with what the gate holds in quarantine.

    Intervals come in any order, so the next checkpoint would be that of another interval.
    """
    return not entry.plan.by_interval and quarantine_name(gate) in entry.plan.commits


def refuse_quarantine(entry: Entry, waiting: Iterable[Holding]) -> None:
    """Raise Rejected if what one of these gates holds cannot go to quarantine at once."""
    for holding in waiting:
        if can_quarantine(entry, holding.gate):
            continue
        if entry.plan.by_interval:
            what = f"checkpoint {entry.id} is that of an interval, and the next checkpoint may be of another one"
            help = "reject it, then resume the pipeline with --quarantine-all, and clear the run of this interval"
        else:
            what = f"gate {holding.gate!r} has no quarantine"
            help = "approve or reject it; a gate of your own has a quarantine if its property `quarantines` is True"
        raise Rejected(
            what, expected="a gate whose held rows can go to quarantine", help=help, reason="CANNOT_QUARANTINE"
        )


def answerable(ledger: Ledger, id: int, gate: str | None) -> tuple[Entry, list[Holding]]:
    """Return the checkpoint, and its unanswered verdicts at one gate, or at all. Raise Rejected if it has none."""
    entry = ledger.entry(id)
    if entry is None or not entry.open:
        if entry is None:
            state = "does not exist"
        elif entry.decision is None:
            state = "is not a checkpoint"
        else:
            state = f"is {entry.decision.outcome}"
            if entry.answers:
                state += f": it was {_answers_text(entry.answers.values())}"
        raise Rejected(
            f"checkpoint {id} {state}",
            expected="one that a gate holds",
            help="`tidegate list` shows which are held",
            reason="NOT_HELD",
        )
    waiting = [holding for holding in unanswered(entry) if gate in (None, holding.gate)]
    if not waiting:
        _refuse(entry, gate)
    return entry, waiting


def carry(ledger: Ledger, id: int, holding: Holding, *, by: str, note: str) -> Answer:
    """Approve a verdict for which an approval carries over from elsewhere. Return the answer that counts."""
    return _create(ledger, id, holding, approve=True, by=by, note=note)


def _create(
    ledger: Ledger, id: int, pending: Holding, *, approve: bool, by: str, note: str, quarantine: bool = False
) -> Answer:
    record = Answer(
        **stamp(seams.new_id()),
        id=id,
        gate=pending.gate,
        ack=pending.ack,
        approve=approve,
        quarantine=quarantine,
        by=by,
        note=note,
    )
    return ledger.create_answer(record).record


def _answers_text(answers: Iterable[Answer]) -> str:
    return ", ".join(f"{answer.choice} at gate {answer.gate!r} by {answer.by}" for answer in answers)


def _refuse(entry: Entry, gate: str | None) -> None:
    replies = [reply for name, reply in entry.answers.items() if gate in (None, name)]
    if replies:
        raise Rejected(
            f"checkpoint {entry.id} was {_answers_text(replies)}",
            expected="a verdict without an answer",
            help="nothing to do: the first answer counts",
            reason="ANSWERED",
        )
    gates = sorted({name for acked in entry.acks.values() for name in acked.ack.gates})
    if gate is not None and gate not in gates:
        raise Invalid(
            f"checkpoint {entry.id} has no verdict of a gate {gate!r}",
            expected=" or ".join(gates) or "a job that has judged its rows",
            help=f"`tidegate explain` shows what checkpoint {entry.id} waits for",
            reason="NO_SUCH_GATE",
        )
    raise Rejected(
        f"no gate holds checkpoint {entry.id}",
        expected="a verdict that says hold",
        help=f"`tidegate explain` tells what checkpoint {entry.id} waits for",
        reason="NOT_HELD",
    )


def answer_overdue(ledger: Ledger, undecided: Undecided) -> bool:
    """Answer verdicts whose time limit has passed, by the store's clock. Return whether any was answered."""
    answered = False
    for holding in undecided.holding:
        rule, age = holding.verdict.hold, ledger.age_of_ack(undecided.id, holding.job)
        if rule is not None and rule.limit_s is not None and age is not None and age > rule.limit_s:
            note = f"no answer within {rule.limit_s:g} s"
            _create(ledger, undecided.id, holding, approve=rule.default == "approve", by=TIME_LIMIT, note=note)
            answered = True
    return answered


def awaits_person(entry: Entry) -> bool:
    """Return whether the entry waits for a person, or for the decision that follows from the answers.

    Such an entry must not be given up, even if its other jobs have expired.
    """
    if not entry.open:
        return False
    if unanswered(entry):
        return True
    if any(job not in entry.acks and job not in entry.overtaken for job in entry.plan.acks):
        return False
    verdicts = []
    for acked in entry.acks.values():
        for verdict in acked.ack.gates.values():
            verdicts.append(verdict)
    return any(verdict.outcome == "hold" for verdict in verdicts)


def pending_approvals_text(view: View, ids: Iterable[int], command: Callable[[int], str] = lambda id: "") -> str:
    """Describe which of these entries are held, and by which gates, or return "". command: text to append to each."""
    texts = []
    for entry in map(view.get, ids):
        if entry is None or not entry.open:
            continue
        gates = ", ".join(repr(holding.gate) for holding in unanswered(entry))
        if gates:
            text = f"checkpoint {entry.id} is held by gate {gates}, until a person approves or rejects it"
            texts.append(text + command(entry.id))
    return "; ".join(texts)


def approval_text(entry: Entry) -> str:
    """Describe the rules that hold an entry, and what happens at the time limit."""
    texts = []
    for holding in unanswered(entry):
        rules = []
        for rule in holding.verdict.broken:
            if rule.policy == "hold":
                rules.append(f"{rule.rule}: {rule.why}")
        if rules:
            texts.append(f"Gate {holding.gate} holds it because of {'; '.join(rules[:5])}.")
        limit = deadline(entry, holding)
        if limit is not None:
            if holding.verdict.hold and holding.verdict.hold.default == "approve":
                default = "approved"
            else:
                default = "rejected"
            texts.append(f"Without an answer by {limit:%Y-%m-%d %H:%M:%S} UTC, it is {default}.")
    return " ".join(texts)


def deadline(entry: Entry, holding: Holding) -> datetime | None:
    """Return when the time limit answers, by the clock of the ack's writer, or None if it never does."""
    rule, acked = holding.verdict.hold, moment_of(entry.acks[holding.job].ack.created)
    if rule is None or rule.limit_s is None or acked is None:
        return None
    return acked + timedelta(seconds=rule.limit_s)


def sync_answers(ledger: Ledger, entry: Entry | None) -> None:
    """W2: sync the answers, approvals as well as rejections, before the decision that follows from them."""
    if entry is None:
        return
    for answer in entry.answers.values():
        ledger.sync_answer(answer)
