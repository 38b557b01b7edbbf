"""Sources read by real Spark: strange names, malformed records, types, and whatever a Delta table may be."""

from __future__ import annotations

import bz2
import gzip
import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.sampling import ALL, in_turn, some_of
from tests.kit.sources import STRANGE
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate.coordinator import Triggered
from tidegate.errors import Invalid
from tidegate.execution.job.run_job import run_job
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend
from tidegate.sources import DeltaTable, Files, Generator, Source, SourceContext, malformed_record
from tidegate.testing.source_contract import MemoryBlobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = in_turn(seconds=30)


@pytest.fixture
def context(tmp_path: Path) -> SourceContext:
    (tmp_path / "landing").mkdir()
    return SourceContext("shop", "orders", Place(str(tmp_path)), MemoryBlobs())


@pytest.fixture
def landing(tmp_path: Path, context: SourceContext) -> Path:
    return tmp_path / "landing"


def read(spark: SparkSession, source: Source, context: SourceContext, start: Any = None) -> DataFrame:
    assert source.problems() == []
    planned = source.plan(start, context)
    source.verify(planned.splits, context)
    return source.read(spark, planned.splits, context)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def refusal(frame: DataFrame) -> Invalid:
    with pytest.raises(Exception, match="TIDEGATE_MALFORMED") as caught:
        frame.collect()
    found = malformed_record(str(caught.value))
    assert found is not None
    return found


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_strange_names_are_read_exactly_once_and_folders_add_no_columns(
    spark: SparkSession, context: SourceContext, landing: Path, format: str
) -> None:
    names = [name.replace(".json", f".{format}") for name in STRANGE]
    names += [f"a=b/{name}" for name in names] + [f"x=1/[y]{{z}}/{name}" for name in names if ":" not in name]
    for id, name in enumerate(names):
        path = landing / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if format == "parquet":
            pq.write_table(pa.table({"id": [id]}), path)
        else:
            path.write_text(json.dumps({"id": id}) if format == "json" else str(id))
    # What a pattern in a name would also match, if it were taken for one.
    assert {"[1]", "{a,b}", "star*", "what?"} <= {Path(name).stem for name in names}
    frame = read(spark, Files(f"landing/**/*.{format}", schema="id long"), context)
    assert frame.columns == ["id"]
    assert rows(frame) == sorted(((id,) for id in range(len(names))), key=repr)


MALFORMED = {
    '{"id": 2, "amount": "lots"}': (2, None, "x"),
    '{"id": 2, "amount": 1': (None, None, None),
    "no json at all": (None, None, None),
    "123": (None, None, None),
    "null": (None, None, None),
    '{"id": "2"}': (None, None, None),
    '{"id": 99999999999999999999}': (None, None, None),
    '{"amount": 123456789012.5}': (None, None, None),
}


@pytest.mark.parametrize("bad", some_of(list(MALFORMED), 3))
def test_a_malformed_json_record_fails_by_name_and_line_whatever_is_asked_for(
    spark: SparkSession, context: SourceContext, landing: Path, bad: str
) -> None:
    (landing / "good.json").write_text('{"id": 1, "amount": 1}\n')
    (landing / "b d%.json").write_text(f'{{"id": 1, "amount": 1.5}}\n\n{bad}\n{{"id": 3}}\n')
    frame = read(spark, Files("landing/*.json", schema="id long, amount decimal(12,2), country string"), context)
    for query in (frame, frame.select("country"), frame.where("amount > 0"), frame.groupBy().count()):
        error = refusal(query)
        assert error.reason == "MALFORMED_RECORD"
        assert error.what.endswith(f"malformed record in {landing}/b d%.json, line 3")
        assert error.quoted.startswith(bad)
        assert "on_corrupt='keep'" in error.help


TRAILING = ['{"id": 3}', ' {"id": 3}', " trailing", ",", ',{"id": 3}', '\t{"id": 3}', '  {"id": 3}', ', {"id": 3}',
            '\x1e{"id": 3}', " x}", "]} {}", '}, "r": [1', "\t}", ' "}']  # fmt: skip


@pytest.mark.parametrize("bad", some_of([f'{{"id": 2}}{rest}' for rest in TRAILING] + ['[{"id": 2}] [{"id": 3}]'], 3))
def test_what_follows_an_object_on_its_line_is_not_lost_in_silence(
    spark: SparkSession, context: SourceContext, landing: Path, bad: str
) -> None:
    (landing / "a.json").write_text(f'{{"id": 1}}\n{bad}\n')
    source = Files("landing/*.json", schema="id long, amount double")
    frame = read(spark, source, context)
    for query in (frame, frame.select("amount"), frame.where("amount is not null"), frame.groupBy().count()):
        error = refusal(query)
        assert error.what.endswith("a.json, line 2")
        assert error.quoted.startswith(bad)
    kept = read(spark, Files("landing/*.json", schema="id long", on_corrupt="keep"), context)
    assert rows(kept.where("_corrupt_record is not null")) == [(None, bad)]
    assert rows(kept.where("_corrupt_record is null")) == [(1, None)]


