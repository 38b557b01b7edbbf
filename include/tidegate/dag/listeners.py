"""tidegate's hooks in Airflow's scheduler, which alone may write to Airflow's database, and in its tasks. They never
raise."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from airflow.listeners import hookimpl

from tidegate.dag.lineage.provider import send_postponed_start
from tidegate.dag.names import CONF_BACKFILL, POOL
from tidegate.records.names import backfill_dag

__all__ = ["SchedulerListener", "TaskListener", "use_exact_now_in_sqlite"]

log = logging.getLogger(__name__)


class SchedulerListener:
    """Every process of Airflow calls it, but it acts only in those with access to the database."""

    @hookimpl
    def on_starting(self, component: Any) -> None:
        """Create the pool for backfills, with one slot, if it is missing: without a pool, its tasks never start. Let
        SQLite's clock be exact.

        Users change the number of slots under Admin → Pools.
        """
        if type(component).__module__ != "airflow.jobs.job":
            return
        use_exact_now_in_sqlite()
        try:
            _make_pool()
        except Exception as error:
            log.warning("Could not create pool %s: %r. Create it by hand: Admin → Pools", POOL, error)

    @hookimpl
    def on_dag_run_running(self, dag_run: Any, msg: str) -> None:
        """Write a backfill's id and first date into the conf of its runs, because tasks cannot look them up."""
        if getattr(dag_run, "backfill_id", None) is None:
            return
        try:
            _notify_backfill(dag_run)
        except Exception as error:
            log.warning("Could not write the backfill into run %s: %r. It will be refused", dag_run.run_id, error)


class TaskListener:
    """Called when a task has ended, before OpenLineage's provider, which sends an event then."""

    @hookimpl(tryfirst=True)
    def on_task_instance_success(self, task_instance: Any) -> None:
        _ended(task_instance)

    @hookimpl(tryfirst=True)
    def on_task_instance_failed(self, task_instance: Any) -> None:
        _ended(task_instance)

    @hookimpl(tryfirst=True)
    def on_task_instance_skipped(self, task_instance: Any) -> None:
        _ended(task_instance)


def _ended(task_instance: Any) -> None:
    try:
        send_postponed_start(task_instance)
    except Exception as error:
        log.warning("OpenLineage's event of the task's start could not be sent: %r", error)


def use_exact_now_in_sqlite() -> None:
    """Make SQL's now() exact with SQLite. It has no effect with other databases.

    The scheduler starts runs that were due before now(). SQLite's CURRENT_TIMESTAMP has whole seconds, so that each run
    would wait for the next one, for half a second on average.
    """
    from sqlalchemy.ext.compiler import compiles
    from sqlalchemy.sql.functions import now

    compiles(now, "sqlite")(lambda *_, **__: "(strftime('%Y-%m-%d %H:%M:%f', 'now'))")


def _make_pool() -> None:
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.exc import IntegrityError

    with contextlib.suppress(IntegrityError), create_session(scoped=False) as session:  # another process was faster
        if session.scalar(select(Pool).where(Pool.pool == POOL)) is None:
            text = "Backfills of tidegate's pipelines: one slot for each that may read at the same time"
            session.add(Pool(pool=POOL, slots=1, description=text, include_deferred=False))


def _notify_backfill(dag_run: Any) -> None:
    """Write the backfill into the run's conf, if its pipeline has a DAG for backfills."""
    from airflow.models.backfill import Backfill
    from airflow.models.dag import DagModel
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return
    with session.no_autoflush:
        backfill_dags = select(DagModel.dag_id).where(
            DagModel.dag_id == backfill_dag(dag_run.dag_id), ~DagModel.is_stale
        )
        first = select(Backfill.from_date).where(Backfill.id == dag_run.backfill_id)
        if session.scalar(backfill_dags) is None:
            return
        from_date = session.scalar(first)
    if from_date is not None:
        backfill_conf = {"id": dag_run.backfill_id, "from": from_date.isoformat()}
        dag_run.conf = {**(dag_run.conf or {}), CONF_BACKFILL: backfill_conf}
