"""Random histories of a pipeline on real Spark and Delta: whatever befell it, its tables are as if nothing had.

Each step is one of ACTS. In the end event time comes to its end, and then: each row is in `kept` once, by the code that
read it in the history that counts; sums (with what was added by hand) and windows are those of plain Python over all
rows, and nothing was taken back that was not given; each fork has what came
behind the checkpoint that it began with, and remembers what was before; and all that is named is whole. Last of all it
is cancelled for good, and forked once more from a savepoint. Seeds take turns with what else the pipeline has:

hours     windows of an hour, and the first rows of each
ordered   what takes rows in their order (running values, windows of three rows), and a join; new code adds results
joined    joins of every other kind: near in time, as of a time, of what both sides hold; new code adds a column
mixed     `process` of two streams with a list and a map, `union`, `every`, totals over all rows; new code adds fields
ranked    sessions, first rows of a value, rows by rank with ties, counts of distinct values; new code adds results
layered   windows of windows and the first of each, pairs of any age and a window of them, three streams, what is held
          by semi, left and right joins, windows by the clock; new code adds results and columns
fading    totals, first rows, fields and a lookup table that expire by event time, side outputs, timers by the clock;
          new code adds counts of distinct values, fields and an output

In every third life checkpoints are made by event: whoever watches the sources must ask for one if rows wait, and only
then. In every second life some records have a key that the schema lacks, of any type: its values are in its column, as
soon as it is one, or in the rescue column.

`python -m tests.spark.random_histories --seeds 50` tells many, `--seed 7` one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.kit.jvm import INTERPRETED
from tests.spark.changelog_check import given, plain_rows
from tests.spark.random_cuts import Telling
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, seams
from tidegate.errors import Rejected, Unavailable
from tidegate.execution.by_hand.editing import edit_state
from tidegate.execution.input_watch import InputWatch
from tidegate.gates import Gate
from tidegate.ledger import Ledger
from tidegate.lifecycle import control, savepoint
from tidegate.lifecycle.copies import copy_out, verify
from tidegate.lifecycle.fork import fork, inspect_snapshot
from tidegate.lifecycle.snapshot import checkpoint_snapshot
from tidegate.operators import ListState, MapState
from tidegate.records.records import Drain
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.verify.checkpoint import verify_savepoint
from tidegate.verify.recovery import verify_next_run

__all__ = ["ACTS", "Life", "told"]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DRIFTED: list[Any] = [True, False, 5, 2.5, "x", "7", None, [1, 2], {"a": 1}]
"""Values of a key that the schema lacks."""
NEVER_S = 1e9
FAULTS = ("", "", "crash", "early", "twice", "abort", "fenced")
ACTS = ("checkpoint",) * 4 + ("back", "back", "name", "forget", "fork", "stop", "unpublished", "change", "edit")
Row = dict[str, Any]


@dataclass
class Made:
    """A checkpoint of the history that counts."""

    id: int
    rows: list[Row]
    """Those that count in it."""
    version: int
    added: dict[str, float] = field(default_factory=dict)
    """What was added to totals by hand."""
    aside: list[Row] = field(default_factory=list)
    """Those that it has read, and a gate has set aside."""
    let_out: list[Row] = field(default_factory=list)
    """Of those that count in it: what an earlier checkpoint had set aside."""
    forgets: str | None = None
    """A key whose total was removed by hand."""
    at: datetime = BEGIN
    """Its clock, in lives that have one of their own."""

    @property
    def is_manual_edit(self) -> bool:
        return bool(self.added) or self.forgets is not None

    @property
    def read(self) -> set[int]:
        """The ids of the rows that it has read."""
        return {row["id"] for row in (*self.rows, *self.aside)} - {row["id"] for row in self.let_out}


@dataclass(frozen=True)
class Standing:
    """What counts as of an entry of the log."""

    history: tuple[Made, ...]
    ids: tuple[int, ...]
    """The entries that it rests on, and itself."""


@dataclass(frozen=True)
class Fork:
    """A pipeline that continues from a checkpoint."""

    play: SmallPipeline
    landed: int
    """How many rows of all had been read by then."""
    history: tuple[Made, ...]


@dataclass
class Life:
    """One seed's history, and a model of it in plain Python."""

    seed: int
    root: Path
    spark: Any
    version: int = 0
    history: list[Made] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    """Rows that have landed, and are in no checkpoint that counts."""
    all: list[Row] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    standings: dict[int, Standing] = field(default_factory=dict)
    """By entry of the log that is completed."""
    ids: list[int] = field(default_factory=list)
    """The entries that count."""
    story: list[str] = field(default_factory=list)
    by_others: Counter[Any] = field(default_factory=Counter)
    """Rows of `kept` that another program has written there."""
    complaints: list[str] = field(default_factory=list)
    """What was found wrong on the way."""
    asked_for_rows: bool = False
    """Whether somebody has ever asked for rows that were set aside, which a checkpoint may still have to take up."""

    acts: ClassVar[Sequence[str]] = ACTS

    @property
    def by_event(self) -> bool:
        """Whether its checkpoints are made when somebody who watches its sources asks for one."""
        return self.seed % 3 == 1

    @property
    def drifts(self) -> bool:
        """Whether records have a key that the schema lacks."""
        return self.seed % 2 == 0

    @property
    def kind(self) -> str:
        """What its pipeline has."""
        return list(KINDS)[self.seed % len(KINDS)]

    @property
    def told_kind(self) -> Kind:
        return KINDS[self.kind]

    @property
    def counting(self) -> list[Row]:
        """All rows that count, in the order of their time."""
        return sorted((row for made in self.history for row in made.rows), key=lambda row: row["id"])

    def passes(self, row: Row) -> bool:
        """Whether a row counts at once, or is set aside."""
        return True

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.drift_dice = random.Random(f"drift {self.seed}")  # so that all else is as it was before there was any
        self.root.mkdir(parents=True)
        self.play = self._play("main")
        self.play.limit(num_retained=self.dice.choice([1, 2, 4]))
        self.tasks = itertools.cycle([self.dice.randint(1, 3) for _ in range(40)])

    def _play(self, name: str) -> SmallPipeline:
        """A pipeline of the code as it is now."""
        made = SmallPipeline(self.root, self.spark, self._code(), name)
        made.watched = name == "main"
        return made

    def _code(self) -> Callable[[Pipeline], None]:
        def code(pipeline: Pipeline, version: int = self.version) -> None:
            build(pipeline, version, self.kind, KINDS[self.kind], drifts=self.drifts)

        return code

    # -- what befalls it

    def live(self, steps: int) -> None:
        """All of it, from the first row to the end for good."""
        self._feed()
        self._checkpoint("")
        for _ in range(steps):
            self._do(self.dice.choice(self.acts))
        self._feed()
        self._end()

    def _do(self, act: str) -> None:
        getattr(self, f"_{act}")()

    def _checkpoint(self, fault: str | None = None) -> None:
        if self.dice.random() < 0.8:
            self._feed()
        fault = self.dice.choice(FAULTS) if fault is None else fault
        if self.by_event and not self._is_due():
            self._note("nothing is due")
            return
        Telling(self.play, self.spark, self.tasks).checkpoint(fault, by_event=self.by_event)
        self._note(f"checkpoint {fault}".strip())
        if fault not in ("abort", "fenced"):
            self._made()

    def _is_due(self) -> bool:
        """By event: whether somebody who begins to watch now asks for a checkpoint. If not, a run makes none either."""
        coordinator = self.play.coordinator()
        arrival = InputWatch(coordinator, NEVER_S).look()
        is_due = arrival is not None
        if self.waiting and not is_due:
            self.complaints.append(f"nobody asks for rows {[row['id'] for row in self.waiting]}")
        if is_due and not self.waiting and not self.asked_for_rows:
            self.complaints.append(f"a checkpoint is asked for, and no row waits: {arrival}")
        if not is_due:
            assert coordinator.trigger("by event", only_if_new=True) is None
        return is_due

    def _unpublished(self) -> None:
        """It is completed, and whoever was to publish it dies: the next one does."""
        real = self.play.ledger.view().last_id + 1

        def dies(name: str) -> None:
            if name == "S10.publish.before":
                raise Unavailable("dies here", reason="INJECTED")

        telling = Telling(self.play, self.spark, self.tasks)
        before = seams._current
        coordinator = self.play.coordinator()
        coordinator.trigger(f"run {real}")
        telling.attempt(coordinator, real, "main")
        assert coordinator.complete(real).state == "completed"
        with seams.installed(type(before)(**{**before.__dict__, "fault": dies})):
            coordinator.publish()
        self._note("completed, unpublished")
        self._made()

    def _back(self) -> None:
        self.play.coordinator().publish()
        to = self.dice.choice(self._retained())
        self.play.coordinator().roll_back(to, run=f"back {len(self.story)}", by="ann")
        self._stand(to)
        self._note(f"back to {to}")

    def _retained(self) -> list[int]:
        """The entries that count, and that are still there."""
        ledger = self.play.ledger
        return [id for id in self.ids if ledger.is_retained(id)]

    def _stand(self, to: int) -> None:
        """What counts is what counted then; all else waits again."""
        self.history, self.ids = list(self.standings[to].history), list(self.standings[to].ids)
        read = {id for made in self.history for id in made.read}
        self.waiting = [row for row in self.all if row["id"] not in read]

    def _name(self) -> None:
        self.play.coordinator().publish()
        made = savepoint.create(self.play.ledger, f"s{len(self.story)}", None, "ann")
        self._note(f"name {made.entry}")

    def _forget(self) -> None:
        if named := savepoint.savepoints(self.play.ledger):
            savepoint.dispose(self.play.ledger, self.dice.choice(named).name)
            self._note("forget a name")

    def _fork(self, named: bool = False) -> None:
        """From anything that is kept; named: from a savepoint."""
        self.play.coordinator().publish() if not named else None
        ledger = self.play.ledger
        there = self._retained()
        if named:
            entries = {each.entry for each in savepoint.savepoints(ledger)}
            there = [id for id in there if id in entries and ledger.plan(id).drain is None]
        if not there or (len(self.forks) > 1 and not named):
            return
        made = self.dice.choice(there)
        to = self._play(f"fork{len(self.forks)}")
        held, copied = checkpoint_snapshot(ledger, made, {}, by="ann"), None
        if self.dice.random() < 0.5:
            copied = copy_out(held, str(self.root / f"copy{len(self.story)}"), "copied")
            wrong = verify(copied)
            assert not wrong, wrong
            held = checkpoint_snapshot(copied.ledger, made, {}, by="ann")
        fork(inspect_snapshot(held, to.coordinator()), to.coordinator(), copied)
        before = self.standings[made].history
        self.forks.append(Fork(to, sum(len(each.read) for each in before), before))
        self._note(f"fork of {made}{', copied' if copied else ''}")

    def _stop(self) -> None:
        ledger = self.play.ledger
        act: Callable[..., object] = self.dice.choice([control.stop, control.suspend, control.cancel])
        act(ledger, "ann", "a while")
        with pytest.raises(Rejected, match="by ann"):
            self.play.coordinator().trigger("in vain")
        assert control.resume(ledger, "ann") is not None
        self._note("stop and resume")

    def _change(self) -> None:
        """Other code from here on: a stage gives something else, and a sink is added."""
        self.version += 1
        self.play.build = self._code()
        self._note(f"code {self.version}")

    def _edit(self) -> None:
        """Somebody adds 100 to each total by hand."""
        keys = totals(self.history)
        id = edit_state(
            self.play.coordinator(), self.spark, "totals", lambda rows: rows.withColumn("total", rows.total + 100)
        ).id
        self._counts(Made(id, [], self.version, dict.fromkeys(keys, 100.0)))
        self._note("edit")

    def _end(self) -> None:
        id = self.play.checkpoint(Drain(by="ann"))
        self._made(id)
        for forked in self.forks:
            forked.play.checkpoint()

    # -- what is known

    def _feed(self) -> None:
        rows = []
        for _ in range(self.dice.randint(1, 7)):
            number = len(self.all)
            at = BEGIN + timedelta(minutes=10 * number)
            rows.append({"id": number, "k": self.dice.choice("abc"), "v": self._value(number), "at": at.isoformat()})
            if self.drifts and self.drift_dice.random() < 0.6:
                rows[-1]["vip"] = self.drift_dice.choice(DRIFTED)
            self.all.append(rows[-1])
        self.play.feed(rows)
        self.waiting += rows

    def _value(self, number: int) -> float:
        return float(number % 7)

    def _made(self, id: int | None = None) -> None:
        self._counts(Made(id or self.play.ledger.view().last_completed.id, self.waiting, self.version))
        self.waiting = []

    def _counts(self, made: Made) -> None:
        self.history.append(made)
        self.ids.append(made.id)
        self.standings[made.id] = Standing(tuple(self.history), tuple(self.ids))

    def _note(self, what: str) -> None:
        self.story.append(what)

    def __str__(self) -> str:
        return "; ".join(self.story)


