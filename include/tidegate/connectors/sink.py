"""The contract of a sink: stage rows invisibly, publish them after the decision, discard lost attempts.

    call             when                                          if it fails
    check            before a checkpoint is planned                the checkpoint is declined
    test_store       once for each object store                    the checkpoint is declined
    declared_rules   when a checkpoint is planned, or in a job     the checkpoint is declined, or the attempt retried
    row_rules        in a job, before rows are judged or staged    the attempt is retried
    prestage         in a job, before a gate judges the rows       the job judges and prepares the rows without it
    prepare          in a job, once per attempt; attempts may      the attempt is retried
                     run twice or overlap
    head             before each publish                           retried until it succeeds
    has_publication  before each publish of an interval            retried until it succeeds
    publish          after the decision, in any process, any       retried until it succeeds
                     number of times
                     in at-least-once mode: in a job, once per     the attempt is retried
                     attempt
    trace            after an interval is published                must not fail
    disown           when a person releases a stuck interval       nothing changes
    locate           after a publish whose answer was lost         readers wait until the version is known
    verify           before anyone relies on a published version   raises Corrupt
    attempts         when an entry is cleaned up                   the clean-up is retried later
    has_skipped      when an entry is cleaned up                   the clean-up is retried later
    discard          after an abort or a lost attempt              an orphaned file remains; no data is lost
    retire           in retention, long after the publish          an orphaned file remains; no data is lost
    divide           when a person diverts rows that the        nothing changes
                     target refuses
    missing_files    before anyone relies on pending rows          it remains unknown whether files are missing
    restore_plan     before a rollback, to preview it              the rollback is refused
    restore          like publish, after a rollback's decision     retried until it succeeds
    delete_history   occasionally, in retention                    retried later

Only `prestage`, `check_output` and the `prepare` methods get a Spark DataFrame. All other calls run without a JVM, and
must take milliseconds.

This is the full contract. A target with transactions needs far less of it: see `TransactionalSink`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from tidegate.connectors.row_rules import DeclaredRules
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
    from tidegate.delta.dividing import Divided, Division

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
    "TableDescription",
    "entry_folder",
]

STAGED_FILES_GONE = "STAGED_FILES_GONE"
"""Reason code: files of a decided checkpoint no longer exist when it is to be published."""


@dataclass(frozen=True)
class SinkContext:
    """Identifies one sink of one pipeline to its target, permanently, and says where it works."""

    pipeline: str
    uid: str
    sink: str
    place: Place
    by_interval: bool = False
    """True: an interval pipeline, in which a publication replaces the rows published earlier for the same interval."""
    home: str = ""
    """The pipeline's folder for its ledger, state and quarantine: an absolute path or URL."""
    spark: Callable[[], SparkSession] | None = field(default=None, compare=False, repr=False)
    """Returns a session, for a sink that needs Spark to publish. None: this process has no Spark."""
    known_head: Head | None = None
    """The target's head, if the caller has just read it, so that `check` need not repeat the checks of `head`."""
    direct: bool = False
    """True in at-least-once mode, where a job commits its rows itself, before the decision.

    Direct commits are kept separate from publications: they have another transaction id, and folders that no clean-up
    touches, since tables may show their files.
    """

    @property
    def app_id(self) -> str:
        """Delta's txn app id. A pipeline that starts from scratch has a new uid, so its commits are never skipped as
        already done."""
        return f"tidegate{'-through' if self.direct else ''}/{self.uid}/{self.sink}"

    @property
    def folder(self) -> str:
        """The folder inside the target that holds all staged files. User-chosen names contain no dot, so the suffix is
        unambiguous."""
        return f"tidegate/{self.uid}-{self.sink}{'.through' if self.direct else ''}"


