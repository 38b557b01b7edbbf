"""`select` and `where`: stages that are SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend, DeltaUpsert


def test_columns_are_computed_of_some_rows_also_where_rows_are_replaced(tmp_path: Path, spark: Any) -> None:
    def build(pipeline: Pipeline) -> None:
        orders = sources(pipeline, "id long, k string, `a b` long", "orders")
        twice = orders.select("id", "abs(`a b`) * 2 AS twice", where="`a b` <> 1")
        twice.sink("twice", DeltaAppend("tables/twice"))
        totals = orders.aggregate(by="k", n="count(*)", uid="totals")
        few = totals.where("n < 3").select("k", "concat(k, n) AS told")
        few.sink("few", DeltaUpsert("tables/few", keys=["k"]))

    play = SmallPipeline(tmp_path, spark, build)
    first = [{"id": 1, "k": "x", "a b": 1}, {"id": 2, "k": "y", "a b": -2}]
    play.play([first, [{"id": 3, "k": "x", "a b": None}]], "orders")
    assert play.rows("tables/twice") == [{"id": 2, "twice": 4}], "null is not true"
    told = {row["k"]: row["told"] for row in play.rows("tables/few")}
    assert told == {"x": "x2", "y": "y1"}
    play.play([[{"id": 4, "k": "x", "a b": 5}]], "orders")
    assert {row["k"] for row in play.rows("tables/few")} == {"y"}, "x has three now"


@pytest.mark.parametrize(
    ("columns", "where", "said", "sql"),
    [
        (["id", "ammount * 2 AS twice"], None, "`ammount`", "id, ammount * 2 AS twice"),
        (["id"], "amount >", "PARSE_SYNTAX_ERROR", "id where amount >"),
        (["*"], "amount + 1", "FILTER_NOT_BOOLEAN", "* where amount + 1"),
        (["count(*) AS n"], None, "GROUP BY", "count(*) AS n"),
    ],
)
def test_wrong_sql_is_told_with_the_stage_that_it_is_in(
    tmp_path: Path, spark: Any, columns: list[str], where: str | None, said: str, sql: str
) -> None:
    def build(pipeline: Pipeline) -> None:
        orders = sources(pipeline, "id long, amount long", "orders")
        orders.select(*columns, where=where).sink("made", DeltaAppend("tables/made"))

    play = SmallPipeline(tmp_path, spark, build)
    with pytest.raises(Invalid, match="stage 'orders-select' failed: ") as caught:
        play.play([[{"id": 1, "amount": 2}]], "orders")
    assert said in caught.value.what
    assert caught.value.help == f"correct its SQL, which computes columns row by row: {sql}"