def build(
    pipeline: Pipeline, version: int, kind: str, told_kind: Kind, gate: Gate | None = None, *, drifts: bool = False
) -> None:
    """Tables are in a folder of the pipeline's name. gate: sets rows aside, in front of all."""
    here = f"tables/{pipeline.name}"
    columns = {"id": "long", "k": "string", "v": "double", "at": "timestamp"}
    schema = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    policy: Any = {"on_new_column": "evolve", "on_type": "rescue"} if drifts else {}
    rows = sources(pipeline, schema, policy=policy, event_time="at", watermark="1 hour")
    rows = rows if gate is None else rows.gate(gate, name="checked")
    if drifts:
        all_that_was_said = pipeline.stage(rows, name="said")(lambda rows: rows.drop("k", "v", "at"))
        all_that_was_said.sink("said", DeltaAppend(f"{here}/said", schema_evolution="add"))
        rows = rows.select(*columns, name="declared")

    @pipeline.stage(rows)
    def marked(rows: Any) -> Any:
        return rows.selectExpr("id", f"{version} AS version")

    marked.sink("kept", DeltaAppend(f"{here}/kept"))
    totals = rows.aggregate(by="k", total="sum(v)", uid="totals")
    totals.sink("totals", DeltaUpsert(f"{here}/totals", keys=["k"]))

    def evens(rows: Any) -> Any:
        more = [f"id AS more{version}"] if version and kind in ("joined", "layered") else []
        return rows.where("id % 2 = 0").selectExpr("k", "id AS other", "at AS then", *more)

    even = pipeline.stage(rows, name="even")(evens) if kind not in ("hours", "ranked", "clocked") else None
    told_kind[0](rows, even, totals, here, version)
    if version:
        marked.sink("more", DeltaAppend(f"{here}/more"))


