"""One row for each key, settled by an order or refused."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.delta import schema, staged, table_at
from tidegate.delta.duplicates import outdated_rows
from tidegate.delta.rewrite import InputFile, Table
from tidegate.errors import Invalid

COLUMNS = schema(k="long", o="long", v="string")


def _sources(tmp_path: Any, *files: list[tuple[Any, Any, Any]]) -> tuple[Table, list[InputFile], list[Any]]:
    location = table_at(tmp_path)
    sources = []
    for place, rows in enumerate(files):
        table = pa.table(
            {
                "k": pa.array([row[0] for row in rows], pa.int64()),
                "o": pa.array([row[1] for row in rows], pa.int64()),
                "v": pa.array([row[2] for row in rows], pa.string()),
            }
        )
        sources += map(InputFile.from_file, staged(location, f"f{place}", table, COLUMNS, row_group_size=2))
    return Table(location, COLUMNS, ()), sources, [False] * len(sources)


def _left(sources: list[InputFile], lost: dict[str, Any], files: Any) -> list[Any]:
    kept = []
    for source, rows in zip(sources, files, strict=True):
        mask = lost[source.path].to_pylist() if source.path in lost else [False] * len(rows)
        kept += [row for row, gone in zip(rows, mask, strict=True) if not gone]
    return kept


def test_no_duplicates_nothing_lost(tmp_path):
    table, sources, marks = _sources(tmp_path, [(1, 1, "a"), (None, 1, "a")], [(2, 1, "a")])
    assert outdated_rows(table, sources, ["k"], [], marks) == {}


def test_the_greatest_order_wins_across_files_and_null_is_least(tmp_path):
    files = [(1, 1, "old"), (2, None, "none"), (None, 3, "x")], [(1, 2, "new"), (2, -9, "some"), (None, 4, "y")]
    table, sources, marks = _sources(tmp_path, *files)
    lost = outdated_rows(table, sources, ["k"], ["o"], marks)
    assert _left(sources, lost, files) == [(1, 2, "new"), (2, -9, "some"), (None, 4, "y")]


def test_not_a_number_is_greatest_and_equals_itself(tmp_path):
    nan, columns = float("nan"), schema(k="long", o="double", v="string")
    location = table_at(tmp_path)
    rows = pa.table(
        {
            "k": pa.array([1, 1, 1, 2, 2], pa.int64()),
            "o": pa.array([1.0, nan, None, nan, nan], pa.float64()),
            "v": pa.array(["one", "nan", "none", "copy", "copy"], pa.string()),
        }
    )
    sources = list(map(InputFile.from_file, staged(location, "f", rows, columns)))
    lost = outdated_rows(Table(location, columns, ()), sources, ["k"], ["o"], [False])
    left = rows.filter(pa.compute.invert(lost[sources[0].path])).select(["k", "v"]).to_pylist()
    assert left == [{"k": 1, "v": "nan"}, {"k": 2, "v": "copy"}]
    contradicting = pa.table({"k": [1, 1], "o": [nan, nan], "v": ["a", "b"]})
    sources = list(map(InputFile.from_file, staged(location, "g", contradicting, columns)))
    with pytest.raises(Invalid, match="contradict"):
        outdated_rows(Table(location, columns, ()), sources, ["k"], ["o"], [False])


def test_copies_are_one_row(tmp_path):
    files = [(1, 1, "a"), (1, 1, "a"), (1, 0, "zzz")], [(1, 1, "a")]
    table, sources, marks = _sources(tmp_path, *files)
    lost = outdated_rows(table, sources, ["k"], ["o"], marks)
    assert _left(sources, lost, files) == [(1, 1, "a")]


@pytest.mark.parametrize("order_by", [[], ["o"]])
def test_contradictions_are_refused_with_samples(tmp_path, order_by):
    table, sources, marks = _sources(tmp_path, [(7, 1, "a"), (8, 1, "a")], [(7, 1, "b")])
    with pytest.raises(Invalid, match="1 rows contradict") as refused:
        outdated_rows(table, sources, ["k"], order_by, marks)
    assert "'k': 7" in refused.value.quoted
    assert "'k': 8" not in refused.value.quoted
    assert "'k'" not in str(refused.value), "records and logs have the text"


def test_outdated_rows_may_contradict_each_other(tmp_path):
    files = [(1, 1, "a"), (1, 1, "b")], [(1, 2, "c")]
    table, sources, marks = _sources(tmp_path, *files)
    lost = outdated_rows(table, sources, ["k"], ["o"], marks)
    assert _left(sources, lost, files) == [(1, 2, "c")]


def test_a_change_and_a_delete_are_no_copies(tmp_path):
    table, sources, _ = _sources(tmp_path, [(1, 1, "a")], [(1, 1, "a")])
    with pytest.raises(Invalid, match="contradict"):
        outdated_rows(table, sources, ["k"], ["o"], [False, True])


def test_against_plain_python(tmp_path):
    for seed in range(20):
        dice = random.Random(seed)
        files = [
            [(dice.choice([None, 1, 2, 3]), dice.randrange(10**6), f"{number}") for number in range(dice.randrange(6))]
            for _ in range(4)
        ]
        best: dict[Any, Any] = {}
        for row in (row for rows in files for row in rows):
            if row[0] not in best or row[1] > best[row[0]][1]:
                best[row[0]] = row
        table, sources, marks = _sources(tmp_path / str(seed), *[rows for rows in files if rows])
        lost = outdated_rows(table, sources, ["k"], ["o"], marks)
        left = _left(sources, lost, [rows for rows in files if rows])
        assert sorted(left, key=repr) == sorted(best.values(), key=repr)
