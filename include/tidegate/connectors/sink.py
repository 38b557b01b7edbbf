"""The contract of a sink: prepare out of sight, publish after the decision, discard lost attempts.

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
    gone      before anyone relies on pending rows           yes: it stays unknown
    way_back  before a rollback, to show what it would do    yes: the rollback is refused
    forget    now and then, by retention                     yes: next time
    go_back   like publish, after a rollback's decision      yes: retried until it works

Only `prestage` and `prepare` see a Spark DataFrame. Everything else runs without a JVM, in milliseconds.

This is all that a sink may be asked for. A target with transactions needs far less: see `TransactionalSink`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from tidegate.errors import Invalid
from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable, Restored
from tidegate.renamed_hooks import SINK_HOOKS, refuse_old_hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from tidegate.connectors.prestaged import PrestagedRows
    from tidegate.delta import Location

__all__ = [
    "STAGED_FILES_GONE",
    "AtLeastOnceSink",
    "Disowned",
    "ExactlyOnceSink",
    "Head",
    "Prepared",
    "Publication",
    "RestorePlan",
    "Sink",
    "SinkContext",
    "Staging",
    "entry_folder",
]

STAGED_FILES_GONE = "STAGED_FILES_GONE"
"""The reason if files of a decided checkpoint are not there any more when it is published."""


@dataclass(frozen=True)
class SinkContext:
    """The identity of the publisher: it names this sink of this pipeline to its target, permanently."""

    pipeline: str
    uid: str
    sink: str
    place: Place
    by_interval: bool = False
    """True: an interval pipeline, in which a publication replaces the rows that its interval has published before."""
    home: str = ""
    """The pipeline's own folder, which holds its ledger, state and quarantine: an absolute path or URL."""
    spark: Callable[[], SparkSession] | None = field(default=None, compare=False, repr=False)
    """Returns a session for a sink whose target needs Spark to publish. None: this process has no Spark."""
    known_head: Head | None = None
    """The target's head, if the caller has read it just before: then `check` need not ask again what `head` refuses."""
    direct: bool = False
    """At least once: a job commits its rows itself, before the decision. This is separate from what is published after
    decisions: it has another transaction id, and folders that no clean-up touches, since tables may show their
    files."""

    @property
    def app_id(self) -> str:
        """Delta's txn app id. A pipeline that was started from scratch has a new uid, so its commits are never
        skipped."""
        return f"tidegate{'-through' if self.direct else ''}/{self.uid}/{self.sink}"

    @property
    def folder(self) -> str:
        """The folder inside the target that holds all staged files. Names that users choose contain no dot."""
        return f"tidegate/{self.uid}-{self.sink}{'.through' if self.direct else ''}"


@dataclass(frozen=True)
class Staging:
    """One attempt of one job. All of this is part of the names of the folders to which it writes."""

    checkpoint: int
    attempt: str
    interval: Interval | None = None
    """In an interval pipeline: the interval of these rows."""
    on_open_base: bool = field(default=False, compare=False)
    """True: the checkpoint that this one builds on is not decided yet, so targets do not have its rows."""

    def folder(self, context: SinkContext) -> str:
        """Return the folder inside the target in which this attempt stages: a plain name (Spark and VACUUM skip '_' and
        '.') that no other attempt of any pipeline uses. All attempts of one checkpoint are in one folder, so that
        cleaning up never has to list the whole table."""
        return f"{entry_folder(context, self.checkpoint)}/{self.attempt}"

    def data_folder(self, context: SinkContext) -> str:
        """Return the folder for the attempt's data. In an interval pipeline it has the interval's name."""
        folder = self.folder(context)
        return folder if self.interval is None else f"{folder}/{self.interval.key}"


