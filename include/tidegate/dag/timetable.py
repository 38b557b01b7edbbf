"""When a pipeline's runs begin: every `interval`, to the second or below, or never by themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pendulum
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable

from tidegate import seams
from tidegate.config.keys import duration_text

__all__ = ["Every"]


SINCE_ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
"""The start date of a DAG that was given none, for to catch up Airflow wants one: its first run is the next one, and
what is missed after that is made up for. A start date that somebody has given is where the first interval begins."""

MOST_CAUGHT_UP = 1000
"""So many missed intervals are made up for at most, the latest ones; what lies before them is told as a gap."""


class Every(Timetable):
    """Data intervals begin and end at whole multiples of `seconds` since 1970: days at midnight (UTC), hours at full
    hours. Each run begins `delay` seconds after its interval has ended.

    The delay keeps many pipelines of one interval from starting at the same moment, and waits for what comes late. It
    moves runs only. Where an interval has ended at no such multiple, as `seconds` was another number by then, the next
    one goes from there to the next multiple: nothing is left out, and nothing made twice.
    """

    description = "One checkpoint every interval"

    def __init__(self, seconds: float = 0.0, delay: float = 0.0) -> None:
        self.seconds = seconds
        self.delay = delay if seconds else 0.0
        self.can_be_scheduled = self.periodic = seconds > 0

    def serialize(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "delay": self.delay}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Every:
        return cls(data["seconds"], data["delay"])

    @property
    def summary(self) -> str:
        if not self.seconds:
            return "by hand"
        late = f", {duration_text(self.delay)} late" if self.delay else ""
        return f"every {duration_text(self.seconds)}{late}"

    def infer_manual_data_interval(self, *, run_after: pendulum.DateTime) -> DataInterval:
        if not self.seconds:
            return DataInterval.exact(run_after)
        end = self._tick_before(run_after.subtract(seconds=self.delay))  # whose run has begun, or could have
        return DataInterval(end.subtract(seconds=self.seconds), end)

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        if not self.seconds:
            return None
        now = pendulum.instance(seams.now())
        over = self._tick_before(now.subtract(seconds=self.delay))  # the end of the latest interval whose run is due
        # A backfill asks as the schedule does, with its own dates: it gets all that lies between them.
        first = restriction.earliest if restriction.earliest and restriction.earliest > SINCE_ALWAYS else None
        if last_automated_data_interval is not None:
            start = last_automated_data_interval.end
        elif first is not None:
            start = self._tick_from(first)
        else:
            start = self._tick_before(now)
        if not restriction.catchup:
            start = max(start, over.subtract(seconds=self.seconds))
        elif first is None:
            start = max(start, over.subtract(seconds=self.seconds * MOST_CAUGHT_UP))
        if restriction.latest is not None and start > restriction.latest:
            return None
        end = self._tick_before(start).add(seconds=self.seconds)
        return DagRunInfo(run_after=end.add(seconds=self.delay), data_interval=DataInterval(start, end))

    def _tick_before(self, at: pendulum.DateTime) -> pendulum.DateTime:
        return pendulum.from_timestamp(at.timestamp() // self.seconds * self.seconds, tz="UTC")

    def _tick_from(self, at: pendulum.DateTime) -> pendulum.DateTime:
        before = self._tick_before(at)
        return before if before == at else before.add(seconds=self.seconds)
