"""A project folder with a pipeline's ledger and tables, made by hand: no Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tidegate import seams
from tidegate.cli.main import main
from tidegate.config import load_settings
from tidegate.history.table import remember
from tidegate.ledger.ledger import Ledger, open_ledger, stamp
from tidegate.records.codec import fingerprint, sha256
from tidegate.records.records import (
    Ack,
    Decision,
    Handle,
    JobStats,
    LatestHint,
    Manifest,
    Payload,
    Plan,
    Position,
    Published,
    PublishedTable,
    Range,
    TablePart,
)


@dataclass
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Project:
    """Checkpoints by hand: each method writes the records of one."""

    folder: Path
    ledger: Ledger
    config: dict[str, Any]

    @property
    def table(self) -> Path:
        return self.folder / "tables" / "good"

    def plan(
        self, id: int, base: int | None, *, run: str = "by-hand", summary: str = "1 file, 20 B", **more: Any
    ) -> Plan:
        made = Plan(
            **stamp(f"plan{id}"),
            id=id,
            kind="manual",
            run=run,
            base=base,
            interval=more.pop("interval", None),
            by_interval=more.pop("by_interval", False),
            promises=more.pop("promises", {}),
            sources={
                "events": Range(
                    kind="files",
                    start=None,
                    end={"n": id},
                    splits=Payload(data={}),
                    empty=False,
                    summary=summary,
                    lag=more.pop("lag", None),
                    pace=more.pop("pace", None),
                    schema=more.pop("schema", None),
                )
            },
            triggers=["events"],
            acks=["main"],
            commits=more.pop("commits", ["good"]),
            timeout_s=600.0,
            config=more.pop("config", self.config),
            config_fingerprint=fingerprint(self.config),
            code_fingerprint=more.pop("code", "c0de"),
        )
        assert not more
        created = self.ledger.create_entry(made)
        assert created.is_new
        self.ledger.index_run(made)
        return made

    def ack(
        self, id: int, rows: int = 3, attempt: str = "", committable: dict[str, Any] | None = None, **stats: Any
    ) -> Handle:
        record = Ack(
            **stamp(attempt or f"attempt{id}"),
            id=id,
            job="main",
            prev=None,
            sinks={"good": Payload(data=committable or {"files": []})},
            drift=stats.pop("drift", {}),
            stats=JobStats(
                seconds={"read": 0.1, "stage good": 1.2},
                rows={"good": rows},
                bytes={"good": 2048},
                files={"good": 1},
                **stats,
            ),
        )
        return Handle(entry=id, sha=self.ledger.create_ack(record).sha)

    def abort(self, id: int, reason: str = "JOB_FAILED", detail: str = "boom", counts: bool = True) -> None:
        self.ledger.create_decision(
            Decision(**stamp(f"d{id}"), id=id, outcome="aborted", reason=reason, detail=detail, counts=counts)
        )

    def decide(self, plan: Plan, handle: Handle) -> None:
        manifest = Manifest(
            **stamp(f"m{plan.id}"),
            id=plan.id,
            base=plan.base,
            base_manifest=None,
            positions={"events": Position(kind="files", at={"n": plan.id})},
            jobs={"main": handle},
            tables={"good": TablePart(after=plan.base, committables=[Payload(data={"files": []})])},
        )
        sha = self.ledger.create_manifest(manifest)
        self.ledger.create_decision(Decision(**stamp(f"d{plan.id}"), id=plan.id, outcome="completed", manifest=sha))

    def complete(self, id: int, base: int | None, *, publish: bool = True, **plan: Any) -> None:
        """Plan, ack, decide and, with a real commit on the table, publish."""
        drift = plan.pop("drift", {})
        self.decide(self.plan(id, base, **plan), self.ack(id, drift=drift))
        if publish:
            self.publish(id)

    def publish(self, id: int) -> None:
        import pyarrow as pa
        from deltalake import DeltaTable, write_deltalake

        rows = {"id": [id * 10 + n for n in range(3)], "name": [f"row {id} {n}" for n in range(3)]}
        write_deltalake(str(self.table), pa.table(rows), mode="append")
        version = DeltaTable(str(self.table)).version()
        log = self.table / "_delta_log" / f"{version:020d}.json"
        table = PublishedTable(uri=str(self.table), version=version, log_hash=sha256(log.read_bytes()), rows=3)
        self.ledger.create_published(Published(**stamp(f"p{id}"), id=id, tables={"good": table}))
        self.ledger.hint(LatestHint(**stamp(seams.new_id()), id=id))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty project folder that is the working directory; no settings from the environment."""
    import os

    for name in list(os.environ):
        if name.startswith("TIDEGATE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\n')
    return tmp_path


@pytest.fixture
def project(folder):
    """A pipeline `orders` that was started and has no checkpoint yet."""
    ledger = open_ledger(str(folder / "ledger"), "orders")
    ledger.start()
    return Project(folder, ledger, load_settings().record())


@pytest.fixture
def tidegate(capsys):
    """Run a command in this process."""

    def call(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(list(arguments))
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return call


@pytest.fixture
def long_ago(folder, tidegate):
    """Ten checkpoints, of which the ledger has one left; every third failed."""
    world = ToyWorld(folder / "ledger").limit(num_retained=1, tolerable_failed_checkpoints=99)
    world.name = "orders"
    for n in range(10):
        if n % 3 == 1:
            world.feed_more(3)
            reason = "JOB_FAILED" if n > 1 else "CANCELLED"
            world.coordinator().abort(world.trigger(f"run{n}"), reason, "boom", counts=True)
            continue
        world.decided(f"run{n}", rows=3)
        world.coordinator().publish()
        remember(world.ledger, {})
        world.coordinator().retire()
    return world
