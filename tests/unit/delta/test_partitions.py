"""Folder names to partition values."""

from __future__ import annotations

import pytest

from tests.kit.delta import schema
from tidegate.delta import partition_values, redact_path
from tidegate.delta.files.access import error_text
from tidegate.delta.files.partitions import refuse_unreadable
from tidegate.errors import Corrupt, Invalid


@pytest.mark.parametrize(
    ("kind", "folder", "value"),
    [
        ("string", "p=plain", "plain"),
        ("string", "p=a b%2Fc%3D%25é%27%22", "a b/c=%é'\""),
        ("string", "p=%E4", "ä"),  # one character, never a byte of UTF-8
        ("string", "p=a=b", "a=b"),
        ("string", "p=__HIVE_DEFAULT_PARTITION__", None),
        ("long", "p=-7", "-7"),
        ("boolean", "p=true", "true"),
        ("date", "p=0001-01-01", "0001-01-01"),
        ("timestamp", "p=-1", "1969-12-31T23:59:59.999999Z"),
        ("timestamp", "p=__HIVE_DEFAULT_PARTITION__", None),
        ("timestamp_ntz", "p=2020-01-01 01%3A02%3A03.1", "2020-01-01 01:02:03.1"),
        ("decimal(9,3)", "p=1E-3", "0.001"),
        ("decimal(9,3)", "p=1.500", "1.500"),
        ("decimal(38,0)", "p=1E+30", "1" + "0" * 30),
        ("double", "p=1.0E10", "1.0E10"),
        ("double", "p=NaN", "NaN"),
    ],
)
def test_a_folder_says_its_value(kind, folder, value):
    assert partition_values(f"{folder}/part-0.parquet", schema(p=kind), ["p"]) == {"p": value}


def test_several_levels_and_odd_column_names():
    columns = schema(**{"a b": "string", "x=y": "long"})
    found = partition_values("a b=1/x%3Dy=2/part-0.parquet", columns, ["a b", "x=y"])
    assert found == {"a b": "1", "x=y": "2"}


@pytest.mark.parametrize("path", ["part-0.parquet", "q=1/part-0.parquet", "p=1/q=2/f", "plain/f"])
def test_folders_that_spark_would_not_have_written_are_refused(path):
    with pytest.raises(Corrupt) as refused:
        partition_values(path, schema(p="string", q="string"), ["p"])
    assert path not in str(refused.value)
    assert refused.value.quoted == path


@pytest.mark.parametrize(
    ("kind", "value"), [("timestamp", "253402300800000000"), ("date", "+10000-01-01"), ("timestamp_ntz", "-0044-03-15")]
)
def test_a_moment_that_a_table_cannot_have_is_told_without_its_value(kind, value):
    with pytest.raises(Invalid, match="'p' is outside of the years 1 to 9999") as refused:
        partition_values(f"p={value}/f", schema(p=kind), ["p"])
    assert value not in str(refused.value)
    assert value in refused.value.quoted


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("part-0.parquet", "part-0.parquet"),
        ("who=SECRET/day=2026-01-01/part-0.parquet", "who=…/day=…/part-0.parquet"),
        ("s3://bucket/t/a b=SECRET=1/x=/part=0.parquet", "s3://bucket/t/a b=…/x=…/part=0.parquet"),
        ("tidegate/u-s/00000007/attempt/who=SECRET/f", "tidegate/u-s/00000007/attempt/who=…/f"),
    ],
)
def test_a_path_is_shown_without_the_values_in_it(path, shown):
    assert redact_path(path) == shown
    assert error_text(FileNotFoundError(f"no file {path}")) == f"no file {shown}"


def test_no_partitions_no_values():
    assert partition_values("part-0.parquet", schema(a="long"), []) == {}


def test_a_whole_number_of_38_digits_may_be_a_partition_and_a_fraction_below_zero_may_not():
    table = schema(p="decimal(38,0)")
    refuse_unreadable([{"p": "-" + "9" * 38}, {"p": "-1.00"}, {"p": None}, {"p": "0.5"}], table)
    with pytest.raises(Invalid, match="below zero, and not a whole number"):
        refuse_unreadable([{"p": "-0." + "0" * 37 + "1"}], table)
