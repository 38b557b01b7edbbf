"""What a source promises: plan without a JVM, read the same rows again, notice when it cannot.

    call      when                                            may it fail?
    plan      by the trigger, before the entry exists         yes: the checkpoint is declined
    verify    by a job, before anything is read or written    yes: Invalid names what changed
    read      by a job, once per attempt, possibly doubled    yes: the attempt is retried

A plan's range is written once. `read` gets exactly that range, whatever has happened since.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.records.records import Amount, Blob, Json, Unread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Blobs", "Planned", "Source", "SourceContext", "least"]


class Blobs(Protocol):
    """Immutable side files of the ledger, for positions that grow (a list of files already seen)."""

    def put_blob(self, data: bytes) -> Blob:
        """Write bytes once; the answer goes into a position or a range."""

    def get_blob(self, blob: Blob) -> bytes:
        """The bytes, checked against their hash."""


@dataclass(frozen=True)
class SourceContext:
    """Where a source of this pipeline plans and reads."""

    pipeline: str
    source: str
    place: Place
    blobs: Blobs
    interval: Interval | None = None
    """What a source that reads by interval is to plan."""
    at_most: int | None = None
    """Of a source that has a unit: no more than so much, beside its own bounds. It takes the least that it can."""


@dataclass(frozen=True)
class Planned:
    """One source's answer to "what is next?"."""

    end: Json | None
    """The position after this range. Equal to the start if there is nothing new; it may move on without rows, past
    versions of a table that add none."""
    splits: Json
    """What to read, with fingerprints."""
    empty: bool
    more: bool = False
    summary: str = ""
    amount: int = 0
    """How much it is, in the source's unit."""
    unread: Unread | None = None
    """What lies there and will never be read by itself. Nothing of that kind may stay untold."""


def least(bounds: Iterable[int | None]) -> int | None:
    """The least of the bounds that there are. None: there are none."""
    return min((bound for bound in bounds if bound is not None), default=None)


class Source(ABC):
    """Something that can be read in ranges, repeatably."""

    kind: ClassVar[str]
    unit: ClassVar[Literal["bytes", "rows"] | None] = None
    """What it can be told to take so much of (`context.at_most`). None: it knows no bound from outside."""

    may_be_archived: ClassVar[bool] = False
    """True: what was read may be moved away later, so that nothing there does not mean that there was nothing."""

    @property
    def by_interval(self) -> bool:
        """True: a plan is what belongs to the run's data interval (`context.interval`), whatever was read before; it
        has no start and no end. All sources of a pipeline do so, or none."""
        return False

    @abstractmethod
    def describe(self) -> Json:
        """The configuration for fingerprints and `explain`; no secrets."""

    def problems(self) -> list[str]:
        """What is wrong with the declaration itself, all at once. Called when the pipeline is validated."""
        return []

    def beginning(self, context: SourceContext) -> Json | None:
        """The position to begin at, if that hangs on the moment of asking ("from now on"). It is asked once, before the
        first plan, and the answer is recorded: else a first checkpoint that is aborted, or is not made as nothing is
        new, would move the beginning, and what came meanwhile would never be read. None: `plan` knows by itself."""
        return None

    @abstractmethod
    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        """What comes after `start` (None: from the beginning), within the source's bounds. Milliseconds, no JVM."""

    @abstractmethod
    def verify(self, splits: Json, context: SourceContext) -> Amount | None:
        """Raise Invalid, naming each file or version, if the range cannot be read as planned. Answers with how much it
        is, as far as that is known without reading it."""

    def highest(self, column: str, splits: Json, context: SourceContext) -> int | None:
        """The highest moment of this column in the range, in microseconds since 1970. None: only its rows can tell."""
        return None

    def files(self, splits: Json) -> list[str]:
        """The names of the files that somebody has put there for it, for people. Empty: there are no such."""
        return []

    @abstractmethod
    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """The rows of the range, lazily. An empty range gives an empty frame with the full schema."""