@pytest.mark.parametrize("rest", ['\n{"id": 3}', " x}", '{"id": 3}', ', {"id": 3}', "\n]"])
def test_a_multi_line_file_with_more_than_one_value_is_not_lost_in_silence(
    spark: SparkSession, context: SourceContext, landing: Path, rest: str
) -> None:
    (landing / "a.json").write_text('{"id":\n1}\n')
    source = Files("landing/*.json", schema="id long", options={"multiLine": True})
    assert rows(read(spark, source, context)) == [(1,)]
    (landing / "b.json").write_text(f'{{"id":\n2}}{rest}')
    frame = read(spark, source, context)
    for query in (frame, frame.groupBy().count()):
        error = refusal(query)
        assert f"malformed record in {landing}/b.json" in error.what
        assert "lose the rest" in error.expected


def test_one_value_is_one_value_whatever_it_holds(spark: SparkSession, context: SourceContext, landing: Path) -> None:
    lines = [
        '\ufeff{"id": 1}', ' \t{"id": 2, "x": {"y": {}}}\t ', "\t",
        '{"id": 3, "x": "]}, {\\"{"}', "{'id': 4, 'x': [{}]}",
        '{"id": 5, "x": "\\u007d \U0001f30a{"}', '[{"id": 6, "x": {}}, {"id": 7}]', '{}',
    ]  # fmt: skip
    (landing / "a.json").write_text("\n".join(lines))
    frame = read(spark, Files("landing/*.json", schema="id long"), context)
    assert rows(frame) == sorted([(1,), (2,), (3,), (4,), (5,), (6,), (7,), (None,)], key=repr)
    (landing / "a.json").write_text('{"id": 1, "x": {}} // one\n')
    frame = read(spark, Files("landing/*.json", schema="id long", options={"allowComments": True}), context)
    assert rows(frame) == [(1,)]
    (landing / "a.json").write_bytes('{"id": 1, "x": {"é": 1}}\n{"id": 2}'.encode("utf-16-le"))
    options = {"encoding": "UTF-16LE", "lineSep": "\n"}
    assert rows(read(spark, Files("landing/*.json", schema="id long", options=options), context)) == [(1,), (2,)]


EXACT = "id long, m decimal(12,2), at timestamp, o struct<m: decimal(5,1), ats: array<timestamp>>"


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ('{"id": 2, "m": 1.005}', "m 1.005"),
        ('{"id": 2, "m": 9999999999.995}', "m 9999999999.995"),
        ('{"id": 2, "at": 1767225600000}', "at +5797"),
        ('{"id": 2, "o": {"m": 1.25}}', "o {1.25"),
        ('{"id": 2, "o": {"ats": [1, 1767225600000]}}', "o {null, [1970-"),
    ],
)
def test_a_value_that_would_be_changed_on_the_way_in_is_refused(
    spark: SparkSession, context: SourceContext, landing: Path, bad: str, told: str
) -> None:
    good = '{"id": 1, "m": 1.50, "at": 1767225600, "o": {"m": 1e1, "ats": [null, "2026-01-01T00:00:00Z"]}}'
    (landing / "a.json").write_text(f"{good}\n")
    (row,) = read(spark, Files("landing/*.json", schema=EXACT), context).selectExpr("*", "cast(at as long) s").collect()
    assert (row.m, row.s, row.o.m) == (Decimal("1.50"), 1767225600, Decimal("10.0"))
    (landing / "b.json").write_text(f"{good}\n{bad}\n")
    frame = read(spark, Files("landing/*.json", schema=EXACT), context)
    for query in (frame, frame.select("id"), frame.groupBy().count()):
        error = refusal(query)
        assert error.what.endswith(f"a value that its column cannot hold in {landing}/b.json")
        assert error.quoted.startswith(told)
        assert "timestamp_millis" in error.help
    kept = read(spark, Files("landing/*.json", schema=EXACT, on_corrupt="keep"), context)
    assert kept.where("_corrupt_record is not null").select("id").collect() == [(2,)]
    assert kept.count() == 3


