"""Starts the announcer in Airflow's web server, and nowhere else: only that builds this middleware."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["StartsAnnouncer"]

log = logging.getLogger(__name__)


class StartsAnnouncer:
    """Passes everything on. When the server starts, it starts the announcer."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            try:
                from tidegate.ui.asset_events.announcer import Announcer

                Announcer().start()
            except Exception:  # without it the server still serves all pages, ours and Airflow's
                log.exception("Other DAGs are not told of what commands decide: the announcer could not be started")
        await self._app(scope, receive, send)
