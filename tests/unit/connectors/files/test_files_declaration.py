from __future__ import annotations

import pytest

from tests.kit.sources import files


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"pattern": ""}, "pattern is ''"),
        ({"pattern": None}, "pattern is None"),
        ({"pattern": "a\0b.json"}, "pattern is 'a\\x00b.json'"),
        ({"pattern": "landing/", "format": "json"}, "names a folder"),
        ({"pattern": "landing/*/../*.json"}, "leaves its folder"),
        ({"pattern": "landing/**x/*.json"}, "'**' must be alone"),
        ({"pattern": "landing/_*.json"}, "hidden or temporary"),
        ({"pattern": "landing/*.tmp", "format": "json"}, "hidden or temporary"),
        ({"pattern": "landing/*"}, "is of no known format"),
        ({"pattern": "landing/*.xml"}, "is of no known format"),
        ({"format": "jsonl"}, "did you mean 'json'"),
        ({"format": "avro"}, "known are json, csv, parquet"),
        ({"schema": "id lnog"}, "schema type 'lnog' of column 'id' is unknown; did you mean 'long'?"),
        ({"schema": None}, "schema must be a string"),
        ({"order": "time"}, "order is 'time'; it must be 'name' or 'arrival'"),
        ({"on_corrupt": "drop"}, "on_corrupt is 'drop'; it must be 'refuse' or 'keep'"),
        ({"missing_columns": "error"}, "missing_columns is 'error'"),
        ({"max_files": 0}, "max_files is 0"),
        ({"max_files": None}, "max_files is None"),
        ({"max_files": True}, "max_files is True"),
        ({"max_bytes": -1}, "max_bytes is -1"),
        ({"max_bytes": "1 GB"}, "max_bytes is '1 GB'"),
        ({"min_age": -1}, "min_age is -1"),
        ({"min_age": "1 min"}, "min_age is '1 min'"),
        ({"on_corrupt": "keep", "schema": "id long, _corrupt_record string"}, "adds the column _corrupt_record"),
        ({"pattern": "a/*.parquet", "on_corrupt": "keep"}, "is for JSON and CSV"),
        ({"options": "header"}, "must be a mapping"),
        ({"options": {"mode": "DROPMALFORMED"}}, "option 'mode' cannot be set: use on_corrupt"),
        ({"options": {"MODE": "x"}}, "cannot be set"),
        ({"options": {"ignoreMissingFiles": True}}, "files are never skipped"),
        ({"options": {"inferSchema": "true"}}, "the schema is declared"),
        ({"options": {"header": "true"}}, "unknown for json"),
        ({"pattern": "a/*.csv", "options": {"heeder": "true"}}, "did you mean 'header'?"),
        ({"pattern": "a/*.csv", "on_new_column": "rescue"}, "on_new_column of CSV goes by the header of each file"),
        ({"pattern": "a/*.csv", "on_type": "widen", "options": {"locale": "de"}}, "combined with option 'locale'"),
        ({"options": {"multiLine": None}}, "must be text, a number or a boolean"),
        ({"options": {3: "x"}}, "is not a string"),
        ({"options": {"encoding": "utf-8", "ENCODING": "x"}}, "is set twice"),
        ({"options": {"encoding": "windows-1252", "lineSep": "\n"}}, "is not one that Spark reads"),
        ({"options": {"encoding": "morse"}, "on_corrupt": "keep"}, "encoding 'morse' is unknown"),
        ({"options": {"charset": "ISO-8859-1"}}, "needs option 'lineSep' as well"),
        ({"options": {"encoding": "UTF-16", "lineSep": "\n"}}, "name it, as in 'UTF-16LE'"),
    ],
)
def test_bad_declarations_are_told(arguments: dict[str, object], said: str) -> None:
    problems = files(**arguments).problems()  # type: ignore[arg-type]
    assert len(problems) == 1, problems
    assert said in problems[0]


def test_all_problems_are_told_at_once() -> None:
    source = files("landing/*", schema="id", order="x", max_files=0, on_corrupt="x", options={"mode": "x"})
    assert len(source.problems()) == 6


@pytest.mark.parametrize(
    ("pattern", "format"),
    [
        ("a/*.json", "json"),
        ("a/*.JSON", "json"),
        ("a/*.jsonl.gz", "json"),
        ("a/*.ndjson", "json"),
        ("a/b.c/*.csv", "csv"),
        ("a/part-*.snappy.parquet", "parquet"),
        ("s3://bucket/a/*.csv.bz2", "csv"),
    ],
)
def test_the_suffix_tells_the_format(pattern: str, format: str) -> None:
    source = files(pattern)
    assert source.format == format
    assert source.problems() == []


def test_the_description_is_plain_and_complete() -> None:
    source = files("a/*.csv", options={"header": True}, moved_from="b", queue="https://sqs.x/1/q")
    described = source.describe()
    assert described["kind"] == "files"
    assert described["options"] == {"header": "True"}
    assert set(described) == {"kind", *vars(source)}
