"""The base class of sinks whose target has transactions but is not a Delta table, such as a database or a broker.

A job stages the rows as Parquet files in the pipeline's folder. After the decision they are loaded into the target in
one transaction, together with a mark: the number of the checkpoint. No transaction is open before the decision, so none
can time out while a job runs, and none has to be undone.

A subclass defines its target, reads the mark, and loads rows. Everything else has a default.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate import seams
from tidegate.connectors.row_rules import refusing
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
from tidegate.delta.dividing import Divided, Division, as_declared
from tidegate.errors import Corrupt, Invalid
from tidegate.records import typed
from tidegate.records.records import Json, PublishedTable, Struct
from tidegate.renamed_hooks import TRANSACTIONAL_SINK_HOOKS, refuse_old_hooks
from tidegate.spark.frame_facts import empty_like
from tidegate.spark.storage.writing import write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["StagedPart", "StagedRows", "TransactionalSink"]

_ROWS, _REMOVED = "rows", "removed"
_BATCH_ROWS = 8_192
"""Small, so that the target can load one batch while the next one is read."""


class StagedPart(Struct, frozen=True, kw_only=True):
    """A committable: the files staged by one attempt of one job."""

    columns: Json
    """The schema in Spark's JSON form."""
    files: list[StagedFile]
    """Files with rows to add."""
    notes: Json = {}
    """Facts about the rows that `load` needs and the files do not contain."""
    removed_columns: Json | None = None
    removed: list[StagedFile] = []
    """Files with rows whose keys must be removed, for a stream with retractions."""


