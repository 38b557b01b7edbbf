"""The base of sinks whose target is not a Delta table, but has transactions: a database, a broker.

A job stages the rows as Parquet files, in the pipeline's own folder. After the decision they are loaded into the target
in one transaction, together with a mark: the number of the checkpoint. No transaction is open while a job runs, and
none before the decision, so none can time out, and none has to be taken back.

A subclass says what its target is, which checkpoint its mark names, and how to load rows. All else has a default.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate import seams
from tidegate.connectors.sink import (
    STAGED_FILES_GONE,
    ExactlyOnceSink,
    Head,
    Prepared,
    Publication,
    RestorePlan,
    SinkContext,
    Staging,
    entry_folder,
)
from tidegate.delta import Location, StagedFile, missing_files, sync_and_list
from tidegate.errors import Corrupt, Invalid
from tidegate.records import typed
from tidegate.records.records import Json, PublishedTable, Struct
from tidegate.renamed_hooks import TRANSACTIONAL_SINK_HOOKS, refuse_old_hooks
from tidegate.spark.frame_facts import empty_like
from tidegate.spark.storage.writing import write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["StagedPart", "StagedRows", "TransactionalSink"]

_ROWS, _REMOVED = "rows", "removed"
_BATCH_ROWS = 8_192
"""Few, so that the target takes one batch while the next one is read."""


class StagedPart(Struct, frozen=True, kw_only=True):
    """A committable: the files that one attempt of one job staged."""

    columns: Json
    """The schema in Spark's JSON form."""
    files: list[StagedFile]
    """Files with rows to add."""
    notes: Json = {}
    """What the sink needs to know of the rows when it loads them, and the files do not tell."""
    removed_columns: Json | None = None
    removed: list[StagedFile] = []
    """Files with the rows whose keys must be removed, for a stream that replaces rows."""


