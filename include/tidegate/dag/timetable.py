"""A pipeline's timetable: a run every `interval`, which may be less than a second, or only manual runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pendulum
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable

from tidegate import seams
from tidegate.config.keys import duration_text
from tidegate.versions.python import UTC

__all__ = ["Every"]


EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
"""The start date of a DAG without one, because Airflow needs one to catch up. The first run is then the next one, and
only runs missed later are caught up. With an explicit start date, the first interval begins there."""

MAX_CAUGHT_UP_RUNS = 1000
"""The maximum number of missed intervals to catch up, the latest ones. Older ones are reported as a gap."""


class Every(Timetable):
    """Data intervals begin and end at whole multiples of `seconds` since 1970: days at midnight (UTC), hours at full
    hours. Each run begins `delay` seconds after its interval has ended.

    The delay spreads the starts of pipelines with the same interval, and waits for late input. It only moves runs, not
    intervals. If an interval did not end at such a multiple, because `seconds` was different then, the next one ends at
    the next multiple: nothing is skipped or processed twice.
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
        end = self._tick_before(run_after.subtract(seconds=self.delay))  # the latest interval whose run was due
        return DataInterval(end.subtract(seconds=self.seconds), end)

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        if not self.seconds:
            return None
        now = pendulum.instance(seams.now())
        latest_end = self._tick_before(now.subtract(seconds=self.delay))  # of the latest interval whose run is due
        # A backfill calls this with its own dates, and expects every interval between them.
        first = None
        if restriction.earliest and restriction.earliest > EPOCH_START:
            first = restriction.earliest
        if last_automated_data_interval is not None:
            start = last_automated_data_interval.end
        elif first is not None:
            start = self._tick_from(first)
        else:
            start = self._tick_before(now)
        if not restriction.catchup:
            start = max(start, latest_end.subtract(seconds=self.seconds))
        elif first is None:
            start = max(start, latest_end.subtract(seconds=self.seconds * MAX_CAUGHT_UP_RUNS))
        if restriction.latest is not None and start > restriction.latest:
            return None
        end = self._tick_before(start).add(seconds=self.seconds)
        return DagRunInfo(run_after=end.add(seconds=self.delay), data_interval=DataInterval(start, end))

    def _tick_before(self, moment: pendulum.DateTime) -> pendulum.DateTime:
        return pendulum.from_timestamp(moment.timestamp() // self.seconds * self.seconds, tz="UTC")

    def _tick_from(self, moment: pendulum.DateTime) -> pendulum.DateTime:
        tick = self._tick_before(moment)
        if tick == moment:
            return tick
        return tick.add(seconds=self.seconds)