WHOLE = "m decimal(38,2), by map<string,decimal(12,2)>, o array<struct<m: decimal(38,0)>>"


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ('{"m": 1.005}', "m 1.005"),
        ('{"m": 12345678901234567890123456789012345.678}', "m 12345678901234567890123456789012345.678"),
        ('{"m": 1234567890123456789012345678901234567}', "m 1234567890123456789012345678901234567"),
        ('{"m": 15e-3}', "m 15e-3"),
        ('{"m": "many"}', "m many"),
        ('{"by": {"EUR": 1.50, "CHF": 1.005}}', "by {EUR -> 1.50"),
        ('{"o": [{"m": 1}, {"m": 0.5}]}', "o [{1}, {0.5}]"),
    ],
)
def test_decimals_of_38_digits_and_those_in_maps_are_not_rounded_either(
    spark: SparkSession, context: SourceContext, landing: Path, bad: str, told: str
) -> None:
    good = [
        '{"m": 123456789012345678901234567890123456.78, "by": {"EUR": 1.50}, "o": [{"m": 7.0}, null]}',
        '{"m": 1.500, "by": {"EUR": null}, "o": [{"m": null}]}',
        '{"m": 1500e-3}',
        '{"m": 0E-10}',
        '{"m": -7}',
        "{}",
    ]
    (landing / "a.json").write_text("\n".join(good))
    read_back = read(spark, Files("landing/*.json", schema=WHOLE), context).collect()
    totals = ["123456789012345678901234567890123456.78", "1.50", "1.50", "0.00", "-7.00"]
    assert [row.m for row in read_back] == [*map(Decimal, totals), None]
    assert (read_back[0].by, read_back[0].o[0].m) == ({"EUR": Decimal("1.50")}, Decimal(7))
    (landing / "b.json").write_text(f"{bad}\n")
    frame = read(spark, Files("landing/*.json", schema=WHOLE), context)
    assert refusal(frame).what.endswith(f"a value that its column cannot hold in {landing}/b.json")
    assert refusal(frame).quoted.startswith(told)
    kept = read(spark, Files("landing/*.json", schema=WHOLE, on_corrupt="keep"), context)
    assert (kept.count(), kept.where("_corrupt_record is not null").count()) == (len(good) + 1, 1)


def test_a_csv_value_that_would_be_changed_is_refused_and_so_are_bytes_that_are_no_text(
    spark: SparkSession, context: SourceContext, landing: Path
) -> None:
    schema = "s string, m decimal(12,2)"
    (landing / "a.csv").write_text("Zürich,1.10\n")
    assert rows(read(spark, Files("landing/*.csv", schema=schema), context)) == [("Zürich", Decimal("1.10"))]
    (landing / "b.csv").write_text("x,1.005\n")
    error = refusal(read(spark, Files("landing/*.csv", schema=schema), context))
    assert error.what.endswith("b.csv")
    assert error.quoted.startswith("m 1.005")
    (landing / "b.csv").write_bytes("x,1\nGenève,2\n".encode("latin-1"))
    frame = read(spark, Files("landing/*.csv", schema=schema), context)
    for query in (frame, frame.select("m"), frame.groupBy().count()):
        error = refusal(query)
        assert error.what.endswith(f"record that is not UTF-8 in {landing}/b.csv, line 2")
        assert error.quoted.startswith("Gen")
        assert "'encoding': 'ISO-8859-1'" in error.help
    kept = read(spark, Files("landing/*.csv", schema=schema, on_corrupt="keep"), context)
    assert [row.m for row in kept.where("_corrupt_record is not null").collect()] == [Decimal("2.00")]
    assert kept.count() == 3
    (landing / "a.csv").unlink()
    latin = Files("landing/*.csv", schema=schema, options={"encoding": "ISO-8859-1"})
    assert rows(read(spark, latin, context)) == [("Genève", Decimal("2.00")), ("x", Decimal("1.00"))]


NESTED = "a long, o struct<zip: string, at: array<struct<b: int>>>"


@pytest.mark.parametrize(
    ("record", "alike"),
    [
        ('{"A": 1}', True),
        ('{"a": 1, "o": {"Zip": "x"}}', True),
        ('{"a": 1, "o": {"at": [{"b": 1}, {"B": 1}]}}', True),
        ('[{"a": 1}, {"A": 1}]', True),
        ('{"a": 1, "more": {}}', False),
        ('{"a": 1, "o": {"zipcode": "x"}}', False),
        ('{"a": 1, "A": 2}', False),
    ],
)
def test_a_key_that_the_schema_lacks_is_left_out_by_rule_and_never_for_its_case_alone(
    spark: SparkSession, context: SourceContext, landing: Path, record: str, alike: bool
) -> None:
    good = '{"a": 1, "o": {"zip": "A", "at": [{"b": 1}, null]}}'
    (landing / "a.json").write_text(f"{good}\n{record}\n{{}}\n")
    frame = read(spark, Files("landing/*.json", schema=NESTED), context)
    if alike:
        assert f"record with keys that the schema lacks in {landing}/a.json, line 2" in refusal(frame).what
    else:
        assert frame.count() == 3
    strict = read(spark, Files("landing/*.json", schema=NESTED, on_new_column="refuse"), context)
    assert "a.json, line 2" in refusal(strict.select("a")).what
    (landing / "a.json").write_text(f"{good}\n{{}}\n")
    assert read(spark, Files("landing/*.json", schema=NESTED, on_new_column="refuse"), context).count() == 2


def test_a_list_that_is_cut_off_is_malformed_and_not_a_record_with_strange_keys(
    spark: SparkSession, context: SourceContext, landing: Path
) -> None:
    (landing / "a.json").write_text('{"a": 1}\n[{"a": 1}, {"a"\n')
    for on_new_column in ("refuse", "ignore"):
        strict = Files("landing/*.json", schema=NESTED, on_new_column=on_new_column)
        said = refusal(read(spark, strict, context)).what
        assert "keys that the schema lacks" not in said
        assert "a.json, line 2" in said


