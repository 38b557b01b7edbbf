"""Pipelines to be forked and copied, and commands that die on the way."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.delta import KV, kv, rows_of, staged
from tidegate import seams
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.targets import open_target
from tidegate.connectors.delta.sink.table import DeltaSink, StagedBatch, staged_result
from tidegate.connectors.sink import Staging
from tidegate.coordinator import Triggered
from tidegate.delta import Location, live_files, locate, missing_files, open_table
from tidegate.ledger.ledger import stamp
from tidegate.ledger.store import LocalStore
from tidegate.pipeline.graph.meaning import meaning_of
from tidegate.protocol.view import Entry
from tidegate.records.records import Ack, JobStats, Json, Plan
from tidegate.state.record import StateFile, StateTable

CODE = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files, Generator


def build(name, folder, uid="totals", source=None, job="main", **settings):
    pipeline = Pipeline(name, **settings)
    events = pipeline.source("events", source or Generator(rows=1))
    events.sink("good", DeltaAppend(f"{folder}/good"))
    totals = events.job(job).aggregate(by="k", n="count(*)", uid=uid)
    totals.sink("totals", DeltaUpsert(f"{folder}/totals", keys=["k"]))
    return pipeline


orders, trial, other = build("orders", "tables"), build("trial", "trial"), build("other", "other")
apart = build("apart", "apart", job="counting")
"""


FORK = ("fork", "orders", "--from", "2", "--as", "shop:trial")


class Run:
    """One of the pipelines. Arrow does its jobs: a row and a file of state per checkpoint, really published."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.name = name
        self.coordinator = coordinator_of(open_target(f"shop:{name}", settings, started=False))
        self.ledger = self.coordinator.ledger

    def checkpoint(self, **options: Any) -> int:
        return self.completed(self.acked(**options))

    def acked(self, **options: Any) -> int:
        """Its job is done, and nothing of it is on a table yet."""
        triggered = self.coordinator.trigger(f"by hand {seams.new_id()}", **options)
        assert isinstance(triggered, Triggered)
        plan = triggered.plan
        attempt = f"{plan.attempt}-{seams.new_id()}"
        context = self.coordinator.context("good")
        table = self.good_table
        files = staged(table, Staging(plan.id, attempt).folder(context), kv((plan.id, self.name)), KV)
        good = staged_result(StagedBatch(columns=KV, files=files), 1).committable
        assert good is not None
        state = self.ledger.pack(self.grown(plan, attempt))
        ack = Ack(
            **stamp(attempt),
            id=plan.id,
            job="main",
            prev=None,
            sinks={"good": self.ledger.pack(good), "state.totals": state},
            states={"state.totals": state},
            memory={**meaning_of(self.coordinator.graph), "totals": {"upto": plan.id}},
            stats=JobStats(rows={"good": 1}),
        )
        self.ledger.create_ack(ack)
        return plan.id

    def completed(self, id: int) -> int:
        assert self.coordinator.complete(id).state == "completed"
        self.coordinator.publish()
        self.coordinator.retire()
        return id

    def grown(self, plan: Plan, attempt: str) -> Json:
        """The state with one more file. Long enough to lie beside its record."""
        before = self.state(plan.base).files if plan.base is not None else []
        folder = Staging(plan.id, attempt).folder(self.coordinator.context("state.totals"))
        (file,) = staged(self.state_table, folder, kv((plan.id, self.name)), KV)
        new = StateFile(file=file, checkpoint=plan.id, oldest=plan.id, groups=(0, 0))
        columns = {**KV, "fields": [*KV["fields"], *({**KV["fields"][1], "name": f"c{n}"} for n in range(600))]}
        grown: Json = msgspec.to_builtins(StateTable(columns=columns, keys=["k"], groups=1, files=[*before, new]))
        return grown

    def state(self, id: int) -> StateTable:
        acked = self.ledger.ack(id, "main")
        assert acked is not None
        return msgspec.convert(self.ledger.unpack(acked.ack.states["state.totals"]), StateTable)

    @property
    def state_table(self) -> Location:
        return Location(f"{self.ledger.home}/state/totals")

    @property
    def good_table(self) -> Location:
        sink = self.coordinator.graph.sinks["good"].sink
        assert isinstance(sink, DeltaSink)
        return locate(self.coordinator.place, sink.path)

    def entry(self, id: int) -> Entry:
        entry = self.ledger.entry(id)
        assert entry is not None
        return entry

    def good(self) -> list[Any]:
        return [key for key, _ in rows_of(self.good_table)]

    def remembered(self) -> list[Any]:
        """The keys in the state's table."""
        return sorted(row[0] for row in rows_of(self.state_table))


@pytest.fixture
def shop(folder: Path, tidegate: Any) -> Run:
    """Three checkpoints of the old pipeline."""
    (folder / "shop.py").write_text(CODE)
    run = Run("orders")
    for _ in range(3):
        run.checkpoint()
    return run


def contents(*folders: Path) -> dict[str, str]:
    """Every file with its hash."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def refused(tidegate: Any, *arguments: str) -> Any:
    said = tidegate(*(arguments or FORK), "--json")
    assert said.code in (1, 2, 3)
    return said.json["error"]


class Died(BaseException):
    """The process."""


def dying(monkeypatch: pytest.MonkeyPatch, nth: int, landed: bool) -> None:
    """The nth create of a file from now on is the last thing that happens, or does not happen any more."""
    real, left = LocalStore.create, [nth]

    def create(self: LocalStore, path: str, data: bytes) -> bool:
        left[0] -= 1
        if left[0] == 0:
            if landed:
                real(self, path, data)
            raise Died
        return real(self, path, data)

    monkeypatch.setattr(LocalStore, "create", create)


class Compacting(Run):
    """Its state gets a file with each checkpoint; and when it is told to, one that stands for all before it."""

    compact = False

    def grown(self, plan: Plan, attempt: str) -> Json:
        if not self.compact:
            return super().grown(plan, attempt)
        folder = Staging(plan.id, attempt).folder(self.coordinator.context("state.totals"))
        (merged,) = staged(self.state_table, folder, kv((0, "all")), KV)
        files = [StateFile(file=merged, checkpoint=plan.id, oldest=1, groups=(0, 0))]
        grown: Json = msgspec.to_builtins(StateTable(columns=KV, keys=["k"], groups=1, files=files))
        return grown

    def state(self, id: int) -> StateTable:
        """As of a checkpoint; of a rollback, as of what it went back to."""
        entry = self.entry(id)
        rollback = entry.plan.rollback
        return super().state(rollback.target if rollback is not None else id)

    def merge(self) -> int:
        self.compact = True
        try:
            return self.checkpoint()
        finally:
            self.compact = False

    def lacks(self) -> dict[int | str, Any]:
        """Of each checkpoint that is there, and of the state's table: the files that are gone."""
        found: dict[int | str, Any] = {
            id: gone
            for id in self.ledger.ids()
            if self.entry(id).completed
            and (gone := missing_files(self.state_table, [each.file for each in self.state(id).files]))
        }
        snapshot = open_table(self.state_table)
        assert snapshot is not None
        gone = missing_files(self.state_table, [each.staged() for each in live_files(snapshot)])
        return found | ({"the table": gone} if gone else {})
