"""Columns that are asked for in one round trip are those that pyspark asks for one by one."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.spark.frame_facts import renamed, select_sql

ODD = ["*", "'a\\nb' AS `it's, odd`", "'' AS empty", "concat(k, 'é\u2028\"') AS `x.y`", "array(1, 2) AS more"]


@pytest.mark.parametrize("texts", [["k"], ODD, ["'\x01' AS between", "k"], []])
def test_selected_columns_are_the_same(texts: list[str], spark: Any) -> None:
    """Also with the letter that stands between texts on their way, and with none."""
    rows = spark.sql("SELECT 'a' AS k UNION ALL SELECT null")
    found, wanted = select_sql(rows, iter(texts)), rows.selectExpr(*texts)
    assert found.schema == wanted.schema
    assert found.collect() == wanted.collect()
    assert found.sparkSession is rows.sparkSession


def test_renamed_columns_are_the_same(spark: Any) -> None:
    rows = spark.sql("SELECT 1 AS `a.b`, 'x' AS b")
    assert renamed(rows, ["c0", "c, 1"]).collect() == rows.toDF("c0", "c, 1").collect()
