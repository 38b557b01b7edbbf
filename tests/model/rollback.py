"""Rollbacks in the model: somebody chooses a checkpoint that is on all tables, and goes back to it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.facts import Commit, Content, Fact, Log, Made, table_name
from tests.model.stepper import Step, Stepper, put
from tests.model.world import END, PUBLISH, RETENTION, Pc, ask_rollback, entry
from tidegate.protocol import rules

Rows = tuple[tuple[int, Content], ...]


def read(at: Stepper, target: int | None) -> Iterator[Step]:
    """R2: look at the log, and choose where to go back to; what is still open is ended first."""
    facts, first = at.window()
    answer = at.world.remembered(ask_rollback, facts, first)
    for chosen in targets(at) if target is None else [target]:
        if isinstance(answer, rules.Abort):
            yield f"wants to abort {answer.id} to go back to {chosen}", at.go(("RA", answer.id, chosen))
        elif isinstance(answer, rules.CreateEntry) and answer.id <= at.world.max_ids:
            pc: Pc = ("RC", answer.id, answer.base, chosen)
            if not at.broken("roll back on what is not durable"):
                pc = at.settled(tuple(range(1, answer.id)), pc)
            pins = at.state.pins
            if RETENTION in [actor.start for actor in at.world.actors]:  # else nobody would look at it
                pins |= {(("rollback", at.number), chosen)}
            if at.log[chosen - 1].retired:
                yield f"pins {chosen}, and finds it retired", at.go(END)
            else:
                yield f"pins {chosen}, and will go back to it", at.go(pc, pins=pins)


def targets(at: Stepper) -> Iterator[int]:
    """Completed entries that every table holds, or has held."""
    for id, fact in enumerate(at.log, 1):
        if fact.made is not None and not fact.retired and is_published(at, id):
            yield id


def is_published(at: Stepper, id: int) -> bool:
    """Whether every table holds an entry, or has held it."""
    return all(_on(at, table, id) for table in range(at.world.shape.tables))


def _on(at: Stepper, table: int, id: int) -> bool:
    known = entry(at.world, id, at.log[id - 1])
    assert known is not None
    assert known.manifest is not None
    after = rules.after_publish([known.manifest], table_name(table))
    return after is None or any(commit.id == after for commit in at.state.tables[table])


def abort(at: Stepper, id: int, target: int) -> Iterator[Step]:
    """T3, as for a trigger: whether the abort won is read."""
    yield at.abort(id, ("R", target))


def create(at: Stepper, id: int, base: int | None, target: int) -> Iterator[Step]:
    """The entry at the end of the log: who makes it has seen all lower ones, decided."""
    end = at.log[target - 1].end
    if at.broken("go on from where the last one ended") and base is not None:
        end = at.log[base - 1].end
    if id == len(at.log) + 1:
        fact = Fact(f"R{id}", base, end, end, (), rollback=target, clock=at.log[target - 1].clock)
        log = (*at.log, fact)
        yield f"creates entry {id}: back to {target}", at.create(("RD", id, target), log, "plan", id)
    else:
        yield f"finds {id} taken", at.go(("R", target))


def decide(at: Stepper, id: int, target: int) -> Iterator[Step]:
    """From here on it is only ever published; before, anybody may end it."""
    fact, then = at.log[id - 1], at.log[target - 1].made
    assert then is not None
    if fact.open:
        tables = at.world.shape.tables
        made = Made(then.acks, (None,) * tables, ((f"as of {target}",),) * tables)
        log = put(at.log, id, fact._replace(made=made, indexed=True))
        yield f"decides: back to {target}", at.create(PUBLISH, log, "decision", id)
    else:
        yield f"finds {id} decided", at.go(END)


def commit_of(at: Stepper, table: int, id: int, content: Content) -> Commit:
    """The commit that an entry makes: of a rollback one that shows again what was there as of its target."""
    fact = at.log[id - 1]
    if fact.rollback is None:
        return Commit(id, content)
    back = sum(commit.id <= fact.rollback for commit in at.state.tables[table])
    return Commit(id, content, back, fact.swap.rows[table] if fact.swap is not None else ())


def changes(at: Stepper, table: int, id: int, content: Content) -> bool:
    """Whether readers of a table would see anything else after the commit of an entry."""
    commits = at.state.tables[table]
    return shown((*commits, commit_of(at, table, id, content))) != shown(commits)


def without_fence(at: Stepper, table: int, facts: Log, first: int, answer: object) -> object:
    """Broken on purpose: a rollback that finds the table as it should be makes no commit, and nobody minds."""
    for id, fact in enumerate(facts, first):
        owed = fact.made is not None and fact.made.content[table] is not None
        if not owed or id <= (at.head(table)[1] or 0):
            continue
        if fact.rollback is None:
            if any(later.rollback is not None and later.made and later.rollback < id for later in facts[id - first :]):
                continue  # it was rolled back
            return rules.Publish(id, None)
        if changes(at, table, id, ()):
            return rules.Publish(id, None)
    return rules.NothingToPublish() if isinstance(answer, rules.Publish | rules.Damaged) else answer


# -- what must hold ----------------------------------------------------------------------------------------


def shown(commits: tuple[Commit, ...]) -> Rows:
    """What a reader of the table sees: which entry has put what there."""
    states: list[Rows] = [()]
    for commit in commits:
        rows = states[commit.back] if commit.back is not None else (*states[-1], (commit.id, commit.content))
        states.append(rows + commit.brought)
    return states[-1]


def wanted(log: Log, table: int, upto: int) -> Rows:
    """What the log says that the table shows once everything up to entry `upto` is published there."""
    rows: Rows = ()
    as_of: dict[int, Rows] = {0: ()}
    for id, fact in enumerate(log[:upto], 1):
        if fact.made is None:
            continue
        content = fact.made.content[table]
        if fact.rollback is not None:
            rows = as_of[fact.rollback] + (fact.swap.rows[table] if fact.swap is not None else ())
        elif content is not None:
            rows = (*rows, (id, content))
        as_of[id] = rows
    return rows


def broken_tables(log: Log, table: int, commits: tuple[Commit, ...], hint: int) -> Iterator[str]:
    """I1, I4, I7 where there are rollbacks. What is settled is on the table forever: nothing cancelled comes back."""
    ids = [commit.id for commit in commits]
    if ids != sorted(set(ids)):
        yield f"I1: table {table} took entries in the order {ids}"
    for id in ids:
        if id > len(log) or log[id - 1].made is None:
            yield f"I4: table {table} shows checkpoint {id}, which is not completed"
            return
    upto = max([*ids, hint])
    found, expected = shown(commits), wanted(log, table, upto)
    if found != expected:
        yield f"I7: table {table} shows {found}, as of {upto} it should be {expected}"


def broken_log(id: int, fact: Fact, log: Log) -> Iterator[str]:
    """R2: a rollback is decided when all lower entries are, and continues from where its target ended."""
    if any(lower.open for lower in log[: id - 1]):
        yield f"rollback {id} is decided, and something below it is open"
    assert fact.rollback is not None
    if fact.swap is not None:
        return  # tests/model/lines.py
    ended = log[fact.rollback - 1].end
    if fact.end != ended:
        yield f"I7: rollback {id} goes on from {fact.end}, its target {fact.rollback} ended at {ended}"
