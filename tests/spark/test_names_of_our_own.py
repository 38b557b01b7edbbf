"""Columns of users that are called like ones that tidegate adds keep their values, or are refused by their names."""

from __future__ import annotations

from typing import Any

from tidegate.sinks.channel import _cancel_out


def test_rows_on_their_way_to_another_job_may_have_columns_of_any_name(spark: Any) -> None:
    names = "id long, tidegate_sign string, TIDEGATE_MORE string, tidegate_nth_ long"
    rows = spark.createDataFrame([(1, "plus", "a", 7), (2, "minus", "b", 8)], names)
    replaced = spark.createDataFrame([(2, "minus", "b", 8), (3, "minus", "c", 9)], names)
    remaining, withdrawn = _cancel_out(rows, replaced)
    assert [tuple(row) for row in remaining.collect()] == [(1, "plus", "a", 7)]
    assert [tuple(row) for row in withdrawn.collect()] == [(3, "minus", "c", 9)]
    assert remaining.columns == withdrawn.columns == rows.columns
