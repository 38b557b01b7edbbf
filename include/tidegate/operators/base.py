"""The contract of an operator: DataFrames in, DataFrames out, and everything that it remembers is kept by tidegate.

    call       when                                    may it
    problems   when the pipeline is validated          return all that is wrong with the declaration
    run        by a job, once per attempt              read and put state, run Spark jobs; write nothing else

The rows that `run` returns depend only on the input, the state at the base and the checkpoint's own clock. So every
attempt returns the same, and it does not matter how the input was cut into checkpoints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Protocol

from tidegate.records.moments import AFTER_ALL_TIMES, micros_of
from tidegate.records.records import Json
from tidegate.spark.materialize import materialize
from tidegate.state.computing import Computing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tidegate.operators.retractions.key import ChangelogKey
    from tidegate.records.interval import Interval
    from tidegate.sources.base import SourceContext
    from tidegate.state.keyed import KeyedState
    from tidegate.state.lateness import ExpiredRows, Lateness
    from tidegate.state.record import RowTtl, Ttl

__all__ = ["Operator", "OperatorContext", "StatePart", "Watermarks"]


@dataclass(frozen=True)
class StatePart:
    """One keyed state of an operator. Most operators have one, without a name."""

    name: str = ""
    keys: tuple[str, ...] = ()


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
    """Only for an operator that `uses_event_time`."""
    event_time: str | None = None
    """The column that the operator uses: its own choice, or the one that its sources agree on."""
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
    """By input: the rows that its new ones replace or withdraw, if the input `updates`; None: its rows are final."""
    planned_inputs: tuple[Json, SourceContext] | None = None
    """The result of the operator's `fix_inputs` when the checkpoint was planned, and the context of that call."""
    is_bootstrap: bool = False
    """Its rows are history, for an operator that `needs_event_time_order`: they come before all others, however old."""
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


