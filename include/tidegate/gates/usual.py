"""What is usual for a number that is measured again and again, with seasons. Plain Python, without Spark.

Numbers are compared as t(x) = sign(x) ln(1 + |x|), so a spread is a share of large numbers. The forecast is

    expected = level + offset of the season's hour

and the band around it is a number of spreads wide on each side. The spread is the median distance from the forecast,
which a slow tracker follows for each hour of the day. Everything is robust: medians at the start, and later each number
moves the level and the offsets by no more than a few spreads. So one fault changes the forecast a little, and a number
that is far away because of a fault never becomes normal alone.

If several unusual numbers in a row are on the same side, the level has shifted, and follows to their median. The level
before is kept for a while: numbers that fit it again, as after a holiday, are usual at once.

A memory is a few numbers for each hour of the season, whatever the number of checkpoints. It is a plain JSON value, and
the same numbers give the same memory, so a checkpoint that is repeated is judged alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Final, Literal

from tidegate.records.records import Json

__all__ = ["BUCKETS", "SPREADS", "Band", "Season", "Usual", "bucket_of"]

Season = Literal["day", "week"]
BUCKETS: Final[dict[Season | None, int]] = {None: 1, "day": 24, "week": 168}
"""The number of hours of a season."""
SPREADS: Final = {"low": 7.0, "medium": 5.0, "high": 4.0}
"""How many standard deviations the band is wide, on each side, by the sensitivity."""
PER_MEDIAN: Final = 1.4826
"""The standard deviation of a normal distribution, as a multiple of its median distance from the mean."""
LEAST_SPREAD: Final = 0.003
"""The least standard deviation, so that numbers that never changed may change by a few percent."""
FIRST: Final = 3
"""An hour's offset is the median of its first this many numbers. Until then, nothing is known about it."""
FIRST_DISTANCES: Final = 20
"""The spread is the median of this many distances at first."""
NEAR: Final = 2
"""An hour without an offset takes that of another one, at most so many hours away."""
CLIP: Final = 2.5
"""A number moves level and offset as if it were at most so many standard deviations away."""
LEVEL_GAIN, OFFSET_GAIN = 0.1, 0.2
SPREAD_GAIN, HOUR_SPREAD_GAIN = 0.02, 0.05
SHIFTED: Final = 6
"""So many unusual numbers in a row, on one side, are a new level."""
FORMER_LEVEL_LASTS: Final = 72
"""For so many numbers after a shift, those that fit the level before are usual, too."""


@dataclass(frozen=True)
class Band:
    """The numbers that were expected."""

    low: float
    expected: float
    high: float


def bucket_of(moment: datetime, season: Season | None) -> int:
    """Return the hour of the season that a moment is in."""
    if season is None:
        return 0
    return moment.hour if season == "day" else moment.weekday() * 24 + moment.hour


