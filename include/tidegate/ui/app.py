"""The app below /tidegate: the pages, their files, and the API that they call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from tidegate import seams
from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
from tidegate.history.metrics import Metric, figures, metrics
from tidegate.history.prometheus import CONTENT_TYPE, prometheus_text
from tidegate.ui import actions, api, pages
from tidegate.ui.access import LOGGED_IN, Readable
from tidegate.ui.pipelines import Known, known_pipelines

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
    kinds = {Invalid: 400, Rejected: 409, Unavailable: 503}
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
    """Prometheus' text format: what `tidegate metrics` prints. One that cannot be read hides no other."""
    by_pipeline = {pipeline.card.pipeline: _metrics(pipeline) for pipeline in known_pipelines(readable)}
    return Response(prometheus_text(by_pipeline), media_type=CONTENT_TYPE)


def _metrics(pipeline: Known) -> list[Metric]:
    try:
        # The web server cannot see whether a process on another machine has died.
        return metrics(figures(pipeline.ledger(), pipeline, pipeline.options, lambda plan: None, seams.now()))
    except TidegateError:
        return [Metric("readable", 0)]


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
    app.include_router(router, prefix="/api/v1", tags=["look"], responses=ERRORS)
    app.include_router(actions.router, prefix="/api/v1", tags=["act"], responses=ERRORS)
    app.include_router(pages.router, include_in_schema=False)
    app.add_exception_handler(TidegateError, error_answer)
    app.middleware("http")(_guarded)
    return app


async def _guarded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    answer = await call_next(request)
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer
