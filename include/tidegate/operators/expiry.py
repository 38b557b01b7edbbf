"""Declarations of when the rows of a state expire."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tidegate.config.keys import InvalidValue, seconds_in
from tidegate.records.records import Json
from tidegate.state.record import RowTtl, Ttl

if TYPE_CHECKING:
    from tidegate.operators.context import OperatorContext

__all__ = ["NEVER", "Expiry", "RowExpiry"]


@dataclass(frozen=True)
class Expiry:
    """A declaration by the user, such as `state_ttl`."""

    after: str | float | None
    """How long a key's row lives after its last change. None: forever."""
    time: str = "processing"
    """The clock that decides: "processing" is the checkpoint's clock, "event" the watermark."""

    @property
    def is_never(self) -> bool:
        """Whether rows live forever."""
        return self.after is None

    @property
    def uses_event_time(self) -> bool:
        """True if it needs watermarks."""
        return self.after is not None and self.time == "event"

    def describe(self) -> Json:
        """Return the declaration for fingerprints. Empty if nothing expires."""
        if self.after is None:
            return {}
        return {"state_ttl": self.after, "ttl_time": self.time}

    def problems(self) -> list[str]:
        """Return the problems of the declaration."""
        problems = []
        if self.after is not None and not self._seconds:
            problems.append(f'state_ttl is {self.after!r}: write a duration above 0, such as "30 days"')
        if self.time not in ("processing", "event"):
            problems.append(f'ttl_time is {self.time!r}: say "processing" or "event"')
        return problems

    def update_problems(self) -> list[str]:
        """Return the problems of the declaration if an input emits retractions."""
        if self.after is None:
            return []
        return ["state_ttl: a row that is retracted after its key has expired would not be found: leave it out"]

    def interval_problems(self) -> list[str]:
        """Return the problems of the declaration in an interval pipeline."""
        if self.after is None:
            return []
        return ["state_ttl: no state outlives the interval, so nothing expires: leave it out"]

    @property
    def _seconds(self) -> float:
        try:
            return max(0.0, seconds_in(self.after))
        except InvalidValue:
            return 0.0

    @property
    def by_cuts(self) -> list[str]:
        """What depends on how the input is cut into checkpoints, in words."""
        if self.after is None or self.time == "event":
            return []
        return [f"when a key is forgotten: {self.after} by the checkpoints' clock (state_ttl)"]

    def ttl(self, context: OperatorContext) -> Ttl | None:
        """Return when rows expire in one attempt."""
        if self.after is None:
            return None
        lasts = timedelta(seconds=self._seconds)
        if self.time == "event":
            return Ttl(lasts, context.watermarks.before, context.watermarks.now)
        return Ttl(lasts, context.clock, context.clock)


NEVER: Final = Expiry(None)


@dataclass(frozen=True)
class RowExpiry:
    """Each row expires once the watermark is later than the row's time in a column by a duration."""

    column: str
    lasts: int
    """In microseconds."""

    def ttl(self, context: OperatorContext) -> RowTtl:
        """Return when rows expire in one attempt."""
        marks = context.watermarks
        return RowTtl(self.column, self.lasts, marks.before_micros, marks.now_micros)
