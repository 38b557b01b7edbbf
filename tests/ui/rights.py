"""Which rights a route asks for, and which people have: one table, for all auth managers."""

from __future__ import annotations

from typing import Any

from tidegate.records.names import backfill_dag

OURS = {"origin": "http://airflow.test"}
OF_ALL = ("/v1/me", "/pipelines", "/metrics", "/openapi.json", "/static/")
"""For whoever is logged in. What /pipelines and /metrics hold is asked for each pipeline."""
ACTS = {
    "trigger": {"trigger"},
    "drain": {"trigger", "edit"},
    "savepoint": {"edit"},
    "dispose": {"edit"},
    "approve": {"answer"},
    "reject": {"answer"},
    "suspend": {"edit"},
    "resume": {"edit"},
    "rollback": {"trigger", "edit"},
    "release": {"edit"},
    "rejudge": {"edit"},
    "backfill": {"trigger", "backfill"},
    "swap": {"trigger", "backfill", "edit"},
    "discard-backfill": {"trigger", "backfill", "edit"},
    "why": {"runs", "values", "trigger", "backfill"},
}
QUOTES_ROWS = (
    "/quarantine/{gate}",
    "/{id}/gates/{gate}",
    "/gates/{gate}/measured",
    "/tables/{sink}",
    "/tables/{sink}/changes",
    "/quarantined/{gate}",
    "/samples/{part}",
    "/why/{key}",
)

QUESTION = "/api/v2/dags/{dag_id}/dagRuns/one/taskInstances/gate_checked/-1/hitlDetails"
"""Airflow's own route by which a held checkpoint is answered under Required Actions, with PATCH."""

LOOKS = {"see", "runs"}
PEOPLE: dict[str, set[str]] = {
    "a stranger": set(),
    "only another DAG": set(),
    "Viewer": LOOKS | {"values"},
    "no XCom": LOOKS | {"trigger", "edit", "answer", "backfill"},
    "no runs": {"see", "values", "edit"},
    "trigger only": LOOKS | {"trigger"},
    "trigger and backfill": LOOKS | {"trigger", "backfill"},
    "answer only": LOOKS | {"values", "answer"},
    "edit only": LOOKS | {"edit"},
    "User": LOOKS | {"values", "trigger", "edit", "answer", "backfill"},
}


def needs(route: Any) -> set[str]:
    """The rights that a route asks for."""
    if any(part in route.path for part in OF_ALL):
        return set()
    if "/actions/" in route.path:
        return ACTS[route.path.rpartition("/")[2]]
    if "{dag_id}" not in route.path:
        return set()
    return {"runs"} | ({"values"} if route.path.endswith(QUOTES_ROWS) else set())


def right_asked_for(method: str, entity: Any, dag_id: str | None) -> str:
    """The right that Airflow's auth manager is asked about."""
    if dag_id in (backfill_dag("orders"), backfill_dag("quotes")):
        return "backfill"
    name = getattr(entity, "name", None)
    return {
        ("GET", None): "see",
        ("GET", "RUN"): "runs",
        ("GET", "XCOM"): "values",
        ("POST", "RUN"): "trigger",
        ("PUT", None): "edit",
        ("PUT", "HITL_DETAIL"): "answer",
        ("PUT", "TASK_INSTANCE"): "answer",
    }[method, name]
