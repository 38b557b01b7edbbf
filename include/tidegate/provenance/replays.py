"""Replays recorded checkpoints with some of their records, by today's code, in a folder that is thrown away.

The pipeline is only read. A replay has its own ledger, states and table in a folder of its own, and only what is
upstream of one sink. Its checkpoints have the recorded clocks, and its sources the recorded event times: what a row
came from is asked, not what would have happened at another time.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from tidegate import seams
from tidegate.backfill.recorded import repeating
from tidegate.checkpoint import approvals
from tidegate.checkpoint.context import CheckpointSettings
from tidegate.checkpoint.planning import CheckpointOptions
from tidegate.checkpoint.publishing.publish import Report
from tidegate.connectors.delta.sink.table import DeltaSink
from tidegate.coordinator import Coordinator, Triggered
from tidegate.delta import Snapshot, open_table, query
from tidegate.delta.as_python import python_rows
from tidegate.errors import Rejected
from tidegate.execution.job.run_job import run_job
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.ledger.ledger import folder_ledger
from tidegate.lifecycle.fork import fork, inspect_snapshot
from tidegate.lifecycle.snapshot import checkpoint_snapshot
from tidegate.offline import open_as_of, published_as_of, states_of
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol.rules import CreateEntry, WantedInterval
from tidegate.protocol.verdicts import unanswered
from tidegate.protocol.view import View
from tidegate.provenance.question import AskedRow, row_with_key
from tidegate.provenance.records import InputRecord, RecordedInput, ReplayedSource, Selection
from tidegate.records.records import Json, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Cause", "Moment", "OlderState", "Replays", "TakenRequests"]

ANSWERS_AS = "tidegate why"
SHOWN = 10
"""At most so many rows of a state are shown."""


class TakenRequests(NamedTuple):
    """What people asked to do with quarantined rows, as one checkpoint did it."""

    checkpoint: int
    gate: str


class OlderState(NamedTuple):
    """The state with which the replayed checkpoints begin."""

    checkpoint: int


Cause: TypeAlias = InputRecord | TakenRequests | OlderState


@dataclass(frozen=True)
class Moment:
    """What there is after a checkpoint that has causes, made of these alone."""

    plan: Plan
    row: Json | None
    states: dict[str, list[Json]]


@dataclass
class Replays:
    """Replays of one sink's part of a pipeline, one after the other."""

    live: Coordinator
    graph: Graph
    """What is upstream of the sink."""
    sink: str
    plans: Sequence[Plan]
    origin: int
    """The checkpoint after which they begin, or 0 for the beginning."""
    input: RecordedInput
    folder: Path
    spark: SparkSession
    made: int = 0

    def corrections(self) -> list[TakenRequests]:
        """Return the requests about quarantined rows that the checkpoints have taken up."""
        gates = {gated.name for gated in self.graph.gates}
        found = []
        for plan in self.plans:
            for name, part in plan.sources.items():
                gate = name.removeprefix(QUARANTINE)
                if name.startswith(QUARANTINE) and gate in gates and not part.empty:
                    found.append(TakenRequests(plan.id, gate))
        return found

    def table_of(self, causes: Collection[Cause]) -> Snapshot | None:
        """Return the sink's table after all checkpoints, made of nothing but these causes."""
        replaying = self._opened(causes)
        for plan in self.plans:
            replaying.repeat(plan, self.spark)
        return replaying.table(self.sink)

    def moments_of(self, causes: Collection[Cause], question: AskedRow) -> list[Moment]:
        """Return what there is after each checkpoint with causes."""
        with_causes = {cause.checkpoint for cause in causes}
        replaying, moments = self._opened(causes), []
        for plan in self.plans:
            replaying.repeat(plan, self.spark)
            if plan.id in with_causes:
                table = replaying.table(self.sink)
                row = row_with_key(table, question) if table is not None else None
                moments.append(Moment(plan, row, dict(replaying.states())))
        return moments

    def _opened(self, causes: Collection[Cause]) -> _Replaying:
        """Begin a replay in a folder of its own, and remove that of the one before."""
        shutil.rmtree(self.folder / f"replay-{self.made}", ignore_errors=True)
        self.made += 1
        home = self.folder / f"replay-{self.made}"
        selection = Selection(self.input)
        selection.choose([cause for cause in causes if isinstance(cause, InputRecord)])
        sources = {
            name: replace(node, source=ReplayedSource(name, node.source, selection))
            for name, node in self.graph.sources.items()
        }
        node = self.graph.sinks[self.sink]
        table = copy.copy(node.sink)
        assert isinstance(table, DeltaSink)
        table.path = str(home / "table")
        graph = replace(self.graph, sources=sources, sinks={self.sink: replace(node, sink=table)})
        ledger = folder_ledger(str(home / "ledger"), self.live.ledger.pipeline, {})
        replaying = _Replaying(graph, ledger, _ReplaySettings(self.live.settings), self.live.place)
        replaying.begin(self.live, self.origin, selection, [c for c in causes if isinstance(c, TakenRequests)])
        if OlderState(self.origin) in causes:
            snapshot = checkpoint_snapshot(self.live.ledger, self.origin, self.live.place.options, by=ANSWERS_AS)
            fork(inspect_snapshot(snapshot, replaying), replaying, pins=False)
        return replaying


