"""A sample of the input: all rows of some values of a key column.

The hash of a value decides, so that each process and each engine chooses the same values, in the input and in the
tables. State of other values stays as it is: no row of the sample touches it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.backfill.recorded import RecordedPlans
from tidegate.checkpoint.references import acks_of, memory_of
from tidegate.delta import sql_name
from tidegate.records.moments import micros_of
from tidegate.records.names import quoted
from tidegate.records.records import BackfillRecord, Json, KeySample
from tidegate.records.source_time import partition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.connectors.source import Source, SourceContext
    from tidegate.ledger.ledger import Ledger
    from tidegate.pipeline.graph.graph import Graph
    from tidegate.records.measures import Amount

__all__ = ["SAMPLED_TYPES", "in_sample", "rows_in_sample", "with_samples"]

SAMPLED_TYPES = ("string", "byte", "short", "integer", "long", "boolean", "date")
"""Types of Delta whose values every engine writes as the same text."""


def in_sample(sample: KeySample, column: str) -> str:
    """Return the SQL condition that a row is in the sample. column: its quoted name."""
    least_beyond = f"{round(sample.share * 16**8):08x}"
    return f"substr(md5(coalesce(CAST({column} AS string), '')), 1, 8) < '{least_beyond}'"


def rows_in_sample(record: BackfillRecord) -> str:
    """Return the condition on rows of the tables, for `delta.query`, or "true"."""
    return in_sample(record.sample, sql_name(record.sample.by)) if record.sample is not None else "true"


def with_samples(graph: Graph, ledger: Ledger, record: BackfillRecord) -> Graph:
    """Return the graph with sources that read only the sample. ledger: the pipeline's."""
    sample = record.sample
    if sample is None:
        return graph
    reached = _ReachedTimes(ledger, record.origin)
    sources = dict(graph.sources)
    for name, column in sample.sources.items():
        node = sources.get(name)
        if node is None:  # today's code does not read it any more
            continue
        sources[name] = replace(node, source=_sampled(node.source, in_sample(sample, quoted(column)), reached, name))
    return replace(graph, sources=sources)


class _ReachedTimes:
    """The event time that a source had reached with all rows of a recorded range. With those of the sample alone,
    windows would close later, and fewer rows would be late."""

    def __init__(self, ledger: Ledger, origin: int) -> None:
        self._ledger, self._plans = ledger, RecordedPlans(ledger, origin)

    def highest(self, source: str, splits: Json) -> int | None:
        """Return it in microseconds, or None if no row of the range had a time."""
        for plan in self._plans.counting():
            part = plan.sources.get(source)
            if part is not None and _text(self._ledger.unpack(part.splits)) == _text(splits):
                entry = self._ledger.entry(plan.id)
                memory: Mapping[str, Json] = memory_of(acks_of(self._ledger, entry)) if entry is not None else {}
                record = memory.get(source)
                highest = partition_of(record).highest if record else None
                return micros_of(highest) if highest is not None else None
        return None


def _text(splits: Json) -> str:
    return json.dumps(splits, sort_keys=True)


def _sampled(source: Source, condition: str, reached: _ReachedTimes, name: str) -> Source:
    """Return a copy of the source that reads only the rows for which the condition is true."""
    kind: Any = type(source)

    class Sampled(kind):  # type: ignore[misc]  # as a subclass, it is still a source of its kind in every other way
        def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
            rows: DataFrame = super().read(spark, splits, context)
            return rows.where(condition)

        def verify(self, splits: Json, context: SourceContext) -> Amount | None:
            amount: Amount | None = super().verify(splits, context)
            if amount is None or not amount.rows:
                return amount
            return msgspec.structs.replace(amount, rows=None)  # only reading them shows which are in the sample

        def max_event_time(self, column: str, splits: Json, context: SourceContext) -> int | None:
            return reached.highest(name, splits)

    sampled: Source = copy.copy(source)
    sampled.__class__ = Sampled
    return sampled
