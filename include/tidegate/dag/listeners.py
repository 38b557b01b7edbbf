"""What tidegate does inside of Airflow's scheduler, which alone may write to Airflow's database. Never raises."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from airflow.listeners import hookimpl

from tidegate.dag.names import CONF_BACKFILL, POOL
from tidegate.records.names import backfill_dag

__all__ = ["SchedulerListener"]

log = logging.getLogger(__name__)


class SchedulerListener:
    """Called by each process of Airflow; it acts only in those that have the database."""

    @hookimpl
    def on_starting(self, component: Any) -> None:
        """Make the pool of backfills, with one slot, if there is none: tasks in a pool that is missing never start.
        How many slots it has is the user's (Admin → Pools)."""
        if type(component).__module__ != "airflow.jobs.job":
            return
        try:
            _make_pool()
        except Exception as error:
            log.warning("Pool %s could not be made: %r. Make it by hand: Admin → Pools", POOL, error)

    @hookimpl
    def on_dag_run_running(self, dag_run: Any, msg: str) -> None:
        """Write down, in the conf of a run of a backfill, which one that is, and its first date: no task can ask."""
        if getattr(dag_run, "backfill_id", None) is None:
            return
        try:
            _notify_backfill(dag_run)
        except Exception as error:
            log.warning("Run %s was not told of its backfill: %r. It will be refused", dag_run.run_id, error)


def _make_pool() -> None:
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.exc import IntegrityError

    with contextlib.suppress(IntegrityError), create_session(scoped=False) as session:  # another process makes it now
        if session.scalar(select(Pool).where(Pool.pool == POOL)) is None:
            text = "Backfills of tidegate's pipelines: as many read at once as there are slots"
            session.add(Pool(pool=POOL, slots=1, description=text, include_deferred=False))


def _notify_backfill(dag_run: Any) -> None:
    """Only for pipelines beside which there is a DAG for backfills."""
    from airflow.models.backfill import Backfill
    from airflow.models.dag import DagModel
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return
    with session.no_autoflush:
        beside = select(DagModel.dag_id).where(DagModel.dag_id == backfill_dag(dag_run.dag_id), ~DagModel.is_stale)
        first = select(Backfill.from_date).where(Backfill.id == dag_run.backfill_id)
        from_date = session.scalar(first) if session.scalar(beside) is not None else None
    if from_date is not None:
        told = {"id": dag_run.backfill_id, "from": from_date.isoformat()}
        dag_run.conf = {**(dag_run.conf or {}), CONF_BACKFILL: told}
