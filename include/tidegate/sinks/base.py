"""What a sink promises: prepare out of sight, publish after the decision, discard what lost.

    call      when                                           may it fail?
    check     before a checkpoint is planned                 yes: the checkpoint is declined
    try_out   once for each object store                     yes: the checkpoint is declined
    ahead     in a job, before a gate judges the rows        yes: they are judged, and prepared, without it
    prepare   in a job, once per attempt, possibly doubled   yes: the attempt is retried
    head      before each publish                            yes: retried until it works
    holds     before each publish of an interval             yes: retried until it works
    publish   after the decision, by anyone, any number      yes: retried until it works
              at least once: in a job, once per attempt      yes: the attempt is retried
    trace     after a publish of an interval                 no
    disown    by a person, for an interval that is stuck     yes: nothing is changed
    locate    after a publish whose answer was lost          yes: readers wait for the hint
    verify    before anyone relies on a published version    yes: Corrupt
    attempts  when an entry is cleaned up                    yes: cleaned up later
    discard   after an abort or a lost attempt               its failure leaves an orphan, never a loss
    retire    long after the publish, by retention           its failure leaves an orphan, never a loss
    skipped   when an entry is cleaned up                    yes: cleaned up later
    gone      before anyone relies on what is owed           yes: nobody can tell then
    way_back  before a rollback, to tell what it would do    yes: the rollback is refused
    forget    now and then, by retention                     yes: next time
    go_back   like publish, after a rollback's decision      yes: retried until it works

Only `ahead` and `prepare` see a Spark DataFrame. Everything else runs without a JVM, in milliseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from tidegate.errors import Invalid
from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable, Restored

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from tidegate.delta import Location
    from tidegate.sinks.prestaged import PrestagedRows

__all__ = [
    "AtLeastOnceSink",
    "Disowned",
    "ExactlyOnceSink",
    "Head",
    "Prepared",
    "Publication",
    "Sink",
    "SinkContext",
    "Staging",
    "WayBack",
    "entry_folder",
]


@dataclass(frozen=True)
class SinkContext:
    """Who publishes: names this sink of this pipeline to its target, for ever."""

    pipeline: str
    uid: str
    sink: str
    place: Place
    by_interval: bool = False
    """Of an interval pipeline: what it publishes replaces what its interval has put there before."""
    home: str = ""
    """The pipeline's own folder, beside whose ledger its state and quarantine lie: absolute path or URL."""
    spark: Callable[[], SparkSession] | None = field(default=None, compare=False, repr=False)
    """Gives a session to a sink whose target needs one to be published; None: this process has no Spark."""
    through: bool = False
    """At least once: a job that commits its rows itself, before the decision. What is published after decisions knows
    nothing of it: it has another transaction, and folders that no clean-up looks at, for tables may show what is
    there."""

    @property
    def app_id(self) -> str:
        """Delta's txn app id: a pipeline that was started afresh has another uid, so it is never skipped."""
        return f"tidegate{'-through' if self.through else ''}/{self.uid}/{self.sink}"

    @property
    def folder(self) -> str:
        """What holds all that is staged inside the target. A dot is in no name that users give."""
        return f"tidegate/{self.uid}-{self.sink}{'.through' if self.through else ''}"


@dataclass(frozen=True)
class Staging:
    """One attempt of one job: what it writes goes into folders that carry all of this in their name."""

    checkpoint: int
    attempt: str
    interval: Interval | None = None
    """In an interval pipeline: whose rows these are."""

    def folder(self, context: SinkContext) -> str:
        """Where this attempt stages inside the target: plain names (Spark and VACUUM skip '_' and '.')
        that no other attempt of any pipeline uses. All attempts of one checkpoint lie in one folder, so
        that cleaning up never has to list the whole table."""
        return f"{entry_folder(context, self.checkpoint)}/{self.attempt}"


def entry_folder(context: SinkContext, checkpoint: int) -> str:
    """The folder inside the target that holds every attempt's staged files for one checkpoint."""
    return f"{context.folder}/{checkpoint:08d}"


@dataclass(frozen=True)
class Prepared:
    """What `prepare` staged. `committable` is plain JSON; None: there is nothing to publish."""

    committable: Json | None
    rows: int
    bytes: int = 0
    files: int = 0


@dataclass(frozen=True)
class Head:
    """A target's state at one moment: read first, compared and swapped by `publish`."""

    version: int | None
    """The target's own version; None: there is no table yet."""
    last: int | None
    """The last entry of this pipeline that was published here; None: none yet."""


