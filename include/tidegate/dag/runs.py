"""Find the Airflow runs that made entries, and whether they are finished or deleted.

A run that is gone is only a hint to abort its checkpoint, which is always safe.
"""

from __future__ import annotations

import re

from tidegate.execution import runs
from tidegate.records.names import AIRFLOW
from tidegate.records.records import Plan

__all__ = ["dag_run_of", "ended_run_reason"]

_SUFFIX = re.compile(r" \((?:cleared [0-9]+|part [0-9a-f]+)\)\Z")
_ACTIVE = ["queued", "running"]


def dag_run_of(plan: Plan) -> tuple[str, str] | None:
    """Return the ids of the DAG and the run that made an entry, or None if it was no Airflow run."""
    prefix, _, airflow_run = plan.responsible_run.partition(":")
    dag_id, _, run_id = airflow_run.partition(":")  # an Airflow dag_id holds no colon
    if prefix != AIRFLOW or not run_id:
        return None
    return dag_id, _SUFFIX.sub("", run_id)


def ended_run_reason(plan: Plan) -> str | None:
    """Return RUN_GONE if the checkpoint will not be completed: its run is finished or deleted in Airflow, or its
    process has died. Works in tasks and, called through asgiref, in the triggerer."""
    made_by = dag_run_of(plan)
    if made_by is None:
        return runs.abandoned_reason(plan)
    dag_id, run_id = made_by
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    active = RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=_ACTIVE)
    return None if active else "RUN_GONE"
