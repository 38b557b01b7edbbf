"""Starts the announcer in Airflow's web server, and nowhere else: only that builds this middleware."""

from __future__ import annotations

from typing import Any

__all__ = ["StartsAnnouncer"]


class StartsAnnouncer:
    """Passes everything on. When the server starts, it starts the announcer."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            from tidegate.ui.asset_events.announcer import Announcer

            Announcer().start()
        await self._app(scope, receive, send)
