"""The shop with a second sink: the SQLite table of the guide, whose rows Arrow stages as Spark would."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from tests.kit.delta import kv, staged
from tests.kit.documents import code_of
from tests.kit.shop import COLUMNS, SHOP, Shop
from tidegate.connectors.sink import Staging
from tidegate.connectors.transactional import StagedPart
from tidegate.records.records import Json
from tidegate.sinks import TransactionalSink

__all__ = ["SQLITE_SHOP", "SqliteShop"]

SQLITE_SHOP = SHOP.replace(
    'pipeline.source("events", Generator(rows=1)).sink("good", DeltaAppend("tables/good"))',
    'events = pipeline.source("events", Generator(rows=1))\n'
    'events.sink("good", DeltaAppend("tables/good"))\n'
    'events.sink("copied", SqliteTable("out.db", "orders", ["k", "v"]))',
).replace("\nfrom tidegate import Pipeline", "\nfrom sqlite_table import SqliteTable\nfrom tidegate import Pipeline")


class SqliteShop(Shop):
    """Real checkpoints on a Delta table and on a SQLite table."""

    def __init__(self, folder: Path, code: str = SQLITE_SHOP) -> None:
        (folder / "sqlite_table.py").write_text(code_of("jobs/sqlite_table.py"))
        super().__init__(folder, code)
        self.database = folder / "out.db"

    def stage(self, id: int, attempt: str) -> dict[str, Json]:
        sink, context = self.coordinator.graph.sinks["copied"].sink, self.coordinator.context("copied")
        assert isinstance(sink, TransactionalSink)
        folder = f"{Staging(id, attempt).folder(context)}/rows"
        files = staged(sink.staging_folder(context), folder, kv((id, f"row {id}")), COLUMNS)
        part = StagedPart(columns=COLUMNS, files=files)
        return super().stage(id, attempt) | {"copied": msgspec.to_builtins(part)}

    def copied(self) -> list[int]:
        """Return the keys of the rows in the SQLite table."""
        with closing(sqlite3.connect(self.database)) as database:
            return [key for (key,) in database.execute("SELECT k FROM orders ORDER BY k")]

    def copied_staged(self, id: int) -> Path:
        """The one file that a checkpoint has staged for the SQLite table."""
        context = self.coordinator.context("copied")
        (path,) = Path(context.home, "staged").rglob(f"{id:08d}/*/rows/*.parquet")
        return path
