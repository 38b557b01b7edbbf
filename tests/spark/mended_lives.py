"""Lives in which somebody mends: rows are set aside and let out again, tables and states are changed by hand, what was
made is computed again beside the pipeline, swapped in and taken back; each of these beside everything else.

A gate in front of all sets rows below zero aside. Beside the acts of `random_histories`:

release     all that waits is to be let out by the next checkpoint, corrected or as it is; or some of it
rejudge     what waits is judged again, by the same rule
in_place    it is to be let out where it was held back, by the next backfill
discard     it is to be kept out for good
backfill    from any checkpoint that counts, or from the beginning, with recorded cuts; again: it continues
swap        what was computed is put in place of what was there
drop        the backfill is discarded
by_hand     another program adds a row to a table

The oracle counts in plain Python, by the log of what was done: which rows each checkpoint has read, which of them the
gate lets pass, what was let out, and where. A row that was let out counts once, whatever befell it; one that stays is
in no table, and only if an operator would lose it. Time is the test's: between two acts hours pass, or days. Kinds,
beside those of `random_histories`:

clocked     what is forgotten by the clock, windows and timers of it: a backfill goes by the clock of what it replays
keyed       tables by keys that are not their stream's, and one that removes rows by an order of their own
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pyarrow as pa
from deltalake import write_deltalake

from tests.spark.mended_shop import OneSession, never
from tests.spark.random_histories import ACTS, KINDS, Kind, Life, Made, Row, Standing, build, totals
from tidegate import Pipeline, seams
from tidegate.backfill import OpenBackfill, begin, discard, open_line, replay, swap
from tidegate.checkpoint.quarantine_requests import ask
from tidegate.errors import Rejected
from tidegate.execution.by_hand.editing import edit_state
from tidegate.execution.loop import Observer, Schedule
from tidegate.gates import BrokenRule, Gate, GateContext, Judgement, RowRules
from tidegate.gates.quarantine.columns import RULES
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Json, Request
from tidegate.sinks import DeltaAppend, DeltaUpsert

__all__ = ["MENDED_KINDS", "MendedLife"]

MENDING = (
    *ACTS,
    "release",
    "release",
    "rejudge",
    "in_place",
    "discard",
    "backfill",
    "backfill",
    "swap",
    "swap",
    "drop",
    "by_hand",
)
CLOCK = datetime(2026, 3, 1, 5, tzinfo=UTC)
ASIDE = "ledger/main/quarantine/checked"


class NothingBelowZero(Gate):
    """Sets rows below zero aside."""

    kind = "nothing-below-zero"
    quarantines = True

    def describe(self) -> Json:
        return {}

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        from pyspark.sql import functions as F

        bad = frame.where("v < 0").withColumn(RULES, F.array(F.lit("zero")))
        count = bad.count()
        broken = (BrokenRule("zero", "quarantine", rows=count),) if count else ()
        return Judgement(frame.count(), broken, split=(frame.where("v >= 0"), bad) if count else None)

    def row_rules(self, frame: Any, context: GateContext) -> RowRules:
        from pyspark.sql import functions as F

        return RowRules(F.array_compact(F.array(F.when(F.col("v") < 0, F.lit("zero")))))


@dataclass
class Line:
    """A backfill, as plain Python knows it."""

    name: str
    origin: int
    loses_by_hand: bool
    in_place: set[int]
    """The rows that are to be let out where they were held back."""
    versions: dict[int, int] = field(default_factory=dict)
    """By checkpoint that it has replayed: by which code."""
    broken: bool = False
    """Something has happened since that it cannot continue from."""


@dataclass
class MendedLife(Life):
    """One seed's history."""

    acts: ClassVar[Sequence[str]] = MENDING
    now: datetime = CLOCK
    line: Line | None = None
    asked_in_place: set[int] = field(default_factory=set)
    shared: bool = False
    """Another program has written to `kept`."""
    foreign: dict[int, Counter[Any]] = field(default_factory=dict)
    """By entry: the rows of other programs that `kept` had when it was published."""

    @property
    def kind(self) -> str:
        return list(MENDED_KINDS)[self.seed % len(MENDED_KINDS)]

    @property
    def told_kind(self) -> Kind:
        return MENDED_KINDS[self.kind]

    @property
    def drifts(self) -> bool:
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.play.limit(num_retained=self.dice.choice([4, 100, 100]))
        self.correct: dict[str, str | None] = self.dice.choice([{}, {"v": "3.0"}])
        self.correct_sql: dict[str, str] = {}
        if random.Random(f"sql {self.seed}").random() < 0.5:
            self.correct, self.correct_sql = {}, {"v": "abs(v)"}

    def _code(self) -> Any:
        def declare(pipeline: Pipeline, version: int = self.version) -> None:
            build(pipeline, version, self.kind, self.told_kind, NothingBelowZero())

        return declare

    def live(self, steps: int) -> None:
        with self._clock():
            super().live(steps)

    def tell(self, acts: Sequence[str]) -> None:
        """A life of just these acts."""
        with self._clock():
            self._feed()
            self._checkpoint("")
            for act in acts:
                self._do(act)
            self._feed()
            self._end()

    def _clock(self) -> Any:
        return seams.installed(replace(seams.current(), now=lambda: self.now))

    def passes(self, row: Row) -> bool:
        return bool(row["v"] >= 0)

    def _value(self, number: int) -> float:
        return float(number % 7) if self.dice.random() < 0.75 else -1.0 - number % 3

    # -- what is known

    def _do(self, act: str) -> None:
        self.now += timedelta(hours=self.dice.choice([1, 5, 30, 70]))
        super()._do(act)

    def _made(self, id: int | None = None) -> None:
        self.play.coordinator().publish()
        id = id or self.play.ledger.view().last_completed.id
        out = [self._corrected(row) for row in self._let_out() if row["id"] not in self._counted()]
        passed = [row for row in self.waiting if self.passes(row)]
        rows = sorted([*passed, *out], key=lambda row: row["id"])
        aside = [row for row in self.waiting if not self.passes(row)]
        self._counts(Made(id, rows, self.version, aside=aside, let_out=out, at=self.now))
        self.waiting = []
        self._look_at_quarantine(f"checkpoint {id}")

    def _counts(self, made: Made) -> None:
        super()._counts(made)
        self.foreign[made.id] = Counter(self.by_others)

    def _counted(self) -> set[int]:
        return {row["id"] for row in self.counting}

    def _corrected(self, row: Row) -> Row:
        if self.correct_sql:
            return row | {"v": abs(row["v"])}
        return row | {name: float(text or 0) for name, text in self.correct.items()}

    def _aside(self) -> list[Row]:
        return self.play.rows(ASIDE)

    def _let_out(self) -> list[Row]:
        """The rows that are marked as released."""
        marked = {row["id"] for row in self._aside() if row["_tidegate_settled"] == "released"}
        return [row for row in self.all if row["id"] in marked]

    def _look_at_quarantine(self, when: str) -> None:
        """Each row that was set aside is there once; it counts if it was released; it stays if it would be lost."""
        aside = self._aside()
        ids = Counter(row["id"] for row in aside)
        wanted = Counter(row["id"] for made in self.history for row in made.aside)
        if ids != wanted:
            self.complaints.append(
                f"after {when}, too much set aside: {list(ids - wanted)}, missing: {list(wanted - ids)}"
            )
        released = {row["id"] for row in aside if row["_tidegate_settled"] == "released"}
        counted = {row["id"] for made in self.history for row in made.let_out}
        counted |= {row["id"] for made in self.history for row in made.rows if row["id"] in wanted}
        if released != counted:
            self.complaints.append(
                f"after {when}, marked as released, and not counted: {released - counted}; the other way round: "
                f"{counted - released}"
            )
        newest = max((row["id"] for made in self.history for row in (*made.rows, *made.aside)), default=0)
        for row in aside:
            reason = row.get("_tidegate_stays")
            if reason == "judged again, it breaks zero" and row["v"] < 0:
                continue
            if reason and self.kind in NOTHING_IS_LATE:
                self.complaints.append(f"after {when}, row {row['id']} stays, though nobody would lose it: {reason}")
            if reason and row["id"] > newest - 6 and self.kind in EACH_BY_ITSELF:
                self.complaints.append(f"after {when}, row {row['id']} stays, though it is not late: {reason}")

    # -- rows that were set aside

    def _ask(self, action: Any, rows: Sequence[Row], **more: Any) -> None:
        self.asked_for_rows = True
        ids = [row["_tidegate_id"] for row in rows] if self.dice.random() < 0.5 else []
        seen = self.play.ledger.view().last_id
        request = Request(
            **stamp(f"ask {len(self.story)}"), number=1, gate="checked", action=action, seen=seen, ids=ids,
            by="mia", correct=self.correct if action == "release" else {},
            correct_sql=self.correct_sql if action == "release" else {}, **more,
        )  # fmt: skip
        ask(self.play.ledger, request)

    def _waiting_aside(self) -> list[Row]:
        self.play.coordinator().publish()
        return [row for row in self._aside() if row["_tidegate_settled"] is None]

    def _release(self) -> None:
        if rows := self._waiting_aside():
            some = self.dice.sample(rows, self.dice.randint(1, len(rows)))
            self._ask("release", some)
            self._note(f"release {len(some)} of {len(rows)}")
            self._checkpoint("")

    def _discard(self) -> None:
        if rows := self._waiting_aside():
            self._ask("discard", self.dice.sample(rows, 1))
            self._note("discard")

    def _rejudge(self) -> None:
        """All that waits still breaks the rule: it stays, whatever is asked for afterwards."""
        if rows := self._waiting_aside():
            self._ask("rejudge", rows)
            self._note("rejudge")
            self._checkpoint("")

    def _in_place(self) -> None:
        if rows := self._waiting_aside():
            self._ask("release", rows, in_place=True)
            self.asked_in_place |= {row["id"] for row in rows}
            self._note(f"in place: {sorted(row['id'] for row in rows)}")

    # -- backfills

    def _backfill(self) -> None:
        self.play.coordinator().publish()
        if self.line is None:
            origin = self.dice.choice([0, *self._retained()])
            loses = self.dice.random() < 0.5
            line = Line(f"fix{len(self.story)}", origin, loses, set(self.asked_in_place))
            try:
                begin(self.play.coordinator(), line.name, origin, by="ann", cuts="recorded", drops_by_hand=loses)
            except Rejected as refused:
                self._note(f"no backfill from {origin}")
                edited = any(made.is_manual_edit for made in self._since(origin)) and not loses
                if not edited and self.play.limits.num_retained == 100:
                    self.complaints.append(f"no backfill can begin at {origin}: {refused}")
                return
            self.line = line
        self._note(f"backfill {self.line.name} from {self.line.origin}")
        self._replayed()

    def _since(self, origin: int) -> list[Made]:
        """What counts above a checkpoint."""
        return self.history[len(self.standings[origin].history) if origin else 0 :]

    def _open(self) -> OpenBackfill:
        assert self.line is not None
        live = self.play.coordinator()
        record = live.ledger.line(self.line.name)
        assert record is not None
        line = open_line(live, record)
        line.backfill.drops_by_hand = self.line.loses_by_hand
        return line

    def _replayed(self) -> OpenBackfill | None:
        """It reads what there is. None: it cannot continue."""
        assert self.line is not None
        line = self._open()
        try:
            replay(line, OneSession(self.spark), Schedule(), Observer())
        except Rejected as refused:
            self._stuck(refused)
            return None
        for made in self._since(self.line.origin):
            self.line.versions.setdefault(made.id, self.version)
        return line

    def _stuck(self, refused: Rejected) -> None:
        assert self.line is not None
        if not self.line.broken:
            self.complaints.append(f"backfill {self.line.name} cannot go on: {refused}")
        self._drop()

    def _drop(self) -> None:
        if self.line is not None:
            discard(self._open(), "ann")
            self.line = None
            self._note("drop")

    def _swap(self) -> None:
        if self.line is None:
            return
        self.play.coordinator().publish()
        opened = self._replayed()
        line = self.line
        if opened is None or line is None:
            return
        choice = self._choice()
        try:
            swapped = swap(opened, by="ann", choices=choice, wait=never)
        except Rejected as refused:
            self._stuck(refused)
            return
        assert swapped.error is None, swapped.error
        discard(self._open(), "ann")
        self.line = None
        if choice.get("kept") == "discard":
            self.by_others = Counter(self.foreign.get(line.origin, {}))
        before = self.standings[line.origin] if line.origin else None
        since = [made for made in self._since(line.origin) if not made.is_manual_edit]
        ids = before.ids if before is not None else ()
        history = list(before.history) if before is not None else []
        self.history = [*history, *self._mended(since, line)]
        self.ids = [*ids, swapped.id]
        self.standings[swapped.id] = Standing(tuple(self.history), tuple(self.ids))
        self.foreign[swapped.id] = Counter(self.by_others)
        self._note(f"swap {swapped.id}")
        self._look_at_quarantine(self.story[-1])

    def _mended(self, since: Sequence[Made], line: Line) -> Iterator[Made]:
        """The same checkpoints, by the code that has replayed them; rows let out where they were held back."""
        released = {row["id"] for row in self._let_out()}
        in_place = {row["id"] for made in since for row in made.aside if row["id"] in line.in_place} & released
        for made in since:
            out = [row for row in made.let_out if row["id"] not in in_place]
            here = [self._corrected(row) for row in made.aside if row["id"] in in_place]
            gone = {row["id"] for row in made.let_out} | {row["id"] for row in here}
            rows = [row for row in made.rows if row["id"] not in gone]
            rows = sorted([*rows, *out, *here], key=lambda row: row["id"])
            yield replace(made, rows=rows, let_out=[*out], version=line.versions.get(made.id, self.version))

    # -- acts that everybody knows, beside these

    def _back(self) -> None:
        self.play.coordinator().publish()
        there = self._retained()
        if self.dice.random() < 0.3:  # also what was gone back behind, or replaced
            ledger = self.play.ledger
            there = [id for id in self.standings if ledger.is_retained(id) and ledger.published(id) is not None]
        to, choice = self.dice.choice(there), self._choice()
        self.play.coordinator().roll_back(to, run=f"back {len(self.story)}", by="ann", choices=choice)
        if choice.get("kept") == "discard":
            self.by_others = Counter(self.foreign[to])
        read = {made.id for made in self.history}
        self._stand(to)
        stays = {made.id for made in self.history}
        if self.line is not None and read != stays:
            self.line.broken = True
        self._note(f"back to {to}{f' ({choice})' if choice else ''}")
        self._look_at_quarantine(self.story[-1])

    def _end(self) -> None:
        self._drop()
        super()._end()

    def _edit(self) -> None:
        sums = totals(self.history)
        if not sums:
            return
        if self.dice.random() < 0.5:
            super()._edit()
        else:
            k = self.dice.choice(sorted(sums))
            coordinator = self.play.coordinator()
            id = edit_state(coordinator, self.spark, "totals", lambda rows: rows.where(f"k <> '{k}'")).id
            self._counts(Made(id, [], self.version, forgets=k))
            self._note(f"edit: {k} is forgotten")
        if self.line is not None and not self.line.loses_by_hand:
            self.line.broken = True

    def _by_hand(self) -> None:
        """Another program adds a row."""
        self.play.coordinator().publish()
        if (self.root / "tables" / "main" / "kept").exists():
            row = {"id": [-len(self.story) - 1], "version": pa.array([0], pa.int32())}
            write_deltalake(str(self.root / "tables/main/kept"), pa.table(row), mode="append")
            self.by_others[-len(self.story) - 1, 0] += 1
            self.shared = True
            self._note("by hand")

    def _choice(self) -> dict[str, Any]:
        return {"kept": self.dice.choice(["discard", "retract"])} if self.shared else {}


