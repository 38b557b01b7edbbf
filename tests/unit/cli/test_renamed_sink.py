"""A Delta sink that has another name now: its table continues, and a rollback to before that finds its rows."""

from __future__ import annotations

import sys

from tests.kit.delta import KV, kv, staged
from tests.kit.shop import CODE, SHOP, Shop
from tidegate.connectors.delta.sink.table import StagedBatch, staged_result
from tidegate.connectors.sink import Staging

RENAMED = SHOP.replace('.sink("good"', '.sink("fine"')


class Renamed(Shop):
    """The same table, under the sink's new name."""

    def stage(self, id, attempt):
        folder = Staging(id, attempt).folder(self.coordinator.context("fine"))
        files = staged(self.table, folder, kv((id, f"row {id}")), KV)
        committable = staged_result(StagedBatch(columns=KV, files=files), 1).committable
        assert committable is not None
        return {"fine": committable}


def test_its_table_continues_and_a_rollback_to_before_it_keeps_the_rows_that_were_there(folder, tidegate):
    shop = Shop(folder)
    for _ in range(2):
        shop.checkpoint()
    sys.modules.pop("shop", None)
    renamed = Renamed(folder, RENAMED)
    said = tidegate("check", "--no-spark", CODE, "--json").json
    assert said["can_continue"] is True
    assert "sink good is removed: its table stays as it is" in said["new_parts"]
    renamed.checkpoint()
    assert sorted(renamed.rows()) == [1, 2, 3]
    assert tidegate("rollback", CODE, "--to", "2", "--yes").code == 0
    assert sorted(renamed.rows()) == [1, 2]
    renamed.checkpoint()
    assert sorted(renamed.rows()) == [1, 2, 5]


def test_it_waits_until_its_table_has_what_the_old_name_owes_it(folder, tidegate):
    shop = Shop(folder)
    shop.checkpoint()
    shop.checkpoint(publish=False)
    sys.modules.pop("shop", None)
    Renamed(folder, RENAMED)
    (told,) = tidegate("check", "--no-spark", CODE, "--json").json["reasons"]
    assert told["reason"] == "SINK_REMOVED"
    assert "put the sink back, run once" in told["help"]
