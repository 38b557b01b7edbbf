"""Permissions. Airflow mounts the apps of plugins without any protection: every route here names one of these.

Reading needs a user who may see the DAG's runs; values of rows, one who may see what its tasks exchange (XCom); acting,
one who may trigger or edit the DAG, and a request that comes from Airflow's own pages. `tests/ui/test_access.py` walks
all routes, roles and methods.
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
    """Refuse requests from other sites. A browser sends Airflow's cookie with those as well, and says where they come
    from; a client that sends a token in a header is no browser."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():  # without one, Airflow takes the cookie
        return
    origin = urlsplit(request.headers.get("origin", ""))
    hosts = {request.headers.get("host"), request.headers.get("x-forwarded-host")} - {None}
    if origin.netloc not in hosts or origin.scheme not in _schemes(request, origin.netloc):
        raise HTTPException(403, "this request does not come from Airflow's own pages")


def _schemes(request: Request, host: str) -> set[str]:
    """Return how Airflow's own pages are reached. Behind a proxy that ends TLS and does not say so, only Airflow's
    configuration knows."""
    ours = urlsplit(str(conf.get("api", "base_url", fallback="")))
    by_configuration = {"https"} if (ours.scheme, ours.netloc) == ("https", host) else set()
    return {request.headers.get("x-forwarded-proto") or request.url.scheme} | by_configuration


def readable(user: GetUserDep) -> set[str]:
    """The pipelines whose runs the user may see, by their DAGs. (Airflow's own dependency looks for the auth manager in
    its own app only.)"""
    auth = get_auth_manager()
    visible = auth.get_authorized_dag_ids(user=user, method="GET") & tagged()
    details = {dag_id: DagDetails(id=dag_id, **team) for dag_id, team in teams_of(visible).items()}
    runs = DagAccessEntity.RUN
    return {
        dag_id
        for dag_id, its in details.items()
        if auth.is_authorized_dag(method="GET", access_entity=runs, details=its, user=user)
    }


Readable = Annotated[set[str], Depends(readable)]
LOGGED_IN = [Depends(get_user)]
READ = [Depends(get_user), Depends(requires_access_dag("GET", DagAccessEntity.RUN))]
VALUES = [*READ, Depends(requires_access_dag("GET", DagAccessEntity.XCOM))]
"""What quotes rows."""


def may_read_rows(user: GetUserDep, dag_id: str) -> bool:
    """Whether the user may read rows of the DAG's pipeline: Airflow's right to what its tasks exchange."""
    details = DagDetails(id=dag_id, **team_of(dag_id))
    entity = DagAccessEntity.XCOM
    return get_auth_manager().is_authorized_dag(method="GET", access_entity=entity, details=details, user=user)


def find_visible_pipeline(pipeline: Annotated[PipelineRef, Depends(find_pipeline)], user: GetUserDep) -> PipelineRef:
    """The pipeline of a route's DAG, as the user may see it."""
    return replace(pipeline, may_read_rows=may_read_rows(user, pipeline.dag_id))


_OURS = [Depends(get_user), Depends(same_origin)]
TRIGGER = [*_OURS, Depends(requires_access_dag("POST", DagAccessEntity.RUN))]
ANSWER = [*_OURS, Depends(requires_access_dag("PUT", answering()))]
EDIT = [*_OURS, Depends(requires_access_dag("PUT"))]
"""For whatever changes whether or how the pipeline runs."""


def can_backfill(user: GetUserDep, dag_id: str) -> bool:
    """Whether the user may trigger the DAG for backfills, which stands beside that of the pipeline."""
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
    """Which buttons to offer. The routes behind them check again."""
    is_authorized = get_auth_manager().is_authorized_dag
    details = DagDetails(id=dag_id, **team_of(dag_id))
    trigger = is_authorized(method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user)
    edit = is_authorized(method="PUT", details=details, user=user)
    answer = is_authorized(method="PUT", access_entity=answering(), details=details, user=user)
    backfill = trigger and can_backfill(user, dag_id) and has_dag(backfill_dag(dag_id))
    both = trigger and edit
    rights = {"trigger": trigger, "edit": edit, "answer": answer, "rollback": both, "drain": both}
    return rights | {"backfill": backfill, "swap": backfill and edit}
