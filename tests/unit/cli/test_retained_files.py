"""Every file that a retained, named or current checkpoint needs stays, however the log has gone back and on."""

from __future__ import annotations

import pytest

from tests.kit.forks import CODE, Compacting
from tidegate.lifecycle import savepoint


@pytest.fixture
def lived(folder):
    (folder / "shop.py").write_text(CODE)
    return Compacting("orders", num_retained="3")


@pytest.mark.parametrize("named", [True, False])
def test_behind_a_rollback_the_files_stay_that_the_line_that_was_left_had_merged_away(lived, named):
    """Checkpoint 4 merges 1 to 3, and has a name; then 2 is gone back to, and retention comes to pass all of that."""
    for _ in range(3):
        lived.checkpoint()
    merged = lived.merge()
    if named:
        savepoint.create(lived.ledger, "before", merged, "ann")
    lived.coordinator.roll_back(2, run="back", by="ann")
    for _ in range(7):
        lived.checkpoint()
        assert lived.lacks() == {}
    assert (merged in lived.ledger.ids()) is named
    assert {1, 2} <= set(lived.remembered())


def test_what_nothing_names_any_more_goes_behind_a_rollback_too(lived):
    """So that what stays is what is needed, and no more."""
    for _ in range(3):
        lived.checkpoint()
    merged = lived.merge()
    savepoint.create(lived.ledger, "before", merged, "ann")
    lived.coordinator.roll_back(2, run="back", by="ann")
    for _ in range(2):
        lived.checkpoint()
    for _ in range(4):
        lived.merge()
        assert lived.lacks() == {}
    savepoint.dispose(lived.ledger, "before")
    lived.checkpoint()
    named = {each.file.path for id in lived.ledger.ids() for each in lived.state(id).files}
    assert {path for path, _ in lived.state_table.walk("tidegate")} == named
    assert lived.lacks() == {}
