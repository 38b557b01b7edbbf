"""How many queries of Spark a checkpoint costs: one for each operator that workers compute, none without input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.execution.job.watermarks import EventTimes
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=30)

SCHEMA = "id long, v long, at timestamp"
SUITE = """
expectations:
  - type: expect_column_values_to_not_be_null
    kwargs: {column: v}
"""


def rows(pipeline: Pipeline) -> Any:
    return sources(pipeline, SCHEMA, event_time="at", watermark="1 min")


def deduplicated(pipeline: Pipeline) -> None:
    rows(pipeline).deduplicate(by="id", within="1 min", uid="it").sink("out", DeltaAppend("tables/out"))


def deduplicated_for_ever(pipeline: Pipeline) -> None:
    rows(pipeline).deduplicate(by="id", uid="it").sink("out", DeltaAppend("tables/out"))


def joined(pipeline: Pipeline) -> None:
    other = sources(pipeline, "id long, w long, at timestamp", "others", event_time="at", watermark="1 min")
    both = rows(pipeline).join(other, on="id", within="2 min", how="left", prefix="other_", uid="it")
    both.sink("out", DeltaAppend("tables/out"))


def with_late_rows(pipeline: Pipeline) -> None:
    once = rows(pipeline).deduplicate(by="id", within="1 min", uid="it")
    once.sink("out", DeltaAppend("tables/out"))
    once["late"].sink("late", DeltaAppend("tables/late"))


def joined_with_late_rows(pipeline: Pipeline) -> None:
    other = sources(pipeline, "id long, w long, at timestamp", "others", event_time="at", watermark="1 min")
    both = rows(pipeline).join(other, on="id", within="2 min", how="left", prefix="other_", uid="it")
    both.sink("out", DeltaAppend("tables/out"))
    for side in ("late-left", "late-right"):
        both[side].sink(side, DeltaAppend(f"tables/{side}"))


def in_windows(pipeline: Pipeline) -> None:
    windows = rows(pipeline).window(tumbling="1 min", by="id", total="sum(v)", uid="it")
    windows.sink("out", DeltaAppend("tables/out"))


def aggregated(pipeline: Pipeline) -> None:
    totals = rows(pipeline).aggregate(by="id", total="sum(v)", last="max(at)", uid="it")
    totals.sink("out", DeltaUpsert("tables/out", keys=["id"]))


def play(root: Path, spark: Any, build: Callable[[Pipeline], None], minutes: int = 3) -> SmallPipeline:
    """Checkpoints of a few rows: in the first one a state may be begun otherwise than it is continued."""
    (root / "include/expectations").mkdir(parents=True)
    (root / "include/expectations/rows.yaml").write_text(SUITE)
    made = SmallPipeline(root, spark, build)
    for minute in range(minutes):
        made.feed([{"id": n, "v": n, "at": f"2026-01-01T00:0{minute}:0{n}Z"} for n in range(5)])
        made.feed([{"id": n, "w": n, "at": f"2026-01-01T00:0{minute}:1{n}Z"} for n in range(5)], "others")
        made.checkpoint()
    return made


@pytest.mark.parametrize(
    ("build", "event_time"),
    [
        (deduplicated, 1),
        (with_late_rows, 1),
        (deduplicated_for_ever, 0),
        (joined, 1),
        (joined_with_late_rows, 1),
        (in_windows, 1),
        (aggregated, 0),
    ],
)
def test_an_operator_is_one_query_and_event_time_another(
    build: Callable[[Pipeline], None], event_time: int, tmp_path: Path, connect_spark: Any
) -> None:
    """And the table a third one, unless workers have written the rows as they are. Who takes late rows pays no more."""
    made = play(tmp_path, connect_spark, build)
    stats = made.ack(3).stats
    to_the_table = 1 if stats.rows["out"] and build is deduplicated_for_ever else 0
    assert stats.spark.queries == 1 + event_time + to_the_table


def test_files_that_are_due_to_be_merged_wait_for_the_next_rows(tmp_path: Path, connect_spark: Any) -> None:
    made = play(tmp_path, connect_spark, aggregated, minutes=8)
    before = made.rows("tables/out")
    for _ in range(2):
        idle = made.ack(made.checkpoint()).stats
        assert idle.spark.queries == 0
    assert made.rows("tables/out") == before


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_a_gate_at_a_source_finds_its_event_time_on_the_way(kind: str, tmp_path: Path, connect_spark: Any) -> None:
    """Rows that go into quarantine, or have no time, count as they do without a gate."""
    marks, queries = [], []
    for gated in (True, False):

        def build(pipeline: Pipeline, gated: bool = gated) -> None:
            seen = sources(pipeline, f"id long, v long, AT {kind}", event_time="at", watermark="1 hour")
            if gated:
                seen = seen.gate(Expectations("rows", on_failure="quarantine"), name="checked")
            seen.deduplicate(by="id", within="1 min", uid="it").sink("out", DeltaAppend("tables/out"))

        root = tmp_path / str(gated)
        (root / "include/expectations").mkdir(parents=True)
        (root / "include/expectations/rows.yaml").write_text(SUITE)
        made = SmallPipeline(root, connect_spark, build)
        at = (
            ["2026-01-01", "2026-01-03", None] if kind == "date" else ["2026-01-01T01:02:03.000004", "2026-01-03", None]
        )
        made.feed([{"id": number, "v": None if number == 1 else 1, "AT": time} for number, time in enumerate(at)])
        made.checkpoint()
        made.feed([{"id": 9, "v": 1, "AT": None}])
        stats = [made.ack(1).stats, made.ack(made.checkpoint()).stats]
        marks.append([stat.watermarks for stat in stats])
        queries.append([step.spark.queries for step in stats[0].steps if step.spark and step.name == "state it"])
        assert [stat.read["rows"].rows for stat in stats] == [3, 1]
    assert marks[0] == marks[1]
    assert marks[0][0]["rows"].startswith("2026-01-02T23:00:00")
    assert queries == [[1], [2]]


def test_what_a_gate_has_found_is_not_read_once_more(
    tmp_path: Path, connect_spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[set[str]] = []
    real = EventTimes._read
    monkeypatch.setattr(EventTimes, "_read", lambda times, names: read.append(set(names)) or real(times, names))

    def build(pipeline: Pipeline) -> None:
        others = sources(pipeline, "id long, w long, at timestamp", "others", event_time="at", watermark="1 min")
        checked = rows(pipeline).gate(Expectations("rows", on_failure="quarantine"), name="checked")
        both = others.join(checked, on="id", within="2 min", prefix="row_", uid="it")
        both.sink("out", DeltaAppend("tables/out"))

    play(tmp_path, connect_spark, build)
    assert read == [{"others"}] * 3


def like_the_example(pipeline: Pipeline) -> None:
    payments = sources(pipeline, "id long, w long, at timestamp", "others", event_time="at", watermark="1 min")
    checked = rows(pipeline).gate(Expectations("rows", on_failure="quarantine"), name="checked")

    @pipeline.stage(checked)
    def clean(checked: Any) -> Any:
        return checked.where("v >= 0").withColumnRenamed("at", "at")

    once = clean.deduplicate(by="id", within="1 min", uid="once")
    paid = once.join(payments, on="id", within="2 min", prefix="other_", uid="paid")
    windows = paid.window(tumbling="1 min", by="id", total="sum(v)", uid="windows")
    windows.sink("windows", DeltaAppend("tables/windows"))
    paid.aggregate(by="id", total="sum(v)", uid="totals").sink("totals", DeltaUpsert("tables/totals", keys=["id"]))


def test_the_whole_of_it_is_eight_queries_at_most_and_none_without_input(tmp_path: Path, connect_spark: Any) -> None:
    vars(connect_spark).pop("_tidegate_shapes", None)  # the session is other tests', too
    made = play(tmp_path, connect_spark, like_the_example)
    third = made.ack(3).stats
    assert third.spark.queries is not None
    assert 6 <= third.spark.queries <= 8
    analyses = [made.ack(id).stats.spark.analyses or 0 for id in (1, 3)]
    assert 0 < analyses[1] <= analyses[0] - 4, "sources and functions are as they were"
    before = {name: made.rows(f"tables/{name}") for name in ("windows", "totals")}
    idle = made.ack(made.checkpoint())
    assert {step.name: step.spark.queries for step in idle.stats.steps if step.spark and step.spark.queries} == {}
    assert idle.stats.between_steps is not None
    assert idle.stats.between_steps.queries == 0
    assert idle.gates["checked"].rows == 0
    assert {name: made.rows(f"tables/{name}") for name in before} == before
    made.feed([{"id": 1, "v": 7, "at": "2026-01-01T00:05:00Z"}])
    made.checkpoint()
    assert made.state("paid.left") is not None
