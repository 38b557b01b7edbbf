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
from tidegate.checkpoint.approvals import awaits_person, deadline
from tidegate.checkpoint.planning import Plans
from tidegate.errors import TidegateError, Unavailable, name_of
from tidegate.protocol.rules import Abort, CreateEntry, on_trigger
from tidegate.protocol.verdicts import Holding, unanswered
from tidegate.records.codec import fingerprint
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.checkpoint.context import AbandonCheck, PipelineContext
    from tidegate.connectors.source import Notifications
    from tidegate.ledger.ledger import Ledger
    from tidegate.protocol.view import Entry, View

__all__ = ["Arrival", "InputWatch", "Pauses", "is_due"]

AFTER_FAILURE_S: Final = 10.0
"""How long to wait after an aborted checkpoint. The time doubles with each further one."""

UNTIL_PLANNED_S: Final = 60.0
"""How long a run may take to plan its checkpoint before another run is requested. The time doubles with each one."""

UNTIL_DECIDED_S: Final = 60.0
"""How long a held checkpoint may take to be decided once it is answered, and a completed one to be published."""

CLOCK_CHECK_S: Final = 300.0
"""How often the store's clock is asked even if the machine's sees no need."""

MAX_BACKOFF_S: Final = 300.0
"""The longest of these times: nobody reports that the cause of a failure has gone."""

MAX_WAIT_S: Final = 60.0
"""How often to look although no notification has come: one may be lost, and people leave requests in the ledger."""

QUEUE_POLL_S: Final = 5.0
"""How long a queue is waited for at a time: whoever stops the process waits as long."""

AFTER_QUEUE_PROBLEM_S: Final = 60.0
"""How long to do without notifications after a problem with them."""


@dataclass(frozen=True)
class Arrival:
    """A reason to make a checkpoint now."""

    key: str
    """Identifies the position from which a checkpoint would read. It stays the same until one has read further."""
    reason: str


class InputWatch:
    """Reports when a checkpoint should be made: input is waiting, or the last checkpoint is `max_pause` ago."""

    def __init__(self, pipeline: PipelineContext, max_pause_s: float, give_up: AbandonCheck | None = None) -> None:
        """give_up: returns why an open checkpoint of another run is abandoned, if the watcher can tell."""
        self.pipeline = pipeline
        self._ledger = pipeline.ledger
        self.max_pause_s = max_pause_s
        self.give_up = give_up
        self.is_over = False
        """Whether the pipeline had ended at the last look, so that nothing is requested unless somebody resumes it."""
        self.is_idle = False
        """Whether the last look has found nothing to read and nothing at work, so that only new input changes that."""
        self._seen: tuple[int, int] | None = None
        self._requests = 0
        self._next_request = seams.monotonic()
        self._next_clock_check = seams.monotonic()
        self._checks_clock = True
        self._answered: dict[int, float] = {}
        """When the decision of a held checkpoint was first seen to be due."""

    def look(self) -> Arrival | None:
        """Return the reason to make a checkpoint now, or None if there is none, or a run was requested already.

        Raise Unavailable if a source or the ledger does not answer.
        """
        self.is_idle = False
        view = self._ledger.view()
        self._follow(view)
        current = suspension.suspended(view, self.pipeline.settings.tolerable_failed_checkpoints)
        ended = current is not None and current.action != "suspend"
        self.is_over = ended or suspension.final_cancel(view) is not None or suspension.finished(view) is not None
        self._answered = {
            entry.id: self._answered.get(entry.id, seams.monotonic()) for entry in self._all_answered(view)
        }
        if seams.monotonic() < self._next_request:
            return None
        self._checks_clock = seams.monotonic() >= self._next_clock_check
        if self._checks_clock:
            self._next_clock_check = seams.monotonic() + CLOCK_CHECK_S
        arrival = self._find_abandoned(view) or (self._arrival(view, current is not None) if not self.is_over else None)
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

    def _find_abandoned(self, view: View) -> Arrival | None:
        """Return an open checkpoint that its own run will not decide, so that only another run does."""
        for entry in view.still_open():
            if awaits_person(entry):
                since = self._answered.get(entry.id)
                if since is not None and seams.monotonic() - since >= UNTIL_DECIDED_S:
                    return Arrival(
                        f"answered:{entry.id}", f"checkpoint {entry.id} was answered, and is not decided yet"
                    )
            elif self._may_be_past(entry.plan.created, entry.plan.timeout_s) and self._ledger.expired(entry.plan):
                return Arrival(f"expired:{entry.id}", f"the time of checkpoint {entry.id} is over")
            elif self.give_up is not None and self.give_up(entry.plan):
                return Arrival(f"abandoned:{entry.id}", f"the run of checkpoint {entry.id} is gone")
        return None

    def _all_answered(self, view: View) -> list[Entry]:
        """Return the held checkpoints that nobody needs to answer any more."""
        held = [entry for entry in view.still_open() if awaits_person(entry)]
        return [entry for entry in held if all(self._is_time_over(entry, holding) for holding in unanswered(entry))]

    def _is_time_over(self, entry: Entry, holding: Holding) -> bool:
        limit = deadline(entry, holding)
        return limit is not None and seams.now() >= limit

    def _may_be_past(self, created: str, seconds: float) -> bool:
        """Return whether to ask the store's clock for a record's age. Each answer of it takes a write.

        A machine's clock tells when that is worth while. It may be wrong, so the store's is asked now and then anyway.
        """
        return self._checks_clock or seams.now() - parse_time(created) >= timedelta(seconds=seconds)

    def _arrival(self, view: View, suspended: bool) -> Arrival | None:
        limit = self.pipeline.settings.max_concurrent_checkpoints
        answer = on_trigger(view, "", limit, {})
        if isinstance(answer, Abort) and not suspended:
            # Its process was killed before it wrote the decision, or its base was aborted. The next run ends it.
            return Arrival(f"undecided:{answer.id}", f"entry {answer.id} of the log is still to be aborted")
        if isinstance(answer, CreateEntry) and not suspended:
            arrival = self._new_input(answer, view) or self._unpublished(view)
            if arrival is not None:
                return arrival
        idle = all(awaits_person(entry) for entry in view.still_open())
        worth_asking = not view.entries or self._may_be_past(view.entries[-1].plan.created, self.max_pause_s)
        if idle and worth_asking and is_due(self._ledger, view, self.max_pause_s):
            return Arrival(f"pause:{view.last_id}", f"there was no checkpoint for {self.max_pause_s:g} s")
        self.is_idle = not any(view.still_open())
        return None

    def _unpublished(self, view: View) -> Arrival | None:
        """Return the last checkpoint if its run has not published it. Each later run tries to."""
        ledger, last = self._ledger, view.last_completed
        if last is None or last.id <= view.settled or any(view.still_open()) or ledger.published(last.id) is not None:
            return None
        if last.decision is None or not self._may_be_past(last.decision.created, UNTIL_DECIDED_S):
            return None
        if (ledger.age_of_decision(last.id) or 0.0) < UNTIL_DECIDED_S:
            return None
        return Arrival(f"unpublished:{last.id}", f"checkpoint {last.id} is not published yet")

    def _new_input(self, answer: CreateEntry, view: View) -> Arrival | None:
        if not view.entries:
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
        if base is not None:
            ends = {name: part.end for name, part in base.plan.sources.items()}
        else:
            ends = {}
        return Arrival(fingerprint(ends), reason)


