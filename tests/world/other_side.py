"""What is at the other side of a connector, what can befall it, and what must be published whatever does.

The model is kept by whoever changes the other side: it has never seen the product's code.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from tests.kit.kafka import Broker, kafka
from tests.kit.postgres import Server, server
from tests.world.project import Project, Row, row_of

__all__ = [
    "Happening",
    "OtherSide",
    "Servers",
    "SinkSide",
    "SourceSide",
    "Table",
    "Unit",
    "act",
    "happened",
    "read_only",
]


class Servers:
    """Those that lives need, each started for the first one that does, and stopped after the last one."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self.place = 0

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *failure: object) -> None:
        self._running.close()

    @cached_property
    def postgres(self) -> Server:
        settings = ("wal_level=logical", "fsync=off", "max_wal_senders=4", "max_replication_slots=8")
        return self._running.enter_context(server(*settings, "wal_keep_size=64MB", "autovacuum=off"))

    @cached_property
    def kafka(self) -> Broker:
        return self._running.enter_context(kafka())

    def new_name(self, of: str) -> str:
        """A name that nothing on a server has had."""
        self.place += 1
        return f"{of}{self.place}"


@dataclass
class Happening:
    """Something that the outside world has done."""

    what: str = ""
    reasons: frozenset[str] = frozenset()
    """Causes that may be named for it. Empty: everything continues as if nothing had happened."""
    undo: Callable[[], object] | None = None
    """Brings back what was there, or gives up what cannot be read: after that everything continues."""
    passing: bool = False
    """Whether that is done as well if nothing came of it."""
    remedy: str = ""
    """How a command begins that the cause names, after which everything continues."""
    code: Callable[[], object] | None = None
    """Changes the pipeline's code as the cause advises."""
    advice: str = ""
    """What the cause says of that."""
    effect: Callable[[], object] | None = None
    """What the command, or the code, does to what is due."""
    statement: Callable[[str], object] | None = None
    """Carries out the SQL of the cause's advice."""
    final: bool = False
    """Whether nothing continues after it under this name."""


def happened(reasons: str = "", undo: Callable[[], object] | None = None, **more: Any) -> Happening:
    """reasons: separated by spaces."""
    found = set(reasons.split())
    if found & {"STORAGE", "DATABASE_AWAY", "DATABASE_REFUSES", "KAFKA_AWAY", "TARGET_AWAY"}:
        found.add("TOO_MANY_UNPUBLISHED")  # for which the same is named
    return Happening(reasons=frozenset(found), undo=undo, **more)


def read_only(folder: Path, closing: ExitStack) -> Happening | None:
    """Nobody can make or remove a file there, not even root. None: nobody here can see to that."""

    def change(how: str) -> bool:
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        return subprocess.run(["chattr", how, *map(str, folders)], capture_output=True, check=False).returncode == 0

    if shutil.which("chattr") is None or not change("+i"):
        return None
    closing.callback(change, "-i")
    return happened("STORAGE", lambda: change("-i"), passing=True)


