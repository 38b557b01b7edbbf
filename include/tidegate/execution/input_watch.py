"""Watches for new input, for pipelines whose checkpoints are made by event: interval = "event".

Looking plans what a checkpoint would read now, as the trigger does, and writes nothing. One run is asked for at a time:
what arrives until that run plans its checkpoint goes into the same checkpoint, so a burst makes one. A request that
turns out to be needless does no harm, since a run that finds nothing new makes no checkpoint (`is_due`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tidegate import seams
from tidegate.checkpoint import control
from tidegate.checkpoint.planning import Plans
from tidegate.errors import TidegateError, Unavailable
from tidegate.protocol.rules import CreateEntry, on_trigger
from tidegate.records.codec import fingerprint
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    from tidegate.coordinator import Coordinator
    from tidegate.protocol.view import View

__all__ = ["Arrival", "InputWatch", "is_due"]

AFTER_FAILURE_S: Final = 10.0
"""From an aborted checkpoint until its input is tried again; twice as long after each further one."""

UNTIL_PLANNED_S: Final = 60.0
"""The time that a run has to plan its checkpoint before another one is asked for; twice as long after each further
one."""


@dataclass(frozen=True)
class Arrival:
    """A reason to make a checkpoint now."""

    key: str
    """The position that a checkpoint would read from: the same as long as nobody has read on."""
    reason: str


class InputWatch:
    """Tells when a checkpoint should be made: input is waiting, or there was no checkpoint for `max_pause`."""

    def __init__(self, coordinator: Coordinator, max_pause_s: float) -> None:
        self.coordinator = coordinator
        self.max_pause_s = max_pause_s
        self._seen: tuple[int, int] | None = None
        self._requests = 0
        self._next_request = seams.monotonic()

    def look(self) -> Arrival | None:
        """Return why a checkpoint should be made now; None: there is no reason, or a run was asked for already.

        Raise Unavailable if a source or the ledger does not answer.
        """
        view = self.coordinator.ledger.view()
        self._follow(view)
        if seams.monotonic() < self._next_request:
            return None
        arrival = self._arrival(view)
        if arrival is not None:
            self._requests += 1
            self._next_request = seams.monotonic() + self._backoff(UNTIL_PLANNED_S, self._requests)
        return arrival

    def _follow(self, view: View) -> None:
        """Take note of what became of the last request: a new checkpoint, or one that was aborted."""
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
        return min(doubled_s, max(first_s, self.max_pause_s))

    def _arrival(self, view: View) -> Arrival | None:
        if control.final_cancel(view) is not None or control.finished(view) is not None:
            return None
        limit = self.coordinator.settings.max_concurrent_checkpoints
        answer = on_trigger(view, "", limit, {})
        if isinstance(answer, CreateEntry) and self.coordinator.suspended() is None:
            arrival = self._new_input(answer, view)
            if arrival is not None:
                return arrival
        if is_due(view, self.max_pause_s) and not self._is_at_work(view):
            return Arrival(f"pause:{view.last_id}", f"there was no checkpoint for {self.max_pause_s:g} s")
        return None

    def _new_input(self, answer: CreateEntry, view: View) -> Arrival | None:
        if answer.base is None:
            return Arrival("first", "it is the first checkpoint")
        try:
            names = Plans(self.coordinator).waiting_input(answer, view)
        except Unavailable:
            raise
        except TidegateError as error:  # planning meets the same, and lets everybody know
            return Arrival(f"error:{error.reason}", f"its input cannot be planned: {error.reason}")
        if not names:
            return None
        base = view.get(answer.base)
        ends = {name: part.end for name, part in base.plan.sources.items()} if base is not None else {}
        return Arrival(fingerprint(ends), f"there is new input for {', '.join(names)}")

    def _is_at_work(self, view: View) -> bool:
        """Return whether a checkpoint is open that may still be completed. What comes after it is asked for then."""
        ledger = self.coordinator.ledger
        return any(not ledger.expired(entry.plan) for entry in view.still_open())


def is_due(view: View, max_pause_s: float) -> bool:
    """Return whether a checkpoint is to be made even if nothing is new: it is the first, or the last is long ago."""
    if not view.entries:
        return True
    return seams.now() - parse_time(view.entries[-1].plan.created) >= timedelta(seconds=max_pause_s)


def _failures(view: View) -> int:
    """Return how many of the last checkpoints in a row were aborted, since the last act of a person."""
    count = 0
    for entry in reversed(view.entries):
        if not entry.aborted or entry.control is not None:
            break
        count += 1
    return count