class Pauses:
    """The pauses between the looks of one pipeline.

    tell: called with each problem of a queue. Until it works, the sources are looked at as if they had none.
    """

    def __init__(self, pipeline: PipelineContext, tell: Callable[[str], None]) -> None:
        self._pipeline = pipeline
        self._tell = tell
        self._queues: list[Notifications] | None = None
        self._next_try = seams.monotonic()

    def pause(self, watch: InputWatch, least_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Wait for `least_s`; for longer if nothing is to be expected before a notification comes."""
        began = seams.monotonic()
        if watch.is_idle and began >= self._next_try:
            try:
                self._wait(began + min(MAX_WAIT_S, watch.max_pause_s), stop)
            except TidegateError as error:
                self._next_try = seams.monotonic() + AFTER_QUEUE_PROBLEM_S
                self._queues = None
                self._tell(f"{error.reason}: {error.what}; its sources are looked at without notifications")
        rest_s = least_s - (seams.monotonic() - began)
        if rest_s > 0:
            seams.sleep(rest_s)

    def _wait(self, end: float, stop: Callable[[], bool]) -> None:
        if self._queues is None:
            self._queues = self._open()
        while self._queues and not stop() and seams.monotonic() < end:
            for queue in self._queues:
                left_s = end - seams.monotonic()
                if queue.wait(max(0.0, min(left_s, QUEUE_POLL_S / len(self._queues)))):
                    return

    def _open(self) -> list[Notifications]:
        """Return the notifications of all sources; none, if one has none, which must be looked at often anyway."""
        queues = []
        for name, sourcing in self._pipeline.graph.sources.items():
            queue = sourcing.source.notifications(self._pipeline.source_context(name))
            if queue is None:
                return []
            queues.append(queue)
        return queues


def is_due(ledger: Ledger, view: View, max_pause_s: float) -> bool:
    """Return whether to make a checkpoint even without new input: it is the first, or the last one is long ago."""
    if not view.entries:
        return True
    plan = view.entries[-1].plan
    return ledger.age(plan) >= max_pause_s


def _failures(view: View) -> int:
    """Return how many of the last checkpoints in a row were aborted since a person last intervened."""
    count = 0
    for entry in reversed(view.entries):
        if not entry.aborted or entry.control is not None:
            break
        count += 1
    return count
