"""How far event time has come: per source as its rows say, per operator the least over its sources.

    a source     the highest event time seen, less its delay: rows older than that are not expected any more
    idle         a source whose planned ranges have been empty for `idle_timeout`, by the checkpoints' clock: left out
    an operator  the least over the sources that are not idle; the highest of all if all are
    known        by no source that has given no row yet and is not idle: then the operator's stays where it was

    the end      with the last checkpoint (`stop --drain`) every operator's comes to the end of time

Watermarks only rise. They are part of the snapshot: a source's lies in the ack's memory under its name, an operator's
under `<uid>.watermark`. So every attempt computes the same ones, and a restart goes on with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from tidegate.config.keys import KEYS
from tidegate.operators.base import Watermarks
from tidegate.pipeline.graph.event_time import column_of, delay_s, input_of, origins
from tidegate.pipeline.graph.graph import Graph, OperatorNode
from tidegate.records.moments import END_OF_TIME, at_micros, micros_of
from tidegate.records.records import Json, Plan, Struct
from tidegate.spark.event_time import time_micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["EventTimes", "Partition", "SourceTime"]


class Partition(Struct, frozen=True, kw_only=True):
    """Event time of one partition of a source."""

    active: datetime
    """When the last checkpoint was planned that had rows of it; else the first one that looked."""
    highest: datetime | None = None
    watermark: datetime | None = None


class SourceTime(Struct, frozen=True, kw_only=True):
    """What the ack remembers of a source's event time. Every source has one partition today, without a name."""

    partitions: dict[str, Partition]


class EventTimes:
    """Event time in one attempt at a job."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        before: Mapping[str, Json],
        told: Callable[[str], int | None] = lambda name: None,
        elsewhere: Mapping[str, Json] | None = None,
    ) -> None:
        """told: the highest event time that a source knows of its planned rows without reading them.

        elsewhere: what jobs above have found out of their sources for this checkpoint.
        """
        self.graph = graph
        self.told_by_source = told
        self.plan = plan
        self.before = before
        self.clock = datetime.fromisoformat(plan.created)
        self.streams: Mapping[str, DataFrame] = {}
        self.origins = origins(graph.sources, graph.stages)
        self.stands = False
        """Event time stands still: the checkpoint is made by hand."""
        self.counted: dict[str, int] = {}
        """The rows of sources that had to be looked at."""
        self._sources: dict[str, Partition] = {}
        self._elsewhere = {name: _partition_of(known) for name, known in (elsewhere or {}).items()}
        self._operators: dict[str, datetime] = {}

    def of(self, stage: OperatorNode) -> Watermarks:
        """An operator's watermarks: none, unless it goes by event time."""
        if not stage.operator.uses_event_time:
            return Watermarks()
        known = self.before.get(_key(stage.name))
        before = msgspec.convert(known["at"], datetime) if known else None
        if self.stands:
            return Watermarks(before, before)
        reached = self._now(self.origins[input_of(stage.name)])
        if before is not None:
            reached = before if reached is None else max(before, reached)
        ends = self.plan.drain is not None
        now = END_OF_TIME if ends else reached
        if now is not None:
            self._operators[stage.name] = now
        return Watermarks(before, now, reached, ends)

    def columns(self, stage: OperatorNode) -> tuple[str | None, ...]:
        """By input of an operator, the column that its sources declare, if they agree on one."""
        return tuple(column_of(self.origins[name], self.graph.sources) for name in stage.inputs)

    def column(self, stage: OperatorNode) -> str | None:
        """The column that an operator goes by: its own choice, or the one that all its sources agree on."""
        return stage.operator.event_time or column_of(self.origins[input_of(stage.name)], self.graph.sources)

    def _now(self, into: Mapping[str, float]) -> datetime | None:
        """The least over the sources that are not idle."""
        times = [(self._partition(name), behind) for name, behind in into.items()]
        waited_for = [each for each in times if not self._is_idle(each[0])]
        marks = [_earlier(time.watermark, behind) for time, behind in waited_for or times]
        known = [each for each in marks if each is not None]
        if waited_for:
            return min(known) if len(known) == len(marks) else None
        return max(known, default=None)

    def _is_idle(self, time: Partition) -> bool:
        timeout = KEYS["idle_timeout"].parse(self.plan.config.get("idle_timeout", "never"))
        return timeout is not None and self.clock - time.active >= timedelta(seconds=timeout)

    def _partition(self, name: str) -> Partition:
        """A source's event time with this checkpoint's rows."""
        if name in self._elsewhere:
            return self._elsewhere[name]
        if name not in self._sources:
            self._sources[name] = self._advanced(name)
        return self._sources[name]

    def look(self, sources: Sequence[str]) -> None:
        """Find out how far these have come, for jobs behind this one."""
        for name in sources:
            self._partition(name)

    def _advanced(self, name: str) -> Partition:
        known = self.before.get(name)
        was = _partition_of(known) if known else Partition(active=self.clock)
        if self.plan.sources[name].empty:
            return was
        found = self._highest(name)
        highest = max((each for each in (was.highest, found) if each is not None), default=None)
        delay = delay_s(self.graph.sources[name], self.plan.config.get("watermark", 0))
        marks = [each for each in (was.watermark, _earlier(highest, delay)) if each is not None]
        return Partition(active=self.clock, highest=highest, watermark=max(marks, default=None))

    def _highest(self, name: str) -> datetime | None:
        """The highest event time in this checkpoint's rows. Rows without one do not count."""
        from pyspark.sql import functions as F

        if (told := self.told_by_source(name)) is not None:
            return at_micros(told)
        frame, column = self.streams[name], self.graph.sources[name].event_time
        assert column is not None
        found = frame.agg(F.max(time_micros(frame, column, f"source {name!r}")), F.count(F.lit(1))).first()
        assert found is not None
        self.counted[name] = found[1]
        return None if found[0] is None else at_micros(found[0])

    def memory(self) -> dict[str, Json]:
        """What is to be remembered, for the ack."""
        kept: dict[str, Json] = {
            name: msgspec.to_builtins(SourceTime(partitions={"": time})) for name, time in self._sources.items()
        }
        return kept | {_key(name): {"at": msgspec.to_builtins(at)} for name, at in self._operators.items()}

    def told(self) -> dict[str, str]:
        """The watermarks by source and operator, as text; for people."""
        marks = {name: time.watermark for name, time in self._sources.items()} | self._operators
        return {name: msgspec.to_builtins(at) for name, at in marks.items() if at is not None}

    def idle(self) -> list[str]:
        """The sources that were left out."""
        return sorted(name for name, time in self._sources.items() if self._is_idle(time))


def _partition_of(known: Json) -> Partition:
    return msgspec.convert(known, SourceTime).partitions[""]


def _key(operator: str) -> str:
    return f"{operator}.watermark"


def _earlier(time: datetime | None, seconds: float) -> datetime | None:
    return None if time is None else at_micros(micros_of(time) - round(seconds * 1_000_000))
