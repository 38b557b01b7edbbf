"""At least once: two jobs and a channel, with tables that are written before the decision. Every order, every crash.

`main` reads the row behind those of its base, writes it to its table, and sends it. `slow` takes what is there, also of
later checkpoints, writes it, and acks. Attempts overlap, and die anywhere. The answers are the product's own functions:
protocol.on_job and on_completion, and ahead.taking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import msgspec

from tests.model.overtaking import FIRST, SLOW, handle, plan_of
from tests.model.stories import story
from tidegate.protocol import early_input as ahead
from tidegate.protocol import rules as protocol
from tidegate.protocol.view import Acked, Entry
from tidegate.records.records import Ack, Decision, Handle, JobStats, Manifest, Payload

Ids = tuple[int, ...]


class Work(NamedTuple):
    """What an attempt at the slow job has taken, by entry, and what of that, or before, is of later ones."""

    taken: Ids
    ahead: Ids


class Fact(NamedTuple):
    """One entry. It reads the row behind those that its base's line has read."""

    base: int
    row: int
    sent: bool = False
    slow: Work | None = None
    aborted: bool = False
    completed: bool = False

    @property
    def open(self) -> bool:
        return not self.aborted and not self.completed


class Attempt(NamedTuple):
    """At which entry, of which job (None: main), and whether it has written to its table."""

    id: int
    work: Work | None
    written: bool = False


class State(NamedTuple):
    """The log, who is at work, and the rows that both tables show."""

    log: tuple[Fact, ...] = ()
    working: tuple[Attempt, ...] = ()
    shown: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    doubled: bool = False
    """Whether a row was ever written a second time."""


@dataclass(frozen=True)
class Rules:
    """What is explored, and which rules are replaced by wrong ones."""

    max_ids: int = 3
    max_open: int = 2
    taking: Callable[..., ahead.InputSelection] = ahead.select_input
    acks_unwritten: bool = False
    rests_on_aborted: bool = False
    remembers_what_lost: bool = False


@cache
def entry_of(id: int, fact: Fact) -> Entry:
    """One entry as the ledger would hand it out."""
    acks = {}
    if fact.sent:
        acks[FIRST] = acked(id, FIRST, handle(FIRST, fact.base) if fact.base else None, {"rows": Payload(data={})})
    if fact.slow is not None:
        prev = handle(SLOW, fact.base) if fact.base else None
        acks[SLOW] = acked(id, SLOW, prev, {}, fact.slow)
    decision = None
    if not fact.open:
        outcome, sha = ("aborted", None) if fact.aborted else ("completed", "sha")
        decision = Decision(attempt="x", created="", id=id, outcome=outcome, manifest=sha)  # type: ignore[arg-type]
    jobs = {job: each.handle for job, each in acks.items()}
    manifest = manifest_of(id, jobs) if fact.completed else None
    plan = msgspec.structs.replace(plan_of(id, fact.base, True), through=["table"])
    return Entry(plan=plan, acks=acks, decision=decision, manifest=manifest)


def acked(id: int, job: str, prev: Handle | None, channels: dict[str, Payload], work: Work | None = None) -> Acked:
    inputs = {FIRST: [handle(FIRST, each) for each in work.taken]} if work is not None else {}
    further = [handle(FIRST, each) for each in work.ahead] if work is not None else []
    ack = Ack(
        attempt="x",
        created="",
        id=id,
        job=job,
        prev=prev,
        sinks={},
        inputs=inputs,
        ahead=further,
        channels=channels,
        stats=JobStats(),
    )
    return Acked(ack=ack, handle=handle(job, id))


def manifest_of(id: int, jobs: dict[str, Handle]) -> Manifest:
    return Manifest(
        attempt="x", created="", id=id, base=None, base_manifest=None, positions={}, jobs=jobs, tables={}, in_flight={}
    )


# -- what can happen ---------------------------------------------------------------------------------------


def entry(state: State, id: int) -> Entry | None:
    return entry_of(id, state.log[id - 1]) if id else None


def put(state: State, id: int, **changed: object) -> State:
    log = (*state.log[: id - 1], state.log[id - 1]._replace(**changed), *state.log[id:])  # type: ignore[arg-type]
    return state._replace(log=log)


def steps(rules: Rules, state: State) -> Iterator[tuple[str, State]]:
    yield from plans(rules, state)
    for id, fact in enumerate(state.log, 1):
        if fact.open:
            yield f"aborts {id}", put(state, id, aborted=True)
            yield from decides(state, id)
        if len(state.working) < 2:
            yield from begins(rules, state, id)
    for number, attempt in enumerate(state.working):
        rest = state._replace(working=(*state.working[:number], *state.working[number + 1 :]))
        yield f"an attempt at {attempt.id} dies", rest
        yield from goes_on(rules, state, rest, attempt)


def plans(rules: Rules, state: State) -> Iterator[tuple[str, State]]:
    open_ones = sum(fact.open for fact in state.log)
    doomed = any(fact.open and fact.base and state.log[fact.base - 1].aborted for fact in state.log)
    if len(state.log) < rules.max_ids and open_ones < rules.max_open and not doomed:
        counts = (id for id, fact in enumerate(state.log, 1) if not fact.aborted or rules.rests_on_aborted)
        base = max(counts, default=0)
        row = state.log[base - 1].row + 1 if base else 1
        below = next((id for id in range(base, 0, -1) if not state.log[id - 1].aborted), 0)
        yield f"plans {len(state.log) + 1} on {base}", state._replace(log=(*state.log, Fact(below, row)))


