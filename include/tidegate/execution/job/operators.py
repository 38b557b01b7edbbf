"""Runs the operators of a job: opens their states at the base, stages their changes, and collects their memory."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tidegate.checkpoint.context import PipelineContext
from tidegate.connectors.sink import Staging
from tidegate.connectors.source import SourceContext
from tidegate.delta import Location, Syncing, rows_written
from tidegate.errors import TidegateError
from tidegate.execution.job.differences import differences, find_edited_rows
from tidegate.execution.job.exchange import BaseMemory
from tidegate.execution.job.small_input import amounts_of, is_small_input
from tidegate.execution.job.upstream_view import UpstreamRows
from tidegate.execution.job.watermarks import EventTimes
from tidegate.operators.context import OperatorContext
from tidegate.operators.inputs import analysed
from tidegate.operators.retractions.key import ChangelogKey
from tidegate.pipeline.graph.graph import Graph, Job, OperatorNode
from tidegate.pipeline.graph.jobs import share_of
from tidegate.pipeline.graph.meaning import meaning_of, refuse_misread_states, without_removed
from tidegate.pipeline.graph.nodes import makers_of, replaced_rows_of
from tidegate.records import typed
from tidegate.records.records import Amount, Json, Payload, Plan
from tidegate.spark.materialize import release
from tidegate.spark.storage.writing import write_files
from tidegate.state.columns import DELETED
from tidegate.state.computing import Computing
from tidegate.state.keyed import KeyedState, StateFolder, TemporaryState
from tidegate.state.lateness import ExpiredRows, without_expired_files
from tidegate.state.record import DEFAULT_GROUPS, RowTtl, StateTable, Ttl
from tidegate.state.table import StateSink, expired_name, state_sink_name
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Change = Callable[[DataFrame, Sequence[str]], DataFrame]
    """Maps a state's rows, and the names of its keys, to the rows that replace them. These have one row per key."""

__all__ = ["OperatorRunner"]


