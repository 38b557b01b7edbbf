"""Diverts in the model: a person takes rows out of what waits for table 0, and table 1, its quarantine, gets them.

A row is what one checkpoint has staged. A divert takes those of the first checkpoint that waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.model import rollback
from tests.model.facts import Content, DivertFact, Fact, Log, State, rolled_back
from tests.model.stepper import Step, Stepper, put
from tests.model.world import END, Pc, ask_clock

TABLE, QUARANTINE = 0, 1


def look(at: Stepper) -> Iterator[Step]:
    """V1: the table first. What it has a part of cannot be diverted: that part would be sent again."""
    _, last, begun = at.head(TABLE)
    if begun is None:
        yield f"reads that table {TABLE} holds {last}", at.go(("VV", last))
    else:
        yield f"finds a part of {begun} on table {TABLE}, and diverts nothing", at.go(END)


def plan(at: Stepper, last: int | None) -> Iterator[Step]:
    """V1: then the log, in which nothing may be open."""
    facts, first = at.window()
    if any(fact.open for fact in facts):
        return
    id = first + len(facts)
    base = next((first + n for n in reversed(range(len(facts))) if not facts[n].aborted), None)
    if id > at.world.max_ids or base is None or not waiting(at.log, last) or rolls_back(at, last):
        yield "has nothing to divert", at.go(END)
    else:
        pc: Pc = ("VC", id, base, last)
        yield f"diverts what waits above {last}", at.go(at.settled(tuple(range(1, id)), pc))


def rolls_back(at: Stepper, last: int | None) -> bool:
    """Whether a rollback waits, too: it comes first."""
    if at.broken("divert over a rollback that waits"):
        return False
    return any(fact.rollback is not None and fact.made is not None for fact in at.log[last or 0 :])


def waiting(log: Log, last: int | None) -> list[tuple[int, Content]]:
    """What waits for the table: of an earlier divert that may still apply, what that one leaves."""
    found: list[tuple[int, Content]] = []
    for id, fact in enumerate(log, 1):
        if id <= (last or 0) or fact.made is None or fact.rollback is not None or rolled_back(log, id):
            continue
        if fact.divert is not None and fact.divert.after == last and fact.settled is None:
            found = [(id, content) for content in fact.divert.rest]
        own = fact.made.content[TABLE]
        if own is not None:
            found.append((id, own))
    return found


def create(at: Stepper, id: int, base: int, last: int | None) -> Iterator[Step]:
    """An entry of its own, made by hand; what it stages follows from the log below it."""
    if id != len(at.log) + 1:
        yield f"finds {id} taken", at.go(("V",))
        return
    rows = waiting(at.log, last)
    earlier = [
        fact.divert.taken
        for number, fact in enumerate(at.log, 1)
        if fact.divert is not None
        and fact.made is not None
        and fact.divert.after == last
        and fact.settled is None
        and not rolled_back(at.log, number)
    ]
    before = earlier[-1] if earlier and not at.broken("forget the rows of an earlier divert") else ()
    taken, rest = before, tuple(content for _, content in rows)
    if rest:  # of the first one the last row, which its target refuses
        taken = (*before, rest[0][-1])
        rest = tuple(content for content in (rest[0][:-1], *rest[1:]) if content)
    end = at.log[base - 1].end
    nobody = tuple((None,) * len(tables) for tables in at.world.shape.jobs)
    clock = at.world.remembered(ask_clock, id, at.fact(base), True)
    assert isinstance(clock, int)
    divert = DivertFact(last, rest, taken)
    fact = Fact(f"{at.actor.run}{id}", base, end, end, nobody, clock=clock, by_hand=True, divert=divert)
    yield f"creates entry {id}: diverts {taken}", at.create(("TI", id), (*at.log, fact), "plan", id)


def settle(at: Stepper, id: int, applied: bool, table: int, upto: int | None) -> Iterator[Step]:
    """V3: whether it applied. Who else says so says the same."""
    fact, pc = at.log[id - 1], ("P", table, None, upto)
    if fact.settled is None:
        log = put(at.log, id, fact._replace(settled=applied))
        text = f"notes that divert {id} {'applied' if applied else 'came too late'}"
        yield text, at.create(pc, log, "settled", id)
    else:
        yield f"finds noted whether divert {id} applied", at.go(pc)


def content_of(fact: Fact, table: int, *, diverted: bool) -> Content:
    """What a divert publishes on a table."""
    assert fact.divert is not None
    if not diverted:
        return ()
    if table == QUARANTINE:
        return fact.divert.taken
    return tuple(row for content in fact.divert.rest for row in content)


# -- what must hold ----------------------------------------------------------------------------------------


def broken(before: State, after: State) -> Iterator[str]:
    """Each row is at most in one place, once; what is noted about a divert is what the table shows."""
    for table, commits in enumerate(after.tables):
        ids = [commit.id for commit in commits]
        if ids != sorted(set(ids)):
            yield f"I1: table {table} took entries in the order {ids}"
        for id in ids:
            if id > len(after.log) or after.log[id - 1].made is None:
                yield f"I4: table {table} shows checkpoint {id}, which is not completed"
    twice = [row for row, count in rows_shown(after).items() if count > 1]
    if twice and not _is_being_rolled_back(after):
        yield f"I1: {twice} is in table and quarantine, or in one of them twice"
    for id, (old, new) in enumerate(zip(before.log, after.log, strict=False), 1):
        if old.settled is not None and new.settled != old.settled and after.losses == before.losses:
            yield f"I3: what is noted about divert {id} was rewritten"


def _is_being_rolled_back(state: State) -> bool:
    """A rollback is on one of the tables only, which readers are told."""
    backs = [id for id, fact in enumerate(state.log, 1) if fact.rollback is not None and fact.made is not None]
    return any(not all(any(c.id == id for c in commits) for commits in state.tables) for id in backs)


def rows_shown(state: State) -> Counter[str]:
    """What table and quarantine show together."""
    shown: Counter[str] = Counter(state.begun[1] if state.begun is not None else ())
    for commits in state.tables:
        for _, content in rollback.shown(commits):
            shown.update(content)
    return shown


def owed(state: State) -> str | None:
    """Once all is published: every row of every checkpoint that counts is in the table or in quarantine."""
    rows: Counter[str] = Counter()
    as_of: dict[int, Counter[str]] = {}
    for id, fact in enumerate(state.log, 1):
        if fact.made is None:
            continue
        if fact.rollback is not None:
            rows = as_of[fact.rollback]
        elif (content := fact.made.content[TABLE]) is not None:
            rows = rows + Counter(content)
        as_of[id] = rows
    shown = rows_shown(state)
    if shown != rows:
        return f"I8: table and quarantine have {dict(shown)}, completed was {dict(rows)}"
    return None


__all__ = ["broken", "content_of", "create", "look", "owed", "plan", "settle"]
