"""The app below /tidegate: pages, what they are made of, and the API that they talk to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
from tidegate.ui import actions, api, pages, prometheus

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
    app.include_router(api.router, prefix="/api/v1", tags=["look"])
    app.include_router(prometheus.router, prefix="/api/v1", tags=["look"])
    app.include_router(actions.router, prefix="/api/v1", tags=["act"])
    app.include_router(pages.router, include_in_schema=False)
    app.add_exception_handler(TidegateError, _told)
    app.middleware("http")(_guarded)
    return app


async def _guarded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    answer = await call_next(request)
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer


def _told(request: Request, error: Any) -> JSONResponse:
    """An error of ours, as one that says what to do."""
    kinds = {Invalid: 400, Rejected: 409, Unavailable: 503}
    status = 404 if error.reason.startswith("NO_SUCH") else kinds.get(type(error), 500)
    body = {"reason": error.reason, "what": error.what, "expected": error.expected, "help": error.help}
    return JSONResponse({"error": body}, status_code=status)
