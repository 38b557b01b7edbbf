"""How much of the pages' work this process does at once. It is Airflow's web server, and has others to answer.

An answer takes some tens of milliseconds of Python, of which a process has one at a time: with sixteen at once, each
request of Airflow's own waits for all of them. So requests stand in line, in the event loop, where they hold no thread:
one of each person is answered at a time, and of all people so many as leave Airflow room. Whoever sends more than a
page does is told to come again later.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from weakref import WeakKeyDictionary

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["AT_ONCE", "IN_LINE", "DearRequests"]

AT_ONCE = 2
"""Requests of all people."""
IN_LINE = 24
"""Requests of one person, with the one that is answered. A page sends six, and an open one two every few seconds."""
_API = "/api/v1/"


class _Occupied:
    """Who is in line, in one event loop."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(AT_ONCE)
        self.turns: dict[str, asyncio.Lock] = {}
        self.waiting: Counter[str] = Counter()


class DearRequests:
    """Lets requests of the API in, one after the other. Files and pages are cheap, and pass."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Occupied] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on when it is its turn."""
        if scope["type"] != "http" or _API not in scope["path"]:
            await self.app(scope, receive, send)
            return
        person, here = _person(scope), self._places.setdefault(asyncio.get_running_loop(), _Occupied())
        if here.waiting[person] >= IN_LINE:
            await _TOO_MANY(scope, receive, send)
            return
        here.waiting[person] += 1
        turn = here.turns.setdefault(person, asyncio.Lock())
        try:
            async with turn, here.places:
                await self.app(scope, receive, send)
        finally:
            here.waiting[person] -= 1
            if not here.waiting[person]:
                del here.waiting[person], here.turns[person]


def _person(scope: Scope) -> str:
    """Return who sends a request, as far as it can be told before anybody has looked at the login."""
    headers = Headers(scope=scope)
    login = headers.get("authorization", "") or headers.get("cookie", "") or str((scope.get("client") or ("",))[0])
    return hashlib.sha256(login.encode()).hexdigest()


_TOO_MANY = JSONResponse(
    {
        "error": {
            "reason": "TOO_MANY_REQUESTS",
            "what": f"{IN_LINE} requests of yours wait for an answer",
            "expected": "fewer at once, so that Airflow's pages stay fast",
            "help": "wait for answers before you ask for more",
        }
    },
    429,
    {"Retry-After": "1"},
)