class Usual:
    """The memory of one number: what is usual, hour by hour of its season."""

    def __init__(self, season: Season | None, memory: Json | None = None) -> None:
        memory = memory or {}
        buckets = BUCKETS[season]
        self.count: int = memory.get("count", 0)
        self.level: float = memory.get("level", 0.0)
        self.offsets: list[float | None] = memory.get("offsets") or [None] * buckets
        self.first: dict[str, list[float]] = {hour: list(told) for hour, told in memory.get("first", {}).items()}
        self.distances: list[float] = list(memory.get("distances", []))
        self.spread: float | None = memory.get("spread")
        self.hour_spreads: list[float | None] = memory.get("hours") or [None] * min(buckets, 24)
        self.unusual: list[float] = list(memory.get("unusual", []))
        self.former: float | None = memory.get("former")
        self.former_lasts: int = memory.get("lasts", 0)
        self.offsets, self.hour_spreads = list(self.offsets), list(self.hour_spreads)

    def memory(self) -> Json:
        """Return the memory as JSON, in few digits."""
        memory: Json = {"count": self.count, "level": round(self.level, 6), "offsets": list(map(_short, self.offsets))}
        if self.first:
            memory["first"] = {hour: list(map(_short, numbers)) for hour, numbers in self.first.items()}
        if self.spread is None:
            memory["distances"] = list(map(_short, self.distances))
        else:
            memory["spread"] = _short(self.spread)
            memory["hours"] = list(map(_short, self.hour_spreads))
        if self.unusual:
            memory["unusual"] = list(map(_short, self.unusual))
        if self.former is not None:
            memory |= {"former": round(self.former, 6), "lasts": self.former_lasts}
        return memory

    def band(self, bucket: int, spreads: float) -> Band | None:
        """Return what is expected at an hour, or None if too little is known about it."""
        offset, deviation = self._offset(bucket), self._deviation(bucket)
        if offset is None or deviation is None:
            return None
        expected = self.level + offset
        reach = spreads * deviation
        return Band(_from_log_scale(expected - reach), _from_log_scale(expected), _from_log_scale(expected + reach))

    def fits(self, value: float, bucket: int, spreads: float) -> bool:
        """Return whether a number is usual at an hour. Only call it if there is a band."""
        offset, deviation = self._offset(bucket), self._deviation(bucket)
        assert offset is not None
        assert deviation is not None
        distance = _compared(value) - self.level - offset
        return abs(distance) <= spreads * deviation or self._fits_former(distance, spreads * deviation)

    def add(self, value: float, bucket: int, spreads: float) -> None:
        """Learn from a number."""
        self.count += 1
        number = _compared(value)
        if self.count == 1:
            self.level = number
        offset, deviation = self._offset(bucket), self._deviation(bucket)
        if offset is not None:
            self._learn(number - self.level - offset, bucket, deviation, spreads)
        if self.offsets[bucket] is None:
            first = [*self.first.get(str(bucket), []), number - self.level]
            self.first[str(bucket)] = first
            if len(first) == FIRST:
                self.offsets[bucket] = median(self.first.pop(str(bucket)))

    def _learn(self, distance: float, bucket: int, deviation: float | None, spreads: float) -> None:
        """Learn from the distance between a number and its forecast."""
        if deviation is None:
            self.distances.append(abs(distance))
            if len(self.distances) == FIRST_DISTANCES:
                self.spread = max(median(self.distances), LEAST_SPREAD / PER_MEDIAN)
                self.distances = []
            self._move(distance, bucket)
            return
        reach = spreads * deviation
        if abs(distance) > reach and self._fits_former(distance, reach):
            assert self.former is not None
            distance -= self.former - self.level
            self.level, self.former = self.former, None
            self.unusual = []
        if abs(distance) <= reach:
            self.unusual = []
            self._forget_former()
        else:
            same_side = bool(self.unusual) and (self.unusual[-1] > 0) == (distance > 0)
            self.unusual = [*self.unusual, distance] if same_side else [distance]
            if len(self.unusual) >= SHIFTED:
                self.former, self.former_lasts = self.level, FORMER_LEVEL_LASTS
                self.level += median(self.unusual)
                self.unusual = []
                return
        clip = CLIP * deviation
        self._move(min(max(distance, -clip), clip), bucket)
        self._track(abs(distance), bucket, is_usual=abs(distance) <= reach)

    def _move(self, distance: float, bucket: int) -> None:
        self.level += LEVEL_GAIN * distance
        offset = self.offsets[bucket]
        if offset is not None and len(self.offsets) > 1:
            self.offsets[bucket] = offset + OFFSET_GAIN * distance

    def _track(self, distance: float, bucket: int, *, is_usual: bool) -> None:
        """Let the spreads follow: up if the distance is greater than the median so far, otherwise down."""
        assert self.spread is not None
        weight = 1.0 if is_usual else 0.25
        least = LEAST_SPREAD / PER_MEDIAN
        hour = bucket % len(self.hour_spreads)
        own = self.hour_spreads[hour]
        before = own if own is not None else self.spread
        self.hour_spreads[hour] = max(before * _step(distance, before, HOUR_SPREAD_GAIN * weight), least)
        self.spread = max(self.spread * _step(distance, self.spread, SPREAD_GAIN * weight), least)

    def _offset(self, bucket: int) -> float | None:
        """Return an hour's offset, or that of the nearest hour that has one."""
        count = len(self.offsets)
        for away in range(NEAR + 1):
            for place in (bucket - away, bucket + away):
                offset = self.offsets[place % count]
                if offset is not None:
                    return offset
        return None

    def _deviation(self, bucket: int) -> float | None:
        if self.spread is None:
            return None
        own = self.hour_spreads[bucket % len(self.hour_spreads)]
        return PER_MEDIAN * max(own if own is not None else self.spread, self.spread / 3, LEAST_SPREAD / PER_MEDIAN)

    def _fits_former(self, distance: float, reach: float) -> bool:
        return self.former is not None and abs(distance - (self.former - self.level)) <= reach

    def _forget_former(self) -> None:
        if self.former is not None:
            self.former_lasts -= 1
            if self.former_lasts <= 0:
                self.former = None


def _step(distance: float, spread: float, gain: float) -> float:
    return math.exp(gain if distance > spread else -gain)


def _compared(value: float) -> float:
    return math.copysign(math.log1p(abs(value)), value)


def _from_log_scale(number: float) -> float:
    return math.copysign(math.expm1(min(abs(number), 700.0)), number)


def _short(number: float | None) -> float | None:
    """Return a number of four digits."""
    return None if number is None else float(f"{number:.4g}")
