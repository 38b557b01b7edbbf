"""A folder of plain files that a pipeline exports to, and all that people do to it there."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.csv
import pyarrow.parquet as pq

from tests.world.other_side import Happening, Servers, SinkSide, Table, act, full_disk, happened, read_only
from tests.world.project import Project

__all__ = ["ExportSide"]

DAMAGED = "TABLE_DAMAGED STAGED_FILES_GONE EXPORT_DAMAGED"


class ExportSide(SinkSide):
    kind = "export"
    in_flight: ClassVar[str] = ""

    def __init__(self, dice: random.Random, servers: Servers) -> None:
        super().__init__(dice, servers)
        self.older: tuple[Path, Table, int] | None = None
        self.copies = 0

    def declared(self) -> tuple[str, str]:
        self.format = self.dice.choice(["parquet", "csv", "json"])
        more = self.dice.choice(["", ', compression="gzip"']) if self.format != "parquet" else ""
        return self.SOURCE, f'FileExport("exports/rows", format="{self.format}"{more})'

    def begin(self, project: Project) -> None:
        super().begin(project)
        self.folder = project.path("exports/rows")
        self.names = ("'rows'", "sink rows", str(self.folder))

    def published(self) -> Table:
        return Counter(row for path in self.folder.glob("checkpoint=*/**/*.*") for row in self._rows_of(path))

    def _rows_of(self, path: Path) -> list[tuple[Any, ...]]:
        if self.format == "parquet":
            rows = pq.read_table(path, partitioning=None).to_pylist()
        elif self.format == "csv":
            rows = pyarrow.csv.read_csv(path).to_pylist()
        else:
            data = path.read_bytes()
            lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
            rows = [json.loads(line) for line in lines]
        return [(row["id"], row["n"], row["v"]) for row in rows]

    def checkpoints(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint=*"))

    def copy(self) -> Path:
        self.copies += 1
        return Path(shutil.copytree(self.folder, self.project.path(f"copies-{self.copies}")))

    def put(self, copy: Path | None) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if copy is not None:
            shutil.copytree(copy, self.folder)

    # -- what others may do: retention of old exports is theirs

    @act
    def old_exports_are_removed(self) -> Happening | None:
        self.settle()
        for path in self.checkpoints()[: self.dice.choice([1, 9])]:
            shutil.rmtree(path)
        self.table = self.published()
        return happened()

    @act
    def old_exports_go_with_their_manifests(self) -> Happening | None:
        """All but the last one."""
        self.settle()
        for path in self.checkpoints()[:-1]:
            shutil.rmtree(path)
            (self.folder / "_manifests" / f"{path.name.split('=')[1]}.json").unlink(missing_ok=True)
        self.table = self.published()
        return happened()

    @act
    def hint_is_lost(self) -> Happening | None:
        (self.folder / "_latest.json").unlink(missing_ok=True)
        return happened()

    @act
    def hint_is_an_older_one(self) -> Happening | None:
        manifests = sorted((self.folder / "_manifests").glob("*.json")) if self.folder.exists() else []
        if not manifests:
            return None
        shutil.copyfile(self.dice.choice(manifests), self.folder / "_latest.json")
        return happened()

    @act
    def hint_is_torn(self) -> Happening | None:
        if not (hint := self.folder / "_latest.json").exists():
            return None
        hint.write_bytes(hint.read_bytes()[:20])
        return happened()

    @act
    def others_take_the_next_name(self) -> Happening | None:
        """Folders with names that the next checkpoints would have, and nothing in them."""
        if not self.folder.exists():
            return None
        last = max((int(path.name.split("=")[1].split("-")[0]) for path in self.checkpoints()), default=0)
        for number in range(last + 1, last + 4):
            (self.folder / f"checkpoint={number:08d}").mkdir(exist_ok=True)
        return happened()

    @act
    def old_log_is_removed(self) -> Happening | None:
        for path in sorted((self.folder / "_tidegate").glob("*.json"))[:-1]:
            path.unlink()
        return happened()

    # -- what is refused

    @act
    def log_is_removed(self) -> Happening | None:
        if not (self.folder / "_tidegate").exists():
            return None
        self.settle()
        copy = self.copy()
        shutil.rmtree(self.folder / "_tidegate")
        return self._gone(copy, Counter(self.table), 0)

    @act
    def last_entry_is_torn(self) -> Happening | None:
        entries = sorted((self.folder / "_tidegate").glob("*.json"))
        if not entries:
            return None
        whole = entries[-1].read_bytes()
        entries[-1].write_bytes(whole[: self.dice.choice([0, len(whole) // 2])])
        return happened("EXPORT_DAMAGED", lambda: entries[-1].write_bytes(whole), passing=True)

    @act
    def folder_is_dropped(self) -> Happening | None:
        if not self.folder.exists():
            return None
        self.settle()
        copy, done = self.copy(), self.done
        self.put(None)
        return self._gone(copy, Counter(), 0, remedy="rollback", effect=lambda: self.begin_anew(done))

    @act
    def older_copy_is_put_back(self) -> Happening | None:
        if self.older is None or not self.folder.exists():
            return None
        self.settle()
        copy = self.copy()
        older, rows, done = self.older
        self.older = None
        self.put(older)
        return self._gone(copy, rows, done)

    @act
    def copy_is_made(self) -> Happening | None:
        if not self.folder.exists():
            return None
        self.settle()
        self.older = self.copy(), Counter(self.table), self.done
        return happened()

    def _gone(self, copy: Path, table: Table, done: int, **more: Any) -> Happening:
        undo = self.replaced(table, done)

        def put_back() -> None:
            self.put(copy)
            undo()

        return happened(DAMAGED, put_back, **more)

    @act
    def disk_is_full(self) -> Happening | None:
        return full_disk(self.folder, self.closing) if self.folder.exists() else None

    @act
    def folder_is_read_only(self) -> Happening | None:
        return read_only(self.folder, self.closing) if self.folder.exists() else None
