"""The contract of a source: plan without a JVM, read the same rows again, notice when that is impossible.

    call      when                                            may it fail?
    plan      by the trigger, before the entry exists         yes: the checkpoint is declined
    verify    by a job, before anything is read or written    yes: Invalid names what changed
              and once more when all is read, if asked for    yes: the same
    read      by a job, once per attempt, possibly doubled    yes: the attempt is retried
    completed after the decision, by anyone, any number       no: it is told again after the next checkpoint
    release   by retention: nobody will read this again       no: it is told again later
    accept    by a person: the system is another one          yes: nothing is changed

A plan's range is written once. `read` gets exactly that range, whatever has happened since then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from tidegate.errors import Invalid
from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.records.records import Amount, Blob, Json, Lag, Unread
from tidegate.renamed_hooks import SOURCE_HOOKS, refuse_old_hooks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Blobs", "Planned", "ReadOnlyBlobs", "Source", "SourceContext", "is_at_least", "smallest_bound"]


class Blobs(Protocol):
    """Immutable side files of the ledger, for positions that grow (a list of files already seen)."""

    def put_blob(self, data: bytes) -> Blob:
        """Write bytes once. The returned reference goes into a position or a range."""

    def get_blob(self, blob: Blob) -> bytes:
        """Return the bytes, checked against their hash."""


@dataclass(frozen=True)
class ReadOnlyBlobs:
    """The ledger's side files for a plan that nobody will follow: nothing is written."""

    blobs: Blobs

    def put_blob(self, data: bytes) -> Blob:
        return Blob(path="blobs/none", sha=sha256(data).hexdigest(), size=len(data))

    def get_blob(self, blob: Blob) -> bytes:
        return self.blobs.get_blob(blob)


@dataclass(frozen=True)
class SourceContext:
    """Where a source of this pipeline plans and reads."""

    pipeline: str
    source: str
    place: Place
    blobs: Blobs
    interval: Interval | None = None
    """The data interval to plan, for a source that reads by interval."""
    at_most: int | None = None
    """For a source with a unit: a bound in that unit, in addition to its own bounds. A source that cannot stay within
    it takes as little as it can."""
    bound_factor: int = 1
    """How many times as large as all these bounds allow a range may be: a backfill reads in larger ranges."""
    stop_position: Json | None = None
    """A position that the source has had: the range goes no further than that, for a backfill that stops there. A
    source with `can_stop` heeds it."""

    def bound(self, *bounds: int | None) -> int | None:
        """Return how much the range may hold. bounds: the source's own, in its unit. None: as much as there is."""
        bound = smallest_bound([*bounds, self.at_most])
        return None if bound is None else bound * self.bound_factor


@dataclass(frozen=True)
class Planned:
    """The range that a source would read next."""

    end: Json | None
    """The position after this range. Equal to the start if there is nothing new. It may advance without rows, past
    versions of a table that add none."""
    splits: Json
    """What to read, with fingerprints."""
    is_empty: bool
    has_more: bool = False
    summary: str = ""
    amount: int = 0
    """The size of the range, in the source's unit."""
    unread: Unread | None = None
    """Input that will never be read unless somebody acts. A source must report all input of this kind."""
    lag: Lag | None = None
    """How far the source is behind its input after this range, if it can tell."""


def smallest_bound(bounds: Iterable[int | None]) -> int | None:
    """Return the smallest bound, ignoring None. None: there are no bounds."""
    return min((bound for bound in bounds if bound is not None), default=None)


def is_at_least(position: Json | None, other: Json | None, place: str, *same: str) -> bool:
    """Return whether a position is at least as far as another one: `place` is how far, `same` what must be equal."""
    if other is None or position == other:
        return True
    return (
        position is not None
        and all(position[name] == other[name] for name in same)
        and int(position[place]) >= int(other[place])
    )


