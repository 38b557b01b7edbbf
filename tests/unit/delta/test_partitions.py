"""Folder names to partition values."""

from __future__ import annotations

import pytest

from tests.kit.delta import schema
from tidegate.delta import partition_values
from tidegate.errors import Corrupt


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
    with pytest.raises(Corrupt):
        partition_values(path, schema(p="string", q="string"), ["p"])


def test_no_partitions_no_values():
    assert partition_values("part-0.parquet", schema(a="long"), []) == {}