@dataclass(frozen=True)
class StagedRows:
    """The rows of one checkpoint for one target."""

    checkpoint: int
    """The number that the target's mark has once the rows are loaded."""
    after: int | None
    """The number that the mark must have before. None: there is no mark yet."""
    attempt: str
    """Who loads them: a random name, for logs and traces."""
    location: Location
    parts: tuple[StagedPart, ...] = field(repr=False)

    @property
    def count(self) -> int:
        """The number of rows to add."""
        return sum(file.rows for part in self.parts for file in part.files)

    @property
    def removed_count(self) -> int:
        """The number of rows whose keys must be removed."""
        return sum(file.rows for part in self.parts for file in part.removed)

    @property
    def columns(self) -> Json | None:
        """The schema of the rows in Spark's JSON form. None: there are no rows."""
        return next((part.columns for part in self.parts), None)

    def split_by_part(self) -> Iterator[StagedRows]:
        """Yield the rows of each committable by themselves, oldest first: a key may be in several of them."""
        return (replace(self, parts=(part,)) for part in self.parts)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows to add, always in the same order. columns: only these."""
        for part in self.parts:
            yield from self._read(part.files, columns)

    def tuples(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield the rows to add as Python tuples, for a driver that takes no Arrow. columns: only these, in this
        order."""
        for batch in self.batches(columns):
            names = columns or batch.schema.names
            yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)

    def removed_batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows whose keys must be removed before the others are added."""
        for part in self.parts:
            yield from self._read(part.removed, columns)

    def _read(self, files: Sequence[StagedFile], columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        for staged in files:
            with self.location.open(staged.path) as source, pq.ParquetFile(source) as file:
                yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)


class TransactionalSink(ExactlyOnceSink):
    """A target that takes a checkpoint's rows and its number in one transaction.

        kind       a word for the target, such as "postgres"
        describe   the configuration, without secrets
        target     the target as one text: two sinks on one target are refused
        last       which checkpoint does the target's mark name?
        load       add the rows and move the mark, in one transaction

    The mark belongs to `context.app_id`, which names this sink of this pipeline permanently.
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        refuse_old_hooks(cls, TRANSACTIONAL_SINK_HOOKS)

    @property
    def wants_retractions(self) -> bool:  # type: ignore[override]
        """Where rows replace others by key, those that are gone have to be removed."""
        return bool(self.upserts)

    # --- what a subclass says -------------------------------------------------------------------------------

    @abstractmethod
    def last(self, context: SinkContext) -> int | None:
        """Return the number of the last checkpoint that was loaded into the target, by the target's own mark. None:
        there is no mark. Raise Unavailable if the target does not answer."""

    @abstractmethod
    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        """Add the rows to the target and set its mark to `rows.checkpoint`, in one transaction.

        Return False, and change nothing, unless the mark is `rows.after` inside that transaction: somebody else was
        faster. A second loader must wait or fail, not get in between. Raise Unavailable if the target does not answer,
        also if it is unknown whether the transaction has been committed: the mark is then read again.
        """

    def output_problems(self, schema: Json, context: SinkContext) -> list[str]:
        """Return the reasons why the target cannot take rows with this schema (in Spark's JSON form). Called by a job
        before anything is staged."""
        return []

    def staged_form(self, frame: DataFrame, context: SinkContext) -> DataFrame:
        """Return the rows as they are to be staged: as the user's code made them, unless the target needs another
        form that Spark had better make."""
        return frame

    def staged_partitions(self) -> Sequence[str]:
        """Return the columns whose values become folders of the staged files."""
        return ()

    def notes(self, frame: DataFrame) -> Json:
        """Return what `load` needs to know of the rows, and the staged files do not tell: small, plain JSON."""
        return {}

    def settled(self, staged: StagedPart, context: SinkContext, staging: Staging) -> StagedPart:
        """Return what is to be loaded of the rows that Spark has staged: all of it, unless the target cannot take two
        rows with one key, for example."""
        return staged

    def removed_form(self, removed: DataFrame, staged: DataFrame, context: SinkContext) -> DataFrame:
        """Return the rows whose keys must be removed as they are to be staged. staged: the rows to add, read back from
        the staged files, so that they are the same however often they are looked at."""
        return removed

    def set_mark(self, last: int | None, context: SinkContext) -> None:
        """Set a mark that was lost to what a person says: the target has exactly the checkpoints up to `last`. None: it
        has none."""
        raise Invalid(
            f"a sink of kind {self.kind} cannot put back its mark",
            expected="a sink that can",
            help=f"change the mark of {context.app_id} in the target itself",
            reason="NO_MARK",
        )

    @property
    def can_set_mark(self) -> bool:
        """True: it implements `set_mark`."""
        return type(self).set_mark is not TransactionalSink.set_mark

    def undo_after(self, rows: StagedRows, to: int, context: SinkContext) -> bool:
        """Remove what was loaded after checkpoint `to`, and set the mark to `rows.checkpoint`, in one transaction.

        For a rollback; `rows` has none. Otherwise like `load`. Implement it only if the target can tell which rows came
        after a checkpoint; by default, rows stay in a rollback.
        """
        raise NotImplementedError

    def rows_stay_reason(self) -> str:
        """Return the reason why a rollback cannot take rows out of the target again. Empty: it can."""
        if type(self).undo_after is not TransactionalSink.undo_after:
            return ""
        return f"a sink of kind {self.kind} cannot take back what it has published"

    # --- the contract of a sink -----------------------------------------------------------------------------

    def check(self, context: SinkContext) -> None:
        self.last(context)

    def staging_folder(self, context: SinkContext) -> Location:
        return Location(f"{context.home}/staged", context.place.options)

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        return self._stage(frame, None, context, staging)

    def update_problems(self, stream: str) -> list[str]:
        return [] if self.upserts else super().update_problems(stream)

    def prepare_with_retractions(
        self, frame: DataFrame, retractions: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        return self._stage(frame, retractions, context, staging)

    def check_output(self, frame: DataFrame, context: SinkContext) -> None:
        self._refuse_output(frame, context)
        self.staged_form(frame, context).schema  # noqa: B018 - Spark plans it

    def _refuse_output(self, frame: DataFrame, context: SinkContext) -> None:
        columns = msgspec.json.decode(frame.schema.json())
        problems = self.output_problems(columns, context)
        if problems:
            raise Invalid(
                "\n    ".join(
                    [f"sink {context.sink}: the output does not fit {self.target(context.place)}:", *problems]
                ),
                expected=f"columns that a sink of kind {self.kind} can take",
                help="change the last stage before the sink",
                reason="BAD_OUTPUT",
            )

    def _stage(self, frame: DataFrame, removed: DataFrame | None, context: SinkContext, staging: Staging) -> Prepared:
        """Stage rows to add, and rows whose keys must be removed."""
        self._refuse_output(frame, context)
        seams.fault("S4.stage.before")
        rows = self.staged_form(frame, context)
        staged = self._write(rows, _ROWS, context, staging, self.staged_partitions())
        staged = self.settled(msgspec.structs.replace(staged, notes=self.notes(frame)), context, staging)
        taken_out = None
        if removed is not None:
            form = self.removed_form(removed, self._read_staged(rows, staged, context), context)
            taken_out = self._write(form, _REMOVED, context, staging)
        seams.fault("S4.stage.after")
        files = [*staged.files, *(taken_out.files if taken_out is not None else ())]
        if not files:
            return Prepared(None, 0)
        if taken_out is not None and taken_out.files:
            staged = msgspec.structs.replace(staged, removed_columns=taken_out.columns, removed=taken_out.files)
        return Prepared(
            committable=msgspec.to_builtins(staged),
            rows=sum(file.rows for file in staged.files),
            bytes=sum(file.size for file in files),
            files=len(files),
        )

    def _write(
        self, frame: DataFrame, part: str, context: SinkContext, staging: Staging, partition_by: Sequence[str] = ()
    ) -> StagedPart:
        location, folder = self.staging_folder(context), f"{staging.folder(context)}/{part}"
        columns = msgspec.json.decode(frame.schema.json())
        partitions: Json = {"type": "struct", "fields": [f for f in columns["fields"] if f["name"] in partition_by]}
        written = write_files(frame, partitions, location, folder, partition_by)
        files = sync_and_list(location, folder, partitions, partition_by, written=written)
        return StagedPart(columns=columns, files=files)

    def _read_staged(self, rows: DataFrame, staged: StagedPart, context: SinkContext) -> DataFrame:
        """Return the staged rows. They need not be computed again, nor come out the same if they were."""
        if not staged.files:
            return empty_like(rows)
        location = self.staging_folder(context)
        paths = [location.full(file.path) for file in staged.files]
        return rows.sparkSession.read.schema(rows.schema).parquet(*paths)

    def head(self, context: SinkContext) -> Head:
        last = self.last(context)
        return Head(version=last, last_entry=last)

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        if head.last_entry is not None and head.last_entry >= publication.id:
            return None  # The caller finds it in the head that it reads next.
        rows = self._staged_rows(publication, head, context)
        lost = missing_files(rows.location, [file for part in rows.parts for file in (*part.files, *part.removed)])
        if lost:
            raise Corrupt(
                f"sink {context.sink!r}: {len(lost)} files that checkpoint {publication.id} staged are gone, first "
                f"{lost[0]}",
                expected=f"them in {rows.location.url} until they are loaded into {self.target(context.place)}",
                help="put them back from a copy; `tidegate recover` tells which checkpoint is whole",
                reason=STAGED_FILES_GONE,
            )
        return self._loaded(rows, context)

    def _staged_rows(self, publication: Publication, head: Head, context: SinkContext) -> StagedRows:
        parts = tuple(typed.convert(committable, StagedPart) for committable in publication.committables)
        return StagedRows(publication.id, head.last_entry, publication.attempt, self.staging_folder(context), parts)

    def _loaded(self, rows: StagedRows, context: SinkContext) -> PublishedTable | None:
        return self._moved(lambda: self.load(rows, context), rows, context)

    def _moved(self, move: Callable[[], bool], rows: StagedRows, context: SinkContext) -> PublishedTable | None:
        """Let the target's mark move to the checkpoint. None: somebody else was faster."""
        seams.fault("S10.publish.before")
        if not move():
            return None
        seams.fault("S10.publish.after")
        return self._published(rows.checkpoint, context, rows.count + rows.removed_count)

    def _published(self, id: int, context: SinkContext, rows: int | None) -> PublishedTable:
        """The target has no versions that a reader could ask for: the mark stands for them."""
        return PublishedTable(uri=self.target(context.place), version=id, log_hash="", rows=rows)

    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        last = self.last(context)
        return self._published(id, context, None) if last is not None and last >= id else None

    def verify(self, at: PublishedTable, context: SinkContext) -> None:
        last = self.last(context)
        if last is None or last < at.version:
            raise Corrupt(
                f"{at.uri} was given checkpoint {at.version}, and its mark says {last or 'that it was given none'}",
                expected=f"a mark of {at.version} or more",
                help="the target was made again or put back from an older copy: put the right one back",
                reason="TABLE_DAMAGED",
            )

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        location, folder = self.staging_folder(context), entry_folder(context, id)
        return sorted({path[len(folder) + 1 :].split("/")[0] for path, _ in location.walk(folder)})

    def discard(self, context: SinkContext, staging: Staging) -> None:
        self.staging_folder(context).remove_folder(staging.folder(context))

    def retire(self, context: SinkContext, staging: Staging) -> None:
        self.discard(context, staging)  # the target has its own copy of the rows

    def missing_files(self, committables: Sequence[Json], context: SinkContext) -> list[str]:
        parts = [typed.convert(committable, StagedPart) for committable in committables]
        files = [file for part in parts for file in (*part.files, *part.removed)]
        return missing_files(self.staging_folder(context), files)

    def restore_plan(
        self, to: int | None, known: PublishedTable | None, committables: Sequence[Json], context: SinkContext
    ) -> RestorePlan:
        if known is not None:
            self.verify(known, context)
        last = self.last(context)
        if last is None:
            return RestorePlan(exists=False, not_published_yet=to is not None)
        lacks = to is not None and last < to
        return RestorePlan(
            not_published_yet=lacks, target_version=known, version=last, rows_stay_reason=self.rows_stay_reason()
        )

    def restore(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        """Take rows back if the target can. Move the mark in any case, so that no checkpoint from before the rollback
        can be loaded any more."""
        if head.last_entry is not None and head.last_entry >= publication.id:
            return None
        rows = self._staged_rows(publication, head, context)
        if self.rows_stay_reason() or publication.restore is None or publication.restore.how == "keep":
            return self._loaded(rows, context)
        return self._moved(lambda: self.undo_after(rows, publication.target, context), rows, context)