@dataclass(frozen=True)
class StagedRows:
    """The rows of one checkpoint for one target."""

    checkpoint: int
    """The value of the target's mark after the rows are loaded."""
    after: int | None
    """The value that the mark must have before. None: the mark must not exist yet."""
    attempt: str
    """The random name of the loading attempt, for logs and traces."""
    location: Location
    parts: tuple[StagedPart, ...] = field(repr=False)
    diverts: bool = False
    """Whether these rows are loaded in place of those of checkpoints that wait, of which they are a part."""

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
        """The schema of the rows in Spark's JSON form. None without rows."""
        return self.parts[0].columns if self.parts else None

    def split_parts(self) -> Iterator[StagedRows]:
        """Yield the rows of each committable separately, oldest first. Several committables may contain the same
        key."""
        return (replace(self, parts=(part,)) for part in self.parts)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows to add, always in the same order. columns: read only these."""
        for part in self.parts:
            yield from self._read(part.files, columns)

    def tuples(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield the rows to add as Python tuples, for a driver without Arrow support. columns: read only these, in this
        order."""
        for batch in self.batches(columns):
            names = columns or batch.schema.names
            yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)

    def removed_batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows whose keys must be removed before rows are added."""
        for part in self.parts:
            yield from self._read(part.removed, columns)

    def _read(self, files: Sequence[StagedFile], columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        for staged in files:
            with self.location.open(staged.path) as source, pq.ParquetFile(source) as file:
                yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)


class TransactionalSink(ExactlyOnceSink):
    """A target that stores a checkpoint's rows and its number in one transaction. A subclass must define:

        kind       a word for the target, such as "postgres"
        describe   return the configuration, without secrets
        target     return a string that identifies the target; two sinks with the same target are refused
        last       return the checkpoint that the target's mark names
        load       add the rows and move the mark, in one transaction

    The mark is stored under `context.app_id`, which identifies this sink of this pipeline permanently.
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        refuse_old_hooks(cls, TRANSACTIONAL_SINK_HOOKS)

    @property
    def wants_retractions(self) -> bool:  # type: ignore[override]
        """True for a sink with keys: rows that no longer hold must be removed."""
        return bool(self.upserts)

    # --- for subclasses -------------------------------------------------------------------------------------

    @abstractmethod
    def last(self, context: SinkContext) -> int | None:
        """Return the number of the last checkpoint loaded into the target, according to its mark, or None if it has
        no mark. Raise Unavailable if the target does not answer."""

    @abstractmethod
    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        """Add the rows to the target and set its mark to `rows.checkpoint`, in one transaction.

        If the mark is not `rows.after` inside that transaction, another loader was faster: return False and change
        nothing. Transactions of two loaders must not interleave: the second one must wait or fail. Raise Unavailable if
        the target does not answer, even if it is unknown whether the transaction was committed: the caller then reads
        the mark again.
        """

    def output_problems(self, schema: Json, context: SinkContext) -> list[str]:
        """Return the reasons why the target cannot take rows with this schema (in Spark's JSON form). Called by a job
        before anything is staged."""
        return []

    def staged_form(self, frame: DataFrame, context: SinkContext) -> DataFrame:
        """Return the rows in the form in which to stage them. Override it to let Spark do conversions that the target
        needs. By default, rows are staged as the user's code returns them, and staging fails for a row that breaks one
        of the `row_rules`. An override has to refuse such rows itself."""
        rules = self.row_rules(msgspec.json.decode(frame.schema.json()), self.declared_rules(context.place)).rules
        return refusing(frame, rules, frame.columns[0])

    def staged_partitions(self) -> Sequence[str]:
        """Return the columns by which staged files are partitioned into folders."""
        return ()

    def notes(self, frame: DataFrame) -> Json:
        """Return facts about the rows that `load` needs and the staged files do not contain, as small plain JSON."""
        return {}

    def settled(self, staged: StagedPart, context: SinkContext, staging: Staging) -> StagedPart:
        """Return the files to load, after Spark has staged the rows. Override it if the target cannot load them as
        they are, for example because two rows have the same key."""
        return staged

    def removed_form(self, removed: DataFrame, staged: DataFrame, context: SinkContext) -> DataFrame:
        """Return the rows whose keys must be removed, in the form in which to stage them.

        staged: the rows to add, read back from the staged files, so that every evaluation returns the same rows.
        """
        return removed

    def set_mark(self, last: int | None, context: SinkContext) -> None:
        """Set a lost mark to `last`, because a person states that the target holds exactly the checkpoints up to it, or
        no checkpoint if it is None."""
        raise Invalid(
            f"a sink of kind {self.kind} cannot restore its mark",
            expected="a sink that can",
            help=f"change the mark of {context.app_id} in the target itself",
            reason="NO_MARK",
        )

    @property
    def can_set_mark(self) -> bool:
        """Whether the subclass implements `set_mark`."""
        return type(self).set_mark is not TransactionalSink.set_mark

    def undo_after(self, rows: StagedRows, to: int, context: SinkContext) -> bool:
        """Remove all rows loaded after checkpoint `to`, and set the mark to `rows.checkpoint`, in one transaction.

        For a rollback, in which `rows` is empty. Otherwise the contract is that of `load`. Implement it only if the
        target records which checkpoint loaded a row. By default, a rollback leaves the rows in the target.
        """
        raise NotImplementedError

    def rows_stay_reason(self) -> str:
        """Return the reason why a rollback cannot remove published rows from the target. Empty if it can."""
        if type(self).undo_after is not TransactionalSink.undo_after:
            return ""
        return f"a sink of kind {self.kind} cannot undo what it has published"

    # --- the contract of a sink -----------------------------------------------------------------------------

    def check(self, context: SinkContext) -> None:
        self.last(context)

    def staging_folder(self, context: SinkContext) -> Location:
        return Location(f"{context.home}/staged", context.place.options)

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        return self._stage(frame, None, context, staging)

    def update_problems(self, stream: str) -> list[str]:
        if self.upserts:
            return []
        return super().update_problems(stream)

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
            title = f"sink {context.sink}: the output does not fit {self.target(context.place)}:"
            raise Invalid(
                "\n    ".join([title, *problems]),
                expected=f"columns that a sink of kind {self.kind} supports",
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
        if removed is not None:
            form = self.removed_form(removed, self._read_staged(rows, staged, context), context)
            staged_removed = self._write(form, _REMOVED, context, staging)
            if staged_removed.files:
                staged = msgspec.structs.replace(
                    staged, removed_columns=staged_removed.columns, removed=staged_removed.files
                )
        seams.fault("S4.stage.after")
        files = [*staged.files, *staged.removed]
        if not files:
            return Prepared(None, 0)
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
        partition_fields = [field for field in columns["fields"] if field["name"] in partition_by]
        partitions: Json = {"type": "struct", "fields": partition_fields}
        written = write_files(frame, partitions, location, folder, partition_by)
        files = sync_and_list(location, folder, partitions, partition_by, written=written)
        return StagedPart(columns=columns, files=files)

    def _read_staged(self, rows: DataFrame, staged: StagedPart, context: SinkContext) -> DataFrame:
        """Return the staged rows, read from their files: computing them again would cost time, and might differ."""
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
            return None  # It is published already. The caller sees that in the head that it reads next.
        rows = self._staged_rows(publication, head, context)
        missing = missing_files(rows.location, _files(rows.parts))
        if missing:
            raise Corrupt(
                f"sink {context.sink!r}: {len(missing)} files that checkpoint {publication.id} staged are gone, "
                f"first {missing[0]}",
                expected=f"the files in {rows.location.url} until they are loaded into {self.target(context.place)}",
                help="restore them from a copy; `tidegate recover` shows which checkpoint is complete",
                reason=STAGED_FILES_GONE,
            )
        return self._load_and_report(rows, context)

    def _staged_rows(self, publication: Publication, head: Head, context: SinkContext) -> StagedRows:
        parts = tuple(typed.convert(committable, StagedPart) for committable in publication.committables)
        location = self.staging_folder(context)
        return StagedRows(publication.id, head.last_entry, publication.attempt, location, parts, publication.diverts)

    def _load_and_report(self, rows: StagedRows, context: SinkContext) -> PublishedTable | None:
        return self._move_mark(lambda: self.load(rows, context), rows, context)

    def _move_mark(
        self, transaction: Callable[[], bool], rows: StagedRows, context: SinkContext
    ) -> PublishedTable | None:
        """Run a transaction that moves the target's mark. Return None if another process was faster."""
        seams.fault("S10.publish.before")
        if not transaction():
            return None
        seams.fault("S10.publish.after")
        return self._published(rows.checkpoint, context, rows.count + rows.removed_count)

    def _published(self, id: int, context: SinkContext, rows: int | None) -> PublishedTable:
        """Return the published version. The target has no versions that a reader could ask for, so it is the mark."""
        return PublishedTable(uri=self.target(context.place), version=id, log_hash="", rows=rows)

    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        last = self.last(context)
        if last is not None and last >= id:
            return self._published(id, context, None)
        return None

    def verify(self, published: PublishedTable, context: SinkContext) -> None:
        last = self.last(context)
        if last is None or last < published.version:
            mark = f"its mark is {last}" if last is not None else "it has no mark"
            raise Corrupt(
                f"checkpoint {published.version} was published to {published.uri}, but {mark}",
                expected=f"a mark of {published.version} or more",
                help="the target was created again or restored from an older copy: restore the right one",
                reason="TABLE_DAMAGED",
            )

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        location, folder = self.staging_folder(context), entry_folder(context, id)
        return sorted({path[len(folder) + 1 :].split("/")[0] for path, _ in location.walk(folder)})

    def discard(self, context: SinkContext, staging: Staging) -> None:
        self.staging_folder(context).remove_folder(staging.folder(context))

    def retire(self, context: SinkContext, staging: Staging) -> None:
        self.discard(context, staging)  # the target has its own copy of the rows

    def divide(self, committable: Json, division: Division, context: SinkContext, staging: Staging) -> Divided:
        part, location = typed.convert(committable, StagedPart), self.staging_folder(context)
        as_output = partial(self.output_of_staged, schema=division.schema, context=context)
        parted = division.part(location, part.files, staging.folder(context), part.columns, as_output)
        rest = msgspec.structs.replace(part, files=parted.files)
        return Divided(msgspec.to_builtins(rest), parted.taken, parted.rows)

    def output_of_staged(self, staged: DataFrame, schema: StructType, context: SinkContext) -> DataFrame:
        """Return rows as the stream had them, from the form in which they were staged. Override it with `staged_form`
        if that does more than to convert single columns."""
        return as_declared(context.sink, staged, schema)

    def missing_files(self, committables: Sequence[Json], context: SinkContext) -> list[str]:
        parts = [typed.convert(committable, StagedPart) for committable in committables]
        return missing_files(self.staging_folder(context), _files(parts))

    def restore_plan(
        self, to: int | None, reported: PublishedTable | None, committables: Sequence[Json], context: SinkContext
    ) -> RestorePlan:
        if reported is not None:
            self.verify(reported, context)
        last = self.last(context)
        if last is None:
            return RestorePlan(exists=False, not_published_yet=to is not None)
        return RestorePlan(
            not_published_yet=to is not None and last < to,
            target_version=reported,
            version=last,
            rows_stay_reason=self.rows_stay_reason(),
        )

    def restore(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        """Remove rows if the target supports it. Move the mark in any case, so that no checkpoint from before the
        rollback can still be loaded."""
        if head.last_entry is not None and head.last_entry >= publication.id:
            return None
        rows = self._staged_rows(publication, head, context)
        if self.rows_stay_reason() or publication.restore is None or publication.restore.how == "keep":
            return self._load_and_report(rows, context)
        return self._move_mark(lambda: self.undo_after(rows, publication.target, context), rows, context)


def _files(parts: Iterable[StagedPart]) -> list[StagedFile]:
    return [file for part in parts for file in (*part.files, *part.removed)]