# -- more kinds ----------------------------------------------------------------------------------------------

REMEMBERED = timedelta(days=3)
RINGS = timedelta(days=2)


def clocked(rows: Any, even: Any, totals: Any, here: str, version: int) -> None:
    """What goes by the clock of checkpoints."""
    ttl = {"state_ttl": "3 days"}
    rows.deduplicate(by="k", uid="first", **ttl).sink("first", DeltaAppend(f"{here}/first"))
    fades = rows.aggregate(by="k", uid="fades", n="count(*)", s="sum(id)", **ttl)
    fades.sink("fades", DeltaUpsert(f"{here}/fades", keys=["k"]))
    days = rows.window(tumbling="1 d", time="processing", by="k", uid="days", n="count(*)", s="sum(id)")
    days.sink("days", DeltaAppend(f"{here}/days"))
    rung = rows.process(by="k", state="n long", output="k string, n long", uid="rung")(rings)
    rung.sink("rung", DeltaAppend(f"{here}/rung"))


def rings(key: Any, rows: Any, state: Any, timers: Any) -> Iterator[Row]:
    """Two days after a key's first row, says how many there were."""
    if timers.fired:
        yield {"k": key["k"], "n": state.n}
    if state.n is None:
        timers.clock(timers.now + RINGS)
    state.n = (state.n or 0) + rows.num_rows


