"""The properties of an operator, as data. An operator declares them once, in `Operator.spec()`.

    OperatorSpec   its identity, its states and how they grow, and its relation to the user's code
      Inputs       which streams it can take, and what else it reads
      EventTime    whether it needs watermarks, and which rows are late
      OutputSpec   the rows that it emits, its other outputs, and their event time
      Changelog    whether it emits retractions, and the key of its current rows
      StateSpec    a keyed state, and when its rows expire
      Growth       which parts of its states never expire
      Intervals    whether it can run in an interval pipeline

The defaults are the most cautious properties: no input with retractions, no key, refused in interval pipelines, and
state that grows forever, of which `check` warns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from tidegate.config.keys import duration_text
from tidegate.operators.expiry import NEVER, Expiry, RowExpiry
from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.operators.retractions.key import ChangelogKey
from tidegate.records.moments import micros_of
from tidegate.records.records import Json
from tidegate.spark.event_time import time_problems
from tidegate.state.lateness import Lateness

if TYPE_CHECKING:
    from tidegate.connectors.delta.source.delta_table import DeltaTable
    from tidegate.connectors.source import SourceContext
    from tidegate.operators.context import OperatorContext
    from tidegate.records.interval import Interval
    from tidegate.state.record import RowTtl, Ttl

__all__ = [
    "ANY_INTERVAL",
    "BOUNDED",
    "KEY_OF_FIRST_INPUT",
    "Changelog",
    "EventTime",
    "Growth",
    "Inputs",
    "Intervals",
    "KeyOfInputs",
    "OperatorSpec",
    "OutputSpec",
    "StateSpec",
    "TimedInput",
    "Updates",
    "joined",
]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Which streams it can take, and what else it reads."""

    retractions: bool = False
    """Whether it can take a stream with retractions, which are in `context.retractions`."""
    retraction_problems: Sequence[str] = ()
    """What is wrong with its declaration if an input emits retractions."""
    retraction_advice: str = "put it in front of that"
    """What the user can do if it cannot take a stream with retractions."""
    lookup_table: bool = False
    """Whether its last input is a lookup table (`broadcast`), which has no keys and no event time."""
    table: DeltaTable | None = None
    """A table that it reads. The plan fixes the version, so that all attempts read the same."""

    def fix_table(self, context: SourceContext) -> Json | None:
        """Return the version of the table to read, if it reads one. Called when a checkpoint is planned, without a
        JVM."""
        if self.table is None:
            return None
        return self.table.plan(None, context).splits

    def lost_versions(self, recorded: Mapping[int, Json], context: SourceContext) -> Iterable[str]:
        """Return in words which versions can no longer be read, each once. A backfill that repeats checkpoints calls
        this before it begins.

        recorded: for each checkpoint, the result of `fix_table`.
        """
        if self.table is None:
            return ()
        return self.table.lost_versions(recorded, context)


@dataclass(frozen=True)
class TimedInput:
    """An input whose event time the operator reads."""

    column: str | None = None
    """The operator's choice. None: the column that the input's sources declare."""
    lateness: Lateness | None = Lateness()  # noqa: RUF009
    """Which rows are late. These, and rows without a time, are refused. None: it takes all rows."""
    late_output: str = LATE_OUTPUT
    """The output with the late rows, if the operator has it."""
    whose: str = "its"
    """The input's sources in the words of errors."""


@dataclass(frozen=True, kw_only=True)
class EventTime:
    """How it uses event time. It needs watermarks, for which the times of each source's rows are read."""

    inputs: Sequence[TimedInput] = ()
    """The leading inputs whose event time it reads. Empty: it only needs the watermark."""
    in_order: bool = False
    """Whether it gets rows in order of event time, with state that depends on this order."""


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """The rows that it emits."""

    columns: Sequence[str] | None = None
    """The columns of its rows, or None if they depend on those of its inputs."""
    others: Sequence[str] = ()
    """The names of its additional output streams, such as late rows."""
    possible_others: Mapping[str, str] = field(default_factory=dict)
    """Output streams that it would have if it were declared differently, each with that declaration."""
    results: Mapping[str, str] = field(default_factory=dict)
    """The results that may be added or removed, by name, each with the expression that it is computed from."""
    results_that_share_state: Sequence[str] = ()
    """Results whose values are stored by expression, not by name: a new result with the same expression would misread
    the values of the existing one."""
    complete_per_checkpoint_by: frozenset[str] = frozenset()
    """Columns by which output is complete: all rows with the same value are emitted in one checkpoint."""
    is_lookup_table: bool = False
    """Whether each checkpoint emits all of its rows, as a lookup table, instead of new ones."""

    lag_s: float = 0.0
    """The maximum lag of rows behind the operator's watermark, which operators downstream add to their own delay."""
    untimely: Mapping[str, str] = field(default_factory=dict)
    """Columns that may lag more than `lag_s`, so that operators downstream cannot use them as event time: each with the
    reason."""
    inputs_of_any_age: Sequence[int] = ()
    """Inputs whose rows may be emitted arbitrarily late, so operators downstream cannot use their event time."""


