"""A project folder with three pipelines, and what a user, an operator and a vandal do there, by commands typed here.

`orders` has what most features need: a gate that sets rows aside, one that waits for a person, one for what a table
refuses, a keyed state, a hook that is remembered, two sources. `daily` makes its table day by day. `other` has nothing
but a source, whose schema follows its input, and a table: whatever befalls the two, it is well.
Every value of a row holds CANARY, and so does a key of the records of `other`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import random
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.kit.jvm import INTERPRETED, toml
from tests.kit.suites import RANGE, gx_project, gx_rule, gx_suite
from tidegate import seams
from tidegate.cli.main import main
from tidegate.errors import TidegateError

__all__ = ["CANARY", "NAMES", "SCHEMA", "Died", "Said", "Shops", "day"]

CANARY = "CANARY7e41"

SCHEMA = "id long, k string, v double, note string"

CODE = """
from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files


def build(version=0, moved=False, dropped=False, by_event=False, name="orders", tables="tables", fresh=False):
    pipeline = Pipeline(name, interval="event", max_pause="1 h") if by_event else Pipeline(name)
    events = pipeline.source("sold" if moved else "events", Files("landing/events/*.json", schema=SCHEMA, max_files=2))
    if not dropped:
        events = events.union(pipeline.source("more", Files("landing/more/*.json", schema=SCHEMA)))
    checked = events.gate(Expectations("signs", on_failure="quarantine", at_most=0.7), name="checked")
    judged = checked.gate(Expectations("sizes", context="gx", on_failure="hold"), name="sizes")
    judged.sink("sales", DeltaAppend(f"{tables}/sales"), refused="quarantine")
    added = {"most": "max(v)"} if version % 2 else {}
    totals = judged.aggregate(by="k", n="count(*)", total="sum(v)", **added, uid="totals")
    totals.sink("totals", DeltaUpsert(f"{tables}/totals", keys=["k"], schema_evolution="add"))
    pipeline.promise(["sales", "totals"], fresh="1 h")
    pipeline.hook("cursor", on_trigger=lambda it: {"at": it.id}, on_restore=lambda state: None, on_reset=lambda: None)
    return pipeline


other = Pipeline("other")
evolving = Files("landing/other/*.json", schema=SCHEMA, on_new_column="evolve")
other.source("events", evolving).sink("rows", DeltaAppend("other/rows", schema_evolution="add"))

daily = Pipeline("daily", interval="1 day")
days = daily.source("days", Files("landing/days/{start:%Y-%m-%d}/*.json", schema=SCHEMA))
days.sink("rows", DeltaAppend("daily/rows"))
"""

SIGNS = """
name: signs
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: v, min_value: 0}, id: positive}
"""

SETTINGS = """
root = "ledger"
num_retained = 3
tolerable_failed_checkpoints = 1
timeout = "5 min"

[restart]
strategy = "none"

