"""Some rows of a table as of a checkpoint, on the pages: exactly as it stood, and never much of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.delta import Location, open_table
from tidegate.errors import Invalid


@pytest.fixture
def table(app: Any, tmp_path: Path) -> str:
    """Two versions, in partitions."""
    import pyarrow as pa
    from deltalake import write_deltalake

    path = str(tmp_path / "table")
    for version in range(2):
        rows = {"day": ["a", "b", "b"], "id": [n + 10 * version for n in range(3)], "text": ["x" * 999, None, "y"]}
        write_deltalake(path, pa.table(rows), partition_by=["day"], mode="append")
    return path


def test_rows_are_those_of_the_version_with_the_columns_of_their_partition(table: str, monkeypatch: pytest.MonkeyPatch):
    from tidegate.ui import table_samples
    from tidegate.ui.table_samples import _first

    monkeypatch.setattr(table_samples, "_LONGEST_S", 600.0)  # a slow machine would show what it has by then
    then = open_table(Location(table), 0)
    assert then is not None
    found = sorted(_first(then, "a", 10), key=lambda row: row["id"])
    assert [(row["id"], row["day"]) for row in found] == [(0, "a"), (1, "b"), (2, "b")]
    assert len(_first(then, "a", 2)) == 2


def test_a_table_of_too_many_files_is_not_looked_at(table: str, monkeypatch: pytest.MonkeyPatch):
    from tidegate.ui import table_samples

    now = open_table(Location(table), 1)
    assert now is not None
    monkeypatch.setattr(table_samples, "_MOST_FILES", 3)
    with pytest.raises(Invalid, match="4 files") as refused:
        table_samples._first(now, "a", 10)
    assert refused.value.reason == "TOO_MANY_FILES"


def test_what_is_not_published_or_has_no_versions_says_so(client: Any, tokens: dict[str, str], world: Any):
    id = world.checkpoint("airflow:orders:rows", rows=2)
    client.cookies.clear()
    client.cookies.set("_token", tokens["viewer"])
    at = f"/tidegate/api/v1/dags/orders/checkpoints/{id}/tables"
    assert client.get(f"{at}/nobody").status_code == 404
    assert client.get("/tidegate/api/v1/dags/orders/checkpoints/99999/tables/a").status_code in (404, 409)
