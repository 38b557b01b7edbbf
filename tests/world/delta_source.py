"""A Delta table that another job writes with delta-rs, and all that people do to it there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tests.world.other_side import Happening, SourceSide, act, happened
from tests.world.project import Project, row_of

__all__ = ["DeltaFolder", "DeltaSourceSide", "arrow_rows"]

NAMES = ("id", "n", "v")


def arrow_rows(ids: list[int], **more: Any) -> pa.Table:
    columns = zip(*map(row_of, ids), strict=True)
    kinds = (pa.int64(), pa.int64(), pa.string())
    rows = {name: pa.array(values, kind) for name, values, kind in zip(NAMES, columns, kinds, strict=True)}
    return pa.table(rows | {name: pa.array([value] * len(ids)) for name, value in more.items()})


class DeltaFolder:
    """A table on disk, and what can be done to any table: with delta-rs, or with the files themselves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.copies = 0

    @property
    def exists(self) -> bool:
        return (self.path / "_delta_log").exists()

    @property
    def table(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self.path))

    @property
    def version(self) -> int:
        return int(self.table.version())

    def write(self, rows: pa.Table, mode: Any = "append") -> int:
        from deltalake import write_deltalake

        write_deltalake(str(self.path), rows, mode=mode, schema_mode="merge")
        return self.version

    def copy(self) -> Path:
        """Copy it aside, as a backup."""
        self.copies += 1
        aside = self.path.parent.parent / "copies" / f"{self.path.name}-{self.copies}"
        shutil.copytree(self.path, aside)
        return aside

    def put(self, copy: Path | None) -> None:
        """Have what the copy has. None: nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if copy is not None:
            shutil.copytree(copy, self.path)

    def put_missing(self, copy: Path, below: str = "") -> None:
        """Bring back what is no longer there, in a folder or everywhere."""
        for path in (copy / below).rglob("*"):
            there = self.path / path.relative_to(copy)
            if path.is_file() and not there.exists():
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, there)

    def vacuum(self) -> None:
        self.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def clean_log(self) -> None:
        """A checkpoint, and no commit file before it."""
        self.table.create_checkpoint()
        for path in self.log_files()[:-1]:
            path.unlink()

    def log_files(self) -> list[Path]:
        return sorted((self.path / "_delta_log").glob("*.json"))

    def set_times(self, moment: int) -> None:
        for path in self.path.rglob("*"):
            if path.is_file():
                os.utime(path, (moment, moment))

    def tear_head(self) -> Any:
        """The last commit file has no bytes, as after a power loss. Returns what brings them back."""
        path = self.log_files()[-1]
        whole = path.read_bytes()
        path.write_bytes(b"")
        return lambda: path.write_bytes(whole)


class DeltaSourceSide(SourceSide):
    kind = "delta"
    in_flight: ClassVar[str] = "SOURCE_CHANGED"

    def declared(self) -> tuple[str, str]:
        self.bounds = f"max_files={self.dice.choice([1, 2, 100])}"
        return f'DeltaTable("outside/events", {self.bounds})', self.SINK

    def begin(self, project: Project) -> None:
        super().begin(project)
        self.table = DeltaFolder(project.path("outside/events"))
        self.table.path.parent.mkdir()
        self.history = 0
        self.names = ("'events'", str(self.table.path))

    def arrive(self) -> None:
        if not self.project.last_id or self.table.exists:
            with contextlib.suppress(Exception):  # whoever writes there has to do with a damaged table, too
                self.append()

    def append(self, ids: list[int] | None = None, **options: Any) -> None:
        ids = ids or self.some_ids()
        version = self.table.write(arrow_rows(ids, **options))
        self.show(f"version {version} of history {self.history}", ids)

    def _another_history(self) -> Callable[[], None]:
        """From here on it is another table, or another history of this one. Returns what brings this one back."""
        copy, shown = self.table.copy(), [name for name, unit in self.units.items() if unit.shown]
        self.history += 1

        def undo() -> None:
            self.table.put(copy)
            self.history += 1
            for name, unit in self.units.items():
                unit.shown = name in shown

        return undo

    # -- what changes no row

    @act
    def files_are_compacted(self) -> Happening:
        self.table.table.optimize.compact()
        return happened()

    @act
    def files_are_removed(self) -> Happening:
        """OPTIMIZE and VACUUM: what a version needs that was not read yet is gone."""
        copy = self.table.copy()
        self.table.table.optimize.compact()
        self.table.vacuum()
        return happened("SOURCE_CHANGED", lambda: self.table.put_missing(copy), passing=True)

    @act
    def old_log_is_removed(self) -> Happening:
        copy = self.table.copy()
        self.table.clean_log()
        return happened("LOG_CLEANED SOURCE_CHANGED", lambda: self.table.put_missing(copy), passing=True)

    @act
    def times_are_changed(self) -> Happening:
        self.table.set_times(self.dice.choice([0, 2_000_000_000]))
        return happened()

    @act
    def column_is_added(self) -> Happening:
        self.append(more="?")
        return happened()

    @act
    def property_is_set(self) -> Happening:
        self.table.table.alter.set_table_properties({"delta.logRetentionDuration": "interval 10 days"})
        return happened()

    # -- what changes rows

    def _changed(self) -> Happening:
        """A version that does more than add rows: as the cause says, it can be left out."""

        def code() -> None:
            self.project.write_code(reads=f'DeltaTable("outside/events", {self.bounds}, ignore_changes=True)')

        return happened("ROWS_CHANGED", None, code=code, advice="ignore_")

    @act
    def rows_are_deleted(self) -> Happening:
        ids = self.table.table.to_pyarrow_table().column("id").to_pylist()
        if not ids:
            return happened()
        self.table.table.delete(f"id = {self.dice.choice(ids)}")
        return self._changed()

    @act
    def rows_are_updated(self) -> Happening:
        ids = self.table.table.to_pyarrow_table().column("id").to_pylist()
        if not ids:
            return happened()
        self.table.table.update(predicate=f"id = {self.dice.choice(ids)}", updates={"n": "n + 1"})
        return self._changed()

    @act
    def table_is_overwritten(self) -> Happening:
        self.table.write(arrow_rows(self.some_ids()), mode="overwrite")
        return self._changed()

    @act
    def table_is_restored(self) -> Happening | None:
        """By RESTORE, which is one more version."""
        if self.table.version < 2 or len(self.table.log_files()) < 3:
            return None
        try:
            self.table.table.restore(self.table.version - 1)
        except Exception:  # of a version whose files are gone
            return None
        return self._changed()

    # -- what replaces the table

    @act
    def table_is_dropped(self) -> Happening:
        copy = self.table.copy()
        self.table.put(None)
        return happened("TABLE_GONE NO_TABLE", lambda: self.table.put(copy))

    @act
    def table_is_made_again(self) -> Happening:
        """With as many versions or more, and the same first rows, or others."""
        version, first = self.table.version, next(iter(self.units.values()), None)
        undo = self._another_history()
        self.hide(*self.units)
        self.table.put(None)
        same = first is not None and self.dice.random() < 0.5
        for number in range(version + self.dice.choice([1, 3])):
            self.append(sorted(first.variants[0]) if same and first is not None and number == 0 else None)
        return happened("TABLE_RECREATED VERSION_REWRITTEN VERSION_GONE", undo)

    @act
    def older_copy_is_put_back(self) -> Happening | None:
        """And continues, for so long as the other one had, or not."""
        back_to = self.table.version - self.dice.choice([1, 2])
        log = self.table.path / "_delta_log"
        if back_to < 1 or not (log / f"{back_to:020d}.json").exists():
            return None
        undo = self._another_history()
        for path in [*log.glob("*.json"), *log.glob("*.checkpoint*")]:
            if path.name.split(".")[0].isdigit() and int(path.name.split(".")[0]) > back_to:
                path.unlink()
        (log / "_last_checkpoint").unlink(missing_ok=True)
        after = [name for name in self.units if int(name.split()[1]) > back_to]
        self.hide(*after)
        for _ in range(self.dice.choice([0, 1, 3])):
            self.arrive()
        return happened("TABLE_RECREATED VERSION_REWRITTEN VERSION_GONE SOURCE_CHANGED LOG_CLEANED", undo)

    @act
    def last_commit_is_torn(self) -> Happening | None:
        return happened(
            "LOG_TORN LOG_BROKEN VERSION_REWRITTEN SOURCE_CHANGED TABLE_DAMAGED", self.table.tear_head(), passing=True
        )

    @act
    def file_is_gone(self) -> Happening | None:
        copy = self.table.copy()
        files = sorted(self.table.path.glob("*.parquet"))
        if not files:
            return None
        self.dice.choice(files).unlink()
        return happened("SOURCE_CHANGED", lambda: self.table.put_missing(copy), passing=True)

    @act
    def file_is_cut_off(self) -> Happening | None:
        files = sorted(self.table.path.glob("*.parquet"))
        if not files:
            return None
        path = self.dice.choice(files)
        whole = path.read_bytes()
        path.write_bytes(whole[:-8])
        return happened("SOURCE_CHANGED", lambda: path.write_bytes(whole), passing=True)

    @act
    def foreign_line_is_in_the_log(self) -> Happening:
        """A commit of another writer, with nothing but what it says of itself."""
        number = self.table.version + 1
        path = self.table.path / f"_delta_log/{number:020d}.json"
        path.write_text(json.dumps({"commitInfo": {"timestamp": 1, "operation": "?"}}) + "\n")
        return happened()
