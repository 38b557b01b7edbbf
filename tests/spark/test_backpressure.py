"""A backlog on real Spark: the parts become as large as fits, by a clock of the story's own, and no row is lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.spark.small_pipeline import SmallPipeline
from tidegate import Pipeline, seams
from tidegate.execution.job.run_job import run_job
from tidegate.sinks import DeltaAppend
from tidegate.sources import Adaptive, Files

SECONDS_PER_FILE, SECONDS_ANYWAY = 10, 4


def build(pipeline: Pipeline) -> None:
    rows = Files("landing/rows/*.json", schema="id long", max_files=5)
    pipeline.source("rows", rows, max_per_checkpoint=Adaptive(share=0.5, interval="1 min")).sink(
        "all", DeltaAppend("tables/all")
    )


def test_a_backlog_is_taken_in_parts_that_last_as_long_as_they_should(tmp_path: Path, spark: Any) -> None:
    play, elapsed = SmallPipeline(tmp_path, spark, build), 0
    for file in range(12):
        play.feed([{"id": 10 + file}])
    told = []
    clock = seams.Seams(now=lambda: datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=elapsed))
    with seams.installed(clock):
        while sum(len(row) for row in [play.rows("tables/all")]) < 12:
            coordinator = play.coordinator()
            plan = coordinator.trigger(f"run {len(told)}").plan  # type: ignore[union-attr]
            count = len(play.ledger.unpack(plan.sources["rows"].splits)["files"])
            elapsed += SECONDS_ANYWAY + SECONDS_PER_FILE * count
            ack = run_job(coordinator, plan.id, "main", spark)
            assert (ack.stats.read["rows"].files, ack.stats.read["rows"].rows) == (count, None)
            assert coordinator.complete(plan.id).state == "completed"
            coordinator.publish()
            told.append(plan.sources["rows"].summary)
    assert told == [
        "5 of 12 files, 55 B",
        "2 of 7 files, 22 B",
        "2 of 5 files, 22 B",
        "2 of 3 files, 22 B",
        "1 file, 11 B",
    ]
    assert sorted(row["id"] for row in play.rows("tables/all")) == list(range(10, 22))
    pace = play.ledger.plan(4).sources["rows"].pace  # type: ignore[union-attr]
    assert pace is not None
    assert (pace.unit, pace.fixed_s, pace.target_s) == ("bytes", 4.0, 30.0)
