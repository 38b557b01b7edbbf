"""Nexmark, q0 to q22: tidegate, Structured Streaming and Flink, from 10 checkpoints of a million events and from one.

    make bench NAME=nexmark                      what has not been measured yet: hours
    QUERIES="q5 q17" make bench NAME=nexmark     of these only
    ENGINES="ours streaming" …                   of ours, streaming, streaming_append, flink_rocksdb, flink_heap
    EVENTS=10000000 …                            another size
    AGAIN=1 …                                    also what has been measured; AGAIN=ours: that engine's only
    CHECKPOINTS=10 …                             with so many only, 10 or 1; both: "10 1"
    LONGEST=60 …                                 seconds after which a start or a run is given up; 900

For each query all engines are started anew, each in processes of its own, with a Spark or a Flink of its own; they take
turns on the same two cores, and stand still between them. The first run of each is cold: with its start, `whole_s`, it
is what somebody waits for who starts it for this query. It is compared with DuckDB's rows, to the row, and an engine
whose rows differ, that fails, or takes too long, gets no figures for the query. If it was ours, or if rows differ, the
bench fails. Then come the rounds that count, with 10 checkpoints and with one, in the same engine, of which the median
is taken:

seconds       from the call that starts the query until its last rows are visible, in an engine that is up and warm
core_seconds  user and system time of all its processes meanwhile
megabytes     the most memory that all its processes had together, at one moment
checkpoints   those that were completed, exactly once: ours and Structured Streaming's have the cuts that they are asked
              for, or one more that closes windows; Flink's are taken by time, and near that number

What an engine cannot do, or is not there to do, is said with the reason, and ratios are over those queries that both
sides can do. Ours runs what `jobs/nexmark` declares, so tables of queries that replace rows are upserted. Structured
Streaming merges these rows into the same table; streaming_append, and Flink, whose file sink replaces nothing, append
changes instead, which is less: whoever reads has to find the newest ones.

A query's figures are a file, nexmark/EVENTS-CUTS/q5.json, written when it has been measured: a run that was interrupted
continues there, and the result is over all that is there. nexmark_report.py makes tables and a plot of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.nexmark.generator import Events, side_input
from tests.bench import nexmark_engines, nexmark_flink, nexmark_report, nexmark_streaming
from tests.bench.harness import ROOT, Budget, Options, Result, load_average, rounded
from tests.bench.nexmark_engines import Engine, Failed, Spark, measured
from tests.bench.nexmark_report import Figures
from tests.bench.spark import CORES
from tests.nexmark.playing import NAMES
from tests.nexmark.reference import Reference

CUTS = 10
QUICK = ("q5", "q12", "q17")
OURS, STREAMING, APPENDING, ROCKSDB, HEAP = "ours", "streaming", "streaming_append", "flink_rocksdb", "flink_heap"
ENGINES = (OURS, STREAMING, APPENDING, ROCKSDB, HEAP)
CANNOT: Mapping[str, Mapping[str, str]] = {
    OURS: {},
    STREAMING: nexmark_streaming.CANNOT,
    APPENDING: nexmark_streaming.NOT_APPENDED,
    ROCKSDB: nexmark_flink.CANNOT,
    HEAP: nexmark_flink.CANNOT,
}
BY_THE_CLOCK = {
    "q12": (
        "SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
        "SELECT bidder, sum(bid_count)::BIGINT AS bid_count FROM clocked GROUP BY bidder",
    )
}
"""Which windows a bid falls into is another one each time: only their sums are compared."""
LONGEST_S = 900.0
"""A start, or a run, that takes longer is given up."""

Told = dict[str, Any]
"""What one query's file has."""


