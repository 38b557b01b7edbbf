"""Times in rows that are staged before they are judged."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.prestaged import PrestagedRows
from tidegate.delta import Location
from tidegate.delta.rewrite import InputFile, Table, parts_of
from tidegate.records.records import Json

LAST_MICROSECOND = 253_402_300_799_999_999
NESTED = {"type": "struct", "fields": [{"name": "at", "type": "timestamp", "nullable": True, "metadata": {}}]}
TYPES: dict[str, Any] = {
    "At": "timestamp",
    "local.time": "timestamp_ntz",
    "day": "date",
    "text": "string",
    "in": NESTED,
}
SCHEMA: Json = {
    "type": "struct",
    "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in TYPES.items()],
}
COLUMNS = {
    "At": pa.array([datetime(1969, 12, 31, 23, 59, 59, 7, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    "local.time": pa.array([LAST_MICROSECOND, -62_135_596_800_000_000]).cast(pa.timestamp("us")),
    "day": pa.array([date(2026, 1, 2), date(1, 1, 1)], pa.date32()),
    "text": pa.array(["2026-01-01", None]),
    "in": pa.array([{"at": datetime(2026, 1, 1, tzinfo=UTC)}, None], pa.struct({"at": pa.timestamp("us", "UTC")})),
}


@pytest.fixture
def rows(tmp_path: Path) -> PrestagedRows:
    """In two files, a row each."""
    location = Location(str(tmp_path), {})
    files = []
    for number in range(2):
        name = f"{number}.parquet"
        pq.write_table(pa.table({key: values.slice(number, 1) for key, values in COLUMNS.items()}), tmp_path / name)
        files.append(InputFile(name, (tmp_path / name).stat().st_size, {}))
    parts = tuple(part for file in files for part in parts_of(Table(location, SCHEMA, ()), file))
    return PrestagedRows(cast(Any, None), location, "", SCHEMA, (), tuple(files), parts, draft=False)


def test_the_highest_time_of_all_files_is_found_in_microseconds(rows: PrestagedRows) -> None:
    assert rows.highest("at") == -1_000_000 + 7
    assert rows.highest("local.time") == LAST_MICROSECOND
    assert rows.highest("DAY") == 20_455 * 86_400_000_000


@pytest.mark.parametrize(
    ("column", "has"), [("AT", True), ("day", True), ("text", False), ("in", False), ("no", False)]
)
def test_only_columns_of_a_time_have_one(column: str, has: bool, rows: PrestagedRows) -> None:
    assert rows.has_time(column) == has
