"""Rows as Python objects, whatever bytes and moments Spark has written into them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.delta.as_python import python_rows, python_values
from tidegate.records.readable import readable_text


def any_bytes(values: list[bytes | None]) -> pa.Array:
    """Texts with any bytes in them, as Spark writes them."""
    array = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers())


def test_texts_that_are_no_utf8_are_written_so_that_nothing_is_lost() -> None:
    texts = [b"Gen\xe8ve", "Zürich".encode(), None, b"C:\\x \xff"]
    rows = pa.table({"id": [1, 2, 3, 4], "name": any_bytes(texts)})
    assert [row["name"] for row in python_rows(rows)] == ["Gen\\xE8ve", "Zürich", None, "C:\\x5Cx \\xFF"]
    assert [row["id"] for row in python_rows(rows)] == [1, 2, 3, 4]


def test_they_may_be_within_lists_structs_and_maps() -> None:
    inner = any_bytes([b"\xe8", b"x"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), inner)
    structs = pa.StructArray.from_arrays([inner, pa.array([1, None])], ["a", "n"])
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2]), inner, pa.array([1, 2]))
    assert python_values(lists) == [["\\xE8"], ["x"]]
    assert python_values(structs) == [{"a": "\\xE8", "n": 1}, {"a": "x", "n": None}]
    assert python_values(maps) == [[("\\xE8", 1)], [("x", 2)]]
    assert python_values(inner.dictionary_encode()) == ["\\xE8", "x"]
    assert python_values(pa.chunked_array([inner])) == ["\\xE8", "x"]


def test_rows_of_files_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": any_bytes([b"\xff"])}), tmp_path / "a.parquet")
    assert python_rows(pq.read_table(tmp_path / "a.parquet")) == [{"name": "\\xFF"}]


def test_what_was_text_stays_as_it_is() -> None:
    assert readable_text("\\xE8 Zürich".encode()) == ("\\xE8 Zürich", True)
    assert readable_text(b"\\xE8 \xe8") == ("\\x5CxE8 \\xE8", False)


# -- moments in years that Python does not know ---------------------------------------------------------

MICROS = 1_000_000


def moments(*seconds: int, zone: str | None = "UTC") -> pa.Array:
    return pa.array([each * MICROS for each in seconds], pa.int64()).cast(pa.timestamp("us", zone))


def days(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int32()).cast(pa.date32())


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (moments(253_402_300_800), ["+10000-01-01T00:00:00+00:00"]),
        (moments(253_402_300_800, zone=None), ["+10000-01-01T00:00:00"]),
        (moments(-62_135_596_801), ["0000-12-31T23:59:59+00:00"]),
        (moments(-62_167_219_201), ["-0001-12-31T23:59:59+00:00"]),
        (days(2_932_897), ["+10000-01-01"]),
        (days(-719_163), ["0000-12-31"]),
        (days(2**31 - 1, -(2**31)), ["+5881580-07-11", "-5877641-06-23"]),  # as Spark writes them
        (
            pa.array([2**63 - 1, -(2**63)], pa.int64()).cast(pa.timestamp("us", "UTC")),
            ["+294247-01-10T04:00:54.775807+00:00", "-290308-12-21T19:59:05.224192+00:00"],
        ),
    ],
)
def test_a_value_that_python_cannot_hold_is_text(values, texts):
    assert python_values(values) == texts
    assert python_values(pa.chunked_array([values])) == texts
    assert python_rows(pa.table({"v": values})) == [{"v": text} for text in texts]


def test_a_table_without_such_values_is_that_of_arrow():
    rows = pa.table(
        {
            "at": [datetime(1, 1, 1, tzinfo=UTC), None],
            "day": [date(9999, 12, 31), None],
            "price": [Decimal("9" * 38), None],
            "bytes": [b"\xff", None],
            "list": [[1, None], None],
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    assert python_rows(rows) == rows.to_pylist()


def test_such_a_value_deep_inside_of_another_hides_nothing_of_it():
    far = days(2_932_897)
    within = pa.StructArray.from_arrays([far, pa.array(["x"])], ["far", "near"])
    listed = pa.ListArray.from_arrays([0, 1], within)
    mapped = pa.MapArray.from_arrays([0, 1], pa.array(["key"]), listed)
    other = pa.array([math.inf])
    found = python_rows(pa.table({"map": mapped, "other": other, "none": pa.nulls(1)}))
    told = [("key", [{"far": "+10000-01-01", "near": "x"}])]
    assert found == [{"map": told, "other": math.inf, "none": None}]


@given(st.dates())
def test_the_text_of_a_day_is_that_of_python_wherever_both_have_one(day: date) -> None:
    from tidegate.delta.as_python import _day_text

    assert _day_text((day - date(1970, 1, 1)).days) == day.isoformat()


def test_batches_are_shown_like_tables() -> None:
    rows: Any = pa.RecordBatch.from_arrays([days(2_932_897, 0), pa.array([1, 2])], ["day", "n"])
    assert python_rows(rows) == [{"day": "+10000-01-01", "n": 1}, {"day": date(1970, 1, 1), "n": 2}]
