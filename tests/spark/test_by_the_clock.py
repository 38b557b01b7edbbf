"""What goes by checkpoints and their clock: windows of planned time, results every few, and sources that end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.changelog_check import given, plain_rows
from tests.spark.small_pipeline import SmallPipeline
from tidegate import Pipeline, seams
from tidegate.errors import Invalid
from tidegate.records.records import Drain
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pytestmark = in_turn(seconds=30)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SCHEMA = "k string, v long, at timestamp"


def declare(pipeline: Pipeline) -> None:
    rows = pipeline.source("rows", Files("landing/rows/*.json", schema=SCHEMA), event_time="at", idle_timeout="never")
    old = pipeline.source("old", Files("landing/old/*.json", schema=SCHEMA), event_time="at", bounded=True)
    clocked = rows.window(tumbling="10 min", by="k", time="processing", uid="clocked", n="count(*)", s="sum(v)")
    clocked.sink("clocked", DeltaAppend("tables/clocked"))
    hours = rows.union(old, name="both").window(tumbling="1 h", by="k", uid="hours", s="sum(v)")
    hours.sink("hours", DeltaAppend("tables/hours"))
    numbered = old.over(by="k", uid="numbered", nth="row_number()")  # what it keeps until the end must not be late then
    old_hours = rows.union(numbered.pipeline.stage(numbered, name="plain")(lambda frame: frame.drop("nth")), name="all")
    old_hours.window(tumbling="1 h", by="k", uid="all-hours", s="sum(v)").sink("all", DeltaAppend("tables/all"))
    live = rows.aggregate(by="k", uid="totals", s="sum(v)").every(3, uid="live")
    live.sink("live", DeltaUpsert("tables/live", keys=["k"]))


def test_windows_by_the_clock_every_third_checkpoint_and_a_source_that_ends(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, declare)
    play.watched = True
    (tmp_path / "landing/old").mkdir(parents=True)

    def feed(k: str, v: int, hour: float, source: str = "rows") -> None:
        play.feed([{"k": k, "v": v, "at": (BEGIN + hour * 60 * MINUTE).isoformat()}], source)

    def checkpoint(minute: float, drain: Drain | None = None) -> int:
        with seams.installed(seams.Seams(now=lambda: BEGIN + minute * MINUTE)):
            return play.checkpoint(drain)

    def table(name: str, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row[column] for column in columns) for row in play.rows(f"tables/{name}"))

    feed("a", 1, 0.1)
    feed("a", 100, 0.2, "old")
    checkpoint(1)  # 1
    feed("a", 2, 5)
    checkpoint(9)  # 2: nothing is left of the old rows, so they hold nothing back
    assert table("hours", "window_start", "s") == table("all", "window_start", "s") == [(BEGIN, 101)]
    assert table("clocked", "k", "n") == table("live", "k", "s") == []
    feed("a", 4, 5)
    feed("b", 8, 5)
    triggered = play.coordinator().trigger("one that is aborted")
    play.coordinator().abort(triggered.plan.id, "TEST")  # it counts for nothing
    checkpoint(11)  # 3
    assert table("clocked", "window_start", "window_end", "k", "n", "s") == [(BEGIN, BEGIN + 10 * MINUTE, "a", 2, 3)]
    assert table("live", "k", "s") == [("a", 7), ("b", 8)]
    feed("a", 16, 5)
    checkpoint(8)  # 4, by a clock that is behind: it stays where it was
    checkpoint(25)  # 5: no rows, but the time has come
    begin = BEGIN + 10 * MINUTE
    assert table("clocked", "window_start", "k", "n") == [(BEGIN, "a", 2), (begin, "a", 2), (begin, "b", 1)]
    assert table("live", "k", "s") == [("a", 7), ("b", 8)], "what has changed waits for the sixth"
    checkpoint(26)  # 6
    assert table("live", "k", "s") == [("a", 23), ("b", 8)]
    feed("a", 128, 6, "old")
    with pytest.raises(Invalid, match="source 'old' is bounded, was at its end in checkpoint 7, and has new input"):
        play.coordinator().trigger("one with what should not be there")
    max((tmp_path / "landing/old").iterdir()).unlink()
    feed("a", 32, 5)
    feed("b", 64, 5)
    checkpoint(27, Drain(by="ann"))  # the end
    assert table("live", "k", "s") == [("a", 55), ("b", 72)]
    assert (BEGIN + 20 * MINUTE, "a", 1) in table("clocked", "window_start", "k", "n")
    held, wrong = given(tmp_path)
    assert wrong == []
    assert held["live"] == plain_rows(play.rows("tables/live"))


def test_a_source_that_is_too_far_ahead_is_not_read_while_the_others_have_input(tmp_path: Path, spark: Any) -> None:
    def in_step(pipeline: Pipeline) -> None:
        rows, late = (
            pipeline.source(
                name,
                Files(f"landing/{name}/*.json", schema=SCHEMA, max_files=1),
                event_time="at",
                max_ahead="1 h",
                idle_timeout="30 min",
            )
            for name in ("rows", "late")
        )
        pairs = rows.join(late, on="k", within="30 min", prefix="late_", uid="pairs")
        pairs.sink("pairs", DeltaAppend("tables/pairs"))

    play = SmallPipeline(tmp_path, spark, in_step)
    for source, files in ("rows", ([0], [3], [3.2])), ("late", ([0], [1], [3.1, 5])):
        for hours in files:
            play.feed(
                [{"k": "a", "v": round(10 * at), "at": (BEGIN + 60 * at * MINUTE).isoformat()} for at in hours], source
            )
    read, waits = [], []
    for minute in range(0, 300, 60):  # each long after the one before: who waits for others is not idle
        with seams.installed(seams.Seams(now=lambda minute=minute: BEGIN + minute * MINUTE)):
            plan = play.coordinator().ledger.entry(play.checkpoint()).plan
        read.append([name for name, part in plan.sources.items() if not part.empty])
        waits += [name for name, part in plan.sources.items() if part.does_not_move]
        assert [part.is_exhausted for part in plan.sources.values()] == [minute > 180, minute > 120]
        if plan.sources["rows"].does_not_move:
            assert plan.sources["rows"].summary == "waits for 'late', which is at 2026-01-01 01:00:00 UTC"
    assert read == [["rows", "late"], ["rows", "late"], ["late"], ["rows"], []]
    assert waits == ["rows"]
    assert sorted((row["v"], row["late_v"]) for row in play.rows("tables/pairs")) == [(0, 0), (30, 31), (32, 31)]