def run(options: Options) -> Result:
    asked = (os.environ.get("QUERIES") or " ".join(QUICK if options.quick else NAMES)).replace(",", " ").split()
    engines = (os.environ.get("ENGINES") or " ".join(ENGINES)).replace(",", " ").split()
    for what, given, there in (("query", asked, NAMES), ("engine", engines, ENGINES)):
        if unknown := [name for name in given if name not in there]:
            raise SystemExit(f"there is no {what} {', '.join(unknown)}; there are: {', '.join(there)}")
    cuts = 2 if options.quick else CUTS
    checkpoints = [int(each) for each in (os.environ.get("CHECKPOINTS") or f"{cuts} 1").replace(",", " ").split()]
    if unknown := sorted({*checkpoints} - {cuts, 1}):
        raise SystemExit(f"nexmark runs with {cuts} checkpoints and with one, not with {unknown[0]}: mend CHECKPOINTS")
    if options.spark != "local":
        raise SystemExit("nexmark starts a Spark in each side's process: leave --spark connect out")
    count = int(os.environ.get("EVENTS") or options.size(1_000_000, 4_000))
    rate = min(10_000, max(40, count // 100))
    race = Race(options, engines, count, cuts, rate, checkpoints)
    with same_cores(), race:
        for name in asked:
            race.query(name)
    measured = nexmark_report.told(race.results)
    nexmark_report.write(options.out, measured)
    return result(options, measured, count, cuts)


@dataclass
class Race:
    """All engines, on the same events."""

    options: Options
    engines: Sequence[str]
    count: int
    cuts: int
    rate: int
    checkpoints: Sequence[int]
    """How many each query is run with: as many as cuts, one, or both."""

    def __post_init__(self) -> None:
        name = f"nexmark-{self.count}-{self.cuts}-{self.rate}-{CORES}"
        self.results = self.options.out / "nexmark" / f"{self.count}-{self.cuts}"
        self.results.mkdir(parents=True, exist_ok=True)
        self.root = self.options.folder("nexmark")
        self.longest = float(os.environ.get("LONGEST") or self.options.size(int(LONGEST_S), 180))
        events = Events(self.count, rate=self.rate)
        self.landing = self.options.cached(name, lambda folder: events.write(folder, self.cuts, CORES))
        self.up: dict[str, tuple[Engine, dict[str, float], contextlib.ExitStack]] = {}
        """Engines that run, with what their start took. A quick run has each of them only once."""
        self.absent: dict[str, str] = {}
        self.home, self.files = Path(), Path()
        if any(engine.startswith("flink") for engine in self.engines):
            if self.options.quick and not nexmark_flink.is_installed():
                self.absent = dict.fromkeys((ROCKSDB, HEAP), "Flink is not installed, and this is no reason to do so")
            else:
                self.home = nexmark_flink.installed()
                self.files = self.options.cached(
                    f"{name}-flink", lambda folder: nexmark_flink.flink_files(self.landing, folder)
                )

    def query(self, name: str) -> None:
        """Let all engines take their turns at one query, and write down what they took, if that is not there yet."""
        file = self.results / f"{name}.json"
        before: Told = json.loads(file.read_text()) if file.exists() else {}
        again = os.environ.get("AGAIN", "").replace(",", " ").split()
        anew = ENGINES if again == ["1"] else again
        sides: Told = {
            side: each for side, each in before.get("sides", {}).items() if "failed" not in each and side not in anew
        }
        todo = [engine for engine in self.engines if engine not in sides]
        if not todo:
            say(f"{name}: measured {before['at']} at {before['commit']}; AGAIN=1 measures it again")
            return
        began = time.monotonic()
        cannot = {engine: why for engine in todo if (why := CANNOT[engine].get(name) or self.absent.get(engine))}
        sides |= {engine: {"cannot": why} for engine, why in cannot.items()}
        sides |= self.turns(name, [engine for engine in todo if engine not in cannot])
        conditions = {"query": name, "events": self.count, "cuts": self.cuts, "rate": self.rate, "cores": CORES}
        conditions |= {"at": time.strftime("%Y-%m-%d %H:%M"), "commit": commit(), "load": load_average()}
        conditions |= {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "pairs": self.options.pairs}
        aside = file.with_suffix(".part")
        aside.write_text(json.dumps(rounded(conditions | {"sides": sides}), indent=1) + "\n")
        aside.rename(file)
        say(f"{name}: {', '.join(short(side, each) for side, each in sides.items())}; {time.monotonic() - began:.0f} s")

    def turns(self, name: str, engines: Sequence[str]) -> Told:
        """Start engines, and let them take their turns at a query; return what each of them took."""
        told: Told = {engine: {} for engine in engines}
        sides: dict[str, Side] = {}
        for engine in engines:
            with self.gives_up(engine, told[engine]):
                sides[engine] = self.side(engine, name, told[engine])
        for checkpoints in self.checkpoints:
            warmups = self.options.size(1, 0) if checkpoints > 1 else 0
            for turn in range(warmups + self.options.pairs):
                for engine, side in sides.items():
                    if "failed" not in told[engine]:
                        with self.gives_up(engine, told[engine]):
                            side.turn(checkpoints, is_first=turn == 0, counts=turn >= warmups)
        if not self.options.quick:
            self.stop()
        return told

    def side(self, engine: str, name: str, said: Told) -> Side:
        """Return an engine at a query. It is started, if it does not run."""
        if engine not in self.up:
            folder = self.root / engine
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            stack, began = contextlib.ExitStack(), time.perf_counter()
            running = stack.enter_context(self.starts(engine, folder))
            start = {"start_s": time.perf_counter() - began, "start_core_s": nexmark_engines.spent(running)}
            nexmark_engines.stand_still(running)
            self.up[engine] = running, start, stack
        running, start, _ = self.up[engine]
        said |= start
        return Side(name, running, self.root / engine / "out", self.landing, self.longest, said)

    def starts(self, engine: str, folder: Path) -> AbstractContextManager[Engine]:
        """Return the block in which an engine runs."""
        if engine in (OURS, STREAMING, APPENDING):
            return Spark.started(engine, folder, self.landing, self.cuts, self.longest)
        backend = "rocksdb" if engine == ROCKSDB else "hashmap"
        reference = Reference(self.landing, 1, "all")
        reference.side_input(side_input())
        return nexmark_flink.flink(backend, self.home, folder, self.files, reference, self.longest)

    @contextlib.contextmanager
    def gives_up(self, engine: str, said: Told) -> Iterator[None]:
        """Let the others continue if an engine fails in the block, write down why it did, and end it."""
        try:
            yield
        except (Failed, AssertionError, OSError) as error:
            said["failed"] = f"{error}"[:1000]
            self.stop([engine])

    def stop(self, engines: Sequence[str] = ENGINES) -> None:
        """End engines."""
        for engine in engines:
            if engine in self.up:
                self.up.pop(engine)[2].close()
        if not self.up:
            shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass
class Side:
    """One engine at one query."""

    query: str
    engine: Engine
    out: Path
    landing: Path
    longest: float
    said: Told
    """What it took, for the query's file."""
    turns: int = 0

    @property
    def at(self) -> Path:
        """Where the last run was. Each has a path of its own: Spark's state stores know the one before by its path."""
        return self.out / str(self.turns)

    def turn(self, checkpoints: int, is_first: bool, counts: bool) -> None:
        """Run the query once. The first of all runs is cold; each first one is compared."""
        figures = self.measured(checkpoints)
        if is_first:
            self.said.setdefault("first", figures)
            self.compare(checkpoints)
        if counts:
            self.said.setdefault("rounds", {}).setdefault(str(checkpoints), []).append(figures)
        elif self.engine.learns_when and checkpoints > 1:
            self.measured(checkpoints)

    def measured(self, checkpoints: int) -> dict[str, float]:
        shutil.rmtree(self.out, ignore_errors=True)
        self.turns += 1
        return measured(self.engine, self.query, self.at, checkpoints, self.longest)

    def compare(self, checkpoints: int) -> None:
        """Raise Failed if the rows are not DuckDB's."""
        cut = 1 if self.engine.closing == "all" else checkpoints
        reference = Reference(self.landing, cut, self.engine.closing)
        reference.side_input(side_input())
        found, sql = self.engine.found(self.query, self.at, reference), None
        if self.query in BY_THE_CLOCK:
            reference.database.register("clocked", found)
            sql, sums = BY_THE_CLOCK[self.query]
            found = reference.arrow(sums)
        if differs := reference.differs(self.query, found, sql):
            self.said["unequal"] = True
            raise Failed(f"with {checkpoints} checkpoints its rows are not those of DuckDB: {differs}")


@contextlib.contextmanager
def same_cores() -> Iterator[None]:
    """Let this process, and all that it starts, have as many cores as the race is for."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def result(options: Options, told: Mapping[str, Told], count: int, cuts: int) -> Result:
    """Return what all that has been measured says."""
    many, one = nexmark_report.figures(told, cuts), nexmark_report.figures(told, 1)
    sides = [(name, side, each) for name, query in told.items() for side, each in query["sides"].items()]
    failed = {f"{name} {side}": each["failed"] for name, side, each in sides if "failed" in each}
    wrong = [f"{name}, {side}: {each['failed']}" for name, side, each in sides if is_wrong(side, each)]
    missing = [name for name in NAMES if OURS not in many.get(name, {})]
    keys: dict[str, Any] = {
        "ratio_streaming": ratio(many, STREAMING),
        "ratio_streaming_cores": ratio(many, STREAMING, "core_seconds"),
        "worst_ratio_streaming": worst(many, STREAMING),
        "ratio_streaming_1": ratio(one, STREAMING),
        "ratio_streaming_whole": ratio(many, STREAMING, "whole_s"),
        "ratio_streaming_append": ratio(many, APPENDING),
        "ratio_flink_rocksdb": ratio(many, ROCKSDB),
        "ratio_flink_rocksdb_cores": ratio(many, ROCKSDB, "core_seconds"),
        "ratio_flink_rocksdb_1": ratio(one, ROCKSDB),
        "ratio_flink_rocksdb_whole": ratio(many, ROCKSDB, "whole_s"),
        "ratio_flink_heap": ratio(many, HEAP),
        "ratio_flink_heap_cores": ratio(many, HEAP, "core_seconds"),
        "ratio_flink_heap_1": ratio(one, HEAP),
        "queries": len(many),
        "not_measured": " ".join(missing),
        "failed": failed,
        "commits": " ".join(sorted({query["commit"] for query in told.values()})),
        "events": count,
        f"from_{cuts}": many,
        "from_1": one,
    }
    limits = {"ratio_streaming": 0.33, "ratio_flink_rocksdb": 1.0, "worst_ratio_streaming": 1.0}
    return Result(
        "nexmark",
        ours_s=sum(query[OURS]["seconds"] for query in many.values() if OURS in query),
        pairs=options.pairs,
        rival_s=sum(query[STREAMING]["seconds"] for query in many.values() if STREAMING in query),
        ratio=keys["ratio_streaming"],
        equal=not wrong,
        wrong="; ".join(wrong),
        keys=keys,
        budgets=tuple(Budget(key, limit) for key, limit in limits.items() if keys[key] is not None),
    )


def is_wrong(side: str, told: Told) -> bool:
    """Return whether the bench must fail for it: rows that differ, and whatever fails of ours."""
    return "failed" in told and (side == OURS or told.get("unequal", False))


def ratio(figures: Figures, rival: str, key: str = "seconds") -> float | None:
    """Return ours to a rival's, in all, over the queries that both have; None if there are none."""
    both = [sides for sides in figures.values() if key in sides.get(OURS, {}) and key in sides.get(rival, {})]
    if not both:
        return None
    return sum(sides[OURS][key] for sides in both) / sum(sides[rival][key] for sides in both)


def worst(figures: Figures, rival: str) -> float | None:
    """Return the ratio of the query that is the slowest in comparison."""
    both = [sides for sides in figures.values() if OURS in sides and rival in sides]
    return max((sides[OURS]["seconds"] / sides[rival]["seconds"] for sides in both), default=None)


def commit() -> str:
    """Return which code it is that is measured, with a + if it was changed."""
    done = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def short(side: str, told: Told) -> str:
    """Say in a few words what an engine took, from most checkpoints and from one."""
    if "cannot" in told or "failed" in told:
        return f"{side} {'cannot' if 'cannot' in told else 'FAILED: ' + told['failed'][:200]}"
    seconds = [f"{statistics.median(each['seconds'] for each in rounds):.1f}" for rounds in told["rounds"].values()]
    return f"{side} {', '.join(seconds)} s"


def say(what: str) -> None:
    """Tell somebody who waits."""
    print(what, file=sys.stderr, flush=True)
