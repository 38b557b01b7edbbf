"""With SQLite, Airflow's scheduler starts a run as soon as it is due, not at the next full second."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCHEDULER = """
import time
from datetime import datetime, timezone

from airflow.utils.sqlalchemy import UtcDateTime
from sqlalchemy import Column, MetaData, Table, create_engine, func, select
from sqlalchemy.dialects import postgresql

from tidegate.dag.listeners import SchedulerListener

SchedulerListener().on_starting(type("Job", (), {"__module__": "airflow.jobs.job"})())

runs = Table("runs", MetaData(), Column("due", UtcDateTime), Column("made", UtcDateTime, server_default=func.now()))
how_many_are_due = select(func.count()).where(runs.c.due <= func.now())
with create_engine("sqlite://").begin() as database:
    runs.create(database)
    for _ in range(20):
        database.execute(runs.delete())
        database.execute(runs.insert().values(due=datetime.now(timezone.utc)))
        time.sleep(0.06)  # so that the runs are due at different fractions of a second
        assert database.scalar(how_many_are_due) == 1
    database.execute(runs.delete())
    database.execute(runs.insert().values(due=datetime(2100, 1, 1, tzinfo=timezone.utc)))
    assert database.scalar(how_many_are_due) == 0
assert str(select(func.now()).compile(dialect=postgresql.dialect())) == "SELECT now() AS now_1"
"""


def test_a_run_that_is_due_is_started_within_the_same_second(tmp_path: Path) -> None:
    """The test has a process of its own, because SQLAlchemy keeps what it is told."""
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    environment.pop("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", None)
    subprocess.run([sys.executable, "-c", SCHEDULER], check=True, env=environment, cwd=tmp_path)
