"""Nexmark, q0 to q22: tidegate, Structured Streaming and Flink, from 10 checkpoints of a million events and from one.

    make bench NAME=nexmark                               all of it: hours
    QUERIES="q5 q17" EVENTS=10000000 make bench NAME=nexmark

All read the same events on the same two cores, each query by itself, and take turns: ours, Structured Streaming in the
same session, Flink with RocksDB, Flink with its state on the heap (nexmark_streaming.py, nexmark_flink.py). In a first
round, which warms all of them up, each result is compared with DuckDB's, to the row; a time of a result that differs
does not count, and the bench fails. What an engine cannot do, or is not there to do, has no figure, and ratios are over
those queries that both sides can do.

Ours runs what `jobs/nexmark` declares, so tables of queries that replace rows are upserted; the others append changes.
Processor time is that of all processes of a side. Memory is the peak of those that live at the end: Python, the JVM and
its workers, or Flink's three JVMs; ours and Structured Streaming share one, which keeps what it once took.

It also writes nexmark.md and nexmark.svg beside nexmark.json: the table and the plot of docs/benchmarks.md.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.nexmark.generator import Events
from tests.bench import nexmark_flink, nexmark_report
from tests.bench.harness import Budget, Options, Result, core_seconds
from tests.bench.memory import everything, peak
from tests.bench.nexmark_streaming import CANNOT, Streaming
from tests.bench.spark import sessions
from tests.kit.limits import Limits
from tests.nexmark.playing import NAMES, Play, prepare, side_input
from tests.nexmark.reference import Reference
from tidegate.coordinator import Coordinator
from tidegate.execution.loop import Observer, Schedule, run_checkpoints
from tidegate.ledger import open_ledger
from tidegate.records.place import Place

CUTS = 10
QUICK = ("q5", "q17")
OURS, STREAMING, ROCKSDB, HEAP = "ours", "streaming", "flink_rocksdb", "flink_heap"
BY_THE_CLOCK = ("q12",)
"""What runs by the clock gives everybody something else: only ours is compared, and no ratio has it."""

Figures = dict[str, dict[str, dict[str, float]]]
"""By query and side: seconds, core_seconds, megabytes, checkpoints."""


def run(options: Options) -> Result:
    names = (os.environ.get("QUERIES") or " ".join(QUICK if options.quick else NAMES)).split()
    cuts = 2 if options.quick else CUTS
    count = int(os.environ.get("EVENTS") or options.size(1_000_000, 4_000))
    events = Events(count, rate=options.size(10_000, 40))
    root = options.folder("nexmark")
    landing = options.cached(f"nexmark-{count}-{cuts}", lambda folder: events.write(folder, cuts))
    with contextlib.ExitStack() as stack:
        cluster = None if options.quick else stack.enter_context(flink_cluster(options, landing, root, count))
        races = {many: Race(options, root, landing, many, cluster) for many in (cuts, 1)}
        for name in names:
            for race in races.values():
                race.query(name)
    wrong = [line for race in races.values() for line in race.wrong]
    many, one = races[cuts].figures(), races[1].figures()
    nexmark_report.write(options.out, {"events": count, f"from_{cuts}": many, "from_1": one})
    rival = ratio(many, STREAMING)
    ours = sum(sides[OURS]["seconds"] for sides in many.values())
    keys = {
        "ratio_streaming": rival,
        "ratio_streaming_cores": ratio(many, STREAMING, "core_seconds"),
        "worst_ratio_streaming": worst(many, STREAMING),
        "ratio_streaming_1": ratio(one, STREAMING),
        "ratio_flink_rocksdb": ratio(many, ROCKSDB),
        "ratio_flink_rocksdb_cores": ratio(many, ROCKSDB, "core_seconds"),
        "ratio_flink_heap": ratio(many, HEAP),
        "ratio_flink_rocksdb_1": ratio(one, ROCKSDB),
        "ratio_flink_heap_1": ratio(one, HEAP),
        "queries": len(many),
        "events": count,
        f"from_{cuts}": many,
        "from_1": one,
    }
    limits = {"ratio_streaming": 0.33, "ratio_flink_rocksdb": 1.0, "worst_ratio_streaming": 1.0}
    streamed = sum(sides[STREAMING]["seconds"] for sides in many.values() if STREAMING in sides)
    return Result(
        "nexmark",
        ours_s=ours,
        pairs=options.pairs,
        rival_s=streamed,
        ratio=rival,
        equal=not wrong,
        wrong="; ".join(wrong),
        keys=keys,
        budgets=tuple(Budget(key, limit) for key, limit in limits.items() if keys[key] is not None),
    )


@contextlib.contextmanager
def flink_cluster(options: Options, landing: Path, root: Path, count: int) -> Iterator[nexmark_flink.Flink]:
    home = nexmark_flink.installed()
    files = options.cached(f"nexmark-flink-{count}", lambda folder: nexmark_flink.flink_files(landing, folder))
    (root / "flink").mkdir()
    with nexmark_flink.flink(home, root / "flink", files) as cluster:
        yield cluster


@dataclass
class Race:
    """All sides, with one number of checkpoints."""

    options: Options
    root: Path
    landing: Path
    checkpoints: int
    cluster: nexmark_flink.Flink | None
    wrong: list[str] = field(default_factory=list)
    """What differs from DuckDB."""
    rounds: dict[tuple[str, str], list[dict[str, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.references = {
            OURS: Reference(self.landing, self.checkpoints, "ours"),
            STREAMING: Reference(self.landing, self.checkpoints, "streaming"),
            ROCKSDB: Reference(self.landing, 1, "all"),
        }
        self.references[HEAP] = self.references[ROCKSDB]
        for reference in self.references.values():
            reference.side_input(side_input())
        self.max_files = 1 if self.checkpoints > 1 else 1000

    def query(self, name: str) -> None:
        """Let all sides take their turns at one query."""
        sides: dict[str, Callable[[str, bool], dict[str, float]]] = {OURS: self.ours}
        if name not in CANNOT:
            sides[STREAMING] = self.streaming
        if self.cluster is not None and name not in BY_THE_CLOCK:
            sides |= {ROCKSDB: self.flink_rocksdb, HEAP: self.flink_heap}
        unlike = set()
        warmups = self.options.size(1, 0)
        for turn in range(warmups + self.options.pairs):
            for side, take in sides.items():
                if side in unlike:
                    continue
                before = len(self.wrong)
                figures = take(name, turn == 0)
                if len(self.wrong) > before:
                    unlike.add(side)
                elif turn >= warmups:
                    self.rounds.setdefault((name, side), []).append(figures)

    def figures(self) -> Figures:
        """Return the medians."""
        found: Figures = {}
        for (name, side), rounds in self.rounds.items():
            medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
            found.setdefault(name, {})[side] = medians
        return {name: sides for name, sides in found.items() if OURS in sides}

    def check(self, side: str, name: str, found: Any) -> None:
        if differs := self.references[side].differs(name, found):
            self.wrong.append(f"{side}, {self.checkpoints} checkpoints, {name}: {differs}")

    def ours(self, name: str, compare: bool) -> dict[str, float]:
        play = Play(name, fresh(self.root / "ours"), max_files=self.max_files)
        prepare(play.folder, self.landing)
        place = Place(str(play.folder / "data"))
        ledger = open_ledger(str(play.folder / "ledger"), play.pipeline.name)
        held = sessions(self.options.spark)
        held().conf.set("spark.sql.shuffle.partitions", "2")
        with self.metered() as figures:
            control = Coordinator(play.pipeline.graph(place), ledger, Limits(), place)
            outcomes = run_checkpoints(control, held, Schedule(until_idle=True), Observer())
        assert [outcome.state for outcome in outcomes] == ["completed"] * self.checkpoints, outcomes
        if compare and name not in BY_THE_CLOCK:
            self.check(OURS, name, play.found())
        return figures | {"checkpoints": len(outcomes)}

    def streaming(self, name: str, compare: bool) -> dict[str, float]:
        out = fresh(self.root / "streaming")
        prepare(out, self.landing)
        query = Streaming(name, out / "data", out, self.options.spark, self.max_files)
        with self.metered() as figures:
            query.run()
        if compare:
            self.check(STREAMING, name, query.found(self.references[STREAMING]))
        return figures

    def flink_rocksdb(self, name: str, compare: bool) -> dict[str, float]:
        return self._flink(name, compare, ROCKSDB, "rocksdb")

    def flink_heap(self, name: str, compare: bool) -> dict[str, float]:
        return self._flink(name, compare, HEAP, "hashmap")

    def _flink(self, name: str, compare: bool, side: str, backend: str) -> dict[str, float]:
        assert self.cluster is not None
        out, reference = fresh(self.root / side), self.references[side]
        self.cluster.warm(name, out, reference, backend)
        with self.metered(self.cluster.pids) as figures:
            seconds, completed = self.cluster.run(name, out, reference, backend, self.checkpoints)
        if compare:
            self.check(side, name, self.cluster.found(name, out, reference))
        return figures | {"seconds": seconds, "checkpoints": completed}

    @contextlib.contextmanager
    def metered(self, pids: list[int] | None = None) -> Iterator[dict[str, float]]:
        """Measure a block. pids: the processes of another engine; by default this one, and all below it but those."""
        others = self.cluster.pids if self.cluster is not None else []

        def cores() -> float:
            if pids is not None:
                return sum(map(core_seconds, pids))
            return core_seconds() - sum(map(core_seconds, others))

        def processes() -> list[int]:
            if pids is not None:
                return [each for pid in pids for each in everything(pid)]
            not_ours = {each for pid in others for each in everything(pid)}
            return [pid for pid in everything(os.getpid()) if pid not in not_ours]

        for pid in processes():
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # its peak is what it has now
        figures: dict[str, float] = {}
        spent, began = cores(), time.perf_counter()
        yield figures
        figures["seconds"] = time.perf_counter() - began
        figures["core_seconds"] = cores() - spent
        figures["megabytes"] = sum(map(peak, processes()))


def fresh(folder: Path) -> Path:
    """Return an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def ratio(figures: Figures, rival: str, key: str = "seconds") -> float | None:
    """Return ours to a rival's, in all, over the queries that both have; None if there are none."""
    both = [sides for sides in figures.values() if rival in sides]
    if not both:
        return None
    return sum(sides[OURS][key] for sides in both) / sum(sides[rival][key] for sides in both)


def worst(figures: Figures, rival: str) -> float | None:
    """Return the ratio of the query that is the slowest in comparison."""
    ratios = [sides[OURS]["seconds"] / sides[rival]["seconds"] for sides in figures.values() if rival in sides]
    return max(ratios, default=None)
