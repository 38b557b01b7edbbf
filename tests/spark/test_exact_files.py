"""Parquet files are listed once, and read as Spark's own reader would: exactly these, whatever they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.delta import head, kv, made, staged, stamp, table_at
from tests.spark.small_pipeline import SmallPipeline
from tidegate import Pipeline
from tidegate.delta import append
from tidegate.sinks import DeltaAppend
from tidegate.sources import DeltaTable
from tidegate.spark.storage import exact_files
from tidegate.spark.storage.exact_files import parquet_files

SCHEMA = "n long, `tëxt of it` string, nothing date"
NAMES = ["plain", "with space", "100%", "%20", "a=b", "hash#mark?", "[glob]{s}*", "ü", "back\\slash", "plus+", "'quote"]


def file_at(folder: Path, name: str, *numbers: int) -> str:
    path = folder / name / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": numbers, "tëxt of it": [name] * len(numbers), "more": numbers}), path)
    return str(path)


def never(*_: object) -> Any:
    raise AssertionError("Spark's reader was asked")


def test_files_of_any_name_are_read_without_spark_s_reader(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [file_at(tmp_path, name, number) for number, name in enumerate(NAMES)]
    file_at(tmp_path, "100_", 99)
    file_at(tmp_path, "s", 99)
    by_reader = exact_files.exact_reader(spark, paths).schema(SCHEMA).format("parquet").load(exact_files.escaped(paths))
    monkeypatch.setattr(exact_files, "exact_reader", never)
    frame = parquet_files(spark, paths, SCHEMA)
    assert frame.schema == by_reader.schema
    assert frame.where("n < 90").count() == len(NAMES)
    assert sorted(map(tuple, frame.collect()), key=str) == sorted(map(tuple, by_reader.collect()), key=str)
    assert sorted(map(tuple, parquet_files(spark, paths, by_reader.schema).collect())) == sorted(
        (number, name, None) for number, name in enumerate(NAMES)
    )


@pytest.mark.parametrize("gone", ["before", "after"])
def test_a_file_that_is_gone_fails_the_query_and_is_never_left_out(tmp_path: Path, spark: Any, gone: str) -> None:
    paths = [file_at(tmp_path, name, 1) for name in ("a", "b")]
    settings = {"spark.sql.files.ignoreMissingFiles": "true", "spark.sql.files.ignoreCorruptFiles": "true"}
    lax = spark.newSession()
    for name, value in settings.items():
        lax.conf.set(name, value)
    frame = None if gone == "before" else parquet_files(lax, paths, SCHEMA)
    Path(paths[1]).unlink()
    with pytest.raises(Exception, match=r"b\.parquet"):
        (frame or parquet_files(lax, paths, SCHEMA)).collect()


def test_a_damaged_file_fails_the_query_whatever_the_session_says(tmp_path: Path, spark: Any) -> None:
    paths = [file_at(tmp_path, name, 1) for name in ("a", "b")]
    Path(paths[1]).write_bytes(b"PAR1, but no more")
    lax = spark.newSession()
    lax.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    with pytest.raises(Exception, match="parquet"):
        parquet_files(lax, paths, SCHEMA).collect()


def test_what_cannot_be_listed_is_left_to_spark_s_reader(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name with a colon; and a version of Spark that has other classes."""
    colon = file_at(tmp_path, "10:30", 7)
    assert [row.n for row in parquet_files(spark, [colon], SCHEMA).collect()] == [7]
    plain = file_at(tmp_path, "plain", 8)
    other = spark.newSession()
    monkeypatch.setattr(exact_files._Java, "from_spark", never)
    assert [row.n for row in parquet_files(other, [plain], SCHEMA).collect()] == [8]


def test_columns_of_a_length_are_refused_as_by_the_reader(tmp_path: Path, spark: Any) -> None:
    """Made of its parts, the frame would fill texts up with spaces."""
    with pytest.raises(Exception, match="(?i)char"):
        parquet_files(spark, [file_at(tmp_path, "a", 1)], "n long, `tëxt of it` char(5)").collect()


def test_a_file_of_a_delta_table_whose_name_spark_overlooks_is_read(tmp_path: Path, spark: Any) -> None:
    """Only a table's log can name such a file; Spark's reader of plain files leaves it out in silence."""
    location = table_at(tmp_path)
    made(location, (1, "a"))
    hidden = staged(location, "_more", kv((2, "b")))
    (tmp_path / "table" / hidden[0].path).rename(tmp_path / "table" / "_hidden.parquet")
    assert append(head(location), [msgspec.structs.replace(hidden[0], path="_hidden.parquet")], stamp(2)) is not None

    def copied(pipeline: Pipeline) -> None:
        pipeline.source("rows", DeltaTable("table")).sink("copy", DeltaAppend("copy"))

    play = SmallPipeline(tmp_path, spark, copied)
    play.checkpoint()
    assert sorted(row["k"] for row in play.rows("copy")) == [1, 2]