class Operator(ABC):
    """A transformation that remembers. Its state is found by its uid, by default its name."""

    kind: ClassVar[str]
    event_time: str | None = None
    """The column with its event time. None: the one that its sources declare."""
    replaces_columns: ClassVar[bool] = False
    """Whether its rows have columns of its own instead of those of its inputs."""
    meant_by_code: ClassVar[frozenset[str]] = frozenset()
    """What of its `meaning` is a hash of code."""
    implied: ClassVar[bool] = False
    """Whether the graph itself puts it in front of a sink that needs it. It comes and goes with the sink."""
    retraction_advice: ClassVar[str] = "put it in front of that"
    """The advice to the user if it cannot take a stream that replaces rows."""

    @property
    def identity_columns(self) -> list[str]:
        """The texts that set it apart from others of its kind on the same streams; its default uid is made of it."""
        return []

    @property
    def uses_event_time(self) -> bool:
        """True if it needs watermarks, which cost a look at each source's times."""
        return False

    @property
    def depends_on_checkpoint_cuts(self) -> list[str]:
        """What in its rows goes by how the input is cut into checkpoints, or by their clock, in words: a backfill that
        cuts it in another way may have others."""
        late = ["which rows come too late"] if self.uses_event_time else []
        fixes = type(self).fix_inputs is not Operator.fix_inputs
        return [*late, *(["as of when it reads its table"] if fixes else [])]

    @property
    def needs_event_time_order(self) -> bool:
        """True if it gets its rows in the order of event time, and remembers what they have come to."""
        return False

    def event_time_problems(self, columns: Sequence[Sequence[str]]) -> list[str]:
        """Return its problems with the event-time columns that the sources of each input declare."""
        return []

    @property
    def lag_s(self) -> float:
        """Upper bound on how far output rows lag the operator's watermark: operators downstream wait that much
        longer."""
        return 0.0

    def event_time_objection(self, column: str) -> str | None:
        """Return why an operator downstream cannot use this column of its rows as event time, as they may be older
        there than `lag_s` promises. None: nothing speaks against it."""
        return None

    @property
    def complete_per_checkpoint_by(self) -> frozenset[str]:
        """Columns of its rows: all rows that agree in one of them come in one checkpoint, and no more ever will."""
        return frozenset()

    @property
    def inputs_of_unbounded_age(self) -> tuple[int, ...]:
        """The inputs whose rows it keeps for any time and emits then: nobody can go by their event time any more."""
        return ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its keyed states."""
        return ("",)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its additional output streams, such as late rows."""
        return ()

    @property
    def possible_outputs(self) -> Mapping[str, str]:
        """Outputs that it would have if it were declared differently, each with that declaration."""
        return {}

    @property
    def updates(self) -> bool:
        """True if its output replaces rows that it emitted before, by key. False: emitted rows are final."""
        return False

    def updates_over(self, over_updates: bool) -> bool:
        """Return `updates` for these inputs. over_updates: one of them replaces rows."""
        return self.updates

    @property
    def is_lookup_table(self) -> bool:
        """True if each checkpoint emits everything that it holds, as a lookup table, instead of what is new."""
        return False

    @property
    def accepts_lookup_table(self) -> bool:
        """True if its last input is a lookup table (`broadcast`), which has no keys and no event time."""
        return False

    @property
    def accepts_retractions(self) -> bool:
        """True if it can take a stream that replaces rows: `context.retractions` then has those that no longer hold."""
        return False

    def lateness(self, place: int) -> Lateness | None:
        """Return from when on it takes no more rows of an input, for they come too late. None: it takes all of them.

        Where it tells that, it never takes a row without a time.
        """
        return None

    def late_output(self, place: int) -> str:
        """Return the output with the late rows of an input, if it has that output."""
        return "late"

    def update_problems(self) -> list[str]:
        """Return the problems of its declaration if an input replaces rows."""
        return []

    @property
    def columns(self) -> list[str] | None:
        """The columns of its stream. None: the same as its input's."""
        return None

    @property
    def event_time_columns(self) -> tuple[str | None, ...]:
        """By input, the column that it reads event time from; None: the one that sources declare. Empty: it reads
        none."""
        return ()

    @property
    def results(self) -> Mapping[str, str]:
        """The results that may be added or removed, by name, each with what it is computed from."""
        return {}

    @property
    def replaced_results(self) -> Json:
        """Which of its results it emits and replaces, and when. With operators downstream this must not change: they
        would be asked to take back rows that were never emitted."""
        return {}

    @property
    def expires_without_retraction(self) -> bool:
        """True if it forgets rows that it emitted, and later emits others without taking those back."""
        return False

    def conflicts_with_stored_meaning(self, before: Json) -> list[str]:
        """Return why new results would misread a state with this meaning, though each of those there is the same."""
        return []

    def changelog_key(
        self, inputs: Sequence[ChangelogKey | None], columns: Sequence[Sequence[str]] | None = None
    ) -> ChangelogKey | None:
        """Return the columns of its rows of which no two that hold at one time have the same values. None: there are
        none, or nobody knows which.

        inputs: the same for its inputs. columns: the columns of these, which are only known when it runs.
        """
        return None

    @property
    def key_needs_columns(self) -> bool:
        """True if its changelog's key depends on the columns of its inputs."""
        return False

    @property
    def current_output_is_complete(self) -> bool:
        """True if `current_output` returns every row that it has emitted and not taken back."""
        return False

    def never_drops_keys(self, keys: Sequence[str], over_updates: bool) -> bool:
        """Return whether a row with such a key, once emitted, is only ever replaced by one with the same key.

        over_updates: an input replaces rows.
        """
        return False

    @property
    def permanent_keys(self) -> list[str] | None:
        """The columns by which it knows every key that it ever received. None: it forgets some, or knows none."""
        return None

    def interval_problems(self) -> list[str]:
        """Return the reasons why it cannot serve an interval pipeline. Empty: it can.

        Then it begins with no state in each interval, gets all rows of the interval at once, and event time ends with
        them. So what it emits is final, and nothing of its state is kept.
        """
        return [
            "it may rest on what earlier checkpoints brought, and an interval begins with nothing: compute within the "
            "interval in a stage, or use sources that read all new rows"
        ]

    def interval_misfit(self, interval: Interval) -> str | None:
        """Return why it cannot be right for this interval, with what to do. None: it can."""
        return None

    def ttl(self, part: str, context: OperatorContext) -> Ttl | RowTtl | None:
        """Return when the rows of one of its states expire. None: never."""
        return None

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        """Return the rows that it has emitted and not taken back, according to its states, exactly as emitted.

        So a state that was changed by hand can be passed downstream. None: its rows are final.
        states: all rows of its states, by part. None: that part has never held anything.
        """
        return None

    @property
    def unbounded_state(self) -> str | None:
        """What it never forgets, so that its state grows as long as new keys or rows come. None: all is forgotten."""
        return None

    @property
    def unbounded_state_per_key(self) -> str | None:
        """What it keeps of a key until all of the key is forgotten, however much it becomes. None: nothing."""
        return None

    @property
    def implied_note(self) -> str | None:
        """What `check` tells of an operator that nobody has declared. None: nothing."""
        return None

    @property
    def how_to_bound_state(self) -> str:
        """What to write so that it forgets what it keeps for ever."""
        return 'state_ttl="30 days"'

    def fix_inputs(self, context: SourceContext) -> Json | None:
        """Return what it reads besides its streams, such as a table's version, so that all attempts read the same.
        Called when a checkpoint is planned, without a JVM. None: nothing."""
        return None

    def lost_inputs(self, recorded: Mapping[int, Json], context: SourceContext) -> Iterable[str]:
        """Return in words what of the inputs that it has fixed before cannot be read any more, each once. A backfill
        that repeats checkpoints asks that before it begins.

        recorded: by checkpoint, what `fix_inputs` has returned for it.
        """
        return ()

    @abstractmethod
    def describe(self) -> Json:
        """Return the declaration for fingerprints and `explain`."""

    def meaning(self, over_updates: bool) -> Json:
        """Return the semantic identity of the state. Any key present both now and in the stored state must be equal.

        over_updates: an input replaces rows. "event_time": its own choice for each input; for None, what sources say.
        """
        return {}

    def problems(self) -> list[str]:
        """Return everything that is wrong with the declaration itself."""
        return []

    def code(self) -> object:
        """The user's function in it, if there is one: its code is part of the pipeline's fingerprint."""
        return None

    @abstractmethod
    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        """Return the operator's streams for this checkpoint: its own under "", others by their names.

        If it `updates`, "-" has the rows that those under "" replace, and those that hold no longer: the same columns.
        """
