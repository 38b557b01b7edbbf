"""The context of an operator in one attempt: its states as of the base, the watermark, and planned inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from tidegate.records.moments import AFTER_ALL_TIMES, micros_of
from tidegate.records.records import Json
from tidegate.spark.materialize import materialize
from tidegate.state.computing import Computing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tidegate.connectors.source import SourceContext
    from tidegate.operators.retractions.key import ChangelogKey
    from tidegate.state.keyed import KeyedState
    from tidegate.state.lateness import ExpiredRows
    from tidegate.state.record import RowTtl, Ttl

__all__ = ["OperatorContext", "Watermarks"]


@dataclass(frozen=True)
class Watermarks:
    """The progress of event time for an operator: the minimum over its inputs, without those that are idle."""

    before: datetime | None = None
    """The watermark of the base. A row older than this is late."""
    now: datetime | None = None
    """The watermark with this checkpoint's rows. Windows that end up to it are complete. None: there is none yet."""

    from_rows: datetime | None = None
    """The watermark from rows alone: the same as `now`, unless event time ends in this checkpoint."""
    event_time_ends: bool = False
    """Whether event time has ended, now or before, so that no more rows will arrive."""
    covers_all_input: bool = False
    """Whether event time also began in this checkpoint, as in an interval pipeline, so that no row waits for a later
    one."""

    @property
    def has_advanced(self) -> bool:
        """Whether the watermark differs from that of the base."""
        return self.now != self.before

    @property
    def before_micros(self) -> int | None:
        """`before`, in microseconds since 1970."""
        if self.before is None:
            return None
        return micros_of(self.before)

    @property
    def now_micros(self) -> int | None:
        """`now`, in microseconds since 1970."""
        if self.covers_all_input:
            return AFTER_ALL_TIMES
        return None if self.now is None else micros_of(self.now)


class ScratchWriter(Protocol):
    """Writes a frame to files that no table names, and returns it as read from there."""

    def __call__(self, frame: DataFrame) -> DataFrame: ...


class Upstream(Protocol):
    """The input stream of an operator that the graph has put in front of a sink."""

    @property
    def path_hash(self) -> str:
        """A hash of everything between the operators that emit retractions and this stream."""

    def key(self) -> ChangelogKey | None:
        """Return the key of the stream's changelog, also by the plans of stages."""

    def has_emitted_rows(self) -> bool:
        """Return whether rows have been emitted into the stream, as of the base."""

    def current_output(self) -> DataFrame:
        """Return all rows of the stream that were emitted and not retracted, as of the base. Raise Invalid if they
        cannot be computed."""

    def state_columns(self, part: str) -> Json | None:
        """Return the columns of the operator's state as of the base, or None if it has none."""

    @property
    def has_earlier_checkpoints(self) -> bool:
        """Whether this is not the pipeline's first checkpoint."""

    def reset_state(self) -> None:
        """Discard the operator's state as of the base. Must be called before the state is opened."""


class States(Protocol):
    """Opens the operator's keyed states as of the base."""

    def __call__(
        self,
        part: str,
        keys: Sequence[str],
        ttl: Ttl | RowTtl | None,
        expired: ExpiredRows | None,
        grouped_by: Sequence[str],
    ) -> KeyedState: ...


class StateExpiries(Protocol):
    """The part of an operator's spec that opening its states needs."""

    def ttl(self, state: str, context: OperatorContext, /) -> Ttl | RowTtl | None:
        """Return when the rows of one of its states expire in one attempt. None: never."""


@dataclass(frozen=True)
class OperatorContext:
    """Everything that an operator may use in one attempt."""

    uid: str
    checkpoint: int
    clock: datetime
    """The time at which the checkpoint was planned. It is the same for every attempt."""
    spark: SparkSession
    spec: StateExpiries
    """The operator's spec, which says when the rows of its states expire."""
    states: States
    stage: ScratchWriter
    """For frames that must not be computed twice: each is written once, and removed when the attempt ends."""
    watermarks: Watermarks = field(default_factory=Watermarks)
    """Only set for an operator that needs them."""
    event_times: Sequence[str | None] = ()
    """For each input, the event-time column that its sources agree on."""
    memory: Mapping[str, object] = field(default_factory=dict)
    """The small values that the operator has stored at the base, in addition to its keyed states."""
    remember: Json = field(default_factory=dict)
    """The small values to store, set by `run`, as plain JSON."""
    consumed_outputs: frozenset[str] = frozenset()
    """The additional output streams that are used downstream."""
    wants_retractions: bool = True
    """Whether retractions of the stream "" are used downstream. If not, the operator need not return them."""
    retractions: Sequence[DataFrame | None] = ()
    """The retractions of each input, or None if its rows are final."""
    planned_inputs: tuple[Json, SourceContext] | None = None
    """The version of its table that the plan has fixed, and the context in which it was planned."""
    is_bootstrap: bool = False
    """Its rows are history, for an operator that gets rows in order: they precede all others, however old they are."""
    upstream: Upstream | None = None
    """Only set for an operator that the graph has put in front of a sink."""
    timers_paused: bool = False
    """No timer fires in this checkpoint, because it is a manual edit, which would lose the timers' output."""
    persisted: list[DataFrame] = field(default_factory=list)
    computing: Computing = field(default_factory=Computing)
    """Collects how it is computed."""
    counts: dict[str, int] = field(default_factory=dict)
    """Its counters (late rows …), for users. tidegate never reads them."""

    def state(
        self,
        keys: Sequence[str],
        part: str = "",
        *,
        expired: ExpiredRows | None = None,
        grouped_by: Sequence[str] = (),
    ) -> KeyedState:
        """Return one of the operator's keyed states, as of the base. Its rows expire as the operator's spec says.

        expired: rows that the operator ignores. grouped_by: the keys that decide the key group, by default all.
        """
        return self.states(part, keys, self.spec.ttl(part, self), expired, grouped_by)

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to its counters. Counters of 0 are not shown."""
        for name, number in counts.items():
            if number:
                self.counts[name] = self.counts.get(name, 0) + number

    def persist(self, frame: DataFrame) -> DataFrame:
        """Compute the frame once, and keep it until the job ends."""
        stored = materialize(frame)
        self.persisted.append(stored)
        return stored
