"""Find the runs of Airflow that made entries, and those that are finished or deleted there.

That a run is gone is only a hint for giving up on a checkpoint, which is always safe.
"""

from __future__ import annotations

import re

from tidegate.execution import runs
from tidegate.records.names import AIRFLOW
from tidegate.records.records import Plan

__all__ = ["dag_run_of", "run_gone_reason"]

_SUFFIX = re.compile(r" \((?:cleared [0-9]+|part [0-9a-f]+)\)\Z")
_ACTIVE = ["queued", "running"]


def dag_run_of(plan: Plan) -> tuple[str, str] | None:
    """Return the ids of the DAG and of its run that have made an entry. None: it was no run of Airflow."""
    prefix, _, airflow_run = plan.made_by.partition(":")
    dag_id, _, run_id = airflow_run.partition(":")  # an Airflow dag_id holds no colon
    return (dag_id, _SUFFIX.sub("", run_id)) if prefix == AIRFLOW and run_id else None


def run_gone_reason(plan: Plan) -> str | None:
    """Return RUN_GONE if nobody will complete the checkpoint: its run is finished or deleted in Airflow, or its process
    has died. Works in tasks and, called through asgiref, in the triggerer."""
    made_by = dag_run_of(plan)
    if made_by is None:
        return runs.abandoned_reason(plan)
    dag_id, run_id = made_by
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    active = RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=_ACTIVE)
    return None if active else "RUN_GONE"
