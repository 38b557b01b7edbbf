"""What an operator forgets by the clock, against a model in plain Python: whatever befalls attempts, it is forgotten in
the same checkpoint."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn, turn_of
from tests.spark.random_cuts import FAULTS, Telling
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, seams
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=75)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TTL: dict[str, Any] = {"state_ttl": "36 h"}
Row = dict[str, Any]


def declare(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "k string, id long, v long, w long", "rows")
    others = sources(pipeline, "k string, oid long", "others")
    totals = rows.aggregate(by="k", n="count(*)", s="sum(v)", uid="totals", **TTL)
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
    kinds = rows.aggregate(
        by="k",
        w="count(distinct w)",
        big="count(distinct w) filter (where v > 4000)",
        pairs="count(distinct w, id % 2)",
        most="max(v)",
        uid="kinds",
        **TTL,
    )
    kinds.sink("kinds", DeltaUpsert("tables/kinds", keys=["k"]))
    best = rows.top_n(1, by="k", order_by="v desc", uid="best", **TTL)
    best.sink("best", DeltaUpsert("tables/best", keys=["k"]))
    newest = rows.latest(by="k", order_by="v", uid="newest", **TTL)
    newest.sink("newest", DeltaUpsert("tables/newest", keys=["k"]))
    rows.deduplicate(by="k", uid="first", **TTL).sink("first", DeltaAppend("tables/first"))
    rows.join(others, on="k", uid="pairs", **TTL).sink("pairs", DeltaAppend("tables/pairs"))


@dataclass
class Model:
    """What is remembered, each with the day on which it came or changed, and what has been given."""

    totals: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    counted: dict[str, list[Row]] = field(default_factory=dict)
    best: dict[str, tuple[int, int]] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    sides: tuple[list[tuple[Row, int]], list[tuple[Row, int]]] = field(default_factory=lambda: ([], []))
    given: dict[str, Any] = field(default_factory=lambda: {"best": {}, "first": [], "pairs": []})

    def checkpoint(self, day: int, rows: Sequence[Row], others: Sequence[Row]) -> None:
        for k in sorted({row["k"] for row in rows}):
            own = [row for row in rows if row["k"] == k]
            n, s, last = self.totals.get(k, (0, 0, day))
            n, s = (n, s) if day - last < 1.5 else (0, 0)
            self.counted[k] = [*(self.counted.get(k, []) if n else []), *own]
            self.totals[k] = (n + len(own), s + sum(row["v"] for row in own), day)
            kept = [self.best[k]] if k in self.best and day - self.best[k][1] < 1.5 else []
            self.best[k] = max([*kept, *((row["v"], day) for row in own)])
            self.given["best"][k] = self.best[k][0]
            if k not in self.first or day - self.first[k] > 1.5:
                self.first[k] = day
                self.given["first"].append(k)
        new = [[(row, day) for row in side] for side in (rows, others)]
        old = [[each for each in side if day - each[1] < 1.5] for side in self.sides]
        pairs = [*itertools.product(new[0], old[1] + new[1]), *itertools.product(old[0], new[1])]
        self.given["pairs"] += [(one["id"], other["oid"]) for (one, _), (other, _) in pairs if one["k"] == other["k"]]
        for side, added in zip(self.sides, new, strict=True):
            side += added


def kinds_of(rows: Sequence[Row]) -> dict[str, int]:
    """What is counted of a key's rows."""
    pairs = {(row["w"], row["id"] % 2) for row in rows}
    big = {row["w"] for row in rows if row["v"] > 4000}
    return {
        "w": len({row["w"] for row in rows} - {None}),
        "big": len(big - {None}),
        "pairs": sum(w is not None for w, _ in pairs),
        "most": max(row["v"] for row in rows),
    }


@pytest.mark.parametrize("seed", turn_of(range(4), 4))
def test_what_is_older_than_it_may_be_counts_no_more(tmp_path: Path, spark: Any, seed: int) -> None:
    """Each checkpoint is a day after the one before. What was aborted comes a day later."""
    dice, model, play = random.Random(seed), Model(), SmallPipeline(tmp_path, spark, declare)
    tasks, numbers = itertools.cycle([dice.choice([1, 2, -2, 3]) for _ in range(20)]), itertools.count()
    waiting: tuple[list[Row], list[Row]] = ([], [])
    story = []
    for day in range(8):
        for side, name in zip(waiting, ("rows", "others"), strict=True):
            own = {"rows": ("id", "v", "w"), "others": ("oid",)}[name]
            made = [
                {"k": dice.choice("abcd"), **{column: _value(column, next(numbers), dice) for column in own}}
                for _ in range(dice.choice([0, 1, 3]))
            ]
            play.feed(made, name)
            side += made
        fault = dice.choice(["", "", *FAULTS]) if day < 7 else ""
        story.append(f"day {day} {fault}: {waiting}")
        with seams.installed(seams.Seams(now=lambda day=day: BEGIN + timedelta(days=day))):
            Telling(play, spark, tasks).checkpoint(fault)
        if fault not in ("abort", "fenced"):
            model.checkpoint(day, *waiting)
            waiting = ([], [])
    told = "\n".join(story)
    totals = {row["k"]: (row["n"], row["s"]) for row in play.rows("tables/totals")}
    assert totals == {k: (n, s) for k, (n, s, _) in model.totals.items()}, told
    kinds = {row.pop("k"): row for row in play.rows("tables/kinds")}
    assert kinds == {k: kinds_of(rows) for k, rows in model.counted.items()}, told
    for name in ("best", "newest"):
        assert {row["k"]: row["v"] for row in play.rows(f"tables/{name}")} == model.given["best"], told
    assert Counter(row["k"] for row in play.rows("tables/first")) == Counter(model.given["first"]), told
    assert Counter((row["id"], row["oid"]) for row in play.rows("tables/pairs")) == Counter(model.given["pairs"]), told


def _value(column: str, number: int, dice: random.Random) -> int | None:
    """Values of rows are in no order, and no two of them are the same; but of `w` there are few."""
    if column == "w":
        return dice.choice([None, 0, 1, 2])
    return 1000 * dice.randint(0, 9) + number if column == "v" else number
