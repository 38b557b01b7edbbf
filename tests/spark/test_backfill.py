"""A pipeline has had a bug for a while. It is mended; what the bug made is computed again beside it, and swapped in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.backfill import OpenLine, begin, discard, hold_pipeline, open_line, replay, swap
from tidegate.execution.loop import Observer, Schedule
from tidegate.lifecycle import savepoint
from tidegate.gates import Gate, GateContext, Judgement
from tidegate.records.records import Json
from tidegate.sinks import DeltaAppend, DeltaUpsert

DAYS = [[{"id": n, "customer": n % 3, "amount": 10 * n} for n in range(first, first + 4)] for first in range(0, 24, 4)]


class NotTheLast(Gate):
    """Sets the last row of each file aside."""

    kind = "not-the-last"
    quarantines = True

    def describe(self) -> Json:
        return {}

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        return Judgement(0)


class Shop(SmallPipeline):
    """A shop whose code had a bug: it counted everything double."""

    def __init__(self, root: Path, spark: Any) -> None:
        super().__init__(root, spark, self.declare, "shop")
        self.factor = 2

    def declare(self, pipeline: Pipeline) -> None:
        factor = self.factor
        rows = sources(pipeline, "id long, customer long, amount long")

        @pipeline.stage(rows)
        def priced(rows: Any) -> Any:
            return rows.selectExpr("id", "customer", f"amount * {factor} AS amount")

        priced.sink("sales", DeltaAppend("tables/sales"))
        totals = priced.aggregate(by="customer", total="sum(amount)", n="count(*)", uid="totals")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["customer"]))

    def shown(self) -> dict[str, Counter[Any]]:
        return {name: Counter(map(repr, self.rows(f"tables/{name}"))) for name in ("sales", "totals")}

    def line(self, name: str, origin: int) -> OpenLine:
        return begin(self.coordinator(), name, origin, by="ann")

    def reopened(self, name: str) -> OpenLine:
        live = self.coordinator()
        record = live.ledger.line(name)
        assert record is not None
        return open_line(live, record)

    def replayed(self, line: OpenLine) -> None:
        replay(line, Session(self.spark), Schedule(), Observer())


class Session:
    """The one session of these tests."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __call__(self, job: str | None = None) -> Any:
        return self._spark

    def drop(self) -> None:
        """It stays open."""


def never(why: str) -> None:
    raise AssertionError(f"nothing is to be waited for: {why}")


@pytest.fixture
def shop(tmp_path: Path, spark: Any) -> Shop:
    return Shop(tmp_path / "shop", spark)


@pytest.fixture
def right(tmp_path: Path, spark: Any) -> Callable[[int], dict[str, Counter[Any]]]:
    """What the tables of a shop show that never had the bug, after some days."""

    def shown(days: int, wrong: int = 0) -> dict[str, Counter[Any]]:
        other = Shop(tmp_path / "right", spark)
        other.factor = 1
        other.play(DAYS[:days])
        return other.shown()

    return shown


@pytest.mark.parametrize("origin", [0, 1])
def test_what_a_bug_made_is_replaced_at_once(shop: Shop, right: Any, origin: int) -> None:
    if origin:
        shop.factor = 1
    shop.play(DAYS[:1])
    savepoint.create(shop.coordinator().ledger, "first-day", 1, "ann")
    shop.factor = 2
    shop.play(DAYS[1:4])
    wrong = shop.shown()

    shop.factor = 1
    line = shop.line("fix", origin)
    shop.replayed(line)
    assert shop.shown() == wrong, "the pipeline's tables have not changed"
    shop.play(DAYS[4:5])  # the pipeline goes on, and does not wait
    shop.replayed(line)
    swapped = swap(line, by="ann", choices={}, wait=never)
    assert swapped.error is None
    assert swapped.report is not None and not swapped.report.stuck
    assert shop.shown() == right(5)

    discard(shop.reopened("fix"), "ann")
    shop.play(DAYS[5:])
    assert shop.shown() == right(6)
