"""A project folder with one pipeline between one connector and plain files or a plain table, run by real commands."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from tests.kit.jvm import INTERPRETED, toml
from tests.views.shops import CANARY, Died, Said, Shops
from tidegate import seams
from tidegate.errors import TidegateError
from tidegate.execution import runs
from tidegate.execution.input_watch import InputWatch
from tidegate.execution.loading import find_pipeline
from tidegate.execution.opening import open_coordinator

__all__ = ["Project", "Row", "at_a_point", "row_of"]

Row = tuple[int, int | None, str | None]
NEVER_S = 1e9

CODE = """
from tidegate import Pipeline
from tidegate.sinks import *
from tidegate.sources import *

orders = Pipeline("orders")
orders.source("events", {reads}).sink("rows", {writes})
orders.promise("rows", fresh="1 h")
"""

SETTINGS = """
root = "ledger"
num_retained = {retained}
tolerable_failed_checkpoints = 0
timeout = "5 min"

[restart]
strategy = "none"

[spark]
mode = "local"
master = "local[2]"
memory = "2g"
"""


def row_of(id: int) -> Row:
    """The only right row of this id: whatever else has it is false."""
    return id, id * 10, f"{CANARY} {id}"


@dataclass
class Project(Shops):
    """The folder, and what its commands say."""

    retained: int = 2
    reads: str = ""
    writes: str = ""
    """The code of its source and of its sink."""
    connections: dict[str, dict[str, str]] = field(default_factory=dict)
    clock_back: timedelta = timedelta()
    commands: int = 0
    is_running: bool = False
    """Whether something happens in the middle of a command."""
    last_id: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        told = SETTINGS.format(retained=self.retained) + toml(INTERPRETED)
        for name, options in self.connections.items():
            told += f"\n[connections.{name}]\n" + "".join(f'"{key}" = {json.dumps(v)}\n' for key, v in options.items())
        (self.folder / "tidegate.toml").write_text(told)
        self.write_code()

    def write_code(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self, name, value)
        (self.folder / "shop.py").write_text(CODE.format(reads=self.reads, writes=self.writes))

    def new_ids(self, count: int) -> list[int]:
        """Ids that no row has had."""
        self.last_id += count
        return list(range(self.last_id - count + 1, self.last_id + 1))

    def run(self, line: str, *, dies_at: Callable[[str], None] | None = None) -> Said:
        """One command, as a process of its own that is gone afterwards, however it ended."""
        self.commands += 1
        started = f"0{self.commands}"
        self.is_running = True
        try:
            with mock.patch.object(runs, "_started", return_value=started):
                return super().run(line, dies_at=dies_at)
        finally:
            self.is_running = False

    def now(self) -> datetime:
        return datetime.now(UTC) - self.clock_back

    def make_checkpoints(self, at: Callable[[str], None] | None = None) -> Said:
        """All that are needed to read what is there."""
        return self.run("run shop:orders --until-idle --json", dies_at=at)

    def watched(self) -> str:
        """Why somebody who begins to watch now asks for a checkpoint, or cannot look. Nothing: there is no reason."""
        sys.modules.pop("shop", None)
        with seams.installed(seams.Seams(now=self.now)):
            pipeline = find_pipeline("orders", [("shop", str(self.path("shop.py")))], "the test")
            coordinator, _ = open_coordinator(pipeline, str(self.folder))
            if coordinator.suspended() is not None:
                return "it is suspended, and a person has to resume it"
            try:
                arrival = InputWatch(coordinator, NEVER_S).look()
            except TidegateError as error:
                return error.reason
        return arrival.reason if arrival is not None else ""

    def path(self, name: str) -> Path:
        return self.folder / name


def at_a_point(dice: random.Random, act: Callable[[], object], dies: bool) -> tuple[Callable[[str], None], list[str]]:
    """A fault hook that lets something happen at one of the first points that a process comes by, and then lets the
    process die, or not; and where that was."""
    left, where = [dice.choice([1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 17, 20])], list[str]()

    def hook(point: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            where.append(point)
            act()
            if dies:
                raise Died(point)

    return hook, where