class Updates(Enum):
    """When an operator emits retractions."""

    NEVER = "emitted rows are final"
    IF_INPUTS_DO = "it replaces rows if an input does"
    ALWAYS = "it replaces rows, by key"


@dataclass(frozen=True)
class KeyOfInputs:
    """A key that depends on those of the inputs."""

    find: Callable[[Sequence[ChangelogKey | None], Sequence[Sequence[str]] | None], ChangelogKey | None]
    """Returns the key, from the keys of the inputs, and from their columns, which are only known when it runs."""
    needs_columns: bool = False
    """Whether it also depends on these columns."""


def _first(keys: Sequence[ChangelogKey | None], columns: Sequence[Sequence[str]] | None) -> ChangelogKey | None:
    return keys[0]


KEY_OF_FIRST_INPUT: Final = KeyOfInputs(_first)


@dataclass(frozen=True, kw_only=True)
class Changelog:
    """Which of its rows are current, and their key."""

    updates: Updates = Updates.NEVER
    key: ChangelogKey | KeyOfInputs | None = None
    """Columns whose values are unique among current rows. None: unknown."""
    stable_keys: Sequence[frozenset[str]] = ()
    """Columns whose values a row keeps when it is replaced, unless an input emits retractions."""
    is_kept: bool = False
    """Whether `current_output` returns all rows that were emitted and not retracted, as long as nothing expires."""
    mode: Json = field(default_factory=dict)
    """When it emits and replaces which results. With operators downstream, this must not change: they would get
    retractions of rows that were never emitted."""

    def updates_over(self, over_updates: bool) -> bool:
        """Return whether it emits retractions. over_updates: an input does."""
        return self.updates is Updates.ALWAYS or (over_updates and self.updates is Updates.IF_INPUTS_DO)

    def find_key(
        self, inputs: Sequence[ChangelogKey | None], columns: Sequence[Sequence[str]] | None = None
    ) -> ChangelogKey | None:
        """Return the key, from those of the inputs, and from their columns, if these are known."""
        if isinstance(self.key, KeyOfInputs):
            return self.key.find(inputs, columns)
        return self.key

    def never_drops_keys(self, keys: Sequence[str], over_updates: bool) -> bool:
        """Return whether an emitted row with such a key is only ever replaced by one with the same key."""
        return not over_updates and frozenset(keys) in self.stable_keys


@dataclass(frozen=True)
class StateSpec:
    """A keyed state. Most operators have one, without a name."""

    name: str = ""
    expiry: Expiry | RowExpiry = NEVER


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The parts of its state that grow without a bound, in words."""

    keeps: str | None = "what it remembers"
    """State that never expires, and so grows with new keys or rows, or None."""
    keeps_per_key: str | None = None
    """State of a key that grows until the key expires, or None."""
    remedy: str = 'state_ttl="30 days"'
    """The declaration that bounds its state."""


BOUNDED: Final = Growth(keeps=None)


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Whether it can run in an interval pipeline. There it starts each interval without state, gets all rows of the
    interval at once, and event time ends with them. So its output is final, and its state is discarded."""

    problems: Sequence[str] = (
        "it may depend on rows of earlier checkpoints, and an interval starts without state: compute within the "
        "interval in a stage, or use sources that read all new rows",
    )
    """Why it cannot. Empty: it can."""
    windows: int | None = None
    """The size of windows in microseconds. An interval has to consist of whole windows."""

    def misfit(self, interval: Interval) -> str | None:
        """Return why its output would be wrong for this interval, or None."""
        if self.windows is None:
            return None
        if micros_of(interval.start) % self.windows == 0 and micros_of(interval.end) % self.windows == 0:
            return None
        text = duration_text(self.windows / 1_000_000)
        return (
            f"windows of {text}, which start at multiples of {text} since 1970, do not fill interval {interval}: the "
            "window at a border of the interval would be emitted in parts, by the intervals on both sides"
        )


ANY_INTERVAL: Final = Intervals(problems=())


