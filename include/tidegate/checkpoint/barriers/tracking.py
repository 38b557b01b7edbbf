"""At least once: what one job does about the barriers of several channels. It counts them, and blocks nothing.

The rules:

    counting         a checkpoint is due when its barrier is in every channel that has not ended
    what is there    the job then takes all that is in its channels, also behind that barrier, and acknowledges it
    one channel      each barrier is due at once: nothing is counted
    subsumed         a checkpoint that is due ends the count of all that came before it: none of them will be due
    out of date      a barrier at or below the last one that was due is refused
    bounded          of those that are counted at most `TRACKED` are kept: the oldest ones are given up
    one at a time    what is due while the job is busy waits for it, in order
    cancelled        is counted no more, and is passed on once
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidegate.checkpoint.barriers.events import (
    Abort,
    Action,
    Barrier,
    Cancel,
    Ended,
    Event,
    Freed,
    Refuse,
    Take,
)

__all__ = ["TRACKED", "Tracker"]

TRACKED = 50


@dataclass(frozen=True)
class Tracker:
    """One job's side of its channels, after some events."""

    channels: frozenset[str]
    """Those that have not ended."""
    busy_with: int | None = None
    """The checkpoint that an attempt of this job is at work on."""
    pending: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By checkpoint that is counted, the channels in which its barrier is."""
    ready: tuple[int, ...] = ()
    """Those that are due, and wait for the job."""
    last: int = 0
    """The highest one that was due or given up: nothing at or below it is counted."""
    cancelled: frozenset[int] = frozenset()

    def on(self, event: Event) -> tuple[Tracker, tuple[Action, ...]]:
        """What follows from an event."""
        if isinstance(event, Barrier):
            return self._barrier(event)
        if isinstance(event, Cancel):
            return self._cancelled(event.id)
        if isinstance(event, Ended):
            return _due(replace(self, channels=self.channels - {event.channel}))
        if isinstance(event, Freed):
            return _next(replace(self, busy_with=None))
        return self, ()  # nothing here has a time

    def after(self, *events: Event) -> tuple[Tracker, tuple[Action, ...]]:
        """What follows from events, one after the other."""
        state, actions = self, list[Action]()
        for event in events:
            state, some = state.on(event)
            actions += some
        return state, tuple(actions)

    def _barrier(self, event: Barrier) -> tuple[Tracker, tuple[Action, ...]]:
        if event.id <= self.last or event.id in self.cancelled:
            return self, (Refuse(event.id, event.channel),)
        if self.channels == {event.channel}:
            return _next(subsumed(self, event.id))
        there = self.pending.get(event.id, frozenset()) | {event.channel}
        return _due(bounded(replace(self, pending={**self.pending, event.id: there})))

    def _cancelled(self, id: int) -> tuple[Tracker, tuple[Action, ...]]:
        known = id in self.pending or id in self.ready or id == self.busy_with
        if id in self.cancelled or (id <= self.last and not known):
            return self, ()
        pending = {other: there for other, there in self.pending.items() if other != id}
        busy = None if self.busy_with == id else self.busy_with
        ready = tuple(other for other in self.ready if other != id)
        state = replace(self, pending=pending, ready=ready, busy_with=busy, cancelled=self.cancelled | {id})
        state, actions = _next(state)
        return state, (Abort(id), *actions)


def subsumed(state: Tracker, id: int) -> Tracker:
    """The checkpoint is due: those before it are counted no more."""
    pending = {other: there for other, there in state.pending.items() if other > id}
    cancelled = frozenset(other for other in state.cancelled if other > id)
    return replace(state, pending=pending, ready=(*state.ready, id), last=id, cancelled=cancelled)


def bounded(state: Tracker) -> Tracker:
    """Without the oldest ones, if too many are counted."""
    given_up = sorted(state.pending)[:-TRACKED]
    if not given_up:
        return state
    pending = {id: there for id, there in state.pending.items() if id not in given_up}
    return replace(state, pending=pending, last=max(state.last, given_up[-1]))


def _due(state: Tracker) -> tuple[Tracker, tuple[Action, ...]]:
    """Count: what is all there is due, the highest of it last."""
    for id in sorted(state.pending):
        if id in state.pending and state.pending[id] >= state.channels:
            state = subsumed(state, id)
    return _next(state)


def _next(state: Tracker) -> tuple[Tracker, tuple[Action, ...]]:
    """Let a free job begin with what is due."""
    if state.busy_with is not None or not state.ready:
        return state, ()
    first, *rest = state.ready
    return replace(state, busy_with=first, ready=tuple(rest)), (Take(first),)
