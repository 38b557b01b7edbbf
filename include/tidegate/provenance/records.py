"""The records of recorded ranges that may have led to a row, and the sources from which a replay reads some of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from tidegate.checkpoint.references import acks_of, memory_of
from tidegate.connectors.source import PLACE, Planned, Source, SourceContext
from tidegate.delta.as_python import python_rows
from tidegate.errors import Invalid
from tidegate.records.moments import micros_of
from tidegate.records.records import Amount, Json, Plan
from tidegate.records.source_time import partition_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tidegate.checkpoint.context import PipelineContext
    from tidegate.pipeline.graph.nodes import SourceNode

__all__ = ["InputRecord", "RecordedInput", "ReplayedSource", "Selection"]


class InputRecord(NamedTuple):
    """A record that a checkpoint has read."""

    checkpoint: int
    source: str
    number: int
    """Its number among the candidates of this checkpoint and source."""


@dataclass(frozen=True)
class _Range:
    """The candidates of one recorded range."""

    rows: pa.Table
    places: list[str | None]
    schema: StructType


class RecordedInput:
    """Reads recorded ranges, once each, and keeps the records that may have led to a row."""

    def __init__(self, live: PipelineContext, sources: Mapping[str, SourceNode], limit: int) -> None:
        """limit: the greatest number of candidates."""
        self.live, self.sources, self.limit = live, sources, limit
        self._ranges: dict[tuple[int, str], _Range] = {}
        self._count = 0

    def collect(
        self, spark: SparkSession, plans: Collection[Plan], source: str, condition: Callable[[DataFrame], Column | None]
    ) -> list[InputRecord]:
        """Read the ranges of a source, and keep the records for which the condition is true. Return them."""
        records = []
        for plan in plans:
            part = plan.sources.get(source)
            if part is None or part.empty:
                continue
            self._count -= self._size(plan.id, source)
            context = SourceContext(self.live.graph.name, source, self.live.place, self.live.ledger)
            splits = self.live.ledger.unpack(part.splits)
            reader = self.sources[source].as_planned(part)
            reader.verify(splits, context)
            frame = reader.read_with_places(spark, splits, context)
            wanted = condition(frame)
            if wanted is not None:
                frame = frame.where(wanted)
            found = frame.limit(self.limit - self._count + 1).toArrow()
            self._count += found.num_rows
            if self._count > self.limit:
                raise Invalid(
                    f"more than {self.limit:,} records may have led to this row, of checkpoints {plans_text(plans)}",
                    expected="few enough records to replay them again and again",
                    help="ask about fewer checkpoints, with --over N; or raise --candidates",
                    reason="TOO_MANY_RECORDS",
                )
            places = [self._shortened(place) for place in found[PLACE].to_pylist()]
            self._ranges[plan.id, source] = _Range(found.drop_columns([PLACE]), places, frame.drop(PLACE).schema)
            records += [InputRecord(plan.id, source, number) for number in range(found.num_rows)]
        return records

    def rows(self, checkpoint: int, source: str, numbers: Collection[int]) -> tuple[pa.Table, StructType] | None:
        """Return some of the candidates, or None if there is none."""
        kept = self._ranges.get((checkpoint, source))
        return (kept.rows.take(sorted(numbers)), kept.schema) if kept is not None and numbers else None

    def values(self, record: InputRecord) -> Json:
        """Return a record's columns."""
        (row,) = python_rows(self._ranges[record[:2]].rows.slice(record.number, 1))
        return row

    def place(self, record: InputRecord) -> str | None:
        """Return where the input has a record, if its source can tell."""
        return self._ranges[record[:2]].places[record.number]

    def _shortened(self, place: str | None) -> str | None:
        """Return a place relative to the folder where relative paths start."""
        base = self.live.place.base.rstrip("/")
        return unquote(place).replace(f"file://{base}/", "").replace(f"{base}/", "") if place is not None else None

    def _size(self, checkpoint: int, source: str) -> int:
        before = self._ranges.get((checkpoint, source))
        return before.rows.num_rows if before is not None else 0


def plans_text(plans: Collection[Plan]) -> str:
    ids = [plan.id for plan in plans]
    return f"{ids[0]} to {ids[-1]}" if len(ids) > 1 else str(ids[0])


@dataclass
class Selection:
    """The records that a replay reads, and the recorded checkpoint that it repeats at the moment."""

    input: RecordedInput
    records: Collection[InputRecord] = ()
    checkpoint: int = 0
    _numbers: dict[tuple[int, str], set[int]] = field(default_factory=dict)

    def choose(self, records: Collection[InputRecord]) -> None:
        self.records = records
        self._numbers = {}
        for record in records:
            self._numbers.setdefault(record[:2], set()).add(record.number)

    def records_of(self, source: str) -> tuple[pa.Table, StructType] | None:
        """Return the selected records of a source in the present checkpoint."""
        numbers = self._numbers.get((self.checkpoint, source), set())
        return self.input.rows(self.checkpoint, source, numbers)

    def highest(self, source: str) -> int | None:
        """Return the event time that the source had reached in the recorded checkpoint, in microseconds."""
        ledger = self.input.live.ledger
        entry = ledger.entry(self.checkpoint)
        record = memory_of(acks_of(ledger, entry)).get(source) if entry is not None else None
        highest = partition_of(record).highest if record else None
        return micros_of(highest) if highest is not None else None


class ReplayedSource(Source):
    """Stands for a source in a replay: of each recorded range it reads the selected records, with the event time that
    the whole range had, so that no row is late, and no window open, because others are missing."""

    def __init__(self, name: str, real: Source, selection: Selection) -> None:
        self.name, self.real, self.selection = name, real, selection
        self.kind = real.kind  # type: ignore[misc]  # a plan records the kind of each source

    def describe(self) -> Json:
        return self.real.describe()

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        return Planned(end=start, splits={}, is_empty=True)  # replays repeat recorded plans

    def verify(self, splits: Json, context: SourceContext) -> Amount | None:
        selected = self.selection.records_of(self.name)
        return Amount(rows=selected[0].num_rows if selected is not None else 0)

    def max_event_time(self, column: str, splits: Json, context: SourceContext) -> int | None:
        return self.selection.highest(self.name)

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        selected = self.selection.records_of(self.name)
        if selected is not None:
            session: Any = spark
            frame: DataFrame = session.createDataFrame(*selected)
            return frame
        empty = self.real.no_rows(spark)
        if empty is None:
            live = self.selection.input.live
            own = SourceContext(context.pipeline, self.name, context.place, live.ledger)
            empty = self.real.read(spark, splits, own).limit(0)
        return empty

    def no_rows(self, spark: SparkSession) -> DataFrame | None:
        return self.real.no_rows(spark)

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        return True
