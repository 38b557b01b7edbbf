"""Who takes part, what is broken on purpose, and the questions that are put to the real protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.facts import FUSED, Fact, Log, Shape, State, entry_of, table_name, view_of
from tidegate.protocol import rules
from tidegate.protocol.view import Entry

Pc = tuple[object, ...]
"""Where a process stands and what it remembers; tests/model/process.py lists them."""

START: Pc = ("T",)
PUBLISH: Pc = ("P", 0, None, None)
ROLLBACK: Pc = ("R", None)
END: Pc = ("END",)


class Actor(NamedTuple):
    """One process: whose chain it runs and where it begins. Its name is the attempt in its records."""

    name: str
    run: str
    start: Pc = START
    careful: bool = False
    """True: reads the log entry by entry, others act in between."""


@dataclass(frozen=True)
class World:
    """What is explored: the pipeline, the processes, the limits, and what is broken on purpose."""

    actors: tuple[Actor, ...]
    shape: Shape = FUSED
    max_open: int = 1
    max_ids: int = 3
    give_up: bool = True
    """Triggers may find any reason at any time to end others' entries: expiry, Airflow, a person."""
    power_losses: int = 0
    on_trigger: Callable[..., object] = rules.on_trigger
    on_job: Callable[..., object] = rules.on_job
    on_completion: Callable[..., object] = rules.on_completion
    on_publish: Callable[..., object] = rules.on_publish
    on_rollback: Callable[..., object] = rules.on_rollback
    broken: frozenset[str] = frozenset()
    """Names of the mutations of I/O (tests/model/mutations.py) that are switched on."""
    answers: dict[object, object] = field(default_factory=dict, init=False, compare=False, repr=False)

    def first(self) -> State:
        """Nothing exists, everybody is about to start."""
        return State(
            log=(),
            tables=((),) * self.shape.tables,
            hint=0,
            pcs=tuple(actor.start for actor in self.actors),
            losses=self.power_losses,
        )

    def remembered(self, question: Callable[..., object], *facts: object) -> object:
        """The answer to a question about facts; each different question is put once."""
        key = (question, facts)
        if key not in self.answers:
            self.answers[key] = question(self, *facts)
        return self.answers[key]


# -- the questions, put to the real functions ------------------------------------------------------------


def ask_trigger(
    world: World,
    facts: Log,
    first: int,
    elsewhere: tuple[tuple[int, Fact], ...],
    run: str,
    doomed: int | None,
    below: tuple[int, ...] = (),
) -> object:
    """T1 to T5: `facts` is the log from entry `first` on, `doomed` an entry that there is reason to give up."""
    view = view_of(world.shape, facts, first, elsewhere)
    reasons = {} if doomed is None else {doomed: "CHECKPOINT_EXPIRED"}
    if world.shape.intervals:
        from tests.model.intervals import wanted

        return world.on_trigger(view, run, world.max_open, reasons, wanted(world, run, below))
    return world.on_trigger(view, run, world.max_open, reasons)


def ask_rollback(world: World, facts: Log, first: int) -> object:
    """R2."""
    return world.on_rollback(view_of(world.shape, facts, first))


def ask_job(world: World, id: int, fact: Fact, base: Fact | None, job: int) -> object:
    """J1."""
    return world.on_job(entry(world, id, fact), entry(world, fact.base, base), f"job{job}")


def ask_completion(world: World, id: int, fact: Fact, base: Fact | None) -> object:
    """D1, D2."""
    return world.on_completion(entry(world, id, fact), entry(world, fact.base, base))


def ask_publish(world: World, facts: Log, first: int, table: int, last: int | None) -> object:
    """P2."""
    return world.on_publish(view_of(world.shape, facts, first), table_name(table), last)


def entry(world: World, id: int | None, fact: Fact | None) -> Entry | None:
    """The record that the protocol gets for a fact."""
    return None if id is None or fact is None else entry_of(world.shape, id, fact)
