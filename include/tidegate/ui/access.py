"""Permissions. Airflow mounts the apps of plugins without any protection, so every route here depends on one of these.

To read, a user must be allowed to see the DAG's runs; to see values of rows, its XComs; to act, to trigger or edit the
DAG, with a request that comes from Airflow's own pages. `tests/ui/test_access.py` checks all routes, roles and methods.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from fastapi import Depends, HTTPException, Request

from tidegate.records.names import backfill_dag
from tidegate.ui.pipelines import PipelineRef, find_pipeline, has_dag, tagged
from tidegate.versions.airflow import answering, conf, team_of, teams_of

__all__ = [
    "ANSWER",
    "BACKFILL",
    "EDIT",
    "LOGGED_IN",
    "READ",
    "TRIGGER",
    "VALUES",
    "Readable",
    "find_visible_pipeline",
    "may_read_rows",
]


def same_origin(request: Request) -> None:
    """Refuse requests from other sites. A browser sends Airflow's cookie with those as well, but names their origin. A
    client that sends a token in a header is not a browser."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():  # without a token, Airflow uses the cookie
        return
    origin = urlsplit(request.headers.get("origin", ""))
    hosts = {request.headers.get("host"), request.headers.get("x-forwarded-host")} - {None}
    if origin.netloc not in hosts or origin.scheme not in _schemes(request, origin.netloc):
        raise HTTPException(403, "this request does not come from Airflow's own pages")


def _schemes(request: Request, host: str) -> set[str]:
    """Return the schemes by which users reach Airflow's pages. If a proxy ends TLS without saying so, only Airflow's
    configuration has it."""
    base_url = urlsplit(str(conf.get("api", "base_url", fallback="")))
    schemes = {request.headers.get("x-forwarded-proto") or request.url.scheme}
    if (base_url.scheme, base_url.netloc) == ("https", host):
        schemes.add("https")
    return schemes


def readable(user: GetUserDep) -> set[str]:
    """Return the DAGs of the pipelines whose runs the user may see. (Airflow's own dependency does not work here: it
    looks up the auth manager in its own app.)"""
    auth = get_auth_manager()
    visible = auth.get_authorized_dag_ids(user=user, method="GET") & tagged()
    details = {}
    for dag_id, team in teams_of(visible).items():
        details[dag_id] = DagDetails(id=dag_id, **team)
    runs = DagAccessEntity.RUN
    return {
        dag_id
        for dag_id, dag in details.items()
        if auth.is_authorized_dag(method="GET", access_entity=runs, details=dag, user=user)
    }


Readable = Annotated[set[str], Depends(readable)]
LOGGED_IN = [Depends(get_user)]
READ = [Depends(get_user), Depends(requires_access_dag("GET", DagAccessEntity.RUN))]
VALUES = [*READ, Depends(requires_access_dag("GET", DagAccessEntity.XCOM))]
"""Dependencies of routes that return values of rows."""


def may_read_rows(user: GetUserDep, dag_id: str) -> bool:
    """Return whether the user may read rows of the DAG's pipeline: Airflow's right to read its XComs."""
    details = DagDetails(id=dag_id, **team_of(dag_id))
    entity = DagAccessEntity.XCOM
    return get_auth_manager().is_authorized_dag(method="GET", access_entity=entity, details=details, user=user)


def find_visible_pipeline(pipeline: Annotated[PipelineRef, Depends(find_pipeline)], user: GetUserDep) -> PipelineRef:
    """Return the pipeline of a route's DAG, as the user may see it."""
    return replace(pipeline, may_read_rows=may_read_rows(user, pipeline.dag_id))


_OURS = [Depends(get_user), Depends(same_origin)]
TRIGGER = [*_OURS, Depends(requires_access_dag("POST", DagAccessEntity.RUN))]
ANSWER = [*_OURS, Depends(requires_access_dag("PUT", answering()))]
EDIT = [*_OURS, Depends(requires_access_dag("PUT"))]
"""Dependencies of routes that change whether or how the pipeline runs."""


def can_backfill(user: GetUserDep, dag_id: str) -> bool:
    """Return whether the user may trigger the pipeline's DAG for backfills."""
    name = backfill_dag(dag_id)
    details = DagDetails(id=name, **team_of(name))
    return get_auth_manager().is_authorized_dag(
        method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
    )


def refuse_backfill(user: GetUserDep, dag_id: str) -> None:
    """Refuse users who may not trigger that DAG."""
    if not can_backfill(user, dag_id):
        raise HTTPException(403, "you may not trigger backfills of this pipeline")


BACKFILL = [*TRIGGER, Depends(refuse_backfill)]


def may(user: GetUserDep, dag_id: str) -> dict[str, bool]:
    """Return which buttons to offer. Their routes check again."""
    is_authorized = get_auth_manager().is_authorized_dag
    details = DagDetails(id=dag_id, **team_of(dag_id))
    trigger = is_authorized(method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user)
    edit = is_authorized(method="PUT", details=details, user=user)
    answer = is_authorized(method="PUT", access_entity=answering(), details=details, user=user)
    backfill = trigger and can_backfill(user, dag_id) and has_dag(backfill_dag(dag_id))
    return {
        "trigger": trigger,
        "edit": edit,
        "answer": answer,
        "rollback": trigger and edit,
        "drain": trigger and edit,
        "backfill": backfill,
        "swap": backfill and edit,
    }
