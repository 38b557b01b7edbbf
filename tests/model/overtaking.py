"""Two jobs and a channel: the second one may be overtaken. Every order of plans, acks, aborts and decisions.

`main` reads the source and sends offset n to `slow` in checkpoint n. `slow` may be at work on several checkpoints at
once: a zombie beside the attempt that took it for gone. A decider makes its manifest, and may write it much later.
The decisions are the product's own functions: protocol.on_job and on_completion, progress_of and manifest_of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tests.model.stories import story
from tidegate.checkpoint import manifests
from tidegate.protocol import progress
from tidegate.protocol import rules as protocol
from tidegate.protocol.view import Acked, Entry
from tidegate.records.records import (
    Ack,
    Decision,
    Handle,
    InFlight,
    JobStats,
    Manifest,
    Overtaking,
    Payload,
    Plan,
    TablePart,
)

FIRST, SLOW = "main", "slow"
Ids = tuple[int, ...]


class Work(NamedTuple):
    """An attempt at the slow job: the entry of the ack that it continues from (0: none), and what it has taken."""

    prev: int
    taken: Ids


class Made(NamedTuple):
    """A manifest: at which entry the slow job is, whose acks are published, and what is in flight."""

    at: int
    published: Ids
    in_flight: Ids


class Fact(NamedTuple):
    """One entry."""

    base: int
    sent: bool = False
    slow: Work | None = None
    passed: bool = False
    aborted: bool = False
    made: Made | None = None

    @property
    def open(self) -> bool:
        return not self.aborted and self.made is None


class State(NamedTuple):
    """The log, what attempts at the slow job are at work on, and the manifests that deciders have made."""

    log: tuple[Fact, ...] = ()
    working: tuple[tuple[int, Work], ...] = ()
    drawn: tuple[tuple[int, Made], ...] = ()


@dataclass(frozen=True)
class Rules:
    """What is explored, and which of the product's rules are replaced by wrong ones."""

    max_ids: int = 3
    max_open: int = 2
    forced: Ids = ()
    """Checkpoints that overtake nothing."""
    line: Callable[[State, int], tuple[int, ...]] | None = None
    progress_of: Callable[[Sequence[Entry]], progress.JobProgress] = progress.job_progress
    published: Callable[[Sequence[Acked]], Sequence[Acked]] = tuple  # type: ignore[assignment]
    keeps_late: bool = True
    passes_on: bool = True


def handle(job: str, id: int) -> Handle:
    return Handle(entry=id, sha=f"{job}{id}")


@cache
def entry_of(id: int, fact: Fact, forced: bool) -> Entry:
    """One entry as the ledger would hand it out."""
    acks = {}
    if fact.sent:
        prev = handle(FIRST, fact.base) if fact.base else None
        acks[FIRST] = acked(id, FIRST, prev, {}, {"rows": Payload(data={})})
    if fact.slow is not None:
        taken = {FIRST: [handle(FIRST, each) for each in fact.slow.taken]}
        acks[SLOW] = acked(id, SLOW, handle(SLOW, fact.slow.prev) if fact.slow.prev else None, taken, {})
    decision = None
    if not fact.open:
        outcome, sha = ("aborted", None) if fact.aborted else ("completed", "sha")
        decision = Decision(attempt="x", created="", id=id, outcome=outcome, manifest=sha)  # type: ignore[arg-type]
    manifest = manifest_of(id, fact.made) if fact.made is not None else None
    passed = frozenset({SLOW} if fact.passed else ())
    plan = plan_of(id, fact.base, forced)
    return Entry(plan=plan, acks=acks, decision=decision, manifest=manifest, overtaken=passed)


def acked(
    id: int, job: str, prev: Handle | None, inputs: dict[str, list[Handle]], channels: dict[str, Payload]
) -> Acked:
    sinks = {"table": Payload(data={"id": id})} if job == SLOW else {}
    ack = Ack(
        attempt="x",
        created="",
        id=id,
        job=job,
        prev=prev,
        sinks=sinks,
        inputs=inputs,
        channels=channels,
        stats=JobStats(),
    )
    return Acked(ack=ack, handle=handle(job, id))


@cache
def plan_of(id: int, base: int, forced: bool) -> Plan:
    return Plan(
        attempt="x",
        created="",
        id=id,
        kind="scheduled",
        run=f"run{id}",
        base=base or None,
        sources={},
        triggers=[],
        acks=[FIRST, SLOW],
        takes={SLOW: {"rows": FIRST}},
        overtaking=None if forced else Overtaking(jobs=[SLOW], after_s=0.0),
        commits=["table"],
        timeout_s=1.0,
        config={},
        config_fingerprint="",
        code_fingerprint="",
    )


