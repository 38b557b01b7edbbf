"""Find runs that are finished or deleted in Airflow.

This is only a hint for giving up on a checkpoint, which is always safe.
"""

from __future__ import annotations

import re

from tidegate.execution import runs
from tidegate.records.names import AIRFLOW
from tidegate.records.records import Plan

__all__ = ["run_gone_reason"]

_SUFFIX = re.compile(r" \((?:cleared [0-9]+|part [0-9a-f]+)\)\Z")
_ACTIVE = ["queued", "running"]


def run_gone_reason(plan: Plan) -> str | None:
    """Return RUN_GONE if nobody will complete the checkpoint: its run is finished or deleted in Airflow, or its process
    has died. Works in tasks and, called through asgiref, in the triggerer."""
    prefix, _, airflow_run = plan.made_by.partition(":")
    dag_id, _, run_id = airflow_run.partition(":")  # an Airflow dag_id holds no colon
    if prefix != AIRFLOW or not run_id:
        return runs.abandoned_reason(plan)
    run_id = _SUFFIX.sub("", run_id)
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    active = RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=_ACTIVE)
    return None if active else "RUN_GONE"
