"""Pipelines with much behind them: files that landed, checkpoints and intervals that are done, tables of many files.

Most of it was never staged by anybody; it lies there as it would after years, and is made in seconds. Each step of a
world does what one more run does, and tells the seconds of each part. It begins as a process of its own does, which
has no table open yet.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from tests.bench import ledger as retired
from tests.bench.control import ATTEMPT, PIPELINE, Clock, Ticks, checkpoint
from tests.bench.overhead import make_history
from tests.kit.limits import Limits
from tidegate import Pipeline, seams
from tidegate.connectors.delta.sink.table import StagedBatch
from tidegate.connectors.files.consumed import ConsumedFiles
from tidegate.connectors.sink import Staging
from tidegate.coordinator import AlreadyCovered, Coordinator, Triggered
from tidegate.delta import (
    CommitStamp,
    StagedFile,
    WrittenFile,
    append,
    create,
    locate,
    open_table,
    owner_of,
    sync_and_list,
)
from tidegate.delta.log import snapshot
from tidegate.ledger import Ledger, open_ledger
from tidegate.ledger.ledger import stamp
from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.records.records import Ack, Filled, JobStats, Json, LatestHint, Payload, Plan, Range
from tidegate.sinks import DeltaAppend
from tidegate.sources import DeltaTable, Files

SINK: Final = "orders"
JOB: Final = "main"
COLUMNS: Final[Json] = {
    "type": "struct",
    "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
}
TAKEN = 1000
"""As many files as one checkpoint takes by default."""
FIRST_HOUR = dt.datetime(2015, 1, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


def triggered(control: Coordinator, **options: Any) -> Plan:
    """The plan of a run that must get one."""
    answer = control.trigger(seams.new_id(), **options)
    assert isinstance(answer, Triggered), answer
    return answer.plan


class ScaledPipeline:
    """One pipeline in a folder."""

    lasting: ClassVar[bool] = True
    """Whether it is as good after many runs as after few."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.control = self.declared(str(root))
        self.wrong: list[str] = []
        """What came out otherwise than it must."""

    @classmethod
    def made(cls, root: Path, size: int) -> None:
        """Make it, with so much behind it."""
        raise NotImplementedError

    @staticmethod
    def declared(root: str) -> Coordinator:
        """Its pipeline."""
        raise NotImplementedError

    def step(self) -> dict[str, float]:
        """One more run; the seconds of each part that may not grow with what is behind the pipeline."""
        snapshot._cache.clear()
        clock = Clock()
        self.run(clock)
        return clock.seconds

    def run(self, clock: Clock) -> None:
        raise NotImplementedError

    def finish(self, plan: Plan, committables: Mapping[str, Json] | None = None) -> None:
        """All that follows a trigger, with what the job would have staged."""
        ack(self.control.ledger, plan, committables or {})
        self.expect(f"checkpoint {plan.id}", self.control.complete(plan.id).state, "completed")
        self.expect("what is stuck", self.control.publish().stuck, {})
        self.control.retire()

    def expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.wrong.append(f"{what}: {found!r}, expected {expected!r}")


def coordinator(
    root: str, declare: Callable[[Pipeline], None], options: Mapping[str, str] | None = None
) -> Coordinator:
    """The real one; of the pipeline's one job nobody runs more than the ack."""
    place = Place(root, dict(options or {}))
    pipeline = Pipeline(PIPELINE)
    declare(pipeline)
    return Coordinator(
        pipeline.graph(place), open_ledger(f"{root}/ledger", PIPELINE, dict(options or {})), Limits(), place
    )


def ticking(root: str, tables: Sequence[str], options: Mapping[str, str] | None = None) -> Coordinator:
    """A pipeline of one job that appends a row to each of these tables."""

    def declare(pipeline: Pipeline) -> None:
        ticks = pipeline.source("ticks", Ticks())
        for name in tables:
            ticks.sink(name, DeltaAppend(f"tables/{name}"))

    return coordinator(root, declare, options)


def ack(ledger: Ledger, plan: Plan, committables: Mapping[str, Json]) -> None:
    """What the job does last."""
    base = ledger.entry(plan.base) if plan.base is not None else None
    prev = base.acks[JOB].handle if base is not None else None
    sinks = {name: ledger.pack(each, len(plan.commits)) for name, each in committables.items()}
    ledger.create_ack(Ack(**stamp(ATTEMPT), id=plan.id, job=JOB, prev=prev, sinks=sinks, stats=JobStats()))


