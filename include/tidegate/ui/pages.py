"""The pages: one empty document, and the static files that fill it. They contain no data, so nothing can be
injected. And the pages of Data Docs that `tidegate docs gates` has built, in which nothing may run."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from tidegate.gates.expectations.data_docs import read_page
from tidegate.history.row import MEASURES, PLOTTED
from tidegate.records.records import KINDS, STATES
from tidegate.ui.access import LOGGED_IN, READ, find_visible_pipeline
from tidegate.ui.pipelines import PipelineRef

__all__ = ["router"]

STATIC = Path(__file__).with_name("static")
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

_FIRST = (
    "actions.js",
    "api.js",
    "backfills.js",
    "dom.js",
    "format.js",
    "history.js",
    "jobs.js",
    "lanes.js",
    "measures.js",
    "overview.js",
    "strip.js",
)
"""Modules that app.js needs for the first paint; the rest load lazily."""

_DECLARED = {
    name: [measure.label[:1].upper() + measure.label[1:], measure.unit, measure.help]
    for name, measure in MEASURES.items()
}
_CONSTANTS = {"DECLARED": _DECLARED, "PLOTTED": PLOTTED, "STATES": STATES, "KINDS": KINDS}
_MEASURES_JS = "".join(
    f"export const {name} = {json.dumps(value, indent=2)};\n" for name, value in _CONSTANTS.items()
).encode()

router = APIRouter(default_response_class=HTMLResponse)


@router.get("/pipelines", dependencies=LOGGED_IN)
def pipelines(request: Request) -> HTMLResponse:
    """Return the page of all pipelines that the user may see."""
    return _page(request)


@router.get("/dag/{dag_id}", dependencies=READ)
def of_dag(request: Request, dag_id: str) -> HTMLResponse:
    """Return the page of one pipeline."""
    return _page(request)


@router.get("/run/{dag_id}/{run_id:path}", dependencies=READ)
def of_run(request: Request, dag_id: str, run_id: str) -> HTMLResponse:
    """Return the page of a run's checkpoint."""
    return _page(request)


def _page(request: Request) -> HTMLResponse:
    """Return the document, which is the same for all pages: its scripts read the page from the address.

    It preloads the first scripts, so that they load in parallel. Their addresses contain a hash of the files, so that a
    browser may cache them until they change. `base` is where Airflow has mounted this app.
    """
    place = f"{request.scope.get('root_path', '')}/static/{_files().version}"
    preload = "\n    ".join(f'<link rel="modulepreload" href="{escape(f"{place}/{name}")}">' for name in _FIRST)
    values = {"base": escape(request.scope.get("root_path", "")), "static": escape(place), "preload": preload}
    text = _files().page
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return HTMLResponse(text)


DATA_DOCS_CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)


@router.get("/docs/{dag_id}/{path:path}", dependencies=READ)
def data_docs(pipeline: Annotated[PipelineRef, Depends(find_visible_pipeline)], path: str) -> Response:
    """Return a page of the Data Docs beside the pipeline's ledger. They have no values of rows."""
    page = read_page(pipeline.ledger(), path)
    if page is None:
        raise HTTPException(404, "no such page")
    return HTMLResponse(page, headers={"Content-Security-Policy": DATA_DOCS_CSP})


@router.get("/static/{version}/{name}", dependencies=LOGGED_IN)
def static(version: str, name: str) -> Response:
    """Return a static file by its name."""
    files = _files()
    if name not in files.content:
        raise HTTPException(404, "no such file")
    if version == files.version:
        caching = "max-age=31536000, immutable"
    else:
        caching = "max-age=0, no-store"
    headers = {"Cache-Control": f"private, {caching}"}
    return Response(files.content[name], media_type=TYPES[Path(name).suffix], headers=headers)


@dataclass(frozen=True)
class _Files:
    """The static files on disk, and measures.js, which is generated from the declared measures."""

    page: str
    content: dict[str, bytes]
    version: str


def _files() -> _Files:
    """Return the files, read again only if one has changed: a page requests a dozen of them."""
    return _read(tuple(sorted((each.name, each.stat().st_mtime_ns) for each in os.scandir(STATIC))))


@functools.lru_cache(maxsize=1)
def _read(changed: tuple[tuple[str, int], ...]) -> _Files:
    content = {}
    for name, _ in changed:
        if Path(name).suffix in TYPES:
            content[name] = (STATIC / name).read_bytes()
    content |= {"measures.js": _MEASURES_JS}
    version = hashlib.sha256(b"".join(content.values())).hexdigest()[:16]
    return _Files((STATIC / "page.html").read_text(encoding="utf-8"), content, version)
