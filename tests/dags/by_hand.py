"""Run one task of one run as its process would, without Airflow: `python -m tests.dags.by_hand FILE TASK RUN`.

Airflow starts the same try twice now and then (airflow#59378), but not when it is asked to.
"""

from __future__ import annotations

import runpy
import sys
from types import SimpleNamespace
from typing import Any


class Ti:
    """What Airflow gives a task to ask with."""

    def __init__(self, dag_id: str, run_id: str) -> None:
        self.dag_id = dag_id
        self.run_id = run_id
        self.left: dict[str, Any] = {}
        self.states: dict[str, str] = {}
        self.returned: dict[str, Any] = {}
        """What tasks of other runs have returned."""

    def xcom_push(self, key: str, value: Any) -> None:
        self.left[key] = value

    def xcom_pull(self, task_ids: str, key: str = "return_value", dag_id: str = "", run_id: str = "") -> Any:
        return self.returned.get(task_ids) if run_id else None

    def get_task_states(self, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
        return dict.fromkeys(run_ids, self.states)


def context(dag: Any, run_id: str = "r", conf: dict[str, Any] | None = None, **known: Any) -> dict[str, Any]:
    """known: what else Airflow knows of the run."""
    dag_run = {"run_type": "manual", "clear_number": 0, "data_interval_start": None, "data_interval_end": None} | known
    dag_run |= {"dag_id": dag.dag_id, "run_id": run_id, "conf": conf or {}}
    ti = Ti(dag.dag_id, run_id)
    return {"dag": dag, "dag_run": SimpleNamespace(**dag_run), "ti": ti, "params": dag.params}


def load(file: str) -> Any:
    return runpy.run_path(file)["dag"]


if __name__ == "__main__":
    file, task, run_id = sys.argv[1:]
    dag = load(file)
    print(dag.task_dict[task].execute(context(dag, run_id)))
