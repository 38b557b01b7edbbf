"""Interval pipelines in the model: each run has an interval; publishing and hints go by intervals."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from tests.model.facts import Commit, Fact, Log, Shape, State, table_name, view_of
from tests.model.stepper import Step, Stepper, put
from tests.model.world import END, ModelWorld, Pc
from tidegate.protocol import rules
from tidegate.records.interval import Interval

Head = tuple[int, int | None]


def interval_of(number: int) -> Interval:
    start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
    return Interval(start, start + timedelta(hours=1))


def wanted(world: ModelWorld, run: str, below: tuple[int, ...]) -> rules.WantedInterval:
    """What a run asks for: to make its interval, again if it is done. below: the intervals that the index has."""
    indexed = frozenset(interval_of(number) for number in below)
    return rules.WantedInterval(interval_of(world.shape.interval(run)), True, reprocess=True, indexed=indexed)


def filed(at: Stepper) -> tuple[int, ...]:
    """The index, as somebody reads it now."""
    return tuple(sorted({at.world.shape.interval(fact.run) for fact in at.log if fact.filed}))


def ask_publish(
    world: ModelWorld, facts: Log, first: int, settled: int, table: int, last: int | None, held: frozenset[int]
) -> object:
    """Section 8, put to the real function."""
    view = view_of(world.shape, facts, first, settled=settled)
    return rules.on_publish_interval(view, table_name(table), last, held.__contains__)


def obey(
    at: Stepper, table: int, head: Head, contradicted: Head | None, upto: object, facts: Log, first: int
) -> Iterator[Step]:
    """What to do next on a table that was read at `head`, with the log as `facts`."""
    commits = at.state.tables[table][: head[0]]
    settled = first if at.state.hint else 0
    held = frozenset(commit.id for commit in commits)
    answer = at.world.remembered(ask_publish, facts, first, settled, table, _highest(commits), held)
    if at.broken("publish a lower id of an interval") and isinstance(answer, rules.NothingToPublish):
        answer = _lowest_owed(at, facts, first, held) or answer
    if isinstance(answer, rules.Damaged):
        yield from _doubt(at, table, head, contradicted, upto, answer.why)
    elif isinstance(answer, rules.NothingToPublish):
        done = frozenset(first + n for n, fact in enumerate(facts) if fact.made is not None)
        upto = done if upto is None else done & upto  # type: ignore[operator]
        if table + 1 < at.world.shape.tables:
            yield f"finds table {table} complete", at.go(("P", table + 1, None, upto))
        else:
            yield f"finds all tables complete: {sorted(upto)}", at.go(("H", upto) if upto else END)  # type: ignore[call-overload]
    elif isinstance(answer, rules.Publish):
        fact = facts[answer.id - first]
        assert fact.made is not None
        expected = answer.after if answer.after is not None else _below(at, fact, first)
        if not _finds(at, commits, fact, expected):
            yield from _doubt(
                at, table, head, contradicted, upto, f"interval of {answer.id} is not as {expected} left it"
            )
            return
        pc: Pc = ("PC", table, head, answer.id, fact.made.content[table] or (), upto)
        if not at.broken("publish what is not durable"):
            pc = at.settled((answer.id,), pc)
        yield f"will publish {answer.id} on table {table} in place of {expected}", at.go(pc)


def _doubt(at: Stepper, table: int, head: Head, contradicted: Head | None, upto: object, why: str) -> Iterator[Step]:
    if head == contradicted:
        yield f"says CORRUPT: {why}", at.go(("CORRUPT", why))
    else:
        yield f"doubts: {why}", at.go(("P", table, head, upto))


def _below(at: Stepper, fact: Fact, first: int) -> int | None:
    """What the index says that the interval shows, of entries below the view."""
    interval = at.world.shape.interval(fact.run)
    ids = (id for id, each in enumerate(at.log[: first - 1], 1) if each.filed)
    return max((id for id in ids if at.world.shape.interval(at.log[id - 1].run) == interval), default=None)


def _finds(at: Stepper, commits: tuple[Commit, ...], fact: Fact, expected: int | None) -> bool:
    """Whether the files of the interval are those of `expected`. Without files there is nothing to be told apart."""
    shown = shown_by(at.world.shape, at.log, commits).get(at.world.shape.interval(fact.run))
    found = shown.content if shown is not None else ()
    known = next((commit.content for commit in commits if commit.id == expected), ())
    return found == known


def _lowest_owed(at: Stepper, facts: Log, first: int, held: frozenset[int]) -> rules.Publish | None:
    """Broken on purpose: what was left out because a higher one was there is published all the same."""
    owed = (first + n for n, fact in enumerate(facts) if fact.made is not None and first + n not in held)
    id = next(owed, None)
    return None if id is None else rules.Publish(id, max(held, default=None))


def shown_by(shape: Shape, log: Log, commits: tuple[Commit, ...]) -> dict[int, Commit]:
    """What a reader sees of each interval: its last commit, for each takes out what was there."""
    return {shape.interval(log[commit.id - 1].run): commit for commit in commits}


def _highest(commits: tuple[Commit, ...]) -> int | None:
    return max((commit.id for commit in commits), default=None)


# -- hints -----------------------------------------------------------------------------------------------


def hint_read(at: Stepper, upto: frozenset[int]) -> Iterator[Step]:
    """The highest entry up to which all are decided, and published or behind a later one; then index, then hint."""
    facts, first = at.window()
    settled, ids = 0, []
    for id, fact in enumerate(facts, first):
        if fact.open or (fact.made is not None and id not in upto):
            break
        if fact.made is not None:
            settled = id
            ids.append(id)
    if settled <= at.state.hint:
        yield "reads the log for the hint", at.go(END)
    elif at.broken("hint before the index"):
        yield "reads the log for the hint", at.go(("HW", settled, tuple(ids)))
    else:
        yield "reads the log for the hint", at.go(("HI", tuple(ids), ("HW", settled)))


def index(at: Stepper, ids: tuple[int, ...], pc: Pc) -> Iterator[Step]:
    """intervals/<key>/<id> exist."""
    log = at.log
    for id in ids:
        log = put(log, id, log[id - 1]._replace(filed=True))
    yield f"indexes the intervals of {ids}", at.go(pc, log=log)


# -- what must hold --------------------------------------------------------------------------------------


def broken_log(world: ModelWorld, before: State, after: State) -> Iterator[str]:
    """Each run has one checkpoint at most, each interval one that is open; nothing rests on anything."""
    runs: dict[str, int] = {}
    open_ones: dict[int, int] = {}
    for id, fact in enumerate(after.log, 1):
        if fact.aborted:
            continue
        if (other := runs.setdefault(fact.run, id)) != id:
            yield f"run {fact.run} has checkpoint {other} and checkpoint {id}"
        if fact.base is not None:
            yield f"checkpoint {id} rests on {fact.base}"
        if fact.open and (other := open_ones.setdefault(world.shape.interval(fact.run), id)) != id:
            yield f"checkpoints {other} and {id} make one interval at the same time"


def broken_tables(world: ModelWorld, before: State, after: State) -> Iterator[str]:
    """I4: only what is completed is shown, as decided; and of one interval never a lower one behind a higher one."""
    for table, commits in enumerate(after.tables):
        seen: dict[int, int] = {}
        for commit in commits:
            fact = after.log[commit.id - 1] if commit.id <= len(after.log) else None
            if fact is None or fact.made is None:
                yield f"I4: table {table} shows checkpoint {commit.id}, which is not completed"
                return
            if commit.content != (fact.made.content[table] or ()):
                yield f"I4: table {table} shows {commit.content} for checkpoint {commit.id}, decided was something else"
            higher = seen.setdefault(world.shape.interval(fact.run), 0)
            if higher >= commit.id:
                yield f"I1: table {table} shows checkpoint {commit.id} in place of {higher}"
            seen[world.shape.interval(fact.run)] = commit.id


def owed(world: ModelWorld, state: State) -> str | None:
    """I8: each table shows the highest completed entry of each interval."""
    for table, commits in enumerate(state.tables):
        wanted = {world.shape.interval(f.run): id for id, f in enumerate(state.log, 1) if f.made is not None}
        shown = {number: commit.id for number, commit in shown_by(world.shape, state.log, commits).items()}
        if shown != wanted:
            return f"I8: after a lone process was done, table {table} shows {shown}, completed are {wanted}"
    return None
