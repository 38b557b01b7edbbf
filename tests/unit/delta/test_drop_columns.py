"""A Parquet file forgets its last columns: all else in it is as it was, and what is no such file is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.delta.files.drop_columns import drop_columns
from tidegate.delta.files.thrift import decode, encode
from tidegate.errors import Corrupt


def written(path: Path, rows: pa.Table, **options: Any) -> Path:
    pq.write_table(rows, path, store_schema=False, **options)
    return path


def rows(count: int, columns: int = 3) -> pa.Table:
    dice = random.Random(count)
    kept = {
        f"c{at}": pa.array([None if dice.random() < 0.2 else f"x{dice.randrange(9)}" for _ in range(count)])
        for at in range(columns)
    }
    nested = pa.array(
        [{"a": [n, None], "b": str(n)} for n in range(count)], pa.struct({"a": pa.list_(pa.int64()), "b": pa.string()})
    )
    bits = [pa.array([0] * count, pa.int64()), pa.array([7] * count, pa.int64())]
    return pa.table({**kept, "nested": nested, "bits0": bits[0], "bits1": bits[1]})


def footer(path: Path) -> bytes:
    data = path.read_bytes()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


@pytest.mark.parametrize("columns", [1, 40])
@pytest.mark.parametrize(
    "options",
    [{}, {"row_group_size": 7}, {"write_page_index": True}, {"compression": "zstd", "data_page_version": "2.0"}],
)
def test_the_last_columns_are_gone_and_all_else_is_there(tmp_path, columns, options):
    given = rows(50, columns)
    path = written(tmp_path / "a.parquet", given, **options)
    before = pq.ParquetFile(path).metadata
    drop_columns(path, ["bits0", "bits1"])
    with pq.ParquetFile(path) as file:
        assert file.read().equals(given.drop_columns(["bits0", "bits1"]))
        after = file.metadata
    assert (after.num_rows, after.num_columns) == (before.num_rows, before.num_columns - 2)
    for at in range(after.num_row_groups):
        old, new = before.row_group(at), after.row_group(at)
        gone = sum(old.column(place).total_uncompressed_size for place in range(after.num_columns, before.num_columns))
        assert new.total_byte_size == old.total_byte_size - gone
        assert [new.column(n).to_dict() for n in range(new.num_columns)] == [
            old.column(n).to_dict() for n in range(new.num_columns)
        ]


def test_what_is_read_of_a_footer_is_written_as_it_was(tmp_path):
    path = written(tmp_path / "a.parquet", rows(100, 20), row_group_size=11, write_page_index=True)
    said = footer(path)
    assert encode(decode(said)) == said


def test_columns_that_are_not_the_last_ones_are_refused_and_the_file_stays(tmp_path):
    path = written(tmp_path / "a.parquet", rows(5))
    data = path.read_bytes()
    with pytest.raises(Corrupt, match="its last columns are bits0, bits1, not bits1, bits0"):
        drop_columns(path, ["bits1", "bits0"])
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-3],
        lambda data: b"no",
        lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1",
        lambda data: data[:-30] + data[-8:],
    ],
)
def test_what_is_no_whole_parquet_file_is_refused_and_stays(tmp_path, damage):
    path = written(tmp_path / "a.parquet", rows(5))
    path.write_bytes(damage(path.read_bytes()))
    data = path.read_bytes()
    with pytest.raises(Corrupt, match="is not the Parquet file that was written there"):
        drop_columns(path, ["bits0", "bits1"])
    assert path.read_bytes() == data