class _ReplaySettings:
    """A pipeline's settings, with which operators that lead elsewhere may be left out."""

    def __init__(self, real: CheckpointSettings) -> None:
        self._real = real

    def record(self) -> Json:
        return self._real.record() | {"allow_non_restored_state": True}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Replaying(Coordinator):
    """The control plane of a replay."""

    def begin(
        self, live: Coordinator, origin: int, selection: Selection, corrections: Collection[TakenRequests]
    ) -> None:
        self._live, self._origin, self._selection, self._corrections = live, origin, selection, corrections
        self._recorded: Plan | None = None
        self.only_looks = False

    @property
    def limits_jobs(self) -> bool:
        """See PipelineContext. Nothing waits for a replay."""
        return False

    @property
    def finishes(self) -> bool:
        """See PipelineContext."""
        return False

    def repeat(self, plan: Plan, spark: SparkSession) -> None:
        """Make the checkpoint that repeats a recorded one."""
        self.spark = lambda: spark
        self._recorded, self._selection.checkpoint = plan, plan.id
        triggered = self.trigger(f"why:{seams.new_id()}")
        assert isinstance(triggered, Triggered)
        id = triggered.plan.id
        for job in self.graph.jobs:
            run_job(self, id, job.name, spark)
        outcome = self.complete(id)
        while outcome.state == "open":
            # A person let the recorded checkpoint pass, or it broke no rule with all of its rows.
            for entry in self.ledger.view().still_open():
                if unanswered(entry):
                    approvals.answer(self.ledger, entry.id, None, approve=True, by=ANSWERS_AS)
            outcome = self.complete(id)
        if outcome.state != "completed":
            raise Rejected(
                f"the replay of checkpoint {plan.id} was {outcome.state}: {outcome.reason} {outcome.detail}".rstrip(),
                expected="a checkpoint that completes",
                help="these records alone do not pass the gates",
                reason="NOT_COMPLETED",
            )
        self.publish()

    def table(self, sink: str) -> Snapshot | None:
        """Return the sink's table, or None if it has none yet."""
        declared = self.graph.sinks[sink].sink
        assert isinstance(declared, DeltaSink)
        location = declared.delta_table(self.context(sink))
        return open_table(location)

    def states(self) -> Iterator[tuple[str, list[Json]]]:
        """Yield the first rows of each operator's state, as of the last checkpoint."""
        published = published_as_of(self.ledger, self.place, None)
        for name, state in states_of(self.ledger, published).items():
            sql = state.view("version", quote='"')
            rows = python_rows(query({"version": open_as_of(state.table, {})}, f"SELECT * FROM ({sql}) LIMIT {SHOWN}"))
            yield name, [{column: row[column] for column in state.columns} for row in rows]

    def _plan(
        self,
        answer: CreateEntry,
        view: View,
        run: str,
        kind: str,
        wanted: WantedInterval | None,
        options: CheckpointOptions,
        report: Report | None,
    ) -> Plan:
        recorded = self._recorded
        assert recorded is not None
        repeated = None if recorded.is_manual_edit else self._drop_corrections(recorded)
        options = repeating(options, repeated, self.ledger, self._live.ledger, self._origin)
        plan = super()._plan(answer, view, run, kind, wanted, options, report)
        return msgspec.structs.replace(plan, clock=recorded.time)

    def _drop_corrections(self, recorded: Plan) -> Plan:
        """Return the plan without the corrections that are left out."""
        left_out = set()
        for name in recorded.sources:
            if name.startswith(QUARANTINE):
                correction = TakenRequests(recorded.id, name.removeprefix(QUARANTINE))
                if correction not in self._corrections:
                    left_out.add(name)
        sources = {name: part for name, part in recorded.sources.items() if name not in left_out}
        return msgspec.structs.replace(recorded, sources=sources)
