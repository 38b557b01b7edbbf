"""Pipelines drawn by lot: some gates, then some pieces, each an operator or two with tables of their own.

What a piece reads is drawn as well: the source itself, or the rows that have passed the gates. `Drawn.declare` draws
the same pipeline each time, as every process declares it anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tests.replay.gates import AboveTrend, AsksAboutLarge, SetsFifthsAside
from tests.spark.small_pipeline import sources
from tidegate import Pipeline
from tidegate.gates import Agrees, Anomaly, Contract, Expectations, Freshness, References, Unique, Volume
from tidegate.operators import ListState, MapState
from tidegate.sinks import DeltaAppend, DeltaUpsert, FileExport

__all__ = ["CHANGES", "CUSTOMERS", "FILES", "GATES", "PIECES", "Drawn"]

CUSTOMERS = "tables/customers"
"""A table that a join looks up, which others change between checkpoints."""

CONTRACT_FILE = "contracts/rows.odcs.yaml"
FILES = {
    "include/expectations/drawn.yaml": """
name: drawn
expectations:
  - {type: unexpected_rows_expectation, kwargs: {unexpected_rows_query: "select * from {batch} where v % 7 = 3"}}
  - {type: expect_column_values_to_not_be_null, kwargs: {column: k}}
  - {type: expect_column_values_to_be_unique, kwargs: {column: id}}
""",
    CONTRACT_FILE: """
apiVersion: v3.1.0
kind: DataContract
id: rows
version: 1.0.0
status: active
schema:
  - name: rows
    properties:
      - {name: id, logicalType: integer, required: true}
      - {name: v, logicalType: integer, logicalTypeOptions: {multipleOf: 2}}
