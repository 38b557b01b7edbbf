"""All routes of the pages and of the API."""

from __future__ import annotations

from typing import Any

HOST = {"host": "airflow.test"}


def routes() -> list[Any]:
    from tidegate.ui.app import make_app

    return list(make_app().routes)


def flat(found: list[Any]) -> list[Any]:
    return [each for route in found for each in (route.routes if hasattr(route, "routes") else [route])]


def path_of(route: Any) -> str:
    known = {
        "dag_id": "orders",
        "id": "1",
        "gate": "enough",
        "sink": "a",
        "part": "enough",
        "run_id:path": "x",
        "path:path": "index.html",
        "run_id": "x",
        "version": "1",
        "name": "app.js",
        "key": "2026-03-01T101112345-0123456789abcdef",
    }
    path = route.path
    for name, value in known.items():
        path = path.replace(f"{{{name}}}", value)
    assert "{" not in path, f"{route.path}: say here what its parts are"
    return f"/tidegate{path}"