def begins(rules: Rules, state: State, id: int) -> Iterator[tuple[str, State]]:
    """Attempts at both jobs, as often as anybody likes."""
    fact = state.log[id - 1]
    base = entry(state, fact.base)
    if isinstance(protocol.on_job(entry(state, id), base, FIRST), protocol.RunJob):
        yield from begun(state, Attempt(id, None))
    answer = protocol.on_job(entry(state, id), base, SLOW, (FIRST,))
    if isinstance(answer, protocol.RunJob):
        above = [entry_of(each, state.log[each - 1]) for each in range(id + 1, len(state.log) + 1)]
        before: Sequence[Handle] = base.acks[SLOW].ack.ahead if base is not None and SLOW in base.acks else []
        if rules.remembers_what_lost:
            before = [handle(FIRST, each) for each in told_by_all(state)]
        found = rules.taking(entry(state, id), above, before, {"rows": FIRST})
        taken = tuple(each.ack.entry for each in found.now)
        yield from begun(state, Attempt(id, Work(taken, tuple(each.entry for each in found.ahead))))


def told_by_all(state: State) -> set[int]:
    """What any attempt has taken ahead, whether or not it counts."""
    acks = (fact.slow for fact in state.log if fact.slow is not None)
    working = (attempt.work for attempt in state.working if attempt.work is not None)
    return {each for work in (*acks, *working) for each in work.ahead}


def begun(state: State, attempt: Attempt) -> Iterator[tuple[str, State]]:
    if attempt not in state.working:
        what = "main" if attempt.work is None else f"slow, taking {attempt.work.taken},"
        yield f"{what} begins {attempt.id}", state._replace(working=tuple(sorted((*state.working, attempt), key=repr)))


def goes_on(rules: Rules, state: State, rest: State, attempt: Attempt) -> Iterator[tuple[str, State]]:
    """It writes to its table; then it acks, if nobody else has."""
    fact, job = state.log[attempt.id - 1], 0 if attempt.work is None else 1
    if not attempt.written:
        taken = (attempt.id,) if attempt.work is None else attempt.work.taken
        rows = frozenset(state.log[each - 1].row for each in taken)
        shown = (state.shown[0] | rows, state.shown[1]) if job == 0 else (state.shown[0], state.shown[1] | rows)
        again = state.doubled or bool(rows & state.shown[job])
        done = attempt._replace(written=True)
        working = tuple(sorted((*rest.working, done), key=repr))
        yield f"{done.id} is written", rest._replace(working=working, shown=shown, doubled=again)
    if attempt.written or rules.acks_unwritten:
        there = fact.sent if job == 0 else fact.slow is not None
        changed = {"sent": True} if job == 0 else {"slow": attempt.work}
        yield f"{attempt.id} is acked", rest if there or not fact.open else put(rest, attempt.id, **changed)


def decides(state: State, id: int) -> Iterator[tuple[str, State]]:
    answer = protocol.on_completion(entry(state, id), entry(state, state.log[id - 1].base))
    if isinstance(answer, protocol.Complete):
        yield f"completes {id}", put(state, id, completed=True)
    elif isinstance(answer, protocol.Abort):
        yield f"aborts {id}: {answer.reason}", put(state, id, aborted=True)


# -- what must hold ----------------------------------------------------------------------------------------


def broken(state: State) -> str | None:
    """Of a completed checkpoint, all rows that its line has read are in both tables, and in what slow remembers."""
    for id, fact in enumerate(state.log, 1):
        if not fact.completed:
            continue
        read = set(range(1, fact.row + 1))
        for name, shown in zip((FIRST, SLOW), state.shown, strict=True):
            if lost := read - shown:
                return f"checkpoint {id} is completed, and {sorted(lost)} is not in the table of {name}"
        if lost := read - remembered(state, id):
            return f"checkpoint {id} is completed, and slow does not remember {sorted(lost)}"
    return None


def remembered(state: State, id: int) -> set[int]:
    """The rows that the slow job has taken up to an entry."""
    rows: set[int] = set()
    while id:
        work = state.log[id - 1].slow
        rows |= {state.log[each - 1].row for each in work.taken} if work is not None else set()
        id = state.log[id - 1].base
    return rows


@dataclass(frozen=True)
class Explored:
    states: int
    problem: str
    story: tuple[str, ...]
    doubled: int
    """In so many states something is in a table twice."""
    ahead: int
    """In so many completed ones something was taken ahead."""


def explore(rules: Rules, limit: int = 400_000) -> Explored:
    """All that can happen."""
    first = State()
    came: dict[State, tuple[State, str] | None] = {first: None}
    queue = deque([first])
    doubled = further = 0
    while queue and len(came) < limit:
        state = queue.popleft()
        for text, after in steps(rules, state):
            if after in came:
                continue
            came[after] = (state, text)
            doubled += after.doubled
            further += any(fact.completed and fact.slow is not None and fact.slow.ahead for fact in after.log)
            if problem := broken(after):
                return Explored(len(came), problem, story(came, after), doubled, further)
            queue.append(after)
    return Explored(len(came), "", (), doubled, further)