def hours(rows: Any, even: Any, totals: Any, here: str, version: int) -> None:
    """Windows of an hour, and the first rows of each."""
    rows.window(tumbling="1 hour", by="k", n="count(*)", uid="hours").sink("hours", DeltaAppend(f"{here}/hours"))
    tops = rows.top_n(2, tumbling="1 hour", order_by="id desc", uid="tops")
    tops.sink("tops", DeltaAppend(f"{here}/tops"))


def hours_expected(rows: Sequence[Row], *_: object) -> dict[str, Counter[Any]]:
    of_hours: dict[str, list[int]] = {}
    for row in rows:
        of_hours.setdefault(row["at"][:13], []).append(row["id"])
    counts = Counter((row["k"], row["at"][:13]) for row in rows)
    tops = [(id, place) for ids in of_hours.values() for place, id in enumerate(sorted(ids, reverse=True)[:2], 1)]
    return {"hours": Counter((k, n) for (k, _), n in counts.items()), "tops": Counter(tops)}


def joined(rows: Any, even: Any, totals: Any, here: str, version: int) -> None:
    """Joins of every kind but the inner one."""
    append = {"schema_evolution": "add"}
    for how in ("left", "right", "full", "semi", "anti"):
        near = rows.join(even, on="k", within="30 min", how=how, event_time=("at", "then"), uid=f"near-{how}")
        near.sink(f"near-{how}", DeltaAppend(f"{here}/near-{how}", **append))
    then = rows.join(even, on="k", as_of=True, how="left", event_time=("at", "then"), uid="then")
    then.sink("then", DeltaAppend(f"{here}/then", **append))
    last = even.latest(by="k", order_by="other", uid="last")
    newest = rows.latest(by="k", order_by="id", uid="newest")
    held = newest.join(last, on="k", how="full", uid="held")
    held.sink("held", DeltaUpsert(f"{here}/held", keys=["k"], **append))
    alone = newest.join(last, on="k", how="anti", uid="alone")
    alone.sink("alone", DeltaUpsert(f"{here}/alone", keys=["k"]))


