"""By which columns a proposal compares the rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidegate.backfill.compare import Sides
from tidegate.delta import Location, open_table
from tidegate.proposal.tables import identify_rows

OLD = [(1, "AT", 10), (2, "AT", 20), (3, None, 30)]


@pytest.mark.parametrize(
    ("keys", "changed", "is_key"),
    [
        (["id"], [(1, "AT", 11), (2, "AT", 21), (3, None, 31)], True),
        (["country"], [(1, "AT", 11), (2, "AT", 21), (3, None, 31)], False),
        (["country"], [(1, "AT", 11), (2, "AT", 20), (3, None, 31)], True),
        (["country"], [(1, "AT", 11), (1, "AT", 11), (2, "AT", 20), (3, None, 30)], False),
        (["id", "country"], [(1, "AT", 11), (2, "AT", 21), (3, None, 31)], True),
        (["id", "elsewhere"], [(1, "AT", 11), (2, "AT", 21), (3, None, 31)], False),
        ([], OLD, False),
    ],
    ids=[
        "one row of each key",
        "two differing rows of one key",
        "the other row of that key is the same",
        "a row twice",
        "two columns",
        "a column that one side lacks",
        "no keys",
    ],
)
def test_keys_count_only_where_they_name_one_differing_row(
    tmp_path: Path, keys: list[str], changed: list[Any], is_key: bool
) -> None:
    """Where they name two, pairs of rows would be counted several times: then whole rows are compared."""
    snapshots = []
    for name, rows in (("now", OLD), ("after", changed)):
        columns = dict(zip(("id", "country", "amount"), map(list, zip(*rows, strict=True)), strict=True))
        write_deltalake(str(tmp_path / name), pa.table(columns))
        snapshot = open_table(Location(str(tmp_path / name)))
        assert snapshot is not None
        snapshots.append(snapshot)
    sides = Sides([snapshots[0]], [snapshots[1]], ["id", "country", "amount"])
    assert identify_rows(keys, sides) is is_key
