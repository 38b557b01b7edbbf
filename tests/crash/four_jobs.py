"""A real world of four jobs, without Spark: a real ledger, real files and real Delta tables; rows are Arrow's.

    orders ──▶ main ──▶ marked ──┬──────────────▶ report ──▶ table report
                 └──▶ table orders └─▶ paying ──▶ paid ──┘
    payments ──▶ pay ──▶ paidfor ─────▶ └──▶ table paid

Two sources, a join, an edge that two jobs read, three sinks. Every attempt gives its rows marks of their own, so rows
of two attempts cannot be mixed unnoticed, neither within a table nor between tables.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from tests.crash.world import check_history
from tests.kit.limits import AT_LEAST_ONCE, UNALIGNED
from tests.kit.ticking import TickingStore
from tests.kit.world import World
from tests.simulation.simulate import decoded_once
from tidegate import Pipeline, seams
from tidegate.connectors import channel
from tidegate.connectors.delta.sink import append
from tidegate.connectors.files.folder import open_folder
from tidegate.delta import Location
from tidegate.errors import Corrupt
from tidegate.ledger import Store
from tidegate.pipeline import Graph
from tidegate.records.records import Json
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

NAME = "several"
TABLES = ("orders", "paid", "report")
JOBS = {"main": (), "pay": (), "paying": ("main", "pay"), "report": ("main", "paying")}
"""By job, those that it takes from."""
ROWS_PER_FILE = 4


class Rows(DataFrame):
    """An Arrow table where the product expects what Spark gives."""

    def __new__(cls, table: pa.Table) -> Rows:
        return object.__new__(cls)

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @property
    def schema(self) -> Any:
        return from_arrow_schema(self.table.schema)

    @property
    def columns(self) -> list[str]:
        return [*self.table.column_names]

    def localCheckpoint(self, eager: bool = True, storageLevel: Any = None) -> Rows:
        return self

    def list(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows


SCHEMAS = {
    "orders": pa.schema([("id", pa.int64())]),
    "marked": pa.schema([("id", pa.int64()), ("mark", pa.string())]),
    "paidfor": pa.schema([("id", pa.int64()), ("by", pa.string())]),
    "paid": pa.schema([("id", pa.int64()), ("mark", pa.string()), ("by", pa.string()), ("paying", pa.string())]),
    "report": pa.schema([("id", pa.int64()), ("of", pa.string()), ("mark", pa.string()), ("paying", pa.string())]),
}


def rows(name: str, of: Sequence[dict[str, Any]]) -> Rows:
    return Rows(pa.Table.from_pylist(list(of), schema=SCHEMAS[name]))


class Landed(Files):
    """Files as they are planned and verified; read by Python."""

    def read(self, spark: Any, splits: Any, context: Any) -> Any:
        folder, found = open_folder(context.place, splits["folder"]), []
        for file in splits["files"]:
            with folder.open(file["name"]) as lines:
                found += [json.loads(line) for line in lines]
        return rows("orders", found)


def _write(frame: Rows, schema: Json, location: Location, folder: str, partition_by: Sequence[str]) -> None:
    if frame.table.num_rows:
        location.local(folder).mkdir(parents=True)
        pq.write_table(frame.table, location.local(folder) / "part-0.parquet")


def take_all(self: channel.Channel, sent: Sequence[Any], context: Any, spark: Any) -> tuple[Any, None]:
    location = self.location(context)
    paths = [location.full(file.path) for each in sent for file in each.rows.files]
    if gone := [path for path in paths if not Path(path).exists()]:
        raise Corrupt(f"the channel {self.stream!r} has lost {gone[0]}", reason="CHANNEL_DAMAGED")
    found = list(map(pq.read_table, paths))
    empty = SCHEMAS[self.stream].empty_table()
    return Rows(pa.concat_tables([empty, *found])), None


@contextlib.contextmanager
def without_spark() -> Iterator[None]:
    """Files are written and channels are read by Arrow. And nothing is decoded twice: that is a third of a story."""
    with (
        decoded_once(),
        mock.patch.object(append, "write_files", _write),
        mock.patch.object(channel, "write_files", _write),
        mock.patch.object(channel.Channel, "read_all", take_all),
    ):
        yield


MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": UNALIGNED,
    "timed": UNALIGNED | {"aligned_timeout": "30 s"},
    "at least once": AT_LEAST_ONCE,
}
"""How checkpoints treat jobs that are busy, and what is promised."""


@dataclass
class SeveralWorld(World):
    """The files, ledger and tables of the pipeline below one folder."""

    name: str = field(default=NAME, init=False)

    @property
    def exactly_once(self) -> bool:
        """False: after a failure rows may be there twice, and none is missing."""
        return self.limits.recorded != AT_LEAST_ONCE

    def feed(self, files: int) -> None:
        """Let so many files of orders, and as many of payments, have landed in all."""
        for source in ("orders", "payments"):
            landing = self.root / "landing" / source
            landing.mkdir(parents=True, exist_ok=True)
            for number in range(files):
                path = landing / f"{number:04d}.json"
                ids = [id for id in ids_of(number) if source == "orders" or is_paid(id)]
                if not path.exists():
                    path.write_text("".join(f'{{"id":{id}}}\n' for id in ids))

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(NAME)
        orders, payments = (
            pipeline.source(name, Landed(f"landing/{name}/*.json", schema="id long", max_files=1))
            for name in ("orders", "payments")
        )

        @pipeline.stage(orders)
        def marked(orders: Rows) -> Rows:
            mark = seams.new_id()
            return rows("marked", [{**row, "mark": mark} for row in orders.list()])

        @pipeline.stage(payments.job("pay"))
        def paidfor(payments: Rows) -> Rows:
            by = seams.new_id()
            return rows("paidfor", [{**row, "by": by} for row in payments.list()])

        @pipeline.stage(marked.job("paying"), paidfor.job("paying"))
        def paid(marked: Rows, paidfor: Rows) -> Rows:
            by, paying = {row["id"]: row["by"] for row in paidfor.list()}, seams.new_id()
            found = [{**row, "by": by[row["id"]], "paying": paying} for row in marked.list() if row["id"] in by]
            return rows("paid", found)

        @pipeline.stage(marked.job("report"), paid.job("report"))
        def report(marked: Rows, paid: Rows) -> Rows:
            told = [{**row, "of": "order"} for row in marked.list()]
            told += [{**row, "of": "payment"} for row in paid.table.drop_columns("by").to_pylist()]
            return rows("report", told)

        for name, stream in (("orders", marked), ("paid", paid), ("report", report)):
            stream.sink(name, DeltaAppend(f"tables/{name}"))
        return pipeline

    def store(self) -> Store:
        return TickingStore(self.folder)

    def graph(self) -> Graph:
        return self.pipeline().graph(self.place, self.limits.recorded.get("mode"))


def ids_of(number: int) -> range:
    """The orders of one landed file."""
    return range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)


def is_paid(id: int) -> bool:
    return id % 2 == 1


# -- the oracle ----------------------------------------------------------------------------------------


def check(world: SeveralWorld, files: int) -> None:
    """All that must hold once the world is quiet and so many files have been read."""
    expected = list(range(files * ROWS_PER_FILE))
    shown = {name: world.table(name) for name in TABLES}
    reference = {
        "orders": [(id,) for id in expected],
        "paid": [(id,) for id in expected if is_paid(id)],
        "report": [(id, of) for id in expected for of in ("order", "payment") if of == "order" or is_paid(id)],
    }
    for name, wanted in reference.items():
        found = sorted((row["id"], row["of"]) if name == "report" else (row["id"],) for row in shown[name])
        if not world.exactly_once:
            assert set(found) == set(wanted), f"table {name}: nothing is missing"
        else:
            assert found == wanted, f"table {name}: each row once"
    if world.exactly_once:
        _one_attempt_each(shown, files)
        for name in TABLES:
            check_history(world, name)  # type: ignore[arg-type]
    _check_ledger(world)


def _one_attempt_each(shown: dict[str, list[dict[str, Any]]], files: int) -> None:
    """What tables tell of an order comes from one attempt of each job that made it."""
    mark = {row["id"]: row["mark"] for row in shown["orders"]}
    paying = {row["id"]: row["paying"] for row in shown["paid"]}
    for number in range(files):
        assert len({mark[id] for id in ids_of(number)}) == 1
        assert len({row["by"] for row in shown["paid"] if row["id"] in ids_of(number)}) == 1
    assert all(row["mark"] == mark[row["id"]] for row in [*shown["paid"], *shown["report"]])
    assert all(row["paying"] == paying[row["id"]] for row in shown["report"] if row["of"] == "payment")


def _check_ledger(world: SeveralWorld) -> None:
    """Every entry is decided, ranges join, and each manifest is one that can be: told from its bytes alone."""
    ledger = world.coordinator().ledger
    ids = ledger.ids()
    assert ids == list(range(ids[0], ids[-1] + 1)), "no hole"
    position: Any = None
    for id in ids:
        entry = ledger.entry(id)
        assert entry is not None
        assert entry.decision is not None, f"checkpoint {id} is still open"
        if not entry.completed:
            continue
        ends = {name: part.end for name, part in entry.plan.sources.items()}
        assert position is None or {name: part.start for name, part in entry.plan.sources.items()} == position
        position = ends
        check_manifest(world.root / "ledger" / NAME / "checkpoints" / f"{id:08d}", id)
    last = json.loads(_manifest(world.root / "ledger" / NAME / "checkpoints" / f"{ids[-1]:08d}").read_text())
    assert not last["in_flight"], "the last one has waited for all"
    assert {handle["entry"] for handle in last["jobs"].values()} == {ids[-1]}


def check_manifest(folder: Path, id: int) -> None:
    """Sources are at the checkpoint; no job is further than one that it takes from; what it lacks is in flight."""
    told = json.loads(_manifest(folder).read_text())
    at = {job: handle["entry"] for job, handle in told["jobs"].items()}
    assert (at["main"], at["pay"]) == (id, id), "jobs that read a source are at the checkpoint"
    for job, makers in JOBS.items():
        waiting = told["in_flight"].get(job, [])
        for maker in makers:
            assert at.get(job, 0) <= at.get(maker, 0), f"{job} at {at.get(job)}, {maker} at {at.get(maker)}"
            lacks = [each["ack"]["entry"] for each in waiting if each["job"] == maker]
            assert lacks == sorted(set(lacks))
            assert all(at.get(job, 0) < each <= at[maker] for each in lacks)
            assert bool(lacks) == (at.get(job, 0) < at.get(maker, 0))


def _manifest(folder: Path) -> Path:
    decision = json.loads((folder / "decision.json").read_text())
    return folder / f"manifest-{decision['manifest']}.json"