def stage(control: Coordinator, sink: str, id: int, interval: Interval | None = None) -> Json:
    """Write a file with one row, and return what the ack says of it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    context = control.context(sink)
    location, folder = locate(context.place, f"tables/{sink}"), Staging(id, ATTEMPT, interval).data_folder(context)
    name = "part-00000.parquet"
    with location.create(f"{folder}/{name}") as out:
        pq.write_table(pa.table({"id": [id]}), out)
        size = out.tell()
    written = {name: WrittenFile(1, size)}
    batch = StagedBatch(columns=COLUMNS, files=sync_and_list(location, folder, COLUMNS, written=written))
    return dict(msgspec.to_builtins(batch))


def settle(control: Coordinator, id: int, source: Range, **fields: Any) -> None:
    """A checkpoint that is published, as the first one that is retained."""
    ledger = control.ledger
    ledger.start()
    plan = msgspec.structs.replace(
        retired.plan_of(id, id, control, None, None),
        sources={"files": source},
        triggers=["files"],
        acks=[JOB],
        commits=[SINK],
        **fields,
    )
    ledger.create_entry(plan)
    ledger.index_run(plan)
    retired.complete(ledger, plan, {JOB: retired.acked(ledger, id, JOB, None)}, None)
    ledger.hint(LatestHint(**stamp(ATTEMPT), id=id))


class Landed(ScaledPipeline):
    """A folder of files that were read long ago: a run with nothing new, and one with as many as a checkpoint takes."""

    @staticmethod
    def declared(root: str) -> Coordinator:
        files = Files("landing/*.json", schema="id long")
        return coordinator(root, lambda p: p.source("files", files).sink(SINK, DeltaAppend(f"tables/{SINK}")))

    @classmethod
    def made(cls, root: Path, size: int) -> None:
        (root / "landing").mkdir()
        land(root / "landing", 0, size)
        control, names = cls.declared(str(root)), os.listdir(root / "landing")
        control.ledger.start()
        seen: list[Json] = []
        for part in (names[size // 4 :], names[: size // 4]):
            seen = ConsumedFiles(seen, control.ledger).write_with(part)
        end = {"folder": "landing", "after": max(names), "seen": seen}
        settle(control, 1, Range(kind="files", start=None, end=end, splits=Payload(data={}), empty=False))

    def run(self, clock: Clock) -> None:
        idle = clock.part("landed_idle", lambda: self.control.trigger(seams.new_id(), only_if_new=True))
        self.expect("a run with nothing new", idle, None)
        land(self.root / "landing", len(os.listdir(self.root / "landing")), TAKEN)
        plan = clock.part("landed_new", lambda: triggered(self.control))
        files = self.control.ledger.unpack(plan.sources["files"].splits)["files"]
        self.expect("what a run takes", (len(files), plan.sources["files"].more), (TAKEN, False))
        self.finish(plan)


def land(folder: Path, first: int, count: int) -> None:
    """Empty files, with names as producers make them: the number of the batch, and something random."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        for number in range(first, first + count):
            random = number * 0x9E3779B97F4A7C15 % (1 << 64)
            name = f"orders-{number // 1000:09d}-{random:016x}.json"
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=opened))
    finally:
        os.close(opened)


class Retired(ScaledPipeline):
    """A ledger that so many checkpoints have gone through; ten are retained."""

    @staticmethod
    def declared(root: str) -> Coordinator:
        return retired.coordinator(Path(root), retired.SINKS, Limits())

    @classmethod
    def made(cls, root: Path, size: int) -> None:
        retired.build(root, size, 10)

    def run(self, clock: Clock) -> None:
        last = self.control.ledger.ids()[-1]
        parts = checkpoint(self.control, {})
        clock.seconds["history"] = parts["trigger"]
        clock.seconds["history_retire"] = parts["retire"]
        self.expect("what is retained", self.control.ledger.ids(), list(range(last - 8, last + 2)))