def clocked_expected(_: object, __: object, history: Sequence[Made]) -> dict[str, Counter[Any]]:
    found: dict[str, Counter[Any]] = {name: Counter() for name in ("first", "fades", "days", "rung")}
    days: dict[tuple[Any, str], list[int]] = {}
    firsts: dict[str, datetime] = {}
    fades: dict[str, tuple[datetime, list[int]]] = {}
    numbers: Counter[str] = Counter()
    due: dict[str, datetime] = {}
    for made in (made for made in history if not made.is_manual_edit):
        for k in [k for k, at in due.items() if at <= made.at]:
            found["rung"][k, numbers[k]] += 1
            del due[k]
        for k in sorted({row["k"] for row in made.rows}):
            ids = [row["id"] for row in made.rows if row["k"] == k]
            days.setdefault((made.at.date(), k), []).extend(ids)
            if k not in firsts or made.at - firsts[k] >= REMEMBERED:
                firsts[k] = made.at
                found["first"][(ids[0],)] += 1
            last, counted = fades.get(k, (made.at, []))
            fades[k] = made.at, [*(counted if made.at - last < REMEMBERED else []), *ids]
            if k not in numbers:
                due[k] = made.at + RINGS
            numbers[k] += len(ids)
    found["fades"] = Counter((k, len(ids), sum(ids)) for k, (_, ids) in fades.items())
    found["days"] = Counter((k, len(ids), sum(ids)) for (_, k), ids in days.items())
    return found


