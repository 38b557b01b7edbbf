"""Airflow's metadata in PostgreSQL, as compose.yaml has it, instead of SQLite: checkpoints complete all the same."""

from __future__ import annotations

import pytest
import sqlalchemy

from jobs import orders_feed
from tests.dags import postgres
from tests.dags.up_project import Project


@pytest.mark.skipif(postgres.programs() is None, reason="there is no PostgreSQL: apt-get install postgresql")
def test_checkpoints_complete_with_the_metadata_in_postgresql(tmp_path):
    with postgres.postgres() as url:
        project = Project.copy(tmp_path, AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=url)
        orders_feed.feed(project.folder / "data", files=4, rows=60)
        try:
            made = project.json("up", "--checkpoints", "2")
        finally:
            project.clean_up()
        assert [(row["id"], row["state"]) for row in made["checkpoints"]] == [(1, "completed"), (2, "completed")]
        assert not (project.home.folder / "airflow.db").exists()
        engine = sqlalchemy.create_engine(url)
        with engine.connect() as connection:
            states = connection.execute(sqlalchemy.text("SELECT DISTINCT state FROM dag_run WHERE state <> 'queued'"))
            assert "success" in [state for (state,) in states]
        engine.dispose()
    assert project.left_running() == []
