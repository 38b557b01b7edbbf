"""Exchange between the jobs of one checkpoint: channels, event time, and memory that another job held before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tidegate.connectors.channel import Sent, channel_name
from tidegate.connectors.sink import SinkContext, Staging
from tidegate.coordinator import Coordinator
from tidegate.delta import Syncing
from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
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
        coordinator: Coordinator,
        job: Job,
        staging: Staging,
        entry: Entry,
        waiting: Sequence[InFlight],
        look: Callable[[], InputSelection] | None = None,
    ) -> None:
        """waiting: the input that it has yet to take, in order. look: at least once, finds the input when the job
        starts."""
        self.coordinator = coordinator
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
        """By stream of another job, the amount that was read of it."""
        self.taken_rows: dict[str, int] = {}
        """By stream of another job, the number of rows taken, if they are of one checkpoint and replace none."""
        self.received_keys: dict[str, ChangelogKey] = {}
        """By stream of another job, the key of its changelog, if only a plan there shows it."""
        self._older: list[Amount] = []

    @property
    def inputs(self) -> dict[str, list[Handle]]:
        """For the ack."""
        return {name: [input.ack for input in self.waiting if input.job == name] for name in self.job.after}

    @property
    def memory(self) -> dict[str, Json]:
        """The event time of the sources of upstream jobs, from their acks."""
        jobs = {job.name: job for job in self.coordinator.graph.jobs}
        memories: dict[str, Json] = {}
        above = list(self.job.after)
        while above:
            job = jobs[above.pop()]
            above += job.after
            memory = self.entry.acks[job.name].ack.memory
            memories |= {source.name: memory[source.name] for source in job.sources if source.name in memory}
        return memories

    @property
    def timed(self) -> list[str]:
        """The sources whose event time downstream jobs use."""
        other_jobs = (job for job in self.coordinator.graph.jobs if job.name != self.job.name)
        behind = any(stage.spec.uses_event_time for job in other_jobs for stage in job.operators)
        return [source.name for source in self.job.sources if source.event_time is not None] if behind else []

    def read_streams(self, spark: SparkSession, only: Container[str] | None = None) -> dict[str, DataFrame]:
        """Return the streams of other jobs, and the rows that they replace. only: of these, the ones that are made at
        all."""
        streams = {}
        maker_of = {stream: job.name for job in self.coordinator.graph.jobs for stream in job.gives}
        if self._look is not None:
            taking = self._look()
            self.waiting, self.ahead = taking.now, list(taking.ahead)
        for stream in self.job.takes:
            if only is not None and stream not in only:
                continue
            waiting = [input for input in self.waiting if input.job == maker_of[stream]]
            payloads_taken = [input.channels.get(stream) for input in waiting]
            current = self.entry.acks[maker_of[stream]].ack.channels.get(stream)
            if current is None or None in payloads_taken:
                raise Invalid(
                    f"job {maker_of[stream]!r} of checkpoint {self.entry.id} was done by other code",
                    expected=f"one that sends {stream!r} to job {self.job.name!r}",
                    help=f"abort checkpoint {self.entry.id} and trigger again: its input is planned anew",
                    reason="CODE_CHANGED",
                )
            unpack, payloads = (
                self.coordinator.ledger.unpack,
                [payload for payload in payloads_taken if payload is not None] or [current],
            )
            sent = [typed.convert(unpack(payload), Sent) for payload in payloads]
            if (key := sent[-1].key) is not None:
                self.received_keys[stream] = tuple(map(frozenset, key))
            amounts = [sent_by_ack.amount for sent_by_ack in sent[: len(payloads_taken)]]
            self.received[stream] = sum_of(amounts)
            self._older += [
                amount for amount, input in zip(amounts, waiting, strict=True) if input.ack.entry < self.entry.id
            ]
            channel, context = self.coordinator.graph.channels[stream], self._context(stream)
            rows, replaced = channel.read_all(sent, context, spark)
            streams[stream] = rows if payloads_taken else empty_like(rows)  # it has taken all of it before
            if not payloads_taken or (len(sent) == 1 and replaced is None):
                self.taken_rows[stream] = sent[0].count if payloads_taken else 0
            if replaced is not None:
                streams[replaced_rows_of(stream)] = replaced
        return streams

    @property
    def amounts(self) -> dict[str, Amount]:
        """The amount that it has sent, by stream."""
        return {stream: sent.amount for stream, sent in self._unsettled.items()}

    @property
    def sent_rows(self) -> dict[str, int]:
        """The number of rows that it has sent, by stream, without those that they replace."""
        return {stream: sent.count for stream, sent in self._unsettled.items()}

    @property
    def processed(self) -> Amount | None:
        """The part of the received rows that was in flight. None: there was none."""
        return sum_of(self._older) if self._older else None

    @property
    def aligned_s(self) -> float:
        """The time between the first and the last ack of this checkpoint that it takes input from."""
        acked_at = [acked.ack.created for name in self.job.after if (acked := self.entry.acks.get(name)) is not None]
        moments = sorted(moment for text in acked_at if (moment := moment_of(text)) is not None)
        return round((moments[-1] - moments[0]).total_seconds(), 3) if moments else 0.0

    def refuse_ended(self) -> None:
        """Raise Unavailable if a later checkpoint whose rows it has begun to take was ended: its files may go away."""
        for id in sorted({input.ack.entry for input in self.waiting if input.ack.entry > self.entry.id}):
            later = self.coordinator.real_entry(id)
            if later is None or later.aborted:
                raise Unavailable(
                    f"checkpoint {id}, whose rows job {self.job.name!r} of checkpoint {self.entry.id} had begun to "
                    "take, was ended",
                    help="it is tried again by itself, without them",
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
        """Stage a stream for downstream jobs. key: that of its changelog, if only its plan shows it. by_hand: keys may
        vanish from it that otherwise never do."""
        graph, context = self.coordinator.graph, self._context(stream)
        channel = graph.channels[stream]
        replaced = streams.get(replaced_rows_of(stream)) if by_hand or graph.wants_retractions(stream) else None
        syncing = channel.syncing(context)
        self.syncing.append(syncing)
        sent = channel.send(streams[stream], replaced, context, self.staging, syncing)
        names = [sorted(column) for column in key] if key is not None else None
        self._unsettled[stream] = msgspec.structs.replace(sent, key=names)

    def finish(self) -> None:
        """Return once everything that was sent is durable."""
        for syncing in self.syncing:
            syncing.finish()
        for stream, sent in self._unsettled.items():
            self.sent[stream] = self.coordinator.ledger.pack(msgspec.to_builtins(sent), self.coordinator.graph.parts)

    def release(self) -> None:
        """Remove everything that was sent: nobody will take it."""
        for syncing in self.syncing:
            syncing.wait()
        for stream in self.job.gives:
            with contextlib.suppress(TidegateError):
                self.coordinator.graph.channels[stream].discard(self._context(stream), self.staging)

    def _context(self, stream: str) -> SinkContext:
        return self.coordinator.context(channel_name(stream))


@dataclass(frozen=True)
class BaseMemory:
    """The states and memory of checkpoint `id` that a job continues from."""

    id: int
    states: Mapping[str, Payload]
    memory: Mapping[str, Json]
    of_all_jobs: bool = True
    """False: only of the job itself."""


def memory_of_base(
    coordinator: Coordinator, job: Job, plan: Plan, base: Entry | None, prev: Handle | None
) -> BaseMemory | None:
    """Return the memory of the base for this job. None: it has none.

    It is in the ack that the job continues. If the code has changed since, an operator may have been in another job
    then, so all of the base's acks are read.
    """
    if base is None or not (job.operators or job.gates or job.gives):
        return None
    ledger = coordinator.ledger
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
    states = {name: payload for ack in acks for name, payload in ack.states.items()}
    memory = {name: value for ack in acks for name, value in ack.memory.items()}
    return BaseMemory(base.id, states, sources_under_new_names(memory, plan.source_changes), of_all_jobs)
