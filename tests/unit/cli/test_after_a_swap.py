"""What commands show of a pipeline into which a backfill was swapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.simulation.toy_backfill import Endless, backfilled


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
