"""Columns of users that are called like ones that tidegate adds keep their values, or are refused by their names."""

from __future__ import annotations

from typing import Any

import tidegate.testing
from tidegate import Pipeline, offline
from tidegate.connectors.channel import _cancel_out
from tidegate.sinks import DeltaAppend
from tidegate.testing import TestSource


def test_rows_on_their_way_to_another_job_may_have_columns_of_any_name(spark: Any) -> None:
    names = "id long, tidegate_sign string, TIDEGATE_MORE string, tidegate_nth_ long"
    rows = spark.createDataFrame([(1, "plus", "a", 7), (2, "minus", "b", 8)], names)
    replaced = spark.createDataFrame([(2, "minus", "b", 8), (3, "minus", "c", 9)], names)
    remaining, withdrawn = _cancel_out(rows, replaced)
    assert [tuple(row) for row in remaining.collect()] == [(1, "plus", "a", 7)]
    assert [tuple(row) for row in withdrawn.collect()] == [(3, "minus", "c", 9)]
    assert remaining.columns == withdrawn.columns == rows.columns


def test_a_state_whose_columns_have_braces_in_their_names_is_read(spark: Any, tmp_path: Any, monkeypatch: Any) -> None:
    """As Spark's own SQL with arguments takes them for the names of arguments."""
    pipeline = Pipeline("braces")
    rows = pipeline.source("rows", TestSource("`{v}` long, `a}` string", [{"{v}": 1, "a}": "x"}]))
    counts = rows.aggregate(by=["{v}", "a}"], n="count(*)", uid="counts")
    counts.sink("counts", DeltaAppend("counts", changelog=True))
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        running.until_idle()
        monkeypatch.setenv("TIDEGATE_ROOT", running.settings.root)
        monkeypatch.setenv("TIDEGATE_DATA", running.settings.data)
        (row,) = offline.read_state(spark, "braces", "counts").collect()
        assert (row["{v}"], row["a}"], row["n"]) == (1, "x", 1)


def test_keys_and_values_of_operators_may_have_names_that_are_sql(spark: Any, tmp_path: Any) -> None:
    """Spark, which hands rows to workers by name, would read a part, a quotation or all columns in them."""
    pipeline = Pipeline("sql_names")
    rows = [{"a`b": 1, "c.d": "x", "n": 1}, {"a`b": 1, "c.d": "y", "n": 2}, {"a`b": 2, "c.d": "z", "n": 1}]
    source = pipeline.source("rows", TestSource("`a``b` long, `c.d` string, n long", rows))
    newest = source.latest(by="a`b", order_by="n", uid="newest")
    newest.sink("newest", DeltaAppend("newest", changelog=True))
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        running.until_idle()
        found = {(row["a`b"], row["c.d"]) for row in running.rows("newest")}
    assert found == {(1, "y"), (2, "z")}
