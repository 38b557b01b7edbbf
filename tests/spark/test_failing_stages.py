"""Spark computes all stages at once: its error is told with the stage that the failing expression is from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate.testing
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.pipeline.declare import Stream
from tidegate.sinks import DeltaAppend
from tidegate.testing import TestSource

HERE = Path(__file__).name


def by_function(pipeline: Pipeline, rows: Stream) -> Stream:
    @pipeline.stage(rows)
    def numbered(rows: Any) -> Any:
        from pyspark.sql import functions as F

        return rows.select("id", F.col("text").cast("int").alias("number"))

    return numbered


def by_sql_in_a_function(pipeline: Pipeline, rows: Stream) -> Stream:
    @pipeline.stage(rows)
    def numbered(rows: Any) -> Any:
        return rows.selectExpr("id", "CAST(text AS int) AS number")

    return numbered


def by_selection(pipeline: Pipeline, rows: Stream) -> Stream:
    return rows.select("id", "CAST(text AS int) AS number", name="numbered")


@pytest.mark.parametrize(
    "declared",
    [by_function, by_sql_in_a_function, by_selection],
    ids=["a function", "SQL in a function", "a selection"],
)
def test_the_stage_of_an_expression_that_fails_on_a_row_is_named(
    tmp_path: Path, spark: Any, declared: Callable[[Pipeline, Stream], Stream]
) -> None:
    pipeline = Pipeline("failing")
    rows = pipeline.source("rows", TestSource("id long, text string", [{"id": 1, "text": "seven"}]))

    @pipeline.stage(rows)
    def before(rows: Any) -> Any:
        return rows.where("id > 0")

    declared(pipeline, before).sink("rows", DeltaAppend("tables/rows"))
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        with pytest.raises(Invalid) as caught:
            running.checkpoint()
        decision = running.ledger.decision(1)
    assert "stage 'numbered'" in caught.value.what
    assert "'before'" not in caught.value.what
    assert HERE in caught.value.what or declared is by_selection
    assert decision is not None
    assert decision.reason == "JOB_FAILED"
