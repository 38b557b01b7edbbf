"""Airflow's plugin for the pages: their places in Airflow's navigation, and the app that serves them.

Every process of Airflow loads plugins. Modules that only the web server needs are imported by its first request.
"""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.plugins_manager import AirflowPlugin
from sqlalchemy import event
from sqlalchemy.orm import Mapper

from tidegate.ui.asset_events.middleware import StartsAnnouncer
from tidegate.versions.airflow import HAS_VIEWS, conf

__all__ = ["PREFIX", "LateApp", "TidegatePages", "check_backfills", "views"]

PREFIX = "/tidegate"

_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="{color}" stroke-width="2" '
    'stroke-linecap="round"><path d="M5 3v18M12 3v6M12 15v6M19 3v18M1 12c2-3 4-3 6 0s4 3 6 0 4-3 6 0 3 2 4 1"/></svg>'
)
"""A tide through a gate."""


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
    icons = {"icon": _icon("#2a4365"), "icon_dark_mode": _icon("#e2e8f0")}
    places = [
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
    return [place | icons for place in places]


def _icon(color: str) -> str:
    """Return the icon as a data URL: an image of its own cannot take the color of the text around it."""
    return f"data:image/svg+xml,{quote(_ICON.format(color=color))}"


def check_backfills() -> None:
    """Have Airflow check each backfill of a pipeline before it creates the first run.

    The dialog, the REST API and `airflow backfill create` each do that in a process of their own, and Airflow has no
    hook for it. But all begin with a row in Airflow's table of backfills, and SQLAlchemy has a hook for rows.
    """
    if not event.contains(Mapper, "before_insert", _check_backfill):
        event.listen(Mapper, "before_insert", _check_backfill)


def _check_backfill(mapper: Any, connection: Any, row: Any) -> None:
    """Called for each row that this process inserts: only Airflow's backfills matter.

    Airflow answers an error of this class with 422 and its text, and the command ends with its text.
    """
    if mapper.class_.__name__ != "Backfill" or mapper.class_.__module__ != "airflow.models.backfill":
        return
    from tidegate.errors import Invalid, Rejected
    from tidegate.ui.previews import refuse_airflows_backfill
    from tidegate.versions.airflow import no_backfill_runs

    try:
        refuse_airflows_backfill(row.dag_id, row.dag_run_conf, row.from_date.isoformat())
    except (Invalid, Rejected) as error:
        raise no_backfill_runs(str(error)) from None


class TidegatePages(AirflowPlugin):
    """The tabs on the pages of DAGs and runs, the entry in the navigation, and the app behind them."""

    name = "tidegate_pages"

    fastapi_apps = [{"app": LateApp(), "url_prefix": PREFIX, "name": "tidegate"}]
    fastapi_root_middlewares = [{"middleware": StartsAnnouncer, "args": [], "kwargs": {}, "name": "tidegate"}]
    if HAS_VIEWS:
        external_views = views(str(conf.get("api", "base_url", fallback="")))

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Log what this Airflow lacks."""
        from tidegate.ui.airflow_setup import log_notices

        log_notices()
        check_backfills()
