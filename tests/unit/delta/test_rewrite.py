"""Files lose the rows that they should, and nothing else."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.kit.delta import kv, schema, staged, table_at
from tidegate.delta import Location
from tidegate.delta.rewrite import (
    THREADS,
    InputFile,
    RowGroup,
    Table,
    coded_columns,
    divide,
    grouped,
    key_rows,
    parts_of,
    rewrite,
    touched,
    write_parquet,
)
from tidegate.errors import Corrupt


def _drop(*keys: int) -> Any:
    return lambda rows, source, start: pc.is_in(rows["k"], value_set=pa.array(keys, pa.int64()))


def _read(location: Location, files: Any) -> list[Any]:
    return sorted(
        (tuple(row.values()) for file in files for row in pq.read_table(location.full(file.path)).to_pylist()),
        key=repr,
    )


def test_untouched_files_are_left_alone(tmp_path):
    location = table_at(tmp_path)
    files = staged(location, "a", kv((1, "a"), (2, "b"))) + staged(location, "b", kv((3, "c")))
    table = Table(location, schema(k="long", v="string"), ())
    gone, written = rewrite(table, list(map(InputFile.from_file, files)), ["k"], _drop(2), "out")
    assert [source.path for source in gone] == [files[0].path]
    assert _read(location, written) == [(1, "a")]
    assert [file.rows for file in written] == [1]


@pytest.mark.parametrize("others", [["t", None, "t"], ["t", "u", "t"], [None, None, None]])
def test_a_text_that_is_lost_is_nowhere_in_the_new_file(tmp_path, others):
    """Texts of few different ones are read and written as numbers: what no row has any more is not among them."""
    location = table_at(tmp_path)
    rows = kv(*enumerate(["secret", *others] * 50))
    files = staged(location, "a", rows, row_group_size=80, version="1.0")  # as Spark writes
    table = Table(location, schema(k="long", v="string"), ())
    lost = lambda rows, source, start: pc.equal(rows["v"], "secret").fill_null(False)  # noqa: E731
    assert coded_columns(table, map(InputFile.from_file, files)) >= {"v"}, "else this tests nothing"
    _, written = rewrite(table, list(map(InputFile.from_file, files)), ["v"], lost, "out")
    assert _read(location, written) == sorted([(k, v) for k, v in enumerate(["", *others] * 50) if v != ""], key=repr)
    for file in written:
        assert "secret" not in file.stats
        assert b"secret" not in location.local(file.path).read_bytes()


def test_a_file_that_loses_all_rows_is_not_replaced(tmp_path):
    location = table_at(tmp_path)
    files = staged(location, "a", kv((1, "a"), (2, "b")))
    table = Table(location, schema(k="long", v="string"), ())
    gone, written = rewrite(table, list(map(InputFile.from_file, files)), ["k"], _drop(1, 2), "out")
    assert len(gone) == 1
    assert written == []
    assert not location.walk("out")


def test_row_groups_and_small_files_come_together(tmp_path):
    location = table_at(tmp_path)
    files = []
    for number in range(5):
        rows = kv(*((number * 10 + each, "x") for each in range(10)))
        files += staged(location, f"f{number}", rows, row_group_size=3)
    table = Table(location, schema(k="long", v="string"), ())
    gone, written = rewrite(table, list(map(InputFile.from_file, files)), ["k"], _drop(0, 10, 20, 30, 49), "out")
    assert len(gone) == 5
    assert len(written) == 1
    assert len(_read(location, written)) == 45


def test_older_files_take_the_tables_form_of_today(tmp_path):
    location = table_at(tmp_path)
    columns = schema(
        k="long", s={"type": "struct", "fields": schema(x="long", y="string")["fields"]}, at="timestamp", new="date"
    )
    rows = pa.table(
        {
            "s": [{"x": 1}, None, {"x": 3}],
            "k": pa.array([1, 2, 3], pa.int64()),
            "at": pa.array([1577836800 * 10**9] * 3, pa.timestamp("ns")),
        }
    )
    target = location.local("old")
    target.mkdir(parents=True)
    pq.write_table(rows, target / "f.parquet", use_deprecated_int96_timestamps=True)
    source = InputFile("old/f.parquet", 1, {})
    _, written = rewrite(Table(location, columns, ()), [source], ["k"], _drop(3), "out")
    found = pq.read_table(location.full(written[0].path))
    assert found.schema.field("at").type == pa.timestamp("us", "UTC")
    assert found.to_pylist() == [
        {"k": 1, "s": {"x": 1, "y": None}, "at": datetime(2020, 1, 1, tzinfo=UTC), "new": None},
        {"k": 2, "s": None, "at": datetime(2020, 1, 1, tzinfo=UTC), "new": None},
    ]


def test_partitions_stay_apart_and_can_be_keys(tmp_path):
    location = table_at(tmp_path)
    columns = schema(k="long", v="string", p="date")
    first = staged(location, "a/p=2020-01-01", kv((1, "a"), (2, "b")), columns, ("p",))
    second = staged(location, "b/p=__HIVE_DEFAULT_PARTITION__", kv((1, "c"), (2, "d")), columns, ("p",))
    sources = list(map(InputFile.from_file, [*first, *second]))
    table = Table(location, columns, ("p",))

    def lost(rows: pa.Table, source: InputFile, start: int) -> Any:
        assert rows.column_names == ["p", "k"]
        return pc.and_(pc.equal(rows["k"], 1), pc.fill_null(pc.is_null(rows["p"]), False))

    gone, written = rewrite(table, sources, ["p", "k"], lost, "out")
    assert [source.path for source in gone] == [second[0].path]
    assert written[0].partition == {"p": None}
    assert _read(location, written) == [(2, "d")]
    assert key_rows(table, sources[0], ["p"])["p"].to_pylist() == [date(2020, 1, 1)] * 2


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("timestamp", "1969-12-31T23:59:59.999999Z", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("timestamp", "2020-01-01 00:00:00", datetime(2020, 1, 1, tzinfo=UTC)),
        (
            "timestamp_ntz",
            "2020-01-01 00:00:00.5",
            datetime(2020, 1, 1, 0, 0, 0, 500000, tzinfo=UTC).replace(tzinfo=None),
        ),
        ("decimal(9,3)", "-0.001", Decimal("-0.001")),
        ("boolean", "true", True),
        ("byte", "-3", -3),
        ("string", "a b/c", "a b/c"),
        ("string", None, None),
    ],
)
def test_partition_values_are_typed(tmp_path, kind, text, value):
    location = table_at(tmp_path)
    files = staged(location, "a", kv((1, "a")))
    table = Table(location, schema(k="long", v="string", p=kind), ("p",))
    rows = key_rows(table, InputFile(files[0].path, 1, {"p": text}), ["p", "k"])
    assert rows["p"].to_pylist() == [value]


def test_columns_with_dots_in_their_names(tmp_path):
    location = table_at(tmp_path)
    rows = pa.table({"a.b": [1, 2], "a": [{"b": 5}, {"b": 6}]})
    columns = schema(**{"a.b": "long", "a": {"type": "struct", "fields": schema(b="long")["fields"]}})
    files = staged(location, "f", rows, columns)
    table = Table(location, columns, ())
    assert key_rows(table, InputFile.from_file(files[0]), ["a.b"])["a.b"].to_pylist() == [1, 2]
    _, written = rewrite(
        table, [InputFile.from_file(files[0])], ["a.b"], lambda rows, *_: pc.equal(rows["a.b"], 1), "out"
    )
    assert _read(location, written) == [(2, {"b": 6})]


def test_a_file_that_is_gone_is_corrupt(tmp_path):
    location = table_at(tmp_path)
    table = Table(location, schema(k="long", v="string"), ())
    with pytest.raises(Corrupt, match="gone\\.parquet"):
        rewrite(table, [InputFile("gone.parquet", 1, {})], ["k"], _drop(1), "out")


def test_a_file_that_is_torn_is_corrupt(tmp_path):
    location = table_at(tmp_path)
    files = staged(location, "a", kv((1, "a")))
    path = location.local(files[0].path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Corrupt):
        rewrite(
            Table(location, schema(k="long", v="string"), ()), [InputFile.from_file(files[0])], ["k"], _drop(1), "out"
        )


def test_what_files_lose_is_handed_over_and_each_becomes_a_new_one(tmp_path):
    """More files than there are threads; one loses nothing, one everything, one has several parts."""
    location = table_at(tmp_path)
    table = Table(location, schema(k="long", v="string"), ())
    files = []
    for number in range(2 * THREADS + 3):
        rows = kv(*((10 * number + each, f"v{each}") for each in range(6)))
        files += staged(location, f"f{number:02}", rows, row_group_size=4)
    parts = [part for file in files for part in parts_of(table, InputFile.from_file(file))]
    bad = {0, 1, 2, 3, 4, 5, 20, 25, *range(31, 10 * len(files), 10)}
    masks = {}
    for part in parts:
        first = int(part.source.path[1:3]) * 10 + part.start
        masks[part] = pa.array([first + each in bad for each in range(part.rows)])
    answers = list(divide(table, masks, "out", lambda part, rows: (part, rows["k"].to_pylist())))
    assert {key for _, keys in answers for key in keys} == {key for key in bad if key % 10 < 6}
    assert [part for part, _ in answers] == [part for part in parts if part.source.path != files[1].path]
    assert [source.path for source in touched(masks)] == [file.path for file in files if file is not files[1]]
    left = [key for path, _ in location.walk("out") for key in pq.read_table(location.full(path))["k"].to_pylist()]
    every = {10 * number + each for number in range(len(files)) for each in range(6)}
    assert sorted(left) == sorted(every - bad - {10 + each for each in range(6)})
    assert len(location.walk("out")) == len(files) - 2


def test_texts_of_few_values_stay_numbers_on_the_way_and_are_texts_again(tmp_path, monkeypatch):
    kinds = []

    def writing(*args: Any) -> bool:
        kinds.append(args[2].field("v").type)
        return write_parquet(*args)

    monkeypatch.setattr("tidegate.delta.rewrite.write_parquet", writing)
    location = table_at(tmp_path)
    values = ["a", None, "b", "a"] * 50
    rows = kv(*enumerate(values))
    files = staged(location, "a", rows, row_group_size=70, version="1.0", use_dictionary=["v"])
    with pq.ParquetFile(location.full(files[0].path)) as file:
        encodings = set(file.metadata.row_group(0).column(1).encodings)
    assert ("PLAIN_DICTIONARY" in encodings, "PLAIN" in encodings) == (True, False), "as Spark writes it"
    table = Table(location, schema(k="long", v="string"), ())
    _, written = rewrite(table, list(map(InputFile.from_file, files)), ["k"], _drop(0, 199), "out")
    assert kinds == [pa.dictionary(pa.int32(), pa.string())]
    assert _read(location, written) == sorted(list(enumerate(values))[1:-1], key=repr)
    with pq.ParquetFile(location.full(written[0].path)) as file:
        assert file.schema_arrow.field("v").type == pa.string()
        assert "RLE_DICTIONARY" in file.metadata.row_group(0).column(1).encodings


def _parts(name: str, sizes: list[int], **partition: str) -> list[RowGroup]:
    source = InputFile(name, sum(sizes), dict(partition))
    return [RowGroup(source, place, 0, 1, size << 20) for place, size in enumerate(sizes)]


def test_a_group_is_of_whole_files_of_one_partition():
    files = [
        _parts("a", [5], p="x"),
        _parts("b", [6], p="y"),
        _parts("c", [6], p="x"),
        _parts("d", [9, 9], p="x"),
        _parts("e", [40, 40, 40, 40], p="y"),
        _parts("f", [1], p="y"),
    ]
    groups = grouped(files, 1000)
    names = sorted(sorted({part.source.path for bundle in group for part in bundle}) for group in groups)
    assert names == [["a", "c", "d"], ["b", "e"], ["f"]], "small ones together, up to 16 MB and the last file"
    assert sum(len(bundle) for group in groups for bundle in group) == sum(map(len, files)), "each part once"
    large = next(group for group in groups if group[0][0].source.path == "b")
    assert len(large) > 2, "a large file has many writers"
    assert all(group and all(group) for group in groups), "no new file without rows"


def test_no_files_are_no_groups():
    assert grouped([], 4) == []
