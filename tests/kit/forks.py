"""Pipelines to be forked and copied, and commands that die on the way."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from tests.kit.delta import KV, kv, rows_of, staged
from tidegate import seams
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.targets import find
from tidegate.delta import Location, live_files, locate, missing_files, open_table
from tidegate.ledger.ledger import stamp
from tidegate.ledger.store import LocalStore
from tidegate.pipeline.graph.meaning import meaning_of
from tidegate.records.records import Ack, JobStats, Restart
from tidegate.sinks.base import Staging
from tidegate.sinks.delta.table import StagedBatch, staged_result
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

    def __init__(self, name, **settings):
        self.name = name
        self.coordinator = coordinator_of(find(f"shop:{name}", settings, started=False))
        self.ledger = self.coordinator.ledger

    def checkpoint(self, **options):
        return self.completed(self.acked(**options))

    def acked(self, **options):
        """Its job is done, and nothing of it is on a table yet."""
        plan = self.coordinator.trigger(f"by hand {seams.new_id()}", **options).plan
        attempt = f"{plan.attempt}-{seams.new_id()}"
        context = self.coordinator.context("good")
        table = locate(context.place, self.coordinator.graph.sinks["good"].sink.path)
        files = staged(table, Staging(plan.id, attempt).folder(context), kv((plan.id, self.name)), KV)
        good = staged_result(StagedBatch(columns=KV, files=files), 1).committable
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

    def completed(self, id):
        assert self.coordinator.complete(id).state == "completed"
        self.coordinator.publish()
        self.coordinator.retire()
        return id

    def grown(self, plan, attempt):
        """The state with one more file. Long enough to lie beside its record."""
        before = self.state(plan.base).files if plan.base is not None else []
        folder = Staging(plan.id, attempt).folder(self.coordinator.context("state.totals"))
        (file,) = staged(self.state_table, folder, kv((plan.id, self.name)), KV)
        new = StateFile(file=file, checkpoint=plan.id, oldest=plan.id, groups=(0, 0))
        columns = {**KV, "fields": [*KV["fields"], *({**KV["fields"][1], "name": f"c{n}"} for n in range(600))]}
        return msgspec.to_builtins(StateTable(columns=columns, keys=["k"], groups=1, files=[*before, new]))

    def state(self, id):
        ack = self.ledger.ack(id, "main").ack
        return msgspec.convert(self.ledger.unpack(ack.states["state.totals"]), StateTable)

    @property
    def state_table(self):
        return Location(f"{self.ledger.home}/state/totals")

    def entry(self, id):
        return self.ledger.entry(id)

    def good(self):
        path = self.coordinator.graph.sinks["good"].sink.path
        return [key for key, _ in rows_of(locate(self.coordinator.place, path))]

    def remembered(self):
        """The keys in the state's table."""
        return sorted(row[0] for row in rows_of(self.state_table))


@pytest.fixture
def shop(folder, tidegate):
    """Three checkpoints of the old pipeline."""
    (folder / "shop.py").write_text(CODE)
    run = Run("orders")
    for _ in range(3):
        run.checkpoint()
    return run


def contents(*folders):
    """Every file with its hash."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def refused(tidegate, *arguments):
    said = tidegate(*(arguments or FORK), "--json")
    assert said.code in (1, 2, 3)
    return said.json["error"]


class Died(BaseException):
    """The process."""


def dying(monkeypatch, nth, landed):
    """The nth create of a file from now on is the last thing that happens, or does not happen any more."""
    real, left = LocalStore.create, [nth]

    def create(self, path, data):
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

    def grown(self, plan, attempt):
        if not self.compact:
            return super().grown(plan, attempt)
        folder = Staging(plan.id, attempt).folder(self.coordinator.context("state.totals"))
        (merged,) = staged(self.state_table, folder, kv((0, "all")), KV)
        files = [StateFile(file=merged, checkpoint=plan.id, oldest=1, groups=(0, 0))]
        return msgspec.to_builtins(StateTable(columns=KV, keys=["k"], groups=1, files=files))

    def state(self, id):
        """As of a checkpoint; of a rollback, as of what it went back to."""
        entry = self.entry(id)
        restart: Restart | None = entry.plan.restart
        return super().state(restart.target if restart is not None else id)

    def merge(self):
        self.compact = True
        try:
            return self.checkpoint()
        finally:
            self.compact = False

    def lacks(self):
        """Of each checkpoint that is there, and of the state's table: the files that are gone."""
        found = {
            id: gone
            for id in self.ledger.ids()
            if self.entry(id).completed
            and (gone := missing_files(self.state_table, [each.file for each in self.state(id).files]))
        }
        snapshot = open_table(self.state_table)
        gone = missing_files(self.state_table, [each.staged() for each in live_files(snapshot)])
        return found | ({"the table": gone} if gone else {})
