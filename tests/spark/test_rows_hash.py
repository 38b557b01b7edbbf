"""The hash of judged rows: of a multiset, whatever their order and partitions."""

from __future__ import annotations

from typing import Any

from tidegate.spark.row_id import rows_hash

ROWS = [
    (1, "a", None, [1.5, None]),
    (2, None, {"x": 1, "y": 2}, []),
    (2, None, {"y": 2, "x": 1}, []),
    (3, "", {}, None),
]
SCHEMA = "id BIGINT, name STRING, tags MAP<STRING, INT>, parts ARRAY<DOUBLE>"


def test_it_tells_the_same_rows_from_any_others(spark: Any) -> None:
    def of(rows: list[Any], partitions: int = 1, schema: str = SCHEMA) -> str:
        return rows_hash(spark.createDataFrame(rows, schema).repartition(partitions))

    whole = of(ROWS)
    assert len(whole) == 64
    assert of(ROWS[::-1], 3) == whole, "the order of rows, and of a map's entries, does not matter"
    others = [ROWS[:3], [*ROWS, ROWS[0]], [*ROWS[:3], (3, None, {}, None)], [*ROWS[:3], (3, "", None, None)], []]
    hashes = [of(rows) for rows in others]
    assert len({whole, *hashes}) == len(others) + 1
    assert of(ROWS, schema=SCHEMA.replace("name", "title")) != whole
