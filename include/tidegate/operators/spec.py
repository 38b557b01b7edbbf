"""What an operator promises, as data. It says so once, in `Operator.spec()`; everybody else asks here.

    OperatorSpec   what sets it apart, its states and how they grow, what the user's code has to do with it
      Inputs       which streams it can take, and what it reads besides
      EventTime    whether it needs watermarks, and which rows come too late
      OutputSpec   the rows that it emits, its other streams, and what may be said of times in them
      Changelog    whether its rows replace others, and how those that hold are told apart
      StateSpec    one keyed state, and when its rows expire
      Growth       what of its states is never forgotten
      Intervals    whether a data interval has all that it needs

An operator that says nothing promises nothing: it takes no stream that replaces rows, has no key, is refused in
interval pipelines, and `check` warns of what it keeps.
"""

from __future__ import annotations

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
    """Which streams it can take, and what it reads besides."""

    retractions: bool = False
    """It can take a stream that replaces rows: `context.retractions` then has those that no longer hold."""
    retraction_problems: Sequence[str] = ()
    """What is wrong with its declaration if an input replaces rows."""
    retraction_advice: str = "put it in front of that"
    """What the user may do if it cannot take a stream that replaces rows."""
    lookup_table: bool = False
    """Its last input is a lookup table (`broadcast`), which has no keys and no event time."""
    table: DeltaTable | None = None
    """A table that it reads. The plan fixes which version, so that all attempts read the same."""

    def fix_table(self, context: SourceContext) -> Json | None:
        """Return which version of the table is read now. None: it reads none. Called when a checkpoint is planned,
        without a JVM."""
        return self.table.plan(None, context).splits if self.table is not None else None

    def lost_versions(self, recorded: Mapping[int, Json], context: SourceContext) -> Iterable[str]:
        """Return in words which versions cannot be read any more, each once. A backfill that repeats checkpoints asks
        that before it begins.

        recorded: by checkpoint, what `fix_table` has returned for it.
        """
        return self.table.lost_versions(recorded, context) if self.table is not None else ()


@dataclass(frozen=True)
class TimedInput:
    """An input of which it reads event time."""

    column: str | None = None
    """Its own choice. None: the column that the input's sources declare."""
    lateness: Lateness | None = Lateness()  # noqa: RUF009
    """From when on it takes no more rows, for they come too late; nor any without a time. None: it takes all rows."""
    late_output: str = LATE_OUTPUT
    """The output with the late rows, if it has that output."""
    whose: str = "its"
    """What errors call the input's sources."""


@dataclass(frozen=True, kw_only=True)
class EventTime:
    """How it uses event time. It needs watermarks, which cost a look at each source's times."""

    inputs: Sequence[TimedInput] = ()
    """The first of its inputs, as far as it reads event time of them. Empty: it only needs the watermark."""
    in_order: bool = False
    """It gets its rows in the order of event time, and remembers what they have come to."""


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """The rows that it emits."""

    columns: Sequence[str] | None = None
    """The columns of its rows, if they are its own. None: those of its inputs, perhaps with others."""
    others: Sequence[str] = ()
    """The names of its additional output streams, such as late rows."""
    possible_others: Mapping[str, str] = field(default_factory=dict)
    """Output streams that it would have if it were declared differently, each with that declaration."""
    results: Mapping[str, str] = field(default_factory=dict)
    """The results that may be added or removed, by name, each with what it is computed from."""
    results_that_share_state: Sequence[str] = ()
    """Results whose values are kept under what they compute, not under their names: a new one that computes the same
    as one that is there would misread these."""
    complete_per_checkpoint_by: frozenset[str] = frozenset()
    """Columns: all rows that agree in one of them come in one checkpoint, and no more ever will."""
    is_lookup_table: bool = False
    """Each checkpoint emits everything that it holds, as a lookup table, instead of what is new."""

    lag_s: float = 0.0
    """How far rows lag the operator's watermark at most: operators downstream wait that much longer."""
    untimely: Mapping[str, str] = field(default_factory=dict)
    """Columns that may be older than `lag_s` says, so that no operator downstream can go by them: each with why."""
    inputs_of_any_age: Sequence[int] = ()
    """The inputs whose rows it keeps for any time and emits then: nobody can go by their event time any more."""


