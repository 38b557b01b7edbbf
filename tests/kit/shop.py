"""A shop as a project folder: its code, its ledger and its tables, for commands to work on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.delta import kv, rows_of, staged
from tidegate import seams
from tidegate.cli.targets import open_target
from tidegate.connectors.delta.sink.table import StagedBatch, staged_result
from tidegate.connectors.sink import Staging
from tidegate.coordinator import Coordinator, Triggered
from tidegate.delta import locate
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph.meaning import meaning_of
from tidegate.records.records import Ack, JobStats, Json, Plan

SHOP = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("orders", tolerable_failed_checkpoints=2)
pipeline.source("events", Generator(rows=1)).sink("good", DeltaAppend("tables/good"))
"""


CODE = "shop:pipeline"


COLUMNS = {
    "type": "struct",
    "fields": [
        {"name": "k", "type": "long", "nullable": True, "metadata": {}},
        {"name": "v", "type": "string", "nullable": True, "metadata": {}},
    ],
}


class Shop:
    """A pipeline whose jobs Arrow does: real checkpoints on a real Delta table, without Spark."""

    def __init__(self, folder: Path, code: str = SHOP) -> None:
        (folder / "shop.py").write_text(code)
        target = open_target(CODE, {}, started=False)
        place = target.settings.place()
        assert target.pipeline is not None
        self.coordinator = Coordinator(target.pipeline.graph(place), target.ledger, target.settings, place)
        self.table = locate(place, "tables/good")

    def staged(self, id: int) -> Path:
        """The one file that a checkpoint has staged."""
        (path,) = self.table.local("tidegate").rglob(f"{id:08d}/*/*.parquet")
        return path

    def trigger(self, **options: Any) -> Plan:
        triggered = self.coordinator.trigger(f"by hand {seams.new_id()}", **options)
        assert isinstance(triggered, Triggered)
        return triggered.plan

    def checkpoint(self, publish: bool = True, **options: Any) -> int:
        return self.checkpoint_of(self.trigger(**options), publish)

    def checkpoint_of(self, plan: Plan, publish: bool = True) -> int:
        """The rest of one that is planned."""
        attempt = f"{plan.attempt}-{seams.new_id()}"
        staged_by_sink = self.stage(plan.id, attempt)
        packed = {sink: self.coordinator.ledger.pack(committable) for sink, committable in staged_by_sink.items()}
        ack = Ack(
            **stamp(attempt),
            id=plan.id,
            job="main",
            prev=None,
            sinks=packed,
            memory=meaning_of(self.coordinator.graph),
            stats=JobStats(rows=dict.fromkeys(packed, 1)),
        )
        self.coordinator.ledger.create_ack(ack)
        assert self.coordinator.complete(plan.id).state == "completed"
        if publish:
            self.coordinator.publish()
        return plan.id

    def stage(self, id: int, attempt: str) -> dict[str, Json]:
        """Stage the checkpoint's row for each sink; return the committables."""
        folder = Staging(id, attempt).folder(self.coordinator.context("good"))
        files = staged(self.table, folder, kv((id, f"row {id}")), COLUMNS)
        committable = staged_result(StagedBatch(columns=COLUMNS, files=files), 1).committable
        assert committable is not None
        return {"good": committable}

    def rows(self) -> list[Any]:
        return [key for key, _ in rows_of(self.table)]
