"""Replays recorded checkpoints by today's code, on a line that nobody sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.backfill.choosing import choose_stop, free_name, origin_of
from tidegate.backfill.discard import discard
from tidegate.backfill.open_backfill import OpenBackfill, begin, list_manual_edits, problems_of, refuse_kind
from tidegate.backfill.recorded import RecordedPlans
from tidegate.backfill.replay import replay
from tidegate.checkpoint import approvals
from tidegate.checkpoint.compatibility import find_moved_tables
from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.execution.loop import Observer, Schedule
from tidegate.history.query import view_of
from tidegate.protocol.rules import BAD_DECLARATION
from tidegate.protocol.verdicts import unanswered
from tidegate.protocol.view import Entry, rollback_of

if TYPE_CHECKING:
    from tidegate.coordinator import Coordinator, Outcome
    from tidegate.execution.loop import SessionSource
    from tidegate.history.view import CheckpointView
    from tidegate.ledger.ledger import Ledger
    from tidegate.records.records import Ack, KeySample, Plan

__all__ = [
    "Made",
    "ReplayRange",
    "choose_range",
    "impossible",
    "is_replaced",
    "lost_manual_edits",
    "opened",
    "run",
    "whole_history",
]

KIND = "proposal"
ANSWERS_AS = "proposal"
MANY = 50
"""From the beginning so many checkpoints are replayed without being asked to."""


@dataclass(frozen=True)
class ReplayRange:
    """The recorded checkpoints to replay."""

    origin: int
    """The checkpoint after which it begins, or 0 for the beginning."""
    ids: tuple[int, ...]


@dataclass
class Made:
    """What the replay has made."""

    checkpoints: list[tuple[Entry, CheckpointView]] = field(default_factory=list)
    """The completed ones, and an aborted one at the end."""
    stopped: TidegateError | None = None
    """Why it did not reach the end."""
    declined: Invalid | None = None
    """The error of the code, if it is why: the pipeline would make no checkpoint with it either."""


def choose_range(ledger: Ledger, *, over: int | None, origin: str | None, end: str | None) -> ReplayRange:
    """Choose the checkpoints to replay: the last `over` ones up to `end`, or those after `origin`."""
    plans = RecordedPlans(ledger, 0)
    counting = [plan.id for plan in plans.counting()]
    if not counting:
        raise Invalid(
            f"pipeline {ledger.pipeline!r} has completed no checkpoint yet: there is nothing to compare with",
            expected="a pipeline that has completed checkpoints",
            help="let it make one; `tidegate check MODULE:PIPELINE` examines code without one",
            reason="NOTHING_TO_PROPOSE_ON",
        )
    if end is not None:
        counting = [id for id in counting if id <= origin_of(ledger, end)]
    if origin is not None:
        start = origin_of(ledger, origin)
    else:
        # Below the lowest retained plan nothing is known, so it is replayed only if it is the pipeline's first.
        reaches_beginning = plans.missing() is None
        wanted = over or len(counting)
        below = counting[: max(len(counting) - wanted, 0)]
        start = below[-1] if below else 0 if reaches_beginning else counting[0]
        start = _counting_start(ledger, counting, start, reaches_beginning=reaches_beginning)
    ids = tuple(id for id in counting if id > start)
    if not ids:
        raise Invalid(
            f"pipeline {ledger.pipeline!r} has no checkpoint after {start} to replay",
            expected="a range with at least one completed checkpoint",
            help=f"`tidegate list {ledger.pipeline}` shows those that are retained",
            reason="NOTHING_TO_PROPOSE_ON",
        )
    return ReplayRange(start, ids)


def _counting_start(ledger: Ledger, counting: Sequence[int], start: int, *, reaches_beginning: bool) -> int:
    """Return where to begin instead, if a swap has replaced the results of `start`: at the first later checkpoint whose
    results are there, else at the beginning, unless that is far."""
    rollbacks = ledger.rollbacks()
    if not start or rollback_of(start, rollbacks) is None:
        return start
    later = [id for id in counting[:-1] if id > start and rollback_of(id, rollbacks) is None]
    if later:
        return later[0]
    return 0 if reaches_beginning and len(counting) <= MANY else start


def is_replaced(ledger: Ledger, id: int) -> bool:
    """Return whether it is the last checkpoint with input, and a swap has replaced its results. They are then compared
    as the swap has made them: those of the tables now."""
    return rollback_of(id, ledger.rollbacks()) is not None and RecordedPlans(ledger, 0).counting()[-1].id == id


def lost_manual_edits(ledger: Ledger, chosen: ReplayRange) -> list[str]:
    """Return the changes of states by hand that the replay does not repeat."""
    edits = RecordedPlans(ledger, chosen.origin).manual_edits()
    return list(list_manual_edits([plan for plan in edits if plan.id <= chosen.ids[-1]]))


def whole_history(ledger: Ledger) -> ReplayRange | None:
    """Return all of the pipeline's checkpoints, or None if they are not retained from the first one on, or are many."""
    plans = RecordedPlans(ledger, 0)
    ids = tuple(plan.id for plan in plans.counting())
    return ReplayRange(0, ids) if plans.missing() is None and len(ids) <= MANY else None


