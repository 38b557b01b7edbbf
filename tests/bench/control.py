"""What the benches of the control plane share: a pipeline of many jobs, acks without Spark, one whole checkpoint."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tests.kit.limits import Limits
from tidegate import Pipeline, seams
from tidegate.connectors.source import Planned, Source, SourceContext
from tidegate.coordinator import Coordinator
from tidegate.ledger import open_ledger
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.pipeline import Graph, Job
from tidegate.records.place import Place
from tidegate.records.records import Ack, JobStats, Json, Plan
from tidegate.sinks import DeltaAppend

PIPELINE = "bench"
ATTEMPT = "0" * 16
"""Whoever stages and acks here is always the same: what an ack names lies in a folder of its attempt."""

T = TypeVar("T")


class Ticks(Source):
    """One row a checkpoint. Like a source of files, it keeps a part of its position in a side file."""

    kind = "ticks"

    def describe(self) -> Json:
        return {"kind": self.kind}

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        at = start["at"] + 1 if start else 1
        blob = context.blobs.put_blob(b"%d" % at)
        return Planned(end={"at": at, "seen": msgspec.to_builtins(blob)}, splits={"at": at}, is_empty=False)

    def verify(self, splits: Json, context: SourceContext) -> None:
        """Nothing can change."""

    def read(self, spark: Any, splits: Json, context: SourceContext) -> Any:
        raise NotImplementedError("the control plane reads no rows")


class JobPerSink(Graph):
    """A pipeline that is cut into one job per sink, so that a checkpoint has as many acks."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        sources = tuple(self.sources.values())
        return tuple(Job(name, sources, self.stages, (sink,)) for name, sink in self.sinks.items())


def coordinator(root: Path, sinks: Sequence[str], limits: Limits, ledger: Ledger | None = None) -> Coordinator:
    """The real one, on a local folder: a row to each of so many appended tables, each by a job of its own."""
    place = Place(str(root))
    pipeline = Pipeline(PIPELINE)
    ticks = pipeline.source("ticks", Ticks())
    for name in sinks:
        ticks.sink(name, DeltaAppend(f"tables/{name}"))
    whole = pipeline.graph(place)
    graph = JobPerSink(**{field.name: getattr(whole, field.name) for field in dataclasses.fields(Graph)})
    return Coordinator(graph, ledger or open_ledger(str(root / "ledger"), PIPELINE), limits, place)


def ack_all(ledger: Ledger, plan: Plan, committables: Mapping[str, Json]) -> None:
    """What each job does last. `committables`: what each would have staged; nothing for those left out."""
    base = ledger.entry(plan.base) if plan.base is not None else None
    for job in plan.acks:
        sinks = {job: ledger.pack(committables[job])} if job in committables else {}
        prev = base.acks[job].handle if base and job in base.acks else None
        ledger.create_ack(Ack(**stamp(ATTEMPT), id=plan.id, job=job, prev=prev, sinks=sinks, stats=JobStats()))


def checkpoint(control: Coordinator, committables: Mapping[str, Json]) -> dict[str, float]:
    """One checkpoint without rows, from trigger to published and retired; the seconds of each part."""
    clock = Clock()
    triggered = clock.part("trigger", lambda: control.trigger(seams.new_id()))
    assert triggered is not None
    clock.part("acks", lambda: ack_all(control.ledger, triggered.plan, committables))
    outcome = clock.part("complete", lambda: control.complete(triggered.plan.id))
    assert outcome.state == "completed", outcome
    report = clock.part("publish", control.publish)
    assert not report.stuck, report
    clock.part("retire", control.retire)
    return clock.seconds


class Clock:
    """Seconds of named parts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def part(self, name: str, do: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return do()
        finally:
            self.seconds[name] = time.perf_counter() - began
