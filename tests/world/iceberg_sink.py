"""An Iceberg table that a pipeline adds to, in a catalog in SQLite, and all that people do to it there."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from tests.world.delta_source import arrow_rows
from tests.world.other_side import Happening, Servers, SinkSide, Table, act, happened
from tests.world.project import Project

__all__ = ["IcebergSide"]


class IcebergSide(SinkSide):
    kind = "iceberg"
    in_flight: ClassVar[str] = "TABLE_CHANGED"

    def __init__(self, dice: random.Random, servers: Servers) -> None:
        super().__init__(dice, servers)
        self.older: tuple[Path, Table, int] | None = None
        self.copies = 0
        self.names = ("sink rows", "'rows'", "shop.rows")

    def declared(self) -> tuple[str, str]:
        self.evolution = self.dice.choice(["", ', schema_evolution="add"'])
        return self.SOURCE, f'IcebergAppend("shop.rows", connection="lake"{self.evolution})'

    def connections(self, folder: Path) -> dict[str, dict[str, str]]:
        self.options = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/lake/catalog.db",
            "warehouse": f"file://{folder}/lake",
        }
        return {"lake": self.options}

    def begin(self, project: Project) -> None:
        super().begin(project)
        self.folder = project.path("lake")
        self.folder.mkdir()
        self.catalog().create_namespace("shop")

    def catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("lake", **self.options)

    def found(self) -> Any:
        catalog = self.catalog()
        return catalog.load_table("shop.rows") if catalog.table_exists("shop.rows") else None

    def published(self) -> Table:
        if (table := self.found()) is None:
            return Counter()
        return Counter((row["id"], row.get("n"), row.get("v")) for row in table.scan().to_arrow().to_pylist())

    def hand(self, change: Callable[[Any], object], reasons: str = "", undo: Any = None) -> Happening | None:
        """A change by hand of the table as it is there."""
        self.settle()
        if (table := self.found()) is None:
            return None
        change(table)
        self.table = self.published()
        return happened(reasons, undo)

    def update(self, change: Callable[[Any], object]) -> None:
        with self.found().update_schema(allow_incompatible_changes=True) as schema:
            change(schema)

    # -- what others may do

    @act
    def others_add_rows(self) -> Happening | None:
        ids = self.some_ids()
        return self.hand(lambda table: table.append(arrow_rows(ids).select(table.schema().column_names[:3])))

    @act
    def others_delete_rows(self) -> Happening | None:
        ids = [row[0] for row in self.published()]
        return self.hand(lambda table: table.delete(f"id = {self.dice.choice(ids)}")) if ids else None

    @act
    def others_overwrite(self) -> Happening | None:
        ids = self.some_ids()
        return self.hand(lambda table: table.overwrite(arrow_rows(ids).select(table.schema().column_names[:3])))

    @act
    def snapshots_expire(self) -> Happening | None:
        def expire(table: Any) -> None:
            old = [each.snapshot_id for each in table.snapshots()][:-1]
            if old:
                table.maintenance.expire_snapshots().by_ids(old).commit()

        return self.hand(expire)

    @act
    def column_is_added(self) -> Happening | None:
        from pyiceberg.types import StringType

        if (table := self.found()) is None or len(table.schema().column_names) > 3:
            return None
        return self.hand(lambda table: self.update(lambda schema: schema.add_column("more", StringType())))

    # -- what is refused

    @act
    def column_is_renamed(self) -> Happening | None:
        self.settle()
        if self.found() is None:
            return None
        before = Counter(self.table)
        self.update(lambda schema: schema.rename_column("v", "w"))
        self.table = self.published()

        def undo() -> None:
            self.update(lambda schema: schema.rename_column("w", "v"))
            self.table = before

        if self.evolution:  # then a new column of the name is added
            undo()
            return None
        return happened("BAD_OUTPUT", undo)

    @act
    def column_is_required(self) -> Happening | None:
        from pyiceberg.types import LongType

        if self.published() or self.found() is None:
            return None
        return self.hand(
            lambda table: self.update(lambda schema: schema.add_column("must", LongType(), required=True)),
            "BAD_OUTPUT",
            lambda: self.update(lambda schema: schema.delete_column("must")),
        )

    @act
    def table_is_dropped(self) -> Happening | None:
        self.settle()
        if (table := self.found()) is None:
            return None
        where, done = table.metadata_location, self.done
        self.catalog().drop_table("shop.rows")
        undo = self.replaced(Counter(), 0)

        def put_back() -> None:
            self.catalog().register_table("shop.rows", where)
            undo()

        return happened("TABLE_DAMAGED", put_back, remedy="rollback", effect=lambda: self.begin_anew(done))

    @act
    def table_is_renamed(self) -> Happening | None:
        self.settle()
        if self.found() is None:
            return None
        self.catalog().rename_table("shop.rows", "shop.aside")
        undo = self.replaced(Counter(), 0)

        def put_back() -> None:
            self.catalog().rename_table("shop.aside", "shop.rows")
            undo()

        return happened("TABLE_DAMAGED", put_back)

    @act
    def namespace_is_away(self) -> Happening | None:
        self.settle()
        aside = self.folder.with_name("lake-aside")
        self.folder.rename(aside)
        self.folder.mkdir()
        undo = self.replaced(Counter(), 0)

        def put_back() -> None:
            shutil.rmtree(self.folder)
            aside.rename(self.folder)
            undo()

        return happened("TABLE_DAMAGED TARGET_AWAY NO_NAMESPACE", put_back)

    @act
    def data_files_are_gone(self) -> Happening | None:
        """Nobody needs them to add more."""
        self.settle()
        if self.found() is None:
            return None
        gone = [path for path in self.folder.rglob("*.parquet") if path.is_file()]
        kept = {path: path.read_bytes() for path in gone}
        for path in gone:
            path.unlink()

        def undo() -> None:
            for path, data in kept.items():
                path.write_bytes(data)

        undo()
        return happened()

    @act
    def older_copy_is_put_back(self) -> Happening | None:
        if self.older is None:
            return None
        self.settle()
        copy = self.copy()
        older, rows, done = self.older
        self.older = None
        self.put(older)
        undo = self.replaced(rows, done)

        def put_back() -> None:
            self.put(copy)
            undo()

        return happened("TABLE_DAMAGED STAGED_FILES_GONE", put_back)

    @act
    def copy_is_made(self) -> Happening:
        self.settle()
        self.older = self.copy(), Counter(self.table), self.done
        return happened()

    def copy(self) -> Path:
        self.copies += 1
        return Path(shutil.copytree(self.folder, self.project.path(f"copies-{self.copies}")))

    def put(self, copy: Path) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(copy, self.folder)
