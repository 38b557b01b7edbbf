"""When a pipeline's runs begin: every `interval`, to the second or below, or never by themselves."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable

from tidegate import seams
from tidegate.config.keys import duration_text

__all__ = ["Every"]


class Every(Timetable):
    """Ticks at whole multiples of `seconds` since 1970, each `delay` seconds late; 0: no ticks.

    The delay keeps many pipelines of one interval from starting at the same moment.
    """

    description = "One checkpoint every interval"

    def __init__(self, seconds: float = 0.0, delay: float = 0.0) -> None:
        self.seconds = seconds
        self.delay = delay % seconds if seconds else 0.0
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
        end = self._tick_before(run_after)
        return DataInterval(end.subtract(seconds=self.seconds), end)

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        if not self.seconds:
            return None
        now = self._tick_before(pendulum.instance(seams.now()))
        if last_automated_data_interval is not None:
            start = last_automated_data_interval.end
        elif restriction.earliest is not None:
            start = self._tick_from(restriction.earliest)
        else:
            start = now
        if not restriction.catchup:
            start = max(start, now.subtract(seconds=self.seconds))  # the latest interval that is over
        if restriction.latest is not None and start > restriction.latest:
            return None
        return DagRunInfo.interval(start=start, end=start.add(seconds=self.seconds))

    def _tick_before(self, at: pendulum.DateTime) -> pendulum.DateTime:
        ticks = (at.timestamp() - self.delay) // self.seconds
        return pendulum.from_timestamp(ticks * self.seconds + self.delay, tz="UTC")

    def _tick_from(self, at: pendulum.DateTime) -> pendulum.DateTime:
        before = self._tick_before(at)
        return before if before == at else before.add(seconds=self.seconds)
