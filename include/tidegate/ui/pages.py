"""The pages: one empty document, and the files that fill it. No data is in any of it, so nothing can be injected."""

from __future__ import annotations

from html import escape
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from tidegate.ui.access import LOGGED_IN, READ

__all__ = ["router"]

STATIC = Path(__file__).with_name("static")
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

router = APIRouter(default_response_class=HTMLResponse)


@router.get("/pipelines", dependencies=LOGGED_IN)
def pipelines(request: Request) -> HTMLResponse:
    """All pipelines that the user may see."""
    return _page(request)


@router.get("/dag/{dag_id}", dependencies=READ)
def of_dag(request: Request, dag_id: str) -> HTMLResponse:
    """One pipeline."""
    return _page(request)


@router.get("/run/{dag_id}/{run_id:path}", dependencies=READ)
def of_run(request: Request, dag_id: str, run_id: str) -> HTMLResponse:
    """The checkpoint of one run."""
    return _page(request)


def _page(request: Request) -> HTMLResponse:
    """The same for all: which one it is, its scripts read off the address. `base`: where Airflow has hung this app."""
    text = (STATIC / "page.html").read_text(encoding="utf-8")
    return HTMLResponse(text.replace("{base}", escape(request.scope.get("root_path", ""), quote=True)))


@router.get("/static/{name}", dependencies=LOGGED_IN)
def static(name: str) -> Response:
    """One of the files that are there, by its plain name."""
    known = {path.name: path for path in STATIC.iterdir() if path.suffix in TYPES}
    if name not in known:
        raise HTTPException(404, "there is no such file")
    path = known[name]
    headers = {"Cache-Control": "private, max-age=0, must-revalidate"}
    return Response(path.read_bytes(), media_type=TYPES[path.suffix], headers=headers)
