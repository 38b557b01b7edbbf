"""THE table: what Airflow does about each kind of error.

| error | the task |
| --- | --- |
| Invalid | fails without a retry: trying again unchanged fails again |
| Unavailable | is retried as `restart.…` says |
| Fenced | is skipped: this work no longer counts, others do it |
| Rejected: wait | is deferred, which holds no worker, and asks again (WAITING) |
| Rejected: no checkpoint is wanted, or it does not wait for the job | is skipped, with the reason (DECLINED) |
| Rejected: else | fails without a retry |
| Corrupt | fails without a retry, and the pipeline is suspended |

Anything else is a fault in tidegate or in Airflow, and is retried.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tidegate.errors import Fenced, Rejected, TidegateError, Unavailable
from tidegate.runtime.behind import PASSED_BY

__all__ = ["DECLINED", "WAITING", "as_airflow"]

WAITING = frozenset(
    {
        "CHECKPOINT_IN_PROGRESS",
        "BASE_IN_PROGRESS",
        "MIN_PAUSE",
        "TOO_MANY_UNPUBLISHED",
        "ROLLBACK_UNPUBLISHED",
        "HELD",
    }
)
"""Why a task waits: others are at work, a pause is on, or a person is to say something."""

DECLINED = frozenset({"SUSPENDED", "STOPPED", "FINISHED", "RETIRED", PASSED_BY})
"""Why a run makes no checkpoint, or a checkpoint does not wait for a job, which is no failure."""


def as_airflow(error: TidegateError) -> AirflowException:
    """The exception that has Airflow do what the table says."""
    told = f"{error.reason}: {error}"
    if isinstance(error, Unavailable):
        return AirflowException(told)
    if isinstance(error, Fenced) or (isinstance(error, Rejected) and error.reason in DECLINED):
        return AirflowSkipException(told)
    return AirflowFailException(told)
