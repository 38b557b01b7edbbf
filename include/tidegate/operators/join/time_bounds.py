"""Event time in operators: bounds on the difference between rows, time columns, and outputs for late rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidegate.config.keys import seconds_in
from tidegate.errors import Invalid

if TYPE_CHECKING:
    from tidegate.operators.context import OperatorContext

__all__ = ["LATE_OUTPUT", "LATE_SIDES", "bounds_in", "need_time", "side_time_problems", "side_times"]

LATE_OUTPUT: Final = "late"
"""The output with rows that are late or have no time."""
LATE_SIDES: Final = ("late-left", "late-right")
"""The same for each side of an interval join."""


def bounds_in(within: object) -> tuple[int, int] | str:
    """Return how much earlier and later a row may be, in microseconds, or what is wrong. One duration counts both
    ways."""
    durations = within if isinstance(within, tuple | list) else (None, within)
    if len(durations) != 2:
        return f'within={within!r}: give one duration, such as "1 hour", or two, such as ("-10 min", "1 hour")'
    micros = [_micros(duration) for duration in durations if duration is not None]
    valid = [number for number in micros if number is not None]
    if len(valid) < len(micros) or not valid:
        return f'within={within!r}: expected durations such as "90 s", "10 min", "1 hour", "-1 day"'
    if len(valid) == 1:
        high = valid[0]
        if high <= 0:
            return (
                f'within={within!r} is too short: give a duration such as "1 hour"; to join rows of the same moment, '
                'write within=("0 s", "0 s")'
            )
        return -high, high
    low, high = valid
    if low > high:
        return f"within={within!r}: the first is how much earlier a row may be, the second how much later"
    return low, high


def _micros(duration: object) -> int | None:
    text = duration.strip() if isinstance(duration, str) else duration
    sign = -1 if isinstance(text, str) and text.startswith("-") else 1
    try:
        seconds: float = seconds_in(text[1:].strip() if sign < 0 and isinstance(text, str) else text)
        return sign * round(seconds * 1_000_000)
    except ValueError:
        return None


def side_times(event_time: str | tuple[str | None, str | None] | None) -> tuple[str | None, ...]:
    """Return the time column of each side. A single one counts for both."""
    if event_time is None or isinstance(event_time, str):
        return event_time, event_time
    return tuple(event_time)


def side_time_problems(times: Sequence[str | None]) -> list[str]:
    """Return the problems of both sides' time columns."""
    if len(times) == 2:
        return []
    return [f"event_time={times!r}: give one column, or one for each side"]


def need_time(name: str | None, place: int, context: OperatorContext) -> str:
    """Return the column with an input's event time: the operator's own choice, or that of the input's sources."""
    column = name or context.event_times[place]
    if not isinstance(column, str):
        raise Invalid(
            f"operator {context.uid!r} uses event time, but neither it nor its sources name the column",
            expected="the name of a timestamp column",
            help='add event_time="…" to the operator or to the source',
            reason="NO_EVENT_TIME",
        )
    return column
