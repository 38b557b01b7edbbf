"""Watches for new input, for pipelines that make checkpoints by event: interval = "event".

Each look plans the ranges that a checkpoint would read now, as the trigger does, and writes nothing. Only one run is
requested at a time. All input that arrives before that run plans its checkpoint becomes part of it, so a burst makes
one checkpoint. A needless request does no harm, since a run without new input makes no checkpoint (`is_due`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tidegate import seams
from tidegate.checkpoint import suspension
from tidegate.checkpoint.approvals import awaits_person
from tidegate.checkpoint.planning import Plans
from tidegate.errors import TidegateError, Unavailable, name_of
from tidegate.protocol.rules import CreateEntry, on_trigger
from tidegate.records.codec import fingerprint
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.ledger.ledger import Ledger
    from tidegate.protocol.view import View

__all__ = ["Arrival", "InputWatch", "is_due"]

AFTER_FAILURE_S: Final = 10.0
"""How long to wait after an aborted checkpoint. The time doubles with each further one."""

UNTIL_PLANNED_S: Final = 60.0
"""How long a run may take to plan its checkpoint before another run is requested. The time doubles with each one. A
completed checkpoint may take as long to be published."""

MAX_BACKOFF_S: Final = 300.0
"""The longest of these times: nobody reports that the cause of a failure has gone."""


@dataclass(frozen=True)
class Arrival:
    """A reason to make a checkpoint now."""

    key: str
    """Identifies the position from which a checkpoint would read. It stays the same until one has read further."""
    reason: str


class InputWatch:
    """Reports when a checkpoint should be made: input is waiting, or the last checkpoint is `max_pause` ago."""

    def __init__(self, pipeline: PipelineContext, max_pause_s: float) -> None:
        self.pipeline = pipeline
        self.max_pause_s = max_pause_s
        self.is_over = False
        """Whether the pipeline had ended at the last look, so that nothing is requested unless somebody resumes it."""
        self._seen: tuple[int, int] | None = None
        self._requests = 0
        self._next_request = seams.monotonic()

    def look(self) -> Arrival | None:
        """Return the reason to make a checkpoint now, or None if there is none, or a run was requested already.

        Raise Unavailable if a source or the ledger does not answer.
        """
        view = self.pipeline.ledger.view()
        self._follow(view)
        current = suspension.suspended(view, self.pipeline.settings.tolerable_failed_checkpoints)
        ended = current is not None and current.action != "suspend"
        self.is_over = ended or suspension.final_cancel(view) is not None or suspension.finished(view) is not None
        if seams.monotonic() < self._next_request:
            return None
        arrival = self._expired(view) or (self._arrival(view, current is not None) if not self.is_over else None)
        if arrival is not None:
            self._requests += 1
            self._next_request = seams.monotonic() + self._backoff(UNTIL_PLANNED_S, self._requests)
        return arrival

    def _follow(self, view: View) -> None:
        """Record the effect of the last request: a new checkpoint, or one that was aborted."""
        failures = _failures(view)
        seen = (view.last_id, failures)
        if seen == self._seen:
            return
        begins, self._seen = self._seen is None, seen
        self._requests = 0
        self._next_request = seams.monotonic()
        if failures and not begins:
            self._next_request += self._backoff(AFTER_FAILURE_S, failures)

    def _backoff(self, first_s: float, times: int) -> float:
        doubled_s: float = first_s * 2.0 ** min(times - 1, 20)
        return min(doubled_s, max(first_s, min(self.max_pause_s, MAX_BACKOFF_S)))

    def _expired(self, view: View) -> Arrival | None:
        """Return an open checkpoint past its timeout. If its own run is gone, only another run aborts it."""
        for entry in view.still_open():
            late = _is_past(entry.plan.created, entry.plan.timeout_s) and self.pipeline.ledger.expired(entry.plan)
            if late and not awaits_person(entry):
                return Arrival(f"expired:{entry.id}", f"the time of checkpoint {entry.id} is over")
        return None

    def _arrival(self, view: View, suspended: bool) -> Arrival | None:
        limit = self.pipeline.settings.max_concurrent_checkpoints
        answer = on_trigger(view, "", limit, {})
        if isinstance(answer, CreateEntry) and not suspended:
            arrival = self._new_input(answer, view) or self._unpublished(view)
            if arrival is not None:
                return arrival
        idle = all(awaits_person(entry) for entry in view.still_open())
        if idle and is_due(self.pipeline.ledger, view, self.max_pause_s):
            return Arrival(f"pause:{view.last_id}", f"there was no checkpoint for {self.max_pause_s:g} s")
        return None

    def _unpublished(self, view: View) -> Arrival | None:
        """Return the last checkpoint if its run has not published it. Each later run tries to."""
        ledger, last = self.pipeline.ledger, view.last_completed
        if last is None or last.id <= view.settled or any(view.still_open()) or ledger.published(last.id) is not None:
            return None
        if last.decision is None or not _is_past(last.decision.created, UNTIL_PLANNED_S):
            return None
        if (ledger.age_of_decision(last.id) or 0.0) < UNTIL_PLANNED_S:
            return None
        return Arrival(f"unpublished:{last.id}", f"checkpoint {last.id} is not published yet")

    def _new_input(self, answer: CreateEntry, view: View) -> Arrival | None:
        if answer.base is None:
            return Arrival("first", "it is the first checkpoint")
        try:
            reason = Plans(self.pipeline).find_reason(answer, view)
        except Unavailable:
            raise
        except TidegateError as error:  # the run's planning raises the same error, and reports it
            return Arrival(f"error:{error.reason}", f"its input cannot be planned: {error.reason}")
        except Exception as error:  # from the plan of a user's own source
            return Arrival(f"error:{type(error).__name__}", f"its input cannot be planned: {name_of(error)}")
        if not reason:
            return None
        base = view.get(answer.base)
        ends = {name: part.end for name, part in base.plan.sources.items()} if base is not None else {}
        return Arrival(fingerprint(ends), reason)


def is_due(ledger: Ledger, view: View, max_pause_s: float) -> bool:
    """Return whether to make a checkpoint even without new input: it is the first, or the last one is long ago."""
    if not view.entries:
        return True
    plan = view.entries[-1].plan
    return _is_past(plan.created, max_pause_s) and ledger.age(plan) >= max_pause_s


def _is_past(created: str, seconds: float) -> bool:
    """Return whether a record may be so old. Only the store's clock decides, and that is written to at each look."""
    return seams.now() - parse_time(created) >= timedelta(seconds=seconds)


def _failures(view: View) -> int:
    """Return how many of the last checkpoints in a row were aborted since a person last intervened."""
    count = 0
    for entry in reversed(view.entries):
        if not entry.aborted or entry.control is not None:
            break
        count += 1
    return count
