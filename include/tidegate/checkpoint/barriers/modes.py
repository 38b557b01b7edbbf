"""Whether, and when, a checkpoint may go past a job that is busy."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALIGNED", "Mode"]


@dataclass(frozen=True)
class Mode:
    """overtaking: a checkpoint need not wait for a busy job. patient: not at once, only when its time is up.

    Aligned: neither. Unaligned: overtaking. Aligned with timeout: both. Where a job, or a checkpoint, is not to be
    overtaken (an edge declared so, the end of time), it is aligned whatever else is set: alignment is forced.
    """

    overtaking: bool = False
    patient: bool = False

    @classmethod
    def of(cls, after_s: float | None) -> Mode:
        """after_s: how long alignment lasts. None: until it is done; 0: it is not even begun."""
        return cls(after_s is not None, after_s is not None and after_s > 0)


ALIGNED = Mode()