@dataclass(frozen=True)
class Publication:
    """Checkpoint `id` on one table: everything that `publish` may use."""

    id: int
    generation: int
    attempt: str
    after: int | None
    committables: tuple[Json, ...] = field(repr=False)
    interval: Interval | None = None
    """In an interval pipeline: whose rows these are. They take the place of those that it has there."""
    replaces: tuple[int, Json] | None = None
    """The checkpoint whose rows of the interval are there, and their trace; None: none of this pipeline was."""
    restore: Restored | None = None
    """Of a rollback: what it does to this target."""
    target: int = 0
    """Of a rollback: the checkpoint that it goes back to."""
    through: bool = False
    """At least once, from a job: another attempt's commit under the same id takes nothing from this one."""


@dataclass(frozen=True)
class Disowned:
    """An interval's rows in a target that are let go of: what is published next replaces none of them."""

    version: int | None
    """The target's version that says so; None: it was only looked at."""
    rows: int
    """How many were taken out. None are, if they are left as they are."""
    files: int
    """How many of the target's files go."""


@dataclass(frozen=True)
class WayBack:
    """What a rollback finds out about one target before it is decided."""

    exists: bool = True
    """False: this pipeline has never published anything there, so there is nothing to be put back."""
    lacks: bool = False
    """True: the target has not been given the checkpoint yet to which it is to go back."""
    to: PublishedTable | None = None
    """Where it stood as of that checkpoint; None: it was made later, and would be empty."""
    version: int | None = None
    """Where it stands now."""
    foreign: tuple[str, ...] = ()
    """What others have committed since."""
    problems: tuple[str, ...] = ()
    """Why it cannot go back."""
    no_retract: str = ""
    """Why rows of this pipeline cannot be told from those of others."""


