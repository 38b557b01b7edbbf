"""Find the Airflow runs that made entries, and whether they are finished or deleted.

A run that is gone is only a hint to abort its checkpoint, which is always safe.
"""

from __future__ import annotations

from tidegate.execution import runs
from tidegate.records.names import dag_run_of
from tidegate.records.records import Plan

__all__ = ["ended_run_reason"]

_ACTIVE = ["queued", "running"]


def ended_run_reason(plan: Plan) -> str | None:
    """Return RUN_GONE if the checkpoint will not be completed: its run is finished or deleted in Airflow, or its
    process has died. Works in tasks and, called through asgiref, in the triggerer."""
    made_by = dag_run_of(plan.responsible_run)
    if made_by is None:
        return runs.abandoned_reason(plan)
    dag_id, run_id = made_by
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    active = RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=_ACTIVE)
    return None if active else "RUN_GONE"
