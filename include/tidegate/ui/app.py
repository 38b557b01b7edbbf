"""The app below /tidegate: the pages, their files, and the API that they call."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from tidegate import seams
from tidegate.errors import Corrupt, Invalid, Rejected, TidegateError, Unavailable
from tidegate.history.prometheus import CONTENT_TYPE, prometheus_text
from tidegate.ui import actions, api, pages
from tidegate.ui.access import LOGGED_IN, VALUES, Readable
from tidegate.ui.listing import BUDGET_S, metrics_of
from tidegate.ui.pipelines import known_pipelines

__all__ = ["ERRORS", "error_answer", "make_app", "router"]


class ErrorDetails(BaseModel):
    """An error that says what to do."""

    reason: str = Field(description="A stable code", examples=["NO_SUCH_CHECKPOINT"])
    what: str
    expected: str
    help: str


class ErrorAnswer(BaseModel):
    """The answer of a route that fails."""

    error: ErrorDetails


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "What was asked for makes no sense here"},
    404: {"model": ErrorAnswer, "description": "There is no such pipeline, checkpoint, gate or row"},
    409: {"model": ErrorAnswer, "description": "Not now, or not any more"},
    503: {"model": ErrorAnswer, "description": "Storage does not answer, or something is damaged"},
}


def error_answer(request: Request, error: Any) -> JSONResponse:
    """Answer with one of our errors, and what to do about it."""
    kinds = {Invalid: 400, Rejected: 409, Unavailable: 503, Corrupt: 503}
    status = 404 if error.reason.startswith("NO_SUCH") else kinds.get(type(error), 500)
    body = {"reason": error.reason, "what": error.what, "expected": error.expected, "help": error.help}
    return JSONResponse({"error": body}, status_code=status)


router = APIRouter()


@router.get(
    "/metrics",
    dependencies=LOGGED_IN,
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'tidegate_suspended{pipeline="orders"} 0\n'}}}},
)
def scrape(readable: Readable) -> Response:
    """Prometheus' text format: what `tidegate metrics` prints. One that cannot be read hides no other. Of very many, a
    scrape reads only as many anew as it has time for: readAge tells how old the others' figures are."""
    found, _ = known_pipelines(readable, seams.monotonic() + BUDGET_S)
    return Response(prometheus_text(metrics_of(found, seams.monotonic() + BUDGET_S)), media_type=CONTENT_TYPE)


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
REVALIDATED = {"Cache-Control": "private, no-cache", "Vary": "Cookie, Authorization"}
"""Of answers that a browser may keep and must ask for again. Those that quote rows are kept nowhere."""
_MOMENT = re.compile(rb'"now":"[^"]*"')
"""It differs in each answer; a client has it from the header Date."""


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
    app.include_router(router, prefix="/api/v1", tags=["look"], responses=ERRORS)
    app.include_router(actions.router, prefix="/api/v1", tags=["act"], responses=ERRORS)
    app.include_router(pages.router, include_in_schema=False)
    app.add_exception_handler(TidegateError, error_answer)
    app.add_exception_handler(HTTPException, _refusal)
    app.middleware("http")(_guarded)
    return app


async def _guarded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Any:
    answer: Any = await call_next(request)
    if request.method == "GET" and answer.status_code == 200 and not _quotes_rows(request):
        answer = await _unless_known(request, answer)
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer


def _quotes_rows(request: Request) -> bool:
    route = request.scope.get("route")
    return not isinstance(route, APIRoute) or any(each in VALUES[-1:] for each in route.dependencies)


async def _unless_known(request: Request, answer: Any) -> Any:
    """Answer with no more than "as it was" to a client that has the same answer already."""
    if answer.headers.get("content-type") != "application/json":
        return answer
    body = b"".join([chunk async for chunk in answer.body_iterator])
    tag = f'W/"{hashlib.sha256(_MOMENT.sub(b"", body)).hexdigest()[:32]}"'
    headers = REVALIDATED | {"ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


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
    """Lead whoever opens a page without a login to Airflow's, and from there back to the page."""
    if error.status_code != 401 or "text/html" not in request.headers.get("accept", ""):
        return await http_exception_handler(request, error)
    login = f"{request.scope.get('root_path', '').removesuffix('/tidegate')}/api/v2/auth/login"
    page = _LOGIN_PAGE.format(login=escape(login), script=_TO_LOGIN)
    policy = CSP.replace("script-src 'self'", f"script-src 'sha256-{_TO_LOGIN_HASH}'")
    return HTMLResponse(page, 401, {"Content-Security-Policy": policy})
