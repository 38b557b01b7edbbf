"""The abstract store: what lies in the ledger and in the tables, small enough to be hashed.

One record is one field that goes from nothing to something, once. The functions at the end turn these
facts into the very `View` that `tidegate.protocol.rules` decides on.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import NamedTuple

from tidegate.protocol.view import Acked, Entry, View, rollback_of
from tidegate.records.records import (
    Ack,
    Answer,
    ChangeByHand,
    Decision,
    DivertedPart,
    Handle,
    JobStats,
    Manifest,
    Payload,
    Plan,
    Position,
    Range,
    Restored,
    Rollback,
    SwappedBackfill,
    TablePart,
    Verdict,
)

Attempts = tuple[str | None, ...]
"""Who staged what a job wrote, table by table; all the same unless something is broken."""

Content = tuple[str, ...]
"""What one checkpoint puts into one table: offset and attempt of each job that writes to it."""


class Shape(NamedTuple):
    """The pipeline that is explored: which job writes to which tables, and who has nothing to say when."""

    jobs: tuple[tuple[int, ...], ...] = ((0, 1),)
    tables: int = 2
    gaps: bool = False
    """True: table 1 gets nothing from even offsets, so its publishes skip entries."""
    intervals: tuple[tuple[str, int], ...] = ()
    """For an interval pipeline: which run makes which interval. Others make one of their own."""
    held: bool = False
    """True: every job's verdict holds its checkpoint for a person."""
    without_rows: str = ""
    """Runs in whose interval there is nothing to read."""
    quarantine: bool = False
    """True: table 1 is the quarantine of table 0, and only diverts fill it."""
    in_parts: bool = False
    """True: table 0 takes an entry in two transactions, a row in each, as a topic takes a large one."""

    def interval(self, run: str) -> int:
        return dict(self.intervals).get(run, 99)

    def job_names(self) -> list[str]:
        return [f"job{number}" for number in range(len(self.jobs))]

    def empty(self, table: int, end: int) -> bool:
        return table == 1 and (self.quarantine or (self.gaps and end % 2 == 0))


FUSED = Shape()


class Made(NamedTuple):
    """A manifest: the acks it rests on; per table what comes before and what is added (nothing: None)."""

    acks: tuple[Attempts, ...]
    after: tuple[int | None, ...]
    content: tuple[Content | None, ...]


class Swap(NamedTuple):
    """What a swap brings in: of which line, and of each checkpoint of it the number and what it has replayed."""

    line: int
    checkpoints: tuple[tuple[int, tuple[int, ...]], ...]
    rows: tuple[tuple[tuple[int, Content], ...], ...]
    """By table: what the line has made of that, with the numbers that the rows carry."""
    clock: int = 0
    """That of the line's last checkpoint."""
    dropped: frozenset[int] = frozenset()
    """The changes by hand that somebody has chosen to lose."""


class DivertFact(NamedTuple):
    """What a divert does: if table 0 holds `after`, it gets `rest`, and table 1 gets `taken`."""

    after: int | None
    rest: tuple[Content, ...]
    taken: Content


class Fact(NamedTuple):
    """Everything that has been written about one entry."""

    run: str
    base: int | None
    start: int
    end: int
    acks: tuple[Attempts, ...]
    indexed: bool = False
    aborted: bool = False
    made: Made | None = None
    beside: str | None = None
    """Only where that is broken on purpose: content that is written beside the ack."""
    answer: bool | None = None
    """What a person, or the time limit, says to the verdicts."""
    filed: bool = False
    """The index tells that its interval is completed by it."""
    rollback: int | None = None
    """Of a rollback: the entry that it goes back to."""
    swap: Swap | None = None
    """Of a rollback that is a swap."""
    retired: bool = False
    """Retention has claimed it: nobody may begin to rely on it."""
    gone: bool = False
    """Retention has deleted its records, and what only it names."""
    clock: int = 0
    """The time that counts in it."""
    by_hand: bool = False
    """It reads nothing: a person changes a state."""
    divert: DivertFact | None = None
    settled: bool | None = None
    """Of a divert: whether it applied, once that is noted."""

    @property
    def open(self) -> bool:
        return not self.aborted and self.made is None

    def acked(self, job: int) -> bool:
        return None not in self.acks[job]


