"""One record in, one row out: whatever is wrong with it, in every format and with every setting."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tidegate.records.place import Place
from tidegate.sources import Files, SourceContext, malformed_record
from tidegate.testing.source_contract import MemoryBlobs

pytestmark = in_turn(seconds=40)

SCHEMA = "id long, name string, amount decimal(12,2), parts array<struct<n: int>>"

GOOD = {
    '{"id": 1}': 1,
    '{"id": 2, "name": "Zürich", "amount": 1.50, "parts": [{"n": 1}, null]}': 1,
    '  {"id": 3, "name": "}{"}\t': 1,
    '[{"id": 4}, {"id": 5, "name": 1.50}]': 2,
    "[]": 0,
    "": 0,
    " \t": 0,
}
"""Records, and how many of them each line has."""

MALFORMED = [
    '{"id": 10, "amount": "lots"}',
    '{"id": 11, "amount": 1.005}',
    '{"id": 12',
    "no json",
    "null",
    "7",
    '{"id": 13} {"id": 14}',
    '{"id": 15} trailing',
    '{"id": 16}, {"id": 17}',
    '{"Id": 18}',
    '{"id": 19, "NAME": "x"}',
    '{"id": 20, "parts": [{"n": 1}, {"N": 2}]}',
    '[{"id": 21}] [{"id": 22}]',
    '[{"id": 23}',
    "\x0b",
]
"""Lines of one record each that is malformed, whatever the settings."""

UNKNOWN = ['{"id": 30, "more": 1}', '{"id": 31, "parts": [{"n": 1, "more": {}}]}', '{"id": 32, "Id": 33}']
"""Records that are malformed only if unknown keys are."""

MIXED = ('[{"id": 40}, {"Id": 41}, {"id": "x"}, 42, null]', 1, 4)
"""An array, and how many of its records are good and malformed."""

ENCODINGS: list[dict[str, Any]] = [
    {},
    {"encoding": "UTF-8"},
    {"encoding": "ISO-8859-1", "lineSep": "\n"},
    {"charset": "windows-1252", "lineSep": "\n"},
    {"encoding": "UTF-16LE", "lineSep": "\n"},
]


@pytest.fixture
def context(tmp_path: Path) -> SourceContext:
    (tmp_path / "in").mkdir()
    return SourceContext("shop", "orders", Place(str(tmp_path)), MemoryBlobs())


def read(spark: Any, source: Files, context: SourceContext) -> list[Any]:
    assert source.problems() == []
    planned = source.plan(None, context)
    source.verify(planned.splits, context)
    return source.read(spark, planned.splits, context).collect()


def write(context: SourceContext, name: str, lines: list[str], options: dict[str, Any]) -> None:
    encoding = options.get("encoding") or options.get("charset") or "UTF-8"
    path = Path(context.place.url("in")) / name
    path.write_bytes("\n".join(lines).encode(encoding))


def settings() -> Iterator[tuple[str, dict[str, Any], bool]]:
    for on_new_column, options, several in itertools.product(("ignore", "refuse"), ENCODINGS, (False, True)):
        yield on_new_column, options | ({"multiLine": True} if several else {}), several


def test_each_record_of_json_that_is_kept_comes_once_parsed_or_as_text(spark: Any, context: SourceContext) -> None:
    for on_new_column, options, several in settings():
        lines = [*GOOD, *MALFORMED, *UNKNOWN, MIXED[0]]
        if several:
            for number, line in enumerate(lines):
                write(context, f"{number:03}.json", [line], options)
        else:
            write(context, "all.json", lines, options)
        source = Files("in/*.json", schema=SCHEMA, on_corrupt="keep", on_new_column=on_new_column, options=options)
        rows = read(spark, source, context)
        for path in Path(context.place.url("in")).iterdir():
            path.unlink()
        where = f"{on_new_column}, {options}"
        kept = Counter(row._corrupt_record for row in rows if row._corrupt_record is not None)
        whole = [*MALFORMED, *(UNKNOWN if on_new_column == "refuse" else [])]
        parts = ['{"Id":41}', '{"id":"x"}', "42", "null"]
        assert kept == Counter([*whole, *parts]), where
        good = sorted((row.id, row.name, str(row.amount)) for row in rows if row._corrupt_record is None)
        known = [30, 31, 32] if on_new_column == "ignore" else []
        assert [id for id, *_ in good] == [1, 2, 3, 4, 5, *known, 40], where
        assert good[1] == (2, "Zürich", "1.50"), where
        assert good[4][1] == "1.50", f"a number in a column of text is spelled as in the file: {where}"


def test_small_plain_files_are_read_as_others_are(spark: Any, context: SourceContext) -> None:
    flat = "id long, name string, exact decimal(38,2), amount decimal(12,2)"
    lines = [
        '{"id": 1, "name": 1.50, "exact": 123456789012345678901234567890123456.78}',
        '{"id": 2, "name": "1.50 \\"x\\" 1e3", "amount": 1e1}',
        '{"id": 3, "name": [1.50, "2.50"], "amount": 1.005}',
        '{"id": 4, "name": 1E3, "amount": "x"}',
        '{"id": 5, "name": "it\'s 7.0"}',
    ]
    write(context, "a.json", lines, {})
    source = Files("in/*.json", schema=flat, on_corrupt="keep")
    alone = {row.id: row for row in read(spark, source, context)}
    assert [alone[id].name for id in range(1, 6)] == ["1.50", '1.50 "x" 1e3', '[1.50,"2.50"]', "1E3", "it's 7.0"]
    assert str(alone[1].exact) == "123456789012345678901234567890123456.78"
    assert [alone[id]._corrupt_record for id in range(1, 6)] == [None, None, lines[2], lines[3], None]
    write(context, "b.json", ['{"id": 9} {"id": 10}'], {})
    beside = {row.id: row for row in read(spark, source, context)}
    assert {id: beside[id] for id in alone} == alone, "whatever lies beside them"


def test_texts_within_structs_arrays_and_maps_are_spelled_as_in_the_file(spark: Any, context: SourceContext) -> None:
    nested = "id long, o struct<m: decimal(38,1), d: double, s: array<string>>, by map<string,string>, d double"
    record = '{"id": 1, "o": {"m": 7.0, "d": 1.5, "s": [1.50, "x", null, true]}, "by": {"1.0": 2.50}, "d": 0.5}'
    write(context, "a.json", [record, '{"id": 2, "o": null}', '{"id": 3, "o": {"s": [2.0]}}'], {})
    first, second, third = read(spark, Files("in/*.json", schema=nested, on_corrupt="keep"), context)
    assert (str(first.o.m), first.o.d, first.o.s, first.by, first.d) == (
        "7.0",
        1.5,
        ["1.50", "x", None, "true"],
        {"1.0": "2.50"},
        0.5,
    )
    assert (second.o, third.o.s, third.by) == (None, ["2.0"], None)


def test_a_text_with_the_mark_of_numbers_comes_back_as_it_was(spark: Any, context: SourceContext) -> None:
    """U+E0F1, which marks numbers in between: as it is, and as JSON may write it."""
    nested = "id long, name string, o struct<`\ue0f1`: string, s: array<string>>, by map<string,string>"
    lines = [
        '{"id": 1, "name": "\ue0f11.50", "by": {"\ue0f1": 1.50, "\ue0f1s": "\ue0f1s", "k": 2.50}}',
        '{"id": 2, "name": "\\ue0F11.50", "o": {"\ue0f1": 1.50, "s": ["\ue0f1", 2.50, "\ue0f1s7", "\ue0f1\ue0f1"]}}',
        '{"id": 3, "name": {"t": "\ue0f11.50", "\ue0f1": 1.50, "u": "\\\\ue0f1", "v": "\\\\\\uE0f1"}}',
        '{"id": 4, "name": "say \\"\ue0f11.50\\"", "by": {"k": 2.50}}',
        '[{"id": 5, "name": "\ue0f11.50"}, {"id": 6, "name": 1.50}, {"id": 7, "name": ["\\ue0f1s", 1.50]}]',
    ]
    write(context, "a.json", lines, {})
    rows = {row.id: row for row in read(spark, Files("in/*.json", schema=nested, on_corrupt="keep"), context)}
    assert [row._corrupt_record for row in rows.values()] == [None] * 7
    assert rows[1].name == rows[2].name == rows[5].name == "\ue0f11.50"
    assert rows[1].by == {"\ue0f1": "1.50", "\ue0f1s": "\ue0f1s", "k": "2.50"}
    assert tuple(rows[2].o) == ("1.50", ["\ue0f1", "2.50", "\ue0f1s7", "\ue0f1\ue0f1"])
    assert rows[3].name == '{"t":"\ue0f11.50","\ue0f1":1.50,"u":"\\\\ue0f1","v":"\\\\\ue0f1"}'
    assert rows[4].name == 'say "\ue0f11.50"'
    assert (rows[6].name, rows[7].name) == ("1.50", '["\ue0f1s",1.50]')


def test_no_good_record_is_lost_and_no_malformed_one_passes_where_they_are_refused(
    spark: Any, context: SourceContext
) -> None:
    for on_new_column, options in (("ignore", {}), ("refuse", {}), ("refuse", ENCODINGS[4])):
        source = Files("in/*.json", schema=SCHEMA, on_new_column=on_new_column, options=options)
        write(context, "all.json", [*GOOD, *(UNKNOWN if on_new_column == "ignore" else [])], options)
        assert len(read(spark, source, context)) == sum(GOOD.values()) + (3 if on_new_column == "ignore" else 0)
        for bad in [MALFORMED[2], MALFORMED[6], MALFORMED[9], *(UNKNOWN[:1] if on_new_column == "refuse" else [])]:
            write(context, "all.json", [*GOOD, bad], options)
            with pytest.raises(Exception, match="TIDEGATE_MALFORMED") as caught:
                read(spark, source, context)
            assert malformed_record(str(caught.value)) is not None


def test_each_record_of_csv_that_is_kept_comes_once(spark: Any, context: SourceContext) -> None:
    schema = "id long, name string, amount decimal(12,2)"
    good, bad = ["1,Zürich,1.50", '2,"a,b",', ""], ["x,y,1", "3,z", "4,z,1,2", "5,z,1.005", "6,z,lots"]
    for options in ({}, {"header": True}, {"encoding": "ISO-8859-1"}, {"multiLine": True}):
        write(context, "a.csv", [*(["id,name,amount"] if "header" in options else []), *good, *bad], options)
        source = Files("in/*.csv", schema=schema, on_corrupt="keep", options=options)
        rows = read(spark, source, context)
        assert sorted(row.id for row in rows if row._corrupt_record is None) == [1, 2], options
        assert len(rows) == 2 + len(bad), options


BROKEN = {
    b'{"id": 2, "name": "Gen\xe8ve"}': '{"id": 2, "name": "Gen\\xE8ve"}',
    b'{"id": 3, "name": "C:\\\\x \xff"}': '{"id": 3, "name": "C:\\\\x5Cx \\xFF"}',
    b'{"id": 4, "name": "\xc0\x80"}': '{"id": 4, "name": "\\xC0\\x80"}',
    b'{"id": 5, "name": "\xed\xa0\x80"}': '{"id": 5, "name": "\\xED\\xA0\\x80"}',
    b'{"id": 6, "more": "\xf0\x9f"}': '{"id": 6, "more": "\\xF0\\x9F"}',
}
"""Records with bytes that are no UTF-8, and how their texts are kept."""


def test_bytes_that_are_no_text_are_kept_as_text_that_everybody_reads(spark: Any, context: SourceContext) -> None:
    folder = Path(context.place.url("in"))
    for on_new_column in ("ignore", "refuse"):
        (folder / "a.json").write_bytes(b"\n".join([b'{"id": 1}', *BROKEN]))
        source = Files("in/*.json", schema="id long, name string", on_corrupt="keep", on_new_column=on_new_column)
        rows = read(spark, source, context)
        assert sorted(row._corrupt_record for row in rows if row._corrupt_record is not None) == sorted(BROKEN.values())
        assert [(row.id, row.name) for row in rows if row._corrupt_record is None] == [(1, None)]
        refusing = Files("in/*.json", schema="id long, name string", on_new_column=on_new_column)
        for record in BROKEN:
            (folder / "a.json").write_bytes(b'{"id": 1}\n' + record)
            with pytest.raises(Exception, match="TIDEGATE_MALFORMED"):
                read(spark, refusing, context)


def test_bytes_that_are_no_utf_16_are_kept_as_well(spark: Any, context: SourceContext) -> None:
    good = json.dumps({"id": 1}).encode("utf-16-le")
    broken = '{"id": 2, "name": "'.encode("utf-16-le") + b"\x00\xd8" + '"}'.encode("utf-16-le")
    (Path(context.place.url("in")) / "a.json").write_bytes(good + "\n".encode("utf-16-le") + broken)
    options = {"encoding": "UTF-16LE", "lineSep": "\n"}
    rows = read(spark, Files("in/*.json", schema="id long, name string", on_corrupt="keep", options=options), context)
    assert [(row.id, row._corrupt_record) for row in rows] == [(1, None), (None, '{"id": 2, "name": "\\x00\\xD8"}')]
