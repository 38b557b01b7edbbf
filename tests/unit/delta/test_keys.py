"""Key sets agree with plain Python sets, null included."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.delta import head, schema, staged, stamp, table_at
from tidegate.delta import create
from tidegate.delta.keys import Keys
from tidegate.delta.log.active_files import LiveFile, live_files

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.integers(-3, 3)),
    "text": (pa.string(), st.sampled_from(["", "a", "b", "é"])),
    "day": (pa.date32(), st.sampled_from([date(1, 1, 1), date(2020, 1, 1)])),
    "moment": (pa.timestamp("us", "UTC"), st.sampled_from([datetime(year, 1, 1, tzinfo=UTC) for year in (1969, 2020)])),
    "price": (pa.decimal128(10, 2), st.sampled_from([Decimal("0.00"), Decimal("-1.50")])),
    "flag": (pa.bool_(), st.booleans()),
}  # fmt: skip


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[str], list[list[tuple[Any, ...]]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    row = st.tuples(*(st.none() | KINDS[kind][1] for kind in kinds))
    return kinds, [draw(st.lists(row, max_size=12)) for _ in range(2)]


def _table(kinds: list[str], rows: list[Any]) -> pa.Table:
    columns = [pa.array([row[place] for row in rows], KINDS[kind][0]) for place, kind in enumerate(kinds)]
    return pa.table(columns, names=[f"k{place}" for place in range(len(kinds))])


@settings(max_examples=300, deadline=None)
@given(batches())
def test_membership_and_count_are_those_of_a_set(drawn):
    kinds, (ours, others) = drawn
    keys = Keys(_table(kinds, ours))
    assert len(keys) == len(set(ours))
    assert keys.contains(_table(kinds, others)).to_pylist() == [row in set(ours) for row in others]


@settings(max_examples=200, deadline=None)
@given(batches())
def test_equal_keys_have_equal_codes(drawn):
    kinds, (ours, others) = drawn
    codes = Keys(_table(kinds, ours)).codes(_table(kinds, others)).to_pylist()
    by_row: dict[Any, set[Any]] = {}
    for row, code in zip(others, codes, strict=True):
        by_row.setdefault(row, set()).add(code)
        assert (code is None) == (row not in set(ours))
    assert all(len(found) == 1 for found in by_row.values())


def _file(low: Any, high: Any, nulls: Any = 0, partition: Any = None) -> LiveFile:
    return LiveFile(
        path="f", size=1, rows=9, partition=partition or {},
        low={} if low is None else {"k0": low}, high={} if high is None else {"k0": high},
        nulls={} if nulls is None else {"k0": nulls},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "file", "touched"),
    [
        ([5, 9], _file(6, 8), False),
        ([5, 9], _file(9, 12), True),
        ([5, 9], _file(1, 5), True),
        ([5, 9], _file(10, 12), False),
        ([5, 9], _file(None, None), True),
        ([5, None], _file(6, 8, nulls=0), False),
        ([5, None], _file(6, 8, nulls=1), True),
        ([5, None], _file(6, 8, nulls=None), True),
        ([], _file(1, 2), False),
        ([5], _file(None, None, partition={"k0": 5}), True),
        ([5], _file(None, None, partition={"k0": 6}), False),
        ([5], _file(None, None, partition={"k0": None}), False),
        ([None], _file(None, None, partition={"k0": None}), True),
    ],
)
def test_files_are_skipped_only_if_they_cannot_hold_a_key(values, file, touched):
    assert Keys(_table(["long"], [(value,) for value in values])).may_touch(file) is touched


FAR_MOMENTS = [-(2**63), -62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1]
FAR_DAYS = [-(2**31), -719_163, 2_932_897, 2**31 - 1]
"""The first and last that Spark has, and those next to the years 1 to 9999, which are all that Python has."""


@pytest.mark.parametrize(
    ("values", "near"),
    [
        *((pa.array([far, 0], pa.int64()).cast(pa.timestamp("us", "UTC")), EPOCH) for far in FAR_MOMENTS),
        *((pa.array([far, 0], pa.int64()).cast(pa.timestamp("us")), datetime(1970, 1, 1)) for far in FAR_MOMENTS),  # noqa: DTZ001
        *((pa.array([far, 0], pa.int32()).cast(pa.date32()), date(1970, 1, 1)) for far in FAR_DAYS),
    ],
)
def test_a_key_in_a_year_that_python_does_not_know_is_compared_with_files_like_any_other(values, near):
    later = near + timedelta(days=1)
    both, far = Keys(pa.table({"k0": values})), Keys(pa.table({"k0": values[:1]}))
    assert both.may_touch(_file(near, near))
    assert not both.may_touch(_file(later, later))
    assert not far.may_touch(_file(near, later))
    assert far.may_touch(_file(None, None)), "the log has no such bounds"
    assert both.may_touch(_file(None, None, partition={"k0": near}))
    assert not both.may_touch(_file(None, None, partition={"k0": later}))


def test_statistics_of_other_writers_have_only_milliseconds_of_a_key():
    """Delta's own writer says 12:00:00.000 of a file with 12:00:00.000999: the key would be there twice."""
    held = EPOCH + timedelta(microseconds=999)
    assert Keys(pa.table({"k0": [held]})).may_touch(_file(EPOCH, EPOCH))
    assert not Keys(pa.table({"k0": [EPOCH + timedelta(milliseconds=1)]})).may_touch(_file(EPOCH, EPOCH))
    assert not Keys(pa.table({"k0": [held]})).may_touch(_file(None, None, partition={"k0": EPOCH}))


@pytest.mark.parametrize(
    ("kind", "type", "value"),
    [
        ("long", pa.int64(), 2**63 - 1),
        ("long", pa.int64(), -(2**63)),
        ("long", pa.int64(), 2**53 + 1),
        ("decimal(38,2)", pa.decimal128(38, 2), Decimal("123456789012345678901234567890.12")),
        ("decimal(18,2)", pa.decimal128(18, 2), Decimal("90071992547409.93")),
    ],
)
def test_bounds_in_the_log_are_exact_at_the_edges(tmp_path, kind, type, value):
    """A bound that went through a float would rule out the very file that holds the key."""
    location, columns, rows = table_at(tmp_path), schema(k=kind), pa.table({"k": pa.array([value], type)})
    assert create(location, columns, staged(location, "first", rows, columns), stamp(1)) is not None
    (file,) = live_files(head(location))
    assert (file.low["k"], file.high["k"]) == (value, value)
    assert Keys(rows).may_touch(file)
