"""Operators of a job that need not wait for each other are at work at once, and a checkpoint is as it would be one by
one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.execution.job.run_job import run_job
from tidegate.operators import Clock, KeyedOperator, StepResult
from tidegate.sinks import DeltaAppend, DeltaUpsert

PATIENCE_S = 60


@dataclass(frozen=True)
class Meeting(KeyedOperator):
    """Leaves a note, and works on when the other one has left its own: never, if they work one after the other."""

    folder: str
    name: str
    other: str

    by = ("k",)
    state = "n long"
    emits = "k long, n long"

    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        if arrived.num_rows:  # not in the task for keys that did not come, which would hold the other core
            (Path(self.folder) / self.name).touch()
        until = time.monotonic() + PATIENCE_S
        while arrived.num_rows and not (Path(self.folder) / self.other).exists():
            if time.monotonic() > until:
                raise TimeoutError(f"{self.name} is at work, and {self.other} is not")
            time.sleep(0.01)
        return counted(arrived, stored)

    def shows(self, state: pa.Table) -> pa.Table:
        return state


@dataclass(frozen=True)
class Failing(KeyedOperator):
    """Fails as long as there is a file."""

    path: str

    by = ("k",)
    state = "n long"
    emits = "k long, n long"

    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        if Path(self.path).exists():
            raise ValueError("the moon is in the wrong house")
        return counted(arrived, stored)

    def shows(self, state: pa.Table) -> pa.Table:
        return state


def counted(arrived: pa.Table, stored: pa.Table) -> StepResult:
    counts = {row["k"]: row["n"] for row in stored.to_pylist()}
    for k in arrived["k"].to_pylist():
        counts[k] = counts.get(k, 0) + 1
    return StepResult(state=pa.Table.from_pylist([{"k": k, "n": n} for k, n in counts.items()], stored.schema))


def test_two_operators_of_one_stream_are_at_work_at_the_same_time(tmp_path: Path, spark: Any) -> None:
    notes = tmp_path / "notes"

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k long")
        for name, other in (("one", "two"), ("two", "one")):
            rows.apply(Meeting(str(notes), name, other), uid=name).sink(name, DeltaUpsert(f"tables/{name}", keys=["k"]))

    play = SmallPipeline(tmp_path, spark, build)
    for times in (1, 2):
        notes.mkdir()
        play.feed([{"k": 7}])
        id = play.checkpoint()
        for name in ("one", "two"):
            assert [(row["k"], row["n"]) for row in play.rows(f"tables/{name}")] == [(7, times)]
            (notes / name).unlink()
        notes.rmdir()
        computed = {step.name for step in play.ack(id).stats.steps if step.computed is not None}
        assert computed == {"state one", "state two"}, "each says how it was computed"


def test_what_takes_from_others_waits_for_them_and_those_beside_it_do_not(tmp_path: Path, spark: Any) -> None:
    """A join of two counts, beside a third: whatever is at work at once, rows are those of plain Python."""

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k long, v long, at timestamp", event_time="at", watermark="0 s")
        left = rows.window(tumbling="1 min", by="k", n="count(*)", uid="counts")
        right = rows.window(tumbling="1 min", by="k", total="sum(v)", uid="totals")
        on = ["k", "window_start", "window_end"]
        both = left.join(right, on=on, within=("0 s", "0 s"), event_time="window_end", uid="both")
        both.select("k", "n", "total").sink("both", DeltaAppend("tables/both"))
        rows.aggregate(by="k", most="max(v)", uid="most").sink("most", DeltaUpsert("tables/most", keys=["k"]))

    play = SmallPipeline(tmp_path, spark, build)
    cuts = [
        [{"k": 1, "v": 5, "at": "2026-01-01T00:00:01Z"}, {"k": 2, "v": 3, "at": "2026-01-01T00:00:02Z"}],
        [{"k": 1, "v": 4, "at": "2026-01-01T00:00:59Z"}, {"k": 1, "v": 9, "at": "2026-01-01T00:01:00Z"}],
        [{"k": 3, "v": 1, "at": "2026-01-01T00:03:00Z"}],
    ]
    play.play(cuts)
    assert sorted(tuple(row.values()) for row in play.rows("tables/both")) == [(1, 1, 9), (1, 2, 9), (2, 1, 3)]
    assert sorted((row["k"], row["most"]) for row in play.rows("tables/most")) == [(1, 9), (2, 3), (3, 1)]


def test_if_one_of_them_fails_its_cause_is_told_and_nothing_of_the_others_stays(tmp_path: Path, spark: Any) -> None:
    broken = tmp_path / "broken"

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k long")
        rows.aggregate(by="k", n="count(*)", uid="counts").sink("counts", DeltaUpsert("tables/counts", keys=["k"]))
        rows.apply(Failing(str(broken)), uid="mine").sink("mine", DeltaUpsert("tables/mine", keys=["k"]))

    play = SmallPipeline(tmp_path, spark, build)
    play.play([[{"k": 1}]])
    files = state_files(tmp_path)
    broken.touch()
    play.feed([{"k": 1}])
    with pytest.raises(Invalid, match="ValueError .*test_operators_at_once"):
        play.checkpoint()
    assert state_files(tmp_path) == files
    broken.unlink()
    coordinator = play.coordinator()
    run_job(coordinator, 2, "main", spark)
    assert coordinator.complete(2).state == "completed"
    play.play([[{"k": 2}]])
    for name in ("counts", "mine"):
        assert sorted((row["k"], row["n"]) for row in play.rows(f"tables/{name}")) == [(1, 2), (2, 1)]


def state_files(folder: Path) -> list[str]:
    """The files of all operators' states."""
    return sorted(str(path) for path in folder.rglob("*.parquet") if "state" in str(path.relative_to(folder)))
