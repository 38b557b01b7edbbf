"""The rule for "late" and "closed", in each form in which it is computed.

**The rule.** A row or a window has *ended* by a watermark if its last moment is before the watermark. It follows:

    a row at time t                       t            has ended when  t < watermark
    a fixed window from start to end      end - 1 µs   has ended when  end <= watermark
    a session, which includes its end     end          has ended when  end < watermark, so end <= watermark - 1 µs

The terms differ in the watermark that is compared:

    late            ended by the base's watermark less the allowed lateness: takes no rows in this checkpoint
    closed before   ended by the base's watermark: its result has been emitted
    closed          ended by the watermark with this checkpoint's rows: its result is emitted now
    over            ended by that watermark less the allowed lateness: takes no rows later, and is not kept

Without a watermark, nothing has ended. A row without a time never ends, so it is not late. Callers count such rows
separately.

Because lateness is judged by the watermark of the base, results do not depend on how the input is cut into
checkpoints, as long as no row is later than the watermark's delay.

**The forms.** For windows, each form compares an end with a limit: in Python (`ended`), in a timestamp column of Spark
(`ended_sql`, `open_sql`, `closing_sql`), in microseconds in Spark (`ended_micros_sql`), in Arrow (`ended_mask`,
`late_mask`, `closing_starts`). For rows there are `passed_mask` and `late_rows_mask` in Arrow, and
`without_expired_files` for the statistics of files. `Lateness` describes the rule of any operator to the rest of
tidegate. All times are microseconds since 1970 in UTC.
tests/spark/test_lateness.py and tests/unit/state/test_lateness.py compare the forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.records.moments import micros_of
from tidegate.state.arrow.keys_as_numbers import integers
from tidegate.state.record import StateFile, StateTable
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

__all__ = [
    "ExpiredRows",
    "Lateness",
    "StartRange",
    "WindowLimits",
    "closing_sql",
    "closing_starts",
    "ended",
    "ended_mask",
    "ended_micros_sql",
    "ended_sql",
    "late_mask",
    "late_rows_mask",
    "open_sql",
    "passed_mask",
    "without_expired_files",
]


@dataclass(frozen=True)
class WindowLimits:
    """The limits that the ends of windows are compared with in one checkpoint. None: nothing has ended."""

    late: int | None
    """Windows that have ended by this time take no rows in this checkpoint."""
    closed_before: int | None
    """Windows that have ended by this time were complete at the base."""
    closed: int | None
    """Windows that have ended by this time are complete."""
    closed_for_rows: int | None
    """Windows that have ended by this time take no rows in the next checkpoint."""

    @classmethod
    def from_watermarks(
        cls, before: int | None, now: int | None, allowed_lateness: int = 0, *, includes_end: bool = False
    ) -> WindowLimits:
        """Return the limits for the watermarks of the base and of this checkpoint.

        includes_end: a row at the very end of a window belongs to it, as in sessions.
        """
        margin = 1 if includes_end else 0
        return cls(
            late=_minus(before, margin + allowed_lateness),
            closed_before=_minus(before, margin),
            closed=_minus(now, margin),
            closed_for_rows=_minus(now, margin + allowed_lateness),
        )

    def closes_any(self, size: int, slide: int) -> bool:
        """Return whether a window of this size, one every `slide`, may be closed now that was not closed before."""
        if self.closed is None:
            return False
        if self.closed_before is None:
            return True
        return (self.closed - size) // slide > (self.closed_before - size) // slide


def _minus(time: int | None, duration: int) -> int | None:
    return None if time is None else time - duration


# -- windows: an end, and a limit ------------------------------------------------------------------------


def ended(end: int | None, limit: int | None) -> bool:
    """Return whether a window with this end has ended by the limit."""
    return end is not None and limit is not None and end <= limit


def ended_sql(end: str, limit: int | None) -> str:
    """Return `ended` as SQL on a timestamp column."""
    if limit is None:
        return "false"
    return f"{end} <= timestamp_micros({limit})"


def open_sql(end: str, limit: int | None) -> str:
    """Return the opposite of `ended_sql` as SQL on a timestamp column that has no nulls."""
    if limit is None:
        return "true"
    return f"{end} > timestamp_micros({limit})"


def closing_sql(end: str, limits: WindowLimits) -> str:
    """Return SQL on a timestamp column: the window is closed, and was not before."""
    return f"{open_sql(end, limits.closed_before)} AND {ended_sql(end, limits.closed)}"


def ended_micros_sql(end: str, limit: int | None) -> str:
    """Return `ended` as SQL on an expression in microseconds."""
    return "false" if limit is None else f"{end} <= {limit}"


def ended_mask(ends: pa.Array | pa.ChunkedArray, limit: int | None) -> Any:
    """Return `ended` as a mask of a column that has no nulls."""
    import numpy as np

    if limit is None:
        return np.zeros(len(ends), bool)
    return integers(ends) <= limit


def late_mask(starts: pa.Array, size: int, limit: int | None) -> tuple[Any, Any]:
    """Return two masks of rows by the starts of their windows: they have a time, and the window has ended by the limit.

    It subtracts the size from the limit, because adding it to the starts might overflow.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    timed = pc.is_valid(starts).to_numpy(zero_copy_only=False)
    if limit is None:
        return timed, np.zeros(len(timed), bool)
    return timed, timed & (integers(pc.fill_null(starts, pa.scalar(0, starts.type))) <= limit - size)