def test_braces_within_values_are_no_second_object(spark: SparkSession, context: SourceContext, landing: Path) -> None:
    lines = ['{"id": 1, "x": "}{"}', '{"id": 2, "x": "} {"}  ', '{"id": 3, "y": [{"a": 1}, {"a": 2}]}', "[]", "", "  "]
    (landing / "a.json").write_bytes("\r\n".join([*lines, '[{"id": 4},{"id": 5}]']).encode())
    frame = read(spark, Files("landing/*.json", schema="id long"), context)
    assert rows(frame) == [(1,), (2,), (3,), (4,), (5,)]


def test_kept_corrupt_records_lose_no_row_and_are_judged_whole(
    spark: SparkSession, context: SourceContext, landing: Path
) -> None:
    (landing / "a.json").write_text('{"id": 1, "a": 1}\n{"id": 2, "a": "x"}\nnonsense\n{"id": 4}\n')
    frame = read(spark, Files("landing/*.json", schema="id long, a int", on_corrupt="keep"), context)
    assert frame.dtypes == [("id", "bigint"), ("a", "int"), ("_corrupt_record", "string")]
    bad = '{"id": 2, "a": "x"}'
    assert rows(frame) == sorted([(1, 1, None), (2, None, bad), (None, None, "nonsense"), (4, None, None)], key=repr)
    assert frame.count() == 4
    assert frame.where("_corrupt_record is not null").count() == 2
    assert rows(frame.select("_corrupt_record")) == sorted([(None,), (None,), (bad,), ("nonsense",)], key=repr)
    assert rows(frame.select("id", "_corrupt_record").where("id = 2")) == [(2, bad)]


@pytest.mark.parametrize(
    ("bad", "kept"),
    [
        ("2,1", (2, 1, None)),
        ("2,1,x,y", (2, 1, "x")),
        ("two,1,x", (None, 1, "x")),
        ("2,1.5,x", (2, None, "x")),
    ],
)
def test_csv_records_with_too_many_too_few_or_wrong_values_are_malformed(
    spark: SparkSession, context: SourceContext, landing: Path, bad: str, kept: tuple[Any, ...]
) -> None:
    (landing / "a.csv").write_text(f"id,n,s\n1,1,x\n{bad}\n")
    arguments: dict[str, Any] = {"schema": "id long, n int, s string", "options": {"header": True}}
    frame = read(spark, Files("landing/*.csv", **arguments), context)
    for query in (frame, frame.select("s"), frame.where("id = 1"), frame.groupBy().count()):
        error = refusal(query)
        assert error.what.endswith("a.csv, line 3")
        assert error.quoted.startswith(bad)
    frame = read(spark, Files("landing/*.csv", on_corrupt="keep", **arguments), context)
    assert rows(frame.where("_corrupt_record is not null")) == [(*kept, bad)]
    assert frame.count() == 2


def test_columns_named_like_ours_do_no_harm(spark: SparkSession, context: SourceContext, landing: Path) -> None:
    (landing / "a.json").write_text(
        '{"_corrupt_record": "mine", "value": "v", "_c": 1, "we ird`": 2, "_metadata": 3}\n'
    )
    schema = "_corrupt_record string, value string, _c int, `we ird``` int, _metadata int"
    assert rows(read(spark, Files("landing/*.json", schema=schema), context)) == [("mine", "v", 1, 2, 3)]
    (landing / "a.json").write_text('{"value": []}\n')
    assert "line 1" in refusal(read(spark, Files("landing/*.json", schema="value int, _c int"), context)).what


def test_a_long_record_is_cut_in_the_message(spark: SparkSession, context: SourceContext, landing: Path) -> None:
    (landing / "a.json").write_text('{"id": "' + "x" * 5000 + '"}\n')
    error = refusal(read(spark, Files("landing/*.json", schema="id long"), context))
    assert "line 1" in error.what
    assert len(str(error)) < 1500
    assert len(error.quoted) < 1000


def test_compressed_files_and_multi_line_records(spark: SparkSession, context: SourceContext, landing: Path) -> None:
    (landing / "a.json.gz").write_bytes(gzip.compress(b'{"id": 1}\n{"id": 2}\n'))
    (landing / "b.json.bz2").write_bytes(bz2.compress(b'{"id": 3}\n'))
    (landing / "c.json").write_text('{"id": 4}')
    assert rows(read(spark, Files("landing/*.json*", "json", schema="id long"), context)) == [(1,), (2,), (3,), (4,)]
    (landing / "d.json.gz").write_bytes(gzip.compress(b'{"id": 1}\nbad\n'))
    error = refusal(read(spark, Files("landing/d.json.gz", schema="id long"), context))
    assert error.what.endswith("d.json.gz, line 2")
    (landing / "m.txt").write_text('[\n{"id": 5},\n{"id":\n6}\n]')
    source = Files("landing/*.txt", "json", schema="id long", options={"multiLine": True})
    assert rows(read(spark, source, context)) == [(5,), (6,)]
    (landing / "m.csv").write_text('id,s\n1,"two\nlines"\n')
    source = Files("landing/*.csv", schema="id long, s string", options={"multiLine": True, "header": "true"})
    assert rows(read(spark, source, context)) == [(1, "two\nlines")]