def keyed(rows: Any, even: Any, totals: Any, here: str, version: int) -> None:
    """Tables by keys that are not their stream's."""

    def by(stream: Any, name: str, *keys: str) -> None:
        stream.sink(name, DeltaUpsert(f"{here}/{name}", keys=keys))

    newest = rows.latest(by="k", order_by="id", uid="newest")
    thirds = newest.select("abs(CAST(v AS long)) % 3 AS third", name="of-newest")
    by(thirds, "thirds", "third")
    by(thirds.aggregate(by="third", n="count(*)", uid="counts"), "counts", "n")
    by(
        rows.top_n(2, by="k", order_by="v desc", rank="rank", uid="best").select(
            "CAST(v AS long) AS v", name="of-best"
        ),
        "best",
        "v",
    )
    last = even.latest(by="k", order_by="other", uid="last")
    held = newest.join(last, on="k", how="full", uid="held")
    by(held.select("id % 3 AS slot", "other % 3 AS other_slot", name="of-held"), "slots", "slot", "other_slot")
    turns = rows.select("id", "k", "v", "(id * 37) % 101 AS turn", name="turns")
    turns.sink("now", DeltaUpsert(f"{here}/now", keys=["k"], order_by=["turn", "id"], delete_when="v % 3 = 0"))