def impossible(live: Coordinator, chosen: ReplayRange, *, keep: bool = False) -> list[str]:
    """Return why today's code cannot replay these checkpoints. Writes nothing.

    keep: it may be swapped in later, which would lose changes of states by hand.
    """
    problems = problems_of(live, chosen.origin, "recorded", drops_by_hand=not keep)
    last = live.ledger.view().last_completed
    if last is not None:  # a sink with another table has nothing to compare with
        problems += [error.what for error in find_moved_tables(live, last)]
    return problems


@contextmanager
def opened(
    live: Coordinator, chosen: ReplayRange, *, by: str, note: str, keep: bool, sample: KeySample | None = None
) -> Iterator[OpenBackfill]:
    """Open a line for these checkpoints, and discard it at the end, whatever happens, unless it is to be kept."""
    refuse_kind(live)
    name = free_name(live.ledger, KIND)
    drops = not keep  # what is swapped in later must not lose changes of states by hand unasked
    line = begin(
        live,
        name,
        chosen.origin,
        by=by,
        note=note,
        cuts="recorded",
        drops_by_hand=drops,
        purpose="proposal",
        sample=sample,
    )
    try:
        if not is_replaced(live.ledger, chosen.ids[-1]):
            line.backfill.until = choose_stop(line, str(chosen.ids[-1]))
        yield line
    finally:
        if not keep:
            discard(line, by)


def run(line: OpenBackfill, sessions: SessionSource, schedule: Schedule, observer: Observer) -> Made:
    """Replay the line's checkpoints. A gate that holds is approved here: it holds nobody up, and the report tells."""
    collected = _Collecting(line, observer)
    try:
        replay(line, sessions, schedule, collected)
    except Rejected as error:
        if error.reason != "LINE_STOPPED":
            raise
        collected.made.stopped = error
    except Invalid as error:
        if not collected.is_declined:
            raise
        collected.made.stopped = collected.made.declined = error
    return collected.made


class _Collecting(Observer):
    """Collects the checkpoints as they are decided, since retention may remove their records later."""

    def __init__(self, line: OpenBackfill, observer: Observer) -> None:
        self.line, self.observer, self.made = line, observer, Made()
        self.is_declined = False

    def waiting(self, why: str) -> None:
        ledger = self.line.backfill.ledger
        for entry in ledger.view().still_open():
            if approvals.awaits_person(entry) and unanswered(entry):
                approvals.answer(ledger, entry.id, None, approve=True, by=ANSWERS_AS)
        self.observer.waiting(why)

    def planned(self, plan: Plan) -> None:
        self.observer.planned(plan)

    def step(self, plan: Plan, what: str) -> None:
        self.observer.step(plan, what)

    def retrying(self, plan: Plan, error: TidegateError, tries_left: int) -> None:
        self.observer.retrying(plan, error, tries_left)

    def decided(self, plan: Plan, outcome: Outcome, acks: list[Ack], seconds: float) -> None:
        self.is_declined = outcome.reason == BAD_DECLARATION
        ledger = self.line.backfill.ledger
        entry = ledger.entry(plan.id)
        if entry is not None and (entry.completed or entry.aborted):
            self.made.checkpoints.append((entry, view_of(ledger, entry)))
        self.observer.decided(plan, outcome, acks, seconds)