class Sink(ABC):
    """A target that takes part in checkpoints. Use ExactlyOnceSink or AtLeastOnceSink, never this."""

    kind: ClassVar[str]

    @abstractmethod
    def target(self, place: Place) -> str:
        """What is written to, as one absolute string: two sinks on one target are refused."""

    def relative_path(self) -> str | None:
        """The target's path, if that starts from the setting `data`: then readers find it when the project is moved."""
        return None

    @abstractmethod
    def describe(self) -> Json:
        """The configuration for fingerprints and `explain`; no secrets."""

    def problems(self) -> list[str]:
        """What is wrong with the declaration itself, all at once. Called when the pipeline is validated."""
        return []

    takes_replaced: bool = True
    """Whether it looks at the rows that a stream's new ones replace."""

    writes_through: ClassVar[bool] = False
    """At least once: whether a job may `publish` its rows itself, before the decision (SinkContext.through). If not,
    they are published after it, as in any other pipeline."""

    adds_each: ClassVar[bool] = False
    """Whether each row that it is given is one of those that `Prepared` counts, no more and no less."""

    upserts: Sequence[str] = ()
    """The columns by which its rows replace others; none: what it was given stays."""

    def update_problems(self, stream: str) -> list[str]:
        """Why it cannot take a stream that replaces rows; none: then `prepare_updates` is there."""
        return [
            f"it adds rows, but {stream} replaces rows that it gave before: use DeltaUpsert with keys, "
            "or DeltaAppend(…, changelog=True) for a row of each change"
        ]

    def interval_problems(self) -> list[str]:
        """Why this sink cannot serve an interval pipeline; none: it replaces exactly one interval's rows.

        Then `publish` takes publications with an interval, in any order of ids; `prepare` gives a committable
        also if there are no rows; and `trace` and `holds` are there.
        """
        return ["it cannot replace the rows of one interval: use DeltaAppend"]

    @abstractmethod
    def check(self, context: SinkContext) -> None:
        """Refuse a target that cannot be published to safely (Invalid), before anything is planned."""

    def try_out(self, context: SinkContext) -> None:  # noqa: B027
        """Refuse a store on which two could both publish the same (Invalid). Asked once for each object store."""

    def check_interval(  # noqa: B027
        self, interval: Interval, replaces: tuple[int, Json] | None, context: SinkContext
    ) -> None:
        """Refuse an interval whose rows cannot be replaced (Invalid), before anything is planned.

        replaces: what is there, as in a Publication.
        """

    def disown(
        self,
        interval: Interval,
        replaces: tuple[int, Json] | None,
        head: Head,
        context: SinkContext,
        *,
        take_out: bool,
        look: bool = False,
    ) -> Disowned | None:
        """Let go of what an interval shows, since others have rewritten it, as the one commit right after `head`.

        take_out: find the rows by their values, and take them out. If not, they stay, or are gone by now. look: only
        tell. None: somebody else committed first. Rejected: what is there is as it was published.
        """
        raise Invalid(
            f"a sink of kind {self.kind} cannot let go of an interval's rows",
            expected="a DeltaAppend of an interval pipeline",
            help="mend the target as its own error says",
            reason="BY_INTERVAL",
        )

    def stages_in(self, context: SinkContext) -> Location | None:
        """The folder that Spark writes to and this process reads: both must see the same one. None: there is none."""
        return None

    @abstractmethod
    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        """Write the rows where nobody sees them, durably. Called once per attempt; attempts may overlap."""

    def ahead(
        self,
        frame: DataFrame,
        beside: Mapping[str, Column],
        context: SinkContext,
        staging: Staging,
        *,
        draft: Collection[str] | None = None,
    ) -> PrestagedRows | None:
        """Write the rows of an attempt before they are judged, with numbers beside each. None: it cannot, and has
        written nothing.

        draft: nearly all files are expected to be written anew, without bad rows; of these columns, which are texts,
            few are different.
        """
        return None

    def prepare_ahead(self, ahead: PrestagedRows, context: SinkContext, staging: Staging) -> Prepared:
        """The same as `prepare`, of rows that it has written ahead."""
        raise NotImplementedError

    def prepare_updates(
        self, frame: DataFrame, withdrawn: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        """`prepare` for a stream that replaces rows: keys of `withdrawn` that `frame` does not have are to go."""
        raise NotImplementedError

    @abstractmethod
    def head(self, context: SinkContext) -> Head:
        """Read where the target stands now."""

    @abstractmethod
    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        """Make the rows visible as the one commit right after `head`, tagged with the id.

        None: somebody else committed first, or the outcome is unclear; the caller reads `head` again.
        Unavailable: nothing is known; the caller retries. Corrupt: staged files are gone.
        """

    def trace(self, committables: Sequence[Json]) -> Json:
        """What a checkpoint's rows can be found by in the target, after its records are gone. Short."""
        raise NotImplementedError

    def holds(self, publication: Publication, head: Head, context: SinkContext) -> bool:
        """Whether the target as of `head` has had the commit of this publication, in an interval pipeline.

        Corrupt: its history does not tell any more.
        """
        raise NotImplementedError

    @abstractmethod
    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        """Where checkpoint `id` was published, if the target's history still tells."""

    def verify(self, at: PublishedTable, context: SinkContext) -> None:  # noqa: B027
        """Corrupt if the target's history no longer shows that publication, though it goes back that far.

        For rollbacks, reads of an older checkpoint and `doctor`: a table that was dropped and made again, or a
        version that was overwritten. A target without history has nothing to compare.
        """

    @abstractmethod
    def attempts(self, id: int, context: SinkContext) -> list[str]:
        """The attempts that have staged something for checkpoint `id`, by their folders' names."""

    @abstractmethod
    def discard(self, context: SinkContext, staging: Staging) -> None:
        """Remove what an attempt staged. Called only when no decision names it, nor ever can."""

    @abstractmethod
    def retire(self, context: SinkContext, staging: Staging) -> None:
        """Remove what the published attempt staged and the target does not name (an append: nothing)."""

    def skipped(self, id: int, context: SinkContext) -> bool:
        """Whether the target has gone past checkpoint `id` without it, for sure: then what was staged is of no use."""
        return False

    def forget(self, before: PublishedTable, context: SinkContext) -> None:  # noqa: B027
        """Let go of what the target's history says of times before that version: nobody asks for them any more.

        Only for tables that are tidegate's own. What a table keeps of its history is else its owner's business.
        """

    def gone(self, committables: Sequence[Json], context: SinkContext) -> list[str]:
        """Files of what was prepared, and is not published yet, that are missing or changed."""
        return []

    def way_back(
        self, to: int | None, known: PublishedTable | None, committables: Sequence[Json], context: SinkContext
    ) -> WayBack:
        """Whether the target can be put back to where it stood when entry `to` was the last one there (None: none was).

        known: where readers were told that it stood then. committables: of a state, what it held. Everything that
        is needed is looked at: versions, hashes, files.
        """
        return WayBack(problems=(f"a sink of kind {self.kind} cannot take back what it has published",))

    def go_back(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        """Make the target what it was, as `publication.restore` says, as the one commit right after `head`.

        It is committed even if nothing changes, for it fences whoever would still publish what no longer counts.
        Answers and errors are those of `publish`.
        """
        raise NotImplementedError


class ExactlyOnceSink(Sink):
    """Each row of a completed checkpoint is visible exactly once, whatever crashes."""


class AtLeastOnceSink(Sink):
    """Cannot take a publish back or recognise a repeated one: refused unless the pipeline's mode is at_least_once, or
    it says so by name."""
