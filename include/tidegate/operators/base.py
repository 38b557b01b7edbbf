"""What an operator promises: DataFrames in, DataFrames out, and everything that it remembers in tidegate's hands.

    call       when                                    may it
    problems   when the pipeline is validated          say all that is wrong with the declaration
    run        by a job, once per attempt              read and put state, run Spark jobs; write nothing else

`run` gives rows that depend on the input, the state at the base and the checkpoint's own clock alone. So every
attempt gives the same, and it does not matter how the input was cut into checkpoints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Protocol

from tidegate.records.moments import micros_of
from tidegate.records.records import Json
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tidegate.sources.base import SourceContext
    from tidegate.state.expiry import Over
    from tidegate.state.keyed import KeyedState
    from tidegate.state.ttl import Ttl

__all__ = ["Operator", "OperatorContext", "StatePart", "Watermarks"]


@dataclass(frozen=True)
class StatePart:
    """One keyed state of an operator. Most have one, without a name."""

    name: str = ""
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Watermarks:
    """How far event time has come for an operator: the least over its inputs, those left out that are idle."""

    before: datetime | None = None
    """As of the base. A row older than this is late."""
    now: datetime | None = None
    """With this checkpoint's rows. What ends up to here is complete. None: nothing is known yet."""

    reached: datetime | None = None
    """Where rows alone have brought it: the same as `now`, unless event time comes to its end in this checkpoint."""
    ends: bool = False
    """Whether event time comes to its end in this checkpoint."""

    @property
    def before_micros(self) -> int | None:
        """`before`, in microseconds since 1970."""
        return None if self.before is None else micros_of(self.before)

    @property
    def now_micros(self) -> int | None:
        """`now`, in microseconds since 1970."""
        return None if self.now is None else micros_of(self.now)


class Stage(Protocol):
    """Writes a frame out of sight and gives it back as read from there."""

    def __call__(self, frame: DataFrame) -> DataFrame: ...


class States(Protocol):
    """Opens the operator's keyed states as of the base."""

    def __call__(self, part: str, keys: Sequence[str], ttl: Ttl | None, over: Over | None) -> KeyedState: ...


