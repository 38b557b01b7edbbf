"""`python -m tests.crash.thirty_days`: thirty days of the example, computed again after a bug, killed at every step.

A day is a checkpoint of two files of orders, and of payments. From the eleventh on, the code lost the orders of one
country; then it was mended. The story: a backfill from the beginning, in larger ranges, dies at one of the points that
it passes, from its begin to its end; the pipeline continues for a day; the same backfill is begun again, is swapped in,
and the pipeline continues. In the end rows, states and quarantine are those of a pipeline that never had the bug, and
every version that a table has had in between is one that a reader may see: all old, or all new.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from jobs import orders_feed
from tests.kit.example import two_files_each_time
from tests.spark.mended_shop import OneSession
from tidegate import offline
from tidegate.backfill import begin, discard, open_line, pause_pipeline, replay, swap
from tidegate.config import load_settings
from tidegate.coordinator import Coordinator, Outcome
from tidegate.execution import runs
from tidegate.execution.loop import Observer, Schedule, run_checkpoints
from tidegate.ledger import open_ledger
from tidegate.protocol.backfill import Swapped
from tidegate.testing import crash_at, points_reached

ROOT = Path(__file__).resolve().parents[2]
DAYS, RIGHT_DAYS, ROWS, LARGER = 30, 10, 30, 10
MENDED = 'return checked.drop("_corrupt_record")'
WRONG = f"""{MENDED}.where("country IS NULL OR country <> 'KE'")"""
OPERATORS = ("once", "revenue", "totals")
SETTINGS = """
root = "ledger"
data = "."
num_retained = 3
"""

Shown = dict[str, Counter[str]]


class Example:
    """A copy of the example in a folder of its own, with its data and its ledger. Work in it, inside of `here`."""

    def __init__(self, folder: Path, spark: Any) -> None:
        self.folder, self.spark = folder, spark

    @staticmethod
    def new(folder: Path, spark: Any) -> Example:
        shutil.copytree(ROOT / "include" / "expectations", folder / "include" / "expectations")
        (folder / "jobs").mkdir()
        shutil.copy(ROOT / "jobs" / "orders.py", folder / "jobs")
        (folder / "tidegate.toml").write_text(SETTINGS)
        two_files_each_time(folder)
        return Example(folder, spark)

    def copied(self, folder: Path) -> Example:
        shutil.copytree(self.folder, folder)
        return Example(folder, self.spark)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        with contextlib.chdir(self.folder):
            yield

    @property
    def code(self) -> Path:
        return self.folder / "jobs" / "orders.py"

    def change(self, old: str, new: str) -> None:
        text = self.code.read_text()
        assert text.count(old) == 1
        self.code.write_text(text.replace(old, new))

    def coordinator(self) -> Coordinator:
        """As each process makes it."""
        spec = importlib.util.spec_from_file_location("orders", self.code)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        settings = load_settings(code=module.pipeline.settings)
        graph = module.pipeline.graph(settings.place(), None)
        return Coordinator(graph, open_ledger(settings.root, "orders"), settings, settings.place())

    # -- what happens ------------------------------------------------------------------------------------

    def live(self, days: int = 1) -> None:
        """So many more days land, and the pipeline takes them, one checkpoint each."""
        orders_feed.feed(Path(), 2 * days, ROWS)
        self.checkpoints(Schedule(checkpoints=days))

    def checkpoints(self, schedule: Schedule) -> list[Outcome]:
        outcomes = run_checkpoints(self.coordinator(), OneSession(self.spark), schedule, Observer())
        assert [outcome.state for outcome in outcomes] == ["completed"] * len(outcomes), outcomes
        return outcomes

    def backfill(self) -> None:
        """What `tidegate backfill --from beginning --larger 10 --swap` does; again, if it was interrupted."""
        live, sessions = self.coordinator(), OneSession(self.spark)
        if live.ledger.line_discarded("fix") is not None:
            return
        record = live.ledger.line("fix")
        swapped = record is not None and isinstance(open_line(live, record).backfill.next_step(), Swapped)
        line = open_line(live, record) if swapped and record is not None else begin(live, "fix", 0, by="ann")
        if not swapped:
            line.backfill.larger = LARGER
            replay(line, sessions, Schedule(), Observer())
            pause_pipeline(line, nothing_to_wait_for)
            replay(line, sessions, Schedule(), Observer())
        done = swap(line, by="ann", choices={}, wait=nothing_to_wait_for)
        assert done.error is None, done.error
        assert done.report is not None
        assert not done.report.stuck
        discard(line, "ann")

    # -- what is there -----------------------------------------------------------------------------------

    def shown(self) -> Shown:
        """Rows, states and quarantine."""
        shown = {name: counted(self.versions(name)[-1]()) for name in ("revenue", "totals")}
        closed = max((row["window_end"] for row in self.versions("revenue")[-1]()), default=None)
        for operator in OPERATORS:
            rows = offline.read_state(self.spark, "orders", operator).toArrow().to_pylist()
            # A window that is complete may linger in the state: nothing comes of it any more.
            is_open = [closed is None or "window_end" not in row or row["window_end"] > closed for row in rows]
            shown[f"state of {operator}"] = counted(list(itertools.compress(rows, is_open)))
        shown["quarantine"] = counted(
            delta(Path("ledger/orders/quarantine/checked"), None), leave_out=("_tidegate_id", "_tidegate_checkpoint")
        )
        return shown

    def versions(self, table: str, first: int = 0) -> list[Callable[[], list[dict[str, Any]]]]:
        """All versions of a table from the first one on, to be read."""
        from deltalake import DeltaTable

        path = Path("tables", table)
        last = DeltaTable(str(path)).version()
        return [partial(delta, path, number) for number in range(first, last + 1)]


def delta(path: Path, version: int | None) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    rows: list[dict[str, Any]] = DeltaTable(str(path), version=version).to_pyarrow_table().to_pylist()
    return rows


def counted(rows: list[dict[str, Any]], leave_out: tuple[str, ...] = ()) -> Counter[str]:
    """The rows, without columns whose names begin so."""
    kept = ({name: value for name, value in row.items() if not name.startswith(leave_out)} for row in rows)
    return Counter(repr(sorted(row.items())) for row in kept)


@contextlib.contextmanager
def a_process(number: int) -> Iterator[None]:
    """What happens inside happens in a process of its own, as far as others can see: after it, it has ended."""
    with patch.object(runs, "_started", lambda pid: f"{pid}.{number}"):
        yield


def nothing_to_wait_for(why: str) -> None:
    raise AssertionError(f"nothing is to be waited for: {why}")


class ThirtyDays:
    """The thirty days, and what must come of them."""

    def __init__(self, home: Path, spark: Any, days: int = DAYS) -> None:
        self.home = home
        self.begun = Example.new(home / "begun", spark)
        with self.begun.here():
            self.begun.live(RIGHT_DAYS * days // DAYS)
            self.begun.change(MENDED, WRONG)
            self.begun.live(days - RIGHT_DAYS * days // DAYS)
            self.begun.change(WRONG, MENDED)
            self.heads = {name: len(self.begun.versions(name)) - 1 for name in ("revenue", "totals")}
        self.old = self.readable(self.begun.copied(home / "old"))
        never = Example.new(home / "right", spark)
        with never.here():
            orders_feed.feed(Path(), 2 * days, ROWS)
            never.checkpoints(Schedule(until_idle=True))
        self.new = self.readable(never)
        with never.here():
            self.right = never.shown()

    def readable(self, example: Example) -> dict[str, list[Counter[str]]]:
        """The rows of each table now, and after each of two more days."""
        found: dict[str, list[Counter[str]]] = {}
        with example.here():
            for day in range(3):
                if day:
                    example.live()
                for name in self.heads:
                    found.setdefault(name, []).append(counted(example.versions(name)[-1]()))
        return found

    def points(self) -> list[str]:
        """All that an undisturbed backfill passes, in their order."""
        example = self.begun.copied(self.home / "sample")
        with example.here(), points_reached() as points:
            example.backfill()
        shutil.rmtree(example.folder)
        return points

    def tell(self, point: str, passed: int) -> str:
        """What is wrong in the end, if the backfill dies there."""
        example = self.begun.copied(self.home / "told")
        try:
            with example.here():
                with a_process(1), crash_at(point, passed):
                    example.backfill()
                with a_process(2):
                    example.live()
                with a_process(3):
                    example.backfill()
                with a_process(4):
                    orders_feed.feed(Path(), 2, ROWS)
                    example.checkpoints(Schedule(until_idle=True))
                return self.differs(example)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            shutil.rmtree(example.folder)

    def differs(self, example: Example) -> str:
        shown = example.shown()
        wrong = [name for name, rows in self.right.items() if shown[name] != rows]
        if wrong:
            name = wrong[0]
            more, less = shown[name] - self.right[name], self.right[name] - shown[name]
            return (
                f"{', '.join(wrong)} differ from those of a pipeline without the bug: {name} has {more.total()} rows "
                f"more, such as {next(iter(more), None)}, and {less.total()} less, such as {next(iter(less), None)}"
            )
        for name, head in self.heads.items():
            allowed = [*self.old[name], *self.new[name]]
            for number, read in enumerate(example.versions(name, head), head):
                if counted(read()) not in allowed:
                    return f"version {number} of {name} is neither old nor new"
        return ""


def main() -> int:
    """Tell them all, and print those that go wrong."""
    from tests.bench.spark import sessions

    parser = argparse.ArgumentParser(prog="python -m tests.crash.thirty_days", description=__doc__)
    parser.add_argument("--part", default="1/1", help="2/5: the second fifth of it")
    parser.add_argument("--days", type=int, default=DAYS)
    parser.add_argument("--ends", action="store_true", help="of the many times that a point is passed, first and last")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    began, wrong = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="tidegate-thirty-") as folder:
        story = ThirtyDays(Path(folder), sessions("local")(), options.days)
        points = story.points()
        wanted = [(point, points[:number].count(point)) for number, point in enumerate(points)]
        if options.ends:
            wanted = [(point, passed) for point, passed in wanted if passed in (0, points.count(point) - 1)]
        wanted = wanted[part - 1 :: parts]
        print(f"{time.monotonic() - began:6.0f} s  {len(points)} points, of which {len(wanted)} are told", flush=True)
        for point, passed in wanted:
            what = story.tell(point, passed)
            wrong += bool(what)
            print(f"{time.monotonic() - began:6.0f} s  {point}, passed {passed} times: {what or 'right'}", flush=True)
    print(f"{len(wanted)} stories: {wrong} went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
