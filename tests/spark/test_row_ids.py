"""Ids of rows: states and tables of earlier versions hold them, so they stay what they were."""

from __future__ import annotations

from typing import Any

from tidegate.spark.row_id import row_halves, row_id, with_row_ids

ROWS = """SELECT * FROM VALUES
    (1, 2L, CAST(3 AS TINYINT), 1.5f, 2.25d, CAST(1.20 AS DECIMAL(10, 2)), 'x', array(1, null, 3),
     map('a', 1, 'b', null), struct(1 AS p, array(map('q', array(2f))) AS q), timestamp'2024-01-01', date'2024-02-02',
     true, X'AB', INTERVAL '1' DAY),
    (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null),
    (-5, -7L, CAST(-1 AS TINYINT), -0.0f, 0d, null, 'it''s', array(), map(),
     CAST(null AS STRUCT<p: INT, q: ARRAY<MAP<STRING, ARRAY<FLOAT>>>>), null, null, false, X'', null)
    AS t (a, `b.c`, c, d, e, f, g, h, i, j, k, l, m, n, o)"""


def test_ids_are_those_of_earlier_versions_also_where_workers_make_their_text(spark: Any) -> None:
    rows = spark.sql(ROWS).withColumnRenamed("a", "it's `q` \\n")
    found = rows.select(row_id(rows).alias("id"), *map(spark_sql, row_halves(rows))).toArrow()
    wanted = [
        "2C819B345310040A0299C68D4D96CF33",
        "7E103C64D8CEBE7787BCC351D3FA662C",
        "92B088556888E52A8A25F1AC5B544FBE",
    ]
    assert found["id"].to_pylist() == wanted
    assert with_row_ids(found)["_row"].to_pylist() == wanted


def test_a_field_is_not_taken_for_a_column_of_a_frame_with_that_name(spark: Any) -> None:
    rows = spark.sql("SELECT 7 AS id, struct(n AS id) AS o FROM VALUES (1), (2) AS t (n)").alias("o")
    assert rows.select(row_id(rows).alias("id")).distinct().count() == 2


def spark_sql(text: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(text)