class Source(ABC):
    """Something that can be read in ranges, repeatably."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        refuse_old_hooks(cls, SOURCE_HOOKS)

    kind: ClassVar[str]
    unit: ClassVar[Literal["bytes", "rows"] | None] = None
    """The unit of `context.at_most`. None: the source accepts no bound from outside."""

    verified_after: ClassVar[bool] = False
    """True: `verify` is called once more when the rows have been staged, before they count. For a source whose input
    can be replaced while it is read without Spark noticing."""

    can_stop: ClassVar[bool] = False
    """True: `plan` heeds `context.stop_position`."""

    costly_to_read: ClassVar[bool] = False
    """True: its rows come from another system, so what is needed twice in a checkpoint is read once and stored."""

    may_be_archived: ClassVar[bool] = False
    """True: input may be moved away after it was read, so an empty folder does not mean that there never was any
    input."""

    @property
    def by_interval(self) -> bool:
        """True: a plan covers the run's data interval (`context.interval`), whatever was read before. It has no start
        and no end. Either all sources of a pipeline read by interval, or none does."""
        return False

    @abstractmethod
    def describe(self) -> Json:
        """Return the configuration, for fingerprints and `explain`, without secrets."""

    def shared_uri(self, place: Place) -> str | None:
        """Return the address of what it reads as others write it, such as kafka://broker:9092/orders, without asking
        there. None: it has none that all write alike."""
        return None

    def columns_depend_on(self) -> str | None:
        """Return everything that the columns of its rows depend on, if the declaration tells: they are then looked up
        once. None: they may be others in each range."""
        return None

    def problems(self) -> list[str]:
        """Return all problems of the declaration. Called when the pipeline is validated."""
        return []

    def beginning(self, context: SourceContext) -> Json | None:
        """Return the position to begin at, if it depends on the moment of the call ("from now on"), else None: `plan`
        finds the beginning by itself.

        It is called once, before the first plan, and the position is recorded. Otherwise a first checkpoint that is
        aborted, or not made because nothing is new, would move the beginning, and rows that arrived in between would
        never be read.
        """
        return None

    @abstractmethod
    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        """Plan what comes after `start` (None: from the beginning), within the source's bounds. Takes milliseconds, no
        JVM."""

    @abstractmethod
    def verify(self, splits: Json, context: SourceContext) -> Amount | None:
        """Raise Invalid, naming each file or version, if the range cannot be read as planned. Return the size of the
        range, as far as it is known without reading it."""

    def max_event_time(self, column: str, splits: Json, context: SourceContext) -> int | None:
        """Return the highest time of this column in the range, in microseconds since 1970. None: only the rows show
        it."""
        return None

    def files(self, splits: Json) -> list[str]:
        """Return the names of the input files that a user would recognise, for display. Empty: there are none."""
        return []

    @abstractmethod
    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """Return the rows of the range, lazily. An empty range gives an empty frame with the full schema."""

    def no_rows(self, spark: SparkSession) -> DataFrame | None:
        """Return the columns of its rows, without rows, if the declaration alone tells them. None: the input does."""
        return None

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """Return whether whoever has read up to `position` has read all that one at `other` has read."""
        return other is None or position == other

    def missing_input(self, start: Json | None, end: Json | None, context: SourceContext) -> list[str]:
        """Return what was read between two positions and cannot be read again, in words. Empty: nothing, as far as can
        be told without reading it."""
        if start == end:
            return []
        try:
            self.plan(start, context)
        except Invalid as error:
            return [error.what]
        return []

    def accept(self, position: Json, context: SourceContext, *, unproven: bool = False) -> Json:
        """Return a position in the system as it is now, for a person who says that it is another one by right, such as
        a standby that took over. Raise Invalid if what was read last is not there, or if nothing has to be accepted.

        unproven: the person takes the word for that upon themselves.
        """
        raise Invalid(
            f"source {context.source!r}: nothing that a source of kind {self.kind!r} reads from has to be accepted",
            expected="a source whose positions say which system they are of, such as postgres-table",
            help="nothing to do: `tidegate check` tells whether it can continue from its position",
            reason="NOTHING_TO_ACCEPT",
        )

    def on_checkpoint_completed(self, end: Json, context: SourceContext) -> None:  # noqa: B027
        """Take note that a checkpoint has been completed whose range ends at `end`. For others who watch the source,
        such as a tool that shows the lag of consumer groups; tidegate itself never relies on it."""

    def release(self, before: Json, context: SourceContext) -> None:  # noqa: B027
        """Let go of all input before this position: no retained checkpoint of this pipeline would read it again, not
        even after a rollback. For a source that holds input back at its origin until then. A fork is a pipeline of its
        own: it needs a hold of its own there, by `context.pipeline`."""
