"""The same sources over Spark Connect, which is how they run by default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tidegate.records.place import Place
from tidegate.sources import DeltaTable, Files, Generator, Source, SourceContext, malformed_record
from tidegate.testing.source_contract import MemoryBlobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def context(tmp_path: Path) -> SourceContext:
    (tmp_path / "landing").mkdir()
    return SourceContext("shop", "orders", Place(str(tmp_path)), MemoryBlobs())


def read(spark: SparkSession, source: Source, context: SourceContext, start: Any = None) -> DataFrame:
    assert source.problems() == []
    planned = source.plan(start, context)
    source.verify(planned.splits, context)
    return source.read(spark, planned.splits, context)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_files_of_every_format_with_strange_names(
    connect_spark: SparkSession, context: SourceContext, tmp_path: Path
) -> None:
    for name in ("a [1]*.json", "b:2.json", "a=b/c %41.json"):
        (tmp_path / "landing" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "landing" / name).write_text(json.dumps({"id": len(name)}))
    (tmp_path / "landing/x.csv").write_text("id,s\n7,x\n8\n")
    pq.write_table(pa.table({"id": [9]}), tmp_path / "landing/p?.parquet")
    found = rows(read(connect_spark, Files("landing/**/*.json", schema="id long"), context))
    assert found == [(11,), (14,), (8,)]
    source = Files("landing/*.csv", schema="id long, s string", on_corrupt="keep", options={"header": True})
    assert rows(read(connect_spark, source, context)) == [(7, "x", None), (8, None, "8")]
    assert rows(read(connect_spark, Files("landing/*.parquet", schema="id long"), context)) == [(9,)]


@pytest.mark.parametrize("bad", ['{"id": "two"}', '{"id": 2}{"id": 3}'])
def test_a_malformed_record_is_told_as_such(
    connect_spark: SparkSession, context: SourceContext, tmp_path: Path, bad: str
) -> None:
    (tmp_path / "landing/a b.json").write_text(f'{{"id": 1}}\n{bad}\n')
    frame = read(connect_spark, Files("landing/*.json", schema="id long"), context)
    with pytest.raises(Exception, match="TIDEGATE_MALFORMED") as caught:
        frame.write.format("parquet").save(str(tmp_path / "out"))
    error = malformed_record(str(caught.value))
    assert error is not None
    assert error.what.endswith("a b.json, line 2")
    assert error.quoted.startswith(bad)


@pytest.mark.parametrize("count", [3, 40])
def test_delta_tables(connect_spark: SparkSession, context: SourceContext, tmp_path: Path, count: int) -> None:
    data = pa.table({"id": list(range(count)), "c": [f"a %{id}" for id in range(count)]})
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(tmp_path / "table"), data, partition_by=["c"], configuration=feed)
    expected = sorted(zip(range(count), data["c"].to_pylist(), strict=True), key=repr)
    assert rows(read(connect_spark, DeltaTable("table"), context)) == expected
    source = DeltaTable("table", mode="changes")
    start = source.plan(None, context).end
    write_deltalake(str(tmp_path / "table"), data, mode="append")
    frame = read(connect_spark, source, context, start)
    assert rows(frame.select("id", "c")) == expected
    assert rows(frame.select("_change_type").distinct()) == [("insert",)]
    connect_spark.sql(f"alter table delta.`{tmp_path}/table` set tblproperties('delta.enableDeletionVectors'='true')")
    connect_spark.sql(f"delete from delta.`{tmp_path}/table` where id > 0")
    assert rows(read(connect_spark, DeltaTable("table"), context)) == [(0, "a %0"), (0, "a %0")]


def test_generated_and_empty_ranges(connect_spark: SparkSession, context: SourceContext) -> None:
    source = Generator(rows=3, columns={"id": "id", "s": "concat('x', id)"})
    assert rows(read(connect_spark, source, context, {"offset": 1})) == [(1, "x1"), (2, "x2"), (3, "x3")]
    empty = read(connect_spark, Files("landing/*.json", schema="id long, a array<struct<b: int>>"), context)
    assert empty.dtypes == [("id", "bigint"), ("a", "array<struct<b:int>>")]
    assert empty.count() == 0
