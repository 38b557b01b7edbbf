"""What a glance finds to be plain JSON, Spark's closer look finds no fault with either, however odd the lines are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tidegate.connectors.ddl import parse_ddl
from tidegate.connectors.files import reading
from tidegate.connectors.files.folder import open_folder
from tidegate.connectors.files.formats.plain_json import are_plain
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


def sorted_out(folder: Path, unknown_keys: str) -> dict[bool, list[str]]:
    """Random lines, by whether a glance finds them to be plain."""
    columns, opened = parse_ddl(SCHEMA), open_folder(Place(str(folder), {}), ".")
    texts: dict[bool, list[str]] = {True: [], False: []}
    for text in islice(lines(random.Random(0)), 3000):
        (folder / "one.json").write_text(text)
        texts[are_plain(opened, ["one.json"], columns, all_keys_known=unknown_keys == "refuse")].append(text)
    assert all(len(found) > 500 for found in texts.values())
    return texts


@pytest.mark.parametrize("unknown_keys", ["ignore", "refuse"])
def test_nothing_is_overlooked_in_lines_that_are_plain(unknown_keys: Any, tmp_path: Path, connect_spark: Any) -> None:
    source = Files("in/*.json", schema=SCHEMA, unknown_keys=unknown_keys)
    columns = parse_ddl(SCHEMA)
    paths = [str(tmp_path / "all.json")]

    def overlooked(texts: list[str]) -> list[Any]:
        """Spark fails at the first line that holds more than its reader reads."""
        Path(paths[0]).write_text("\n".join(texts))
        frame = reading._read_lines(connect_spark, source, paths, {})
        return reading._fail_at_overlooked(frame, source, columns, {}, context(tmp_path)).collect()

    texts = sorted_out(tmp_path, unknown_keys)
    assert overlooked(texts[True]) == []
    with pytest.raises(Exception, match="TIDEGATE_MALFORMED"):
        overlooked(texts[False])


@pytest.mark.parametrize("unknown_keys", ["ignore", "refuse"])
def test_plain_lines_that_are_kept_are_judged_as_a_closer_look_would(
    unknown_keys: Any, tmp_path: Path, connect_spark: Any
) -> None:
    source = Files("in/*.json", schema=SCHEMA, on_corrupt="keep", unknown_keys=unknown_keys)
    (tmp_path / "all.json").write_text("\n".join(sorted_out(tmp_path, unknown_keys)[True]))

    def kept(plain: bool) -> list[str]:
        frame = reading._read_lines(connect_spark, source, [str(tmp_path / "all.json")], {})
        rows = reading._read_json_keeping_malformed(frame, source, parse_ddl(SCHEMA), {}, plain=plain).collect()
        return sorted(map(repr, rows))

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
