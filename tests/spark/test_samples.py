"""Samples of what stages, gates and operators let through: a few rows beside the ack, which nothing depends on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.errors import Unavailable
from tidegate.execution.job import sampling
from tidegate.gates import Expectations
from tidegate.ledger.ledger import Ledger
from tidegate.records.records import SampledRows
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=30)

SUITE = """
name: rows
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: v, min_value: 0}, id: positive}
"""
ROWS = [{"id": n, "v": n - 1.0, "email": f"{n}@example.com"} for n in range(8)]


@pytest.fixture(autouse=True)
def a_slow_machine_has_its_samples_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MAX_SAMPLING_S", 600.0)


def build(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "id long, v double, email string")

    @pipeline.stage(rows, outputs=["low", "high"])
    def split(rows: Any) -> dict[str, Any]:
        from pyspark.sql import functions as f

        named = rows.withColumn("who", f.struct("id", "email")).withColumn("raw", f.lit(b"\x00\xff"))
        return {"low": named.where("id < 5"), "high": named.where("id >= 5")}

    @pipeline.stage(split["low"])
    def slim(rows: Any) -> Any:
        return rows.drop("who", "raw")

    checked = slim.gate(Expectations("rows", on_failure="quarantine"), name="checked")
    checked.sink("good", DeltaAppend("tables/good"))
    total = checked.aggregate(by=["email"], total="sum(v)", uid="totals")
    total.sink("totals", DeltaUpsert("tables/totals", keys=["email"]))
    split["high"].sink("high", DeltaAppend("tables/high"))


def play(root: Path, spark: Any, **settings: Any) -> SmallPipeline:
    folder = root / "include" / "expectations"
    folder.mkdir(parents=True)
    (folder / "rows.yaml").write_text(SUITE)
    return SmallPipeline(root, spark, build, **settings)


def kept(pipeline: SmallPipeline, id: int) -> dict[str, SampledRows]:
    found = pipeline.ledger.samples(id, "main")
    entry = pipeline.ledger.entry(id)
    assert found is not None
    assert entry is not None
    assert found.attempt == entry.acks["main"].ack.attempt, "they are of the attempt that counts"
    return found.streams


def told(sample: SampledRows, *columns: str) -> list[tuple[str | None, ...]]:
    assert sample.problem == ""
    return sorted(tuple(row[sample.columns.index(name)] for name in columns) for row in sample.rows)


def test_a_checkpoint_keeps_some_rows_of_each_stream_as_they_were_let_through(connect_spark: Any, tmp_path: Path):
    pipeline = play(tmp_path, connect_spark, sample_rows=3)
    pipeline.limit(num_retained=1)
    pipeline.feed(ROWS)
    streams = kept(pipeline, pipeline.checkpoint())
    assert set(streams) == {"split.low", "split.high", "slim", "checked", "totals"}
    assert told(streams["split.high"], "id", "raw") == [("5", "00FF"), ("6", "00FF"), ("7", "00FF")]
    assert streams["slim"].columns == ["id", "v", "email"]
    assert len(streams["split.low"].rows) == 3
    passed = {(str(n), f"{n - 1.0}") for n in range(1, 5)}
    assert set(told(streams["checked"], "id", "v")) <= passed, "the gate has set the other one aside"
    assert set(told(streams["totals"], "email", "total")) <= {(f"{n}@example.com", f"{n - 1.0}") for n in range(1, 5)}
    assert len(streams["checked"].rows) == len(streams["totals"].rows) == 3
    assert len(pipeline.table("good")) == 4
    assert "samples" in pipeline.ledger.entry(1).acks["main"].ack.stats.seconds  # type: ignore[union-attr]
    nothing_new = kept(pipeline, pipeline.checkpoint())
    assert [(sample.rows, sample.problem) for sample in nothing_new.values()] == [([], "")] * 5
    assert pipeline.ledger.ids() == [2]
    assert len(list(tmp_path.rglob("samples"))) == 1, "samples go with their checkpoint"
    pipeline.limit(recorded={})
    last = pipeline.checkpoint()
    assert pipeline.ledger.samples(last, "main") is None, "nothing is kept unless it is asked for"
    assert list(tmp_path.rglob("samples")) == []


def test_hidden_columns_are_in_no_sample_however_deep(spark: Any, tmp_path: Path):
    pipeline = play(tmp_path, spark, sample_rows=5, sample_hidden="EMAIL, phone")
    pipeline.feed(ROWS)
    streams = kept(pipeline, pipeline.checkpoint())
    assert streams["split.low"].hidden == ["email", "who"]
    assert streams["slim"].columns == ["id", "v"]
    assert streams["totals"].columns == ["total"]
    assert [path for path in tmp_path.rglob("samples/*.json") if "@example.com" in path.read_text()] == []


@pytest.mark.parametrize("fixture", ["spark", "connect_spark"])
def test_a_sample_that_takes_long_or_fails_is_missing_and_the_rows_are_not(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    session = request.getfixturevalue(fixture)
    slow = tmp_path / "slow"

    def dawdles(batches: Any) -> Any:
        if slow.exists():
            time.sleep(4)
        yield from batches

    def dawdling(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "id long")
        pipeline.stage(rows, name="dawdling")(lambda rows: rows.mapInArrow(dawdles, "id long")).sink(
            "all", DeltaAppend("tables/all")
        )

    pipeline = SmallPipeline(tmp_path, session, dawdling, sample_rows=5)
    pipeline.feed([{"id": 1}])
    take = sampling.samples_of

    def taken(*args: Any) -> Any:
        slow.touch()
        return take(*args)

    monkeypatch.setattr("tidegate.execution.job.run_job.samples_of", taken)
    monkeypatch.setattr(sampling, "MAX_SAMPLING_S", 0.5)
    sample = kept(pipeline, pipeline.checkpoint())["dawdling"]
    assert (sample.rows, sample.problem) == ([], "it took longer than the 0.5 s that a job has for all samples")
    monkeypatch.setattr(sampling, "MAX_SAMPLING_S", 0.0)
    assert kept(pipeline, pipeline.checkpoint())["dawdling"].problem.startswith("the samples before it have used up")

    def fails(*_: Any) -> None:
        raise Unavailable("the store does not answer", help="try again", reason="STORAGE")

    monkeypatch.setattr(Ledger, "put_samples", fails)
    slow.unlink()
    monkeypatch.setattr("tidegate.execution.job.run_job.samples_of", take)
    pipeline.feed([{"id": 2}])
    last = pipeline.checkpoint()
    assert pipeline.ledger.samples(last, "main") is None
    assert sorted(row["id"] for row in pipeline.table("all")) == [1, 2]


def test_a_sample_is_small_whatever_its_rows_are(spark: Any):
    from pyspark.sql import functions as f

    wide = spark.range(100).select(*(f.repeat(f.lit("x"), 999).alias(f"c{n}") for n in range(60)))
    named = spark.range(1).select(f.lit(1).alias("a`b"), f.lit(None).cast("int").alias("c.d"))
    twice = spark.range(1).selectExpr("id as a", "id as a")
    frames = [
        (name, lambda frame=frame: frame) for name, frame in {"wide": wide, "named": named, "twice": twice}.items()
    ]
    found = sampling.samples_of(spark, frames, sampling.Sampling.from_config({"sample_rows": 100}))
    sample = found["wide"]
    assert (len(sample.columns), sample.left_out) == (50, 10)
    assert {len(value or "") for row in sample.rows for value in row} == {256}
    assert 0 < sum(len(value or "") for row in sample.rows for value in row) < sampling.BYTES
    assert (found["named"].columns, found["named"].rows) == (["a`b", "c.d"], [["1", None]])
    assert found["twice"].rows == []
    assert "ambiguous" in found["twice"].problem.lower()
