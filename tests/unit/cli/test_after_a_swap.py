"""What commands show of a pipeline into which a backfill was swapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.shop import CODE, Shop
from tests.simulation.toy_backfill import Endless, backfilled, never
from tidegate.backfill import begin, swap


@pytest.fixture
def swapped(folder: Path) -> Endless:
    """Three checkpoints, of which a backfill has replaced the last two, by entry 4."""
    world = Endless(folder / "ledger")
    world.name = "orders"
    for number in range(3):
        world.checkpoint(f"run {number}")
    backfilled(world, 1)
    return world


@pytest.mark.usefixtures("swapped")
def test_lists_call_a_swap_a_swap(tidegate: Any) -> None:
    states = [
        (each["id"], each["state"], each["kind"]) for each in tidegate("list", "orders", "--json").json["checkpoints"]
    ]
    assert states == [
        (4, "swap", "swap"),
        (3, "replaced", "manual"),
        (2, "replaced", "manual"),
        (1, "completed", "manual"),
    ]
    assert tidegate("list", "orders", "--json").json["checkpoints"][1]["replaced_by"] == "fix"
    for listed in (tidegate("list", "orders").out, tidegate("list", "orders", "--all").out):
        assert listed.count("replaced by backfill fix") == 2
        assert "rolled back" not in listed
        assert "restart" not in listed
    found = tidegate("list", "orders", "--kind", "swap", "--json").json["checkpoints"]
    assert [(each["id"], each["backfill"]) for each in found] == [(4, "fix")]
    found = tidegate("list", "orders", "--state", "replaced", "--json").json["checkpoints"]
    assert [each["id"] for each in found] == [3, 2]


@pytest.mark.usefixtures("swapped")
def test_a_swap_names_its_backfill_and_the_way_back(tidegate: Any) -> None:
    told = tidegate("show", "orders", "4").out
    assert "Checkpoint 4 of orders: swap" in told
    assert "backfill fix from checkpoint 1, by ann" in told
    assert "(swap)" in told
    story = tidegate("explain", "orders", "4").out
    assert "ann swapped in backfill fix, which began at checkpoint 1" in story
    assert "Checkpoints completed after checkpoint 1 no longer count; the backfill has read its input again." in story
    assert "To undo it: tidegate rollback MODULE:PIPELINE --to before-fix" in story
    replaced = tidegate("explain", "orders", "3").out
    assert "Checkpoint 3 of orders: replaced by backfill fix" in replaced
    assert "entry 4 swapped them in" in replaced


def test_a_swap_of_everything_began_at_the_beginning(folder: Path, tidegate: Any) -> None:
    world = Endless(folder / "ledger")
    world.name = "orders"
    world.checkpoint("run")
    backfilled(world, 0)
    assert "backfill fix from the beginning, by ann" in tidegate("show", "orders", "2").out
    assert "which began at the beginning" in tidegate("explain", "orders", "2").out


def test_a_rollback_tells_which_swap_it_takes_back(folder: Path, tidegate: Any) -> None:
    shop = Shop(folder)
    for _ in range(2):
        shop.checkpoint()
    line = begin(shop.coordinator, "fix", 2, by="ann")
    swap(line, by="ann", choices={}, wait=never)
    shop.checkpoint()
    told = tidegate("rollback", CODE, "--to", "before-fix", "--dry-run")
    assert "undone             backfill fix, which entry 3 swapped in" in told.out
    document = tidegate("rollback", CODE, "--to", "before-fix", "--dry-run", "--json").json
    assert (document["undone"], document["undone_swaps"]) == ([4], [{"id": 3, "backfill": "fix"}])
    assert tidegate("rollback", CODE, "--to", "before-fix", "--yes").code == 0


def test_after_a_swap_of_everything_each_command_that_shows_the_pipeline_works(folder: Path, tidegate: Any) -> None:
    world = Endless(folder / "ledger")
    world.name = "orders"
    for number in range(3):
        world.checkpoint(f"run {number}")
    backfilled(world, 0)
    commands = (
        ["list", "orders"],
        ["list", "orders", "--sort", "seconds"],
        ["list", "orders", "--state", "completed"],
        ["show", "orders", "4"],
        ["explain", "orders", "4"],
        ["explain", "orders"],
        ["summary", "orders"],
        ["metrics", "orders"],
        ["watch", "orders", "--once"],
        ["profile", "orders"],
        ["savepoint", "list", "orders"],
    )
    assert {" ".join(each): tidegate(*each).code for each in commands} == {" ".join(each): 0 for each in commands}
