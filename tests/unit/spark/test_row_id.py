"""Ids of rows whose text workers make of two numbers."""

from __future__ import annotations

import pyarrow as pa

from tidegate.spark.row_id import HALVES, with_row_ids


def test_both_halves_become_the_text_that_spark_makes_of_them() -> None:
    """As `concat(lpad(hex(high), 16, '0'), lpad(hex(low), 16, '0'))`: tests/spark compares it with Spark's."""
    high, low = [0, -1, 255, -(1 << 63)], [1, 0, -255, (1 << 63) - 1]
    rows = with_row_ids(pa.table({HALVES[0]: high, HALVES[1]: low, "v": ["a", "b", "c", "d"]}))
    assert rows.column_names == ["v", "_row"]
    assert rows["_row"].to_pylist() == [
        "0000000000000000" + "0000000000000001",
        "FFFFFFFFFFFFFFFF" + "0000000000000000",
        "00000000000000FF" + "FFFFFFFFFFFFFF01",
        "8000000000000000" + "7FFFFFFFFFFFFFFF",
    ]


def test_rows_without_halves_stay_as_they_are_and_no_rows_have_no_ids() -> None:
    rows = pa.table({"v": [1]})
    assert with_row_ids(rows) is rows
    none = with_row_ids(pa.schema([(name, pa.int64()) for name in HALVES]).empty_table())
    assert none.schema == pa.schema([("_row", pa.string())])
