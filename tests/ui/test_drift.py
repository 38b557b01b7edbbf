"""The API says what of the input did not fit, and how schemas have changed; names of keys only to who may read rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tidegate.history.table import remember
from tidegate.records.records import FoundColumn

CANARY = "ann@example.com"
API = "/tidegate/api/v1/dags/orders"


@pytest.fixture(scope="module")
def found(world: ToyWorld) -> tuple[int, int]:
    """A checkpoint that finds a column and a key that is data, and the next one."""
    first = world.drifting_checkpoint(
        "airflow:orders:finds",
        FoundColumn(path="loyal", kind="new", type="boolean", records=2, file=f"customer={CANARY}/1.json"),
        FoundColumn(path=CANARY, kind="new", type="bigint", records=1, file="2.json"),
    )
    return first, world.drifting_checkpoint("airflow:orders:has it")


def misfits(client: Any, id: int) -> list[tuple[str | None, str | None, int]]:
    drift = client.get(f"{API}/checkpoints/{id}").json()["details"]["sources"]["in"]["drift"]
    return [(misfit["path"], misfit["file"], misfit["records"]) for misfit in drift["misfits"]]


def test_whoever_may_read_rows_sees_the_names_of_keys(client: Any, be: Callable[[str], None], found: tuple[int, int]):
    be("Viewer")
    assert misfits(client, found[0]) == [("loyal", f"customer={CANARY}/1.json", 2), (CANARY, "2.json", 1)]


def test_others_see_names_of_columns_only(
    client: Any, be: Callable[[str], None], found: tuple[int, int], world: ToyWorld
):
    be("no XCom")
    for _ in ("from the records", "from the history"):
        assert misfits(client, found[0]) == [("loyal", None, 2), (None, None, 1)]
        for path in (f"checkpoints/{found[0]}", f"checkpoints/{found[1]}", "schemas", "overview", "graph"):
            assert CANARY not in client.get(f"{API}/{path}").text
        remember(world.ledger, {})


def test_the_schema_has_a_timeline(client: Any, be: Callable[[str], None], found: tuple[int, int]):
    be("Viewer")
    change = client.get(f"{API}/schemas").json()["sources"]["in"]["changes"][-1]
    assert (change["checkpoint"], change["schema"].rpartition(", ")[2]) == (found[1], "`loyal` boolean")
    new = {"name": "loyal", "before": None, "after": "boolean", "found_by": found[0]}
    assert new | {"file": f"customer={CANARY}/1.json"} in change["columns"]