def test_empty_files_have_no_rows(spark: SparkSession, context: SourceContext, landing: Path) -> None:
    (landing / "a.json").write_text("")
    (landing / "a.csv").write_text("")
    (landing / "b.csv").write_text("id\n")
    assert rows(read(spark, Files("landing/*.json", schema="id long"), context)) == []
    assert rows(read(spark, Files("landing/*.csv", schema="id long", options={"header": True}), context)) == []


def test_a_stale_checksum_beside_a_file_does_no_harm(
    spark: SparkSession, context: SourceContext, landing: Path
) -> None:
    spark.range(3).coalesce(1).write.json(str(landing / "out"))
    file = next((landing / "out").glob("*.json"))
    assert (landing / "out" / f".{file.name}.crc").exists()
    frame = read(spark, Files("landing/out/*.json", schema="id long"), context)
    assert rows(frame) == [(0,), (1,), (2,)]


def test_every_type_in_every_format(spark: SparkSession, context: SourceContext, landing: Path) -> None:
    schema = (
        "b boolean, i int, l long, f float, d double, m decimal(38,10), s string, t timestamp, n timestamp_ntz, "
        "`the date` date, a array<long>, o struct<x: int, y: array<string>>, p map<string, double>"
    )
    moment = datetime.fromisoformat("2026-03-29T01:30:00.123000")
    row = (
        True, 1, 2**62, 1.5, 2.5, Decimal("1234567890123456789012345678.0123456789"), "é\n\"漢", moment, moment,
        date(1999, 12, 31), [1, None], (1, ["x"]), {"k": 1.0},
    )  # fmt: skip
    spark.createDataFrame([row], schema).coalesce(1).write.parquet(str(landing / "p"))
    assert [tuple(r) for r in read(spark, Files("landing/p/*.parquet", schema=schema), context).collect()] == [row]
    spark.createDataFrame([row], schema).coalesce(1).write.json(str(landing / "j"))
    assert [tuple(r) for r in read(spark, Files("landing/j/*.json", schema=schema), context).collect()] == [row]


