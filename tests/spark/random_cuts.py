"""Stories of random cuts and crashes, told to a pipeline on real Spark; its tables must be what they are without them.

    cut     how the events are divided into checkpoints: all at once, a few, or one by one
    fault   what happens in a checkpoint beside the work: see FAULTS

Attempts at one checkpoint must also stage the same rows, each: that is looked at where two attempts come that far. Each
attempt draws its number of tasks, and whether workers may compute operators or all is DataFrame algebra. Only how often
a distinct value has come may differ, where nothing is ever taken back: what counts there is that it has come. And in
every other story it is looked at whether what is taken back was given before.
`python -m tests.spark.random_cuts --seeds 100` runs many stories, `--seed 7` one.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet
from deltalake import DeltaTable

from tests.kit.jvm import INTERPRETED
from tests.spark.changelog_check import given, plain_rows
from tests.spark.small_pipeline import SmallPipeline
from tidegate import Pipeline, seams
from tidegate.checkpoint import suspension
from tidegate.coordinator import Coordinator, Triggered
from tidegate.errors import Fenced, Unavailable
from tidegate.execution.job.run_job import run_job
from tidegate.operators.aggregate import Aggregate
from tidegate.pipeline import Graph as PipelineGraph
from tidegate.state import kernel_driver, keyed
from tidegate.state.arrow import workers

__all__ = ["FAULTS", "Batches", "CutStory", "Event", "Found", "Graph", "counted", "told"]

COUNT = re.compile("_n(_[0-9a-f]{12})?")
"""The columns of a state of distinct values that say how often each has come: all in all, or under a condition."""

Row = dict[str, Any]
Event = tuple[str, Row]
"""A source's name, and a row of it."""
Batches = Sequence[Sequence[Event]]
"""What each completed checkpoint has read."""

FAULTS = ("crash", "early", "twice", "abort", "fenced")
"""crash   the first attempt does all its work, and dies before its ack
early   the first attempt dies when it has staged the first table
twice   two attempts come to their ack; the first one counts
abort   the checkpoint is aborted with its ack in: the next one takes its input
fenced  it is aborted while an attempt is at work
"""


@dataclass(frozen=True)
class Found:
    """What a story has left behind."""

    rows: Callable[[str], list[Row]]
    """Those of a table."""
    held: Mapping[str, Counter[Any]]
    """By stream that replaces rows, if that was watched: those that it has given and not taken back."""


