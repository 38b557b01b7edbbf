"""Every file that a retained, named or current checkpoint needs stays, however the log has gone back and on."""

from __future__ import annotations

import msgspec
import pytest

from tests.kit.delta import KV, kv, staged
from tests.unit.cli.test_fork import CODE, Run
from tidegate.delta import live_files, missing_files, open_table
from tidegate.lifecycle import savepoint
from tidegate.records.records import Restart
from tidegate.sinks.base import Staging
from tidegate.state.record import StateFile, StateTable


class Compacting(Run):
    """Its state gets a file with each checkpoint; and when it is told to, one that stands for all before it."""

    compact = False

    def grown(self, plan, attempt):
        if not self.compact:
            return super().grown(plan, attempt)
        folder = Staging(plan.id, attempt).folder(self.coordinator.context("state.totals"))
        (merged,) = staged(self.state_table, folder, kv((0, "all")), KV)
        files = [StateFile(file=merged, checkpoint=plan.id, oldest=1, groups=(0, 0))]
        return msgspec.to_builtins(StateTable(columns=KV, keys=["k"], groups=1, files=files))

    def state(self, id):
        """As of a checkpoint; of a rollback, as of what it went back to."""
        entry = self.entry(id)
        restart: Restart | None = entry.plan.restart
        return super().state(restart.target if restart is not None else id)

    def merge(self):
        self.compact = True
        try:
            return self.checkpoint()
        finally:
            self.compact = False

    def lacks(self):
        """Of each checkpoint that is there, and of the state's table: the files that are gone."""
        found = {
            id: gone
            for id in self.ledger.ids()
            if self.entry(id).completed
            and (gone := missing_files(self.state_table, [each.file for each in self.state(id).files]))
        }
        snapshot = open_table(self.state_table)
        gone = missing_files(self.state_table, [each.staged() for each in live_files(snapshot)])
        return found | ({"the table": gone} if gone else {})


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