def entry_folder(context: SinkContext, checkpoint: int) -> str:
    """Return the folder inside the target that holds every attempt's staged files for one checkpoint."""
    return f"{context.folder}/{checkpoint:08d}"


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`. `committable` is plain JSON. None: there is nothing to publish."""

    committable: Json | None
    rows: int
    bytes: int = 0
    files: int = 0


@dataclass(frozen=True)
class Head:
    """A target's state at one moment: read first, compared and swapped by `publish`."""

    version: int | None
    """The target's own version. None: there is no table yet."""
    last_entry: int | None
    """The last entry of this pipeline that was published here. None: none yet."""
    opened: object = field(default=None, compare=False, repr=False)
    """The target as the sink opened it for this, so that further questions about this moment need no second look."""


@dataclass(frozen=True)
class Publication:
    """The publication of checkpoint `id` to one table: everything that `publish` may use."""

    id: int
    generation: int
    attempt: str
    previous: int | None
    committables: tuple[Json, ...] = field(repr=False)
    interval: Interval | None = None
    """In an interval pipeline: the interval of these rows. They replace its rows in the target."""
    replaces: tuple[int, Json] | None = None
    """The checkpoint whose rows of the interval are in the target, and their trace. None: none of this pipeline."""
    restore: Restored | None = None
    """For a rollback: how it restores this target."""
    target: int = 0
    """For a rollback: the checkpoint that it returns to."""
    direct: bool = False
    """At least once, from a job: another attempt's commit under the same id does not replace this one."""


@dataclass(frozen=True)
class Disowned:
    """An interval's rows in a target that were disowned: the next publication of the interval does not replace them."""

    version: int | None
    """The target's version that records it. None: it was only a dry run."""
    rows: int
    """The number of removed rows: 0 if they stay as they are."""
    files: int
    """The number of removed files."""


@dataclass(frozen=True)
class RestorePlan:
    """Facts about one target that a rollback needs before it is decided."""

    exists: bool = True
    """False: this pipeline has never published anything there, so there is nothing to restore."""
    not_published_yet: bool = False
    """True: the checkpoint to return to has not been published to this target yet."""
    target_version: PublishedTable | None = None
    """The target's version as of that checkpoint. None: the target was created later, and would be empty."""
    version: int | None = None
    """The target's current version."""
    foreign_commits: tuple[str, ...] = ()
    """Commits of others since then."""
    problems: tuple[str, ...] = ()
    """The reasons why it cannot go back."""
    not_separable_reason: str = ""
    """The reason why this pipeline's rows cannot be separated from those of others. Empty: they can."""
    rows_stay_reason: str = ""
    """The reason why the target keeps the rows that it was given since. Empty: it can be restored."""


class Sink(ABC):
    """A target that takes part in checkpoints. Use ExactlyOnceSink or AtLeastOnceSink, never this."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        refuse_old_hooks(cls, SINK_HOOKS)

    kind: ClassVar[str]

    @abstractmethod
    def target(self, place: Place) -> str:
        """Return the target as one absolute string. Two sinks on one target are refused."""

    def shared_uri(self, place: Place) -> str | None:
        """Return the target's address as others write it, such as s3://bucket/tables/revenue, without asking the
        target. None: it has none that all write alike."""
        return None

    def shadow(self, folder: str) -> Sink | None:
        """Return this sink with a table of its own in a folder inside the real target, for a backfill. None: it cannot
        have one, so backfills leave its target as it is.

        Then `create_shadow`, `promote_shadow` and `drop_shadow` are implemented.
        """
        return None

    def create_shadow(self, shadow: Sink, since: PublishedTable | None, context: SinkContext, own: SinkContext) -> None:
        """Make the shadow's table as a backfill that begins at `since` needs it. None: the target had no rows then.

        context, own: that of the target, and that of the shadow. Repeatable.
        """
        raise NotImplementedError

    def promote_shadow(
        self, shadow: Sink, since: PublishedTable | None, context: SinkContext, own: SinkContext
    ) -> Json | None:
        """Return the committable by which `restore` to `since` also makes the target show what the shadow does. It
        names the shadow's own files. None: nothing is to be added or removed."""
        raise NotImplementedError

    def drop_shadow(self, shadow: Sink, brought: Sequence[Json], context: SinkContext) -> None:
        """Remove a shadow's files, but for those that these committables of `promote_shadow` name. Repeatable.

        Called once nobody publishes to the shadow any more that counts.
        """
        raise NotImplementedError

    def relative_path(self) -> str | None:
        """Return the target's path if it is relative to the setting `data`: readers then find it after the project is
        moved."""
        return None

    @abstractmethod
    def describe(self) -> Json:
        """Return the configuration, for fingerprints and `explain`, without secrets."""

    def problems(self) -> list[str]:
        """Return all problems of the declaration. Called when the pipeline is validated."""
        return []

    wants_retractions: bool = True
    """True: it uses the rows that a stream's new rows replace."""

    can_publish_directly: ClassVar[bool] = False
    """True: at least once, a job may `publish` its rows itself, before the decision (SinkContext.through). Otherwise
    they are published after it, as in any other pipeline."""

    counts_input_rows: ClassVar[bool] = False
    """True: `Prepared` counts exactly the rows that were passed to `prepare`."""

    upserts: Sequence[str] = ()
    """The columns by which its rows replace others. Empty: rows are never replaced."""

    @property
    def deletes_in_order(self) -> tuple[Sequence[str], str] | None:
        """Columns by which late rows are told, and the SQL condition of rows that remove others, if it has both: then
        only rows reach it that are not older than a removal of their key. None: it does not depend on that."""
        return None

    def update_problems(self, stream: str) -> list[str]:
        """Return the reasons why it cannot take a stream that replaces rows. If the list is empty, it
        implements `prepare_with_retractions`."""
        return [
            f"it adds rows, but {stream} replaces rows that it returned before: use DeltaUpsert with keys, "
            "or DeltaAppend(…, changelog=True) for a row of each change"
        ]

    def interval_problems(self) -> list[str]:
        """Return the reasons why this sink cannot serve an interval pipeline. Empty: it can replace exactly one
        interval's rows.

        Then `publish` accepts publications with an interval, in any order of ids; `prepare` returns a committable
        even if there are no rows; and `trace` and `has_publication` are implemented.
        """
        return ["it cannot replace the rows of one interval: use DeltaAppend"]

    def rows_stay_reason(self) -> str:
        """Return the reason why a rollback cannot take rows out of the target again. Empty: it can."""
        return ""

    @abstractmethod
    def check(self, context: SinkContext) -> None:
        """Raise Invalid if publishing to the target is not safe. Called before anything is planned."""

    def check_output(self, frame: DataFrame, context: SinkContext) -> None:  # noqa: B027
        """Raise Invalid if the target cannot take rows with these columns. The frame has no rows; nothing is written,
        and no query runs."""

    def test_store(self, context: SinkContext) -> None:  # noqa: B027
        """Raise Invalid for a store on which two publishers could both succeed. Called once for each object store."""

    def check_interval(  # noqa: B027
        self, interval: Interval, replaces: tuple[int, Json] | None, context: SinkContext
    ) -> None:
        """Raise Invalid if the rows of an interval cannot be replaced. Called before anything is planned.

        replaces: the current rows of the interval, as in a Publication.
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
        """Disown the rows of an interval, since others have rewritten them, in the one commit right after `head`.

        take_out: find the rows by their values, and remove them. Otherwise they stay, or are already gone. look: only
        report. Return None if somebody else committed first. Raise Rejected if the rows are as they were published.
        """
        raise Invalid(
            f"a sink of kind {self.kind} cannot disown an interval's rows",
            expected="a DeltaAppend of an interval pipeline",
            help="repair the target as its own error says",
            reason="BY_INTERVAL",
        )

    def delta_table(self, context: SinkContext) -> Location | None:
        """Return the Delta table that it publishes to; None: its target is none."""
        return None

    def staging_folder(self, context: SinkContext) -> Location | None:
        """Return the folder that Spark writes and this process reads: both must see the same one. None: there is
        none."""
        return None

    @abstractmethod
    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        """Write the rows durably where nobody sees them. Called once per attempt; attempts may overlap."""

    def prestage(
        self,
        frame: DataFrame,
        beside: Mapping[str, Column],
        context: SinkContext,
        staging: Staging,
        *,
        draft: Collection[str] | None = None,
    ) -> PrestagedRows | None:
        """Write the rows of an attempt before they are judged, with mark columns. None: it cannot, and has written
        nothing.

        beside: the mark columns, whole numbers, by name.
        draft: nearly all files are expected to be rewritten without bad rows. It names the text columns that have few
            different values.
        """
        return None

    def prepare_prestaged(self, ahead: PrestagedRows, context: SinkContext, staging: Staging) -> Prepared:
        """Do the same as `prepare` for rows that `prestage` has written."""
        raise NotImplementedError

    def prepare_with_retractions(
        self, frame: DataFrame, retractions: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        """Do the same as `prepare` for a stream that replaces rows. Rows with keys of `retractions` that are not in
        `frame` must be removed."""
        raise NotImplementedError

    @abstractmethod
    def head(self, context: SinkContext) -> Head:
        """Read the target's current version."""

    @abstractmethod
    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        """Make the rows visible as the one commit right after `head`, tagged with the id.

        None: somebody else may have committed first; the caller reads `head` again, and so finds out whether this
        commit has landed. Unavailable: the target did not answer; the caller retries. Corrupt: staged files are gone.
        """

    def trace(self, committables: Sequence[Json]) -> Json:
        """Return a short trace by which a checkpoint's rows can be recognised in the target after its records are
        gone."""
        raise NotImplementedError

    def has_publication(self, publication: Publication, head: Head, context: SinkContext) -> bool:
        """Return whether the target as of `head` contains the commit of this publication, in an interval pipeline.

        Raise Corrupt if its history no longer shows it.
        """
        raise NotImplementedError

    @abstractmethod
    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        """Return where checkpoint `id` was published, if the target's history still shows it."""

    def verify(self, at: PublishedTable, context: SinkContext) -> None:  # noqa: B027
        """Raise Corrupt if the target's history reaches back to that publication, but does not contain it.

        Used by rollbacks, reads of an older checkpoint and `doctor`. It finds a table that was dropped and created
        again, or a version that was overwritten. A target without history has nothing to compare.
        """

    @abstractmethod
    def attempts(self, id: int, context: SinkContext) -> list[str]:
        """Return the attempts that have staged files for checkpoint `id`, by the names of their folders."""

    @abstractmethod
    def discard(self, context: SinkContext, staging: Staging) -> None:
        """Remove what an attempt staged. Called only if no decision names it, nor ever will."""

    @abstractmethod
    def retire(self, context: SinkContext, staging: Staging) -> None:
        """Remove what the published attempt staged and the target does not use (for an append, nothing)."""

    def has_skipped(self, id: int, context: SinkContext) -> bool:
        """Return whether the target has definitely gone past checkpoint `id` without it: its staged files are then
        useless."""
        return False

    def delete_history(self, before: PublishedTable, context: SinkContext) -> None:  # noqa: B027
        """Delete the target's history before that version: nothing needs it any more.

        This is only for tidegate's own tables. The owner of any other table decides how much history to keep.
        """

    def missing_files(self, committables: Sequence[Json], context: SinkContext) -> list[str]:
        """Return the files that were prepared and not published yet, and that are missing or changed."""
        return []

    def restore_plan(
        self, to: int | None, known: PublishedTable | None, committables: Sequence[Json], context: SinkContext
    ) -> RestorePlan:
        """Return whether and how the target can be restored to its state when entry `to` was the last one there (None:
        when there was none).

        known: the version that was reported to readers at that time. committables: for a state, its content then. All
        that a rollback needs is checked: versions, hashes, files.
        """
        return RestorePlan(problems=(f"a sink of kind {self.kind} cannot take back what it has published",))

    def restore(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        """Restore the target as `publication.restore` says, in the one commit right after `head`.

        It commits even if nothing changes, because the commit fences publishers of checkpoints that no longer count.
        Results and errors are those of `publish`.
        """
        raise NotImplementedError


class ExactlyOnceSink(Sink):
    """Each row of a completed checkpoint is visible exactly once, whatever crashes."""


class AtLeastOnceSink(Sink):
    """A sink that cannot undo a publish or recognise a repeated one. It is refused unless the pipeline's mode is
    at_least_once, or names it."""