""",
}
"""A suite with a rule in SQL, and a contract, by their paths in the folder of a pipeline."""

ROWS = "id long, k string, v long, at timestamp"
OTHERS = "oid long, k string, w long, then timestamp"


def append(stream: Any, name: str) -> None:
    stream.sink(name, DeltaAppend(f"tables/{name}"))


def upsert(stream: Any, name: str, *keys: str) -> None:
    stream.sink(name, DeltaUpsert(f"tables/{name}", keys=list(keys)))


def ttl(dice: random.Random) -> dict[str, Any]:
    """A time after which keys are forgotten: by the clock, by event time, or none."""
    return dice.choice(
        [{}, {"state_ttl": "2 days"}, {"state_ttl": "3 days"}, {"state_ttl": "2 days", "ttl_time": "event"}]
    )


# -- pieces ------------------------------------------------------------------------------------------------------


def first_rows(dice: random.Random, rows: Any, others: Any) -> None:
    append(rows.deduplicate(by="k", uid="firsts", **ttl(dice)), "firsts")


def near_copies(dice: random.Random, rows: Any, others: Any) -> None:
    once = rows.deduplicate(by=["k", "v"], within=dice.choice(["6 hours", "1 day"]), uid="once")
    append(once, "once")
    append(once["late"], "once-late")


def totals(dice: random.Random, rows: Any, others: Any) -> None:
    forgets = ttl(dice)
    counted = rows.aggregate(by="k", uid="totals", s="sum(v)", n="count(*)", d="count(distinct v)", **forgets)
    upsert(counted, "totals", "k")
    if not forgets:
        upsert(counted.aggregate(by="n", uid="sizes", keys="count(*)", s="sum(s)"), "sizes", "n")


def days_by_the_clock(dice: random.Random, rows: Any, others: Any) -> None:
    days = rows.window(tumbling="1 d", by="k", time="processing", uid="days", n="count(*)", s="sum(v)")
    append(days, "days")


def hours(dice: random.Random, rows: Any, others: Any) -> None:
    how: dict[str, Any] = dice.choice(
        [{"late": "side"}, {"emit": "update"}, {"allowed_lateness": "6 hours"}, {"emit": "update", "late": "side"}]
    )
    found = rows.window(tumbling="6 hours", by="k", uid="hours", n="count(*)", s="sum(v)", **how)
    if how == {"late": "side"}:
        append(found, "hours")
    else:
        upsert(found, "hours", "k", "window_start")
    if "late" in how:
        append(found["late"], "hours-late")


def sessions(dice: random.Random, rows: Any, others: Any) -> None:
    append(rows.window(session="8 hours", by="k", uid="visits", n="count(*)", s="sum(v)"), "visits")


def threes(dice: random.Random, rows: Any, others: Any) -> None:
    found = rows.window(count=3, by="k", uid="threes", s="sum(v)", **dice.choice([{}, {"state_ttl": "2 days"}]))
    append(found, "threes")


def running(dice: random.Random, rows: Any, others: Any) -> None:
    append(rows.over(by="k", uid="steps", s="sum(v)", nth="row_number()", before="lag(v)", **ttl(dice)), "steps")


def rings(key: Any, rows: Any, state: Any, timers: Any) -> Iterator[dict[str, Any]]:
    """Say how many rows of a key there were, two days after its first ones."""
    if timers.fired:
        yield {"k": key["k"], "n": state.n, "at": timers.now}
        state.clear()
        if not rows.num_rows:
            return
    fresh = state.n is None
    state.n = (state.n or 0) + rows.num_rows
    if fresh:
        timers.clock(timers.now + timedelta(days=2))


def timers_of_the_clock(dice: random.Random, rows: Any, others: Any) -> None:
    rung = rows.process(by="k", state="n long", output="k string, n long, at timestamp", uid="rung", **ttl(dice))(rings)
    append(rung, "rung")


def follows(key: Any, rows: Any, others: Any, state: Any, timers: Any) -> Iterator[Any]:
    """Say of each row what came before it, of both streams, and half a day later how much that was."""
    if timers.fired:
        yield "later", {"k": key["k"], "n": state.n}
    state.m = (state.m or 0) + others.num_rows
    for row in rows.to_pylist():
        state.n = (state.n or 0) + 1
        state.past.append({"v": row["v"]})
        entry = state.seen[row["v"]]
        entry.n = (entry.n or 0) + 1
        past = sum(each["v"] or 0 for each in state.past)
        yield {"id": row["id"], "n": state.n, "m": state.m, "past": past, "seen": entry.n}
        timers.event(row["at"] + timedelta(hours=12))
        if state.n % 4 == 0:
            state.past.clear()


def in_order(dice: random.Random, rows: Any, others: Any) -> None:
    told = rows.process(
        by="k", state="n long, m long", output="id long, n long, m long, past long, seen long",
        outputs={"later": "k string, n long"},
        other=others, in_order=True, event_time=("at", "then"), lists={"past": ListState("v long")},
        maps={"seen": MapState(by="v", state="n long")}, uid="told",
    )(follows)  # fmt: skip
    append(told, "told")
    append(told["later"], "later")


def pairs_near_in_time(dice: random.Random, rows: Any, others: Any) -> None:
    how = dice.choice(["inner", "left", "full", "semi", "anti"])
    near = rows.join(others, on="k", within=("-6 hours", "12 hours"), how=how, event_time=("at", "then"), uid="near")
    append(near, "near")


def pairs_that_hold(dice: random.Random, rows: Any, others: Any) -> None:
    how = dice.choice(["inner", "left", "full", "anti"])
    last = others.latest(by="k", order_by=["then", "oid"], uid="last")
    newest = rows.latest(by="k", order_by=["at", "id"], uid="newest")
    upsert(newest.join(last, on="k", how=how, uid="held"), "held", "k")


def all_pairs(dice: random.Random, rows: Any, others: Any) -> None:
    pairs = rows.join(others, on="k", uid="pairs", **dice.choice([{}, {"state_ttl": "2 days"}]))
    append(pairs, "pairs")


def version_of_then(dice: random.Random, rows: Any, others: Any) -> None:
    then = rows.join(others, on="k", as_of=True, how="left", event_time=("at", "then"), uid="then", **ttl(dice))
    append(then, "as-of")


def looked_up_in_a_table(dice: random.Random, rows: Any, others: Any) -> None:
    append(rows.join(table=CUSTOMERS, on="k", how="left", uid="named"), "named")


def looked_up_in_a_stream(dice: random.Random, rows: Any, others: Any) -> None:
    rules = others.broadcast(by="k", order_by=["then", "oid"], uid="rules", **ttl(dice))

    @rows.pipeline.stage(rows, rules)
    def ruled(rows: Any, rules: Any) -> Any:
        return rows.join(rules, "k", "left")

    append(ruled, "ruled")


def greatest(dice: random.Random, rows: Any, others: Any) -> None:
    rank = dice.choice(["row_number", "dense_rank"])
    forgets = ttl(dice) if rank == "row_number" else {}
    best = rows.top_n(2, by="k", order_by=["v desc", "id"], rank=rank, uid="best", **forgets)
    upsert(best, "best", "k", "rank", *(["id", "at", "v"] if rank == "dense_rank" else []))


def greatest_of_windows(dice: random.Random, rows: Any, others: Any) -> None:
    tops = rows.top_n(2, tumbling="12 hours", by="k", order_by=["v desc", "id"], uid="tops")
    append(tops, "tops")
    append(tops["late"], "tops-late")


def now_and_then(dice: random.Random, rows: Any, others: Any) -> None:
    sums = rows.aggregate(by="k", uid="all", s="sum(v)", n="count(*)")
    upsert(sums.every(dice.choice([2, 3]), uid="seldom"), "seldom", "k")


def keys_of_another_stream(dice: random.Random, rows: Any, others: Any) -> None:
    countries = rows.latest(by="id", order_by="at", uid="moved").select("k", "v % 3 AS part", name="parts")
    upsert(countries, "countries", "k")


def newest_by_the_sink(dice: random.Random, rows: Any, others: Any) -> None:
    plain = rows.select("*", "v % 4 = 0 AS gone", name="marked")
    plain.sink("current", DeltaUpsert("tables/current", keys=["k"], order_by=["at", "id"], delete_when="gone"))


def both_together(dice: random.Random, rows: Any, others: Any) -> None:
    more = others.select("oid AS id", "k", "w AS v", "then AS at", name="renamed")
    both = rows.union(more, name="both")
    append(both, "both")
    upsert(both.aggregate(by="k", uid="of-both", n="count(*)", m="max(v)"), "of-both", "k")


def windows_behind_first_rows(dice: random.Random, rows: Any, others: Any) -> None:
    once = rows.deduplicate(by="id", within="1 day", uid="unique")
    upsert(once.window(tumbling="1 d", by="k", emit="update", uid="daily", n="count(*)"), "daily", "k", "window_start")


def by_chance(dice: random.Random, rows: Any, others: Any) -> None:
    """What no replay gives again: the dry run must say so."""

    @rows.pipeline.stage(rows)
    def shaken(rows: Any) -> Any:
        from pyspark.sql import functions as F

        return rows.withColumn("chance", F.rand())

    append(shaken, "shaken")


def known_customers(dice: random.Random, rows: Any, others: Any) -> None:
    known = rows.gate(References("k", to=CUSTOMERS, on_failure=dice.choice(["quarantine", "warn"])), name="known")
    append(known, "known")


def ids_that_occur_once(dice: random.Random, rows: Any, others: Any) -> None:
    over = dice.choice(["6 hours", "2 days"])
    append(rows.gate(Unique("id", over=over, on_failure="quarantine"), name="once"), "once")


def usual_sums(dice: random.Random, rows: Any, others: Any) -> None:
    season = dice.choice([None, "day"])
    append(rows.gate(Anomaly("sum(v)", by="k", season=season, after=3, sensitivity="high"), name="usual"), "usual")


def agreeing_counts(dice: random.Random, rows: Any, others: Any) -> None:
    """Each key is that of one customer, or its rows go to quarantine."""
    policy = dice.choice(["quarantine", "warn"])
    compared = Agrees("count(distinct k)", to=CUSTOMERS, other="count(*)", by="k", on_failure=policy)
    append(rows.gate(compared, name="agreeing"), "agreeing")


def rows_of_a_suite(dice: random.Random, rows: Any, others: Any) -> None:
    append(rows.gate(Expectations("drawn", on_failure="quarantine"), name="suited"), "suited")


def rows_of_a_contract(dice: random.Random, rows: Any, others: Any) -> None:
    append(rows.gate(Contract(CONTRACT_FILE, on_failure="quarantine"), name="promised"), "promised")


def exported(dice: random.Random, rows: Any, others: Any) -> None:
    """Such a folder has no way back: a backfill leaves it as it is."""
    rows.sink("exported", FileExport("exports/rows", format="json"))


PIECES: dict[str, Callable[[random.Random, Any, Any], None]] = {
    each.__name__: each
    for each in (
        first_rows, near_copies, totals, days_by_the_clock, hours, sessions, threes, running, timers_of_the_clock,
        in_order, pairs_near_in_time, pairs_that_hold, all_pairs, version_of_then, looked_up_in_a_table,
        looked_up_in_a_stream, greatest, greatest_of_windows, now_and_then, keys_of_another_stream, newest_by_the_sink,
        both_together, windows_behind_first_rows, by_chance, known_customers, ids_that_occur_once, usual_sums, exported,
        agreeing_counts, rows_of_a_suite, rows_of_a_contract,
    )
}  # fmt: skip

GATES: dict[str, Callable[[random.Random], Any]] = {
    "fresh": lambda dice: Freshness("at", "2 days", on_failure=dice.choice(["hold", "warn", "abort"])),
    "fifths": lambda dice: SetsFifthsAside(),
    "trend": lambda dice: AboveTrend(),
    "volume": lambda dice: Volume(1.5, of=4, after=2, on_failure=dice.choice(["hold", "warn"])),
    "large": lambda dice: AsksAboutLarge(),
}
"""By name, in the order in which rows pass them."""


CHANGES: dict[str, tuple[Sequence[str], str | None]] = {
    "refactored": (("id", "k", "v", "at"), None),
    "doubled": (("id", "k", "v * 2 AS v", "at"), None),
    "one key": (("id", "k", "CASE WHEN k = 'a' THEN v + 1 ELSE v END AS v", "at"), None),
    "fewer rows": (("id", "k", "v", "at"), "id % 3 <> 0"),
    "other keys": (("id", "coalesce(k, 'a') AS k", "v", "at"), None),
    "null values": (("id", "k", "nullif(v, 5) AS v", "at"), None),
}
"""By name: what is selected of the rows in front of everything, and which rows."""


@dataclass(frozen=True)
class Drawn:
    """One seed's pipeline."""

    seed: int
    pieces: Sequence[str] = ()
    """These, in place of some that are drawn."""
    gates: Sequence[str] | None = None
    count: int = 4
    """So many pieces are drawn."""
    change: str = ""
    """How its code has changed since: one of CHANGES."""
    has_fewer_others: bool = False
    """Whether it takes only some of the second source's rows."""

    def declare(self, pipeline: Pipeline, files_at_once: int) -> None:
        """Declare it, the same each time."""
        dice = random.Random(f"pipeline {self.seed}")
        idle = dice.choice([{}, {"idle_timeout": "1 day"}])
        late = dice.choice(["0 s", "6 hours", "1 day"])
        rows = sources(pipeline, ROWS, "rows", files_at_once, event_time="at", watermark=late, **idle)
        others = sources(pipeline, OTHERS, "others", files_at_once, event_time="then", watermark=late, **idle)
        if self.change:
            rows = rows.select(*CHANGES[self.change][0], where=CHANGES[self.change][1], name="changed")
        if self.has_fewer_others:
            others = others.select("oid", "k", "w", "then", where="oid % 3 <> 0", name="fewer")
        good = rows
        drawn = [name for name in GATES if dice.random() < 0.45]
        for name in drawn if self.gates is None else self.gates:
            good = good.gate(GATES[name](dice), name=name)
        append(good, "good")
        append(others, "plain")
        for name in self.pieces or dice.sample(list(PIECES), self.count):
            stream = good if dice.random() < 0.7 else rows
            PIECES[name](random.Random(f"{name} {self.seed}"), stream, others)

    def __str__(self) -> str:
        pipeline = Pipeline("drawn")
        self.declare(pipeline, 1)
        gates = [stage.name for stage in pipeline._stages if hasattr(stage, "gate")]
        operators = [stage.name for stage in pipeline._stages if hasattr(stage, "operator")]
        return f"gates {', '.join(gates) or 'none'}; operators {', '.join(operators) or 'none'}"
