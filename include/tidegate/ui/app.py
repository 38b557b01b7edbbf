"""The app below /tidegate: the pages, their files, and the API that they call."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate import seams
from tidegate.errors import Corrupt, Invalid, Rejected, TidegateError, Unavailable
from tidegate.history.prometheus import CONTENT_TYPE, prometheus_text
from tidegate.ui import actions, api, pages
from tidegate.ui.access import LOGGED_IN, Readable
from tidegate.ui.answers import schemas
from tidegate.ui.listing import BUDGET_S, metrics_of
from tidegate.ui.load import DearRequests
from tidegate.ui.pipelines import find_pipelines

__all__ = ["ERRORS", "error_answer", "make_app", "router"]


class ErrorDetails(BaseModel):
    """An error with its remedy."""

    reason: str = Field(description="A stable code", examples=["NO_SUCH_CHECKPOINT"])
    message: str = Field(description="What happened, in a sentence")
    expected: str
    help: str


class ErrorAnswer(BaseModel):
    """The answer of a route that fails."""

    error: ErrorDetails


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The request is invalid"},
    404: {"model": ErrorAnswer, "description": "No such pipeline, checkpoint, gate or row"},
    409: {"model": ErrorAnswer, "description": "Not possible now, or no longer possible"},
    429: {"model": ErrorAnswer, "description": "Too many of your requests are waiting for an answer"},
    503: {"model": ErrorAnswer, "description": "Storage does not answer, or is damaged"},
}


def error_answer(request: Request, error: Any) -> JSONResponse:
    """Return the answer for one of tidegate's errors."""
    kinds = {Invalid: 400, Rejected: 409, Unavailable: 503, Corrupt: 503}
    if error.reason.startswith("NO_SUCH"):
        status = 404
    else:
        status = kinds.get(type(error), 500)
    body = {"reason": error.reason, "message": error.what, "expected": error.expected, "help": error.help}
    return JSONResponse({"error": body}, status_code=status)


router = APIRouter()


@router.get(
    "/metrics",
    dependencies=LOGGED_IN,
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'tidegate_suspended{pipeline="orders"} 0\n'}}}},
)
def scrape(readable: Readable) -> Response:
    """Return the pipelines' metrics in Prometheus' text format, like `tidegate metrics`. A pipeline that cannot be read
    does not hide the rest. If there are very many, a scrape refreshes only some of them: the metric readAge says how
    old the figures are."""
    visible, _ = find_pipelines(readable, seams.monotonic() + BUDGET_S)
    return Response(prometheus_text(metrics_of(visible, seams.monotonic() + BUDGET_S)), media_type=CONTENT_TYPE)


CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
"""Only our own files run, nothing is fetched from other sites, and only Airflow may frame the pages."""
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class _App(FastAPI):
    """An app whose description includes the answers of `api`, which are structs of msgspec."""

    def openapi(self) -> dict[str, Any]:
        """Return the app's description."""
        if self.openapi_schema is None:
            super().openapi()["components"]["schemas"] |= schemas(api.answers())
        return super().openapi()


def make_app() -> FastAPI:
    """Return the app, without FastAPI's documentation pages: they load scripts from other sites, and need no login."""
    app = _App(
        title="tidegate",
        version="1",
        description="Checkpoints of pipelines: their state, their history, and actions on them.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(api.router, prefix="/api/v1", tags=["look"], responses=ERRORS)
    app.include_router(router, prefix="/api/v1", tags=["look"], responses=ERRORS)
    app.include_router(actions.router, prefix="/api/v1", tags=["act"], responses=ERRORS)
    app.include_router(pages.router, include_in_schema=False)
    app.add_exception_handler(TidegateError, error_answer)
    app.add_exception_handler(HTTPException, _refusal)
    app.add_middleware(DearRequests)
    app.add_middleware(Guard)
    return app


class Guard:
    """Adds the headers of all answers, and answers 304 to a client that already has the same answer.

    Plain ASGI, because Airflow's own requests wait while it runs.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client_etag = None
        if scope["method"] == "GET":
            client_etag = Headers(scope=scope).get("if-none-match")
        is_unchanged = False

        async def guarded(message: Message) -> None:
            nonlocal is_unchanged
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if client_etag is not None and message["status"] == 200:
                    is_unchanged = headers.get("etag") == client_etag
                if is_unchanged:
                    message["status"] = 304
                    del headers["content-length"], headers["content-type"]
            elif is_unchanged:
                message["body"] = b""
            await send(message)

        await self.app(scope, receive, guarded)


_TO_LOGIN = "const { body } = document; const { pathname, search, hash } = parent.location; " + (
    "parent.location.replace(body.dataset.login + encodeURIComponent(pathname + search + hash));"
)
_TO_LOGIN_HASH = base64.b64encode(hashlib.sha256(_TO_LOGIN.encode()).digest()).decode()
_LOGIN_PAGE = """<!doctype html>
<html lang="en">
  <head><meta charset="utf-8"><title>Not logged in</title></head>
  <body data-login="{login}?next=">
    <p>You are not logged in, or your login has expired. <a href="{login}" target="_top">Log in</a></p>
    <script>{script}</script>
  </body>
</html>
"""


async def _refusal(request: Request, error: Any) -> Response:
    """Send a user who opens a page without a login to Airflow's login page, and back afterwards."""
    if error.status_code != 401 or "text/html" not in request.headers.get("accept", ""):
        return await http_exception_handler(request, error)
    login = f"{request.scope.get('root_path', '').removesuffix('/tidegate')}/api/v2/auth/login"
    page = _LOGIN_PAGE.format(login=escape(login), script=_TO_LOGIN)
    policy = CSP.replace("script-src 'self'", f"script-src 'sha256-{_TO_LOGIN_HASH}'")
    return HTMLResponse(page, 401, {"Content-Security-Policy": policy})
