"""However many requests a person sends, Airflow's own are answered: the pages do a bounded amount of work at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from tidegate.ui import load
from tidegate.ui.load import AT_ONCE, IN_LINE, DearRequests


class Work:
    """What the app behind the line does: it works until it is let go."""

    def __init__(self) -> None:
        self.at_work: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        person = dict(scope["headers"])[b"authorization"].decode()
        for who in (person, "all"):
            self.at_work[who] += 1
            self.most[who] = max(self.most[who], self.at_work[who])
        await self.go_on.wait()
        for who in (person, "all"):
            self.at_work[who] -= 1
        self.answered[person] += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def nothing_more() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def ask(
    app: Any, person: str, path: str = "/api/v1/dags/orders/overview", receive: Any = nothing_more, cookie: str = ""
) -> tuple[int, dict[bytes, bytes]]:
    said: list[dict[str, Any]] = []
    headers = [(b"authorization", person.encode()), *([(b"cookie", cookie.encode())] if cookie else [])]

    async def send(message: Any) -> None:
        said.append(message)

    await app({"type": "http", "method": "GET", "path": path, "headers": headers}, receive, send)
    return said[0]["status"], dict(said[0]["headers"])


async def settled() -> None:
    """Let all that can go on continue."""
    for _ in range(200):
        await asyncio.sleep(0)


def story(tell: Callable[[Work, DearRequests], Awaitable[None]]) -> None:
    async def run() -> None:
        work = Work()
        await tell(work, DearRequests(work))

    asyncio.run(run())


def test_of_one_persons_requests_one_is_worked_at_and_all_are_answered() -> None:
    async def tell(work: Work, line: DearRequests) -> None:
        asked = [asyncio.create_task(ask(line, "viewer")) for _ in range(16)]
        await settled()
        assert work.at_work["viewer"] == 1
        work.go_on.set()
        assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 16
        assert (work.most["viewer"], work.answered["viewer"]) == (1, 16)

    story(tell)


def test_somebody_elses_request_does_not_wait_for_them() -> None:
    async def tell(work: Work, line: DearRequests) -> None:
        asked = [asyncio.create_task(ask(line, "viewer")) for _ in range(16)]
        await settled()
        asked.append(asyncio.create_task(ask(line, "operator")))
        await settled()
        assert work.at_work["operator"] == 1
        work.go_on.set()
        await asyncio.gather(*asked)

    story(tell)


def test_however_many_people_ask_the_process_works_at_few_at_once() -> None:
    async def tell(work: Work, line: DearRequests) -> None:
        asked = [asyncio.create_task(ask(line, f"viewer {n}")) for n in range(20)]
        await settled()
        assert work.at_work["all"] == AT_ONCE
        work.go_on.set()
        await asyncio.gather(*asked)
        assert work.most["all"] == AT_ONCE

    story(tell)


def test_who_sends_more_than_a_page_does_is_told_to_come_later_and_may() -> None:
    async def tell(work: Work, line: DearRequests) -> None:
        asked = [asyncio.create_task(ask(line, "script")) for _ in range(IN_LINE)]
        await settled()
        status, headers = await ask(line, "script")
        assert (status, headers[b"retry-after"]) == (429, b"1")
        work.go_on.set()
        await asyncio.gather(*asked)
        assert (await ask(line, "script"))[0] == 200

    story(tell)


def test_files_of_the_pages_wait_for_nothing() -> None:
    async def tell(work: Work, line: DearRequests) -> None:
        asked = [asyncio.create_task(ask(line, "viewer")) for _ in range(3)]
        asked += [asyncio.create_task(ask(line, "viewer", "/static/1/app.js")) for _ in range(5)]
        await settled()
        assert work.at_work["viewer"] == 6
        work.go_on.set()
        await asyncio.gather(*asked)

    story(tell)


def test_a_request_that_fails_lets_the_next_one_in() -> None:
    async def run() -> None:
        async def fails(scope: Any, receive: Any, send: Any) -> None:
            raise ZeroDivisionError

        line = DearRequests(fails)
        for _ in range(IN_LINE + 1):
            try:
                await ask(line, "viewer")
            except ZeroDivisionError:
                continue

    asyncio.run(run())


def test_a_request_that_does_not_come_as_a_whole_keeps_nobody_waiting(monkeypatch: Any) -> None:
    """Anybody can send one, also without a login."""

    async def never() -> Any:
        await asyncio.Event().wait()

    async def too_much() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * (load.BODY_BYTES + 1), "more_body": True}

    async def tell(work: Work, line: DearRequests) -> None:
        stuck = [asyncio.create_task(ask(line, f"attacker {n}", receive=never)) for n in range(AT_ONCE)]
        await settled()
        work.go_on.set()
        assert (await ask(line, "viewer"))[0] == 200
        assert (await ask(line, "attacker", receive=too_much))[0] == 400
        for each in stuck:
            each.cancel()
        monkeypatch.setattr(load, "BODY_S", 0.0)
        assert (await ask(line, "attacker", receive=never))[0] == 400

    story(tell)


def test_a_client_that_does_not_take_its_answer_keeps_nobody_waiting() -> None:
    async def tell(work: Work, line: DearRequests) -> None:
        work.go_on.set()

        async def never(message: Any) -> None:
            await asyncio.Event().wait()

        scope = {"type": "http", "method": "GET", "path": "/api/v1/dags"}
        stuck = [
            asyncio.create_task(line(scope | {"headers": [(b"authorization", b"a%d" % n)]}, nothing_more, never))
            for n in range(AT_ONCE)
        ]
        await settled()
        assert (await ask(line, "viewer"))[0] == 200
        for each in stuck:
            each.cancel()

    story(tell)


def test_a_storage_that_does_not_answer_keeps_only_its_own_pages_waiting(monkeypatch: Any) -> None:
    monkeypatch.setattr(load, "PLACE_S", 0.0)

    async def tell(work: Work, line: DearRequests) -> None:
        asked = [asyncio.create_task(ask(line, f"viewer {n}")) for n in range(AT_ONCE + 1)]
        while work.at_work["all"] <= AT_ONCE:
            await asyncio.sleep(0)
        work.go_on.set()
        assert [status for status, _ in await asyncio.gather(*asked)] == [200] * (AT_ONCE + 1)

    story(tell)


def test_a_login_is_one_person_whatever_cookies_come_with_it() -> None:
    async def tell(work: Work, line: DearRequests) -> None:
        asked = [asyncio.create_task(ask(line, f"x{n}", cookie=f"_token=viewer; junk={n}")) for n in range(IN_LINE)]
        await settled()
        assert work.at_work["all"] == 1
        assert (await ask(line, "y", cookie="_token=viewer"))[0] == 429
        work.go_on.set()
        await asyncio.gather(*asked)

    story(tell)


def test_the_whole_app_stands_behind_the_line(client: Any, tokens: dict[str, str]) -> None:
    """Where the pages are mounted in Airflow, paths of the API are those that wait."""
    from tidegate.ui.app import make_app

    assert DearRequests in [middleware.cls for middleware in make_app().user_middleware]