class Commit(NamedTuple):
    """One version of a table."""

    id: int
    content: Content
    back: int | None = None
    """Of a rollback: after how many commits the table showed what it shows again."""
    brought: tuple[tuple[int, Content], ...] = ()
    """Of a swap: the rows that it adds to that, with the numbers that they carry."""


Log = tuple[Fact, ...]
Table = tuple[Commit, ...]


class LineFact(NamedTuple):
    """Everything that has been written about one line."""

    origin: int | None = None
    """None: it has not begun. 0: it begins with nothing."""
    lowest: int = 1
    """The entry that its pin is on."""
    checkpoints: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Its log: of each checkpoint the number, and the live entries that it has replayed."""
    clocks: tuple[int, ...] = ()
    """The time of each of these."""
    approved: tuple[str, ...] = ()
    """Who has approved each: a person, who has looked at it; or a number of the live log, whose approval it is."""
    dropped: frozenset[int] = frozenset()
    """The changes by hand that somebody has chosen to lose."""
    files: frozenset[int] = frozenset()
    """The checkpoints whose staged files are there."""
    records: bool = True
    """False: its ledger is deleted, with its acks."""
    tombstone: bool = False

    @property
    def replayed(self) -> tuple[int, ...]:
        return tuple(id for _, ids in self.checkpoints for id in ids)


Pinned = tuple[tuple[object, ...], int]
"""Who has pinned which entry."""


class State(NamedTuple):
    """Everything: the store, and where each process stands."""

    log: Log
    tables: tuple[Table, ...]
    hint: int
    pcs: tuple[tuple[object, ...], ...]
    unsynced: frozenset[tuple[object, ...]] = frozenset()
    """Facts that can be seen but would not survive a power loss. Only used where power can be lost."""
    losses: int = 0
    """How often power can still be lost."""
    lines: tuple[LineFact, ...] = ()
    pins: frozenset[Pinned] = frozenset()
    begun: tuple[int, Content] | None = None
    """The entry of which table 0 has a part, and that part, which readers see."""


def last(table: Table) -> int | None:
    """The last entry that was published there: Delta's txn version."""
    return table[-1].id if table else None


def rolled_back(log: Log, id: int) -> bool:
    """Whether a completed rollback has undone the entry."""
    found = enumerate(log, 1)
    backs = [(f, fact.rollback) for f, fact in found if fact.rollback is not None and fact.made is not None]
    return rollback_of(id, backs) is not None


def staged(shape: Shape, fact: Fact, table: int) -> Content:
    """What the acks of an entry name for one table."""
    if fact.run in shape.without_rows:
        return ()
    rows = tuple(
        f"{fact.end}:{fact.acks[job][tables.index(table)]}" for job, tables in enumerate(shape.jobs) if table in tables
    )
    if not shape.in_parts:
        return rows
    return tuple(f"{row}{half}" for row in rows for half in (" first", " second"))


# -- facts as the records that the protocol knows ----------------------------------------------------------


def view_of(
    shape: Shape, facts: Log, first: int, elsewhere: tuple[tuple[int, Fact], ...] = (), settled: int = 0
) -> View:
    """What a reader hands to the protocol, from the facts that it read: `facts[0]` is entry `first`."""
    return View(
        entries=tuple(entry_of(shape, first + number, fact) for number, fact in enumerate(facts)),
        settled=settled,
        own_outside_view=tuple(entry_of(shape, id, fact) for id, fact in elsewhere),
    )


@cache
def entry_of(shape: Shape, id: int, fact: Fact) -> Entry:
    """One entry as the ledger would hand it out."""
    acks = {}
    for job, name in enumerate(shape.job_names() if fact.rollback is None or fact.swap is not None else ()):
        if fact.acked(job):
            handle = handle_of(id, fact.acks[job])
            gates = {name: HOLDS} if shape.held else {}
            ack = Ack(attempt="x", created="", id=id, job=name, prev=None, sinks={}, gates=gates, stats=JobStats())
            acks[name] = Acked(ack=ack, handle=handle)
    decision = manifest = None
    if fact.aborted:
        decision = Decision(attempt="x", created="", id=id, outcome="aborted")
    elif fact.made is not None:
        decision = Decision(attempt="x", created="", id=id, outcome="completed", manifest="sha")
        acked_in = id if fact.swap is not None else fact.rollback
        manifest = manifest_of(shape, id, fact.made, fact.rollback, acked_in, fact.divert)
    answers = {name: answer_of(id, name, acked.handle, fact.answer) for name, acked in acks.items()}
    told = {name: answer for name, answer in answers.items() if answer is not None}
    return Entry(plan=plan_of(shape, id, fact), acks=acks, decision=decision, manifest=manifest, answers=told)


