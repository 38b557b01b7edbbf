"""The ids of DAGs and of their tasks."""

from __future__ import annotations

from tidegate.records.names import COMPLETE, SWAP

__all__ = ["COMPLETE", "CONF_BACKFILL", "POOL", "SWAP", "TRIGGER", "job_task"]

TRIGGER = "trigger"

CONF_BACKFILL = "backfill"
"""The key in the conf of a run of Airflow's own backfill: which backfill it is, and its first date."""

POOL = "tidegate_backfill"
"""The pool of all backfills."""


def job_task(job: str) -> str:
    """The task id of a job."""
    return f"job_{job}"
