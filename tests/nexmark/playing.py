"""A query of Nexmark, told to tidegate in a folder of its own: checkpoint by checkpoint, killed or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

import tidegate.testing
from jobs.nexmark import pairs, rows, totals, windows
from jobs.nexmark.generator import side_input
from jobs.nexmark.query import QUERIES, SIDE_INPUT, Query
from tests.nexmark.reference import Reference
from tidegate.connectors.sink import Sink
from tidegate.delta import Location, open_table, read_table
from tidegate.testing import RunningPipeline
from tidegate.versions.python import parse_time

__all__ = ["MODULES", "NAMES", "Play", "prepare"]

MODULES = (rows, windows, totals, pairs)
"""What declares the queries."""
NAMES = sorted(QUERIES, key=lambda name: int(name[1:]))
SETTINGS = {"num_retained": "1000"}
"""All entries stay, so that each checkpoint's time can be read."""


def prepare(folder: Path, landing: Path) -> None:
    """Give a query its data: the events that lie in `landing`, and the table that q13 looks up."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "landing").symlink_to(landing)
    write_deltalake(folder / "data" / SIDE_INPUT, side_input())


class Play:
    """One query in one folder."""

    def __init__(self, name: str, folder: Path, sink: Sink | None = None, max_files: int = 1) -> None:
        self.query: Query = QUERIES[name]
        self.folder = folder
        self.pipeline = self.query.pipeline(sink, max_files)

    def opened(self, spark: Any = None, settings: Mapping[str, str] | None = None) -> Any:
        """Open it, as a process does: a block whose value makes checkpoints."""
        return tidegate.testing.run(self.pipeline, self.folder, spark=spark, settings={**SETTINGS, **(settings or {})})

    def found(self) -> pa.Table:
        """Return the rows of its table."""
        table = open_table(Location(str(self.folder / "data" / "tables" / self.query.name)))
        assert table is not None, f"{self.query.name} has no table"
        return read_table(table)

    def differs(self, running: RunningPipeline, reference: Reference) -> str:
        """Say what its table and the reference do not share; "" for equal."""
        if self.query.name == "q12":
            reference.clock(planned_in(running))
        return reference.differs(self.query.name, self.found())


def planned_in(running: RunningPipeline) -> Sequence[datetime]:
    """Return the ten seconds of the clock in which each completed checkpoint was planned."""
    entries = [running.ledger.entry(id) for id in running.ledger.ids()]
    moments = [parse_time(entry.plan.created) for entry in entries if entry is not None and entry.completed]
    return [moment - timedelta(seconds=moment.timestamp() % 10) for moment in moments]
