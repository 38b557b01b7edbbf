"""The app below /tidegate: pages, what they are made of, and the API that they talk to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response

from tidegate.errors import TidegateError
from tidegate.ui import actions, api, pages, prometheus
from tidegate.ui.failures import ERRORS, told

__all__ = ["make_app"]

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
"""Nothing runs but our own files; nothing is fetched from elsewhere; only Airflow may frame it."""
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def make_app() -> FastAPI:
    """The whole app. FastAPI's own documentation pages are left out: they load scripts from elsewhere, for anybody."""
    app = FastAPI(
        title="tidegate",
        version="1",
        description="Checkpoints of pipelines: what happened, whether it is safe, and what to do.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(api.router, prefix="/api/v1", tags=["look"], responses=ERRORS)
    app.include_router(prometheus.router, prefix="/api/v1", tags=["look"], responses=ERRORS)
    app.include_router(actions.router, prefix="/api/v1", tags=["act"], responses=ERRORS)
    app.include_router(pages.router, include_in_schema=False)
    app.add_exception_handler(TidegateError, told)
    app.middleware("http")(_guarded)
    return app


async def _guarded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    answer = await call_next(request)
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer
