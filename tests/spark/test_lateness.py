"""The rule for "late" and "closed" as SQL, on real Spark, beside its forms in Python and Arrow."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.kit.sampling import in_turn
from tidegate.state.arrow.keys_as_numbers import integers
from tidegate.state.lateness import (
    Lateness,
    WindowLimits,
    closing_sql,
    closing_starts,
    ended,
    ended_mask,
    ended_micros_sql,
    ended_sql,
    late_mask,
    open_sql,
)

pytestmark = in_turn(seconds=30)

NOON = 1_767_268_800_000_000
SIZE = 600_000_000
TIME = pa.timestamp("us", "UTC")
MARKS = [(None, None), (None, NOON), (NOON, NOON), (NOON, NOON + SIZE), (-1, 0), (0, NOON)]


def moments(marks: tuple[int | None, int | None], allowed: int) -> list[int | None]:
    """Every boundary and its neighbours, moments before 1970, random ones, and null."""
    r = random.Random(f"{marks} {allowed}")
    limits = WindowLimits.from_watermarks(*marks, allowed)
    known = [limits.late, limits.closed_before, limits.closed, limits.closed_for_rows, 0, NOON]
    near = {mark + step for mark in known if mark is not None for step in (-1, 0, 1)}
    near |= {moment - SIZE for moment in near}
    return [None, *sorted(near), *(r.randint(-NOON, 2 * NOON) for _ in range(30))]


def judged(spark: Any, values: list[int | None], *conditions: str) -> list[list[bool | None]]:
    """What Spark says of each condition, in the order of the values."""
    rows = spark.createDataFrame(list(enumerate(values)), "place int, at long")
    rows = rows.selectExpr("place", "at", "timestamp_micros(at) AS end").selectExpr("place", *conditions)
    return [list(column) for column in zip(*(row[1:] for row in sorted(rows.collect())), strict=True)]


@pytest.mark.parametrize("includes_end", [False, True])
@pytest.mark.parametrize("allowed", [0, 5_000_000])
@pytest.mark.parametrize("marks", MARKS)
def test_windows_have_ended_whoever_is_asked(
    spark: Any, marks: tuple[int | None, int | None], allowed: int, includes_end: bool
) -> None:
    limits = WindowLimits.from_watermarks(*marks, allowed, includes_end=includes_end)
    values = moments(marks, allowed)
    known = [value for value in values if value is not None]
    for limit in (limits.late, limits.closed_before, limits.closed, limits.closed_for_rows):
        by_end, by_micros, is_open = judged(
            spark, values, ended_sql("end", limit), ended_micros_sql("at", limit), open_sql("end", limit)
        )
        python = [ended(value, limit) for value in values]
        assert [bool(value) for value in by_end] == [bool(value) for value in by_micros] == python, "null is not true"
        assert [not value for value in is_open[1:]] == python[1:], "the opposite, but of null"
        assert ended_mask(pa.chunked_array([pa.array(known, TIME)]), limit).tolist() == python[1:]
        starts = pa.array([None if value is None else value - SIZE for value in values], TIME)
        timed, late = late_mask(starts, SIZE, limit)
        assert late.tolist() == python
        assert timed.tolist() == [value is not None for value in values]
    [closing] = judged(spark, known, closing_sql("end", limits))
    assert closing == [ended(at, limits.closed) and not ended(at, limits.closed_before) for at in known]
    starts_now = closing_starts(limits, SIZE)
    starts = integers(pa.array([value - SIZE for value in known], TIME))
    assert (starts_now.mask(starts).tolist() if starts_now else [False] * len(known)) == closing


@pytest.mark.parametrize(
    "rule", [Lateness(), Lateness(SIZE, SIZE), Lateness(SIZE, SIZE // 4, 5), Lateness(SIZE + 1, 0, 5)]
)
def test_a_row_is_lost_or_not_whoever_is_asked(spark: Any, rule: Lateness) -> None:
    from pyspark.sql import functions as F

    values = [value for value in moments((NOON, NOON + SIZE), 5) if value is not None]
    rows = spark.createDataFrame(list(enumerate(values)), "place int, at long")
    told = sorted(rows.select("place", rule.column(F.col("at"), NOON)).collect())
    assert [row[1] for row in told] == rule.lost(np.array(values), NOON).tolist()
