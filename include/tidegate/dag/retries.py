"""The restart strategies, in Airflow's terms."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from tidegate.config import Settings

__all__ = ["for_control", "for_jobs"]

DOUBLE = 2.0


def for_jobs(settings: Settings) -> dict[str, Any]:
    """How a job's task is tried again. All tries share the checkpoint's timeout; past it the job fails for good."""
    restart = settings.restart
    if restart.strategy == "none":
        return {"retries": 0}
    if restart.strategy == "fixed":
        return {"retries": restart.attempts, "retry_delay": timedelta(seconds=restart.delay)}
    if restart.strategy == "failure_rate":
        # Evenly spaced, so that no span of `per` ever sees more than `attempts` failures.
        delay = max(restart.per / restart.attempts, restart.delay)
        return {"retries": math.ceil(settings.timeout / delay), "retry_delay": timedelta(seconds=delay)}
    return _doubling(restart.attempts, restart.delay, restart.max_delay)


def for_control(settings: Settings) -> dict[str, Any]:
    """For `trigger` and `complete`, whatever the strategy: they are not the pipeline's own code, and what they do is
    done in milliseconds as soon as storage answers."""
    return _doubling(5, 1.0, max(settings.restart.max_delay, 30.0))


def _doubling(attempts: int, delay: float, most: float) -> dict[str, Any]:
    """Airflow adds up to as much again, by chance, so that not all come back at once."""
    return {
        "retries": attempts,
        "retry_delay": timedelta(seconds=delay),
        "retry_exponential_backoff": DOUBLE,
        "max_retry_delay": timedelta(seconds=most),
    }