@dataclass(frozen=True)
class Graph:
    """A pipeline, its events, and what its tables must hold in the end."""

    name: str
    build: Callable[[Pipeline], None]
    events: Callable[[random.Random], list[Event]]
    expected: Callable[[Sequence[Event]], Mapping[str, Counter[Any]]]
    batch: Mapping[str, str] = field(default_factory=dict)
    """Table → SQL over all events at once, where Spark has the operator itself. Sources are views."""
    prepare: Callable[[Path], None] = lambda _: None
    settings: Mapping[str, Any] = field(default_factory=dict)
    together: Mapping[str, str] = field(default_factory=dict)
    """Table → a column, of which all rows with the same value come in one checkpoint."""
    check: Callable[[Batches, Found], Iterable[str]] | None = None
    """What is wrong, where the cut matters, or plain Python leaves several answers open."""
    drawn: Callable[[int], Graph] | None = None
    """Makes the graph of a seed, where each has one of its own."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class CutStory:
    """One seed's events, cuts and faults."""

    events: list[Event]
    cuts: list[int]
    faults: list[str]
    """By checkpoint; "" is none."""
    tasks: list[int]
    """By attempt: into how many partitions Spark shuffles, for nothing may depend on that. Negative: no workers."""
    in_jobs: bool = False
    """Whether operators are in several jobs. Then a fault meets one of them."""
    watched: bool = False
    """Whether all that is given and taken back is looked at."""
    finishes: bool = False
    """Whether all events are there from the beginning, and the pipeline ends by itself when it has read them."""
    in_step: str | None = None
    """Then also: how far a source may be ahead of the others."""
    few_rows: int = keyed.MAX_ROWS_OF_SMALL_STATE
    """Up to how many rows of a state its input is reduced before workers get it."""
    large: bool = False
    """Whether its input counts as much, however little it is."""

    @classmethod
    def of(cls, graph: Graph, seed: int, checkpoints: int | None = None, finishes: bool | None = None) -> CutStory:
        """checkpoints: how many there are; by default that is random, too, and so is whether it finishes."""
        dice = random.Random(f"{graph.name} {seed}")
        finishes = dice.random() < 0.25 if finishes is None else finishes
        finishes = finishes and graph.check is None
        events = [event for event in graph.events(dice) if not finishes or event[1]["k"] != "end"]
        count = checkpoints or dice.choice([1, 2, 3, 4, 6, len(events)])
        cuts = sorted(dice.sample(range(1, len(events)), min(count, len(events)) - 1))
        faults = [dice.choice(["", *FAULTS]) for _ in range(count)]
        if count > 10:  # one by one: now and then is enough
            faults = [fault if dice.random() < 0.1 else "" for fault in faults]
        faults[-1] = "" if faults[-1] in ("abort", "fenced") else faults[-1]
        tasks = [dice.choice([1, 2, 3, -1, -2]) for _ in range(40)]
        in_jobs, watched = dice.random() < 0.4, dice.random() < 0.5
        few_rows, in_step = dice.choice([0, 3, 1000]), dice.choice([None, "1 s", "2 min", "1 h"])
        in_step = in_step if finishes else None
        large = random.Random(f"{graph.name} {seed} large").random() < 0.5
        return cls(events, cuts, faults, tasks, in_jobs, watched, finishes, in_step, few_rows, large)

    @property
    def batches(self) -> Batches:
        """What each checkpoint that counts has read, unless the pipeline finishes by itself."""
        found: list[list[Event]] = []
        waiting: list[Event] = []
        bounds = itertools.pairwise([0, *self.cuts, len(self.events)])
        for (begin, end), fault in zip(bounds, itertools.chain(self.faults, itertools.repeat("")), strict=False):
            waiting = [*waiting, *self.events[begin:end]]
            if fault not in ("abort", "fenced"):
                found.append(waiting)
                waiting = []
        return found

    def run(self, graph: Graph, root: Path, spark: Any) -> SmallPipeline:
        """Tell it, to the end."""
        root.mkdir(parents=True, exist_ok=True)
        graph.prepare(root)
        play = SmallPipeline(root, spark, graph.build, **graph.settings)
        play.in_jobs, play.watched = self.in_jobs, self.watched
        play.finishes, play.in_step = self.finishes, self.in_step
        for source in sorted({source for source, _ in self.events}):
            (root / "landing" / source).mkdir(parents=True)
        bounds, tasks = [0, *self.cuts, len(self.events)], itertools.cycle(self.tasks)
        faults = itertools.chain(self.faults, itertools.repeat(""))
        for begin, end in itertools.pairwise(bounds):
            for source, rows in _by_source(self.events[begin:end]).items():
                play.feed(rows, source)
            if not self.finishes:
                self._checkpoint(play, spark, tasks, next(faults))
        while self.finishes and suspension.finished(play.ledger.view()) is None:
            self._checkpoint(play, spark, tasks, next(faults))
        return play

    def _checkpoint(self, play: SmallPipeline, spark: Any, tasks: Iterator[int], fault: str) -> None:
        with ExitStack() as stack:
            stack.enter_context(patch.object(keyed, "MAX_ROWS_OF_SMALL_STATE", self.few_rows))
            if self.large:
                stack.enter_context(patch("tidegate.execution.job.run_job.is_small", lambda _: False))
                stack.enter_context(patch("tidegate.operators.distinct.pre_aggregation.UNREDUCED", 0))
            Telling(play, spark, tasks).checkpoint(fault)

    def __str__(self) -> str:
        more = (", in several jobs" if self.in_jobs else "") + (", watched" if self.watched else "")
        more += (", as if it were much" if self.large else "") + (", to its end" if self.finishes else "")
        more += f", at most {self.in_step} ahead" if self.in_step else ""
        return f"{len(self.events)} events, cuts {self.cuts}, faults {self.faults}{more}"


