"""A pipeline whose target refuses some rows: they go to the quarantine in front of the sink."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable

from tests.kit.world import World
from tidegate import Pipeline
from tidegate.checkpoint import quarantine_requests
from tidegate.errors import TidegateError
from tidegate.execution.by_hand.diverting import RefusedRows, divert, find_refusal
from tidegate.ledger.ledger import stamp
from tidegate.records.place import Place
from tidegate.records.records import Request, Verdict
from tidegate.sinks import DeltaAppend, Sink
from tidegate.sources import Files

__all__ = ["GATE", "SINK", "RefusingTarget", "Row"]

Row = dict[str, Any]
SINK = "out"
GATE = f"{SINK}-refused"
"""The gate in front of the sink."""


@dataclass
class RefusingTarget(World):
    """Files land, and their rows go to a sink, which sends those to quarantine that its target would refuse."""

    schema: str = ""
    sink: Any = None
    refused: str = "quarantine"
    connections: dict[str, str] = field(default_factory=dict)
    stage: Callable[[Any], Any] | None = None
    """What happens to the rows before they come to the sink."""
    beside: bool = False
    """Whether a Delta table, `tables/all`, gets all rows."""
    landed: int = 0

    @property
    def place(self) -> Place:
        return Place(str(self.root), connections=self.connections)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        rows = pipeline.source("rows", Files("landing/*.json", schema=self.schema))
        if self.stage is not None:
            rows = pipeline.stage(rows, name="changed")(self.stage)
        sink: Sink = self.sink
        rows.sink(SINK, sink, refused=self.refused)  # type: ignore[arg-type]
        if self.beside:
            rows.sink("all", DeltaAppend("tables/all"))
        return pipeline

    def coordinator(self) -> Any:
        coordinator = super().coordinator()
        coordinator.spark = lambda: self.spark
        return coordinator

    def land(self, *rows: Row) -> None:
        """Put a file with these rows into the folder that the source reads."""
        self.landed += 1
        path = self.root / "landing" / f"{self.landed}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def decide(self, run: str, *rows: Row) -> int:
        """Make a completed checkpoint of these rows, which is not published."""
        self.land(*rows)
        id = self.trigger(run)
        self.work(id)
        self.complete(id)
        return id

    def refusal(self) -> RefusedRows:
        """What the target refuses in publication."""
        return find_refusal(self.coordinator(), SINK)

    def divert(self, condition: str, refusal: RefusedRows | None = None, **options: Any) -> TidegateError | None:
        """Divert rows. Return what the target still refuses."""
        refusal = refusal or self.refusal()
        _, error = divert(self.coordinator(), self.spark, refusal, condition, by="ann", **options)
        return error

    def release(self, *rules: str, **correct: Any) -> None:
        """Ask to release rows from quarantine: all of them, or those that break one of the rules."""
        request = Request(
            **stamp("by hand"),
            number=1,
            gate=GATE,
            action="release",
            seen=1_000,
            by="ann",
            rules=list(rules),
            correct=correct,
        )
        quarantine_requests.ask(self.ledger, request)

    def quarantined(self) -> list[Row]:
        """All rows that are or were in quarantine, by their number."""
        return sorted(self._quarantine().to_pylist(), key=lambda row: row["n"])

    def broken_rules(self) -> dict[int, tuple[str, ...]]:
        """The rules that each row in quarantine has broken, by the row's number. Settled ones do not count."""
        waiting = [row for row in self._read_bookkeeping() if row["_tidegate_settled"] is None]
        return {row["n"]: tuple(sorted(row["_tidegate_rules"])) for row in waiting}

    def stays(self) -> dict[int, str]:
        """Why rows were not released."""
        return {row["n"]: row["_tidegate_stays"] for row in self._read_bookkeeping() if row.get("_tidegate_stays")}

    def _read_bookkeeping(self) -> list[Row]:
        """The number of each row, and what the quarantine knows of it. Its other values may be no valid text."""
        table = self._quarantine()
        names = [name for name in table.column_names if name == "n" or name.startswith("_tidegate")]
        return list(table.select(names).to_pylist())

    def _quarantine(self) -> Any:
        return DeltaTable(str(self.folder / "quarantine" / GATE)).to_pyarrow_table()

    def verdict(self, id: int) -> Verdict:
        """What the gate in front of the sink has said."""
        acked = self.ledger.ack(id, "main")
        assert acked is not None
        return acked.ack.gates[GATE]