class Updates(Enum):
    """When an operator replaces rows that it has emitted."""

    NEVER = "emitted rows are final"
    IF_INPUTS_DO = "it replaces rows if an input does"
    ALWAYS = "it replaces rows, by key"


@dataclass(frozen=True)
class KeyOfInputs:
    """A key that depends on those of the inputs."""

    find: Callable[[Sequence[ChangelogKey | None], Sequence[Sequence[str]] | None], ChangelogKey | None]
    """Returns it, by the keys of the inputs, and by their columns, which are only known when it runs."""
    needs_columns: bool = False
    """Whether it depends on these columns, too."""


def _first(keys: Sequence[ChangelogKey | None], columns: Sequence[Sequence[str]] | None) -> ChangelogKey | None:
    return keys[0]


KEY_OF_FIRST_INPUT: Final = KeyOfInputs(_first)


@dataclass(frozen=True, kw_only=True)
class Changelog:
    """Which of its rows hold."""

    updates: Updates = Updates.NEVER
    key: ChangelogKey | KeyOfInputs | None = None
    """Columns of which no two rows that hold at one time have the same values. None: none, as far as anybody knows."""
    stable_keys: Sequence[frozenset[str]] = ()
    """Columns by which a row, once emitted, is only ever replaced by one with the same values, unless an input replaces
    rows."""
    is_kept: bool = False
    """As long as nothing expires, `current_output` returns every row that was emitted and not taken back."""
    mode: Json = field(default_factory=dict)
    """Which of its results it emits and replaces, and when. With operators downstream this must not change: they would
    be asked to take back rows that were never emitted."""

    def updates_over(self, over_updates: bool) -> bool:
        """Return whether it replaces rows. over_updates: an input does."""
        return self.updates is Updates.ALWAYS or (over_updates and self.updates is Updates.IF_INPUTS_DO)

    def find_key(
        self, inputs: Sequence[ChangelogKey | None], columns: Sequence[Sequence[str]] | None = None
    ) -> ChangelogKey | None:
        """Return the key, by those of the inputs, and by their columns, if these are known."""
        return self.key.find(inputs, columns) if isinstance(self.key, KeyOfInputs) else self.key

    def never_drops_keys(self, keys: Sequence[str], over_updates: bool) -> bool:
        """Return whether a row with such a key, once emitted, is only ever replaced by one with the same key."""
        return not over_updates and frozenset(keys) in self.stable_keys


@dataclass(frozen=True)
class StateSpec:
    """A keyed state. Most operators have one, without a name."""

    name: str = ""
    expiry: Expiry | RowExpiry = NEVER


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What it keeps for ever, for people."""

    keeps: str | None = "what it remembers"
    """What it never forgets, so that its state grows as long as new keys or rows come. None: all is forgotten."""
    keeps_per_key: str | None = None
    """What it keeps of a key until all of the key is forgotten, however much it becomes. None: nothing."""
    remedy: str = 'state_ttl="30 days"'
    """What to write so that it forgets."""


BOUNDED: Final = Growth(keeps=None)


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Whether it can serve an interval pipeline. There it begins with no state in each interval, gets all rows of the
    interval at once, and event time ends with them. So what it emits is final, and nothing of its state is kept."""

    problems: Sequence[str] = (
        "it may rest on what earlier checkpoints brought, and an interval begins with nothing: compute within the "
        "interval in a stage, or use sources that read all new rows",
    )
    """Why it cannot. Empty: it can."""
    windows: int | None = None
    """An interval has to consist of whole windows of so many microseconds."""

    def misfit(self, interval: Interval) -> str | None:
        """Return why it cannot be right for this interval. None: it can."""
        if self.windows is None:
            return None
        if all(micros_of(moment) % self.windows == 0 for moment in (interval.start, interval.end)):
            return None
        text = duration_text(self.windows / 1_000_000)
        return (
            f"windows of {text}, which begin at multiples of {text} since 1970, do not fill interval {interval}: the "
            "intervals on both sides of a border would each give a part of the window there"
        )


ANY_INTERVAL: Final = Intervals(problems=())


