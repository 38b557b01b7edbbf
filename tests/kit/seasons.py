"""A year of hourly numbers with seasons, trend, noise and holidays, and faults that are planted in it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

__all__ = ["FIRST_DAY", "HOURS", "LEARNED", "Year", "year_of"]

FIRST_DAY = datetime(2025, 1, 1, tzinfo=timezone.utc)
HOURS = 365 * 24
LEARNED = 28 * 24
"""The first four weeks, which have no fault: everybody may learn from them."""
FAULTS = {"a third": 0.3, "half": 0.5, "twice": 2.0, "three times": 3.0, "nothing": 0.0}
HOLIDAY = 0.45


@dataclass(frozen=True)
class Year:
    """The hours' numbers, the hours with a fault, and those of holidays, which are no faults."""

    numbers: list[float]
    faults: dict[int, str]
    holidays: frozenset[int]

    def moment(self, hour: int) -> datetime:
        """Return when an hour begins."""
        return FIRST_DAY + timedelta(hours=hour)

    def score(self, alarms: set[int]) -> dict[str, int]:
        """Count the alarms: faults that were found, and false ones on ordinary days and on holidays."""
        false = alarms - self.faults.keys()
        return {
            "found": len(alarms & self.faults.keys()),
            "false": len(false - self.holidays),
            "on holidays": len(false & self.holidays),
        }


def year_of(seed: int, noise: float, faults: int = 30) -> Year:
    """Return a year. noise: the standard deviation of each hour, as a share; half of it goes over to the next hour."""
    dice = random.Random(seed)
    days = dice.sample(range(LEARNED // 24, 365), 8)
    holidays = frozenset(24 * day + hour for day in days for hour in range(24))
    planted: dict[int, str] = {}
    while len(planted) < faults:
        hour = dice.randrange(LEARNED, HOURS)
        if hour not in holidays and all(abs(hour - other) >= 8 for other in planted):
            planted[hour] = dice.choice(sorted(FAULTS))
    numbers, lasting = [], 0.0
    for hour in range(HOURS):
        at = FIRST_DAY + timedelta(hours=hour)
        usual = 1000 * (1 + 0.3 * hour / HOURS)
        usual *= 1 + 0.6 * math.sin((at.hour - 8) / 24 * 2 * math.pi)
        if at.weekday() >= 5:
            usual *= 0.55 * (1 + 0.2 * math.cos(at.hour / 24 * 2 * math.pi))
        lasting = 0.5 * lasting + dice.gauss(0, noise)
        number = usual * math.exp(lasting) * (HOLIDAY if hour in holidays else 1)
        numbers.append(number * FAULTS[planted[hour]] if hour in planted else number)
    return Year(numbers, planted, holidays)
