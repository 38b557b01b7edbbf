"""Exactly once: what one job does about the barriers of several channels.

The rules, each a function of its own below:

    out of date     a barrier of a checkpoint that is settled here (acknowledged, overtaken or cancelled) is refused
    all there       a job takes a checkpoint's rows when its barrier is in every channel that has not ended
    in order        of several that are there, the lowest comes first: each checkpoint rests on the one below
    one at a time   a job that is busy begins nothing else
    may overtake    a busy job is passed by a later barrier: at once, or when time is up, or never (modes.py)
    cancelled       ends what is being done for it, and is passed on once; what has been settled stays

A job that was overtaken catches up in one go: `Consume(n)` takes whatever it has not taken, up to barrier n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidegate.checkpoint.barriers.events import (
    Abort,
    Action,
    Barrier,
    Block,
    Cancel,
    Consume,
    Ended,
    Event,
    Overtake,
    Record,
    Refuse,
    TimeUp,
)
from tidegate.checkpoint.barriers.modes import ALIGNED, Mode

__all__ = ["Alignment"]


@dataclass(frozen=True)
class Alignment:
    """One job's side of its channels, after some events."""

    channels: frozenset[str]
    """Those that have not ended."""
    mode: Mode = ALIGNED
    aligned: frozenset[int] = frozenset()
    """Checkpoints that are not to overtake anything."""
    busy_with: int | None = None
    """The checkpoint that an attempt of this job is at work on."""
    pending: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By checkpoint that is not settled, the channels in which its barrier is."""
    settled: frozenset[int] = frozenset()
    overtaken: frozenset[int] = frozenset()
    """Those of the settled ones that were not waited for: what their barriers close off is recorded."""
    due: frozenset[int] = frozenset()
    """Those whose time is up."""

    def on(self, event: Event) -> tuple[Alignment, tuple[Action, ...]]:
        """What follows from an event."""
        if isinstance(event, Barrier):
            return self._barrier(event)
        if isinstance(event, Cancel):
            return self._cancelled(event.id)
        if isinstance(event, TimeUp):
            return replace(self, due=self.due | {event.id})._next()
        if isinstance(event, Ended):
            return replace(self, channels=self.channels - {event.channel})._next()
        settled = self.settled | {self.busy_with} if event.acked and self.busy_with is not None else self.settled
        return replace(self, busy_with=None, settled=settled)._next()

    def after(self, *events: Event) -> tuple[Alignment, tuple[Action, ...]]:
        """What follows from events, one after the other."""
        state, actions = self, list[Action]()
        for event in events:
            state, some = state.on(event)
            actions += some
        return state, tuple(actions)

    def _barrier(self, event: Barrier) -> tuple[Alignment, tuple[Action, ...]]:
        if event.id in self.overtaken:
            return self, (Record(event.id, event.channel),)
        if out_of_date(self, event.id):
            return self, (Refuse(event.id, event.channel),)
        there = self.pending.get(event.id, frozenset()) | {event.channel}
        state, actions = replace(self, pending={**self.pending, event.id: there})._next()
        waits = event.id in state.pending and not all_there(state, event.id)
        return state, (Block(event.id, event.channel), *actions) if waits else actions

    def _cancelled(self, id: int) -> tuple[Alignment, tuple[Action, ...]]:
        if out_of_date(self, id) and id != self.busy_with:
            return self, ()
        state, actions = self._settle(id)._free_of(id)._next()
        return state, (Abort(id), *actions)

    def _next(self) -> tuple[Alignment, tuple[Action, ...]]:
        """Begin with what is there, or go past it."""
        state, actions = self, list[Action]()
        first = next_to_take(state)
        if first is not None:
            actions.append(Consume(first))
            pending = {id: there for id, there in state.pending.items() if id != first}
            state = replace(state, busy_with=first, pending=pending)
        for id in sorted(state.pending):
            if may_overtake(state, id):
                actions += [Overtake(id), *(Record(id, channel) for channel in sorted(state.pending[id]))]
                state = replace(state._settle(id), overtaken=state.overtaken | {id})
        return state, tuple(actions)

    def _settle(self, id: int) -> Alignment:
        pending = {other: there for other, there in self.pending.items() if other != id}
        return replace(self, pending=pending, settled=self.settled | {id})

    def _free_of(self, id: int) -> Alignment:
        return replace(self, busy_with=None) if self.busy_with == id else self


def out_of_date(state: Alignment, id: int) -> bool:
    """Whether nothing more is to be done for the checkpoint here, but what is being done."""
    return id in state.settled or id == state.busy_with


def all_there(state: Alignment, id: int) -> bool:
    """Whether its barrier is in every channel."""
    return state.pending[id] >= state.channels


def next_to_take(state: Alignment) -> int | None:
    """The checkpoint that a free job takes next: the lowest, once it is all there."""
    if state.busy_with is not None:
        return None
    first = min(state.pending, default=None)
    return first if first is not None and all_there(state, first) else None


def may_overtake(state: Alignment, id: int) -> bool:
    """Whether the checkpoint goes past the job now: it is busy with an earlier one, and need not be waited for."""
    if state.busy_with is None or id in state.aligned or not state.mode.overtaking:
        return False
    return state.busy_with < id and (not state.mode.patient or id in state.due)
