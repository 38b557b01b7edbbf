"""Exchange between the jobs of one checkpoint: channels, event times, and memory that was in another job's ack."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tidegate.checkpoint.context import PipelineContext
from tidegate.connectors.channel import Sent, channel_name
from tidegate.connectors.sink import SinkContext, Staging
from tidegate.delta import Syncing
from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
from tidegate.ledger.ledger import Ledger
from tidegate.operators.retractions.key import ChangelogKey
from tidegate.pipeline.graph.graph import Job
from tidegate.pipeline.graph.meaning import sources_under_new_names
from tidegate.pipeline.graph.nodes import replaced_rows_of
from tidegate.protocol.early_input import InputSelection
from tidegate.protocol.view import Entry
from tidegate.records import typed
from tidegate.records.moments import moment_of
from tidegate.records.records import Amount, Handle, InFlight, Json, Payload, Plan, sum_of
from tidegate.spark.frame_facts import empty_like

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BaseMemory", "Exchange", "memory_of_base"]


class Exchange:
    """One attempt's side of the channels."""

    def __init__(
        self,
        pipeline: PipelineContext,
        job: Job,
        staging: Staging,
        entry: Entry,
        waiting: Sequence[InFlight],
        look: Callable[[], InputSelection] | None = None,
    ) -> None:
        """waiting: the input that the job has yet to take, in order. look: at least once, selects the input that is
        available when the job starts."""
        self.pipeline = pipeline
        self.job = job
        self.staging = staging
        self.entry = entry
        self.waiting = waiting
        self.ahead: list[Handle] = []
        """For the ack."""
        self._look = look
        self.sent: dict[str, Payload] = {}
        """For the ack."""
        self._unsettled: dict[str, Sent] = {}
        self.syncing: list[Syncing] = []
        self.received: dict[str, Amount] = {}
        """The amount that was read of each stream of another job."""
        self.taken_rows: dict[str, int] = {}
        """The number of rows taken of such a stream, if they are of one checkpoint, without retractions."""
        self.received_keys: dict[str, ChangelogKey] = {}
        """Keys of changelogs of such streams, which the other jobs found in their plans."""
        self._older: list[Amount] = []

    @property
    def inputs(self) -> dict[str, list[Handle]]:
        """For the ack."""
        return {name: [input.ack for input in self.waiting if input.job == name] for name in self.job.after}

    @property
    def memory(self) -> dict[str, Json]:
        """The event time of the sources of upstream jobs, from their acks."""
        jobs = {job.name: job for job in self.pipeline.graph.jobs}
        memories: dict[str, Json] = {}
        upstream = list(self.job.after)
        while upstream:
            job = jobs[upstream.pop()]
            upstream += job.after
            memory = self.entry.acks[job.name].ack.memory
            for source in job.sources:
                if source.name in memory:
                    memories[source.name] = memory[source.name]
        return memories

    @property
    def timed(self) -> list[str]:
        """The sources whose event time other jobs may need."""
        for job in self.pipeline.graph.jobs:
            if job.name != self.job.name and any(stage.spec.uses_event_time for stage in job.operators):
                return [source.name for source in self.job.sources if source.event_time is not None]
        return []

    def read_streams(self, spark: SparkSession, only: Container[str] | None = None) -> dict[str, DataFrame]:
        """Return the streams of other jobs, and their retractions. only: the streams to read, by default all."""
        streams = {}
        maker_of = {}
        for job in self.pipeline.graph.jobs:
            for stream in job.gives:
                maker_of[stream] = job.name
        if self._look is not None:
            taking = self._look()
            self.waiting, self.ahead = taking.now, list(taking.ahead)
        for stream in self.job.takes:
            if only is not None and stream not in only:
                continue
            waiting = [input for input in self.waiting if input.job == maker_of[stream]]
            taken = [input.channels.get(stream) for input in waiting]
            current = self.entry.acks[maker_of[stream]].ack.channels.get(stream)
            if current is None or None in taken:
                raise Invalid(
                    f"job {maker_of[stream]!r} of checkpoint {self.entry.id} was done by other code",
                    expected=f"one that sends {stream!r} to job {self.job.name!r}",
                    help=f"abort checkpoint {self.entry.id} and trigger again: the next one reads its input",
                    reason="CODE_CHANGED",
                )
            # If the job has taken all input before, the current payload still has the columns.
            payloads = [payload for payload in taken if payload is not None] or [current]
            sent = [typed.convert(self.pipeline.ledger.unpack(payload), Sent) for payload in payloads]
            key = sent[-1].key
            if key is not None:
                self.received_keys[stream] = tuple(map(frozenset, key))
            amounts = [part.amount for part in sent[: len(taken)]]
            self.received[stream] = sum_of(amounts)
            for amount, input in zip(amounts, waiting, strict=True):
                if input.ack.entry < self.entry.id:
                    self._older.append(amount)
            channel, context = self.pipeline.graph.channels[stream], self._context(stream)
            rows, retracted = channel.read_all(sent, context, spark)
            streams[stream] = rows if taken else empty_like(rows)
            if not taken:
                self.taken_rows[stream] = 0
            elif len(sent) == 1 and retracted is None:
                self.taken_rows[stream] = sent[0].count
            if retracted is not None:
                streams[replaced_rows_of(stream)] = retracted
        return streams

    @property
    def amounts(self) -> dict[str, Amount]:
        """The amount sent of each stream."""
        return {stream: sent.amount for stream, sent in self._unsettled.items()}

    @property
    def sent_rows(self) -> dict[str, int]:
        """The number of rows sent of each stream, without retractions."""
        return {stream: sent.count for stream, sent in self._unsettled.items()}

    @property
    def processed(self) -> Amount | None:
        """The amount of the received rows that was in flight, or None if none was."""
        return sum_of(self._older) if self._older else None

    @property
    def aligned_s(self) -> float:
        """The time between the first and the last ack of the jobs directly upstream in this checkpoint."""
        moments = []
        for name in self.job.after:
            acked = self.entry.acks.get(name)
            moment = moment_of(acked.ack.created) if acked is not None else None
            if moment is not None:
                moments.append(moment)
        if not moments:
            return 0.0
        return round((max(moments) - min(moments)).total_seconds(), 3)

    def refuse_ended(self) -> None:
        """Raise Unavailable if a later checkpoint whose rows the job takes was ended: its files may be deleted."""
        for id in sorted({input.ack.entry for input in self.waiting if input.ack.entry > self.entry.id}):
            later = self.pipeline.real_entry(id)
            if later is None or later.aborted:
                raise Unavailable(
                    f"checkpoint {id}, whose rows job {self.job.name!r} of checkpoint {self.entry.id} had begun to "
                    "take, was ended",
                    help="the job is retried without them",
                    reason="AHEAD_ENDED",
                )

    def send(
        self,
        stream: str,
        streams: Mapping[str, DataFrame],
        key: ChangelogKey | None = None,
        *,
        by_hand: bool = False,
    ) -> None:
        """Stage a stream for downstream jobs.

        key: the key of its changelog, if only its plan reveals it. by_hand: whether this is a manual edit. It may drop
        keys from a stream that otherwise never does, so retractions are always sent.
        """
        graph, context = self.pipeline.graph, self._context(stream)
        channel = graph.channels[stream]
        retracted = None
        if by_hand or graph.wants_retractions(stream):
            retracted = streams.get(replaced_rows_of(stream))
        syncing = channel.syncing(context)
        self.syncing.append(syncing)
        sent = channel.send(streams[stream], retracted, context, self.staging, syncing)
        names = [sorted(column) for column in key] if key is not None else None
        self._unsettled[stream] = msgspec.structs.replace(sent, key=names)

    def finish(self) -> None:
        """Wait until everything that was sent is durable."""
        for syncing in self.syncing:
            syncing.finish()
        for stream, sent in self._unsettled.items():
            self.sent[stream] = self.pipeline.ledger.pack(msgspec.to_builtins(sent), self.pipeline.graph.parts)

    def release(self) -> None:
        """Delete everything that was sent."""
        for syncing in self.syncing:
            syncing.wait()
        for stream in self.job.gives:
            with contextlib.suppress(TidegateError):
                self.pipeline.graph.channels[stream].discard(self._context(stream), self.staging)

    def _context(self, stream: str) -> SinkContext:
        return self.pipeline.context(channel_name(stream))


