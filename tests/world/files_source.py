"""Files that land in a folder, and all that people do to them there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tests.world.other_side import Happening, SourceSide, act, happened
from tests.world.project import Project, row_of

__all__ = ["FilesSide"]

NAMES = ("id", "n", "v")


class FilesSide(SourceSide):
    kind = "files"
    in_flight: ClassVar[str] = "SOURCE_CHANGED FILES_GONE"

    def declared(self) -> tuple[str, str]:
        self.format = self.dice.choice(["json", "csv", "parquet"])
        more = {"json": ', on_new_column="refuse"', "csv": ', options={"header": "true"}', "parquet": ""}[self.format]
        order = self.dice.choice(["arrival", "name"])
        schema = 'schema="id long, n long, v string"'
        bounds = f'order="{order}", max_files={self.dice.choice([1, 2, 9])}'
        return f'Files("landing/*.{self.format}", {schema}, {bounds}{more})', self.SINK

    def begin(self, project: Project) -> None:
        super().begin(project)
        self.folder = project.path("landing")
        self.folder.mkdir()
        self.names = ("'events'", str(self.folder))
        self.last = 0

    def arrive(self) -> None:
        if self.folder.exists():
            self.put(self.new_name(), self.some_ids())

    def new_name(self) -> str:
        self.last += 1
        return f"{self.last:06d}.{self.format}"

    def put(self, name: str, ids: list[int]) -> None:
        self.write(name, [dict(zip(NAMES, row_of(id), strict=True)) for id in ids])
        self.show(name, ids)

    def write(self, name: str, rows: list[dict[str, Any]]) -> None:
        """One rename, as a producer should do it."""
        path = self.folder / f"{name}.tmp"
        if self.format == "json":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif self.format == "csv":
            pa.csv.write_csv(pa.Table.from_pylist(rows), path)
        else:
            pq.write_table(pa.Table.from_pylist(rows), path)
        path.rename(self.folder / name)

    def any_file(self, *, unread: bool = False) -> Path | None:
        found = [path for path in sorted(self.folder.iterdir()) if path.name in self.units]
        if unread:
            found = [path for path in found if not self.is_read(path.name)]
        return self.dice.choice(found) if found else None

    # -- what befalls files

    @act
    def file_is_replaced(self) -> Happening | None:
        if (path := self.any_file()) is None:
            return None
        self.put(path.name, self.some_ids())
        return happened()

    @act
    def file_is_deleted(self) -> Happening | None:
        if (path := self.any_file()) is None:
            return None
        path.unlink()
        self.hide(path.name)
        return happened()

    @act
    def file_is_cut_off(self) -> Happening | None:
        """Within a record. What was read of it before is not read again."""
        if self.format == "csv" or (path := self.any_file(unread=True)) is None:
            return None  # nothing tells that the last field of a CSV file was longer
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) - 5])
        return happened("MALFORMED_RECORD SCHEMA_MISMATCH NOT_PARQUET BAD_PARQUET", lambda: path.write_bytes(whole))

    @act
    def file_is_renamed(self) -> Happening | None:
        """Before anybody reads it: a name is read once, so one that is being read comes again under its new name."""
        if self.project.is_running or (path := self.any_file(unread=True)) is None:
            return None
        name = self.new_name()
        path.rename(self.folder / name)
        unit = self.units.pop(path.name)
        unit.name = name
        self.units[name] = unit
        return happened()

    @act
    def files_are_archived(self) -> Happening:
        archive = self.project.path("archive")
        archive.mkdir(exist_ok=True)
        for path in self.folder.iterdir():
            if path.name in self.units:
                path.rename(archive / path.name)
                self.hide(path.name)
        return happened()

    @act
    def folder_is_renamed(self) -> Happening:
        aside = self.folder.with_name("elsewhere")
        self.folder.rename(aside)

        def undo() -> None:
            shutil.rmtree(self.folder, ignore_errors=True)
            aside.rename(self.folder)

        return happened("NO_FOLDER", undo)

    @act
    def times_are_changed(self) -> Happening:
        """As a copy does it."""
        for path in self.folder.iterdir():
            moment = self.dice.choice([0, 2_000_000_000])
            os.utime(path, (moment, moment), follow_symlinks=False)
        return happened()

    @act
    def column_is_renamed(self) -> Happening:
        return self._odd_file([{"id": id, "m": n, "v": v} for id, n, v in map(row_of, self.some_ids())])

    @act
    def column_has_another_type(self) -> Happening:
        return self._odd_file([{"id": id, "n": f"no. {n}", "v": v} for id, n, v in map(row_of, self.some_ids())])

    @act
    def column_is_dropped(self) -> Happening | None:
        if self.format == "json":
            return None  # a key that a record lacks is null
        return self._odd_file([{"id": id, "v": v} for id, _, v in map(row_of, self.some_ids())])

    @act
    def column_is_added(self) -> Happening:
        ids = self.some_ids()
        rows = [{"id": id, "n": n, "v": v, "more": "?"} for id, n, v in map(row_of, ids)]
        if self.format == "parquet":
            name = self.new_name()
            self.write(name, rows)
            self.show(name, ids)
            return happened()
        return self._odd_file(rows)

    @act
    def columns_are_in_another_order(self) -> Happening:
        ids = self.some_ids()
        rows = [{"v": v, "n": n, "id": id} for id, n, v in map(row_of, ids)]
        name = self.new_name()
        self.write(name, rows)
        self.show(name, ids)
        return happened()

    @act
    def names_are_in_capitals(self) -> Happening:
        rows = [{"ID": id, "N": n, "V": v} for id, n, v in map(row_of, self.some_ids())]
        return self._odd_file(rows, may_fit=True)

    def _odd_file(self, rows: list[dict[str, Any]], *, may_fit: bool = False) -> Happening:
        """A file that does not fit; somebody takes it away, or mends it."""
        name = self.new_name()
        self.write(name, rows)
        ids = [row.get("id") or row["ID"] for row in rows]
        if may_fit:
            self.show(name, ids)

        def undo() -> None:
            if self.dice.random() < 0.5:
                self.put(name, ids)
                return
            (self.folder / name).unlink()
            if may_fit:
                self.hide(name)

        return happened("MALFORMED_RECORD SCHEMA_MISMATCH", undo)

    @act
    def link_leads_out(self) -> Happening:
        outside = self.project.path("outside")
        outside.write_text("{}")
        link = self.folder / self.new_name()
        link.symlink_to(outside)
        return happened("LINK_OUTSIDE", link.unlink)

    @act
    def name_is_no_text(self) -> Happening:
        path = os.fsencode(self.folder) + b"/\xff." + self.format.encode()
        with open(path, "wb"):
            pass
        return happened("BAD_FILE_NAME", lambda: os.unlink(path))

    @act
    def others_leave_their_files(self) -> Happening:
        (self.folder / f"{self.new_name()}.tmp").write_text("half of")
        (self.folder / f"_{self.new_name()}").write_text("half of")
        (self.folder / self.new_name()).mkdir()
        return happened()

    @act
    def empty_file_arrives(self) -> Happening:
        name = self.new_name()
        if self.format == "json":
            (self.folder / name).write_bytes(b"")
        else:
            self.write_empty(name)
        return happened()

    def write_empty(self, name: str) -> None:
        schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("v", pa.string())])
        if self.format == "csv":
            pa.csv.write_csv(schema.empty_table(), self.folder / name)
        else:
            pq.write_table(schema.empty_table(), self.folder / name)
