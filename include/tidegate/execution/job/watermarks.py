"""Computes watermarks: per source from its rows, per operator as the minimum over its sources.

    a source     the highest event time so far, minus its delay; older rows are late
    idle         a source whose planned ranges have been empty for `idle_timeout`, by the checkpoints' clock: ignored
    ended        a `bounded` source that has been read to its end: ignored, too
    an operator  the minimum over the sources that are not ignored; if all are, the maximum of all; the end of time if
                 all have ended
    unknown      while a source that is not idle has not had a row yet; the operator's watermark then does not change

    the end      with the last checkpoint (`stop --drain`) every operator's watermark reaches the end of time
    an interval  in an interval pipeline event time begins and ends with each interval: no row is late, and none waits

Watermarks only rise. They are part of the snapshot: a source's is in the ack's memory under its name, an operator's
under `<uid>.watermark`. So all attempts compute the same watermarks, and a restart continues with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache, reduce
from typing import TYPE_CHECKING

import msgspec

from tidegate.operators.context import Watermarks
from tidegate.pipeline.graph.event_time import column_of, delay_s, event_time_origins, idle_after_s, into_operator
from tidegate.pipeline.graph.graph import Graph, OperatorNode
from tidegate.records import typed
from tidegate.records.interval import Interval
from tidegate.records.moments import END_OF_TIME, from_micros, micros_of
from tidegate.records.records import Json, Plan
from tidegate.records.source_time import Partition, SourceTime, partition_of
from tidegate.spark.event_time import time_micros
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["EventTimes"]


class EventTimes:
    """The event times of sources and operators in one attempt at a job."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        before: Mapping[str, Json],
        known_highest: Callable[[str], int | None] = lambda name: None,
        elsewhere: Mapping[str, Json] | None = None,
        unread: Collection[str] = (),
    ) -> None:
        """before: the memory of the base.

        known_highest: returns the highest event time of a source's planned rows, if the source knows it without reading
        them. elsewhere: the event times of upstream jobs' sources in this checkpoint. unread: the operators of other
        jobs, if `before` is only this job's memory.
        """
        self.graph = graph
        self.unread = unread
        self.reported_by_source = cache(known_highest)
        self.plan = plan
        self.before = before
        self.clock = parse_time(plan.time)
        self.interval = None
        if plan.by_interval and plan.interval is not None:
            self.interval = Interval.of_record(plan.interval)
        """The data interval, in an interval pipeline."""
        self.streams: Mapping[str, DataFrame] = {}
        self.lags = event_time_origins(graph.sources, graph.stages)
        self._small = False
        self._passed_on: Collection[str] = ()
        self.does_not_move = False
        """Whether event time does not advance, as in a manual edit."""
        self.counted: dict[str, int] = {}
        """The number of rows of sources whose rows were read for their event time."""
        self._sources: dict[str, Partition] = {}
        self._maxima: dict[str, int | None] = {}
        """The highest event times of sources whose rows were read for them."""
        self._elsewhere = {name: partition_of(record) for name, record in (elsewhere or {}).items()}
        self._operators: dict[str, datetime] = {}

    def begin(self, streams: Mapping[str, DataFrame], passed_on: Collection[str], *, small: bool) -> None:
        """Begin with the streams of the sources.

        passed_on: the sources whose event time other jobs need. small: whether one task per source can read its rows.
        """
        self.streams = streams
        self._passed_on = passed_on
        self._small = small

    def needs_rows(self, name: str) -> bool:
        """Return whether a source's planned rows have to be read for its event time."""
        if self.does_not_move or self.interval is not None:
            return False
        if name in self._maxima or name not in self.graph.sources or self.plan.sources[name].empty:
            return False
        return name in self._needed or (name in self._passed_on and self.reported_by_source(name) is None)

    def record_maximum(self, name: str, highest: int | None, rows: int) -> None:
        """Record a source's highest event time, in microseconds, and number of rows, for a caller that has read all."""
        self._maxima[name], self.counted[name] = highest, rows

    def for_operator(self, stage: OperatorNode) -> Watermarks:
        """Return an operator's watermarks. It has none unless it uses event time."""
        if not stage.spec.uses_event_time:
            return Watermarks(event_time_ends=self.plan.drain is not None)
        if self.interval is not None:
            return Watermarks(None, END_OF_TIME, self.interval.end, event_time_ends=True, covers_all_input=True)
        record = self.before.get(_key(stage.name))
        before = typed.convert(record["at"], datetime) if record else None
        if self.does_not_move:
            return Watermarks(before, before)
        lags = self.lags[into_operator(stage.name)]
        reached = self._minimum(lags)
        if before is not None and before < END_OF_TIME:
            reached = before if reached is None else max(before, reached)
        all_ended = bool(lags) and all(self._has_ended(name) for name in lags)
        ends = self.plan.drain is not None or all_ended or before == END_OF_TIME
        now = END_OF_TIME if ends else reached
        if now is not None:
            self._operators[stage.name] = now
        return Watermarks(before, now, reached, ends)

    def base_watermark(self, operator: str) -> datetime | None:
        """Return an operator's watermark at the base. None if it had none, as a new operator: then no row is late.

        For an operator in another job, return an upper bound: what its sources in this job had reached.
        """
        record = self.before.get(_key(operator))
        if record:
            return typed.convert(record["at"], datetime)
        if operator not in self.unread:
            return None
        lags = self.lags[into_operator(operator)]
        marks = []
        for name, lag in lags.items():
            if name in self.before:
                mark = _earlier(partition_of(self.before[name]).watermark, lag)
                if mark is not None:
                    marks.append(mark)
        if len(marks) == len(lags):
            return min(marks, default=None)
        return max(marks, default=None)

    def columns(self, stage: OperatorNode) -> tuple[str | None, ...]:
        """Return, for each input of an operator, the column that its sources declare, if they agree on one."""
        return tuple(column_of(self.lags[name], self.graph.sources) for name in stage.inputs)

    def _minimum(self, lags: Mapping[str, float]) -> datetime | None:
        """Return the minimum over the sources that are not idle, or the maximum if all are.

        lags: how far the operator trails each source, in seconds.
        """
        active: list[datetime | None] = []
        idle: list[datetime | None] = []
        for name, lag in lags.items():
            time = self._partition(name)
            marks = idle if self._is_idle(name, time) else active
            marks.append(_earlier(time.watermark, lag))
        if active:
            known = [mark for mark in active if mark is not None]
            return min(known) if len(known) == len(active) else None
        return max((mark for mark in idle if mark is not None), default=None)

    def _is_idle(self, name: str, time: Partition) -> bool:
        """Return whether event time does not wait for a source: it had no rows for too long, or has ended."""
        if self._has_ended(name):
            return True
        timeout = idle_after_s(self.graph.sources[name], self.plan.config.get("idle_timeout", "never"))
        return timeout is not None and self.clock - time.active >= timedelta(seconds=timeout)

    def _has_ended(self, name: str) -> bool:
        """Return whether a bounded source has been read to its end."""
        return self.graph.sources[name].bounded and self.plan.sources[name].is_exhausted

    def _partition(self, name: str) -> Partition:
        """Return a source's event time after this checkpoint's rows."""
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
        if self.plan.sources[name].does_not_move:
            # The source has input, but waits for other sources: it is not idle.
            return msgspec.structs.replace(previous, active=self.clock)
        if self.plan.sources[name].empty:
            return previous
        highest = _latest(previous.highest, self._highest(name))
        delay = delay_s(self.graph.sources[name], self.plan.config.get("watermark", 0))
        watermark = _latest(previous.watermark, _earlier(highest, delay))
        return Partition(active=self.clock, highest=highest, watermark=watermark)

    def _highest(self, name: str) -> datetime | None:
        """Return the highest event time in this checkpoint's rows. Nulls are ignored."""
        if name not in self._maxima:
            reported = self.reported_by_source(name)
            if reported is not None:
                return from_micros(reported)
            self._read({name, *self._needed})
        micros = self._maxima[name]
        return None if micros is None else from_micros(micros)

    def _read(self, names: Collection[str]) -> None:
        """Find the highest event time of each of these sources, and its number of rows: one query for all of them."""
        from pyspark.sql import functions as F

        frames = []
        for name in sorted(names):
            frame, column = self.streams[name], self.graph.sources[name].event_time
            assert column is not None
            highest = F.max(time_micros(frame, column, f"source {name!r}"))
            if self._small:
                frame = frame.coalesce(1)  # avoids a shuffle
            frames.append(frame.agg(F.lit(name), highest, F.count(F.lit(1))))
        for name, micros, rows in reduce(_union, frames).collect():
            self._maxima[name], self.counted[name] = micros, rows

    @property
    def _needed(self) -> list[str]:
        """The sources that still have to be read for the event time of operators here."""
        names: set[str] = set()
        for stage in self.graph.stages:
            if isinstance(stage, OperatorNode) and stage.spec.uses_event_time:
                names.update(self.lags[into_operator(stage.name)])
        names &= self.streams.keys() - self._sources.keys() - self._elsewhere.keys() - self._maxima.keys()
        return [name for name in names if not self.plan.sources[name].empty and self.reported_by_source(name) is None]

    def memory(self) -> dict[str, Json]:
        """Return the record for the ack's memory."""
        memory: dict[str, Json] = {}
        for name, time in self._sources.items():
            memory[name] = msgspec.to_builtins(SourceTime(partitions={"": time}))
        for name, watermark in self._operators.items():
            memory[_key(name)] = {"at": msgspec.to_builtins(watermark)}
        return memory

    def watermark_texts(self) -> dict[str, str]:
        """Return the watermarks by source and operator, as text for users."""
        marks = {name: time.watermark for name, time in self._sources.items()} | self._operators
        return {name: msgspec.to_builtins(watermark) for name, watermark in marks.items() if watermark is not None}

    def idle(self) -> list[str]:
        """Return the sources that were ignored as idle."""
        return sorted(name for name, time in self._sources.items() if self._is_idle(name, time))


def _key(operator: str) -> str:
    return f"{operator}.watermark"


def _earlier(time: datetime | None, seconds: float) -> datetime | None:
    if time is None:
        return None
    return from_micros(micros_of(time) - round(seconds * 1_000_000))


def _latest(*times: datetime | None) -> datetime | None:
    return max((time for time in times if time is not None), default=None)


def _union(first: DataFrame, second: DataFrame) -> DataFrame:
    return first.unionAll(second)
