"""A run's data interval: from `start` (inclusive) to `end` (exclusive), in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tidegate.errors import Invalid

__all__ = ["Interval", "moment_key"]

_KEY = "%Y%m%dT%H%M%S"


@dataclass(frozen=True, order=True)
class Interval:
    """Two moments. Equal moments of other time zones make an equal interval."""

    start: datetime
    end: datetime

    @staticmethod
    def of(start: object, end: object) -> Interval:
        """The interval between two moments that know their time zone; Invalid for anything else."""
        if not isinstance(start, datetime) or not isinstance(end, datetime):
            raise _bad(f"{start!r} to {end!r}", "two moments (datetime)")
        if start.utcoffset() is None or end.utcoffset() is None:
            raise _bad(f"{start.isoformat()} to {end.isoformat()}", "moments with a time zone")
        # Through the offset: subclasses such as pendulum's would stay subclasses.
        begin, finish = (datetime.fromisoformat(moment.isoformat()).astimezone(UTC) for moment in (start, end))
        if finish < begin:
            raise _bad(f"{start.isoformat()} to {end.isoformat()}", "a start that is not after the end")
        return Interval(begin, finish)

    @staticmethod
    def of_record(texts: tuple[str, str]) -> Interval:
        """From a plan."""
        return Interval.of(*map(datetime.fromisoformat, texts))

    @staticmethod
    def is_record(texts: tuple[str, str]) -> bool:
        """Whether a plan can hold these texts: moments with a time zone, in order."""
        try:
            Interval.of_record(texts)
        except (ValueError, OverflowError, Invalid):
            return False
        return True

    @property
    def record(self) -> tuple[str, str]:
        """For a plan."""
        return self.start.isoformat(), self.end.isoformat()

    @staticmethod
    def of_key(key: str) -> Interval | None:
        """What a folder's name stands for; None: it is no interval's."""
        try:
            start, end = (datetime.strptime(part, f"{_KEY}.%fZ").replace(tzinfo=UTC) for part in key.split("_"))
        except ValueError:
            return None
        return Interval(start, end)

    @property
    def key(self) -> str:
        """As a folder's name: names sort as intervals do."""
        return f"{moment_key(self.start)}_{moment_key(self.end)}"

    @property
    def empty(self) -> bool:
        """No time lies in it: what a schedule without data intervals gives."""
        return self.start == self.end

    def overlaps(self, other: Interval) -> bool:
        """Whether some moment lies in both."""
        return self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"{_short(self.start)}/{_short(self.end)}"


def moment_key(moment: datetime) -> str:
    """How the keys of intervals begin that begin then."""
    return f"{moment:{_KEY}}.{moment.microsecond:06d}Z"


def _short(moment: datetime) -> str:
    """As people write it, and as `tidegate run --interval` reads it: UTC, without what is zero at its end."""
    text = f"{moment:%Y-%m-%dT%H:%M}"
    if moment.second or moment.microsecond:
        text += f":{moment:%S}" + (f".{moment:%f}".rstrip("0") if moment.microsecond else "")
    return text


def _bad(given: str, expected: str) -> Invalid:
    return Invalid(
        f"the interval {given} is not allowed",
        expected=expected,
        help="give the run's data interval, such as 2026-01-01T00:00/2026-01-02T00:00 (UTC unless it says otherwise)",
        reason="BAD_INTERVAL",
    )
