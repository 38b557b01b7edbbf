"""Runs of a DAG as checkpoints, by `dag.test()`: every task is run, one after the other, in this process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dags.project import Made, Project


@pytest.fixture
def made(project: Project, request: pytest.FixtureRequest) -> Made:
    """A pipeline under the name of the test, with one file of input."""
    return project.pipeline(request.node.name.removeprefix("test_")[:60]).feed()


def load(made: Made) -> Any:
    """The DAG, as Airflow parses it."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(made.dag_file), collect_dags=False)
    bag.process_file(str(made.dag_file))
    assert bag.import_errors == {}
    return bag.dags[made.name]


def run(made: Made, conf: dict[str, Any] | None = None) -> Any:
    return load(made).test(run_conf=conf)


def states(dag_run: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in dag_run.get_task_instances()}


def test_a_run_is_a_checkpoint(made: Made):
    assert run(made).state == "success"
    made.check(1)
    made.feed()
    assert run(made).state == "success"
    made.check(2)
    assert made.outcomes() == ["completed", "completed"]