def _by_source(events: Sequence[Event]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for source, row in events:
        found.setdefault(source, []).append(row)
    return found


@dataclass
class Telling:
    """One checkpoint with what befalls it."""

    play: SmallPipeline
    spark: Any
    tasks: Iterator[int]
    staged: list[dict[str, Counter[Any]]] = field(default_factory=list)

    def checkpoint(self, fault: str, *, by_event: bool = False) -> None:
        """by_event: as a run does that whoever watches the sources has asked for."""
        coordinator = self.play.coordinator()
        run = f"run {coordinator.ledger.view().last_id + 1}"
        triggered = coordinator.trigger(run, only_if_new=by_event)
        assert isinstance(triggered, Triggered), "a run that was asked for finds nothing new"
        id = triggered.plan.id
        jobs = [job.name for job in coordinator.graph.jobs]
        struck = jobs[(next(self.tasks) + id) % len(jobs)] if len(jobs) > 1 else jobs[0]
        for job in jobs:
            if not self.done(coordinator, id, job, fault if job == struck else ""):
                return
        assert coordinator.complete(id).state == "completed"
        coordinator.publish()
        coordinator.retire()

    def done(self, coordinator: Coordinator, id: int, job: str, fault: str) -> bool:
        """A job with what befalls it. False: the checkpoint is no more."""
        self.staged.clear()
        if fault == "abort":
            self.attempt(coordinator, id, job)
            coordinator.abort(id, "TEST")
            return False
        if fault == "fenced":
            self.dies(coordinator, id, job, "S4.stage.before", lambda: coordinator.abort(id, "TEST"), Fenced)
            return False
        if fault == "crash":
            self.dies(coordinator, id, job, "S6.ack.before", self.die, Unavailable)
        if fault == "early":
            self.dies(coordinator, id, job, "S4.stage.after", self.die, Unavailable)
        if fault == "twice":
            with self.at("S6.ack.before", lambda: self.attempt(coordinator, id, job)):
                self.attempt(coordinator, id, job)
        else:
            self.attempt(coordinator, id, job)
        for one, other in itertools.pairwise(self.staged):
            unlike = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
            assert not unlike, f"two attempts at {job} of checkpoint {id} staged other rows for {sorted(unlike)}"
        return True

    def attempt(self, coordinator: Coordinator, id: int, job: str = "main") -> None:
        """An attempt with a parallelism of its own; what it has staged is noted when it comes to its ack."""
        known, drawn = set(self.files(id)), next(self.tasks)
        tasks, by_workers = abs(drawn), drawn > 0
        noted = self.at("S6.ack.before", lambda: self.staged.append(self.rows_of(set(self.files(id)) - known)))
        with self.parallel(tasks), self.computed(by_workers), noted:
            run_job(coordinator, id, job, self.spark)

    @contextmanager
    def parallel(self, tasks: int) -> Iterator[None]:
        """So many tasks behind each shuffle, and adaptive plans with one of these numbers. With more than one, few rows
        are shared out, too."""
        wanted = {
            "spark.sql.shuffle.partitions": str(tasks),
            "spark.sql.adaptive.enabled": str(tasks == 3).lower(),
        }
        before = {key: self.spark.conf.get(key) for key in wanted}
        try:
            for key, value in wanted.items():
                self.spark.conf.set(key, value)
            limit = kernel_driver.MAX_STORED_FOR_ONE_WORKER if tasks == 1 else -1
            with patch.object(kernel_driver, "MAX_STORED_FOR_ONE_WORKER", limit):
                yield
        finally:
            for key, value in before.items():
                self.spark.conf.set(key, value)

    @contextmanager
    def computed(self, by_workers: bool) -> Iterator[None]:
        """By workers where they can, or all by algebra."""
        usable = workers.usable
        workers.usable = usable if by_workers else lambda *_: False
        try:
            yield
        finally:
            workers.usable = usable

    def dies(
        self, coordinator: Coordinator, id: int, job: str, point: str, how: Callable[[], object], told: type
    ) -> None:
        try:
            with self.at(point, how):
                self.attempt(coordinator, id, job)
        except told:
            return
        raise AssertionError(f"the attempt went on behind {point}")

    @staticmethod
    def die() -> None:
        raise Unavailable("the attempt dies here", reason="INJECTED")

    @contextmanager
    def at(self, point: str, act: Callable[[], object]) -> Iterator[None]:
        """Act once when an attempt comes to this point, before what was to be done there already."""
        before, left = seams._current, [act]

        def fault(name: str) -> None:
            if name == point and left:
                left.pop()()
            before.fault(name)

        with seams.installed(replace(before, fault=fault)):
            yield

    def files(self, id: int) -> list[Path]:
        """What lies staged for a checkpoint, by any attempt."""
        paths = self.play.root.rglob(f"tidegate/*/{id:08d}/**/*.parquet")
        aside = ("scratch", "-given/", "-given-replaced/", "-judged/")
        return [path for path in paths if not any(name in str(path) for name in aside)]

    def rows_of(self, files: set[Path]) -> dict[str, Counter[Any]]:
        """What these files hold, by the table that they are for; of values that only have to be there, whether they are
        there."""
        merely_there = states_of_values(self.play.graph())
        found: dict[str, Counter[Any]] = {}
        for path in files:
            table = str(path.relative_to(self.play.root)).split("/tidegate/")[0]
            rows = pyarrow.parquet.ParquetFile(path).read().to_pylist()
            for row in rows:  # what is set aside gets names of its own in each attempt
                row.pop("_tidegate_id", None)
            if "_deleted=" in str(path) or "deleted" in path.parent.name:
                rows = [{**row, "gone": True} for row in rows]
            if table.rpartition("/state/")[2] in merely_there:
                rows = [
                    {name: is_there(value) if COUNT.fullmatch(name) else value for name, value in row.items()}
                    for row in rows
                ]
            found.setdefault(table, Counter()).update(counted(rows))
        return found


def states_of_values(graph: PipelineGraph) -> set[str]:
    """The states that hold distinct values of rows that are never taken back. How often such a value has come is some
    number above 0 (decision 49): workers get rows of one value as one, if there are many, and algebra counts them.

    Over rows that are taken back the number decides when a value is gone, so it must be exact.
    """
    return {
        f"{stage.name}.{part}"
        for stage in graph.operators
        if isinstance(stage.operator, Aggregate) and graph.updating.isdisjoint(stage.inputs)
        for part in stage.spec.state_names
        if part
    }


def is_there(number: int | None) -> bool:
    return (number or 0) > 0


def counted(rows: Sequence[Mapping[str, Any]]) -> Counter[Any]:
    """Rows in any order, as something that can be compared."""
    return Counter(tuple(sorted((name, _plain(value)) for name, value in row.items())) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return tuple(sorted((name, _plain(each)) for name, each in value.items()))
    return "NaN" if value != value else value


def told(graph: Graph, story: CutStory, play: SmallPipeline) -> list[str]:
    """What is not as it must be: first what is taken back, then against plain Python, then against Spark over all
    events at once."""
    held, wrong = given(play.root)
    for name in held.keys() & graph.expected(story.events).keys():
        if held[name] != (there := plain_rows(play.rows(f"tables/{name}"))):
            wrong.append(f"{name} gave {list(held[name] - there)}, and took back {list(there - held[name])}")
    if graph.check is not None:
        wrong += graph.check(story.batches, Found(lambda name: play.rows(f"tables/{name}"), held))
    for name, wanted in graph.expected(story.events).items():
        found = counted([row for row in play.rows(f"tables/{name}") if row.get("k") != "end"])
        if found != wanted:
            wrong.append(f"{name}: too much {list(found - wanted)}, missing {list(wanted - found)}")
    for name, column in graph.together.items():
        wrong += [
            f"{name}: rows of {column} {value} came in several checkpoints" for value in scattered(play, name, column)
        ]
    for source in sorted({source for source, _ in story.events}) if graph.batch else ():
        frame = play.coordinator().graph.sources[source].source
        reader = play.spark.read.schema(frame.schema)
        reader.json(str(play.root / "landing" / source)).createOrReplaceTempView(source)
    for name, sql in graph.batch.items():
        mine, theirs = play.spark.read.format("delta").load(str(play.root / "tables" / name)), play.spark.sql(sql)
        if "k" in mine.columns:
            mine, theirs = (each.where("NOT k <=> 'end'") for each in (mine, theirs))
        theirs = theirs.select(*(f"`{column}`" for column in mine.columns))
        one, other = (counted([row.asDict(recursive=True) for row in each.collect()]) for each in (mine, theirs))
        if one != other:
            wrong.append(f"{name}, by Spark's own: too much {list(one - other)}, missing {list(other - one)}")
    return wrong


def scattered(play: SmallPipeline, table: str, column: str) -> set[Any]:
    """The values of a column that a table's rows got in more than one of its versions."""
    path = str(play.root / "tables" / table)
    held: Counter[Any] = Counter()
    came: Counter[Any] = Counter()
    for version in range(DeltaTable(path).version() + 1):
        now = Counter(DeltaTable(path, version=version).to_pyarrow_table(columns=[column]).column(0).to_pylist())
        came.update((now - held).keys())
        held = now
    return {value for value, times in came.items() if times > 1}


def main() -> int:
    """Many stories of every graph, or one seed's again."""
    from tests.spark.graphs import GRAPHS
    from tests.spark.graphs_in_order import IN_ORDER
    from tests.spark.graphs_of_joins import JOINS
    from tests.spark.graphs_of_layers import LAYERS
    from tests.spark.graphs_of_other_keys import OTHER_KEYS
    from tests.spark.graphs_of_shared_keys import SHARED

    known = (*GRAPHS, *JOINS, *IN_ORDER, *LAYERS, *SHARED, OTHER_KEYS)
    from tidegate.spark.session import SparkSettings, session

    parser = argparse.ArgumentParser(prog="python -m tests.spark.random_cuts", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, help="replay this one only")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no other one after so long")
    parser.add_argument("--graph", choices=[graph.name for graph in known], help="of this graph only")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.seeds)
    bad = 0
    ends = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        settings = SparkSettings(
            mode="local", home=Path(folder) / "spark", master="local[2]", memory="2g", conf=INTERPRETED
        )
        with session(settings) as spark:
            chosen = [graph for graph in known if options.graph in (None, graph.name)]
            for seed, graph in itertools.product(seeds, chosen):
                if time.monotonic() > ends:
                    break
                bad += _one(graph.drawn(seed) if graph.drawn is not None else graph, seed, Path(folder), spark)
    print(f"{bad} stories went wrong" if bad else "all tables are as they must be")
    return 1 if bad else 0


def _one(graph: Graph, seed: int, folder: Path, spark: Any) -> int:
    import shutil
    import traceback

    story, began = CutStory.of(graph, seed), time.monotonic()
    root = folder / f"{graph.name}-{seed}"
    try:
        wrong = told(graph, story, story.run(graph, root, spark))
    except Exception:
        wrong = [text[:200] for text in traceback.format_exc(limit=-3).splitlines()[-15:]]
    shutil.rmtree(root, ignore_errors=True)
    print(f"{graph.name} {seed}: {story}: {time.monotonic() - began:.0f} s", flush=True)
    if wrong:
        how = f"replay: python -m tests.spark.random_cuts --graph {graph.name} --seed {seed}"
        print("\n".join(f"  {each}" for each in [*wrong, how]), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
