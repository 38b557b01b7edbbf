"""Which rows differ between two versions of a table: as two lists of rows, compared one by one, would say."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidegate.delta import Location, Snapshot, open_table
from tidegate.delta import row_changes as module
from tidegate.delta.row_changes import RowPair, row_changes
from tidegate.errors import Invalid

Row = dict[str, Any]


def version(folder: Path, number: int) -> Snapshot:
    found = open_table(Location(str(folder)), number)
    assert found is not None
    return found


def write(folder: Path, rows: list[Row], **options: Any) -> None:
    write_deltalake(str(folder), pa.Table.from_pylist(rows), **options)


def told(changes: list[RowPair]) -> list[tuple[Row | None, Row | None]]:
    return [(each.before, each.after) for each in changes]


def test_a_row_that_is_rewritten_with_others_is_told_alone(tmp_path: Path):
    rows = [{"day": "a", "id": n, "note": None if n % 2 else "x", "tags": ["p", "q"]} for n in range(6)]
    write(tmp_path, rows, partition_by=["day"])
    later = [row | {"note": "new"} if row["id"] == 2 else row for row in rows if row["id"] != 4]
    write(tmp_path, [*later, rows[0] | {"day": "b", "id": 9}], mode="overwrite")
    found = row_changes(version(tmp_path, 0), version(tmp_path, 1), ["ID"], 50)
    assert (found.added, found.removed, found.changed, found.keys) == (1, 1, 1, ["id"])
    said = {"day": "a", "note": "x", "tags": "['p', 'q']"}
    assert told(found.rows) == [
        (said | {"id": 2}, said | {"id": 2, "note": "new"}),
        (said | {"id": 4}, None),
        (None, said | {"id": 9, "day": "b"}),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_it_says_what_a_comparison_row_by_row_says(tmp_path: Path, seed: int):
    """Versions of many files, some of which stay; keys with nulls; with a key and without one."""
    dice = random.Random(seed)
    known: list[tuple[int, dict[Any, Any]]] = []
    table: dict[Any, Any] = {key: dice.choice([None, 1, 2]) for key in [None, *range(20)]}
    for _ in range(5):
        written = known[-1][1] if known else {}  # only parts that differ are written anew, as an upsert does
        for part in (part for part in range(4) if of_part(table, part) != of_part(written, part)):
            made = pa.Table.from_pylist(of_part(table, part), schema=KINDS)
            where = {"mode": "overwrite", "predicate": f"part = {part}"} if known else {"mode": "append"}
            write_deltalake(str(tmp_path), made, partition_by=["part"], **where)
        known.append((version_now(tmp_path), table))
        table = dict(table)
        for key in dice.sample([None, *range(40)], 8):
            if dice.random() < 0.4:
                table.pop(key, None)
            else:
                table[key] = dice.choice([None, 1, 2])
    for (first, before), (last, after) in zip(known, known[2:], strict=False):
        found = row_changes(version(tmp_path, first), version(tmp_path, last), ["id"], 1000)
        changed = [key for key in before.keys() & after.keys() if before[key] != after[key]]
        assert (found.added, found.removed, found.changed) == (
            len(after.keys() - before.keys()),
            len(before.keys() - after.keys()),
            len(changed),
        )
        assert {key_of(each): (value_of(each.before), value_of(each.after)) for each in found.rows} == {
            key: (before.get(key, "none"), after.get(key, "none"))
            for key in before.keys() | after.keys()
            if before.get(key, "none") != after.get(key, "none")
        }
        without = row_changes(version(tmp_path, first), version(tmp_path, last), [], 1000)
        rows = [Counter(each.items()) for each in (before, after)]
        assert (without.added, without.removed) == ((rows[1] - rows[0]).total(), (rows[0] - rows[1]).total())


KINDS = pa.schema({"id": pa.int64(), "part": pa.int64(), "value": pa.int64()})


def of_part(table: dict[Any, Any], part: int) -> list[Row]:
    return [{"id": key, "part": part, "value": value} for key, value in table.items() if (key or 0) % 4 == part]


def version_now(folder: Path) -> int:
    found = open_table(Location(str(folder)))
    assert found is not None
    return found.version


def key_of(change: RowPair) -> Any:
    row = change.before if change.before is not None else change.after
    assert row is not None
    return row["id"]


def value_of(row: Row | None) -> Any:
    return "none" if row is None else row["value"]


def test_rows_that_are_there_more_than_once_are_counted(tmp_path: Path):
    write(tmp_path, [{"id": 1}, {"id": 1}, {"id": 2}])
    write(tmp_path, [{"id": 1}, {"id": 3}, {"id": 3}], mode="overwrite")
    found = row_changes(version(tmp_path, 0), version(tmp_path, 1), [], 3)
    assert (found.added, found.removed, found.changed) == (2, 2, 0)
    assert sorted(map(str, told(found.rows))) == sorted(
        map(str, [({"id": 1}, None), ({"id": 2}, None), (None, {"id": 3})])
    )


def test_a_column_that_has_come_since_is_null_before(tmp_path: Path):
    write(tmp_path, [{"id": 1}])
    write(tmp_path, [{"id": 1, "more": None}, {"id": 2, "more": "x"}], mode="overwrite", schema_mode="overwrite")
    found = row_changes(version(tmp_path, 0), version(tmp_path, 1), ["id"], 10)
    assert told(found.rows) == [(None, {"id": 2, "more": "x"})]


def test_files_that_are_in_both_versions_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, [{"id": n} for n in range(1000)])
    write(tmp_path, [{"id": -1}], mode="append")
    monkeypatch.setattr(module, "MAX_ROWS", 1)
    found = row_changes(version(tmp_path, 0), version(tmp_path, 1), [], 10)
    assert told(found.rows) == [(None, {"id": -1})]


@pytest.mark.parametrize(("bound", "value"), [("MAX_ROWS", 5), ("MAX_BYTES", 10), ("_MAX_MEMORY_BYTES", 10)])
def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int):
    write(tmp_path, [{"id": n} for n in range(3)])
    write(tmp_path, [{"id": n} for n in range(3)], mode="overwrite")
    monkeypatch.setattr(module, bound, value)
    with pytest.raises(Invalid, match="too much to be compared") as refused:
        row_changes(version(tmp_path, 0), version(tmp_path, 1), ["id"], 10)
    assert refused.value.reason == "TOO_MUCH_CHANGED"
