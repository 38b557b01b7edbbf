"""A shop whose code had a bug: what it made is computed again beside it, and swapped in."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.backfill import OpenBackfill, begin, discard, open_line, replay, swap
from tidegate.execution.loop import Observer, Schedule
from tidegate.gates import BrokenRule, Gate, GateContext, Judgement
from tidegate.gates.quarantine.columns import RULES
from tidegate.lifecycle import savepoint
from tidegate.records.records import Json
from tidegate.sinks import DeltaAppend, DeltaUpsert

DAYS = [[{"id": n, "customer": n % 3, "amount": 10 * n} for n in range(first, first + 4)] for first in range(0, 24, 4)]
TABLES = ("sales", "totals")

Shown = dict[str, Counter[str]]

MODULE = """
from pathlib import Path
from tests.spark.mended_shop import MendedShop
pipeline = MendedShop(Path.cwd(), None, factor=1).pipeline()
"""
"""The mended code, for commands that run in the shop's folder."""


class NoFives(Gate):
    """Sets every fifth order aside."""

    kind = "no-fives"
    quarantines = True

    def describe(self) -> Json:
        return {}

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        from pyspark.sql import functions as F

        bad = frame.where("id % 5 = 0").withColumn(RULES, F.array(F.lit("five")))
        count = bad.count()
        broken = (BrokenRule("five", "quarantine", rows=count),) if count else ()
        return Judgement(frame.count(), broken, split=(frame.where("id % 5 <> 0"), bad) if count else None)


class MendedShop(SmallPipeline):
    """It counts everything double, until somebody mends it."""

    def __init__(self, root: Path, spark: Any, factor: int = 2, *, files_at_once: int = 1000) -> None:
        super().__init__(root, spark, self.declare, "shop")
        self.factor = factor
        self.files_at_once = files_at_once

    def declare(self, pipeline: Pipeline) -> None:
        factor = self.factor
        rows = sources(pipeline, "id long, customer long, amount long", max_files=self.files_at_once)

        @pipeline.stage(rows)
        def priced(rows: Any) -> Any:
            return rows.selectExpr("id", "customer", f"amount * {factor} AS amount")

        good = priced.gate(NoFives(), name="checked")
        good.sink("sales", DeltaAppend("tables/sales"))
        totals = good.aggregate(by="customer", total="sum(amount)", n="count(*)", uid="totals")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["customer"]))

    def play_with_the_bug(self, days: int) -> None:
        """The first day is right and has a name, all others are wrong; then the code is mended."""
        self.factor = 1
        self.play(DAYS[:1])
        savepoint.create(self.coordinator().ledger, "first-day", 1, "ann")
        self.factor = 2
        self.play(DAYS[1:days])
        self.factor = 1

    def shown(self) -> Shown:
        shown = {name: Counter(map(repr, self.rows(f"tables/{name}"))) for name in TABLES}
        aside = self.rows(str(self.folder / "quarantine/checked"))
        return shown | {"checked": Counter(f"{row['id']}: {row['amount']}" for row in aside)}

    def line(self, name: str, origin: int) -> OpenBackfill:
        return begin(self.coordinator(), name, origin, by="ann")

    def reopened(self, name: str) -> OpenBackfill:
        live = self.coordinator()
        record = live.ledger.line(name)
        assert record is not None
        return open_line(live, record)

    def replayed(self, line: OpenBackfill) -> OpenBackfill:
        replay(line, OneSession(self.spark), Schedule(), Observer())
        return line

    def swap_and_discard(self, name: str) -> None:
        """What `tidegate backfill --swap` does when it has caught up; again, if it was interrupted."""
        live = self.coordinator()
        record = live.ledger.line(name)
        if record is None:
            assert live.ledger.line_discarded(name) is not None
            return
        line = open_line(live, record)
        if live.ledger.line_discarded(name) is None:
            swapped = swap(line, by="ann", choices={}, wait=never)
            assert swapped.error is None
            assert swapped.report is not None
            assert not swapped.report.stuck
        discard(line, "ann")

    def copied(self, root: Path) -> MendedShop:
        """The same shop in another folder."""
        shutil.copytree(self.root, root)
        other = MendedShop(root, self.spark, self.factor)
        other.files = self.files
        return other


class OneSession:
    """The session of the tests."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __call__(self, job: str | None = None) -> Any:
        return self._spark

    def drop(self) -> None:
        """It stays open."""


def never(why: str) -> None:
    raise AssertionError(f"nothing is to be waited for: {why}")


def always_right(root: Path, spark: Any, days: int) -> Shown:
    """What the tables of a shop show that never had the bug."""
    other = MendedShop(root, spark, factor=1)
    for day in DAYS[:days]:
        other.feed(day)
    other.checkpoint()
    return other.shown()
