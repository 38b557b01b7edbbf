"""What a glance finds to be plain JSON, Spark's closer look finds no fault with either, however odd the lines are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from tidegate.connectors.files import reading
from tidegate.connectors.files.folder import open_folder
from tidegate.connectors.files.formats.exact_values import as_read, doubt
from tidegate.connectors.files.formats.json_lines import strange_keys, unread
from tidegate.connectors.files.formats.plain_json import are_plain
from tidegate.connectors.files.formats.plain_records import is_plain_record
from tidegate.connectors.schema.ddl import parse_ddl
from tidegate.connectors.source import SourceContext
from tidegate.records.place import Place
from tidegate.sources import Files

SCHEMA = "id long, `Odd name` string, list array<string>, at timestamp"
VALUES = [
    "1",
    '"x"',
    "null",
    "true",
    "[1,2]",
    '{"id":1}',
    '"\\u0061"',
    '"{"',
    '"}"',
    '"\\":"',
    '": "',
    "1e3",
    "-0",
    "[]",
]
KEYS = ["id", "Id", "ID", "Odd name", "odd name", "list", "at", "more", "a b", "\\u0069d", "", "id ", "ſ"]
PIECES = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    " ",
    "\t",
    '"',
    "\\",
    '"id"',
    "1",
    "null",
    "//",
    "\v",
    "\x00",
    "é",
    "\ufeff",
    "{}",
]


def lines(random: random.Random) -> Iterator[str]:
    """Records, most of them in order, some with something put in, left out or appended."""
    while True:
        keys = random.sample(KEYS, random.randrange(4)) + random.choices(KEYS, k=random.random() < 0.1)
        colon = random.choice([":", " : ", ": "])
        record = "{" + ",".join(f'"{key}"{colon}{random.choice(VALUES)}' for key in keys) + "}"
        where = random.randrange(len(record) + 1)
        yield random.choice(
            [
                *[record] * 4,
                record[:where] + random.choice(PIECES) + record[where:],
                record[:where] + record[where + 1 :],
                record + random.choice([" ", "x", "{}", '{"id":2}', ',{"id":2}', "[]"]),
                f"[{record},{record}]",
            ]
        )


def context(root: Path) -> SourceContext:
    return SourceContext("p", "rows", Place(str(root), {}), None)  # type: ignore[arg-type]


def sorted_out(folder: Path, on_new_column: str) -> dict[bool, list[str]]:
    """Random lines, by whether a glance finds them to be plain."""
    columns, opened = parse_ddl(SCHEMA), open_folder(Place(str(folder), {}), ".")
    texts: dict[bool, list[str]] = {True: [], False: []}
    for text in islice(lines(random.Random(0)), 3000):
        (folder / "one.json").write_text(text)
        texts[are_plain(opened, ["one.json"], columns, all_keys_known=on_new_column == "refuse")].append(text)
    assert all(len(found) > 500 for found in texts.values())
    return texts


@pytest.mark.parametrize("on_new_column", ["ignore", "refuse"])
def test_nothing_is_overlooked_in_lines_that_are_plain(on_new_column: Any, tmp_path: Path, connect_spark: Any) -> None:
    source = Files("in/*.json", schema=SCHEMA, on_new_column=on_new_column)
    columns = parse_ddl(SCHEMA)
    paths = [str(tmp_path / "all.json")]

    def overlooked(texts: list[str]) -> list[Any]:
        """Spark fails at the first line that holds more than its reader reads."""
        Path(paths[0]).write_text("\n".join(texts))
        return reading.fail_on_overlooked(connect_spark, source, paths, columns, {}, context(tmp_path)).collect()

    texts = sorted_out(tmp_path, on_new_column)
    assert overlooked(texts[True]) == []
    with pytest.raises(Exception, match="TIDEGATE_MALFORMED"):
        overlooked(texts[False])


@pytest.mark.parametrize("on_new_column", ["ignore", "refuse"])
def test_plain_lines_that_are_kept_are_judged_as_a_closer_look_would(
    on_new_column: Any, tmp_path: Path, connect_spark: Any
) -> None:
    source = Files("in/*.json", schema=SCHEMA, on_corrupt="keep", on_new_column=on_new_column)
    (tmp_path / "all.json").write_text("\n".join(sorted_out(tmp_path, on_new_column)[True]))

    def kept(plain: bool) -> list[str]:
        frame = reading.read_lines(connect_spark, source, [str(tmp_path / "all.json")], {})
        rows = reading._read_json_keeping_malformed(
            frame, source, parse_ddl(SCHEMA), {}, plain=plain, judge_keys=not plain
        )
        return sorted(map(repr, rows.collect()))

    assert kept(True) == kept(False)


@pytest.mark.parametrize(
    "text",
    [
        '{"id":1}{"id":2}',
        '{"id":1}\r{"id":2}',
        '\ufeff{"id":1}',
        '{"id":1,"id":2}',
        '{"id" :1,"id":2}',
        '{"Id":1}',
        "[]",
    ],
)
def test_these_are_not_plain(text: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(text, newline="")
    folder = open_folder(Place(str(tmp_path), {}), ".")
    assert not are_plain(folder, ["rows.json"], parse_ddl("id long"), all_keys_known=False)


def test_large_files_gone_ones_and_those_with_fields_in_fields_are_left_to_spark(tmp_path: Path) -> None:
    folder = open_folder(Place(str(tmp_path), {}), ".")
    (tmp_path / "small.json").write_text('{"id":1}\n \n{"id":null}\n')
    (tmp_path / "large.json").write_text('{"id":1}\n' * 250_000)

    def plain(name: str, schema: str) -> bool:
        return are_plain(folder, [name], parse_ddl(schema), all_keys_known=True)

    assert plain("small.json", "id long")
    assert not plain("small.json", "id long, f array<struct<x: long>>")
    assert not plain("large.json", "id long")
    assert not plain("gone.json", "id long")


@pytest.mark.parametrize("on_new_column", ["ignore", "refuse"])
def test_a_record_of_plain_shape_passes_the_closer_look(on_new_column: Any, tmp_path: Path, connect_spark: Any) -> None:
    columns, all_keys = parse_ddl(SCHEMA), on_new_column == "refuse"
    texts = [(text,) for text in islice(lines(random.Random(1)), 6000)]
    frame = connect_spark.createDataFrame(texts, "value string")
    value = F.col("value")
    strange = strange_keys(value, columns, {}, all_of_them=all_keys)
    plain = frame.where(is_plain_record(value, columns, all_keys_known=all_keys))
    assert plain.where(unread(value, {}) | strange).collect() == []
    assert plain.count() > 100


def test_a_record_of_plain_shape_whose_values_fit_is_read_by_spark(tmp_path: Path, connect_spark: Any) -> None:
    schema = "i int, l long, d decimal(5,2), f double, b boolean, s string, t timestamp, day date"
    chosen = random.Random(2)
    numbers = [
        "0",
        "-1",
        "12.5",
        "12.50",
        "1e3",
        "123456.7",
        "999.99",
        "1000",
        "12.345",
        "2147483648",
        "9" * 18,
        "9" * 19,
    ]
    texts = ['"2026-02-28"', '"2026-02-29"', '"2026-04-31"', '"2026-01-31T23:59:59Z"', '"2026-01-31T24:00:00"', '"x"']
    texts += ['"2026-01-31 10:00:00.123456+01:30"', '"1600-01-01"', "true", "null", "TRUE", '"true"', "[1]"]
    records = []
    for _ in range(4000):
        keys = chosen.sample(["i", "l", "d", "f", "b", "s", "t", "day"], 2)
        members = ",".join(f'"{key}":{chosen.choice(numbers + texts)}' for key in keys)
        records.append((f"{{{members}}}",))
    frame = connect_spark.createDataFrame(records, "value string")
    plain = is_plain_record(F.col("value"), parse_ddl(schema), all_keys_known=True, values_fit=True)
    wide = ", ".join(column.ddl for column in as_read(parse_ddl(schema)))
    options = {"columnNameOfCorruptRecord": "bad"}
    rows = frame.where(plain).select("value", F.from_json("value", f"{wide}, bad string", options).alias("r"))
    misfits = rows.select("value", "r.*").where(f"bad IS NOT NULL OR {doubt(parse_ddl(schema))}")
    assert [row.value for row in misfits.collect()] == []
    assert frame.where(plain).count() > 100