def joined_expected(rows: Sequence[Row], *_: object) -> dict[str, Counter[Any]]:
    even = [row for row in rows if row["id"] % 2 == 0]
    pairs = [(one["id"], other["id"]) for one, other in itertools.product(rows, even)
             if one["k"] == other["k"] and abs(one["id"] - other["id"]) <= 3]  # fmt: skip
    met = {id for id, _ in pairs}
    lonely = [(row["id"], None) for row in rows if row["id"] not in met]  # an even row always meets itself
    found = {"near-left": Counter(pairs + lonely), "near-right": Counter(pairs), "near-full": Counter(pairs + lonely)}
    found["near-semi"] = Counter((row["id"],) for row in rows if row["id"] in met)
    found["near-anti"] = Counter((id,) for id, _ in lonely)
    before = [(row["id"], [o["id"] for o in even if o["k"] == row["k"] and o["id"] <= row["id"]]) for row in rows]
    found["then"] = Counter((id, max(others, default=None)) for id, others in before)
    last = {row["k"]: row["id"] for row in even}
    newest = {row["k"]: row["id"] for row in rows}
    found["held"] = Counter((k, id, last.get(k)) for k, id in newest.items())
    found["alone"] = Counter((k,) for k in newest if k not in last)
    return found


def mixed(rows: Any, even: Any, totals: Any, here: str, version: int) -> None:
    """A function of two streams, with a list and a map; a union; changes every few checkpoints; totals over all."""
    more = f", more{version} long" if version else ""

    @rows.pipeline.stage(rows)
    def valued(rows: Any) -> Any:
        return rows.selectExpr("id", "k", "at", "CAST(v AS long) AS value")

    told = valued.process(
        by="k", state=f"n long, m long{more}", output="id long, n long, m long, seen long, bought long", other=even,
        in_order=True, event_time=("at", "then"), lists={"seen": ListState(f"id long{more}")},
        maps={"bought": MapState(by="value", state=f"n long{more}")}, uid="told",
    )(tells)  # fmt: skip
    told.sink("told", DeltaAppend(f"{here}/told"))

    @rows.pipeline.stage(rows)
    def odd(rows: Any) -> Any:
        return rows.where("id % 2 = 1").selectExpr("k", "id AS other", "at AS then")

    even.union(odd, name="both").sink("both", DeltaAppend(f"{here}/both"))
    totals.every(3, uid="slowly").sink("slowly", DeltaUpsert(f"{here}/slowly", keys=["k"]))
    whole = totals.aggregate(by=[], keys="count(*)", total="sum(total)", uid="whole")
    whole.sink("whole", DeltaUpsert(f"{here}/whole", keys=["keys"]))


def tells(key: Any, rows: Any, others: Any, state: Any, timers: Any) -> Iterator[Row]:
    """Says of each row how many rows of either stream there were, the sum of all ids, and how often its value came."""
    state.m = (state.m or 0) + others.num_rows
    for row in rows.to_pylist():
        state.n = (state.n or 0) + 1
        state.seen.append({"id": row["id"]})
        entry = state.bought[row["value"]]
        entry.n = (entry.n or 0) + 1
        seen = sum(each["id"] for each in state.seen)
        yield {"id": row["id"], "n": state.n, "m": state.m, "seen": seen, "bought": entry.n}
        if state.n % 5 == 0:
            state.seen.clear()