@dataclass(frozen=True)
class Staging:
    """One attempt of one job. The names of its folders are made of these fields."""

    checkpoint: int
    attempt: str
    interval: Interval | None = None
    """In an interval pipeline: the interval of the rows."""
    on_open_base: bool = field(default=False, compare=False)
    """True: the base checkpoint is still undecided, so targets do not have its rows yet."""

    def folder(self, context: SinkContext) -> str:
        """Return the folder inside the target in which this attempt stages. No other attempt of any pipeline uses it.

        No part of it begins with '_' or '.', which Spark and VACUUM skip. All attempts of a checkpoint share a parent
        folder, so that cleaning up never has to list the whole table.
        """
        return f"{entry_folder(context, self.checkpoint)}/{self.attempt}"

    def data_folder(self, context: SinkContext) -> str:
        """Return the folder for the attempt's data files. In an interval pipeline it is named after the interval."""
        folder = self.folder(context)
        if self.interval is None:
            return folder
        return f"{folder}/{self.interval.key}"


def entry_folder(context: SinkContext, checkpoint: int) -> str:
    """Return the folder inside the target that holds the staged files of all attempts at a checkpoint."""
    return f"{context.folder}/{checkpoint:08d}"


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`."""

    committable: Json | None
    """What `publish` needs to make the rows visible. None: nothing to publish."""
    rows: int
    bytes: int = 0
    files: int = 0


@dataclass(frozen=True)
class Head:
    """A target's state at one moment. `publish` commits only if it is still current (compare-and-swap)."""

    version: int | None
    """The target's own version. None: the table does not exist yet."""
    last_entry: int | None
    """The last entry that this pipeline has published here. None: none yet."""
    begun: int | None = None
    """The entry of which the target holds a part: it takes a large one in several transactions. None: there is none."""
    opened: object = field(default=None, compare=False, repr=False)
    """The sink's handle on the target as it was then, so that further questions about that moment need no requests."""


@dataclass(frozen=True)
class Publication:
    """The publication of checkpoint `id` to one target: all that `publish` needs to know."""

    id: int
    generation: int
    attempt: str
    previous: int | None
    committables: tuple[Json, ...] = field(repr=False)
    interval: Interval | None = None
    """In an interval pipeline: the interval whose rows in the target are replaced by these."""
    replaces: tuple[int, Json] | None = None
    """The checkpoint whose rows of the interval are in the target now, and their trace. None: no rows of this pipeline
    are."""
    restore: Restored | None = None
    """For a rollback: how to restore this target."""
    target: int = 0
    """For a rollback: the checkpoint that it returns to."""
    direct: bool = False
    """At-least-once mode, from a job: a commit by another attempt under the same id does not count as this one."""
    diverts: bool = False
    """Whether the checkpoint is published in place of others that wait, of which it leaves rows out."""


@dataclass(frozen=True)
class Disowned:
    """The result of disowning an interval's rows in a target: the interval's next publication will not replace them."""

    version: int | None
    """The target's version that records it. None: a dry run."""
    rows: int
    """The number of removed rows, 0 if the rows stay."""
    files: int
    """The number of removed files."""


@dataclass(frozen=True)
class RestorePlan:
    """Facts about one target that a rollback needs before it is decided."""

    exists: bool = True
    """False: this pipeline has never published there, so nothing has to be restored."""
    not_published_yet: bool = False
    """True: the checkpoint to return to has not been published to this target yet."""
    target_version: PublishedTable | None = None
    """The target's version at that checkpoint. None: the target was created later, so it would become empty."""
    version: int | None = None
    """The target's current version."""
    foreign_commits: tuple[str, ...] = ()
    """Commits since then that are not this pipeline's."""
    problems: tuple[str, ...] = ()
    """The reasons why it cannot be restored."""
    not_separable_reason: str = ""
    """The reason why this pipeline's rows cannot be distinguished from those of other writers. Empty if they can."""
    rows_stay_reason: str = ""
    """The reason why rows published since then remain in the target. Empty if they can be removed."""


@dataclass(frozen=True)
class TableDescription:
    """What a table and its columns are, in words, for a table that a sink creates."""

    table: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    """By path: `address.city`, and `lines.element.sku` for a field of what an array holds."""


class Sink(ABC):
    """A target that takes part in checkpoints. Subclass ExactlyOnceSink or AtLeastOnceSink, never Sink itself."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        refuse_old_hooks(cls, SINK_HOOKS)

    kind: ClassVar[str]

    @abstractmethod
    def target(self, place: Place) -> str:
        """Return a string that identifies the target globally. A pipeline may not have two sinks with the same
        target."""

    def shared_uri(self, place: Place) -> str | None:
        """Return a standard address of the target, such as s3://bucket/tables/revenue, without connecting to it. None:
        no standard form exists. It is the URI of an Airflow asset, so that other DAGs can refer to the same table."""
        return None

    def shadow(self, folder: str) -> Sink | None:
        """Return a copy of this sink that writes to a separate table in a folder inside the target, for a backfill.

        A sink that supports this also implements `create_shadow`, `promote_shadow` and `drop_shadow`. None: it does
        not, so backfills leave its target unchanged.
        """
        return None

    def create_shadow(
        self, shadow: Sink, since: PublishedTable | None, context: SinkContext, shadow_context: SinkContext
    ) -> None:
        """Create the shadow's table for a backfill that begins at the target's version `since`. Must be idempotent.

        since: None if the target had no rows then. context: the target's.
        """
        raise NotImplementedError

    def promote_shadow(
        self, shadow: Sink, since: PublishedTable | None, context: SinkContext, shadow_context: SinkContext
    ) -> Json | None:
        """Return the committable with which `restore` to `since` also adds the shadow's rows to the target.

        It refers to the shadow's files, without copying them. None: no rows are to be added or removed.
        """
        raise NotImplementedError

    def drop_shadow(self, shadow: Sink, promoted: Sequence[Json], context: SinkContext) -> None:
        """Remove a shadow's files, except those named in `promoted`: results of `promote_shadow`. Must be idempotent.

        Called when no publication to the shadow counts any more.
        """
        raise NotImplementedError

    def relative_path(self) -> str | None:
        """Return the target's path if it is relative to the setting `data`, so that readers find it after the project
        has moved."""
        return None

    @abstractmethod
    def describe(self) -> Json:
        """Return the configuration, for fingerprints and `explain`, without secrets."""

    def problems(self) -> list[str]:
        """Return all problems of the declaration, for the validation of the pipeline."""
        return []

    described_by: Callable[[Place], TableDescription] | None = None
    """Returns the description of the target that `stream.sink(…, contract=…)` gives it."""

    wants_retractions: bool = True
    """True: the sink uses retractions, the rows that a stream's new rows replace."""

    can_publish_directly: ClassVar[bool] = False
    """True: in at-least-once mode, a job may `publish` its rows itself, before the decision (`SinkContext.direct`).
    Otherwise they are published after it, as in any other pipeline."""

    counts_input_rows: ClassVar[bool] = False
    """True: `Prepared.rows` is exactly the number of rows passed to `prepare`."""

    upserts: Sequence[str] = ()
    """The key columns by which its rows replace earlier rows. Empty: rows are only added."""

    @property
    def deletes_in_order(self) -> tuple[Sequence[str], str] | None:
        """The columns that order the rows of a key, and the SQL condition of rows that delete their key, if it has
        both.

        The pipeline then drops rows that are older than a deletion of their key. None: the sink does not need that.
        """
        return None

    def update_problems(self, stream: str) -> list[str]:
        """Return the reasons why it cannot take a stream with retractions. A sink without such reasons must implement
        `prepare_with_retractions`."""
        return [
            f"it adds rows, but {stream} replaces rows that it returned before: use DeltaUpsert with keys, "
            "or DeltaAppend(…, changelog=True) for a row of each change"
        ]

    def interval_problems(self) -> list[str]:
        """Return the reasons why this sink cannot be used in an interval pipeline.

        A sink without such reasons must be able to replace the rows of exactly one interval: `publish` accepts
        publications with an interval, in any order of ids; `prepare` returns a committable even for no rows; `trace`
        and `has_publication` are implemented.
        """
        return ["it cannot replace the rows of one interval: use DeltaAppend"]

    def rows_stay_reason(self) -> str:
        """Return the reason why a rollback cannot remove published rows from the target. Empty if it can."""
        return ""

    def divide(self, committable: Json, division: Division, context: SinkContext, staging: Staging) -> Divided:
        """Take rows out of what a checkpoint has staged, because the target refuses them. Return the rest, and them.

        What was staged stays as it is: rows are left out of new files, in the folder of `staging`.
        """
        from tidegate.delta.dividing import not_divisible

        raise not_divisible(context.sink, f"a sink of kind {self.kind} cannot give back rows that it has staged")

    @abstractmethod
    def check(self, context: SinkContext) -> None:
        """Raise Invalid if it is not safe to publish to the target. Called before anything is planned."""

    def check_output(self, frame: DataFrame, context: SinkContext) -> None:  # noqa: B027
        """Raise Invalid if the target cannot take rows with these columns. The frame is empty. The check must write
        nothing and run no query."""

    def declared_rules(self, place: Place) -> Json | None:
        """Return what the target declares about single rows now, such as constraints, as small plain JSON.

        It is stored with the plan if refused rows go to quarantine, so that all attempts judge by the same. None:
        nothing, or the target does not exist yet.
        """
        return None

    def row_rules(self, columns: Json, declared: Json | None) -> DeclaredRules:
        """Return the rules that rows must keep for the target to accept them.

        columns: the rows' schema in Spark's JSON form. declared: a result of `declared_rules`. A sink that implements
        this also refuses such rows in `prepare`, because the target may have changed since.
        """
        return DeclaredRules()

    def test_store(self, context: SinkContext) -> None:  # noqa: B027
        """Raise Invalid if two publishers could both succeed on this object store. Called once for each store."""

    def check_interval(  # noqa: B027
        self, interval: Interval, replaces: tuple[int, Json] | None, context: SinkContext
    ) -> None:
        """Raise Invalid if the rows of an interval cannot be replaced. Called before anything is planned.

        replaces: see `Publication.replaces`.
        """

    def disown(
        self,
        interval: Interval,
        replaces: tuple[int, Json] | None,
        head: Head,
        context: SinkContext,
        *,
        take_out: bool,
        dry_run: bool = False,
    ) -> Disowned | None:
        """Disown the rows of an interval that another writer has rewritten, in the commit directly after `head`.

        Return None if another commit came first. Raise Rejected if the rows are still as they were published.

        take_out: find the rows by their values and remove them. Otherwise they stay as they are.
        dry_run: only report.
        """
        raise Invalid(
            f"a sink of kind {self.kind} cannot disown an interval's rows",
            expected="a DeltaAppend of an interval pipeline",
            help="repair the target as its own error says",
            reason="BY_INTERVAL",
        )

    def delta_table(self, context: SinkContext) -> Location | None:
        """Return the Delta table that it publishes to, or None if its target is not a Delta table."""
        return None

    def staging_folder(self, context: SinkContext) -> Location | None:
        """Return the folder that Spark writes and this process reads, so that a check can prove both see the same one.
        None: the sink has no such folder."""
        return None

    @abstractmethod
    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        """Write the rows durably but invisibly. Called once per attempt; attempts may overlap."""

    def prestage(
        self,
        frame: DataFrame,
        mark_columns: Mapping[str, Column],
        context: SinkContext,
        staging: Staging,
        *,
        draft: Collection[str] | None = None,
    ) -> PrestagedRows | None:
        """Write the rows of an attempt before a gate judges them, with the gate's mark columns.

        Return None if the sink does not support this. Nothing has been written then.

        mark_columns: columns of whole numbers, by name.
        draft: set if nearly all files are expected to be rewritten without bad rows. The text columns with few
            distinct values.
        """
        return None

    def prepare_prestaged(self, prestaged: PrestagedRows, context: SinkContext, staging: Staging) -> Prepared:
        """Like `prepare`, for rows that `prestage` has already written."""
        raise NotImplementedError

    def prepare_with_retractions(
        self, frame: DataFrame, retractions: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        """Like `prepare`, for a stream with retractions. Keys in `retractions` that are not in `frame` must be
        removed."""
        raise NotImplementedError

    @abstractmethod
    def head(self, context: SinkContext) -> Head:
        """Read the target's current version."""

    @abstractmethod
    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        """Make the rows visible in the commit directly after `head`, tagged with the checkpoint's id.

        Return None if another commit may have come first. The caller reads `head` again, which shows whether this
        commit succeeded. Raise Unavailable if the target does not answer, so that the caller retries, and Corrupt if
        staged files are missing.
        """

    def trace(self, committables: Sequence[Json]) -> Json:
        """Return a short trace that identifies a checkpoint's rows in the target after its records have been
        deleted."""
        raise NotImplementedError

    def has_publication(self, publication: Publication, head: Head, context: SinkContext) -> bool:
        """Return whether the target at `head` contains this publication of an interval pipeline.

        Raise Corrupt if the target's history no longer reaches back far enough to show it.
        """
        raise NotImplementedError

    @abstractmethod
    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        """Return where checkpoint `id` was published, or None if the target's history does not show it."""

    def verify(self, published: PublishedTable, context: SinkContext) -> None:  # noqa: B027
        """Raise Corrupt if the target's history reaches back to that publication but does not contain it.

        Rollbacks, reads of an older checkpoint and `doctor` use this to detect a table that was dropped and created
        again, or a version that was overwritten. A target without history has nothing to compare.
        """

    @abstractmethod
    def attempts(self, id: int, context: SinkContext) -> list[str]:
        """Return the attempts that have staged files for checkpoint `id`, found by the names of their folders."""

    @abstractmethod
    def discard(self, context: SinkContext, staging: Staging) -> None:
        """Remove the files that an attempt staged. Called only if no decision names the attempt or ever will."""

    @abstractmethod
    def retire(self, context: SinkContext, staging: Staging) -> None:
        """Remove the files of a published attempt that the target does not use. After an append it uses all of them."""

    def has_skipped(self, id: int, context: SinkContext) -> bool:
        """Return whether the target has definitely passed checkpoint `id` without publishing it, so that its staged
        files are useless."""
        return False

    def delete_history(self, before: PublishedTable, context: SinkContext) -> None:  # noqa: B027
        """Delete the target's history before that version, which nothing needs any more.

        Only tidegate's own tables do this. For any other table, the owner decides how much history to keep.
        """

    def missing_files(self, committables: Sequence[Json], context: SinkContext) -> list[str]:
        """Return those files of unpublished committables that are missing or changed."""
        return []

    def restore_plan(
        self, to: int | None, reported: PublishedTable | None, committables: Sequence[Json], context: SinkContext
    ) -> RestorePlan:
        """Return whether and how the target can be restored to its content after entry `to` (None: before the first).

        Checks all that a rollback relies on: versions, hashes and files.

        reported: the version that was reported to readers at that time. committables: for a state, its content then.
        """
        return RestorePlan(problems=(f"a sink of kind {self.kind} cannot undo what it has published",))

    def restore(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        """Restore the target as `publication.restore` says, in the commit directly after `head`.

        It must commit even if nothing changes: the commit fences publishers of checkpoints that no longer count.
        Results and errors are those of `publish`.
        """
        raise NotImplementedError


class ExactlyOnceSink(Sink):
    """A sink in which each row of a completed checkpoint becomes visible exactly once, despite any crash."""


class AtLeastOnceSink(Sink):
    """A sink that cannot undo a publication or recognise a repeated one. It is refused unless the pipeline's mode is
    at_least_once or names the sink."""