@pytest.mark.parametrize(
    ("type", "ddl"),
    [
        (pa.int8(), "long"),
        (pa.int16(), "double"),
        (pa.int32(), "bigint"),
        (pa.int32(), "decimal(10,0)"),
        (pa.int64(), "decimal(20,0)"),
        (pa.uint8(), "int"),
        (pa.uint32(), "long"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float32(), "double"),
        (pa.string(), "binary"),
        (pa.large_string(), "string"),
        (pa.binary(), "string"),
        (pa.decimal128(12, 2), "decimal(14,3)"),
        (pa.timestamp("us"), "timestamp"),
        (pa.timestamp("ms"), "timestamp_ntz"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("us", "Europe/Berlin"), "timestamp"),
        (pa.date32(), "timestamp_ntz"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
    ],
)
def test_what_the_footer_check_lets_through_spark_reads(
    spark: SparkSession, context: SourceContext, landing: Path, type: pa.DataType, ddl: str
) -> None:
    value = {"string": "7", "large_string": "7", "binary": b"7", "date32[day]": date(1970, 1, 8)}.get(str(type), 7)
    if pa.types.is_decimal(type):
        value = Decimal(7)
    array = pa.array(["7"]).dictionary_encode() if pa.types.is_dictionary(type) else pa.array([value], type)
    pq.write_table(pa.table({"x": array}), landing / "a.parquet")
    frame = read(spark, Files("landing/*.parquet", schema=f"x {ddl}"), context)
    found = frame.selectExpr("cast(x as string)").first()
    assert found is not None
    assert "7" in found[0] or "1970-01-08" in found[0] or "1970-01-01" in found[0]


def test_a_column_that_older_files_lack_is_null_by_choice(
    spark: SparkSession, context: SourceContext, landing: Path
) -> None:
    pq.write_table(pa.table({"id": [1], "more": ["x"]}), landing / "a.parquet")
    pq.write_table(pa.table({"id": [2], "amount": [1.5]}), landing / "b.parquet")
    source = Files("landing/*.parquet", schema="id long, amount double", missing_columns="null")
    assert rows(read(spark, source, context)) == [(1, None), (2, 1.5)]


def test_names_are_listed_by_the_driver_quickly_even_if_many(
    spark: SparkSession, context: SourceContext, landing: Path
) -> None:
    for id in range(200):
        (landing / f"{id}.json").write_text(f'{{"id": {id}}}')
    assert read(spark, Files("landing/*.json", schema="id long"), context).count() == 200


# -- generator -------------------------------------------------------------------------------------


def test_generated_rows_depend_on_their_offsets_alone(spark: SparkSession, context: SourceContext) -> None:
    columns = {"id": "id", "a b": "cast(id % 100 as decimal(12,2))", "`": "hash(id, 'x')"}
    whole = rows(Generator(rows=10, columns=columns).read(spark, {"from": 0, "to": 100}, context))
    parts = [
        row
        for first in range(0, 100, 7)
        for row in rows(
            Generator(columns=columns, partitions=3).read(spark, {"from": first, "to": min(first + 7, 100)}, context)
        )
    ]
    assert sorted(parts, key=repr) == whole
    assert len(whole) == 100


# -- Delta -----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path, context: SourceContext) -> str:
    return str(tmp_path / "table")


def delta(**changes: Any) -> DeltaTable:
    return DeltaTable("table", **changes)


def everything(
    spark: SparkSession, source: DeltaTable, context: SourceContext, start: Any = None
) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    while not (planned := source.plan(start, context)).is_empty:
        source.verify(planned.splits, context)
        found += rows(source.read(spark, planned.splits, context))
        start = planned.end
    return sorted(found, key=repr)


def truth(spark: SparkSession, path: str) -> list[tuple[Any, ...]]:
    return rows(spark.read.format("delta").load(path))


VALUES = [
    "DE",
    "a b",
    "x/y",
    "50%",
    "a=b",
    "it's",
    'q"',
    "é 漢",
    "[1]",
    "{a}",
    "*",
    "?",
    "#",
    "+",
    "back\\slash",
    "new\nline",
    ":",
    "",
    None,
]


@pytest.mark.parametrize("max_files", [3, 1000])
def test_partition_values_are_exact_whatever_the_folders_are_called(
    spark: SparkSession, context: SourceContext, path: str, max_files: int
) -> None:
    data = [(id, value) for id, value in enumerate(VALUES * 2)]
    frame = spark.createDataFrame(data, "id long, c string").repartition(1)
    frame.write.format("delta").partitionBy("c").save(path)
    planned = delta(max_files=max_files).plan(None, context)
    assert planned.splits["reader"] == "parquet"
    assert everything(spark, delta(max_files=max_files), context) == truth(spark, path)


def test_partition_values_of_every_type(spark: SparkSession, context: SourceContext, path: str) -> None:
    schema = (
        "id long, b boolean, i int, l long, d double, m decimal(12,2), t timestamp, n timestamp_ntz, y date, s string"
    )
    moment = datetime.fromisoformat("2026-03-29T01:30:00.120000")
    data = [
        (1, True, 1, 2**40, 1.5, Decimal("1.20"), moment, moment, date(2026, 1, 1), "x"),
        (
            2,
            False,
            -1,
            -(2**40),
            -0.25,
            Decimal("-1.00"),
            datetime.fromisoformat("1969-12-31T23:00:00"),
            moment,
            date(1, 1, 1),
            "y",
        ),
        (3, *[None] * 9),
    ]
    partitions = ["b", "i", "l", "d", "m", "t", "n", "y", "s"]
    spark.createDataFrame(data, schema).write.format("delta").partitionBy(*partitions).save(path)
    assert everything(spark, delta(), context) == truth(spark, path)
    assert read(spark, delta(), context).dtypes == spark.read.format("delta").load(path).dtypes


def test_staged_folders_of_our_own_sinks_are_read_with_the_values_of_the_log(
    spark: SparkSession, context: SourceContext, path: str
) -> None:
    from deltalake import DeltaTable as Table
    from deltalake.transaction import AddAction

    spark.range(4).selectExpr("id", "'DE' country").write.format("delta").partitionBy("country").save(path)
    spark.range(4, 8).coalesce(1).write.parquet(f"{path}/tidegate-1-a/country=lies")
    file = next(name for name in os.listdir(f"{path}/tidegate-1-a/country=lies") if name.startswith("part"))
    relative = f"tidegate-1-a/country=lies/{file}"
    table = Table(path)
    size = os.path.getsize(f"{path}/{relative}")
    action = AddAction(relative, size, {"country": "FR"}, 1, True, "{}")
    table.create_write_transaction([action], "append", table.schema(), ["country"])
    assert everything(spark, delta(), context) == [(id, "DE") for id in range(4)] + [(id, "FR") for id in range(4, 8)]


def test_columns_that_came_later_are_null_in_older_files(
    spark: SparkSession, context: SourceContext, path: str
) -> None:
    spark.range(2).write.format("delta").save(path)
    source = delta()
    start = source.plan(None, context).end
    spark.range(2, 4).write.format("delta").mode("append").save(path)
    wide = spark.range(4, 6).selectExpr("id", "struct(id as x) as more")
    wide.write.format("delta").mode("append").option("mergeSchema", "true").save(path)
    frame = read(spark, source, context, start)
    assert rows(frame.selectExpr("id", "more.x")) == [(2, None), (3, None), (4, 4), (5, 5)]


def test_deletion_vectors_of_a_snapshot_are_respected_even_if_it_is_cut(
    spark: SparkSession, context: SourceContext, path: str
) -> None:
    properties = "'delta.enableDeletionVectors'='true'"
    spark.sql(
        f"create table delta.`{path}` (id long, c string) using delta partitioned by (c) tblproperties({properties})"
    )
    spark.range(30).selectExpr("id", "concat('a +%', id % 3) c").repartition(1).write.format("delta").mode(
        "append"
    ).save(path)
    spark.sql(f"delete from delta.`{path}` where id < 7")
    assert delta().plan(None, context).splits["reader"] == "delta"
    for max_files in (1, 2, 1000):
        assert everything(spark, delta(max_files=max_files), context) == truth(spark, path)
    assert len(truth(spark, path)) == 23


@pytest.mark.parametrize("mapping", ["name", "id"])
def test_mapped_columns_are_read_by_their_names(
    spark: SparkSession, context: SourceContext, path: str, mapping: str
) -> None:
    spark.sql(
        f"create table delta.`{path}` (id long, `we ird` struct<a:int>, c string) using delta partitioned by (c) "
        f"tblproperties('delta.columnMapping.mode'='{mapping}')"
    )
    source = delta()
    start = source.plan(None, context).end
    for n in range(2):
        frame = spark.range(n * 3, n * 3 + 3).selectExpr("id", "struct(cast(id as int) a) `we ird`", "'q %' c")
        frame.write.format("delta").mode("append").save(path)
    assert everything(spark, source, context, start) == truth(spark, path)
    spark.sql(f"alter table delta.`{path}` rename column id to number")
    spark.range(9, 10).selectExpr("id number", "cast(null as struct<a:int>) `we ird`", "'z' c").write.format(
        "delta"
    ).mode("append").save(path)
    assert everything(spark, source, context, start) == truth(spark, path)
    assert everything(spark, source, context) == truth(spark, path)


def test_compaction_and_vacuum_between_plans_change_nothing(
    spark: SparkSession, context: SourceContext, path: str
) -> None:
    for n in range(3):
        spark.range(n * 2, n * 2 + 2).coalesce(1).write.format("delta").mode("append").save(path)
    source = delta(max_files=1)
    first = source.plan(None, context)
    spark.sql(f"optimize delta.`{path}`")
    spark.range(6, 8).coalesce(1).write.format("delta").mode("append").save(path)
    found = rows(source.read(spark, first.splits, context)) + everything(spark, source, context, first.end)
    assert sorted(found) == [(id,) for id in range(8)]


def test_scenario_16_files_vacuumed_after_the_plan_are_named_before_anything_is_read(
    spark: SparkSession, context: SourceContext, path: str
) -> None:
    spark.range(4).write.format("delta").save(path)
    source = delta()
    planned = source.plan(None, context)
    spark.range(4, 6).write.format("delta").mode("overwrite").save(path)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.sql(f"vacuum delta.`{path}` retain 0 hours")
    with pytest.raises(Invalid, match="VACUUM"):
        source.verify(planned.splits, context)


def test_an_overwrite_is_refused_as_a_change_of_rows(spark: SparkSession, context: SourceContext, path: str) -> None:
    spark.range(4).write.format("delta").save(path)
    start = delta().plan(None, context).end
    spark.range(4, 6).write.format("delta").mode("overwrite").save(path)
    with pytest.raises(Invalid) as caught:
        delta().plan(start, context)
    assert caught.value.reason == "ROWS_CHANGED"


def test_scenario_16_a_table_replaced_under_its_name(spark: SparkSession, context: SourceContext, path: str) -> None:
    spark.range(4).write.format("delta").save(path)
    start = delta().plan(None, context).end
    import shutil

    shutil.rmtree(path)
    spark.range(4).write.format("delta").save(path)
    with pytest.raises(Invalid) as caught:
        delta().plan(start, context)
    assert caught.value.reason == "TABLE_RECREATED"


def test_the_change_feed_tells_every_change_once(spark: SparkSession, context: SourceContext, path: str) -> None:
    properties = "'delta.enableChangeDataFeed'='true'"
    spark.sql(f"create table delta.`{path}` (id long, v int) using delta tblproperties({properties})")
    spark.range(3).selectExpr("id", "0 v").coalesce(1).write.format("delta").mode("append").save(path)
    source = delta(mode="changes", max_files=1)
    planned = source.plan(None, context)
    first = source.read(spark, planned.splits, context)
    assert first.columns == ["id", "v", "_change_type", "_commit_version", "_commit_timestamp"]
    assert rows(first.drop("_commit_timestamp")) == [(0, 0, "insert", 1), (1, 0, "insert", 1), (2, 0, "insert", 1)]
    assert first.where("_commit_timestamp is null").count() == 0
    spark.sql(f"update delta.`{path}` set v = 9 where id = 1")
    spark.sql(f"delete from delta.`{path}` where id = 2")
    spark.range(3, 4).selectExpr("id", "0 v").write.format("delta").mode("append").save(path)
    spark.sql(f"optimize delta.`{path}`")
    found = [row[:4] for row in everything(spark, source, context, planned.end)]
    assert found == sorted(
        [
            (1, 0, "update_preimage", 2),
            (1, 9, "update_postimage", 2),
            (2, 0, "delete", 3),
            (3, 0, "insert", 4),
        ],
        key=repr,
    )


def test_a_change_feed_whose_schema_grew_after_the_plan_keeps_the_planned_columns(
    spark: SparkSession, context: SourceContext, path: str
) -> None:
    properties = "'delta.enableChangeDataFeed'='true'"
    spark.sql(f"create table delta.`{path}` (id long) using delta tblproperties({properties})")
    source = delta(mode="changes")
    start = source.plan(None, context).end
    spark.range(3).write.format("delta").mode("append").save(path)
    planned = source.plan(start, context)
    spark.sql(f"alter table delta.`{path}` add column more string")
    frame = source.read(spark, planned.splits, context)
    assert frame.columns == ["id", "_change_type", "_commit_version", "_commit_timestamp"]
    assert frame.count() == 3
    assert read(spark, source, context, start).columns[:2] == ["id", "more"]


@pytest.mark.skipif(not ALL, reason="slow, and of a version of delta-spark that does not change here: ALL=1")
def test_real_checkpoints_of_delta_spark_give_the_same_snapshot(
    spark: SparkSession, context: SourceContext, path: str
) -> None:
    properties = "'delta.checkpointInterval'='3', 'delta.checkpointPolicy'='{}'"
    for policy in ("classic", "v2"):
        target = f"{path}-{policy}"
        spark.sql(
            f"create table delta.`{target}` (id long, c string) using delta partitioned by (c) "
            f"tblproperties({properties.format(policy)})"
        )
        for n in range(8):
            frame = spark.range(n * 2, n * 2 + 2).selectExpr("id", f"'a %{n % 2}' c")
            frame.coalesce(1).write.format("delta").mode("append").save(target)
        spark.sql(f"optimize delta.`{target}` where c = 'a %1'")
        log = Path(target, "_delta_log")
        last = max(int(name.name[:20]) for name in log.glob("0*.checkpoint*"))
        assert last >= 6
        for version in range(last):
            (log / f"{version:020d}.json").unlink()
        assert everything(spark, DeltaTable(f"table-{policy}", max_files=3), context) == truth(spark, target)
        assert rows(spark.read.format("delta").load(target).selectExpr("max(id)")) == [(15,)]


def test_widened_types_are_read_by_delta_spark(spark: SparkSession, context: SourceContext, path: str) -> None:
    spark.sql(f"create table delta.`{path}` (id int) using delta tblproperties('delta.enableTypeWidening'='true')")
    spark.sql(f"insert into delta.`{path}` values (1)")
    source = delta()
    start = source.plan(None, context).end
    spark.sql(f"insert into delta.`{path}` values (2)")
    spark.sql(f"alter table delta.`{path}` alter column id type long")
    spark.sql(f"insert into delta.`{path}` values ({2**40})")
    assert everything(spark, source, context) == truth(spark, path)
    assert everything(spark, source, context, start) == [(2**40,), (2,)]


def test_the_time_of_day_of_utc_is_kept(spark: SparkSession, context: SourceContext, path: str) -> None:
    spark.sql(f"create table delta.`{path}` (t timestamp, id int) using delta partitioned by (t)")
    spark.sql(
        f"insert into delta.`{path}` values (timestamp'2026-10-25 00:30:00Z', 1), (timestamp'2026-10-25 01:30:00Z', 2)"
    )
    found = everything(spark, delta(), context)
    assert [t.replace(tzinfo=UTC).hour for t, _ in sorted(found, key=lambda row: row[1])] == [0, 1]


def test_a_file_that_is_archived_before_spark_has_read_it_is_named_as_that(spark, tmp_path, monkeypatch):
    """It was there when it was checked, a moment before. Spark alone would say that the data must be corrected."""
    play = SmallPipeline(
        tmp_path, spark, lambda made: sources(made, "id long").sink("good", DeltaAppend("tables/good"))
    )
    play.feed([{"id": 1}])
    triggered = play.coordinator().trigger("run 1")
    assert isinstance(triggered, Triggered)
    (file,) = (tmp_path / "landing" / "rows").iterdir()
    read = Files.read

    def archived_meanwhile(*args, **kwargs):
        rows = read(*args, **kwargs)
        file.rename(tmp_path / "archived.json")
        return rows

    with monkeypatch.context() as patched:
        patched.setattr(Files, "read", archived_meanwhile)
        with pytest.raises(Invalid) as refused:
            run_job(play.coordinator(), triggered.plan.id, "main", spark)
    assert refused.value.reason == "SOURCE_CHANGED"
    assert file.name in refused.value.what
    (tmp_path / "archived.json").rename(file)
    assert run_job(play.coordinator(), triggered.plan.id, "main", spark).stats.rows == {"good": 1}
