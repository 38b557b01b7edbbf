"""Who takes part, what is broken on purpose, and the questions that are put to the real protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.facts import (
    FUSED,
    Commit,
    Fact,
    LineFact,
    Log,
    Made,
    Shape,
    State,
    clock_of,
    clock_text,
    entry_of,
    plan_of,
    staged,
    table_name,
    view_of,
)
from tidegate.protocol import backfill as backfill_rules
from tidegate.protocol import clock, rules
from tidegate.protocol.backfill import Approved, BackfillProgress, JudgedHold
from tidegate.protocol.view import Entry

Pc = tuple[object, ...]
"""Where a process stands and what it remembers; tests/model/process.py lists them."""

BY_HAND = "H"
"""The run of a person who changes a state by hand."""

START: Pc = ("T",)
PUBLISH: Pc = ("P", 0, None, None)
ROLLBACK: Pc = ("R", None)
RETENTION: Pc = ("G",)
END: Pc = ("END",)


class Actor(NamedTuple):
    """One process: whose chain it runs and where it begins. Its name is the attempt in its records."""

    name: str
    run: str
    start: Pc = START
    careful: bool = False
    """True: reads the log entry by entry, others act in between."""


@dataclass(frozen=True)
class ModelWorld:
    """What is explored: the pipeline, the processes, the limits, and what is broken on purpose."""

    actors: tuple[Actor, ...]
    shape: Shape = FUSED
    max_open: int = 1
    max_ids: int = 3
    give_up: bool = True
    """Triggers may find any reason at any time to end others' entries: expiry, Airflow, a person."""
    power_losses: int = 0
    begun: int = 0
    """How many checkpoints are completed before anybody starts."""
    unpublished: int = 0
    """How many of these, the last ones, are on no table yet."""
    line_count: int = 0
    """How many lines there may be."""
    origins: tuple[int, ...] = (1,)
    """Where a line may be forked from; 0 for the beginning."""
    savepoints: tuple[int, ...] = ()
    """Which of the first checkpoints have a name."""
    ahead: int = 0
    """By how much the numbers of a line are higher than they need be: its checkpoints may have been aborted."""
    clocks: tuple[int, ...] = ()
    """What time it is by the clock of whoever makes each entry; by default they all agree."""
    recorded: bool = False
    """Lines cut their input as it was recorded."""
    holds: tuple[str, ...] = ()
    """Who has approved each of the first checkpoints, which a gate has held: a person, or the time limit; empty: it was
    not held. "new rows": by a person, and today's code makes other rows of the same input."""
    on_trigger: Callable[..., object] = rules.on_trigger
    on_job: Callable[..., object] = rules.on_job
    on_completion: Callable[..., object] = rules.on_completion
    on_publish: Callable[..., object] = rules.on_publish
    on_rollback: Callable[..., object] = rules.on_rollback
    on_replay: Callable[..., object] = backfill_rules.on_replay
    on_swap: Callable[..., object] = backfill_rules.on_swap
    on_cut: Callable[..., object] = backfill_rules.on_cut
    on_discard: Callable[..., object] = backfill_rules.on_discard
    on_hold: Callable[..., object] = backfill_rules.decide_shared_approval
    clock_of_plan: Callable[..., str] = clock.clock_of_plan
    clock_of_swap: Callable[..., str] = clock.clock_of_swap
    broken: frozenset[str] = frozenset()
    """Names of the mutations of I/O (tests/model/mutations.py) that are switched on."""
    answers: dict[object, object] = field(default_factory=dict, init=False, compare=False, repr=False)

    def first(self) -> State:
        """Everybody is about to start; nothing exists but the first checkpoints of a world that has begun."""
        log = tuple(begun(self.shape, id) for id in range(1, self.begun + 1))
        made = [fact.made for fact in log if fact.made is not None]
        contents = [[each.content[table] for each in made] for table in range(self.shape.tables)]
        settled = self.begun - self.unpublished
        tables = tuple(
            tuple(Commit(id, content) for id, content in enumerate(each[:settled], 1) if content is not None)
            for each in contents
        )
        return State(
            log=log,
            tables=tables,
            hint=settled,
            pcs=tuple(actor.start for actor in self.actors),
            losses=self.power_losses,
            lines=(LineFact(),) * self.line_count,
            pins=frozenset((("savepoint", id), id) for id in self.savepoints),
        )

    def now(self, id: int) -> int:
        """What time it is when an entry is made."""
        return self.clocks[id - 1] if id <= len(self.clocks) else id

    def remembered(self, question: Callable[..., object], *facts: object) -> object:
        """The answer to a question about facts; each different question is put once."""
        key = (question, facts)
        if key not in self.answers:
            self.answers[key] = question(self, *facts)
        return self.answers[key]


