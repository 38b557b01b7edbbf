"""Publish, hints and power, one access to the store or to a table per step."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import diverts, intervals, rollback
from tests.model.chain import manifest
from tests.model.facts import Content, Log
from tests.model.stepper import Head, Step, Stepper
from tests.model.world import END, Pc, ask_publish
from tidegate.protocol import rules


def publish_head(at: Stepper, table: int, contradicted: Head | None, upto: int | None) -> Iterator[Step]:
    """P1: the table first."""
    if at.broken("read the log before the table"):
        yield "reads the log", at.go(("PV", table, None, contradicted, upto, at.window()))
        return
    head = at.head(table)
    pc = ("PV", table, head, contradicted, upto, None)
    yield f"reads table {table}: version {head[0]}, last checkpoint {head[1]}", at.go(pc)


def publish_view(
    at: Stepper, table: int, head: Head | None, contradicted: Head | None, upto: int | None, early: object
) -> Iterator[Step]:
    """P1: then the log; all at once, or entry by entry, highest first."""
    if head is None:
        facts, first = early  # type: ignore[misc]
        yield from _obey(at, table, at.head(table), contradicted, upto, facts, first)
    elif not at.actor.careful:
        facts, first = at.window()
        yield from _obey(at, table, head, contradicted, upto, facts, first)
    elif early is None:
        facts, first = at.window()
        pc: Pc = ("PV", table, head, contradicted, upto, (first, len(facts), ()))
        yield f"lists entries {first} to {first + len(facts) - 1}", at.go(pc)
    else:
        first, count, seen = early  # type: ignore[misc]
        if len(seen) == count:
            yield from _obey(at, table, head, contradicted, upto, seen, first)
            return
        if at.broken("read the log upwards"):
            id = first + len(seen)
            seen = (*seen, at.log[id - 1])
        else:
            id = first + count - 1 - len(seen)
            seen = (at.log[id - 1], *seen)
        yield f"reads entry {id}", at.go(("PV", table, head, contradicted, upto, (first, count, seen)))


def _obey(
    at: Stepper, table: int, head: Head, contradicted: Head | None, upto: int | None, facts: Log, first: int
) -> Iterator[Step]:
    """P2. A contradiction is believed only if the table still says so when it is read again."""
    if at.world.shape.intervals:
        yield from intervals.obey(at, table, head, contradicted, upto, facts, first)
        return
    if at.broken("publish before decision"):
        facts = tuple(_taken_as_completed(at, first + n, facts) for n in range(len(facts)))
    last = (at.state.hint or None) if at.broken("trust published.json") else head[1]
    answer = at.world.remembered(ask_publish, facts, first, table, last, head[2])
    if at.broken("no fence commit on rollback"):
        answer = rollback.without_fence(at, table, facts, first, answer)
    if isinstance(answer, rules.Damaged):
        if head == contradicted or at.broken("believe the first contradiction"):
            yield f"says CORRUPT: {answer.why}", at.go(("CORRUPT", answer.why))
        else:
            yield f"doubts: {answer.why}", at.go(("P", table, head, upto))
    elif isinstance(answer, rules.SettleDivert):
        pc: Pc = ("VS", answer.id, answer.applied, table, upto)
        yield f"sees whether divert {answer.id} applied", at.go(at.settled((answer.id,), pc))
    elif isinstance(answer, rules.AwaitDivert):
        yield f"waits for divert {answer.id} of table 0", at.go(("P", 0, None, upto))
    elif isinstance(answer, rules.NothingToPublish):
        done = max((first + n for n, fact in enumerate(facts) if fact.made is not None), default=0)
        upto = done if upto is None else min(done, upto)
        if table + 1 < at.world.shape.tables:
            yield f"finds table {table} complete", at.go(("P", table + 1, None, upto))
        else:
            yield f"finds all tables complete up to {upto}", at.go(("H", upto) if upto else END)
    elif isinstance(answer, rules.Publish):
        fact = facts[answer.id - first]
        assert fact.made is not None
        content = fact.made.content[table]
        if fact.divert is not None:
            content = diverts.content_of(fact, table, diverted=answer.diverted)
        if at.broken("content beside the ack"):
            fact = at.log[answer.id - 1]
            content = (f"{fact.end}:{fact.beside}",)
        pc = ("PC", table, head, answer.id, content, upto)
        if not at.broken("publish what is not durable"):
            noted = [first + n for n, fact in enumerate(facts) if fact.settled is not None]
            if at.broken("publish over a note that is not durable"):
                noted = []
            pc = at.settled((answer.id, *noted), pc)
        yield f"will publish {answer.id} on table {table}", at.go(pc)


def _taken_as_completed(at: Stepper, id: int, facts: Log) -> object:
    """Broken on purpose: an entry whose acks are all in is taken for completed."""
    fact = at.log[id - 1]
    acked = all(fact.acked(job) for job in range(len(fact.acks)))
    return fact._replace(made=manifest(at, id, fact)) if fact.open and acked else fact


def publish_commit(at: Stepper, table: int, head: Head, id: int, content: Content, upto: int | None) -> Iterator[Step]:
    """P3: at exactly the version behind the head that was read."""
    pc: Pc = ("P", table, None, upto)
    if (at.head(table)[0], at.head(table)[2]) != (head[0], head[2]) and not at.broken("publish without CAS"):
        yield f"lost the race for table {table}", at.go(pc)
    elif table == 0 and at.world.shape.in_parts and len(content) > 1 and head[2] != id:
        yield f"sends a part of {id} to table {table}", at.send_part(id, content, pc)
    elif at.broken("no commit where a swap changes nothing") and not rollback.changes(at, table, id, content):
        yield f"finds table {table} as {id} leaves it", at.go(pc)
    else:
        yield f"publishes {id} on table {table}", at.commit(table, id, content, pc)


def hint_read(at: Stepper, upto: int) -> Iterator[Step]:
    """S11: the highest completed entry that is on every table, with nothing open below it."""
    if at.world.shape.intervals:
        yield from intervals.hint_read(at, upto)  # type: ignore[arg-type]
        return
    facts, first = at.window()
    settled = 0
    for id, fact in enumerate(facts, first):
        if at.broken("hint over what is not published"):
            settled = id if fact.made is not None else settled
        elif fact.open or id > upto:
            break
        elif fact.made is not None:
            settled = id
    pc: Pc = ("HW", settled) if settled > at.state.hint else END
    yield "reads the log for the hint", at.go(pc)


def hint_write(at: Stepper, id: int, then: tuple[int, ...] = ()) -> Iterator[Step]:
    """S11. A late writer may set it back: any old value is right."""
    yield f"sets the hint to {id}", at.go(("HI", then, END) if then else END, hint=id)


# -- power -----------------------------------------------------------------------------------------------


def settle(at: Stepper, ids: tuple[int, ...], pc: Pc) -> Iterator[Step]:
    """W2: before acting on records of others, make sure that they stay."""
    unsynced = frozenset(made for made in at.state.unsynced if made[0] == "tombstone" or made[1] not in ids)
    yield f"settles {' and '.join(str(id) for id in ids if id)}", at.go(pc, unsynced=unsynced)


def sync(at: Stepper, made: tuple[object, ...], pc: Pc) -> Iterator[Step]:
    """The creator's own fsync of the folder; plan and decision lie in one folder."""
    gone = {made, ("plan", made[1])} if made[0] == "decision" else {made}
    yield f"syncs the {made[0]} of {made[1]}", at.go(pc, unsynced=at.state.unsynced - gone)
