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
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ALL_IN_LINE", "AT_ONCE", "BODY_BYTES", "BODY_S", "IN_LINE", "PLACE_S", "DearRequests"]

AT_ONCE = 2
"""Requests of all people."""
IN_LINE = 24
"""Requests of one person, with the one that is answered. A page sends six, and an open one two every few seconds."""
ALL_IN_LINE = 400
"""Requests of all people, whoever they say that they are."""
PLACE_S = 3.0
"""How long one request keeps others waiting: one that takes longer waits for a storage that does not answer."""
BODY_BYTES = 1 << 20
BODY_S = 10.0
"""How much a request may send, and in which time: it waits in line only when it is there as a whole."""
_API = "/api/v1/"


class _Occupied:
    """Who is in line, in one event loop."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(AT_ONCE)
        self.turns: dict[str, asyncio.Lock] = {}
        self.waiting: Counter[str] = Counter()


class DearRequests:
    """Lets requests of the API in, one after the other. Files and pages are cheap, and pass.

    Nothing that a client does or leaves undone holds a place: its request is read before, and its answer sent after.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Occupied] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on when it is its turn."""
        if scope["type"] != "http" or _API not in scope["path"]:
            await self.app(scope, receive, send)
            return
        person, here = _person(scope), self._places.setdefault(asyncio.get_running_loop(), _Occupied())
        if here.waiting[person] >= IN_LINE or here.waiting.total() >= ALL_IN_LINE:
            await _TOO_MANY(scope, receive, send)
            return
        here.waiting[person] += 1
        turn = here.turns.setdefault(person, asyncio.Lock())
        answer: list[Message] = []
        try:
            body = await _read_body(receive)
            if body is None:
                await _NOT_SENT(scope, receive, send)
                return
            async with turn:
                await self._work(here.places, scope, _replay(body, receive), answer)
        finally:
            here.waiting[person] -= 1
            if not here.waiting[person]:
                del here.waiting[person], here.turns[person]
        for message in answer:
            await send(message)

    async def _work(self, places: asyncio.Semaphore, scope: Scope, receive: Receive, answer: list[Message]) -> None:
        """Collect the answer. The place is free for others when it is there, or takes too long."""

        async def collect(message: Message) -> None:
            answer.append(message)

        async with places:
            work = asyncio.ensure_future(self.app(scope, receive, collect))
            try:
                await asyncio.wait({work}, timeout=PLACE_S)
            except asyncio.CancelledError:
                work.cancel()
                raise
        await work


async def _read_body(receive: Receive) -> bytes | None:
    """Return what the client sends. None: it is too much, takes too long, or the client has gone."""
    try:
        return await asyncio.wait_for(_whole_body(receive), BODY_S)
    except asyncio.TimeoutError:
        return None


async def _whole_body(receive: Receive) -> bytes | None:
    body = b""
    while len(body) <= BODY_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body if len(body) <= BODY_BYTES else None
    return None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return what gives the request's body, and after that whatever the client does."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _person(scope: Scope) -> str:
    """Return who sends a request, as far as it can be told before anybody has looked at the login. Of the cookies only
    Airflow's login counts: others can be made up for each request."""
    headers = Headers(scope=scope)
    token = cookie_parser(headers.get("cookie", "")).get(_LOGIN, "")
    login = token or headers.get("authorization", "") or str((scope.get("client") or ("",))[0])
    return hashlib.sha256(login.encode()).hexdigest()


_LOGIN = "_token"
"""The cookie in which Airflow keeps a login."""

_NOT_SENT = JSONResponse(
    {
        "error": {
            "reason": "BAD_REQUEST",
            "message": "the request did not come as a whole",
            "expected": f"at most {BODY_BYTES:,} bytes, within {BODY_S:g} seconds",
            "help": "send it again",
        }
    },
    400,
)
_TOO_MANY = JSONResponse(
    {
        "error": {
            "reason": "TOO_MANY_REQUESTS",
            "message": f"{IN_LINE} requests of yours wait for an answer",
            "expected": "fewer at once, so that Airflow's pages stay fast",
            "help": "wait for answers before you ask for more",
        }
    },
    429,
    {"Retry-After": "1"},
)