def begun(shape: Shape, id: int) -> Fact:
    """A checkpoint that is long completed."""
    acks = tuple(("0",) * len(tables) for tables in shape.jobs)
    fact = Fact(f"{id}", id - 1 or None, id - 1, id, acks, indexed=True, clock=id)
    content = tuple(None if shape.empty(table, id) else staged(shape, fact, table) for table in range(shape.tables))
    after: list[int | None] = []
    for table in range(shape.tables):
        filled = (below for below in range(id - 1, 0, -1) if not shape.empty(table, below))
        after.append(next(filled, None))
    return fact._replace(made=Made(acks, tuple(after), content))


# -- the questions, put to the real functions ------------------------------------------------------------


def ask_trigger(
    world: ModelWorld,
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


def ask_rollback(world: ModelWorld, facts: Log, first: int) -> object:
    """R2."""
    return world.on_rollback(view_of(world.shape, facts, first))


Rollbacks = tuple[tuple[tuple[int, int], ...], tuple[int, ...]]
"""All completed ones, as (entry, its target), and which of them are swaps."""


def ask_replay(
    world: ModelWorld,
    facts: Log,
    first: int,
    elsewhere: tuple[tuple[int, Fact], ...],
    line: BackfillProgress,
    rollbacks: Rollbacks,
) -> object:
    """L2."""
    return world.on_replay(view_of(world.shape, facts, first, elsewhere), line, *rollbacks)


def ask_hold(world: ModelWorld, ids: tuple[int, ...]) -> object:
    """L9: whether the approval of a live checkpoint carries over to a line's that covers these."""

    def judged(covered: tuple[int, ...], rows: str) -> JudgedHold:
        return JudgedHold(declaration="the gate's", ranges=str(covered), rules="too many", rows=rows)

    new = any(held_live(world, id) == "new rows" for id in ids)
    answered = {id: held_live(world, id) for id in ids if held_live(world, id)}
    live = {id: Approved(judged((id,), f"of {(id,)}"), by_person=by != "the time limit") for id, by in answered.items()}
    return world.on_hold(ids, judged(ids, f"of {ids}{' anew' if new else ''}"), live)


def held_live(world: ModelWorld, id: int) -> str:
    """Who has approved a live checkpoint; empty: no gate has held it."""
    return world.holds[id - 1] if id <= len(world.holds) else ""


def ask_cut(
    world: ModelWorld,
    facts: Log,
    first: int,
    ids: tuple[int, ...],
    before: int | None,
    recorded: bool,
    drops: bool,
) -> object:
    """L2: before: the clock of the line's last checkpoint."""
    base = plan_of(world.shape, 1, Fact("-", None, 0, 0, (), clock=before)) if before is not None else None
    plans = [plan_of(world.shape, id, facts[id - first]) for id in ids]
    return world.on_cut(plans, base, recorded=recorded, drops=drops)


def ask_clock(world: ModelWorld, id: int, base: Fact | None, by_hand: bool) -> object:
    """Section 9."""
    plan = plan_of(world.shape, 1, base._replace(base=None, swap=None, rollback=None)) if base is not None else None
    return clock_of(world.clock_of_plan(clock_text(world.now(id)), plan, by_hand=by_hand))


def ask_swap_clock(world: ModelWorld, head: int, base: Fact | None) -> object:
    """Section 9."""
    plan = plan_of(world.shape, 1, base._replace(base=None, swap=None, rollback=None)) if base is not None else None
    return clock_of(world.clock_of_swap(plan_of(world.shape, 1, Fact("-", None, 0, 0, (), clock=head)), plan))


def ask_swap(
    world: ModelWorld,
    facts: Log,
    first: int,
    elsewhere: tuple[tuple[int, Fact], ...],
    line: BackfillProgress,
    rollbacks: Rollbacks,
    doomed: int | None,
) -> object:
    """L4."""
    reasons = {} if doomed is None else {doomed: "CHECKPOINT_EXPIRED"}
    return world.on_swap(view_of(world.shape, facts, first, elsewhere), line, *rollbacks, reasons)


def ask_discard(world: ModelWorld, facts: Log, first: int, elsewhere: tuple[tuple[int, Fact], ...], run: str) -> object:
    """L8."""
    return world.on_discard(view_of(world.shape, facts, first, elsewhere), run)


def ask_job(world: ModelWorld, id: int, fact: Fact, base: Fact | None, job: int) -> object:
    """J1."""
    return world.on_job(entry(world, id, fact), entry(world, fact.base, base), f"job{job}")


def ask_completion(world: ModelWorld, id: int, fact: Fact, base: Fact | None) -> object:
    """D1, D2."""
    return world.on_completion(entry(world, id, fact), entry(world, fact.base, base))


def ask_publish(world: ModelWorld, facts: Log, first: int, table: int, last: int | None, begun: int | None) -> object:
    """P2, V2."""
    settled = {first + n: fact.settled for n, fact in enumerate(facts) if fact.settled is not None}
    view = view_of(world.shape, facts, first)
    if not world.shape.quarantine:
        return world.on_publish(view, table_name(table), last)
    return world.on_publish(view, table_name(table), last, settled, begun)


def entry(world: ModelWorld, id: int | None, fact: Fact | None) -> Entry | None:
    """The record that the protocol gets for a fact."""
    return None if id is None or fact is None else entry_of(world.shape, id, fact)
