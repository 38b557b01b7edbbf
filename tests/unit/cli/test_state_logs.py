"""Old commits of states' own tables go with the checkpoints that made them."""

from __future__ import annotations

import os

from deltalake import DeltaTable

from tests.kit import forks
from tests.kit.forks import Run
from tidegate.delta.log.cleanup import YOUNG_S
from tidegate.lifecycle import retention

shop = forks.shop


def test_their_logs_follow_the_retained_checkpoints_and_states_read_as_before(shop, tidegate, monkeypatch):
    monkeypatch.setattr(retention, "LOGS_EVERY", 3)
    orders = Run("orders", num_retained="2")
    while orders.checkpoint() < 8:
        pass
    table = orders.state_table
    DeltaTable(table.url).create_checkpoint()
    log = table.local("_delta_log")
    newest = max(path.stat().st_mtime for path in log.iterdir())
    for path in log.iterdir():
        os.utime(path, (newest - YOUNG_S - 60,) * 2)
    known = sorted(path.name for path in log.glob("*.json"))
    for id in (9, 10, 11):
        assert sorted(path.name for path in log.glob("*.json"))[: len(known)] == known, f"not with checkpoint {id}"
        assert orders.checkpoint() == id
    left = sorted(int(path.stem) for path in log.glob("*.json"))
    stood = orders.ledger.published(10)
    assert stood is not None
    assert left[0] == int(known[-1].removesuffix(".json")), "from Delta's checkpoint on"
    assert left[0] <= stood.tables["state.totals"].version == left[-2]
    assert orders.remembered() == list(range(1, 12))
    assert Run("orders", num_retained="2").checkpoint() == 12
    assert tidegate("rollback", "shop:orders", "--to", "11", "--yes").code == 0, "and it goes back by its record"
