"""Airflow's plugin for the pages: their places in Airflow's navigation, and the app that serves them.

Every process of Airflow loads plugins. Modules that only the web server needs are imported by its first request.
"""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import urlsplit

from airflow.plugins_manager import AirflowPlugin

from tidegate.versions.airflow import HAS_VIEWS, conf

__all__ = ["PREFIX", "LateApp", "TidegatePages", "views"]

PREFIX = "/tidegate"


class LateApp:
    """The app, created by the first request."""

    def __init__(self) -> None:
        self._app: Any = None
        self._lock = threading.Lock()

    @property
    def app(self) -> Any:
        """The FastAPI app itself."""
        with self._lock:
            if self._app is None:
                from tidegate.ui.app import make_app

                self._app = make_app()
        return self._app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


def views(base_url: str) -> list[dict[str, str]]:
    """Return the pages' places in Airflow. Frames use the addresses as they are, so they begin with Airflow's path."""
    app = f"{urlsplit(base_url).path.rstrip('/')}{PREFIX}"
    return [
        {
            "name": "Checkpoints",
            "href": f"{app}/pipelines",
            "destination": "nav",
            "category": "browse",
            "url_route": "tidegate",
        },
        {
            "name": "Checkpoints",
            "href": f"{app}/dag/{{DAG_ID}}",
            "destination": "dag",
            "url_route": "checkpoints",
        },
        {
            "name": "Checkpoint",
            "href": f"{app}/run/{{DAG_ID}}/{{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "checkpoint",
        },
    ]


class TidegatePages(AirflowPlugin):
    """The tabs on the pages of DAGs and runs, the entry in the navigation, and the app behind them."""

    name = "tidegate_pages"

    fastapi_apps = [{"app": LateApp(), "url_prefix": PREFIX, "name": "tidegate"}]
    if HAS_VIEWS:
        external_views = views(str(conf.get("api", "base_url", fallback="")))

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Log what this Airflow lacks."""
        from tidegate.ui.airflow_setup import log_notices

        log_notices()
