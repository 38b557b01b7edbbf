"""Going back on real Spark with everything that remembers: states, event time, quarantine and what was asked of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, seams
from tidegate.checkpoint.quarantine_requests import ask
from tidegate.gates import Expectations
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Request
from tidegate.sinks import DeltaAppend, DeltaUpsert

SUITE = """
name: rows
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: v, min_value: 0}, id: positive}
"""
FIRST = [{"id": 1, "k": "a", "v": 1.0, "at": "2026-01-01T00:10:00Z"}]
SECOND = [
    {"id": 2, "k": "a", "v": 2.0, "at": "2026-01-01T00:20:00Z"},
    {"id": 3, "k": "b", "v": -3.0, "at": "2026-01-01T00:30:00Z"},
]
THIRD = [
    {"id": 4, "k": "b", "v": 4.0, "at": "2026-01-01T02:30:00Z"},
    {"id": 5, "k": "b", "v": -5.0, "at": "2026-01-01T02:40:00Z"},
]


def build(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "id long, k string, v double, at timestamp", event_time="at", watermark="1 hour")
    checked = rows.gate(Expectations("rows", on_failure="quarantine"), name="checked")
    checked.sink("kept", DeltaAppend("tables/kept"))
    checked.window(tumbling="1 hour", by="k", n="count(*)", uid="hours").sink("hours", DeltaAppend("tables/hours"))
    checked.aggregate(by="k", total="sum(v)", uid="totals").sink("totals", DeltaUpsert("tables/totals", keys=["k"]))


def shown(played: SmallPipeline) -> dict[str, Counter[tuple[Any, ...]]]:
    """What readers see, also of a state, and what became of the rows in quarantine; without ids that are drawn anew."""
    columns = {
        "tables/kept": ("id", "v"),
        "tables/hours": ("window_start", "k", "n"),
        "tables/totals": ("k", "total"),
        "ledger/play/quarantine/checked": ("id", "v", "_tidegate_settled"),
        "ledger/play/state/totals": ("k",),
    }
    return {
        table: Counter(tuple(row[name] for name in names) for row in played.rows(table))
        for table, names in columns.items()
    }


def test_a_run_that_was_rolled_back_and_continues_ends_like_one_that_never_was(spark: Any, tmp_path: Path) -> None:
    suites = tmp_path / "include" / "expectations"
    suites.mkdir(parents=True)
    (suites / "rows.yaml").write_text(SUITE)
    played = SmallPipeline(tmp_path, spark, build)
    played.play([FIRST, SECOND])
    before = shown(played)
    assert before["ledger/play/quarantine/checked"] == {(3, -3.0, None): 1}

    wanted = Request(
        **stamp(seams.new_id()),
        number=1,
        gate="checked",
        action="release",
        seen=2,
        rules=["positive"],
        correct={"v": "0.5"},
        by="ann",
    )
    ask(played.coordinator().ledger, wanted)
    played.play([THIRD])
    after = shown(played)
    assert after["tables/kept"] == {(1, 1.0): 1, (2, 2.0): 1, (3, 0.5): 1, (4, 4.0): 1}
    assert after["ledger/play/quarantine/checked"] == {(3, -3.0, "released"): 1, (5, -5.0, None): 1}
    assert Counter(k for _, k, n in after["tables/hours"]) == {"a": 1, "b": 1}, "the first hour is complete now"

    done = played.coordinator().roll_back(2, run="back", by="ann")
    assert done.error is None
    assert shown(played) == before, "outputs and quarantine are as they were"
    assert played.checkpoint() == 5
    assert shown(played) == after, "rows, state, event time and what was asked: all of it once more, and once"
    assert [file.checkpoint for file in played.state("totals").files][-1] == 5
    played.feed([{"id": 6, "k": "a", "v": 6.0, "at": "2026-01-01T05:00:00Z"}])
    played.checkpoint()
    assert shown(played)["tables/totals"] == {("a", 9.0): 1, ("b", 4.5): 1}
