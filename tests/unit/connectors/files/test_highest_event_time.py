"""The highest time that Parquet files tell of themselves: exactly what is in their rows, or nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.files.folder import open_folder
from tidegate.connectors.files.highest import highest_micros
from tidegate.records.place import Place

MOMENT = datetime(2026, 3, 29, 1, 59, 59, 999999, tzinfo=UTC)
MICROS = 1774749599999999
OTHERS = [MOMENT - timedelta(hours=each) for each in (5, 1, 3)]
ZONED = pa.timestamp("us", "UTC")


def told(folder: Path, column: str, *files: pa.Table, **options: Any) -> int | None:
    names = [f"{number}.parquet" for number in range(len(files))]
    for name, rows in zip(names, files, strict=True):
        pq.write_table(rows, folder / name, row_group_size=2, **options)
    return highest_micros(open_folder(Place(str(folder)), str(folder)), names, column)


def times(values: list[datetime | None], kind: pa.DataType = ZONED) -> pa.Table:
    return pa.table({"k": [{"at": 1}] * len(values), "At": pa.array(values, kind)})


def test_the_highest_of_all_row_groups_of_all_files_is_told(tmp_path: Path) -> None:
    assert told(tmp_path, "at", times([*OTHERS, None]), times([None, None, None, MOMENT, OTHERS[0]])) == MICROS
    seconds = MOMENT.replace(microsecond=0)
    assert told(tmp_path, "at", times([seconds], pa.timestamp("ms", "UTC"))) == MICROS // 1_000_000 * 1_000_000
    before = datetime(1969, 12, 31, 23, 59, tzinfo=UTC)
    assert told(tmp_path, "at", times([before])) == -60_000_000


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (times([MOMENT, None]), {"write_statistics": False}),
        (times([MOMENT]), {"use_deprecated_int96_timestamps": True}),
        (times([MOMENT.replace(tzinfo=None)], pa.timestamp("us")), {}),
        (times([MOMENT], pa.timestamp("ns", "UTC")), {"version": "2.6"}),
        (pa.table({"at": ["2026-03-29"]}), {}),
        (pa.table({"at": [MICROS]}), {}),
        (pa.table({"else": [1]}), {}),
        (times([None, None]), {}),
        (times([]), {}),
    ],
    ids=["no statistics", "int96", "no zone", "nanoseconds", "text", "number", "no such column", "nulls", "no rows"],
)
def test_what_is_not_certain_is_not_told(tmp_path: Path, rows: pa.Table, options: dict[str, Any]) -> None:
    assert told(tmp_path, "at", rows, **options) is None
