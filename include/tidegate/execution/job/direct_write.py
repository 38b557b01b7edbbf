"""At least once: an attempt commits its rows to their tables itself, as soon as they are staged.

    before   check again that the attempt still counts: if its checkpoint was ended, it writes nothing
    commit   under the attempt's name, on top of the table's head; retried if another writer was faster
    after    rows are never taken back: if the attempt fails now, another one commits the same rows again

No row is lost: positions and states only advance with the manifest, so input that no ack names is read again. An
attempt that was delayed stops once a later checkpoint, or a rollback, is on the table, since it would overwrite newer
rows with older ones. No row is lost then, either: the later checkpoint continued from another attempt's ack, or reads
the input again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate.checkpoint.context import PipelineContext
from tidegate.checkpoint.publishing.table_mismatch import MAX_LOST_RACES, busy_table_error, mismatch_error
from tidegate.connectors.sink import Head, Prepared, Publication, SinkContext, Staging
from tidegate.errors import Fenced, TidegateError
from tidegate.pipeline.graph.graph import SinkNode
from tidegate.records.records import Plan, PublishedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DirectWriter"]


class DirectWriter:
    """Commits the rows of one attempt to their tables."""

    def __init__(
        self, pipeline: PipelineContext, plan: Plan, staging: Staging, still_counts: Callable[[], None]
    ) -> None:
        """still_counts: raises if the attempt's work no longer counts."""
        self.pipeline = pipeline
        self.plan = plan
        self.staging = staging
        self.still_counts = still_counts
        self.written: dict[str, PublishedTable] = {}
        """For the ack."""
        self._begun: set[str] = set()

    def writes_sink(self, sink: str) -> bool:
        """Return whether the job commits the rows of this sink."""
        return sink in (self.plan.through or ())

    def context(self, sink: str) -> SinkContext:
        """Return the context for staging and committing rows of this sink."""
        return replace(self.pipeline.context(sink), direct=self.writes_sink(sink))

    def write(self, sinking: SinkNode, prepared: Prepared, frame: DataFrame) -> None:
        """Commit the staged rows to their table. When this returns, the table has them."""
        if prepared.committable is None:
            return
        self.still_counts()
        sink, context = sinking.sink, replace(self.context(sinking.name), spark=lambda: frame.sparkSession)
        for _ in range(MAX_LOST_RACES):
            head = sink.head(context)
            self._refuse_replaced_table(sinking, head, context)
            # Read after `head`, so that a publication which the commit would follow is seen.
            published = sink.head(self.pipeline.context(sinking.name)).last_entry
            last = max(head.last_entry or 0, published or 0)
            if last > self.plan.id:
                raise self._overtaken(sinking.name, last)
            self._begun.add(sinking.name)
            commit = sink.publish(self._publication(prepared, head.last_entry), head, context)
            if commit is not None:
                self.written[sinking.name] = commit
                return
        raise busy_table_error(sinking.name, MAX_LOST_RACES, "the job is retried")

    def release(self, sinking: SinkNode) -> None:
        """Delete the staged files, unless a commit was tried: it may have succeeded without an answer."""
        if sinking.name not in self._begun:
            with contextlib.suppress(TidegateError):
                sinking.sink.discard(self.context(sinking.name), self.staging)

    def _refuse_replaced_table(self, sinking: SinkNode, head: Head, context: SinkContext) -> None:
        """Raise if the table was dropped or moved, or the ledger restored. No publisher may check before."""
        # Read after the head, so that the view has the checkpoint that wrote it.
        view = self.pipeline.ledger.view(reach=head.last_entry)
        if head.last_entry is not None and head.last_entry > view.last_id:
            why = f"the table holds rows of checkpoint {head.last_entry}, the log ends at {view.last_id}"
            raise mismatch_error(self.pipeline, view, sinking, head, why)
        manifest = None
        if view.last_completed is not None:
            manifest = view.last_completed.manifest
        part = manifest.tables.get(sinking.name) if manifest is not None else None
        if part is None or part.through is None:
            return
        if head.last_entry is None:
            upto = f"{part.through.uri} up to version {part.through.version}"
            why = f"jobs had written to {upto}, and this one has no such rows"
            raise mismatch_error(self.pipeline, view, sinking, head, why)
        sinking.sink.verify(part.through, context)

    def _publication(self, prepared: Prepared, after: int | None) -> Publication:
        assert prepared.committable is not None
        return Publication(
            id=self.plan.id,
            generation=self.plan.generation,
            attempt=self.staging.attempt,
            previous=after,
            committables=(prepared.committable,),
            direct=True,
        )

    def _overtaken(self, sink: str, last: int) -> Fenced:
        return Fenced(
            f"an attempt at checkpoint {self.plan.id} stops: table {sink!r} holds rows of checkpoint {last} already",
            help="nothing to do: another attempt has done its work, or its input is in a later checkpoint",
        )
