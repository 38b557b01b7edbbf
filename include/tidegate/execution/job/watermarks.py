"""Progress of event time: per source from its rows, per operator the minimum over its sources.

    a source     the highest event time seen, less its delay: rows older than that are not expected any more
    idle         a source whose planned ranges have been empty for `idle_timeout`, by the checkpoints' clock: left out
    ended        a source that is `bounded`, and of which nothing is left to be read: left out, too
    an operator  the minimum over the sources that are not idle; the highest of all if all are; the end of time if all
                 have ended: nothing will come
    unknown      while a source has not had a row yet and is not idle: then the operator's watermark stays where it was

    the end      with the last checkpoint (`stop --drain`) every operator's watermark reaches the end of time
    an interval  in an interval pipeline event time begins and ends with each interval: nothing is late, or waits

Watermarks only rise. They are part of the snapshot: a source's is in the ack's memory under its name, an operator's
under `<uid>.watermark`. So every attempt computes the same ones, and a restart continues with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache, reduce
from typing import TYPE_CHECKING

import msgspec

from tidegate.operators.context import Watermarks
from tidegate.pipeline.graph.event_time import column_of, delay_s, idle_after_s, into_operator, lag_by_source
from tidegate.pipeline.graph.graph import Graph, OperatorNode
from tidegate.records import typed
from tidegate.records.interval import Interval
from tidegate.records.moments import END_OF_TIME, at_micros, micros_of
from tidegate.records.records import Json, Plan
from tidegate.records.source_time import Partition, SourceTime, partition_of
from tidegate.spark.event_time import time_micros
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["EventTimes"]


class EventTimes:
    """Event time in one attempt at a job."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        before: Mapping[str, Json],
        known_highest: Callable[[str], int | None] = lambda name: None,
        elsewhere: Mapping[str, Json] | None = None,
        unread: Collection[str] = (),
    ) -> None:
        """known_highest: returns the highest event time that a source knows of its planned rows without reading them.

        elsewhere: the event times that upstream jobs have found in their sources for this checkpoint. unread: the
        operators of other jobs, if `before` is only what this job remembers.
        """
        self.graph = graph
        self.unread = unread
        self.told_by_source = cache(known_highest)
        self.plan = plan
        self.before = before
        self.clock = parse_time(plan.time)
        self.interval = Interval.of_record(plan.interval) if plan.by_interval and plan.interval is not None else None
        """In an interval pipeline: the interval."""
        self.streams: Mapping[str, DataFrame] = {}
        self.lags = lag_by_source(graph.sources, graph.stages)
        self._small = False
        self._passed_on: Collection[str] = ()
        self.stands = False
        """Event time stands still: the checkpoint is made by hand."""
        self.counted: dict[str, int] = {}
        """The number of rows of sources whose rows had to be read for it."""
        self._sources: dict[str, Partition] = {}
        self._found: dict[str, int | None] = {}
        """The highest event times of sources whose rows were read for it."""
        self._elsewhere = {name: partition_of(record) for name, record in (elsewhere or {}).items()}
        self._operators: dict[str, datetime] = {}

    def begin(self, streams: Mapping[str, DataFrame], passed_on: Collection[str], *, small: bool) -> None:
        """passed_on: the sources whose event time other jobs ask for.

        small: the sources have so few rows that one task for each reads them.
        """
        self.streams = streams
        self._passed_on = passed_on
        self._small = small

    def needs_rows(self, name: str) -> bool:
        """Return whether a source's planned rows have to be looked through for its event time."""
        if self.stands or self.interval is not None:
            return False
        if name in self._found or name not in self.graph.sources or self.plan.sources[name].empty:
            return False
        return name in self._needed or (name in self._passed_on and self.told_by_source(name) is None)

    def record_maximum(self, name: str, highest: int | None, rows: int) -> None:
        """Take up what somebody has found who has all planned rows of a source: the highest event time in microseconds,
        and their number."""
        self._found[name], self.counted[name] = highest, rows

    def of(self, stage: OperatorNode) -> Watermarks:
        """Return an operator's watermarks: none, unless it uses event time."""
        if not stage.spec.uses_event_time:
            return Watermarks(event_time_ends=self.plan.drain is not None)
        if self.interval is not None:
            return Watermarks(None, END_OF_TIME, self.interval.end, event_time_ends=True, covers_all_input=True)
        record = self.before.get(_key(stage.name))
        before = typed.convert(record["at"], datetime) if record else None
        if self.stands:
            return Watermarks(before, before)
        into = self.lags[into_operator(stage.name)]
        reached = self._now(into)
        if before is not None and before < END_OF_TIME:
            reached = before if reached is None else max(before, reached)
        nothing_comes = bool(into) and all(self._has_ended(name) for name in into)
        ends = self.plan.drain is not None or nothing_comes or before == END_OF_TIME
        now = END_OF_TIME if ends else reached
        if now is not None:
            self._operators[stage.name] = now
        return Watermarks(before, now, reached, ends)

    def watermark_at_base(self, operator: str) -> datetime | None:
        """Return the watermark that an operator had at the base. None: it had none, such as a new one, for which no row
        is late. Of one in another job: the one that its sources, as far as they are in this job, had come to; it may
        have been behind that."""
        record = self.before.get(_key(operator))
        if record:
            return typed.convert(record["at"], datetime)
        if operator not in self.unread:
            return None
        into = self.lags[into_operator(operator)]
        told = {name: partition_of(self.before[name]).watermark for name in into if name in self.before}
        marks = [mark for name, time in told.items() if (mark := _earlier(time, into[name])) is not None]
        return (min if len(marks) == len(into) else max)(marks, default=None)

    def columns(self, stage: OperatorNode) -> tuple[str | None, ...]:
        """Return, for each input of an operator, the column that its sources declare, if they agree on one."""
        return tuple(column_of(self.lags[name], self.graph.sources) for name in stage.inputs)

    def _now(self, into: Mapping[str, float]) -> datetime | None:
        """Return the minimum over the sources that are not idle."""
        times = [(name, self._partition(name), behind) for name, behind in into.items()]
        waited_for = [time_of for time_of in times if not self._is_idle(time_of[0], time_of[1])]
        marks = [_earlier(time.watermark, behind) for _, time, behind in waited_for or times]
        known_marks = [mark for mark in marks if mark is not None]
        if waited_for:
            return min(known_marks) if len(known_marks) == len(marks) else None
        return max(known_marks, default=None)

    def _is_idle(self, name: str, time: Partition) -> bool:
        """Return whether event time does not wait for a source: for too long it had no rows, or there are none left."""
        if self._has_ended(name):
            return True
        timeout = idle_after_s(self.graph.sources[name], self.plan.config.get("idle_timeout", "never"))
        return timeout is not None and self.clock - time.active >= timedelta(seconds=timeout)

    def _has_ended(self, name: str) -> bool:
        """Return whether nothing is left to be read of a source, and there will be nothing more."""
        return self.graph.sources[name].bounded and self.plan.sources[name].is_exhausted

    def _partition(self, name: str) -> Partition:
        """Return a source's event time with this checkpoint's rows."""
        if name in self._elsewhere:
            return self._elsewhere[name]
        if name not in self._sources:
            self._sources[name] = self._advanced(name)
        return self._sources[name]

    def find_maxima(self, sources: Sequence[str]) -> None:
        """Determine the event time of these sources, for downstream jobs."""
        for name in sources if self.interval is None else ():
            self._partition(name)

    def _advanced(self, name: str) -> Partition:
        record = self.before.get(name)
        previous = partition_of(record) if record else Partition(active=self.clock)
        if self.plan.sources[name].empty:
            waits = self.plan.sources[name].stands  # for other sources, with input of its own: it is not idle
            return msgspec.structs.replace(previous, active=self.clock) if waits else previous
        newest = self._highest(name)
        highest = max((time for time in (previous.highest, newest) if time is not None), default=None)
        delay = delay_s(self.graph.sources[name], self.plan.config.get("watermark", 0))
        marks = [mark for mark in (previous.watermark, _earlier(highest, delay)) if mark is not None]
        return Partition(active=self.clock, highest=highest, watermark=max(marks, default=None))

    def _highest(self, name: str) -> datetime | None:
        """Return the highest event time in this checkpoint's rows. Rows without one do not count."""
        if name not in self._found and (micros := self.told_by_source(name)) is not None:
            return at_micros(micros)
        if name not in self._found:
            self._read({name, *self._needed})
        found = self._found[name]
        return None if found is None else at_micros(found)

    def _read(self, names: Collection[str]) -> None:
        """Find the highest event time of each of these sources, and its number of rows: one query for all of them."""
        from pyspark.sql import functions as F

        frames = []
        for name in sorted(names):
            frame, column = self.streams[name], self.graph.sources[name].event_time
            assert column is not None
            highest = F.max(time_micros(frame, column, f"source {name!r}"))
            frame = frame.coalesce(1) if self._small else frame  # no shuffle
            frames.append(frame.agg(F.lit(name), highest, F.count(F.lit(1))))
        for name, micros, rows in reduce(_both, frames).collect():
            self._found[name], self.counted[name] = micros, rows

    @property
    def _needed(self) -> list[str]:
        """The sources whose event time operators here will ask for, and that have to be read for it."""
        operators = [stage for stage in self.graph.stages if isinstance(stage, OperatorNode)]
        asked = {name for s in operators if s.spec.uses_event_time for name in self.lags[into_operator(s.name)]}
        asked &= self.streams.keys() - self._sources.keys() - self._elsewhere.keys() - self._found.keys()
        planned = (name for name in asked if not self.plan.sources[name].empty)
        return [name for name in planned if self.told_by_source(name) is None]

    def memory(self) -> dict[str, Json]:
        """Return the record for the ack's memory."""
        sources: dict[str, Json] = {
            name: msgspec.to_builtins(SourceTime(partitions={"": time})) for name, time in self._sources.items()
        }
        return sources | {
            _key(name): {"at": msgspec.to_builtins(watermark)} for name, watermark in self._operators.items()
        }

    def watermark_texts(self) -> dict[str, str]:
        """Return the watermarks by source and operator, as text for users."""
        marks = {name: time.watermark for name, time in self._sources.items()} | self._operators
        return {name: msgspec.to_builtins(watermark) for name, watermark in marks.items() if watermark is not None}

    def idle(self) -> list[str]:
        """Return the sources that were left out as idle."""
        return sorted(name for name, time in self._sources.items() if self._is_idle(name, time))


def _key(operator: str) -> str:
    return f"{operator}.watermark"


def _earlier(time: datetime | None, seconds: float) -> datetime | None:
    return None if time is None else at_micros(micros_of(time) - round(seconds * 1_000_000))


def _both(first: DataFrame, second: DataFrame) -> DataFrame:
    return first.unionAll(second)
