"""A list of one key, read from the state's files: in order, the newest of each place, and no more than is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.errors import Invalid
from tidegate.operators.process import stored_list
from tidegate.operators.process.stored_list import PLACE, EntryFiles, StoredList
from tidegate.state.arrow import sorted_files
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout, Writer
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, TOUCHED

COLUMNS = [(GROUP, pa.int32()), (CHECKPOINT, pa.int64()), (DELETED, pa.bool_()), (TOUCHED, pa.int64())]
LAYOUT = StateLayout(
    ("k", PLACE), pa.schema([*COLUMNS, ("k", pa.string()), (PLACE, pa.int64()), ("page", pa.string())])
)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Row groups of four rows; the columns of each that is read."""
    monkeypatch.setattr(sorted_files, "GROUP_ROWS", 4)
    seen: list[tuple[str, ...]] = []
    real = stored_list.read

    def read(file: Any, layout: StateLayout, names: Any, group: int) -> pa.Table:
        seen.append(tuple(names))
        return real(file, layout, names, group)

    monkeypatch.setattr(stored_list, "read", read)
    return seen


def written(folder: Path, checkpoint: int, *rows: tuple[str | None, int, str | None]) -> SortedFile:
    """A file of rows that one checkpoint has written. Without a page the row is deleted."""
    path = str(folder / f"{checkpoint}.parquet")
    writer = Writer(LAYOUT, path)
    table = [
        {
            GROUP: 0,
            CHECKPOINT: checkpoint,
            DELETED: page is None,
            TOUCHED: checkpoint,
            "k": k,
            PLACE: place,
            "page": page,
        }
        for k, place, page in sorted(rows, key=lambda row: (row[0] is None, row[0] or "", row[1]))
    ]
    writer.write(pa.Table.from_pylist(table, schema=LAYOUT.schema))
    writer.close()
    return SortedFile(path, (0, 0))


def pages(runs: list[SortedFile], key: str | None, limit: int | None = None) -> Iterator[Any]:
    files = EntryFiles(["k"], LAYOUT, runs, limit)
    return (entry["page"] for entry in files.entries(pa.table({"k": pa.array([key], pa.string())}), 0, ["page"]))


def test_entries_come_in_order_whatever_file_they_are_in_and_the_newest_of_a_place_counts(tmp_path: Path) -> None:
    runs = [
        written(tmp_path, 1, ("a", 0, "one"), ("a", 1, "two"), ("b", 0, "other"), (None, 0, "nobody's")),
        written(tmp_path, 2, ("a", 2, "three"), ("a", 0, None)),
        written(tmp_path, 3, ("a", 0, "anew"), ("a", 3, "four")),
    ]
    assert list(pages(runs, "a")) == ["anew", "two", "three", "four"]
    assert list(pages(runs[:2], "a")) == ["two", "three"]
    assert list(pages(runs, "a", limit=1)) == ["anew", "three", "four"], "what was written by then has expired"
    assert list(pages(runs, None)) == ["nobody's"]
    assert list(pages(runs, "c")) == []


def test_no_more_is_read_than_the_function_asks_for(tmp_path: Path, small_groups: list[tuple[str, ...]]) -> None:
    run = written(tmp_path, 1, *(("a", place, str(place)) for place in range(40)))
    entries = pages([run], "a")
    assert [next(entries) for _ in range(3)] == ["0", "1", "2"]
    assert len([names for names in small_groups if "page" in names]) == 1, "one row group of ten"
    assert len(list(entries)) == 37


def test_what_is_appended_is_told_and_nothing_else() -> None:
    asked = []

    def stored() -> Iterator[dict[str, Any]]:
        asked.append(1)
        yield {"page": "old"}

    visits = StoredList("visits", ["page"], stored, 0, 1)
    visits.append({"page": "new"})
    assert list(visits._appended()) == [(1, {"page": "new"})]
    assert (visits._removed(), visits._ends()) == (None, (0, 2))
    assert not asked, "an append reads nothing"
    assert [visit["page"] for visit in visits] == ["old", "new"]
    visits.clear()
    visits.append({"page": "next"})
    assert [visit["page"] for visit in visits] == ["next"]
    assert (visits._removed(), visits._ends(), list(visits._appended())) == ((0, 1), (1, 2), [(1, {"page": "next"})])
    visits.clear()
    assert not visits
    assert visits._ends() == (1, 1), "nothing is left"
    assert StoredList("visits", ["page"], stored, 0, 1)._ends() is None, "nothing has changed"


def test_an_entry_of_another_shape_is_told() -> None:
    visits = StoredList("visits", ["page", "at"], list, 0, 0)
    with pytest.raises(Invalid, match=r"state\.visits\.append got \['when'\]; entries have page, at"):
        visits.append({"when": 1})
    with pytest.raises(Invalid, match=r"state\.visits\.append got a str") as told:
        visits.append("page")  # type: ignore[arg-type]
    assert told.value.help == "pass a dict of page, at"
