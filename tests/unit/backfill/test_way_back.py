"""The way back from a swap: its base always gets a name that is free, and the answer tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.toy_backfill import Endless, backfilled, never, replayed
from tidegate.backfill import begin, discard, swap
from tidegate.errors import Unavailable
from tidegate.lifecycle import savepoint


@pytest.fixture
def endless(tmp_path: Path) -> Endless:
    world = Endless(tmp_path)
    for number in range(3):
        world.checkpoint(f"run {number}")
    return world


def names(world: Endless) -> dict[str, int]:
    return {found.name: found.entry for found in savepoint.savepoints(world.ledger)}


def test_a_name_that_another_checkpoint_has_is_left_to_it(endless: Endless) -> None:
    savepoint.create(endless.ledger, "before-fix", 2, "ann")
    swapped = backfilled(endless, 1)
    assert swapped.savepoint == "before-fix-2"
    assert names(endless) == {"before-fix": 2, "before-fix-2": 3}


def test_a_swap_that_is_repeated_answers_with_the_same_name(endless: Endless) -> None:
    savepoint.create(endless.ledger, "before-fix", 2, "ann")
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    replayed(line)
    swapped = [swap(line, by="ann", choices={}, wait=never).savepoint for _ in range(2)]
    assert swapped == ["before-fix-2"] * 2


def test_a_backfill_with_the_longest_name_has_a_way_back(endless: Endless) -> None:
    name = "f" * 63
    swapped = backfilled(endless, 1, name)
    assert swapped.savepoint == f"before-{name}"[:63]
    assert names(endless) == {swapped.savepoint: 3}


def test_a_name_that_could_not_be_given_is_not_answered_and_is_given_by_the_discard(
    endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    replayed(line)
    with monkeypatch.context() as storage:
        storage.setattr(savepoint, "create", _no_answer)
        assert swap(line, by="ann", choices={}, wait=never).savepoint is None
    assert names(endless) == {}
    discard(line, "bob")
    assert names(endless) == {"before-fix": 3}


def _no_answer(*args: object) -> None:
    raise Unavailable("the storage does not answer")


def test_the_way_back_leads_to_the_rows_before(endless: Endless) -> None:
    before = endless.rows()
    swapped = backfilled(endless, 0)
    assert swapped.savepoint is not None
    endless.checkpoint("after")
    endless.coordinator().roll_back(names(endless)[swapped.savepoint], run="back", by="ann")
    assert endless.rows() == before
