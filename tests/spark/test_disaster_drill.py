"""The drill on real Spark: a savepoint's copy, the tables and the landed files elsewhere, and the site is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, seams
from tidegate.lifecycle.copies import copy_out, open_copy
from tidegate.lifecycle.fork import fork, inspect_snapshot
from tidegate.lifecycle.snapshot import checkpoint_snapshot
from tidegate.sinks import DeltaAppend, DeltaUpsert

FIRST = [{"id": 1, "k": "a", "v": 1.0, "at": "2026-01-01T00:10:00Z"}]
SECOND = [{"id": 2, "k": "b", "v": 2.0, "at": "2026-01-01T00:20:00Z"}]
LATER = [
    {"id": 3, "k": "a", "v": 3.0, "at": "2026-01-01T02:30:00Z"},
    {"id": 4, "k": "b", "v": 4.0, "at": "2026-01-01T02:40:00Z"},
]


def build(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "id long, k string, v double, at timestamp", event_time="at", watermark="1 hour")
    rows.sink("kept", DeltaAppend("tables/kept", take_over=True))
    hours = rows.window(tumbling="1 hour", by="k", n="count(*)", uid="hours")
    hours.sink("hours", DeltaAppend("tables/hours", take_over=True))
    totals = rows.aggregate(by="k", total="sum(v)", uid="totals")
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"], take_over=True))


def shown(played: SmallPipeline) -> dict[str, list[tuple[Any, ...]]]:
    columns = {"kept": ("id",), "hours": ("k", "n"), "totals": ("k", "total")}
    return {
        table: sorted(tuple(row[name] for name in names) for row in played.rows(f"tables/{table}"))
        for table, names in columns.items()
    }


def test_the_first_checkpoint_elsewhere_shows_what_it_would_have_shown_here(
    spark: Any, tmp_path: Path, record_property: Any
) -> None:
    for site in ("here", "there"):
        (tmp_path / site).mkdir()
    here = SmallPipeline(tmp_path / "here", spark, build)
    here.play([FIRST, SECOND])
    backup = str(tmp_path / "there" / "backup")
    copy_out(checkpoint_snapshot(here.ledger, 2, {}, by="ann"), backup, "drill")
    for folder in ("tables", "landing"):
        shutil.copytree(tmp_path / "here" / folder, tmp_path / "there" / folder)
    (tmp_path / "here").rename(tmp_path / "lost")

    began = seams.monotonic()
    there = SmallPipeline(tmp_path / "there", spark, build)
    there.files = here.files
    copied = open_copy(backup, {})
    snapshot = checkpoint_snapshot(copied.ledger, 2, {}, by="ann")
    fork(inspect_snapshot(snapshot, there.coordinator()), there.coordinator(), copied)
    there.feed(LATER)
    assert there.checkpoint() == 3
    record_property("seconds_to_the_first_checkpoint", round(seams.monotonic() - began, 2))

    assert shown(there) == {
        "kept": [(1,), (2,), (3,), (4,)],
        "hours": [("a", 1), ("b", 1)],
        "totals": [("a", 4.0), ("b", 6.0)],
    }
    assert not (tmp_path / "here").exists(), "nothing looks for the lost site"