def manifest_of(id: int, made: Made) -> Manifest:
    jobs = {FIRST: handle(FIRST, id)} | ({SLOW: handle(SLOW, made.at)} if made.at else {})
    flight = [InFlight(job=FIRST, ack=handle(FIRST, each), channels={}) for each in made.in_flight]
    parts = [Payload(data={"id": each}) for each in made.published]
    return Manifest(
        attempt="x",
        created="",
        id=id,
        base=None,
        base_manifest=None,
        positions={},
        jobs=jobs,
        tables={"table": TablePart(after=None, committables=parts)},
        in_flight={SLOW: flight} if flight else {},
    )


# -- what can happen ---------------------------------------------------------------------------------------


def entry(rules: Rules, state: State, id: int) -> Entry:
    return entry_of(id, state.log[id - 1], id in rules.forced)


def line_of(rules: Rules, state: State, id: int) -> list[Entry]:
    """The entry and what it rests on."""
    if rules.line is not None:
        return [entry(rules, state, each) for each in rules.line(state, id)]
    found, below = [], id
    while below:
        found.append(entry(rules, state, below))
        below = state.log[below - 1].base
    return found


def resting(state: State, line: list[Entry]) -> tuple[Entry | None, list[Entry]]:
    """The base, and the rest of the line."""
    base = next((each for each in line[1:] if each.id == line[0].plan.base), None)
    return base, [each for each in line[1:] if each is not base]


def put(state: State, id: int, **changed: object) -> State:
    log = (*state.log[: id - 1], state.log[id - 1]._replace(**changed), *state.log[id:])  # type: ignore[arg-type]
    return state._replace(log=log)


def steps(rules: Rules, state: State) -> Iterator[tuple[str, State]]:
    yield from plans(rules, state)
    for id, fact in enumerate(state.log, 1):
        dead = bool(fact.base and state.log[fact.base - 1].aborted)
        if fact.open:
            yield f"aborts {id}", put(state, id, aborted=True)
            if not fact.sent and not dead and (not fact.base or state.log[fact.base - 1].sent):
                yield f"main acks {id}", put(state, id, sent=True)
            yield from decides(rules, state, id)
        if fact.slow is None and not fact.aborted:
            yield from begins(rules, state, id)
    for number, (id, work) in enumerate(state.working):
        after = state._replace(working=(*state.working[:number], *state.working[number + 1 :]))
        late = state.log[id - 1].made is not None and not rules.keeps_late
        if state.log[id - 1].slow is None and not late:
            yield f"slow acks {id}, having taken {work.taken} behind {work.prev}", put(after, id, slow=work)
        else:
            yield f"slow finds {id} done", after
    for number, (id, made) in enumerate(state.drawn):
        after = state._replace(drawn=(*state.drawn[:number], *state.drawn[number + 1 :]))
        won = state.log[id - 1].open
        yield f"decides {id}: {made}" if won else f"finds {id} decided", put(after, id, made=made) if won else after


def plans(rules: Rules, state: State) -> Iterator[tuple[str, State]]:
    open_ones = sum(fact.open for fact in state.log)
    doomed = any(fact.open and fact.base and state.log[fact.base - 1].aborted for fact in state.log)
    if len(state.log) < rules.max_ids and open_ones < rules.max_open and not doomed:
        base = max((id for id, fact in enumerate(state.log, 1) if not fact.aborted), default=0)
        yield f"plans {len(state.log) + 1} on {base}", state._replace(log=(*state.log, Fact(base)))


def begins(rules: Rules, state: State, id: int) -> Iterator[tuple[str, State]]:
    """The slow job's task: whether those below are gone is any guess."""
    if sum(each == id for each, _ in state.working) > 1 or len(state.working) > 2:
        return
    line = line_of(rules, state, id)
    real, progress_module = line[0], rules.progress_of(line)
    below = [each.id for each in line[1:]]
    beyond = any(fact.made is not None and fact.made.at > id for fact in state.log)
    for gone in ((), tuple(below)):
        base, rest = resting(state, line)
        answer = protocol.on_job(real, base, SLOW, (FIRST,), rest, gone, beyond=beyond)
        if isinstance(answer, protocol.RunJob):
            prev = answer.prev.entry if answer.prev is not None else 0
            taken = tuple(each.ack.entry for each in progress_module.in_flight.get(SLOW, ()))
            work = (id, Work(prev, taken))
            if work not in state.working:
                yield f"slow begins {id}", state._replace(working=tuple(sorted((*state.working, work))))
        elif isinstance(answer, protocol.SkipJob) and not state.log[id - 1].passed and rules.passes_on:
            yield f"{id} goes past slow, busy with {answer.busy_with}", put(state, id, passed=True)


