"""Statistics are true bounds, or absent."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.delta import schema, staged, table_at
from tidegate.delta.files.stats import COLUMNS, _text, file_stats, micros_text


def stats_of(tmp_path: Any, rows: pa.Table, columns: Any, partition_by: tuple[str, ...] = (), **options: Any) -> Any:
    pq.write_table(rows, tmp_path / "file.parquet", **options)
    footer = pq.read_metadata(tmp_path / "file.parquet")
    return json.loads(msgspec.json.encode(file_stats(footer, columns, partition_by)), parse_float=Decimal)


def test_each_type_in_the_logs_own_form(tmp_path):
    moment = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    rows = pa.table(
        {
            "whole": pa.array([3, None, -4], pa.int64()),
            "day": pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
            "zoned": pa.array([moment] * 3, pa.timestamp("us", "UTC")),
            "local": pa.array([moment.replace(tzinfo=None)] * 3, pa.timestamp("us")),
            "price": pa.array([Decimal("-1.20"), Decimal("3.40"), None], pa.decimal128(5, 2)),
            "huge": pa.array([Decimal(10**37), Decimal(-(10**37)), None], pa.decimal128(38, 0)),
            "text": ["b", "a", None],
            "flag": [True, False, None],
            "bytes": pa.array([b"\x00", b"\xff", None], pa.binary()),
        }
    )
    columns = schema(
        whole="long", day="date", zoned="timestamp", local="timestamp_ntz", price="decimal(5,2)",
        huge="decimal(38,0)", text="string", flag="boolean", bytes="binary",
    )  # fmt: skip
    stats = stats_of(tmp_path, rows, columns, store_decimal_as_integer=True)
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {
        "whole": -4,
        "day": "0001-01-01",
        "zoned": "1969-12-31T23:59:59.999999Z",
        "local": "1969-12-31T23:59:59.999999",
        "price": Decimal("-1.20"),
        "huge": -(10**37),
        "text": "a",
    }
    assert stats["maxValues"]["price"] == Decimal("3.40")
    assert stats["maxValues"]["huge"] == 10**37
    assert stats["nullCount"] == dict.fromkeys(rows.column_names, 1) | {"zoned": 0, "local": 0}


def test_nested_values_are_nested_and_lists_are_left_out(tmp_path):
    rows = pa.table(
        {
            "s": [{"x": 1, "y": {"z": "q"}}, None],
            "a": [[1, 2], None],
            "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "after": [7, 8],
        }
    )
    inner = {"type": "struct", "fields": schema(z="string")["fields"]}
    columns = schema(
        s={"type": "struct", "fields": schema(x="long", y=inner)["fields"]},
        a={"type": "array", "elementType": "long", "containsNull": True},
        m={"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
        after="long",
    )
    stats = stats_of(tmp_path, rows, columns)
    assert stats["minValues"] == {"s": {"x": 1, "y": {"z": "q"}}, "after": 7}
    assert stats["nullCount"] == {"s": {"x": 1, "y": {"z": 1}}, "after": 0}


def test_row_groups_are_merged(tmp_path):
    rows = pa.table({"n": pa.array([5, 6, None, None, -1, 2], pa.int64())})
    stats = stats_of(tmp_path, rows, schema(n="long"), row_group_size=2)
    assert stats == {"numRecords": 6, "minValues": {"n": -1}, "maxValues": {"n": 6}, "nullCount": {"n": 2}}


def test_missing_statistics_are_left_out(tmp_path):
    rows = pa.table({"n": [1, 2], "m": [1, 2]})
    stats = stats_of(tmp_path, rows, schema(n="long", m="long"), write_statistics=["m"])
    assert stats == {"numRecords": 2, "minValues": {"m": 1}, "maxValues": {"m": 2}, "nullCount": {"m": 0}}


def test_only_nulls_have_a_count_and_no_bounds(tmp_path):
    stats = stats_of(tmp_path, pa.table({"n": pa.array([None, None], pa.int64())}), schema(n="long"))
    assert stats == {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"n": 2}}


def test_floats_written_by_arrow_may_be_nan_for_it_hides_that(tmp_path):
    rows = pa.table({"x": [1.0, float("nan")]})
    stats = stats_of(tmp_path, rows, schema(x="double"))
    assert stats == {"numRecords": 2, "minValues": {"x": 1}, "maxValues": {"x": "NaN"}, "nullCount": {"x": 0}}


def test_floats_without_statistics_have_bounds_that_always_hold(tmp_path):
    stats = stats_of(tmp_path, pa.table({"x": [1.0]}), schema(x="double"), write_statistics=False)
    assert stats["minValues"] == {"x": "-Infinity"}
    assert stats["maxValues"] == {"x": "NaN"}


def test_text_too_long_for_the_footer_is_looked_at(tmp_path):
    location = table_at(tmp_path)
    rows = pa.table({"k": [1, 2], "v": ["y" * 6000, "é" * 6000]})
    found = json.loads(staged(location, "long", rows, write_statistics=["k"])[0].stats)
    assert found["minValues"] == {"k": 1, "v": "y" * 32}
    assert found["maxValues"] == {"k": 2, "v": "é" * 32 + "\U0010ffff"}


@pytest.mark.parametrize(
    ("low", "high", "bounds"),
    [
        (1.5, 2.5, ({"x": 1.5}, {"x": 2.5})),
        (1.0, float("nan"), ({"x": 1.0}, {"x": "NaN"})),
        (float("nan"), float("nan"), ({"x": "NaN"}, {"x": "NaN"})),
        (float("-inf"), float("inf"), ({"x": "-Infinity"}, {"x": "Infinity"})),
        (0.0, 0.0, ({"x": -0.0}, {"x": 0.0})),
        (-0.0, -0.0, ({"x": -0.0}, {"x": 0.0})),
    ],
)
def test_floats_written_by_spark(low, high, bounds):
    stats = file_stats(_spark_footer(low, high), schema(x="double"), ())
    assert (stats["minValues"], stats["maxValues"]) == bounds
    assert str(stats["minValues"]) == str(bounds[0])  # tells -0.0 from 0.0


def test_the_first_columns_only_and_partition_columns_do_not_count(tmp_path):
    names = [f"c{number:02d}" for number in range(COLUMNS + 5)]
    rows = pa.table({name: [1] for name in names})
    stats = stats_of(tmp_path, rows, schema(part="string", **dict.fromkeys(names, "long")), ("part",))
    assert list(stats["minValues"]) == names[:COLUMNS]


def test_a_file_with_other_columns_than_declared_has_a_count_only(tmp_path):
    assert stats_of(tmp_path, pa.table({"a": [1], "b": [2]}), schema(a="long")) == {"numRecords": 1}


def test_years_that_a_date_cannot_show_are_left_out():
    assert micros_text(-(10**18)) is None
    assert micros_text(0) == "1970-01-01T00:00:00.000000"


@given(st.integers(-62135596800_000000, 253402300799_999999))
def test_microseconds_are_exact(micros):
    text = micros_text(micros)
    assert text is not None
    assert datetime.fromisoformat(f"{text}Z") - datetime(1970, 1, 1, tzinfo=UTC) == timedelta(microseconds=micros)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=80))
def test_a_shortened_text_is_a_bound(value):
    assert _text(value, "string", False) <= value
    assert _text(value, "string", True) >= value
    assert len(_text(value, "string", False)) <= 32


@pytest.mark.parametrize("value", ["\U0010ffff" * 32, "\U0010ffff" * 40, "a" * 31 + "\U0010ffff" * 9 + "b"])
def test_a_text_of_last_characters_has_an_upper_bound_all_the_same(value):
    assert _text(value, "string", True) >= value


def _spark_footer(low: float, high: float) -> Any:
    stats = SimpleNamespace(has_min_max=True, min_raw=low, max_raw=high, has_null_count=True, null_count=0)
    group = SimpleNamespace(column=lambda place: SimpleNamespace(statistics=stats, num_values=2))
    return SimpleNamespace(
        num_rows=2, num_columns=1, num_row_groups=1, row_group=lambda place: group, created_by="parquet-mr 1.17"
    )
