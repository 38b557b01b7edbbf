"""Which files the log rules out to have values between two bounds: in bulk, as one would say it of each."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tidegate.delta.log import active_files

DAY = datetime(2026, 1, 10, tzinfo=UTC)
KINDS = {
    "timestamp": (pa.timestamp("us", "UTC"), lambda moment: moment),
    "timestamp_ntz": (pa.timestamp("us"), lambda moment: moment.replace(tzinfo=None)),
    "date": (pa.date32(), lambda moment: moment.date()),
}
MS = timedelta(milliseconds=1)
MOMENTS = [None, *(DAY + step for step in (-timedelta(days=2), -MS, timedelta(0), MS, timedelta(hours=5)))]
MOMENTS += [DAY + timedelta(days=1) + step for step in (-MS, timedelta(0), timedelta(days=3))]


def may_hold(smallest: Any, greatest: Any, low: Any, high: Any) -> bool:
    """Of one file."""
    if smallest is None or greatest is None:
        return True
    if isinstance(greatest, datetime):
        greatest += MS  # statistics are cut to milliseconds
    return bool(smallest < high and greatest >= low)


def log_of(parts: dict[str, list[dict[str, Any]]], kind: pa.DataType) -> pa.Table:
    structs = {part: pa.array(rows, pa.struct([("at", kind)])) for part, rows in parts.items()}
    count = len(next(iter(structs.values())))
    return pa.table({"path": [f"f{number}" for number in range(count)], **structs})


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_rule_out_what_lies_outside(kind: str) -> None:
    arrow, of = KINDS[kind]
    values = [None if moment is None else of(moment) for moment in MOMENTS]
    pairs = [(a, b) for a, b in itertools.product(values, values) if a is None or b is None or a <= b]
    low, high = of(DAY), of(DAY + timedelta(days=1))
    log = log_of({"min": [{"at": a} for a, _ in pairs], "max": [{"at": b} for _, b in pairs]}, arrow)
    outside = active_files._is_outside(log, "at", low, high)
    assert outside.to_pylist() == [not may_hold(a, b, low, high) for a, b in pairs]
    assert True in outside.to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_value_is_exact_and_none_is_outside(kind: str) -> None:
    arrow, of = KINDS[kind]
    values = [None if moment is None else of(moment) for moment in MOMENTS]
    low, high = of(DAY), of(DAY + timedelta(days=1))
    outside = active_files._is_outside(log_of({"partition": [{"at": v} for v in values]}, arrow), "at", low, high)
    assert outside.to_pylist() == [value is None or not low <= value < high for value in values]


@pytest.mark.parametrize("part", ["min", "max", "partition"])
def test_nothing_is_ruled_out_of_which_the_log_says_nothing(part: str) -> None:
    log = log_of({part: [{"at": date(2020, 1, 1)}]}, pa.date32())
    assert active_files._is_outside(log, "other", DAY.date(), DAY.date()).to_pylist() == [False]
    if part != "partition":
        assert active_files._is_outside(log, "at", DAY.date(), DAY.date()).to_pylist() == [False]