def decides(rules: Rules, state: State, id: int) -> Iterator[tuple[str, State]]:
    line = line_of(rules, state, id)
    passed = {SLOW} if any(fact.passed for fact in state.log[id:]) else set()
    base, below = resting(state, line)
    answer = protocol.on_completion(line[0], base, None, below, passed)
    if isinstance(answer, protocol.Abort):
        yield f"aborts {id}: {answer.reason}", put(state, id, aborted=True)
    if not isinstance(answer, protocol.Complete):
        return
    found = rules.progress_of(line)
    chain = rules.published(found.chains.get(SLOW, ()))
    at = found.chosen.get(SLOW)
    flight = tuple(each.ack.entry for each in found.in_flight.get(SLOW, ()))
    made = Made(at.entry if at else 0, tuple(each.handle.entry for each in chain), flight)
    flaws = list(manifests.manifest_flaws(manifest_of(id, made), line[0]))
    if (id, made) not in state.drawn and not flaws:
        yield f"draws {id}: {made}", state._replace(drawn=tuple(sorted((*state.drawn, (id, made)))))
    elif flaws:
        yield f"draws {id}, which cannot be: {flaws[0]}", put(state, id, made=made)


# -- what must hold ----------------------------------------------------------------------------------------


def broken(rules: Rules, state: State) -> str | None:
    """I1 over the channel: what completed manifests have published is a prefix of what was sent, each once; and what
    the last one has in flight is all the rest."""
    shown: list[int] = []
    sent: list[int] = []
    at = 0
    for id, fact in enumerate(state.log, 1):
        if fact.made is None:
            continue
        sent.append(id)
        for each in fact.made.published:
            work = state.log[each - 1].slow
            if work is None or state.log[each - 1].aborted:
                return f"checkpoint {id} publishes what slow did in {each}, which does not count"
            shown += work.taken
        if shown != sent[: len(shown)]:
            return f"by checkpoint {id}, slow's table shows {shown}; sent was {sent}"
        if list(fact.made.in_flight) != sent[len(shown) :]:
            return f"checkpoint {id} has {fact.made.in_flight} in flight; sent was {sent}, shown is {shown}"
        if fact.made.at < at:
            return f"in checkpoint {id} slow is at {fact.made.at}, before it was at {at}"
        at = fact.made.at
        if id in rules.forced and at != id:
            return f"checkpoint {id} was to be aligned, and slow is at {at}"
    return None


def stuck(rules: Rules, state: State) -> str | None:
    """I8: one patient process ends what is open and makes one more checkpoint: slow is at it, nothing is in flight."""
    for id, fact in enumerate(state.log, 1):
        if fact.open:
            state = put(state, id, aborted=True)
    alone = Rules(max_ids=len(state.log) + 1, line=rules.line, progress_of=rules.progress_of, published=rules.published)
    state = State(log=state.log)
    id = len(state.log) + 1
    for wanted in (
        f"plans {id}",
        f"main acks {id}",
        f"slow begins {id}",
        f"slow acks {id}",
        f"draws {id}",
        f"decides {id}",
    ):
        state = next((after for text, after in steps(alone, state) if text.startswith(wanted)), state)
    made = state.log[-1].made if len(state.log) == id else None
    return None if made is not None and made.at == id and not made.in_flight else f"I8: nobody can get slow to {id}"


def explore(rules: Rules, limit: int = 400_000) -> tuple[int, str, tuple[str, ...]]:
    """(states, the first problem, its shortest story)."""
    first = State()
    came: dict[State, tuple[State, str] | None] = {first: None}
    queue = deque([first])
    logs: set[tuple[Fact, ...]] = set()
    while queue and len(came) < limit:
        state = queue.popleft()
        for text, after in steps(rules, state):
            if after in came:
                continue
            came[after] = (state, text)
            problem = None
            if after.log not in logs:
                logs.add(after.log)
                problem = broken(rules, after) or stuck(rules, after)
            if problem is not None:
                return len(came), problem, story(came, after)
            queue.append(after)
    return len(came), "", ()


def progress_made(rules: Rules, limit: int = 100_000) -> bool:
    """Whether slow, each time so slow that the next checkpoint goes past it, ever has anything published."""
    first, seen = State(), {State()}
    queue = deque([first])
    while queue and len(seen) < limit:
        state = queue.popleft()
        if any(fact.made is not None and fact.made.at for fact in state.log):
            return True
        for text, after in steps(rules, state):
            early = text.startswith("slow acks") and state.log[int(text.split()[2].rstrip(",")) - 1].made is None
            if not early and after not in seen and not text.startswith("aborts"):
                seen.add(after)
                queue.append(after)
    return False