def keyed_expected(rows: Sequence[Row], *_: object) -> dict[str, Counter[Any]]:
    newest = {row["k"]: row for row in rows}
    last = {row["k"]: row["id"] for row in rows if row["id"] % 2 == 0}
    thirds = Counter(abs(int(row["v"])) % 3 for row in newest.values())
    best, now = set(), Counter[Any]()
    for k in newest:
        own = [row for row in rows if row["k"] == k]
        best |= {row["v"] for row in own if sum(other["v"] > row["v"] for other in own) < 2}
        turn = max(own, key=lambda row: (row["id"] * 37 % 101, row["id"]))
        now.update([(k, turn["id"])] if math.fmod(turn["v"], 3) else [])
    return {
        "thirds": Counter((third,) for third in thirds),
        "counts": Counter((n,) for n in set(thirds.values())),
        "best": Counter((v,) for v in best),
        "slots": Counter({(row["id"] % 3, last[k] % 3 if k in last else None) for k, row in newest.items()}),
        "now": now,
    }


def without_visits(rows: Sequence[Row], sums: Mapping[str, float], history: Sequence[Made]) -> dict[str, Counter[Any]]:
    """Sessions apart: one that was closed is not opened again by a row that is let out near its end."""
    found = KINDS["ranked"][1](rows, sums, history)
    return {name: wanted for name, wanted in found.items() if name != "visits"}


MENDED_KINDS: dict[str, Kind] = {
    "clocked": (
        clocked,
        clocked_expected,
        {"first": ("id",), "fades": ("k", "n", "s"), "days": ("k", "n", "s"), "rung": ("k", "n")},
    ),
    "keyed": (
        keyed,
        keyed_expected,
        {"thirds": ("third",), "counts": ("n",), "best": ("v",), "slots": ("slot", "other_slot"), "now": ("k", "id")},
    ),
    **KINDS,
    "ranked": (KINDS["ranked"][0], without_visits, KINDS["ranked"][2]),
}
NOTHING_IS_LATE = ("clocked", "keyed", "fading")
"""No operator there loses a row because of its time."""
EACH_BY_ITSELF = ("hours", "ranked")
"""No stage there leaves out the columns that tell rows of one request apart."""
