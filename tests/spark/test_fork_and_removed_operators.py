"""The life of a pipeline on real Spark: it is forked, and operators are removed and come back."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.errors import Rejected
from tidegate.lifecycle.fork import fork, inspect_snapshot
from tidegate.lifecycle.snapshot import checkpoint_snapshot
from tidegate.lifecycle.source_acts import move_source
from tidegate.records.records import Drain
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pytestmark = in_turn(seconds=30)

FIRST = [{"id": 1, "k": "a", "v": 1.0, "at": "2026-01-01T00:10:00Z"}]
SECOND = [
    {"id": 2, "k": "a", "v": 2.0, "at": "2026-01-01T00:20:00Z"},
    {"id": 3, "k": "b", "v": 3.0, "at": "2026-01-01T00:30:00Z"},
]
THIRD = [{"id": 4, "k": "b", "v": 4.0, "at": "2026-01-01T02:30:00Z"}]


def build(pipeline: Pipeline, *, totals: bool = True, source: str = "rows") -> None:
    """Everything that it has lies in folders of its name."""
    here = f"tables/{pipeline.name}"
    columns = "id long, k string, v double, at timestamp"
    rows = pipeline.source(source, Files("landing/rows/*.json", schema=columns), event_time="at", watermark="1 hour")
    rows.sink("kept", DeltaAppend(f"{here}/kept"))
    rows.window(tumbling="1 hour", by="k", n="count(*)", uid="hours").sink("hours", DeltaAppend(f"{here}/hours"))
    if totals:
        rows.aggregate(by="k", total="sum(v)", uid="totals").sink("totals", DeltaUpsert(f"{here}/totals", keys=["k"]))


def shown(played: SmallPipeline) -> dict[str, Counter[tuple[Any, ...]]]:
    columns = {"kept": ("id",), "hours": ("k", "n"), "totals": ("k", "total")}
    return {
        table: Counter(tuple(row[name] for name in names) for row in played.rows(f"tables/{played.name}/{table}"))
        for table, names in columns.items()
    }


def test_a_fork_and_its_parent_both_continue_and_both_are_right(spark: Any, tmp_path: Path) -> None:
    parent, trial = SmallPipeline(tmp_path, spark, build), SmallPipeline(tmp_path, spark, build, "trial")
    parent.play([FIRST, SECOND])
    fork(
        inspect_snapshot(checkpoint_snapshot(parent.ledger, 1, {}, by="ann"), trial.coordinator()), trial.coordinator()
    )
    parent.play([THIRD])
    assert trial.checkpoint() == 2

    # The parent made two checkpoints of what the fork reads in one, behind the row that both remember.
    whole = {"hours": {("a", 2): 1, ("b", 1): 1}, "totals": {("a", 3.0): 1, ("b", 7.0): 1}}
    assert shown(parent) == {"kept": {(1,): 1, (2,): 1, (3,): 1, (4,): 1}, **whole}
    assert shown(trial) == {"kept": {(2,): 1, (3,): 1, (4,): 1}, **whole}


def test_an_operator_that_was_left_behind_starts_afresh_under_its_uid(spark: Any, tmp_path: Path) -> None:
    played = SmallPipeline(tmp_path, spark, build, allow_non_restored_state=True)
    played.play([FIRST])
    played.build = lambda pipeline: build(pipeline, totals=False)
    played.play([SECOND])
    played.build = build
    played.play([THIRD])
    assert shown(played)["totals"] == {("a", 1.0): 1, ("b", 4.0): 1}
    assert [row["k"] for row in played.rows("ledger/play/state/totals")] == ["b"]
    assert shown(played)["hours"] == {("a", 2): 1, ("b", 1): 1}, "what stayed has gone on"


def test_a_source_that_is_renamed_keeps_its_event_time_and_what_follows_it_keeps_its_state(
    spark: Any, tmp_path: Path
) -> None:
    played = SmallPipeline(tmp_path, spark, build)
    played.play([FIRST, SECOND])
    before = played.ledger.ack(2, "main")
    played.build = lambda pipeline: build(pipeline, source="events")
    assert move_source(played.coordinator(), "rows", "events", "ann") == 3
    assert played.checkpoint() == 4
    empty = played.ledger.ack(4, "main")
    assert before is not None
    assert empty is not None
    assert empty.ack.memory["events"] == before.ack.memory["rows"]
    assert "rows" not in empty.ack.memory
    played.play([THIRD])
    assert shown(played) == {
        "kept": {(1,): 1, (2,): 1, (3,): 1, (4,): 1},
        "hours": {("a", 2): 1, ("b", 1): 1},
        "totals": {("a", 3.0): 1, ("b", 7.0): 1},
    }


def everything(pipeline: Pipeline) -> None:
    """All that waits for event time: a window, rows without a partner, rows in order, timers."""
    rows = sources(pipeline, "id long, k string, v double, at timestamp", event_time="at", watermark="1 hour")
    paid = sources(pipeline, "id long, at timestamp", "paid", event_time="at")
    rows.window(tumbling="1 hour", by="k", n="count(*)", uid="hours").sink("hours", DeltaAppend("tables/play/hours"))
    pairs = rows.join(paid, on="id", within="1 hour", how="left", event_time=("at", "at"), prefix="paid_", uid="pairs")
    pairs.sink("pairs", DeltaAppend("tables/play/pairs"))

    @rows.process(by="k", state="n long", output="k string, n long", in_order=True, uid="gone")
    def gone(key: Any, rows: Any, state: Any, timers: Any) -> Any:
        if timers.fired:
            yield {"k": key["k"], "n": state.n}
        for row in rows.to_pylist():
            state.n = (state.n or 0) + 1
            timers.event(row["at"] + timedelta(days=400))

    gone.sink("gone", DeltaAppend("tables/play/gone"))


def told(played: SmallPipeline) -> dict[str, Counter[tuple[Any, ...]]]:
    columns = {"hours": ("k", "n"), "pairs": ("id", "paid_at"), "gone": ("k", "n")}
    return {
        table: Counter(tuple(row[name] for name in names) for row in played.rows(f"tables/play/{table}"))
        for table, names in columns.items()
    }


def test_at_the_end_of_time_all_that_waits_fires_and_it_can_be_taken_back(spark: Any, tmp_path: Path) -> None:
    played = SmallPipeline(tmp_path, spark, everything)
    (tmp_path / "landing" / "paid").mkdir(parents=True)
    played.play([FIRST])
    assert told(played) == {"hours": {}, "pairs": {}, "gone": {}}
    played.feed(SECOND)
    assert played.checkpoint(Drain(by="ann")) == 2
    assert told(played) == {
        "hours": {("a", 2): 1, ("b", 1): 1},
        "pairs": {(1, None): 1, (2, None): 1, (3, None): 1},
        "gone": {("a", 2): 1, ("b", 1): 1},
    }
    with pytest.raises(Rejected, match="was finished by ann"):
        played.checkpoint()
    played.coordinator().roll_back(1, run="back", by="ann")
    assert told(played) == {"hours": {}, "pairs": {}, "gone": {}}
    played.feed([{"id": 1, "at": "2026-01-01T00:11:00Z"}], "paid")
    played.play([THIRD])
    assert told(played)["hours"] == {("a", 2): 1, ("b", 1): 1}
    assert [row["id"] for row in played.rows("tables/play/pairs") if row["paid_at"] is not None] == [1]
    assert told(played)["gone"] == {}
