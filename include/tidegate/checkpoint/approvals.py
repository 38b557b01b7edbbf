"""Checkpoints that wait for a person: who answers, and what happens when nobody does (docs/protocol.md, D5).

The answer is one record, created if absent. So a click in Airflow, a command and the time limit race on it, and
whoever loses obeys it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from tidegate import seams
from tidegate.errors import Invalid, Rejected
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.protocol.verdicts import Holding, Undecided, unanswered
from tidegate.protocol.view import Entry, View
from tidegate.records.moments import moment_of
from tidegate.records.records import Answer

__all__ = [
    "HELD",
    "answer",
    "answer_overdue",
    "awaits_person",
    "deadline",
    "pending_approvals_text",
    "settle",
    "told_more",
]

HELD = "HELD"
"""Why a checkpoint is open of which all acks are in."""
TIME_LIMIT = "the time limit"


def answer(ledger: Ledger, id: int, gate: str | None, *, approve: bool, by: str, note: str = "") -> list[Answer]:
    """Say yes or no to what holds checkpoint `id`: one gate's verdict, or all. What comes back is what counts.

    Rejected: it does not wait for an answer (any more).
    """
    entry = ledger.entry(id)
    if entry is None or not entry.open:
        state = (
            "is not there" if entry is None else "is " + (entry.decision.outcome if entry.decision else "no checkpoint")
        )
        raise Rejected(
            f"checkpoint {id} {state}",
            expected="one that a gate holds",
            help="`tidegate list` shows which are held",
            reason="NOT_HELD",
        )
    waiting = [each for each in unanswered(entry) if gate in (None, each.gate)]
    if not waiting:
        _refuse(entry, gate)
    return [_create(ledger, id, each, approve=approve, by=by, note=note) for each in waiting]


def _create(ledger: Ledger, id: int, held: Holding, *, approve: bool, by: str, note: str) -> Answer:
    record = Answer(**stamp(seams.new_id()), id=id, gate=held.gate, ack=held.ack, approve=approve, by=by, note=note)
    return ledger.create_answer(record).record


def _refuse(entry: Entry, gate: str | None) -> None:
    said = entry.answers.get(gate or "")
    if gate is not None and said is not None:
        raise Rejected(
            f"checkpoint {entry.id} was {'approved' if said.approve else 'rejected'} at gate {gate!r} by {said.by}",
            expected="a verdict that nobody has answered yet",
            help="nothing to do: the first answer counts",
            reason="ANSWERED",
        )
    gates = sorted({name for acked in entry.acks.values() for name in acked.ack.gates})
    if gate is not None and gate not in gates:
        raise Invalid(
            f"checkpoint {entry.id} has no verdict of a gate {gate!r}",
            expected=" or ".join(gates) or "a job that has judged its rows",
            help=f"`tidegate explain` tells what checkpoint {entry.id} waits for",
            reason="NO_SUCH_GATE",
        )
    raise Rejected(
        f"no gate holds checkpoint {entry.id}",
        expected="a verdict that says hold",
        help=f"`tidegate explain` tells what checkpoint {entry.id} waits for",
        reason="NOT_HELD",
    )


def answer_overdue(ledger: Ledger, held: Undecided) -> bool:
    """Let the time limit answer where it has passed, by the store's clock. Whether anything is answered since."""
    done = False
    for each in held.holding:
        rule, age = each.verdict.hold, ledger.age_of_ack(held.id, each.job)
        if rule is not None and rule.limit_s is not None and age is not None and age > rule.limit_s:
            note = f"nobody answered within {rule.limit_s:g} s"
            _create(ledger, held.id, each, approve=rule.default == "approve", by=TIME_LIMIT, note=note)
            done = True
    return done


def awaits_person(entry: Entry) -> bool:
    """Whether it waits for what a person has to say, whatever its other jobs have done; or all is done but to decide it
    by what was said. It is nobody's to give up."""
    if not entry.open or unanswered(entry):
        return entry.open
    whole = all(job in entry.acks or job in entry.overtaken for job in entry.plan.acks)
    verdicts = (verdict for acked in entry.acks.values() for verdict in acked.ack.gates.values())
    return whole and any(verdict.outcome == "hold" for verdict in verdicts)


def pending_approvals_text(view: View, ids: Iterable[int]) -> str:
    """Which of these entries are held, and by what, for people; "" if none is."""
    texts = []
    for entry in filter(None, map(view.get, ids)):
        gates = ", ".join(repr(each.gate) for each in unanswered(entry)) if entry.open else ""
        if gates:
            texts.append(f"checkpoint {entry.id} is held by gate {gates}, until somebody approves or rejects it")
    return "; ".join(texts)


def told_more(entry: Entry) -> str:
    """Which rules hold it, and what happens if nobody answers, for people."""
    texts = []
    for each in unanswered(entry):
        rules = [f"{rule.rule}: {rule.why}" for rule in each.verdict.broken if rule.policy == "hold"]
        if rules:
            texts.append(f"Gate {each.gate} holds it because of {'; '.join(rules[:5])}.")
        if (at := deadline(entry, each)) is not None:
            default = "approved" if each.verdict.hold and each.verdict.hold.default == "approve" else "rejected"
            texts.append(f"If nobody answers by {at:%Y-%m-%d %H:%M:%S} UTC, it is {default}.")
    return " ".join(texts)


def deadline(entry: Entry, held: Holding) -> datetime | None:
    """When the time limit answers, as far as the writer's clock tells; None: it never does."""
    rule, acked = held.verdict.hold, moment_of(entry.acks[held.job].ack.created)
    return acked + timedelta(seconds=rule.limit_s) if rule and rule.limit_s is not None and acked else None


def settle(ledger: Ledger, entry: Entry | None) -> None:
    """W2: what was said survives a power loss before the decision does that follows from it, a yes as well as a no."""
    for said in entry.answers.values() if entry is not None else ():
        ledger.settle_answer(said)
