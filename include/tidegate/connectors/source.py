"""The contract of a source: plan without a JVM, read the same rows again, and notice when that is impossible.

    call                     when                                          if it fails
    plan                     in the trigger, before the entry exists       the checkpoint is declined
    verify                   in a job, before it reads or writes anything  the attempt fails; Invalid names the changes
                             and after reading, with `verified_after`      the same
    read                     in a job, once per attempt; attempts may      the attempt is retried
                             run twice or overlap
    on_checkpoint_completed  after the decision, in any process, any       ignored: the next checkpoint calls it again
                             number of times
    release                  in retention: this input is not needed again  ignored: retention calls it again
    accept                   when a person accepts a replaced system       nothing changes

A plan's range is recorded once. `read` always gets exactly that range, no matter what has happened to the input since.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Protocol

from tidegate.connectors.schema.drift import SchemaPolicy, Survey
from tidegate.errors import Invalid
from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.records.records import Amount, Blob, Json, Lag, SourceSchema, Unread
from tidegate.renamed_hooks import SOURCE_HOOKS, refuse_old_hooks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "PLACE",
    "Blobs",
    "Notifications",
    "Planned",
    "ReadOnlyBlobs",
    "Source",
    "SourceContext",
    "foreign_position_error",
    "is_at_least",
    "smallest_bound",
]


PLACE: Final = "_tidegate_place"
"""The column of `Source.read_with_places`."""


class Blobs(Protocol):
    """Immutable side files of the ledger, for positions that grow, such as a list of files already read."""

    def put_blob(self, data: bytes) -> Blob:
        """Write the bytes, and return a reference to store in a position or a range."""

    def get_blob(self, blob: Blob) -> bytes:
        """Return the bytes, checked against their hash."""


@dataclass(frozen=True)
class ReadOnlyBlobs:
    """The ledger's side files for a plan that is only displayed: reads work, writes are dropped."""

    blobs: Blobs

    def put_blob(self, data: bytes) -> Blob:
        return Blob(path="blobs/none", sha=sha256(data).hexdigest(), size=len(data))

    def get_blob(self, blob: Blob) -> bytes:
        return self.blobs.get_blob(blob)


class Notifications(Protocol):
    """Tells that input may have arrived, so that a source need not be asked for it every moment."""

    def wait(self, seconds: float) -> bool:
        """Wait for a notification for up to this long. Return whether any has come.

        Raise Invalid or Unavailable if none can come. Some may be lost: the source is asked now and then anyway.
        """


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
    """For a source with a `unit`: a bound in that unit, in addition to the source's. A source that cannot stay within
    it plans the smallest range it can."""
    bound_factor: int = 1
    """Multiplies all bounds. A backfill reads in larger ranges than live checkpoints."""
    stop_position: Json | None = None
    """An earlier position of the source, past which the range must not extend, for a backfill that stops there. Only
    sources with `can_stop` respect it."""
    survey: Survey | None = None
    """To read: what `survey` has found in the range, if it was asked."""

    def bound(self, *bounds: int | None) -> int | None:
        """Return the maximum size of a range, or None if it is unbounded. bounds: the source's own, in its unit."""
        bound = smallest_bound([*bounds, self.at_most])
        if bound is None:
            return None
        return bound * self.bound_factor


@dataclass(frozen=True)
class Planned:
    """The range that a source would read next."""

    end: Json | None
    """The position after this range. Equal to the start if nothing is new. It may advance without rows, for example
    past versions of a table that add none."""
    splits: Json
    """What to read, with fingerprints."""
    is_empty: bool
    has_more: bool = False
    summary: str = ""
    amount: int = 0
    """The size of the range, in the source's unit."""
    unread: Unread | None = None
    """Input that will never be read unless a person intervenes. A source must report all such input."""
    lag: Lag | None = None
    """How far the source trails its input after this range, if it knows."""


