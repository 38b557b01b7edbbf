"""How often a failed step is retried, and after which pauses: the same under Airflow and in `tidegate run`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tidegate.config.settings import RestartSettings

__all__ = ["Retries", "RetrySettings", "retries_of_control", "retries_of_jobs"]


class RetrySettings(Protocol):
    """The settings that retries obey; `tidegate.config.Settings` has them."""

    @property
    def timeout(self) -> float: ...
    @property
    def restart(self) -> RestartSettings: ...


@dataclass(frozen=True)
class Retries:
    """The retries of one step that fails with an error that may pass."""

    times: int
    delay: float = 0.0
    """Seconds before the first one."""
    max_delay: float | None = None
    """Pauses double, up to this one. None: all are equal."""

    def pauses(self) -> Iterator[float]:
        """Yield the pause before each retry."""
        if self.max_delay is None:
            pause = self.delay
        else:
            pause = min(self.delay, self.max_delay)
        for _ in range(self.times):
            yield pause
            if self.max_delay is not None:
                pause = min(pause * 2, self.max_delay)


def retries_of_jobs(settings: RetrySettings) -> Retries:
    """Return the retries of a job. All tries share the checkpoint's timeout; after it the job fails."""
    restart = settings.restart
    if restart.strategy == "none":
        return Retries(0)
    if restart.strategy == "fixed":
        return Retries(restart.attempts, restart.delay)
    if restart.strategy == "failure_rate":
        # Evenly spaced, so that no span of `per` ever sees more than `attempts` failures.
        delay = max(restart.per / restart.attempts, restart.delay)
        return Retries(math.ceil(settings.timeout / delay), delay)
    return Retries(restart.attempts, restart.delay, restart.max_delay)


def retries_of_control(settings: RetrySettings) -> Retries:
    """Return the retries of planning and completing. They do not depend on the strategy, because these steps do not run
    the pipeline's own code, and take milliseconds as soon as storage answers."""
    return Retries(5, 1.0, max(settings.restart.max_delay, 30.0))
