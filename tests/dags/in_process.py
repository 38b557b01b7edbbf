"""Runs of a pipeline's DAG by `dag.test()`: every task, one after the other, in this process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.dags.project import Made

__all__ = ["GREEN", "load", "run"]

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
GREEN = "success", {"trigger": "success", "job_main": "success", "complete": "success"}


def load(made: Made) -> Any:
    """The DAG, as Airflow parses it."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(made.dag_file), collect_dags=False)
    bag.process_file(str(made.dag_file))
    assert bag.import_errors == {}
    return bag.dags[made.name]


def run(made: Made, number: int = 0, **given: Any) -> tuple[str, dict[str, str]]:
    """Run number so-and-so of the pipeline, or that run again; how it ended, and how its tasks did."""
    when = WHEN + timedelta(days=number)  # the run's id is made from it
    dag_run = load(made).test(logical_date=when, run_after=when, **given)
    tasks = {ti.task_id: str(getattr(ti.state, "value", ti.state)) for ti in dag_run.get_task_instances()}
    return str(getattr(dag_run.state, "value", dag_run.state)), tasks
