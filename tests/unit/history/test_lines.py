"""What is shown of a backfill, and to whom."""

from __future__ import annotations

import json
from pathlib import Path

from tests.simulation.toy_backfill import Endless
from tidegate.backfill import begin
from tidegate.coordinator import Triggered
from tidegate.history.backfill import backfill_statuses


def test_why_an_earlier_versions_backfill_stopped_is_for_those_who_may_read_rows(tmp_path: Path) -> None:
    """It may quote a row, and nothing in its record says that it does not."""
    world = Endless(tmp_path)
    for number in range(2):
        world.checkpoint(f"run {number}")
    line = begin(world.coordinator(), "fix", 1, by="ann")
    triggered = line.backfill.trigger("replay")
    assert isinstance(triggered, Triggered)
    line.backfill.abort(triggered.plan.id, "JOB_FAILED", 'malformed: {"customer": "SECRET-77"}')
    plan = next((world.folder / "lines/fix/orders/checkpoints").glob(f"{triggered.plan.id:08d}/plan.json"))
    record = json.loads(plan.read_text())
    record.pop("quotes_rows", None)
    plan.write_text(json.dumps(record))

    (whole,) = backfill_statuses(world.ledger, {})
    (hidden,) = backfill_statuses(world.ledger, {}, with_values=False)
    assert "SECRET-77" in whole.stop_reason
    assert "SECRET-77" not in hidden.stop_reason
    assert f"checkpoint {triggered.plan.id} was aborted, JOB_FAILED" in hidden.stop_reason