@dataclass(frozen=True, kw_only=True)
class OperatorSpec:
    """All properties of an operator."""

    identity: Sequence[str] = ()
    """The texts that distinguish it from operators of its kind on the same streams. Its default uid is made of it."""
    inputs: Inputs = Inputs()
    event_time: EventTime | None = None
    output: OutputSpec = OutputSpec()
    changelog: Changelog = Changelog()
    states: Sequence[StateSpec] = (StateSpec(),)
    growth: Growth = Growth()
    permanent_keys: Sequence[str] | None = None
    """The key columns, if its state has every key that it ever received, or None."""
    intervals: Intervals = Intervals()
    cuts: Sequence[str] = ()
    """What in its rows depends on how the input is cut into checkpoints, or on their clock, in words."""
    code: object = None
    """The user's function, whose code is part of the pipeline's fingerprint."""
    meant_by_code: frozenset[str] = frozenset()
    """The entries of its `meaning` that are hashes of code."""
    note: str | None = None
    """What `check` reports about an operator that the graph itself puts in front of a sink, and None for others."""

    # -- derived properties ----------------------------------------------------------------------------

    @property
    def is_implied(self) -> bool:
        """Whether the graph has put it in front of a sink."""
        return self.note is not None

    @property
    def uses_event_time(self) -> bool:
        """Whether it needs watermarks."""
        return self.event_time is not None or any(expiry.uses_event_time for expiry in self._expiries)

    @property
    def timed_inputs(self) -> Sequence[TimedInput]:
        """The leading inputs whose event time it reads."""
        if self.event_time is not None:
            return self.event_time.inputs
        return ()

    def timed_input(self, place: int) -> TimedInput | None:
        """Return how it reads an input's event time, or None if it does not."""
        if place < len(self.timed_inputs):
            return self.timed_inputs[place]
        return None

    def event_time_problems(self, columns: Sequence[Sequence[str]]) -> list[str]:
        """Return its problems with the event-time columns that each input's sources declare."""
        problems = []
        for input, declared in zip(self.timed_inputs, columns, strict=False):
            problems += time_problems(declared, input.column, input.whose)
        return problems

    @property
    def is_in_order(self) -> bool:
        """Whether it gets rows in order of event time."""
        return self.event_time is not None and self.event_time.in_order

    @property
    def expires(self) -> bool:
        """Whether its rows expire without a retraction, so that it may later emit others for the same key."""
        return any(not expiry.is_never for expiry in self._expiries)

    @property
    def current_output_is_complete(self) -> bool:
        """Whether `current_output` returns all rows that it has emitted and not retracted."""
        return self.changelog.is_kept and not self.expires

    @property
    def retraction_problems(self) -> list[str]:
        """What is wrong with its declaration if an input emits retractions."""
        expiries = _distinct(expiry.update_problems() for expiry in self._expiries)
        return [*self.inputs.retraction_problems, *expiries]

    @property
    def interval_problems(self) -> list[str]:
        """Why it cannot run in an interval pipeline. Empty: it can."""
        expiries = _distinct(expiry.interval_problems() for expiry in self._expiries)
        return [*self.intervals.problems, *expiries]

    @property
    def depends_on_checkpoint_cuts(self) -> list[str]:
        """What in its rows depends on how the input is cut into checkpoints, or on their clock, in words. A backfill
        with other cuts may have other rows."""
        reasons = []
        may_be_late = any(input.lateness is not None for input in self.timed_inputs)
        if may_be_late or any(expiry.uses_event_time for expiry in self._expiries):
            reasons.append("which rows come too late")
        if self.inputs.table is not None:
            reasons.append("as of when it reads its table")
        expiries = _distinct(expiry.by_cuts for expiry in self._expiries)
        return [*reasons, *self.cuts, *expiries]

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of its keyed states."""
        return tuple(state.name for state in self.states)

    def ttl(self, state: str, context: OperatorContext) -> Ttl | RowTtl | None:
        """Return when the rows of one of its states expire in one attempt. None: never."""
        for each in self.states:
            if each.name == state:
                return each.expiry.ttl(context)
        return None

    @property
    def _expiries(self) -> list[Expiry]:
        """The expiries that the user has declared."""
        return [state.expiry for state in self.states if isinstance(state.expiry, Expiry)]


def _distinct(lists: Iterable[Iterable[str]]) -> list[str]:
    """Return the texts of all lists, each once."""
    return list(dict.fromkeys(itertools.chain.from_iterable(lists)))


def joined(names: Sequence[object]) -> str:
    """Return columns as text for messages, even if the declaration names something that is no column."""
    return ", ".join(map(str, names))
