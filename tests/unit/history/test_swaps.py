"""What is told of a swap, and of what it has replaced."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.simulation.toy_backfill import Endless, backfilled
from tidegate.backfill.discard import discard_by_name
from tidegate.history import table as history
from tidegate.history.query import CheckpointHistory, HistoryFilter
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
    discard_by_name(shadowed.coordinator(), "fix", "ann")
    shadowed.checkpoint("after")
    if written:
        remember(shadowed.ledger, {})
    counts = past(shadowed).counts()
    assert (counts["triggered"], counts["completed"], counts["restored"]) == (5, 4, 1)
    assert past(shadowed).summary()["rows_in"] is not None
    assert past(shadowed).newest("completed").id == 5  # type: ignore[union-attr]


def test_rows_that_name_no_target_were_written_of_the_beginning(
    shadowed: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So 0.2 wrote the swap of a line that had begun at the beginning; its rows stay, and are read."""

    def without_target(entry: Entry, *others: object) -> HistoryRow:
        row = row_of(entry, *others)  # type: ignore[arg-type]
        return msgspec.structs.replace(row, back_to=row.back_to or None)

    swapped = backfilled(shadowed, 0)
    with monkeypatch.context() as older:
        older.setattr(history, "row_of", without_target)
        remember(shadowed.ledger, {})
    assert journal_of(shadowed.ledger, {}).read(["back_to"])["back_to"].to_pylist() == [None] * 4
    rows = past(shadowed).page(HistoryFilter(sort="id", descending=False)).rows
    assert [row.undone_by for row in rows] == [swapped.id, swapped.id, swapped.id, None]
    assert [row.back_to for row in rows] == [None, None, None, 0]