@dataclass(frozen=True)
class OperatorContext:
    """What an operator may use in one attempt."""

    uid: str
    checkpoint: int
    clock: datetime
    """The checkpoint's own time: when it was planned. The same for each attempt."""
    spark: SparkSession
    states: States
    stage: Stage
    """For what may not be computed twice: it is written once, and gone when the attempt ends."""
    watermarks: Watermarks = field(default_factory=Watermarks)
    """Only for an operator that `uses_event_time`."""
    event_time: str | None = None
    """The column that the operator goes by: its own choice, or the one that its sources agree on."""
    event_times: Sequence[str | None] = ()
    """By input, the column that its sources agree on."""
    memory: Mapping[str, object] = field(default_factory=dict)
    """What the operator remembered at the base, beside its keyed states."""
    remember: Json = field(default_factory=dict)
    """What it is to remember from now on: to be filled by `run`. Plain JSON, small."""
    replaced_is_taken: bool = True
    """Whether anyone takes the rows that those under "" replace; if not, none need be given."""
    withdrawn: Sequence[DataFrame | None] = ()
    """By input: the rows that its new ones replace or withdraw, if it `updates`; None: what it gave stays."""
    pinned: tuple[Json, SourceContext] | None = None
    """What the operator's `pin` answered when the checkpoint was planned, and where it was asked."""
    waits: bool = False
    """Nothing falls due in this checkpoint: it is made by hand, and what timers gave would go nowhere."""
    kept: list[DataFrame] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """What it counted (late rows …): shown, never asked."""

    def state(
        self, keys: Sequence[str], part: str = "", *, ttl: Ttl | None = None, over: Over | None = None
    ) -> KeyedState:
        """One of the operator's keyed states, as of the base.

        ttl: when its rows expire; by default never. over: what of it the operator takes no notice of.
        """
        return self.states(part, keys, ttl, over)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Compute the frame once, however often it is used; let go when the job is done."""
        stored = materialize(frame)
        self.kept.append(stored)
        return stored


class Operator(ABC):
    """Something that remembers. Its uid, by default its name, is what its state is found by."""

    kind: ClassVar[str]
    event_time: str | None = None
    """The column that it goes by. None: the one that its sources declare."""
    renews: ClassVar[bool] = False
    """Whether its rows have columns of its own, not those of its inputs."""
    instead: ClassVar[str] = "put it in front of that"
    """What to do if it cannot take a stream that replaces rows."""

    @property
    def told_by(self) -> list[str]:
        """What tells it from others of its kind behind the same streams: a uid is made of it if none is given."""
        return []

    @property
    def uses_event_time(self) -> bool:
        """Whether it asks for watermarks: they cost a look at each source's times."""
        return False

    def event_time_problems(self, columns: Sequence[Sequence[str]]) -> list[str]:
        """What is wrong for it with the columns of event time that the sources of each input declare."""
        return []

    @property
    def lag_s(self) -> float:
        """How much older than its watermark the rows may be that it gives: what follows waits so much longer."""
        return 0.0

    def untimely(self, column: str) -> str | None:
        """Why what follows cannot go by this column of its rows: they may be older there than `lag_s` tells. None: it
        can, for all that is known."""
        return None

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its keyed states."""
        return ("",)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its streams beside its own, such as late rows."""
        return ()

    @property
    def possible_outputs(self) -> Mapping[str, str]:
        """Outputs that it would have if it were declared otherwise, and how."""
        return {}

    @property
    def updates(self) -> bool:
        """Whether its output replaces rows that it gave before, by key. False: what it gave stays."""
        return False

    @property
    def gives_all(self) -> bool:
        """Whether each checkpoint gives all that it holds, to be looked up, not what is new."""
        return False

    @property
    def takes_updates(self) -> bool:
        """Whether it can take a stream that replaces rows: `context.withdrawn` then has those that no longer hold."""
        return False

    def update_problems(self) -> list[str]:
        """What is wrong with the declaration if an input replaces rows."""
        return []

    @property
    def columns(self) -> list[str] | None:
        """The columns of its stream. None: as its input has them."""
        return None

    @property
    def goes_by(self) -> tuple[str | None, ...]:
        """By input, the column whose time it goes by; None: the one that sources declare. Empty: it reads none."""
        return ()

    @property
    def results(self) -> Mapping[str, str]:
        """By the names of what it computes that may be added or left out, what each is about."""
        return {}

    @property
    def replacing(self) -> Json:
        """When it gives and replaces rows, of those that it could give. Behind it, this may not change: rows would be
        taken back that were never given."""
        return {}

    @property
    def forgets(self) -> bool:
        """Whether it forgets rows that it gave, and gives others later without taking those back."""
        return False

    def keeps(self, keys: Sequence[str], over_updates: bool) -> bool:
        """Whether a row with such a key, once given, is only ever replaced by one with the same key.

        over_updates: an input replaces rows.
        """
        return False

    @property
    def known_by(self) -> list[str] | None:
        """The columns by which it knows every key that it was ever given. None: it forgets some, or knows none."""
        return None

    def ttl(self, part: str, context: OperatorContext) -> Ttl | None:
        """When the rows of one of its states expire. None: never."""
        return None

    def shown(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        """If it `updates`: the rows that it has given and not taken back, by what its states hold, exactly as it gave
        them. So what is changed in a state by hand can be given on. None: what it gave stays.

        held: all rows of its states, by part. None: that one has never held anything.
        """
        return None

    def pin(self, context: SourceContext) -> Json | None:
        """What is read beside the streams, such as a table's version, for all attempts: asked when a checkpoint is
        planned, without a JVM. None: nothing."""
        return None

    @abstractmethod
    def describe(self) -> Json:
        """The declaration for fingerprints and `explain`."""

    def meaning(self, over_updates: bool) -> Json:
        """What it is that the operator remembers. What is named here today and was named before must be the same.

        over_updates: an input replaces rows. "event_time": its own choice for each input; for None, what sources say.
        """
        return {}

    def problems(self) -> list[str]:
        """What is wrong with the declaration itself, all at once."""
        return []

    def code(self) -> object:
        """The user's function in it, if there is one: its code is part of the fingerprint."""
        return None

    @abstractmethod
    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        """The operator's streams for this checkpoint: its own under "", others by their names.

        If it `updates`, "-" has the rows that those under "" replace, and those that hold no longer: the same columns.
        """
