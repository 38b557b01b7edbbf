"""What is told of a swap, and of what it has replaced."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.simulation.toy_backfill import Endless, backfilled
from tidegate.backfill.discard import discard_named
from tidegate.history import table as history
from tidegate.history.query import CheckpointHistory, HistoryFilter, view_of
from tidegate.history.row import HistoryRow, row_of
from tidegate.history.table import journal_of, remember
from tidegate.protocol.view import Entry


@pytest.fixture
def shadowed(tmp_path: Path) -> Endless:
    world = Endless(tmp_path)
    for number in range(3):
        world.checkpoint(f"run {number}")
    return world


def past(world: Endless) -> CheckpointHistory:
    return CheckpointHistory(world.ledger, {})


def test_a_swap_of_everything_goes_back_to_the_beginning_which_is_a_value(shadowed: Endless) -> None:
    swapped = backfilled(shadowed, 0)
    shadowed.checkpoint("after")
    rows = past(shadowed).page(HistoryFilter(sort="id", descending=False)).rows
    assert [row.undone_by for row in rows] == [swapped.id, swapped.id, swapped.id, None, None]
    assert [row.back_to for row in rows] == [None, None, None, 0, None]


@pytest.mark.parametrize("written", [False, True], ids=["from the ledger", "from the history's table"])
def test_counts_and_figures_are_there_after_a_swap_of_everything(shadowed: Endless, written: bool) -> None:
    backfilled(shadowed, 0)
    discard_named(shadowed.coordinator(), "fix", "ann")
    shadowed.checkpoint("after")
    if written:
        remember(shadowed.ledger, {})
    counts = past(shadowed).counts()
    assert (counts["triggered"], counts["completed"], counts["swaps"], counts["replaced"]) == (5, 4, 1, 3)
    assert (counts["rollbacks"], counts["rolled_back"]) == (0, 0), "nobody has gone back"
    assert past(shadowed).summary()["rows_in"] is not None
    assert past(shadowed).newest("completed").id == 5  # type: ignore[union-attr]


def shown(world: Endless) -> list[tuple[str, str, str | None]]:
    """Kind, state and who has replaced it, oldest first; by the list, which each checkpoint alone confirms."""
    rows = past(world).page(HistoryFilter(sort="id", descending=False)).rows
    for row in rows:
        entry = world.ledger.entry(row.id)
        assert entry is not None
        alone = view_of(world.ledger, entry)
        assert (alone.kind, alone.state, alone.replaced_by) == (row.kind, row.state, row.replaced_by)
        assert (alone.undone_by, alone.backfill, alone.back_to) == (row.undone_by, row.backfill, row.back_to)
    return [(row.kind, row.state, row.replaced_by) for row in rows]


def test_a_swap_is_called_a_swap_and_what_it_replaces_is_not_rolled_back(shadowed: Endless) -> None:
    backfilled(shadowed, 1)
    shadowed.checkpoint("after")
    assert shown(shadowed) == [
        ("manual", "completed", None),
        ("manual", "replaced", "fix"),
        ("manual", "replaced", "fix"),
        ("swap", "swap", None),
        ("manual", "completed", None),
    ]
    assert [row.described_state for row in past(shadowed).page(HistoryFilter()).rows][2:4] == [
        "replaced by backfill fix",
        "replaced by backfill fix",
    ]


def test_what_was_rolled_back_before_the_swap_is_not_replaced_by_it(shadowed: Endless) -> None:
    shadowed.coordinator().roll_back(2, run="back", by="ann")
    shadowed.checkpoint("again")
    backfilled(shadowed, 1)
    assert [state for _, state, _ in shown(shadowed)] == [
        "completed", "replaced", "rolled back", "replaced", "replaced", "swap",
    ]  # fmt: skip


def test_a_swap_that_is_taken_back_is_rolled_back_and_the_rest_counts_again(shadowed: Endless) -> None:
    backfilled(shadowed, 1)
    shadowed.checkpoint("after")
    shadowed.coordinator().roll_back(3, run="back", by="ann")
    assert [state for _, state, _ in shown(shadowed)] == [
        "completed", "completed", "completed", "rolled back", "rolled back", "rollback",
    ]  # fmt: skip


def test_the_last_completed_checkpoint_is_the_one_whose_input_the_swap_has_brought_again(shadowed: Endless) -> None:
    backfilled(shadowed, 1)
    last = past(shadowed).last_completed()
    assert last is not None
    assert (last.id, last.state) == (3, "replaced")


def test_swaps_of_older_histories_are_read_as_swaps(shadowed: Endless, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were written as rollbacks, without their backfill, and with null for the beginning."""

    def without_target(entry: Entry, *others: object) -> HistoryRow:
        row = row_of(entry, *others)  # type: ignore[arg-type]
        if row.kind != "swap":
            return row
        return msgspec.structs.replace(row, back_to=None, kind="restart", outcome="rollback", backfill=None)

    swapped = backfilled(shadowed, 0)
    with monkeypatch.context() as older:
        older.setattr(history, "row_of", without_target)
        remember(shadowed.ledger, {})
    assert journal_of(shadowed.ledger, {}).read(["back_to"])["back_to"].to_pylist() == [None] * 4
    rows = past(shadowed).page(HistoryFilter(sort="id", descending=False)).rows
    assert [row.undone_by for row in rows] == [swapped.id, swapped.id, swapped.id, None]
    assert [row.back_to for row in rows] == [None, None, None, 0]
    assert [row.state for row in rows] == ["replaced", "replaced", "replaced", "swap"]
