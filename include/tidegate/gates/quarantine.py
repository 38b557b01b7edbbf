"""Where rows go that a gate sets aside: a Delta table of the gate's own, beside the pipeline's ledger.

It is published like a sink, in the same decision as the good rows: so every row is in exactly one of both places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate.model.interval import Interval
from tidegate.model.place import Place
from tidegate.model.records import Json, PublishedTable
from tidegate.sinks.base import ExactlyOnceSink, Head, Prepared, Publication, SinkContext, Staging
from tidegate.sinks.delta import DeltaAppend

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["QUARANTINE", "QuarantineSink", "quarantine_name", "with_origin"]

QUARANTINE = "quarantine."
"""Begins the names of quarantines among the tables of a plan. A dot is in no name that users give."""

ID, CHECKPOINT, STREAM = "_tidegate_id", "_tidegate_checkpoint", "_tidegate_stream"


def quarantine_name(gate: str) -> str:
    """Under which name a gate's quarantine takes part in plans and manifests."""
    return f"{QUARANTINE}{gate}"


def with_origin(rows: DataFrame, checkpoint: int, stream: str) -> DataFrame:
    """Rows for quarantine, each with an id of its own, and where it came from."""
    from pyspark.sql import functions as f

    origin = {ID: f.expr("uuid()"), CHECKPOINT: f.lit(checkpoint).cast("long"), STREAM: f.lit(stream)}
    return rows.withColumns(origin)


class QuarantineSink(ExactlyOnceSink):
    """The quarantine of one gate. Columns that rows get later are added; that is all its schema may change by."""

    kind: ClassVar[str] = "quarantine"

    def __init__(self, gate: str) -> None:
        self.gate = gate
        self.folder = f"quarantine/{gate}"

    def _table(self, context: SinkContext) -> DeltaAppend:
        return DeltaAppend(f"{context.home}/{self.folder}", schema_evolution="add")

    def target(self, place: Place) -> str:
        return self.folder

    def describe(self) -> Json:
        return {}

    def check(self, context: SinkContext) -> None:
        self._table(context).check(context)

    def check_interval(self, interval: Interval, replaces: tuple[int, Json] | None, context: SinkContext) -> None:
        self._table(context).check_interval(interval, replaces, context)

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        return self._table(context).prepare(frame, context, staging)

    def head(self, context: SinkContext) -> Head:
        return self._table(context).head(context)

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        return self._table(context).publish(publication, head, context)

    def trace(self, committables: Sequence[Json]) -> Json:
        return DeltaAppend(self.folder).trace(committables)

    def holds(self, publication: Publication, head: Head, context: SinkContext) -> bool:
        return self._table(context).holds(publication, head, context)

    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        return self._table(context).locate(id, context)

    def verify(self, at: PublishedTable, context: SinkContext) -> None:
        self._table(context).verify(at, context)

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        return self._table(context).attempts(id, context)

    def discard(self, context: SinkContext, staging: Staging) -> None:
        self._table(context).discard(context, staging)

    def retire(self, context: SinkContext, staging: Staging) -> None:
        self._table(context).retire(context, staging)