@dataclass(frozen=True, kw_only=True)
class OperatorSpec:
    """All that an operator promises."""

    identity: Sequence[str] = ()
    """The texts that set it apart from others of its kind on the same streams; its default uid is made of it."""
    inputs: Inputs = Inputs()
    event_time: EventTime | None = None
    output: OutputSpec = OutputSpec()
    changelog: Changelog = Changelog()
    states: Sequence[StateSpec] = (StateSpec(),)
    growth: Growth = Growth()
    permanent_keys: Sequence[str] | None = None
    """The columns by which it knows every key that it ever received. None: it forgets some, or knows none."""
    intervals: Intervals = Intervals()
    cuts: Sequence[str] = ()
    """What in its rows goes by how the input is cut into checkpoints, or by their clock, in words."""
    code: object = None
    """The user's function in it: its code is part of the pipeline's fingerprint."""
    meant_by_code: frozenset[str] = frozenset()
    """What of its `meaning` is a hash of code."""
    note: str | None = None
    """Only of an operator that the graph itself puts in front of a sink, and that comes and goes with it: what `check`
    tells of it."""

    # -- what follows from that ------------------------------------------------------------------------

    @property
    def is_implied(self) -> bool:
        """Whether the graph itself has put it in front of a sink."""
        return self.note is not None

    @property
    def uses_event_time(self) -> bool:
        """Whether it needs watermarks."""
        return self.event_time is not None or any(expiry.uses_event_time for expiry in self._expiries)

    @property
    def timed_inputs(self) -> Sequence[TimedInput]:
        """The first of its inputs, as far as it reads event time of them."""
        return self.event_time.inputs if self.event_time is not None else ()

    def timed_input(self, place: int) -> TimedInput | None:
        """Return how it reads event time of an input. None: it does not."""
        return self.timed_inputs[place] if place < len(self.timed_inputs) else None

    def event_time_problems(self, columns: Sequence[Sequence[str]]) -> list[str]:
        """Return its problems with the event-time columns that the sources of each input declare."""
        problems = []
        for input, declared in zip(self.timed_inputs, columns, strict=False):
            problems += time_problems(declared, input.column, input.whose)
        return problems

    @property
    def is_in_order(self) -> bool:
        """Whether it gets its rows in the order of event time."""
        return self.event_time is not None and self.event_time.in_order

    @property
    def expires(self) -> bool:
        """Whether it forgets rows that it emitted, and later emits others without taking those back."""
        return any(not expiry.is_never for expiry in self._expiries)

    @property
    def current_output_is_complete(self) -> bool:
        """Whether `current_output` returns every row that it has emitted and not taken back."""
        return self.changelog.is_kept and not self.expires

    @property
    def retraction_problems(self) -> list[str]:
        """What is wrong with its declaration if an input replaces rows."""
        expiries = [problem for expiry in self._expiries for problem in expiry.update_problems()]
        return [*self.inputs.retraction_problems, *dict.fromkeys(expiries)]

    @property
    def interval_problems(self) -> list[str]:
        """Why it cannot serve an interval pipeline. Empty: it can."""
        expiries = [problem for expiry in self._expiries for problem in expiry.interval_problems()]
        return [*self.intervals.problems, *dict.fromkeys(expiries)]

    @property
    def depends_on_checkpoint_cuts(self) -> list[str]:
        """What in its rows goes by how the input is cut into checkpoints, or by their clock, in words: a backfill that
        cuts it in another way may have others."""
        may_be_late = any(input.lateness is not None for input in self.timed_inputs)
        forgets_by_watermark = any(expiry.uses_event_time for expiry in self._expiries)
        late = ["which rows come too late"] if may_be_late or forgets_by_watermark else []
        table = ["as of when it reads its table"] if self.inputs.table is not None else []
        expiries = [text for expiry in self._expiries for text in expiry.by_cuts]
        return [*late, *table, *self.cuts, *dict.fromkeys(expiries)]

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of its keyed states."""
        return tuple(state.name for state in self.states)

    def ttl(self, state: str, context: OperatorContext) -> Ttl | RowTtl | None:
        """Return when the rows of one of its states expire in one attempt. None: never."""
        expiries = {each.name: each.expiry for each in self.states}
        return expiries[state].ttl(context) if state in expiries else None

    @property
    def _expiries(self) -> list[Expiry]:
        """When rows expire because the user said so."""
        return [state.expiry for state in self.states if isinstance(state.expiry, Expiry)]


def joined(names: Sequence[object]) -> str:
    """Return columns for people, also where the user has declared something else as one."""
    return ", ".join(map(str, names))
