"""The pages: one empty document, and the files that fill it. No data is in any of it, so nothing can be injected."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from tidegate.history.row import MEASURES, PLOTTED
from tidegate.records.records import KINDS, STATES
from tidegate.ui.access import LOGGED_IN, READ

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
    "lanes.js",
    "measures.js",
    "overview.js",
)
"""What app.js imports before it shows anything. It gets the others behind that."""

_DECLARED = {
    name: [measure.label[:1].upper() + measure.label[1:], measure.unit, measure.help]
    for name, measure in MEASURES.items()
}
_MEASURES_JS = "".join(
    f"export const {name} = {json.dumps(value, indent=2)};\n"
    for name, value in (("DECLARED", _DECLARED), ("PLOTTED", PLOTTED), ("STATES", STATES), ("KINDS", KINDS))
).encode()

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
    """The same for all: which one it is, its scripts read off the address. `base`: where Airflow has hung this app.

    The first scripts are named, so that none waits until another one has been read. Their address has the files' hash:
    a browser need not ask for them again until they change.
    """
    place = f"{request.scope.get('root_path', '')}/static/{_files().version}"
    preload = "\n    ".join(f'<link rel="modulepreload" href="{escape(f"{place}/{name}")}">' for name in _FIRST)
    values = {"base": escape(request.scope.get("root_path", "")), "static": escape(place), "preload": preload}
    text = _files().page
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return HTMLResponse(text)


@router.get("/static/{version}/{name}", dependencies=LOGGED_IN)
def static(version: str, name: str) -> Response:
    """One of the files that are there, by its plain name."""
    files = _files()
    if name not in files.content:
        raise HTTPException(404, "there is no such file")
    same = version == files.version
    headers = {"Cache-Control": f"private, max-age={31_536_000 if same else 0}, {'immutable' if same else 'no-store'}"}
    return Response(files.content[name], media_type=TYPES[Path(name).suffix], headers=headers)


@dataclass(frozen=True)
class _Files:
    """The static files as they are on the disk, and measures.js, which is made from the declared measures."""

    page: str
    content: dict[str, bytes]
    version: str


def _files() -> _Files:
    """They are read again only if one of them has changed: a page that opens asks for a dozen."""
    return _read(tuple(sorted((each.name, each.stat().st_mtime_ns) for each in os.scandir(STATIC))))


@functools.lru_cache(maxsize=1)
def _read(changed: tuple[tuple[str, int], ...]) -> _Files:
    content = {name: (STATIC / name).read_bytes() for name, _ in changed if Path(name).suffix in TYPES}
    content |= {"measures.js": _MEASURES_JS}
    version = hashlib.sha256(b"".join(content.values())).hexdigest()[:16]
    return _Files((STATIC / "page.html").read_text(encoding="utf-8"), content, version)