def smallest_bound(bounds: Iterable[int | None]) -> int | None:
    """Return the smallest bound, ignoring None, or None if all are None."""
    return min((bound for bound in bounds if bound is not None), default=None)


def is_at_least(position: Json | None, other: Json | None, offset_field: str, *equal_fields: str) -> bool:
    """Return whether a position is at or past another: equal in `equal_fields`, and not lower in `offset_field`."""
    if other is None or position == other:
        return True
    if position is None or any(position[name] != other[name] for name in equal_fields):
        return False
    return int(position[offset_field]) >= int(other[offset_field])


class Source(ABC):
    """A system that can be read in ranges, where reading a range again returns the same rows."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        refuse_old_hooks(cls, SOURCE_HOOKS)

    kind: ClassVar[str]
    unit: ClassVar[Literal["bytes", "rows"] | None] = None
    """The unit of `context.at_most`. None: the source does not support that bound."""

    verified_after: ClassVar[bool] = False
    """True: `verify` is called again after the rows have been staged, before they count. For a source whose input could
    be replaced during the read without Spark noticing."""

    can_stop: ClassVar[bool] = False
    """True: `plan` respects `context.stop_position`."""

    costly_to_read: ClassVar[bool] = False
    """True: reading again is expensive, so rows that a checkpoint needs twice are read once and stored."""

    may_be_archived: ClassVar[bool] = False
    """True: input may be moved away after it was read, so an empty folder does not prove that no input ever arrived."""

    @property
    def schema_policy(self) -> SchemaPolicy:
        """What the source does with input that does not fit its schema."""
        return SchemaPolicy()

    @property
    def declared_schema(self) -> str:
        """The columns in DDL, for a source whose policy can be other than the default."""
        return ""

    @property
    def by_interval(self) -> bool:
        """True: a plan covers the run's data interval (`context.interval`), independent of what was read before, and
        has no start or end position. Either all sources of a pipeline read by interval, or none does."""
        return False

    @abstractmethod
    def describe(self) -> Json:
        """Return the configuration, for fingerprints and `explain`, without secrets."""

    def shared_uri(self, place: Place) -> str | None:
        """Return a standard address of its input, such as kafka://broker:9092/orders, without connecting to it. None:
        no standard form exists. It is the URI of an Airflow asset, so that other DAGs can refer to the same input."""
        return None

    def columns_depend_on(self) -> str | None:
        """Return a text that identifies the columns of its rows, if the declaration alone determines them: they are
        then looked up only once for each such text. None: the columns may differ from range to range."""
        return None

    def column_names(self) -> list[str] | None:
        """Return the names of the columns of its rows, or None if only the input determines them."""
        return None

    def problems(self) -> list[str]:
        """Return all problems of the declaration, for the validation of the pipeline."""
        return []

    def beginning(self, context: SourceContext) -> Json | None:
        """Return the position to begin at if it depends on the current moment ("from now on"). None: `plan` finds the
        beginning itself.

        Called once, before the first plan, and the position is recorded. If each plan computed it, an
        aborted or empty first checkpoint would move the beginning, and rows that arrived before the next one would
        never be read.
        """
        return None

    @abstractmethod
    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        """Plan the range after `start` (None: from the beginning), within the source's bounds. Must take milliseconds
        and need no JVM."""

    @abstractmethod
    def verify(self, splits: Json, context: SourceContext) -> Amount | None:
        """Raise Invalid, naming each file or version, if the range cannot be read as planned. Return the size of the
        range, or None if only reading it would show that."""

    def upper_bound(self, splits: Json) -> Amount:
        """Return the most that the range can hold, for a source whose `verify` does not know its size. It only decides
        how Spark computes: without one, a job is computed as if the range was large."""
        return Amount()

    def max_event_time(self, column: str, splits: Json, context: SourceContext) -> int | None:
        """Return the highest time of this column in the range, in microseconds since 1970, or None if only reading the
        rows would show it."""
        return None

    def files(self, splits: Json) -> list[str]:
        """Return the names of the input files that a user would recognise, for display."""
        return []

    def with_schema(self, schema: SourceSchema) -> Source:
        """Return the source as it reads with the schema of a plan. Only sources with a `schema_policy` have one."""
        return self

    def survey(self, spark: SparkSession, splits: Json, context: SourceContext) -> Survey | None:
        """Return what in the range does not fit the schema, or None if the source's policy does not ask for that."""
        return None

    @abstractmethod
    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """Return the rows of the range, lazily. For an empty range, return an empty frame with the full schema."""

    def read_with_places(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """Return the same rows as `read`, and in the column PLACE where the input has each, as text for people. Null if
        that is unknown. The default knows it of files."""
        return with_files(self.read(spark, splits, context))

    def no_rows(self, spark: SparkSession) -> DataFrame | None:
        """Return an empty frame with the columns of its rows, or None if only the input determines them."""
        return None

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """Return whether reading up to `position` includes everything read up to `other`."""
        return other is None or position == other

    def missing_input(self, start: Json | None, end: Json | None, context: SourceContext) -> list[str]:
        """Return a description of each part of the input between two positions that can no longer be read.

        Only a check without reading: an empty list does not prove that everything is readable.
        """
        if start == end:
            return []
        try:
            self.plan(start, context)
        except Invalid as error:
            return [error.what]
        return []

    def accept(self, position: Json, context: SourceContext, *, unproven: bool = False) -> Json:
        """Return `position` translated to the system as it is now, because a person accepts that it was replaced, for
        example by a standby that took over.

        Raise Invalid if the new system lacks the input that was read last, or if it was not replaced. unproven: the
        person vouches that the input is there, where the source cannot check it.
        """
        raise Invalid(
            f"source {context.source!r}: a source of kind {self.kind!r} never needs its system to be accepted",
            expected="a source whose positions identify their system, such as postgres-table",
            help="nothing to do: `tidegate check` shows whether it can continue from its position",
            reason="NOTHING_TO_ACCEPT",
        )

    def notifications(self, context: SourceContext) -> Notifications | None:
        """Return what tells of new input, or None if only `plan` does. For pipelines with `interval = "event"`."""
        return None

    def on_checkpoint_completed(self, end: Json, context: SourceContext) -> None:  # noqa: B027
        """Handle the completion of a checkpoint whose range ends at `end`.

        For external observers of the source, such as a tool that shows the lag of consumer groups. tidegate itself
        never relies on it.
        """

    def release(self, before: Json, context: SourceContext) -> None:  # noqa: B027
        """Release all input before this position: no retained checkpoint would read it again, even after a rollback.

        For a source that makes its system retain input, such as a replication slot. A fork is a separate pipeline: it
        needs a separate hold, identified by `context.pipeline`.
        """


def with_files(rows: DataFrame) -> DataFrame:
    """Return rows with the file that each was read from, and its number there, in the column PLACE."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    file, block, order = (f"{PLACE}_{name}" for name in ("file", "block", "order"))
    read = {file: F.input_file_name(), block: F.expr("input_file_block_start()")}
    read[order] = F.monotonically_increasing_id()
    numbered = F.row_number().over(Window.partitionBy(file).orderBy(block, order))
    place = F.when(F.col(file) != "", F.concat(F.lit("record "), numbered.cast("string"), F.lit(" of "), F.col(file)))
    return rows.withColumns(read).withColumn(PLACE, place).orderBy(order).drop(file, block, order)


def foreign_position_error(source: str, start: Json, expected: str) -> Invalid:
    """Return the error for a position that another kind of source has written."""
    return Invalid(
        f"source {source!r} cannot continue from position {start!r}",
        expected=expected,
        help="give the source another name, so that it starts from scratch, or put the former source back",
        reason="FOREIGN_POSITION",
    )
