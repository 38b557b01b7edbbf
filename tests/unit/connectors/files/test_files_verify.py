"""Scenario 16, files: whatever happened after the plan is named before anything is read or written."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.sources import files, put
from tidegate.connectors.files.fingerprints import EDGE, WHOLE, fingerprint
from tidegate.errors import Invalid
from tidegate.sources import SourceContext


def changed(source: object, splits: object, context: SourceContext) -> str:
    with pytest.raises(Invalid) as caught:
        source.verify(splits, context)  # type: ignore[attr-defined]
    assert "restore them" in caught.value.help
    assert caught.value.reason == "SOURCE_CHANGED"
    return caught.value.what


def test_scenario_16_rewritten_truncated_grown_and_deleted_files_are_named(
    context: SourceContext, landing: Path
) -> None:
    put(landing, ["deleted.json", "grown.json", "rewritten.json", "same.json", "short.json"], '{"id": 1}\n')
    source = files()
    splits = source.plan(None, context).splits
    source.verify(splits, context)
    (landing / "deleted.json").unlink()
    put(landing, ["grown.json"], '{"id": 1}\n{"id": 2}\n')
    put(landing, ["rewritten.json"], '{"id": 9}\n')
    put(landing, ["short.json"], "{")
    said = changed(source, splits, context)
    assert "4 of 5 planned file(s)" in said
    assert "'deleted.json' was deleted" in said
    assert "'grown.json' has grown" in said
    assert "'rewritten.json' was rewritten with the same size" in said
    assert "'short.json' was truncated" in said
    assert "same.json" not in said


def test_scenario_16_put_back_as_it_was_a_file_is_fine_again(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json"], '{"id": 1}\n')
    source = files()
    splits = source.plan(None, context).splits
    put(landing, ["a.json"], '{"id": 2}\n')
    changed(source, splits, context)
    put(landing, ["a.json"], '{"id": 1}\n')
    source.verify(splits, context)


def test_scenario_16_after_an_abort_the_next_plan_takes_files_as_they_are(
    context: SourceContext, landing: Path
) -> None:
    put(landing, ["a.json", "b.json"], '{"id": 1}\n')
    source = files()
    splits = source.plan(None, context).splits
    (landing / "a.json").unlink()
    put(landing, ["b.json"], '{"id": 2}\n')
    changed(source, splits, context)
    source.verify(source.plan(None, context).splits, context)


def test_scenario_16_the_folder_gone_after_the_plan_names_its_files(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json"])
    splits = files().plan(None, context).splits
    (landing / "a.json").unlink()
    landing.rmdir()
    assert "'a.json' was deleted" in changed(files(), splits, context)


def test_of_many_changes_a_few_are_named_and_all_are_counted(context: SourceContext, landing: Path) -> None:
    put(landing, [f"{n}.json" for n in range(100)])
    splits = files().plan(None, context).splits
    for file in landing.iterdir():
        file.unlink()
    said = changed(files(), splits, context)
    assert "100 of 100" in said
    assert "… and 80 more" in said


@pytest.mark.parametrize("size", [0, 1, 100, WHOLE])
def test_a_file_up_to_some_megabytes_is_hashed_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\0" * size)
    with path.open("rb") as stream:
        before = fingerprint(stream)
    assert before.size == size
    if size:
        data = bytearray(size)
        data[size // 3] = 1
        path.write_bytes(data)
        with path.open("rb") as stream:
            assert fingerprint(stream).sha != before.sha


def test_of_a_large_file_edges_and_samples_are_hashed(tmp_path: Path) -> None:
    size = WHOLE + 5_000_003
    path = tmp_path / "f"
    path.write_bytes(b"\0" * size)
    with path.open("rb") as stream:
        before = fingerprint(stream)
    for at in (0, EDGE - 1, EDGE, size - EDGE, size - 1):
        with path.open("r+b") as stream:
            stream.seek(at)
            stream.write(b"\1")
            stream.flush()
        with path.open("rb") as stream:
            assert fingerprint(stream).sha != before.sha, at
        with path.open("r+b") as stream:
            stream.seek(at)
            stream.write(b"\0")
    # A rewrite shifts or changes what the samples see.
    path.write_bytes(b"\0" * (size // 2) + b"\1" * (size - size // 2 - 1) + b"\0")
    with path.open("rb") as stream:
        assert fingerprint(stream).sha != before.sha


# -- what the files hold ---------------------------------------------------------------------------


def mismatch(source: object, context: SourceContext) -> str:
    splits = source.plan(None, context).splits  # type: ignore[attr-defined]
    with pytest.raises(Invalid) as caught:
        source.verify(splits, context)  # type: ignore[attr-defined]
    assert caught.value.reason == "SCHEMA_MISMATCH"
    return str(caught.value)


def test_a_parquet_file_that_lacks_a_column_is_refused_or_read_as_null_by_choice(
    context: SourceContext, landing: Path
) -> None:
    pq.write_table(pa.table({"ID": pa.array([1]), "extra": ["x"]}), landing / "a.parquet")
    source = files("landing/*.parquet", schema="id long, amount double")
    assert "'a.parquet': column 'amount' is missing (it has ID, extra)" in mismatch(source, context)
    source = files("landing/*.parquet", schema="id long, amount double", missing_columns="null")
    source.verify(source.plan(None, context).splits, context)


@pytest.mark.parametrize(
    ("values", "type", "fits", "refused"),
    [
        ([1], pa.int32(), ["int", "long", "double", "decimal(10,0)"], ["short", "string", "float", "decimal(9,0)"]),
        ([1], pa.int64(), ["long", "decimal(20,0)"], ["int", "double", "timestamp", "decimal(12,2)"]),
        ([1], pa.uint32(), ["long"], ["int"]),
        ([1.5], pa.float32(), ["float", "double"], ["long", "decimal(10,2)"]),
        ([1.5], pa.float64(), ["double"], ["float"]),
        (["x"], pa.string(), ["string", "binary", "varchar(10)"], ["long", "date"]),
        (["x"], pa.dictionary(pa.int32(), pa.string()), ["string"], ["long"]),
        ([b"x"], pa.binary(), ["binary", "string"], ["long"]),
        ([True], pa.bool_(), ["boolean"], ["int"]),
        ([1], pa.decimal128(12, 2), ["decimal(12,2)", "decimal(14,3)"], ["decimal(12,1)", "decimal(12,3)", "double"]),
        ([1], pa.timestamp("us", "UTC"), ["timestamp"], ["timestamp_ntz", "long", "date"]),
        ([1], pa.timestamp("us"), ["timestamp_ntz", "timestamp"], ["date"]),
        ([1], pa.timestamp("ns"), [], ["timestamp", "timestamp_ntz"]),
        ([1], pa.date32(), ["date"], ["int", "timestamp"]),
        ([1], pa.time64("us"), [], ["long", "timestamp"]),
        ([[1]], pa.list_(pa.int64()), ["array<long>"], ["long", "struct<a int>"]),
        ([{"a": 1}], pa.struct([("a", pa.int64())]), ["struct<a long>"], ["array<long>", "map<string,long>"]),
        ([[("a", 1)]], pa.map_(pa.string(), pa.int64()), ["map<string,long>"], ["struct<a long>"]),
    ],
)  # fmt: skip
def test_parquet_types_that_spark_cannot_read_without_loss_are_refused(
    context: SourceContext, landing: Path, values: list[object], type: pa.DataType, fits: list[str], refused: list[str]
) -> None:
    array = pa.array(values if not pa.types.is_decimal(type) else [Decimal(1)], type)
    pq.write_table(pa.table({"x": array}), landing / "a.parquet")
    for kind in fits:
        source = files("landing/*.parquet", schema=f"x {kind}")
        source.verify(source.plan(None, context).splits, context)
    for kind in refused:
        assert "which Spark cannot read as" in mismatch(files("landing/*.parquet", schema=f"x {kind}"), context)


@pytest.mark.parametrize(
    ("header", "fits"),
    [
        ("id,amount", True),
        ("ID,Amount", True),
        ('"id","amount"', True),
        ("\ufeffid,amount", True),
        ("", True),
        ("amount,id", True),
        ("id", False),
        ("id,amount,extra", True),
        ("id,amount,id", False),
        ("1,2.5", False),
        ("id;amount", False),
    ],
)
def test_the_header_of_a_csv_file_must_have_the_columns_of_the_schema(
    context: SourceContext, landing: Path, header: str, fits: bool
) -> None:
    put(landing, ["a.csv"], f"{header}\n1,2.5\n" if header else "")
    source = files("landing/*.csv", schema="id long, amount double", options={"header": True})
    if fits:
        source.verify(source.plan(None, context).splits, context)
    else:
        assert "'a.csv': its header is" in mismatch(source, context)


def test_separator_and_compression_of_csv_files_are_respected(context: SourceContext, landing: Path) -> None:
    import gzip

    (landing / "a.csv.gz").write_bytes(gzip.compress(b"# made today\n\nid|amount\n1|2\n"))
    options = {"header": "true", "sep": "|", "comment": "#"}
    source = files("landing/*.csv.gz", schema="id long, amount double", options=options)
    source.verify(source.plan(None, context).splits, context)
    source = files("landing/*.csv.gz", schema="id long, total double", options=options)
    assert "its header is id, amount, without total" in mismatch(source, context)
    source = files("landing/*.csv.gz", schema="id long", options=options, on_new_column="refuse")
    assert "its header is id, amount, and column 'amount' is not in the schema" in mismatch(source, context)
    source = files("landing/*.csv.gz", schema="id long, total double", options=options, missing_columns="null")
    source.verify(source.plan(None, context).splits, context)


def test_a_csv_file_whose_header_has_no_column_of_the_schema_is_refused(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.csv"], "id;amount\n1;2.5\n")
    schema, options = "id long, amount double", {"header": "true"}
    source = files("landing/*.csv", schema=schema, options=options, missing_columns="null", on_new_column="rescue")
    told = "'a.csv': its header is 'id;amount': split at ',' (option sep), no field is a column of the schema"
    assert told in mismatch(source, context)
    put(landing, ["a.csv"], "x" * 5_000 + "\n")
    assert f"its header is '{'x' * 200}…': split" in mismatch(source, context)


@pytest.mark.parametrize("suffix", ["deflate", "zst", "snappy", "lz4"])
def test_spark_checks_the_header_of_a_file_that_python_cannot_decompress(
    context: SourceContext, landing: Path, suffix: str
) -> None:
    (landing / f"a.csv.{suffix}").write_bytes(b"\x28\xb5\x2f\xfd\n\0")
    schema, options = "id long, amount double", {"header": "true"}
    source = files(f"landing/*.csv.{suffix}", schema=schema, options=options, missing_columns="null")
    source.verify(source.plan(None, context).splits, context)
    source = files(f"landing/*.csv.{suffix}", schema=schema, options=options, on_type="rescue")
    assert "its header can be read by Spark only" in mismatch(source, context)
