"""A bound of a source that follows from how long checkpoints take, instead of a number."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.config.keys import seconds_in

__all__ = ["Adaptive"]


@dataclass(frozen=True)
class Adaptive:
    """Let each checkpoint take as much as it can in a share of the interval; never more than the source's own bounds.

        pipeline.source("orders", Files("landing/*.json", schema=…, max_files=500), max_per_checkpoint=Adaptive())

    share: of the pipeline's interval, from above 0 to 1.
    interval: such as "10 min", instead of the pipeline's; needed where a schedule or nobody says how often it runs.
    """

    share: float = 0.8
    interval: float | str | None = None

    def problems(self) -> list[str]:
        """What is wrong with it, all at once."""
        found = []
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            found.append(f"share is {self.share!r}; it must be a number above 0, at most 1")
        if self.interval is not None and self.interval_s is None:
            found.append(f'interval is {self.interval!r}; it must be a duration above 0, such as "10 min"')
        return found

    @property
    def interval_s(self) -> float | None:
        """Its own interval. None: it has none, or no duration."""
        try:
            seconds = seconds_in(self.interval) if self.interval is not None else 0.0
        except ValueError:
            return None
        return seconds if seconds > 0 else None