class Hours(ScaledPipeline):
    """An interval pipeline that has processed so many hours: the next one, and one that is done."""

    @staticmethod
    def declared(root: str) -> Coordinator:
        files = Files("hours/{start:%Y-%m-%dT%H}/*.json", schema="id long")
        return coordinator(root, lambda p: p.source("files", files).sink(SINK, DeltaAppend(f"tables/{SINK}")))

    @classmethod
    def made(cls, root: Path, size: int) -> None:
        (root / "hours").mkdir()
        control = cls.declared(str(root))
        ledger = Ledger(retired.UnsyncedStore(control.ledger.store.root), PIPELINE)
        ledger.start()
        for id in range(1, size):
            trace = {SINK: {"files": 0, "sha": "0" * 64}}
            ledger.index_interval(Filled(**stamp(ATTEMPT), id=id, interval=hour(id).record, traces=trace))
            ledger.index_run(retired.plan_of(id, size, control, None, None))
        source = Range(kind="files", start=None, end=None, splits=Payload(data={}), empty=True)
        settle(control, size, source, interval=hour(size).record, by_interval=True)
        context = control.context(SINK)
        owner = owner_of(PIPELINE, SINK, context.uid)
        published = CommitStamp(context.app_id, size, PIPELINE, 0, ATTEMPT, owner)
        create(locate(context.place, f"tables/{SINK}"), COLUMNS, [], published)

    def run(self, clock: Clock) -> None:
        last = self.control.ledger.ids()[-1]
        at, old = hour(last + 1), hour(last // 2)
        plan = clock.part("intervals", lambda: triggered(self.control, interval=(at.start, at.end)))
        self.finish(plan)
        done = clock.part("interval_done", lambda: self.control.trigger(seams.new_id(), interval=(old.start, old.end)))
        self.expect("an old hour", done.checkpoint if isinstance(done, AlreadyCovered) else done, last // 2)


def hour(number: int) -> Interval:
    """The interval that checkpoint `number` is about."""
    return Interval(FIRST_HOUR + number * HOUR, FIRST_HOUR + (number + 1) * HOUR)


class Target(ScaledPipeline):
    """A table of so many files that each checkpoint adds one to: the plan, and the publication."""

    @staticmethod
    def declared(root: str) -> Coordinator:
        return ticking(root, [SINK])

    @classmethod
    def made(cls, root: Path, size: int) -> None:
        make_history(root, SINK, COLUMNS, size, 20)

    def run(self, clock: Clock) -> None:
        plan = clock.part("table", lambda: triggered(self.control))
        ack(self.control.ledger, plan, {SINK: stage(self.control, SINK, plan.id)})
        self.expect(f"checkpoint {plan.id}", self.control.complete(plan.id).state, "completed")
        snapshot._cache.clear()
        report = clock.part("table_publish", self.control.publish)
        self.expect("what is published", set(report.published), {(plan.id, SINK)})
        self.control.retire()


class Input(ScaledPipeline):
    """A table of so many files that is read from its beginning, a thousand at a time."""

    lasting = False

    @staticmethod
    def declared(root: str) -> Coordinator:
        table = DeltaTable("tables/input")
        return coordinator(root, lambda p: p.source("files", table).sink(SINK, DeltaAppend(f"tables/{SINK}")))

    @classmethod
    def made(cls, root: Path, size: int) -> None:
        make_history(root, "input", COLUMNS, size, 20)

    def run(self, clock: Clock) -> None:
        plan = clock.part("input", lambda: triggered(self.control))
        files = self.control.ledger.unpack(plan.sources["files"].splits)["files"]
        self.expect("what a plan takes", len(files), TAKEN)
        self.finish(plan)


class Days(ScaledPipeline):
    """An interval pipeline whose input and target are tables of so many files, one for each hour."""

    @staticmethod
    def declared(root: str) -> Coordinator:
        table = DeltaTable("tables/input", by_interval="at")
        return coordinator(root, lambda p: p.source("files", table).sink(SINK, DeltaAppend(f"tables/{SINK}")))

    @classmethod
    def made(cls, root: Path, size: int) -> None:
        control = cls.declared(str(root))
        files = [_hour_file(f"old/{number:08d}/part-0.parquet", hour(number)) for number in range(size)]
        write_table(control, "input", files)
        write_table(control, SINK, files)

    def run(self, clock: Clock) -> None:
        ids = self.control.ledger.ids()
        at = hour(100 + (ids[-1] if ids else 0))
        plan = clock.part("table_hours", lambda: triggered(self.control, interval=(at.start, at.end)))
        files = self.control.ledger.unpack(plan.sources["files"].splits)["files"]
        self.expect("the files of an hour", len(files), 1)
        ack(self.control.ledger, plan, {SINK: stage(self.control, SINK, plan.id, at) | {"since": 0}})
        self.expect(f"checkpoint {plan.id}", self.control.complete(plan.id).state, "completed")
        snapshot._cache.clear()
        report = clock.part("table_hours_publish", self.control.publish)
        self.expect("what is published", set(report.published), {(plan.id, SINK)})
        self.control.retire()


def write_table(control: Coordinator, name: str, files: Sequence[StagedFile]) -> None:
    """A table whose log names these files; they need not exist, for nobody reads them."""
    from deltalake import DeltaTable as Handle

    location = locate(control.place, f"tables/{name}")
    columns = COLUMNS | {"fields": [*COLUMNS["fields"], {**COLUMNS["fields"][0], "name": "at", "type": "timestamp"}]}
    assert create(location, columns, files, CommitStamp("history", 0, "history", 0, ATTEMPT, ("history-owner", 0)))
    Handle(location.url).create_checkpoint()
    table = open_table(location)
    assert table is not None
    assert append(table, [], CommitStamp("history", 1, "history", 0, ATTEMPT, ("history-owner", 0)))


def _hour_file(path: str, at: Interval) -> StagedFile:
    first = at.start.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    bounds = {"at": first, "id": 1}
    stats = {"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": {"at": 0, "id": 0}}
    return StagedFile(path=path, size=999, rows=1, stats=msgspec.json.encode(stats).decode())


WORLDS: Final[Mapping[str, tuple[type[ScaledPipeline], int, int]]] = {
    "landed": (Landed, 1_000_000, 2_000),
    "history": (Retired, 100_000, 200),
    "intervals": (Hours, 100_000, 200),
    "table": (Target, 100_000, 200),
    "input": (Input, 100_000, 20_000),
    "table_hours": (Days, 100_000, 2_000),
}
"""Each with how much is behind it, in full and in the short form; the other one has a tenth of that."""


def measure(
    large: ScaledPipeline, small: ScaledPipeline, warmups: int, rounds: int
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Both in turn."""
    steps = [(large.step(), small.step()) for _ in range(warmups + rounds)]
    return list(itertools.islice(steps, warmups, None))