def full_disk(folder: Path, closing: ExitStack) -> Happening | None:
    """The folder is on a disk of its own, on which no byte is free. None: nobody here can see to that."""
    aside = folder.with_name(f"{folder.name}-of-the-full-disk")

    def command(*words: str) -> bool:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(folder, aside)
    if os.getuid() != 0 or not command("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)):
        return None
    shutil.copytree(aside, folder, dirs_exist_ok=True)
    with contextlib.suppress(OSError), (folder / "_filler").open("wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass

    def undo() -> None:
        if not folder.is_mount():
            return
        (folder / "_filler").unlink()
        shutil.rmtree(aside)
        shutil.copytree(folder, aside)
        command("umount", "-l", str(folder))
        shutil.rmtree(folder)
        aside.rename(folder)

    closing.callback(undo)
    return happened("STORAGE DISK_FULL", undo, passing=True)


Act = Callable[[Any], Happening | None]


def act(function: Act) -> Act:
    """Marks what can befall the other side. It returns None where it cannot happen now."""
    function.is_act = True  # type: ignore[attr-defined]
    return function


class OtherSide(ABC):
    """One connector's surroundings."""

    kind: ClassVar[str]
    names: tuple[str, ...]
    """What a cause calls it, one of these."""
    in_flight: ClassVar[str] = ""
    """Causes that any act may have in the middle of a checkpoint, which the next one does without."""
    needs: ClassVar[str] = ""
    """The server that it needs."""

    def __init__(self, dice: random.Random, servers: Servers) -> None:
        self.dice, self.servers = dice, servers
        self.closing = ExitStack()
        self.undoing: list[Callable[[], object]] = []

    project: Project

    def connections(self, folder: Path) -> dict[str, dict[str, str]]:
        """The setting."""
        return {}

    @abstractmethod
    def declared(self) -> tuple[str, str]:
        """The code of source and sink."""

    @abstractmethod
    def arrive(self) -> None:
        """Let new rows come."""

    @abstractmethod
    def wrong(self, succeeded: bool) -> list[str]:
        """What is published and must not be, or is not and must be."""

    def begin(self, project: Project) -> None:
        """Make the other side."""
        self.project = project

    def end(self) -> None:
        """Leave nothing on servers."""
        self.closing.close()

    @classmethod
    def acts(cls) -> list[str]:
        return [name for name in dir(cls) if getattr(getattr(cls, name), "is_act", False)]

    def some_ids(self) -> list[int]:
        return self.project.new_ids(self.dice.choice([1, 1, 2, 3]))

    @act
    def clock_is_set_back(self) -> Happening:
        """A day; or it is put right again."""
        from datetime import timedelta

        self.project.clock_back = timedelta(days=self.dice.choice([0, 1, 400]))
        return happened()


@dataclass
class Unit:
    """What the outside shows all at once: a file of this name, a version, a transaction."""

    name: str
    variants: list[frozenset[int]] = field(default_factory=list)
    """The ids of the rows that it has had, over time."""
    shown: bool = True
    """Whether it is there now, with the last variant."""
    excused: bool = False
    """True: it may be left out, by what was agreed on."""


class SourceSide(OtherSide):
    """Rows come from there, and must be published once, as they were shown."""

    SINK: ClassVar[str] = 'DeltaAppend("tables/rows", schema_evolution="add")'

    def __init__(self, dice: random.Random, servers: Servers) -> None:
        super().__init__(dice, servers)
        self.units: dict[str, Unit] = {}
        self.names = ("'events'",)

    def show(self, name: str, ids: Iterable[int]) -> None:
        """The outside shows a unit with these rows now."""
        unit = self.units.setdefault(name, Unit(name))
        if unit.variants[-1:] != [frozenset(ids)]:
            unit.variants.append(frozenset(ids))
        unit.shown = True

    def hide(self, *names: str) -> None:
        for name in names:
            self.units[name].shown = False

    def published(self) -> list[Row]:
        """The rows of the table, by a reader that is not ours."""
        from deltalake import DeltaTable

        folder = self.project.path("tables/rows")
        if not (folder / "_delta_log").exists():
            return []
        return [self.seen(row) for row in DeltaTable(str(folder)).to_pyarrow_table().to_pylist()]

    def seen(self, row: dict[str, Any]) -> Row:
        return row["id"], row.get("n"), row.get("v")

    def read_ids(self) -> set[int]:
        return {row[0] for row in self.published()}

    def is_read(self, name: str) -> bool:
        read = self.read_ids()
        return any(ids & read for ids in self.units[name].variants)

    def wrong(self, succeeded: bool) -> list[str]:
        rows = Counter(self.published())
        return [*self._false(rows), *self._cut(set(rows), succeeded)]

    def _false(self, rows: Counter[Row]) -> Iterator[str]:
        offered = {id for unit in self.units.values() for ids in unit.variants for id in ids}
        for row, count in rows.items():
            if count > 1:
                yield f"row {row[0]} is there {count} times"
            if row[0] not in offered:
                yield f"row {row[0]} was never shown"
            elif row != row_of(row[0]):
                yield f"row {row[0]} is there as {row}, and was {row_of(row[0])}"

    def _cut(self, rows: set[Row], succeeded: bool) -> Iterator[str]:
        read = {row[0] for row in rows}
        for unit in self.units.values():
            found = [ids for ids in unit.variants if ids & read]
            if len(found) > 1:
                yield f"{unit.name} was read {len(found)} times, with different rows: {list(map(sorted, found))}"
            for ids in found:
                if not ids <= read:
                    yield f"{unit.name} was read in part: {sorted(ids & read)} of {sorted(ids)}"
            is_due = unit.shown and not unit.excused and unit.variants and unit.variants[-1]
            if succeeded and is_due and not found:
                yield f"{unit.name} is there, and was not read: {sorted(unit.variants[-1])}"


Table = Counter[Any]


class SinkSide(OtherSide):
    """Rows go there. They come from files that nobody touches."""

    SOURCE: ClassVar[str] = 'Files("landing/*.json", schema="id long, n long, v string", max_files=2)'

    def __init__(self, dice: random.Random, servers: Servers) -> None:
        super().__init__(dice, servers)
        self.table: Table = Counter()
        """What must be there: what others have put there, and the files that are done."""
        self.files: list[list[int]] = []
        self.done = 0
        """How many of them are published for certain."""
        self.may_begin_anew = False
        self.names = ("'rows'", "sink rows")

    @property
    def pending(self) -> list[list[int]]:
        return self.files[self.done :]

    @abstractmethod
    def published(self) -> Table:
        """What readers find, by a client that is not ours."""

    def row(self, id: int) -> Row:
        return row_of(id)

    def arrive(self) -> None:
        ids = self.some_ids()
        self.files.append(ids)
        folder = self.project.path("landing")
        folder.mkdir(exist_ok=True)
        rows = (dict(zip(("id", "n", "v"), self.row(id), strict=True)) for id in ids)
        (folder / f"{len(self.files):06d}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def add(self, table: Table, ids: Iterable[int]) -> Table:
        """What a table has after these rows."""
        return table + Counter(map(self.row, ids))

    def fold(self, files: Iterable[list[int]]) -> Table:
        table = Counter(self.table)
        for ids in files:
            table = self.add(table, ids)
        return table

    def wrong(self, succeeded: bool) -> list[str]:
        found, pending = self.published(), self.pending
        counts = [len(pending)] if succeeded else range(len(pending) + 1)
        allowed = [(self.fold(pending[:n]), n) for n in counts]
        if self.may_begin_anew and succeeded:  # what was owed to the table before may be lost with it
            allowed = [(self.fold(pending[n:]), len(pending)) for n in range(len(pending) + 1)]
        for table, done in allowed:
            if found == table:
                self.table, self.done = table, self.done + done
                self.may_begin_anew = self.may_begin_anew and not succeeded
                return []
        wanted = self.fold(pending)
        missing, beyond = wanted - found, found - wanted
        return [
            f"{missing.total()} rows are missing, such as {list(missing)[:3]}, and {beyond.total()} are there beyond "
            f"those that must be, such as {list(beyond)[:3]}"
        ]

    def settle(self) -> None:
        """Before the table is changed by hand: what is there of what may be there."""
        wrong = self.wrong(succeeded=False)
        assert not wrong, f"before anything was done: {wrong[0]}"

    def replaced(self, table: Table, done: int) -> Callable[[], None]:
        """The target is another one now, with these rows, to which so many files are published. Returns what brings the
        former one back."""
        before = self.table, self.done
        self.table, self.done = table, done

        def undo() -> None:
            self.table, self.done = before

        return undo

    def begin_anew(self, done: int) -> None:
        """As a rollback with --leave promises."""
        self.table, self.done, self.may_begin_anew = Counter(), done, True
