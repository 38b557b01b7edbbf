"""Differences between Airflow 3.0, 3.1, 3.2 and 3.3. It imports Airflow, so only `dag` and `ui` may import it."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import airflow

from tidegate.versions.ranges import release_of

VERSION: Final = release_of(airflow.__version__)

if TYPE_CHECKING or VERSION >= (3, 2):
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
    )
else:
    from airflow.configuration import conf
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
    )

__all__ = [
    "DAG_MODULE_PREFIX",
    "DOUBLING",
    "HAS_PARTITION_KEYS",
    "HAS_QUESTIONS",
    "HAS_VIEWS",
    "RESUMES_ANSWERED",
    "VERSION",
    "AirflowException",
    "AirflowFailException",
    "AirflowSkipException",
    "answering",
    "can_import_airflow",
    "conf",
    "find_connection",
    "find_connection_from_trigger",
    "gauge",
    "no_backfill_runs",
    "register_asset_event",
    "run_arguments",
    "run_deadline",
    "team_of",
    "teams_of",
]

_DATABASE: Final = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"

HAS_QUESTIONS: Final = VERSION >= (3, 1)
"""Whether a task can ask a person (Required Actions). Otherwise a held checkpoint is answered on our page, or by
`tidegate approve`."""

RESUMES_ANSWERED: Final = VERSION >= (3, 3)
"""Whether Airflow resumes a deferred task as soon as its question is answered. Otherwise its trigger has to look."""

DOUBLING: Final = 2.0 if VERSION >= (3, 2) else True
"""For `retry_exponential_backoff`: each delay is twice the one before. Earlier versions know no other factor."""

HAS_PARTITION_KEYS: Final = VERSION >= (3, 3)
"""Whether a task can say which partition of an asset its event is about. In 3.2 only a run's timetable can."""

HAS_VIEWS: Final = VERSION >= (3, 1)
"""Whether plugins can add tabs and entries of the navigation. Otherwise our pages are reached by their address."""


def gauge(name: str, value: float, tags: dict[str, str] | None = None) -> None:
    """Send a gauge through Airflow's metrics."""
    if TYPE_CHECKING or VERSION >= (3, 3):
        from airflow.sdk.observability import stats

        stats.gauge(name, value, tags=tags)
        return
    if VERSION >= (3, 2):
        from airflow.sdk.observability.stats import Stats
    else:
        from airflow.stats import Stats
    Stats.gauge(name, value, tags=tags)


def find_connection(id: str) -> Any | None:
    """Return the connection that Airflow has under this id, wherever it keeps it. None: it has none.

    In a task Airflow's own server is asked. In that server, its secrets backends and database are.
    """
    try:
        if hasattr(sys.modules.get("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS"):
            from airflow.sdk import Connection

            return Connection.get(id)
        from airflow.models.connection import Connection as Stored

        return Stored.get_connection_from_secrets(id)
    except AirflowNotFoundException:
        return None


def can_import_airflow(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment for a process of its own that loads DAG files.

    In tasks and triggers Airflow sets an address of its database that Airflow itself cannot be imported with.
    """
    if not environment.get(_DATABASE, "").startswith("airflow-db-not-allowed"):
        return environment
    return environment | {_DATABASE: "sqlite://"}


async def find_connection_from_trigger(id: str) -> Any | None:
    """Return the same in the triggerer, whose event loop alone can ask Airflow's server."""
    from airflow.sdk import Connection

    try:
        if hasattr(Connection, "async_get"):
            return await Connection.async_get(id)
        from asgiref.sync import sync_to_async

        return await sync_to_async(Connection.get)(id)
    except AirflowNotFoundException:
        return None


def run_arguments(user: str, note: str | None) -> dict[str, Any]:
    """Return who makes a run and why, as far as `trigger_dag` takes it. The audit in the ledger has it in any case."""
    known = {"triggering_user_name": user} if VERSION >= (3, 1) else {}
    return known | ({"note": note} if VERSION >= (3, 2) else {})


def team_of(dag_id: str) -> dict[str, Any]:
    """Return the DAG's team, by which auth managers may decide."""
    if VERSION < (3, 1):
        return {}
    from airflow.models.dag import DagModel

    return {"team_name": DagModel.get_team_name(dag_id)}


def teams_of(dag_ids: set[str]) -> dict[str, dict[str, Any]]:
    """Return the team of each of these DAGs, as `team_of` does, with one query."""
    if VERSION < (3, 1):
        return {dag_id: {} for dag_id in dag_ids}
    from airflow.models.dag import DagModel

    teams = DagModel.get_dag_id_to_team_name_mapping(sorted(dag_ids))
    return {dag_id: {"team_name": teams.get(dag_id)} for dag_id in dag_ids}


def no_backfill_runs(why: str) -> Exception:
    """Return the error with which Airflow creates no run of a backfill, and answers `why`. Only newer releases have one
    for this."""
    from airflow.models import backfill

    kind = getattr(backfill, "NoBackfillRunsToCreate", backfill.InvalidBackfillDate)
    error: Exception = kind(why)
    return error


def register_asset_event(
    asset: Any, extra: dict[str, Any], dag_id: str, partition_key: str | None, session: Any
) -> None:
    """Have Airflow record an event of an asset, and queue the DAGs that are scheduled on it, as its REST API does."""
    from airflow.assets.manager import asset_manager

    arguments: dict[str, Any] = {}
    if VERSION >= (3, 3):
        team = team_of(dag_id)["team_name"]
        arguments = {"source_is_api": True, "api_user_teams": {team} if team else set()}
    if partition_key is not None:
        arguments["partition_key"] = partition_key
    asset_manager.register_asset_change(asset=asset, extra=extra, session=session, **arguments)


def answering() -> Any:
    """Return what a user must be allowed to change to answer a gate."""
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

    if HAS_QUESTIONS:
        return DagAccessEntity.HITL_DETAIL
    return DagAccessEntity.TASK_INSTANCE


DAG_MODULE_PREFIX: Final = "unusual_prefix_"
"""How the names begin by which Airflow imports DAG files as modules."""


def run_deadline(name: str, after: timedelta, function: str, arguments: dict[str, str]) -> Any | None:
    """Return a deadline for each run of a DAG, counted from when the run is queued. The triggerer calls the function,
    whatever the executor is. None: this Airflow has none, or another process than its DAG processor reads the DAG
    file."""
    if VERSION < (3, 1):
        return None
    if os.environ.get("_AIRFLOW_PROCESS_CONTEXT") != "client":  # `dag.test()` fails for each DAG with a deadline
        return None
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

    if TYPE_CHECKING or VERSION >= (3, 2):
        from airflow.sdk.definitions.callback import AsyncCallback
    else:
        from airflow.sdk.definitions.deadline import AsyncCallback
    named = {"name": name} if VERSION >= (3, 3) else {}
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=after,
        callback=AsyncCallback(function, kwargs=dict(arguments)),
        **named,
    )
