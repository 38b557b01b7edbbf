"""What hooks get back after a swap: positions stand at the pipeline's head, so that is where hooks continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulation.toy_backfill import Endless, backfilled
from tidegate.errors import Invalid
from tidegate.pipeline.hooks import Callbacks, make_hook
from tidegate.records.records import Json


class Cursor:
    """A hook that counts checkpoints, and writes down what it gets back."""

    def __init__(self, after_swap: str = "last") -> None:
        self.at = 0
        self.events: list[tuple[str, Any]] = []
        self.after_swap = after_swap

    @property
    def declared(self) -> dict[str, Any]:
        return {
            "on_trigger": self.trigger,
            "on_restore": self.restore,
            "on_reset": self.reset,
            "after_swap": self.after_swap,
        }

    def trigger(self, triggering: Any) -> Json:
        self.at += 1
        return {"cursor": self.at}

    def restore(self, state: Json) -> None:
        self.events.append(("restored", state["cursor"]))
        self.at = state["cursor"]

    def reset(self) -> None:
        self.events.append(("reset", None))
        self.at = 0


@pytest.fixture
def endless(tmp_path: Path) -> Endless:
    return Endless(tmp_path)


def run(world: Endless, count: int) -> None:
    for _ in range(count):
        world.checkpoint(f"run {world.ledger.view().last_id}")


@pytest.mark.parametrize("origin", [1, 0], ids=["from a checkpoint", "from the beginning"])
def test_a_hook_continues_from_the_checkpoint_that_the_swap_follows(endless: Endless, origin: int) -> None:
    cursor = Cursor()
    endless.hooks = {"cursor": cursor.declared}
    run(endless, 4)
    swapped = backfilled(endless, origin)
    run(endless, 1)
    assert cursor.events == [("restored", 4)]
    assert endless.ledger.plan(swapped.id + 1).hooks == {"cursor": {"cursor": 5}}  # type: ignore[union-attr]


def test_a_hook_may_choose_to_begin_again_where_the_backfill_began(endless: Endless) -> None:
    again = Cursor("origin")
    endless.hooks = {"again": again.declared}
    run(endless, 4)
    backfilled(endless, 1)
    run(endless, 1)
    assert again.events == [("restored", 1)]


def test_such_a_hook_is_reset_after_a_backfill_from_the_beginning(endless: Endless) -> None:
    again = Cursor("origin")
    endless.hooks = {"again": again.declared}
    run(endless, 4)
    backfilled(endless, 0)
    run(endless, 1)
    assert again.events == [("reset", None)]


def test_a_hook_that_is_new_since_the_last_checkpoint_is_reset(endless: Endless) -> None:
    run(endless, 2)
    cursor = Cursor()
    endless.hooks = {"cursor": cursor.declared}
    backfilled(endless, 1)
    run(endless, 1)
    assert cursor.events == [("reset", None)]


def test_a_rollback_that_takes_the_swap_back_gives_the_state_of_its_target(endless: Endless) -> None:
    cursor = Cursor()
    endless.hooks = {"cursor": cursor.declared}
    run(endless, 4)
    backfilled(endless, 1)
    run(endless, 1)
    endless.coordinator().roll_back(4, run="back", by="ann")
    run(endless, 1)
    assert cursor.events == [("restored", 4), ("restored", 4)]


def test_an_unknown_choice_is_refused() -> None:
    callbacks: Callbacks = {"on_restore": print}
    with pytest.raises(Invalid, match="hook 'cursor' has after_swap 'head'"):
        make_hook("cursor", "1 s", callbacks, after_swap="head")  # type: ignore[arg-type]
