"""The ids of a DAG's tasks."""

from __future__ import annotations

__all__ = ["COMPLETE", "TRIGGER", "job_task"]

TRIGGER = "trigger"
COMPLETE = "complete"


def job_task(job: str) -> str:
    """The task id of a job."""
    return f"job_{job}"