HOLDS = Verdict(outcome="hold", rows=1, quarantined=0, broken=[], policy={}, results=Payload(data={}))


def answer_of(id: int, gate: str, ack: Handle, approve: bool | None) -> Answer | None:
    """holds/<gate>.json"""
    if approve is None:
        return None
    return Answer(attempt="x", created="", id=id, gate=gate, ack=ack, approve=approve, by="a person")


def handle_of(id: int, attempts: Attempts) -> Handle:
    """The hash of an ack names its content, so here it is its content."""
    return Handle(entry=id, sha=repr(attempts))


def plan_of(shape: Shape, id: int, fact: Fact) -> Plan:
    """plan.json"""
    offsets = Range(kind="toy", start={"at": fact.start}, end={"at": fact.end}, splits=Payload(), empty=False)
    return Plan(
        attempt="x",
        created="",
        id=id,
        kind="scheduled" if fact.rollback is None else "restart",
        run=fact.run,
        base=fact.base,
        clock=clock_text(fact.clock),
        by_hand=BY_HAND if fact.by_hand and fact.divert is None else None,
        interval=_texts(shape.interval(fact.run)) if shape.intervals else None,
        by_interval=bool(shape.intervals),
        sources={"in": offsets},
        triggers=[],
        rollback=_rollback_record(shape, fact) if fact.rollback is not None else None,
        acks=shape.job_names() if fact.rollback is None else [],
        commits=[],
        timeout_s=1.0,
        config={},
        config_fingerprint="",
        code_fingerprint="",
    )


BY_HAND = ChangeByHand(operator="totals", action="edit", by="a person")


def clock_text(clock: int) -> str:
    """A time in records."""
    return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=clock)).isoformat()


def clock_of(text: str) -> int:
    """The same, back again."""
    return (datetime.fromisoformat(text) - datetime(2026, 1, 1, tzinfo=UTC)) // timedelta(minutes=1)


def _texts(number: int) -> tuple[str, str]:
    """An hour of a day, or of a later one."""
    start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
    return start.isoformat(), (start + timedelta(hours=1)).isoformat()


def _rollback_record(shape: Shape, fact: Fact) -> Rollback:
    tables = {table_name(table): BACK for table in range(shape.tables)}
    line = None
    if fact.swap is not None:
        line = SwappedBackfill(name=f"line{fact.swap.line}", uid="u", head=1, manifest="sha")
    assert fact.rollback is not None
    return Rollback(target=fact.rollback, manifest="sha", line=line, by="a person", tables=tables)


BACK = Restored(how="restore", to=None)


def manifest_of(
    shape: Shape,
    id: int,
    made: Made,
    rollback: int | None = None,
    acked_in: int | None = None,
    divert: DivertFact | None = None,
) -> Manifest:
    """manifest-<sha>.json"""
    tables = {}
    for table in range(shape.tables):
        content = made.content[table]
        if rollback is not None:
            tables[table_name(table)] = TablePart(after=None, committables=[], restore=BACK)
            continue
        committables = [] if content is None else [Payload(data={"content": list(content)})]
        diverted = None
        if divert is not None:
            diverted = DivertedPart(table=table_name(0), after=divert.after, committables=[])
        part = TablePart(after=made.after[table], committables=committables, diverted=diverted)
        tables[table_name(table)] = part
    jobs = {name: handle_of(acked_in or id, made.acks[job]) for job, name in enumerate(shape.job_names())}
    return Manifest(
        attempt="x",
        created="",
        id=id,
        base=None,
        base_manifest=None,
        positions={"in": Position(kind="toy", at={})},
        jobs=jobs,
        tables=tables,
    )


def table_name(table: int) -> str:
    return f"table{table}"