class OperatorRunner:
    """Runs the operators of one attempt at a job, and holds their states."""

    def __init__(
        self,
        pipeline: PipelineContext,
        job: Job,
        plan: Plan,
        staging: Staging,
        prev: BaseMemory | None,
        elsewhere: Mapping[str, Json],
    ) -> None:
        """prev: the states and memory of the base. elsewhere: the event times of other jobs' sources."""
        self.pipeline = pipeline
        self.job = job
        self.plan = plan
        self.staging = staging
        self.prev = prev
        self.small = False
        """Whether the checkpoint is known to have little input."""
        self.several = False
        """Whether several operators run in parallel."""
        self.read: Mapping[str, Amount] = {}
        """The most that is read of each source, and of each stream of another job."""
        self.states: dict[str, KeyedState] = {}
        self.finished: dict[str, Payload] = {}
        """The records of all states after this checkpoint, for the ack."""
        self.changed: dict[str, Payload] = {}
        """The records of the states that this checkpoint changes, which are published."""
        self.memory: dict[str, Json] = {}
        self.expired: dict[str, Json] = {}
        """For each operator, the time up to which its states' rows have expired, for readers."""
        self.persisted: list[DataFrame] = []
        self.scratch: list[tuple[Location, str]] = []
        self.counts: dict[str, dict[str, int]] = {}
        self.computing: dict[str, Computing] = defaultdict(Computing)
        """How each operator was computed."""
        self.afresh: set[str] = set()
        """States that start empty, whatever they have at the base."""
        self.received_keys: Mapping[str, ChangelogKey] = {}
        """Keys of changelogs of other jobs' streams, which these jobs found in their plans."""
        if prev is not None:
            refuse_misread_states(pipeline.graph, prev.memory, prev.id)
        if prev is not None:
            self.before = without_removed(pipeline.graph, prev.memory)
        else:
            self.before = {}
        unread = {stage.name for stage in self.graph.operators if self._is_unread(stage)}
        self.event_times = EventTimes(pipeline.graph, plan, self.before, self._highest, elsewhere, unread)

    @property
    def graph(self) -> Graph:
        """The pipeline's graph."""
        return self.pipeline.graph

    def run(
        self,
        stage: OperatorNode,
        streams: Mapping[str, DataFrame],
        spark: SparkSession,
        *,
        waits: bool = False,
        history: bool = False,
    ) -> dict[str, DataFrame]:
        """Run an operator, and return its streams under their names in the graph.

        waits: do not fire timers. history: the rows are older than all others, as in a bootstrap.
        """
        frames = [streams[name] for name in stage.inputs]
        context = self.context(stage, streams, spark, waits=waits)
        context = dataclasses.replace(context, is_bootstrap=history and stage.spec.is_in_order)
        if stage.spec.is_implied:
            context = dataclasses.replace(context, upstream=UpstreamRows(self, stage, streams))
        results = analysed(lambda: stage.operator.run(frames, context), frames[0], context)
        if not stage.keeps_state:
            # It has emitted no rows before that it could retract.
            results = {name: frame for name, frame in results.items() if name != "-"}
        if context.remember:
            self.memory[stage.name] = context.remember
        if context.counts:
            self.counts[stage.name] = context.counts
        outputs = {}
        for name, frame in results.items():
            outputs[f"{stage.name}.{name}" if name else stage.name] = frame
        return outputs

    def edit(
        self, stage: OperatorNode, part: str, change: Change, streams: Mapping[str, DataFrame], spark: SparkSession
    ) -> dict[str, DataFrame]:
        """Edit the rows of a state, and return the resulting changes of the operator's output as its streams.

        streams: the operator's inputs, without rows. They are only needed if the operator retracts rows.
        """
        operator, context = stage.operator, self.context(stage, streams, spark, waits=True)
        states: dict[str, DataFrame | None] = {}
        for name in stage.spec.state_names:
            state_at_base = self.as_of_base(stage, name, context)
            states[name] = state_at_base.rows() if state_at_base is not None else None
        state, before = self.states[state_sink_name(stage.name, part)], states[part]
        assert before is not None
        after = change(before, state.keys)
        changed, removed = find_edited_rows(before, after, state.keys)
        changes = changed.selectExpr("*", f"false AS {DELETED}").unionByName(
            removed.selectExpr("*", f"true AS {DELETED}")
        )
        state.write_changes(changes, deletes=True)
        if stage.name not in self.pipeline.graph.updating:
            return {}
        frames = [streams[name] for name in stage.inputs]
        old_output = operator.current_output({**states, part: before}, frames, context)
        new_output = operator.current_output({**states, part: after}, frames, context)
        if old_output is None or new_output is None:
            return {}
        added, retracted = differences(new_output, old_output, context)
        streams_after = {stage.name: added, replaced_rows_of(stage.name): retracted}
        for name in stage.outputs:
            # Side outputs have input rows, such as late ones, and the input is empty here.
            streams_after[f"{stage.name}.{name}"] = frames[0]
        return streams_after

    def context(
        self, stage: OperatorNode, streams: Mapping[str, DataFrame], spark: SparkSession, *, waits: bool
    ) -> OperatorContext:
        """Return the context for a run of an operator in this attempt."""
        makers = makers_of(self.job.stages)
        amounts: list[Amount] = []
        for name in stage.inputs:
            amounts += amounts_of(name, makers, streams, self.read)
        few_rows_arrive = is_small_input(amounts)
        return OperatorContext(
            uid=stage.name,
            checkpoint=self.plan.id,
            clock=parse_time(self.plan.time),
            spark=spark,
            spec=stage.spec,
            stage=lambda frame: self._scratch(stage, frame) if stage.keeps_state else frame,
            states=lambda part, keys, ttl, over, by: self._state(
                stage, part, keys, spark, ttl, over, by, few_rows_arrive=few_rows_arrive
            ),
            watermarks=self.event_times.for_operator(stage),
            event_times=self.event_times.columns(stage),
            memory=self.before.get(stage.name, {}),
            consumed_outputs=frozenset(name for name in stage.outputs if self.job.users(f"{stage.name}.{name}")),
            wants_retractions=stage.keeps_state and self.pipeline.graph.wants_retractions(stage.name),
            retractions=tuple(streams.get(replaced_rows_of(name)) for name in stage.inputs),
            planned_inputs=self._fixed(stage),
            timers_paused=waits,
            persisted=self.persisted,
            computing=self.computing[stage.name],
        )

    def _highest(self, name: str) -> int | None:
        """Return the highest event time in a source's planned rows, if the source knows it without reading them."""
        sourcing, ledger = self.pipeline.graph.sources[name], self.pipeline.ledger
        context = SourceContext(self.pipeline.graph.name, name, self.pipeline.place, ledger)
        assert sourcing.event_time is not None
        planned = self.plan.sources[name]
        source = sourcing.as_planned(planned)
        return source.max_event_time(sourcing.event_time, ledger.unpack(planned.splits), context)

    def _fixed(self, stage: OperatorNode) -> tuple[Json, SourceContext] | None:
        """Return the operator's input that the plan fixes besides its streams, such as a table's version, if any."""
        payload = self.plan.fixed_inputs.get(stage.name)
        if payload is None:
            return None
        ledger = self.pipeline.ledger
        return ledger.unpack(payload), SourceContext(self.pipeline.graph.name, stage.name, self.pipeline.place, ledger)

    def _state(
        self,
        stage: OperatorNode,
        part: str,
        keys: Sequence[str],
        spark: SparkSession,
        ttl: Ttl | RowTtl | None,
        over: ExpiredRows | None,
        grouped_by: Sequence[str] = (),
        *,
        few_rows_arrive: bool = False,
    ) -> KeyedState:
        """Return a state at the base. Each call returns the same object, which collects the changes."""
        name = state_sink_name(stage.name, part)
        if name not in self.states:
            sink = StateSink(stage.name, part)
            context = self.pipeline.context(name)
            base = self.base(name) if name not in self.afresh else None
            if base is not None and isinstance(ttl, RowTtl) and not base.expires:
                ttl = None  # an earlier version of tidegate wrote it, without the column with the expiry of each row
            if ttl is not None and ttl.limit_after is not None:
                self.expired.setdefault(expired_name(stage.name), {})[part] = ttl.limit_after
            if base is not None and over is not None:
                base = without_expired_files(base, over)
            if base:
                groups = base.groups
            else:
                groups = int(self.plan.config.get("max_parallelism", DEFAULT_GROUPS))
            to = StateFolder(sink.location(context), self.staging.folder(context), self.plan.id)
            title = f"{stage.operator.kind} {stage.name!r}"
            kind = self._kind_of_state(stage)
            state = self.states[name] = kind(spark, title, base, to, keys, groups, ttl, grouped_by)
            state.little_arrives = self.small
            state.few_rows_arrive = few_rows_arrive
            state.shares_session = self.several
            state.computing = self.computing[stage.name]
        return self.states[name]

    def _kind_of_state(self, stage: OperatorNode) -> type[KeyedState]:
        return KeyedState if stage.keeps_state else TemporaryState

    def has_stored_state(self, stage: OperatorNode) -> bool:
        """Return whether an operator has stored rows at the base. If that is unknown, assume that it has."""
        if self._is_unread(stage):
            return True
        bases = (self.base(state_sink_name(stage.name, part)) for part in stage.spec.state_names)
        return any(base is not None and base.files for base in bases)

    def _is_unread(self, stage: OperatorNode) -> bool:
        """Return whether the operator's memory at the base is unknown, because it is in another job."""
        return self.prev is not None and not self.prev.of_all_jobs and stage.name not in self.job.names

    def as_of_base(self, stage: OperatorNode, part: str, context: OperatorContext) -> KeyedState | None:
        """Return one of an operator's states at the base, or None if it does not exist yet."""
        base = self.base(state_sink_name(stage.name, part))
        if base is None:
            return None
        ttl = stage.spec.ttl(part, context)
        return self._state(stage, part, base.keys, context.spark, ttl, None)

    def stored_rows(self, uid: str, keys: DataFrame) -> DataFrame | None:
        """Return the rows that an operator has stored for these keys at the base, or None if it has no state yet."""
        name = state_sink_name(uid, "")
        base = self.base(name)
        if base is None:
            return None
        stage = next(stage for stage in self.job.operators if stage.name == uid)
        context = self.pipeline.context(name)
        nowhere = StateFolder(stage.states[name].location(context), self.staging.folder(context), self.plan.id)
        state = KeyedState(keys.sparkSession, uid, base, nowhere, base.keys, base.groups)
        return state.lookup(keys, on=keys.columns)

    def _scratch(self, stage: OperatorNode, frame: DataFrame) -> DataFrame:
        """Write a frame next to the operator's first state, and read it back. It is deleted when the attempt ends."""
        name, sink = next(iter(stage.states.items()))
        location = sink.location(self.pipeline.context(name))
        path = f"{self.staging.folder(self.pipeline.context(name))}/scratch{len(self.scratch)}"
        self.scratch.append((location, path))
        written = write_files(frame, {"type": "struct", "fields": []}, location, path, ())
        rows_written(location, path, written)
        return frame.sparkSession.read.schema(frame.schema).parquet(location.full(path))

    def base(self, name: str) -> StateTable | None:
        """Return a state's record in the base's ack."""
        payload = self.prev.states.get(name) if self.prev else None
        if not payload:
            return None
        return typed.convert(self.pipeline.ledger.unpack(payload), StateTable)

    def finish(self, operators: Sequence[OperatorNode]) -> None:
        """Complete the records of all states, once everything is staged."""
        for stage in operators:
            for name in stage.states:
                self._finish_state(name)

    def _finish_state(self, name: str) -> None:
        state = self.states.get(name)
        table = state.finish() if state is not None and state.changed else None
        if table is not None:
            packed = self.pipeline.ledger.pack(msgspec.to_builtins(table), self.pipeline.graph.parts)
            self.changed[name] = self.finished[name] = packed
        elif self.prev is not None and name in self.prev.states and name not in self.afresh:
            self.finished[name] = self.prev.states[name]

    @property
    def syncing(self) -> list[Syncing]:
        """The pending syncs that make its files durable."""
        return [state.syncing for state in self.states.values()]

    def remembered(self) -> dict[str, Json]:
        """Return the memory for the ack: new values, and those of the base that did not change."""
        graph = self.pipeline.graph
        if self.plan.by_interval:
            return {}
        memory = dict(self.before)
        for stage in self.job.operators:
            if not self.states.keys().isdisjoint(stage.states):
                memory.pop(expired_name(stage.name), None)
        memory |= {**self.memory, **self.expired, **self.event_times.memory(), **meaning_of(graph)}
        return share_of(graph.jobs, self.job, memory)

    def release(self) -> None:
        """Release frames that are cached in Spark, and delete files that only this attempt needed."""
        for location, path in self.scratch:
            with contextlib.suppress(TidegateError):
                location.remove_folder(path)
        for state in self.states.values():
            with contextlib.suppress(TidegateError):
                state.release()
        for frame in self.persisted:
            release(frame)