def mixed_expected(rows: Sequence[Row], sums: Mapping[str, float], _: object) -> dict[str, Counter[Any]]:
    told = []
    for k in {row["k"] for row in rows}:
        own = [row for row in rows if row["k"] == k]
        for place, row in enumerate(own):
            so_far = own[: place + 1]
            m = sum(each["id"] % 2 == 0 for each in so_far)
            bought = sum(each["v"] == row["v"] for each in so_far)
            told.append((row["id"], place + 1, m, sum(each["id"] for each in own[place // 5 * 5 : place + 1]), bought))
    whole = [(len(sums), sum(sums.values()))] if sums else []
    return {
        "told": Counter(told),
        "both": Counter((row["id"],) for row in rows),
        "slowly": Counter(sums.items()),
        "whole": Counter(whole),
    }


def ordered(rows: Any, even: Any, totals: Any, here: str, version: int) -> None:
    """What takes rows in their order, and a join with those of even numbers. New code wants to know more."""
    more = {f"more{version}": "max(id)"} if version else {}
    steps = rows.over(by="k", uid="steps", total="sum(v)", nth="row_number()", before="lag(id, 2)", **more)
    steps.sink("steps", DeltaAppend(f"{here}/steps", schema_evolution="add"))
    threes = rows.window(count=3, by="k", uid="threes", total="sum(v)", **more)
    threes.sink("threes", DeltaAppend(f"{here}/threes", schema_evolution="add"))
    pairs = rows.join(even, on="k", within="30 min", event_time=("at", "then"), uid="pairs")
    pairs.sink("pairs", DeltaAppend(f"{here}/pairs"))


def ordered_expected(rows: Sequence[Row], *_: object) -> dict[str, Counter[Any]]:
    """What `ordered` must give. Rows are in the order of their time."""
    steps: Counter[Any] = Counter()
    threes: Counter[Any] = Counter()
    for k in {row["k"] for row in rows}:
        own = [row for row in rows if row["k"] == k]
        for place, row in enumerate(own):
            total, before = sum(each["v"] for each in own[: place + 1]), own[place - 2]["id"] if place >= 2 else None
            steps[row["id"], total, place + 1, before] += 1
            if place % 3 == 2:
                threes[k, sum(each["v"] for each in own[place - 2 : place + 1])] += 1
    pairs = Counter(
        (row["id"], other["id"])
        for row, other in itertools.product(rows, rows)
        if row["k"] == other["k"] and other["id"] % 2 == 0 and abs(row["id"] - other["id"]) <= 3
    )
    return {"steps": steps, "threes": threes, "pairs": pairs}


def ranked(rows: Any, even: Any, totals: Any, here: str, version: int) -> None:
    """Sessions, the first row of each value, rows by rank with ties, and counts of distinct values."""
    more = {f"more{version}": "max(id)"} if version else {}
    evolving = {"schema_evolution": "add"}
    visits = rows.window(session="25 min", by="k", uid="visits", n="count(*)", total="sum(v)", **more)
    visits.sink("visits", DeltaAppend(f"{here}/visits", **evolving))
    rows.deduplicate(by=["k", "v"], uid="first").sink("first", DeltaAppend(f"{here}/first"))
    best = rows.top_n(2, by="k", order_by="v desc", rank="dense_rank", uid="best")
    best.sink("best", DeltaUpsert(f"{here}/best", keys=["id"]))
    large = {f"large{version}": f"count(distinct v) filter (where v > {version})"} if version else {}
    values = rows.aggregate(by="k", uid="values", n="count(distinct v)", even="count(distinct v, id % 2)", **large)
    values.sink("values", DeltaUpsert(f"{here}/values", keys=["k"], **evolving))


def ranked_expected(rows: Sequence[Row], _: object, history: Sequence[Made]) -> dict[str, Counter[Any]]:
    found: dict[str, Counter[Any]] = {name: Counter() for name in ("visits", "first", "best", "values")}
    firsts: dict[tuple[str, float], int] = {}
    for row in (row for made in history for row in made.rows):
        firsts.setdefault((row["k"], row["v"]), row["id"])
    found["first"].update((id,) for id in firsts.values())
    for k in {row["k"] for row in rows}:
        own = [row for row in rows if row["k"] == k]
        starts = [n for n, row in enumerate(own) if not n or row["id"] - own[n - 1]["id"] > 2]
        for begin, end in itertools.pairwise([*starts, len(own)]):
            found["visits"][k, end - begin, sum(row["v"] for row in own[begin:end])] += 1
        values = {row["v"] for row in own}
        places = {value: place for place, value in enumerate(sorted(values, reverse=True)[:2], 1)}
        found["best"].update((row["id"], places[row["v"]]) for row in own if row["v"] in places)
        found["values"][k, len(values), len({(row["v"], row["id"] % 2) for row in own})] += 1
    return found


def layered(rows: Any, even: Any, totals: Any, here: str, version: int) -> None:
    """What stands on windows and on joins without bounds."""
    add = {"schema_evolution": "add"}
    more = {f"more{version}": "max(id)"} if version else {}
    halves = rows.window(tumbling="30 min", by="k", uid="halves", n="count(*)", s="sum(v)", last="max(id)", **more)
    hours = halves.window(
        tumbling="2 h", by="k", event_time="window_start", uid="of-halves", n="sum(n)",
        **dict.fromkeys(more, "count(*)"),
    )  # fmt: skip
    hours.sink("of-halves", DeltaAppend(f"{here}/of-halves", **add))
    order_by = ["n desc", "last desc"]
    best = halves.top_n(1, by="window_end", order_by=order_by, rank="dense_rank", uid="best")
    best.sink("best", DeltaAppend(f"{here}/best", **add))
    tops = rows.top_n(2, tumbling="1 h", order_by="id desc", rank="dense_rank", uid="tops")
    tops.sink("tops", DeltaAppend(f"{here}/tops"))
    live = rows.window(tumbling="1 h", by="k", emit="update", uid="live", n="count(*)")
    slowly = live.every(2 + version % 2, uid="slowly")
    slowly.sink("slowly", DeltaUpsert(f"{here}/slowly", keys=["window_start", "k"]))
    clocked = rows.window(
        tumbling="1 min", time="processing", emit="update", by="k", uid="clocked", n="count(*)", **more
    )
    clocks = clocked.aggregate(by="k", uid="clocks", n="sum(n)")
    clocks.sink("clocks", DeltaUpsert(f"{here}/clocks", keys=["k"]))
    alone = rows.aggregate(by=[], uid="alone", n="count(*)", **more)
    alone.sink("alone", DeltaUpsert(f"{here}/alone", keys=["n"], **add))

    pairs = rows.join(even, on="k", uid="pairs")
    pairs.sink("pairs", DeltaAppend(f"{here}/pairs", **add))
    dated = rows.pipeline.stage(pairs, name="dated")(lambda pairs: pairs.selectExpr("*", "greatest(at, then) AS met"))
    met = dated.window(tumbling="1 h", by="k", event_time="met", uid="met", n="count(*)", **more)
    met.sink("met", DeltaAppend(f"{here}/met", **add))
    rows.join(even, on="k", how="semi", uid="some").sink("some", DeltaAppend(f"{here}/some"))
    other = rows.pipeline.stage(even, name="other")(
        lambda even: even.selectExpr("k", "other AS third", "then AS at_last")
    )
    times = ("at", "then", "at_last")
    three = rows.join(even, other, on="k", within="20 min", event_time=times, how="left", uid="three")
    three.sink("three", DeltaAppend(f"{here}/three", **add))
    newest, last = rows.latest(by="k", order_by="id", uid="newest"), even.latest(by="k", order_by="other", uid="last")
    for how in ("left", "right", "semi"):
        held = newest.join(last, on="k", how=how, uid=f"held-{how}")
        held.sink(f"held-{how}", DeltaUpsert(f"{here}/held-{how}", keys=["k"], **add))
    numbered = rows.over(uid="numbered", nth="row_number()", before="lag(id)", **more)
    numbered.sink("numbered", DeltaAppend(f"{here}/numbered", **add))


def layered_expected(rows: Sequence[Row], *_: object) -> dict[str, Counter[Any]]:
    """Rows are ten minutes apart, so an hour has six of them."""
    halves = Counter((row["k"], row["id"] // 3) for row in rows)
    hours: Counter[Any] = Counter()
    for (k, half), n in halves.items():
        hours[k, half // 4] += n
    best: Counter[Any] = Counter()
    for half in {half for _, half in halves}:
        own = [row for row in rows if row["id"] // 3 == half]
        n, last, k = max(
            (halves[k, half], max(row["id"] for row in own if row["k"] == k), k) for k in "abc" if halves[k, half]
        )
        best[k, n, last] += 1
    even = [row for row in rows if row["id"] % 2 == 0]
    pairs = [(one["id"], other["id"]) for one, other in itertools.product(rows, even) if one["k"] == other["k"]]
    near = {row["id"]: [other for id, other in pairs if id == row["id"] and abs(id - other) <= 2] for row in rows}
    keys = {row["id"]: row["k"] for row in rows}
    met = Counter((keys[one], max(one, other) // 6) for one, other in pairs)
    newest, last = ({row["k"]: row["id"] for row in each} for each in (rows, even))
    hourly = [[row["id"] for row in rows if row["id"] // 6 == hour] for hour in {row["id"] // 6 for row in rows}]
    return {
        "of-halves": Counter((k, n) for (k, _), n in hours.items()),
        "best": best,
        "tops": Counter((id, place) for ids in hourly for place, id in enumerate(reversed(ids[-2:]), 1)),
        "slowly": Counter((k, n) for (k, _), n in Counter((row["k"], row["id"] // 6) for row in rows).items()),
        "clocks": Counter(Counter(row["k"] for row in rows).items()),
        "alone": Counter([(len(rows),)]),
        "pairs": Counter(pairs),
        "met": Counter((k, n) for (k, _), n in met.items()),
        "some": Counter((one,) for one in {one for one, _ in pairs}),
        "three": Counter(
            (id, *each) for id, others in near.items() for each in itertools.product(others or [None], repeat=2)
        ),
        "held-left": Counter((k, id, last.get(k)) for k, id in newest.items()),
        "held-right": Counter((k, newest[k], id) for k, id in last.items()),
        "held-semi": Counter((k, newest[k]) for k in last),
        "numbered": Counter(
            (row["id"], place + 1, rows[place - 1]["id"] if place else None) for place, row in enumerate(rows)
        ),
    }


FADES = timedelta(minutes=30)


def fading(rows: Any, even: Any, totals: Any, here: str, version: int) -> None:
    """What expires by event time, what is looked up in a table, and timers by the clock."""
    ttl: dict[str, Any] = {"state_ttl": "30 min", "ttl_time": "event"}
    large = {f"large{version}": f"count(distinct v) filter (where v > {version})"} if version else {}
    fades = rows.aggregate(by="k", uid="fades", n="count(*)", kinds="count(distinct v)", **large, **ttl)
    fades.sink("fades", DeltaUpsert(f"{here}/fades", keys=["k"], schema_evolution="add"))
    rows.deduplicate(by="k", uid="first", **ttl).sink("first", DeltaAppend(f"{here}/first"))
    limits = even.broadcast(by="k", order_by="other", uid="limits", **ttl)
    outputs = {"odd": "id long", "rung": "k string, n long"} | ({"extra": "id long"} if version else {})
    told = rows.process(
        by="k", state="n long, last long" + (f", more{version} long" if version else ""), lookup=limits,
        output="id long, last long, other long", outputs=outputs, state_ttl={"last": ttl["state_ttl"]},
        ttl_time="event", uid="told",
    )(looks_up if version else looks_up_at_first)  # fmt: skip
    told.sink("told", DeltaAppend(f"{here}/told"))
    for output in outputs:
        told[output].sink(output, DeltaAppend(f"{here}/{output}"))


def looks_up_at_first(key: Any, rows: Any, state: Any, timers: Any, limits: Any) -> Iterator[Any]:
    """Says of each row which one of its key came before, and the last even one; wakes up in the next checkpoint."""
    if timers.fired:
        yield "rung", {"k": key["k"], "n": state.n}
    known = {row["k"]: row["other"] for row in limits.to_pylist()}
    for row in rows.to_pylist():
        state.n = (state.n or 0) + 1
        yield {"id": row["id"], "last": state.last, "other": known.get(key["k"])}
        state.last = row["id"]
        timers.clock(timers.now)
        if row["id"] % 2:
            yield "odd", {"id": row["id"]}


def looks_up(key: Any, rows: Any, state: Any, timers: Any, limits: Any) -> Iterator[Any]:
    """Also has an output of all rows."""
    yield from looks_up_at_first(key, rows, state, timers, limits)
    yield from (("extra", {"id": row["id"]}) for row in rows.to_pylist())


def fading_expected(_: object, __: object, history: Sequence[Made]) -> dict[str, Counter[Any]]:
    """As of a checkpoint's end something is written, as of its beginning it has expired."""
    found: dict[str, Counter[Any]] = {name: Counter() for name in ("first", "told", "odd", "rung", "extra")}
    fades: dict[str, tuple[int, int]] = {}
    counted: dict[str, list[Row]] = {}
    numbers: Counter[str] = Counter()
    waking: set[str] = set()
    written: dict[tuple[str, str], datetime] = {}
    newest = before = now = BEGIN - timedelta(days=1)
    others: dict[str, int] = {}
    lasts: dict[str, int] = {}

    def lives(what: str, k: str) -> bool:
        return (what, k) in written and written[what, k] > before - FADES

    for made in history:
        if made.is_manual_edit:
            continue
        newest = max([newest, *(datetime.fromisoformat(row["at"]) for row in (*made.rows, *made.aside))])
        before, now = now, newest - timedelta(hours=1)
        found["rung"].update((k, numbers[k]) for k in waking)
        waking = {row["k"] for row in made.rows}
        for k in waking:
            own = [row for row in made.rows if row["k"] == k]
            counted[k] = [*(counted[k] if lives("fades", k) else []), *own]
            fades[k] = len(counted[k]), len({row["v"] for row in counted[k]})
            if not lives("first", k):
                found["first"][(own[0]["id"],)] += 1
                written["first", k] = now
            even = [row["id"] for row in own if row["id"] % 2 == 0]
            other = max(even) if even else others[k] if lives("other", k) else None
            last = lasts[k] if lives("last", k) else None
            for row in own:
                found["told"][row["id"], last, other] += 1
                last = row["id"]
            numbers[k] += len(own)
            lasts[k] = own[-1]["id"]
            written |= {("fades", k): now, ("last", k): now}
            if even:
                others[k], written["other", k] = max(even), now
        found["odd"].update((row["id"],) for row in made.rows if row["id"] % 2)
        found["extra"].update((row["id"],) for row in made.rows if made.version)
    return found | {"fades": Counter((k, *each) for k, each in fades.items())}


Kind = tuple[Callable[..., None], Callable[..., dict[str, Counter[Any]]], dict[str, tuple[str, ...]]]
KINDS: dict[str, Kind] = {
    "hours": (hours, hours_expected, {"hours": ("k", "n"), "tops": ("id", "rank")}),
    "ordered": (
        ordered,
        ordered_expected,
        {"steps": ("id", "total", "nth", "before"), "threes": ("k", "total"), "pairs": ("id", "other")},
    ),
    "joined": (
        joined,
        joined_expected,
        {
            **dict.fromkeys(["near-left", "near-right", "near-full", "then"], ("id", "other")),
            **dict.fromkeys(["near-semi", "near-anti"], ("id",)),
            "held": ("k", "id", "other"),
            "alone": ("k",),
        },
    ),
    "mixed": (
        mixed,
        mixed_expected,
        {
            "told": ("id", "n", "m", "seen", "bought"),
            "both": ("other",),
            "slowly": ("k", "total"),
            "whole": ("keys", "total"),
        },
    ),
    "ranked": (
        ranked,
        ranked_expected,
        {"visits": ("k", "n", "total"), "first": ("id",), "best": ("id", "rank"), "values": ("k", "n", "even")},
    ),
    "layered": (
        layered,
        layered_expected,
        {
            **{"of-halves": ("k", "n"), "best": ("k", "n", "last"), "slowly": ("k", "n"), "clocks": ("k", "n")},
            **{"pairs": ("id", "other"), "met": ("k", "n"), "some": ("id",), "three": ("id", "other", "third")},
            **dict.fromkeys(["held-left", "held-right"], ("k", "id", "other")),
            **{"tops": ("id", "rank"), "held-semi": ("k", "id"), "alone": ("n",), "numbered": ("id", "nth", "before")},
        },
    ),
    "fading": (
        fading,
        fading_expected,
        {
            **{"fades": ("k", "n", "kinds"), "told": ("id", "last", "other"), "rung": ("k", "n")},
            **dict.fromkeys(["first", "odd", "extra"], ("id",)),
        },
    ),
}
"""By name: what declares it, what it must give of all rows and the totals, and the columns of each table."""


def told(life: Life) -> list[str]:
    """What is not as it must be."""
    wrong: list[str] = []

    def compare(what: str, found: Counter[Any], wanted: Counter[Any]) -> None:
        if found != wanted:
            wrong.append(f"{what}: too much {list(found - wanted)}, missing {list(wanted - found)}")

    def shown(play: SmallPipeline, table: str, *names: str) -> Counter[Any]:
        return Counter(tuple(row[name] for name in names) for row in play.rows(f"tables/{play.name}/{table}"))

    marked = [(row["id"], made.version) for made in life.history for row in made.rows]
    rows = life.counting
    compare("kept", shown(life.play, "kept", "id", "version"), Counter(marked) + life.by_others)
    compare(
        "what counts", Counter(row["id"] for row in life.all), Counter(id for made in life.history for id in made.read)
    )
    if life.drifts:
        compare("said", said(life.play), Counter((row["id"], text_of(row.get("vip"))) for row in rows))
    compare("more", shown(life.play, "more", "id", "version"), Counter(each for each in marked if each[1]))
    sums = totals(life.history)
    compare("totals", shown(life.play, "totals", "k", "total"), Counter(sums.items()))
    held, taken = given(life.root)
    wrong += taken
    compare("totals that were given", held["totals"], plain_rows(life.play.rows("tables/main/totals")))
    _, expected, columns = life.told_kind
    for table, wanted in expected(rows, sums, life.history).items():
        compare(table, shown(life.play, table, *columns[table]), wanted)
    for each in life.forks:
        new = [row for row in life.all[each.landed :] if life.passes(row)]
        compare(each.play.name, shown(each.play, "kept", "id"), Counter((row["id"],) for row in new))
        touched = {row["k"] for row in new}
        sums = totals([*each.history, Made(0, new, 0)])
        wanted = Counter({(k, total): 1 for k, total in sums.items() if k in touched})
        compare(f"{each.play.name}: totals", shown(each.play, "totals", "k", "total"), wanted)
    wrong += life.complaints
    for each in savepoint.savepoints(life.play.ledger):
        wrong += verify_savepoint(life.play.coordinator(), each.name)
    return wrong + list(verify_next_run(life.play.coordinator(), lambda plan: None).problems)


def said(play: SmallPipeline) -> Counter[Any]:
    """The values of the key that the schema lacks, as texts: in its column or in the rescue column."""
    found: Counter[Any] = Counter()
    for row in play.rows(f"tables/{play.name}/said"):
        rescued = json.loads(row["_rescued"] or "{}")
        found[row["id"], text_of(rescued.get("vip", row.get("vip")))] += 1
    return found


def text_of(value: object) -> str | None:
    """A value of JSON as a column of texts has it. Spark keeps the blanks of lists and objects."""
    if isinstance(value, str) and value.startswith(("[", "{")):
        value = json.loads(value)
    return value if isinstance(value, str | None) else json.dumps(value, separators=(",", ":"))


def _gone_back_to(ledger: Ledger, named: set[int]) -> set[int]:
    """What rollbacks with a name rest on."""
    found: set[int] = set()
    left = set(named)
    while left:
        entry = ledger.entry(left.pop())
        if entry is not None and entry.rollback is not None:
            below = {entry.rollback.target, *([entry.plan.base] if entry.rollback.line is not None else [])} - {0, None}
            left |= below - found
            found |= below
    return found


def totals(history: Sequence[Made]) -> dict[str, float]:
    """The sum of each key, with what was changed by hand."""
    found: dict[str, float] = {}
    for made in history:
        for row in made.rows:
            found[row["k"]] = found.get(row["k"], 0.0) + row["v"]
        for k, more in made.added.items():
            found[k] += more
        if made.forgets is not None:
            del found[made.forgets]
    return found


def over(life: Life) -> list[str]:
    """It is cancelled for good: what is named can still be gone on from, all else of its states is gone."""
    ledger, forks = life.play.ledger, len(life.forks)
    control.cancel(ledger, "ann", "", final=True)
    life.play.coordinator().publish()
    life.play.coordinator().retire()
    named = {each.entry for each in savepoint.savepoints(ledger)}
    kept = set(life._retained())
    if wrong := [f"{id} is kept, and nobody has named it" for id in kept - named - _gone_back_to(ledger, named)]:
        return wrong
    kept = {id for id in named if ledger.is_retained(id)}  # one that was rolled back, too
    life._fork(named=True)
    for each in life.forks[forks:]:
        each.play.checkpoint()
    files = life.root / "ledger" / "main" / "state"
    held = [checkpoint_snapshot(ledger, id, {}, by="ann") for id in kept]
    of = {each.file.path for one in held for name in one.states for each in one.table(name).files}
    kept |= {ack.id for one in held for ack in one.acks}  # of a rollback: what it went back to
    there = {path.relative_to(files / path.relative_to(files).parts[0]).as_posix() for path in files.rglob("*.parquet")}
    # What an attempt staged that lost goes with its checkpoint.
    left = {path for path in there if path.startswith("tidegate/") and int(path.split("/")[2]) not in kept} - of
    return [f"{len(left)} files of states are left, first {min(left)}"] if left else []


def main() -> int:
    """Many histories, or one seed's again."""
    from tests.spark.mended_lives import MendedLife
    from tidegate.spark.session import SparkSettings, session

    parser = argparse.ArgumentParser(prog="python -m tests.spark.random_histories", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, help="replay this one only")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no other one after so long")
    parser.add_argument("--lives", choices=["Life", "MendedLife"], help="of this sort only")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.seeds)
    chosen = [each for each in (Life, MendedLife) if options.lives in (None, each.__name__)]
    bad, told_acts = 0, Counter[str]()
    ends = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        settings = SparkSettings(
            mode="local", home=Path(folder) / "spark", master="local[2]", memory="1g", conf=INTERPRETED
        )
        with session(settings) as spark:
            for seed, lives in itertools.product(seeds, chosen):
                if time.monotonic() > ends:
                    break
                bad += _one(lives(seed, Path(folder) / f"{seed}-{lives.__name__}", spark), options.steps, told_acts)
    print(f"acts: {dict(told_acts.most_common())}")
    print(f"{bad} histories went wrong" if bad else "all tables are as they must be")
    return 1 if bad else 0


def _one(life: Life, steps: int, told_acts: Counter[str]) -> int:
    began = time.monotonic()
    try:
        life.live(steps)
        wrong = told(life) + over(life)
    except Exception:
        wrong = traceback.format_exc(limit=-4).splitlines()[-16:]
    shutil.rmtree(life.root, ignore_errors=True)
    told_acts.update(each.split()[0] for each in life.story)
    name = type(life).__name__
    print(f"{name} {life.seed} {life.kind}: {life}: {time.monotonic() - began:.0f} s", flush=True)
    if wrong:
        how = f"replay: python -m tests.spark.random_histories --lives {name} --seed {life.seed}"
        print("\n".join(f"  {each[:600]}" for each in [*wrong, how]), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
