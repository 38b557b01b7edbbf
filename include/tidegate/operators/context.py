"""What an operator may use in one attempt: its states as of the base, the watermark, and what the plan has fixed."""

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
    """As of the base. A row older than this is late."""
    now: datetime | None = None
    """With this checkpoint's rows. What ends up to here is complete. None: nothing is known yet."""

    from_rows: datetime | None = None
    """The watermark from rows alone: the same as `now`, unless event time ends in this checkpoint."""
    event_time_ends: bool = False
    """Whether event time ends in this checkpoint, or has ended before: nothing will come."""
    covers_all_input: bool = False
    """Whether it also began in this checkpoint, as in an interval pipeline: nothing is left for later, whatever its
    time."""

    @property
    def has_advanced(self) -> bool:
        """Whether the watermark is another one than that of the base."""
        return self.now != self.before

    @property
    def before_micros(self) -> int | None:
        """`before`, in microseconds since 1970."""
        return None if self.before is None else micros_of(self.before)

    @property
    def now_micros(self) -> int | None:
        """`now`, in microseconds since 1970."""
        if self.covers_all_input:
            return AFTER_ALL_TIMES
        return None if self.now is None else micros_of(self.now)


class ScratchWriter(Protocol):
    """Writes a frame where no table names it, and returns it as read from there."""

    def __call__(self, frame: DataFrame) -> DataFrame: ...


class Upstream(Protocol):
    """What an operator that the graph has put in front of a sink may know of the stream that it takes."""

    @property
    def path_hash(self) -> str:
        """A hash of all that makes a row of the stream of a row of the operators that replace it."""

    def key(self) -> ChangelogKey | None:
        """Return the key of the stream's changelog, with what the plans of stages say of it."""

    def has_emitted_rows(self) -> bool:
        """Return whether rows have been emitted into the stream, as of the base."""

    def current_output(self) -> DataFrame:
        """Return all rows that were emitted into the stream and not taken back, as of the base. Raise Invalid if
        nobody can show them."""

    def state_columns(self, part: str) -> Json | None:
        """Return the columns of what the operator remembers as of the base. None: nothing."""

    @property
    def has_earlier_checkpoints(self) -> bool:
        """Whether there have been checkpoints before."""

    def reset_state(self) -> None:
        """Forget what the operator remembers as of the base. Called before its state is opened."""


class States(Protocol):
    """Opens the operator's keyed states as of the base."""

    def __call__(
        self,
        part: str,
        keys: Sequence[str],
        ttl: Ttl | RowTtl | None,
        over: ExpiredRows | None,
        grouped_by: Sequence[str],
    ) -> KeyedState: ...


@dataclass(frozen=True)
class OperatorContext:
    """Everything that an operator may use in one attempt."""

    uid: str
    checkpoint: int
    clock: datetime
    """The checkpoint's own time: when it was planned. The same for every attempt."""
    spark: SparkSession
    states: States
    stage: ScratchWriter
    """For frames that must not be computed twice: each is written once, and removed when the attempt ends."""
    watermarks: Watermarks = field(default_factory=Watermarks)
    """Only for an operator that needs them."""
    event_times: Sequence[str | None] = ()
    """By input, the column that its sources agree on."""
    memory: Mapping[str, object] = field(default_factory=dict)
    """What the operator remembered at the base, apart from its keyed states."""
    remember: Json = field(default_factory=dict)
    """What it remembers from now on, filled by `run`. Plain JSON, small."""
    consumed_outputs: frozenset[str] = frozenset()
    """The additional output streams that anyone takes."""
    wants_retractions: bool = True
    """Whether anyone takes the rows that those under "" replace; if not, the operator need not return them."""
    retractions: Sequence[DataFrame | None] = ()
    """By input: the rows that its new ones replace or withdraw, if the input updates; None: its rows are final."""
    planned_inputs: tuple[Json, SourceContext] | None = None
    """Which version of its table the plan has fixed, and the context in which that was planned."""
    is_bootstrap: bool = False
    """Its rows are history, for an operator that gets its rows in order: they come before all others, however old."""
    upstream: Upstream | None = None
    """Only for an operator that the graph has put in front of a sink."""
    timers_paused: bool = False
    """Nothing falls due in this checkpoint: it is made by hand, and the output of timers would go nowhere."""
    persisted: list[DataFrame] = field(default_factory=list)
    computing: Computing = field(default_factory=Computing)
    """How it is computed is noted here."""
    counts: dict[str, int] = field(default_factory=dict)
    """Its counters (late rows …): shown to users, never read by tidegate."""

    def state(
        self,
        keys: Sequence[str],
        part: str = "",
        *,
        ttl: Ttl | RowTtl | None = None,
        over: ExpiredRows | None = None,
        grouped_by: Sequence[str] = (),
    ) -> KeyedState:
        """Return one of the operator's keyed states, as of the base.

        ttl: when its rows expire; by default never. over: what of it the operator takes no notice of.
        grouped_by: some of the keys, if rows that agree in these are to be in one key group.
        """
        return self.states(part, keys, ttl, over, grouped_by)

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to its counters. What is 0 is not shown."""
        for name, number in counts.items():
            if number:
                self.counts[name] = self.counts.get(name, 0) + number

    def persist(self, frame: DataFrame) -> DataFrame:
        """Compute the frame once, however often it is used; it is released when the job ends."""
        stored = materialize(frame)
        self.persisted.append(stored)
        return stored
