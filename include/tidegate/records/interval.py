"""A run's data interval: from `start` (inclusive) to `end` (exclusive), in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.errors import Invalid
from tidegate.versions.python import UTC, parse_time

__all__ = ["Interval", "moment_key"]

_KEY = "%Y%m%dT%H%M%S"


@dataclass(frozen=True, order=True)
class Interval:
    """Two moments, compared regardless of their time zones."""

    start: datetime
    end: datetime

    @staticmethod
    def between(start: object, end: object) -> Interval:
        """Return the interval between two moments with a time zone. Raise Invalid for anything else."""
        if not isinstance(start, datetime) or not isinstance(end, datetime):
            raise _bad(f"{start!r} to {end!r}", "two moments (datetime)")
        if start.utcoffset() is None or end.utcoffset() is None:
            raise _bad(f"{start.isoformat()} to {end.isoformat()}", "moments with a time zone")
        interval = Interval(_in_utc(start), _in_utc(end))
        if interval.end < interval.start:
            raise _bad(f"{start.isoformat()} to {end.isoformat()}", "a start that is not after the end")
        return interval

    @staticmethod
    def of_record(texts: tuple[str, str]) -> Interval:
        """Return the interval that a plan holds."""
        return Interval.between(*map(parse_time, texts))

    @staticmethod
    def is_record(texts: tuple[str, str]) -> bool:
        """Return whether a plan can hold these texts: moments with a time zone, in order."""
        try:
            Interval.of_record(texts)
        except (ValueError, OverflowError, Invalid):
            return False
        return True

    @property
    def record(self) -> tuple[str, str]:
        """The form in a plan."""
        return self.start.isoformat(), self.end.isoformat()

    @staticmethod
    def of_key(key: str) -> Interval | None:
        """Return the interval of a folder name, or None if it is not one of an interval."""
        try:
            start, end = key.split("_")
            return Interval(_parse_key(start), _parse_key(end))
        except ValueError:
            return None

    @property
    def key(self) -> str:
        """The interval as a folder name. Names sort as intervals do."""
        return f"{moment_key(self.start)}_{moment_key(self.end)}"

    @property
    def empty(self) -> bool:
        """True if it contains no time, as with a schedule without data intervals."""
        return self.start == self.end

    def overlaps(self, other: Interval) -> bool:
        """Return whether some moment is in both."""
        return self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"{_short(self.start)}/{_short(self.end)}"


def moment_key(moment: datetime) -> str:
    """Return the prefix of the keys of all intervals that start at this moment."""
    return f"{moment:{_KEY}}.{moment.microsecond:06d}Z"


def _parse_key(text: str) -> datetime:
    return datetime.strptime(text, f"{_KEY}.%fZ").replace(tzinfo=UTC)


def _in_utc(moment: datetime) -> datetime:
    """Return a plain datetime in UTC. Through text, because an instance of a subclass, such as pendulum's, would stay
    one."""
    return datetime.fromisoformat(moment.isoformat()).astimezone(UTC)


def _short(moment: datetime) -> str:
    """Format a moment as `tidegate run --interval` reads it: UTC, without trailing zeros."""
    text = f"{moment:%Y-%m-%dT%H:%M}"
    if moment.second or moment.microsecond:
        text += f":{moment:%S}"
    if moment.microsecond:
        text += f".{moment:%f}".rstrip("0")
    return text


def _bad(text: str, expected: str) -> Invalid:
    return Invalid(
        f"the interval {text} is not allowed",
        expected=expected,
        help="pass the run's data interval, such as 2026-01-01T00:00/2026-01-02T00:00 (UTC unless it says otherwise)",
        reason="BAD_INTERVAL",
    )
