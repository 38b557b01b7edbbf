"""A bound of a source that depends on how long checkpoints take, instead of a fixed number."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.config.keys import seconds_in

__all__ = ["Adaptive"]


@dataclass(frozen=True)
class Adaptive:
    """Limit each checkpoint to what it can process in a share of the interval, within the source's own bounds.

        pipeline.source("orders", Files("landing/*.json", schema=…, max_files=500), max_per_checkpoint=Adaptive())

    share: the share of the pipeline's interval, above 0 and at most 1.
    interval: a duration such as "10 min" to use instead of the pipeline's interval. Required if the pipeline has none
        because it runs on a schedule or when triggered.
    """

    share: float = 0.8
    interval: float | str | None = None

    def problems(self) -> list[str]:
        """Return all problems of the declaration."""
        problems = []
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            problems.append(f"share is {self.share!r}; it must be a number above 0, at most 1")
        if self.interval is not None and self.interval_s is None:
            problems.append(f'interval is {self.interval!r}; it must be a duration above 0, such as "10 min"')
        return problems

    @property
    def interval_s(self) -> float | None:
        """The interval in seconds. None if it is unset or not a valid duration."""
        if self.interval is None:
            return None
        try:
            seconds = seconds_in(self.interval)
        except ValueError:
            return None
        return seconds if seconds > 0 else None
