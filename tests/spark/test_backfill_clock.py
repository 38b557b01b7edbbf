"""A backfill goes by the clock of the checkpoints that it replays, and not by the one of the day on which it runs.

Four days are computed as they come, and again a year later by the same code: whatever goes by processing time (state
that expires, windows, timers, freshness) is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.mended_shop import OneSession, never
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, seams
from tidegate.backfill import OpenLine, begin, replay, swap
from tidegate.backfill.compare import difference_of
from tidegate.execution.loop import Observer, Schedule
from tidegate.gates import Freshness
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.state.table import STATE

pytestmark = in_turn(2, of=4)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
A_YEAR_LATER = BEGIN + timedelta(days=365)
SCHEMA = "k string, v long, at timestamp"
TABLES = ("firsts", "totals", "days", "rung")

DAYS = {
    1: [("a", 1), ("b", 10)],
    2: [("a", 100), ("c", 1)],
    4: [("a", 1000), ("b", 3)],
    9: [("a", 10), ("d", 4)],
}
"""Rows by the day on which they come. Keys are forgotten after three days."""


def rings(key: Any, rows: Any, state: Any, timers: Any) -> Iterator[dict[str, Any]]:
    """Asks to be called two days after a key's first row."""
    if timers.fired:
        yield {"k": key["k"], "n": state.n}
    state.n = (state.n or 0) + rows.num_rows
    if state.n == rows.num_rows:
        timers.clock(timers.now + timedelta(days=2))


def declare(pipeline: Pipeline) -> None:
    rows = sources(pipeline, SCHEMA, max_files=1).gate(Freshness("at", "1 day"), name="fresh")
    firsts = rows.deduplicate(by="k", state_ttl="3 days", uid="firsts")
    firsts.sink("firsts", DeltaAppend("tables/firsts"))
    totals = rows.aggregate(by="k", state_ttl="3 days", uid="totals", s="sum(v)", n="count(*)")
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
    days = rows.window(tumbling="1 d", by="k", time="processing", uid="days", n="count(*)", s="sum(v)")
    days.sink("days", DeltaAppend("tables/days"))
    rung = rows.process(by="k", state="n long", output="k string, n long", uid="rung")(rings)
    rung.sink("rung", DeltaAppend("tables/rung"))


class Days(SmallPipeline):
    """Each day one file comes, and a checkpoint reads it."""

    def __init__(self, root: Path, spark: Any) -> None:
        super().__init__(root, spark, declare)
        self.limit(num_retained=100)

    def live(self) -> None:
        for day, rows in DAYS.items():
            at = BEGIN + timedelta(days=day)
            self.feed([{"k": k, "v": v, "at": at.isoformat()} for k, v in rows])
            with seams.installed(seams.Seams(now=lambda at=at: at)):  # type: ignore[misc]
                self.checkpoint()

    def tables(self) -> dict[str, list[str]]:
        return {name: sorted(map(repr, self.rows(f"tables/{name}"))) for name in TABLES}

    def states(self) -> dict[str, list[str]]:
        """All states as of the last checkpoint, without the numbers of the checkpoints that wrote the rows."""
        names = [name for name in self.graph().tables if name.startswith(STATE)]
        return {name: sorted(repr(each) for each in _newest(self, name)) for name in names}

    def line(self, origin: int, **options: Any) -> OpenLine:
        with seams.installed(seams.Seams(now=lambda: A_YEAR_LATER)):
            line = begin(self.coordinator(), "again", origin, by="ann", **options)
            replay(line, OneSession(self.spark), Schedule(), Observer())
        return line

    def swapped(self, line: OpenLine) -> None:
        with seams.installed(seams.Seams(now=lambda: A_YEAR_LATER)):
            assert swap(line, by="ann", choices={}, wait=never).error is None


def _newest(play: Days, name: str) -> list[dict[str, Any]]:
    from tidegate import offline  # noqa: F401

    rows = play.rows(f"ledger/play/state/{name.removeprefix(STATE)}")
    keys = [column for column in (rows[0] if rows else {}) if column in ("k", "window_start", "start")]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["_checkpoint"]):
        found[tuple(row[key] for key in keys)] = {n: v for n, v in row.items() if n not in ("_checkpoint", "_group")}
    return [row for row in found.values() if not row["_deleted"]]


def clocks(line: OpenLine) -> list[str]:
    """Those of the checkpoints that the line has made itself."""
    plans = (line.own.ledger.plan(id) for id in line.own.ledger.ids(after=line.record.origin))
    return [plan.time[:10] for plan in plans if plan is not None]


@pytest.mark.parametrize("origin", [0, 1])
def test_a_backfill_a_year_later_by_the_same_code_changes_nothing(tmp_path: Path, spark: Any, origin: int) -> None:
    play = Days(tmp_path, spark)
    play.live()
    before, states = play.tables(), play.states()
    assert [row["k"] for row in sorted(play.rows("tables/firsts"), key=repr)] != [], "there is something to compare"
    assert {row["k"]: (row["s"], row["n"]) for row in play.rows("tables/totals")}["a"] == (10, 1), "forgotten since"

    line = play.line(origin)
    assert clocks(line) == ["2026-01-02", "2026-01-03", "2026-01-05", "2026-01-10"][origin:]
    for name in TABLES:
        difference = difference_of(line, name)
        assert (difference.taken_away, difference.brought) == (0, 0), name
    play.swapped(line)
    assert play.tables() == before
    assert play.states() == states
    entry = play.coordinator().ledger.entry(5)
    assert entry is not None
    assert entry.plan.time.startswith("2026-01-10"), "what comes next continues from there"
