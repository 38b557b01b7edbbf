"""Breadth-first search over all interleavings, with the shortest story of what went wrong."""

from __future__ import annotations

import contextlib
import gc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tests.model import invariants
from tests.model.facts import Fact, State
from tests.model.process import steps
from tests.model.stories import story
from tests.model.world import ModelWorld


@dataclass(frozen=True)
class Result:
    """What a search found."""

    states: int
    steps: int
    exhausted: bool
    """True: every reachable state was seen."""
    problem: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        seen = f"{self.states:,} states, {self.steps:,} steps, {'all' if self.exhausted else 'not all'} seen"
        if self.problem is None:
            return f"{seen}: nothing wrong"
        story = "\n".join(f"  {number:>3} {line}" for number, line in enumerate(self.trace, 1))
        return f"{seen}: after {len(self.trace)} steps: {self.problem}\n{story}"


def explore(world: ModelWorld, limit: int = 1_000_000) -> Result:
    """Visit every state that `world` can reach, up to `limit`; stop at the first that breaks an invariant."""
    with _without_collecting_garbage():
        return _explore(world, limit)


@contextlib.contextmanager
def _without_collecting_garbage() -> Iterator[None]:
    """States hold no cycles and are all kept: a search for garbage among a million of them finds none."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _explore(world: ModelWorld, limit: int) -> Result:
    first = world.first()
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    queue, taken = deque([first]), 0
    while queue:
        state = queue.popleft()
        for text, following in successors(world, state):
            taken += 1
            known = len(came_from)
            came_from.setdefault(following, (state, text))  # a state is hashed whole each time: once is enough
            if len(came_from) == known:
                continue
            problem = invariants.broken_by(world, state, following)
            if problem is not None:
                return Result(len(came_from), taken, False, problem, story(came_from, following))
            if len(came_from) >= limit:
                return Result(len(came_from), taken, False)
            queue.append(following)
    return Result(len(came_from), taken, True)


def successors(world: ModelWorld, state: State) -> Iterator[tuple[str, State]]:
    """All that can happen next: any process takes a step, or the power fails."""
    for number in range(len(world.actors)):
        name = world.actors[number].name
        for text, following in steps(world, state, number):
            yield f"{name} {text}", following
    if state.losses:
        yield "the power fails", power_loss(world, state)


def power_loss(world: ModelWorld, state: State) -> State:
    """All processes die and start again; what was seen but not synced is gone."""
    log: list[Fact | None] = list(state.log)
    lines = list(state.lines)
    for kind, id, *rest in state.unsynced:
        if kind == "tombstone":
            lines[int(str(id))] = lines[int(str(id))]._replace(tombstone=False)
            continue
        fact = log[int(str(id)) - 1]
        if fact is None:
            continue
        if kind == "plan":
            fact = None
        elif kind == "decision":
            fact = fact._replace(aborted=False, made=None)
        elif kind == "settled":
            fact = fact._replace(settled=None)
        elif kind == "ack":
            job = int(str(rest[0]))
            fact = fact._replace(acks=(*fact.acks[:job], (None,) * len(fact.acks[job]), *fact.acks[job + 1 :]))
        log[int(str(id)) - 1] = fact
    while log and log[-1] is None:
        log.pop()
    return state._replace(
        log=tuple(log),  # type: ignore[arg-type]
        pcs=tuple(actor.start for actor in world.actors),
        unsynced=frozenset(),
        losses=state.losses - 1,
        lines=tuple(lines),
    )