@dataclass(frozen=True)
class StartRange:
    """A range of starts of windows, from `after` (exclusive, None: unbounded) to `upto` (inclusive)."""

    after: int | None
    upto: int

    def mask(self, starts: Any) -> Any:
        """Return a mask of the starts that are in the range."""
        if self.after is None:
            return starts <= self.upto
        return (starts <= self.upto) & (starts > self.after)

    def misses(self, low: int, greatest: int) -> bool:
        """Return whether no start between these two (inclusive) is in the range."""
        return low > self.upto or (self.after is not None and greatest <= self.after)


def closing_starts(limits: WindowLimits, size: int) -> StartRange | None:
    """Return the starts of windows of this size that close now, as in `closing_sql`. None: no window closes."""
    if limits.closed is None or limits.closed == limits.closed_before:
        return None
    if limits.closed_before is None:
        after = None
    else:
        after = limits.closed_before - size
    return StartRange(after, limits.closed - size)


# -- whether an operator still takes a row ----------------------------------------------------------------


@dataclass(frozen=True)
class Lateness:
    """The rule by which an operator refuses a row as late: all of the row's windows have ended by the base's watermark
    less the allowed lateness. The defaults are for operators without windows."""

    lasts: int = 1
    """How long after a row's time its window ends, in microseconds: its size, or the gap of a session plus 1."""
    slide: int = 0
    """The distance between starts of windows in microseconds. 0: a window begins with the row."""
    allowed: int = 0

    def column(self, time: Column, watermark: int) -> Column:
        """Return whether a row is lost, by its time in microseconds."""
        from pyspark.sql import functions as F

        begins = time - F.pmod(time, F.lit(self.slide)) if self.slide else time
        return begins + F.lit(self.lasts) <= F.lit(watermark - self.allowed)

    def lost(self, times: Any, watermark: int) -> Any:
        """Return a mask of the rows that are lost, by a numpy array of their times."""
        begins = times - times % self.slide if self.slide else times
        return begins + self.lasts <= watermark - self.allowed


# -- rows: a time in microseconds, and a watermark -------------------------------------------------------


def passed_mask(times: pa.ChunkedArray, watermark: int | None) -> Any:
    """Return a mask of a column that has no nulls: the row has ended by the watermark."""
    import numpy as np

    if watermark is None:
        return np.zeros(len(times), bool)
    return integers(times) < watermark


def late_rows_mask(times: pa.ChunkedArray, watermark: int | None) -> tuple[Any, Any]:
    """Return two masks of rows: they have a time, and they have ended by the watermark."""
    import pyarrow.compute as pc

    timed = pc.is_valid(times).to_numpy()
    return timed, timed & passed_mask(pc.fill_null(times, 0), watermark)


@dataclass(frozen=True)
class ExpiredRows:
    """Rows whose end in `column` is at or before `limit` have expired, and every reader has to ignore them."""

    column: str
    limit: int
    """In microseconds since 1970."""


def without_expired_files(table: StateTable, expired: ExpiredRows) -> StateTable:
    """Return the state without the files in which every row has expired, by their statistics.

    An expired row never hides a live one: for a key, later rows do not end before earlier ones.
    """
    remaining = [file for file in table.files if not _is_expired(file, expired)]
    if len(remaining) < len(table.files):
        return msgspec.structs.replace(table, files=remaining)
    return table


def _is_expired(file: StateFile, expired: ExpiredRows) -> bool:
    stats = msgspec.json.decode(file.file.stats)
    last = stats.get("maxValues", {}).get(expired.column)
    if last is None or stats.get("nullCount", {}).get(expired.column):
        return False
    return ended(micros_of(parse_time(last)), expired.limit)