@dataclass(frozen=True)
class BaseMemory:
    """The states and memory of checkpoint `id`, from which a job continues."""

    id: int
    states: Mapping[str, Payload]
    memory: Mapping[str, Json]
    of_all_jobs: bool = True
    """False if it only has those of the job itself."""


def memory_of_base(ledger: Ledger, job: Job, plan: Plan, base: Entry | None, prev: Handle | None) -> BaseMemory | None:
    """Return the memory of the base for this job, or None if there is none.

    It is in the ack from which the job continues. If the code has changed since, an operator may have been in another
    job, so all acks of the base are read.
    """
    if base is None or not (job.operators or job.gates or job.gives):
        return None
    own_handle = {job.name: prev} if prev is not None else {}
    of_all_jobs = base.rollback is not None or base.plan.code_fingerprint != plan.code_fingerprint
    if not of_all_jobs:
        handles = own_handle
    elif base.manifest is not None:
        handles = {**base.manifest.jobs, **own_handle}
    else:
        handles = {name: acked.handle for name, acked in base.acks.items()}
        if missing := [name for name in base.plan.acks if name not in handles]:
            raise Rejected(
                f"job {job.name!r} of checkpoint {plan.id} waits for job {missing[0]!r} of checkpoint {base.id}: "
                "the code has changed since, so what it remembers may be there",
                help="try again when that job is done",
                reason="BASE_IN_PROGRESS",
            )
    acks = [ledger.chosen_ack(handle, name) for name, handle in handles.items()]
    if not acks:
        return None
    states = {}
    for ack in acks:
        for name, payload in ack.states.items():
            states[name] = payload
    memory = {}
    for ack in acks:
        for name, value in ack.memory.items():
            memory[name] = value
    return BaseMemory(base.id, states, sources_under_new_names(memory, plan.source_changes), of_all_jobs)
