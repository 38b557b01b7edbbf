"""Limits how many API requests this process, which is Airflow's web server, handles at once.

An answer takes tens of milliseconds of Python, and only one thread runs Python at a time: with sixteen answers at once,
each of Airflow's own requests waits for all of them. So requests queue in the event loop, where they hold no thread:
one per user runs at a time, and in total few enough to leave Airflow room. A client that sends more than a page does
gets status 429.
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
"""The number of requests that run at once, of all users together."""
IN_LINE = 24
"""The maximum number of a user's unanswered requests. A page sends six, and an open page two every few seconds."""
ALL_IN_LINE = 400
"""The maximum number of unanswered requests of all users, because a client may claim to be many."""
PLACE_S = 3.0
"""The time for which a request blocks the queue: one that takes longer waits for storage, and uses no CPU."""
BODY_BYTES = 1 << 20
BODY_S = 10.0
"""The maximum size of a request's body, and the time to send it. A request is queued once its body is complete."""
_API = "/api/v1/"


class _Queue:
    """The queue of one event loop."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(AT_ONCE)
        self.turns: dict[str, asyncio.Lock] = {}
        self.waiting: Counter[str] = Counter()


class DearRequests:
    """Queues requests of the API. Files and pages are cheap, and pass at once.

    A slow client holds no place: its request is read before it gets one, and the answer is sent after.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request when it is its turn."""
        if scope["type"] != "http" or _API not in scope["path"]:
            await self.app(scope, receive, send)
            return
        user = _user_key(scope)
        queue = self._queues.setdefault(asyncio.get_running_loop(), _Queue())
        if queue.waiting[user] >= IN_LINE or queue.waiting.total() >= ALL_IN_LINE:
            await _TOO_MANY(scope, receive, send)
            return
        queue.waiting[user] += 1
        turn = queue.turns.setdefault(user, asyncio.Lock())
        answer: list[Message] = []
        try:
            body = await _read_body(receive)
            if body is None:
                await _NOT_SENT(scope, receive, send)
                return
            async with turn:
                await self._work(queue.places, scope, _replay(body, receive), answer)
        finally:
            queue.waiting[user] -= 1
            if not queue.waiting[user]:
                del queue.waiting[user], queue.turns[user]
        for message in answer:
            await send(message)

    async def _work(self, places: asyncio.Semaphore, scope: Scope, receive: Receive, answer: list[Message]) -> None:
        """Collect the answer. Free the place once it is complete, or takes too long."""

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
    """Return the request's body, or None if it is too large, takes too long, or the client has disconnected."""
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
    """Return a `receive` that yields the body, which was read already, and then the client's further messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _user_key(scope: Scope) -> str:
    """Return a key for the user who sends a request, before the login is checked.

    Only Airflow's login cookie counts: a client could invent other cookies for each request.
    """
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
            "message": "the request did not arrive completely",
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
            "message": f"{IN_LINE} of your requests are waiting for an answer",
            "expected": "fewer at once, so that Airflow's pages stay fast",
            "help": "wait for answers before you send more",
        }
    },
    429,
    {"Retry-After": "1"},
)