[spark]
mode = "local"
master = "local[2]"
memory = "2g"
"""

DAG = """
import sys
from tidegate.dag import build_dag
sys.path.insert(0, {root!r})
from shop import PIPELINE
dag = build_dag(PIPELINE, project={root!r})
"""


NAMES = ("orders", "other", "daily", "trial")
"""All pipelines that there may be."""

PATIENCE = 100
"""Naps of a command until somebody ends it."""


class Died(BaseException):
    """The process, at a fault point."""


@dataclass
class Said:
    """What a command printed, and its exit code; None if it died."""

    line: str
    code: int | None
    out: str
    err: str

    @property
    def text(self) -> str:
        return f"{self.out}\n{self.err}"

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def is_unforeseen(self) -> bool:
        return "this should not happen" in self.err or "Traceback (most recent call last)" in self.text


@dataclass
class Shops:
    """The folder, as it is now."""

    folder: Path
    code: dict[str, Any] = field(default_factory=dict)
    """How the code of `orders` differs from the first one."""
    files: int = 0
    died: bool = False
    """Whether a command has died. What it was at work on seems to be worked on: the process that died is this one."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        suites = self.folder / "include" / "expectations"
        suites.mkdir(parents=True)
        (suites / "signs.yaml").write_text(SIGNS)
        gx_project(self.folder, gx_suite(gx_rule(RANGE, kwargs={"column": "v", "max_value": 1000})), "sizes")
        for source in ("events", "more", "other"):
            (self.folder / "landing" / source).mkdir(parents=True)
        (self.folder / "tidegate.toml").write_text(SETTINGS + toml(INTERPRETED))
        self.write_code()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Work in the folder, as a user does."""
        before, path = Path.cwd(), list(sys.path)
        os.chdir(self.folder)
        try:
            yield
        finally:
            os.chdir(before)
            sys.path[:] = path
            sys.modules.pop("shop", None)

    def write_code(self, **changes: Any) -> None:
        self.code |= changes
        forks = "".join(f"{name} = build({told})\n" for name, told in self._pipelines().items())
        (self.folder / "shop.py").write_text(f"SCHEMA = {SCHEMA!r}\n{CODE}\n{forks}")
        sys.modules.pop("shop", None)
        importlib.invalidate_caches()

    def _pipelines(self) -> dict[str, str]:
        told = ", ".join(f"{key}={value!r}" for key, value in self.code.items())
        return {"orders": told, "trial": ", ".join(filter(None, [told, "name='trial'", "tables='trial'"]))}

    @property
    def source(self) -> str:
        return "sold" if self.code.get("moved") else "events"

    def feed(self, *values: float, source: str = "events") -> None:
        """Let one file land with a row for each value."""
        folder = self.folder / "landing" / source
        folder.mkdir(exist_ok=True, parents=True)
        more = {"vip": True, f"{CANARY}.x": 1} if source == "other" else {}
        (folder / f"{self.files + 1:06d}.json").write_text(
            "".join(json.dumps(row | more) + "\n" for row in self.rows(*values))
        )

    def rows(self, *values: float) -> list[dict[str, Any]]:
        """A row for each value, none of which there has been before."""
        self.files += 1
        return [
            {"id": 100 * self.files + n, "k": f"{CANARY}-{int(abs(v)) % 3}", "v": v, "note": f"{CANARY} {v}"}
            for n, v in enumerate(values)
        ]

    @property
    def pipelines(self) -> list[str]:
        """Those that have begun."""
        return [name for name in NAMES if (self.folder / "ledger" / name).is_dir()]

    def do(self, what: str, deed: Callable[[], object]) -> Said:
        """Something that people do in Python. Like a command it ends with 0, or tells its error and ends with 1."""
        try:
            deed()
        except TidegateError as error:
            return Said(what, 1, "", f"{error.what}\n{error.help}\n")
        except Exception:
            return Said(what, 1, "", traceback.format_exc())
        return Said(what, 0, "", "")

    def now(self) -> datetime:
        """The time of its clock."""
        return datetime.now(UTC)

    def run(self, line: str, *, dies_at: Callable[[str], None] | None = None) -> Said:
        """One command, as it is typed behind `tidegate`."""
        out, err = io.StringIO(), io.StringIO()
        sys.modules.pop("shop", None)  # each process imports it
        hook = seams.Seams(now=self.now, fault=dies_at or _continues, sleep=_impatient())
        code: int | None = None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), seams.installed(hook):
            try:
                code = main(shlex.split(line))
            except Died:
                self.died = True
            except BaseException:
                traceback.print_exc()
        return Said(line, code, out.getvalue(), err.getvalue())

    @contextlib.contextmanager
    def copied(self) -> Iterator[None]:
        """Whatever happens inside has not happened afterwards: records and tables are put back where they were."""
        kept, code = self.folder.with_name(f"{self.folder.name}.kept"), dict(self.code)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.folder, kept, symlinks=True)
        try:
            yield
        finally:
            for path in self.folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.copytree(kept, self.folder, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(kept)
            self.code = code


def day(number: int) -> str:
    """The interval of a day, as it is typed."""
    return f"2026-03-{number:02d}/2026-03-{number + 1:02d}"


def _continues(point: str) -> None:
    """Nobody dies here."""


def _impatient() -> Callable[[float], None]:
    """Nobody waits for a minute before a retry; and who sees nothing but waiting presses Ctrl-C."""
    left = [PATIENCE]

    def sleep(seconds: float) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        time.sleep(min(seconds, 0.05))

    return sleep


def random_point(dice: random.Random) -> tuple[Callable[[str], None], list[str]]:
    """A fault hook that lets the process die at one of the first points that it comes by, and where that was."""
    left, where = [dice.choice([1, 2, 3, 5, 8, 12, 20, 30])], list[str]()

    def dies(point: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            where.append(point)
            raise Died(point)

    return dies, where
