"""The history as people meet it: through Airflow's own web server, as somebody who is logged in, and in a browser."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.dags.server import Airflow, migrate
from tests.kit.waiting import eventually
from tests.ui.browser import NAMES, Browser, Page

USER = "op"
SHOWN = """
window.shownAt = 0;
const look = () => {
  if (document.querySelector('main:not([aria-busy]) tbody tr')) window.shownAt ||= performance.now();
};
new MutationObserver(look).observe(document, {childList: true, subtree: true, attributeFilter: ['aria-busy']});
"""
"""When the list that was asked for is there, in milliseconds since the navigation began."""


def asked(count: int) -> tuple[str, ...]:
    """As the pages ask: the first page, a long one, an old one; sorted, filtered, searched."""
    old = f"offset={count // 2}&limit=50"
    return "", "limit=200", old, "sort=seconds&limit=50", "state=aborted&limit=50", "text=run7&limit=50"


class Web(Airflow):
    """Airflow's web server alone, which knows the pipeline `orders` in a folder."""

    def __init__(self, home: Path, root: Path) -> None:
        (home / "passwords.json").write_text(json.dumps({USER: USER}))
        super().__init__(
            home,
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="False",
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS=f"{USER}:{USER}",
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(home / "passwords.json"),
            AIRFLOW__CORE__PLUGINS_FOLDER=str(Path(__file__).resolve().parents[2] / "plugins"),
        )
        self.root = root

    def __enter__(self) -> Web:
        migrate(self.env)
        put = f"from pathlib import Path; from tests.ui.known_dags import put_dag; put_dag(Path({str(self.root)!r}))"
        subprocess.run([sys.executable, "-c", put], env=self.env, check=True, capture_output=True)
        self.start("api-server")
        eventually("Airflow's web server answers", self._answers, 120)
        return self

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v2/version", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def token(self) -> str:
        """Of somebody who has logged in."""
        url = f"http://127.0.0.1:{self.port}/auth/token"
        body = json.dumps({"username": USER, "password": USER}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(json.load(answer)["access_token"])


class Caller:
    """One connection that is kept open, as a browser's."""

    def __init__(self, web: Web) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)
        self.headers = {"Cookie": f"_token={web.token()}"}

    def page(self, query: str) -> int:
        """A page of the list; answers with how many rows there are in all."""
        self.connection.request("GET", f"/tidegate/api/v1/dags/orders/checkpoints?{query}", headers=self.headers)
        answer = self.connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body[:500]
        return int(json.loads(body)["total"])


@contextlib.contextmanager
def viewer(web: Web) -> Iterator[Page | None]:
    """A browser in which somebody is logged in; None: there is none on this machine."""
    if not any(map(shutil.which, NAMES)):
        yield None
        return
    with Browser() as browser:
        page = browser.page()
        page.call("Page.addScriptToEvaluateOnNewDocument", source=SHOWN)
        page.cookie(f"http://127.0.0.1:{web.port}", "_token", web.token())
        yield page


def fresh(page: Page, web: Web) -> float:
    """The same in a browser that has never been there."""
    page.call("Network.setCacheDisabled", cacheDisabled=True)
    taken = opened(page, web)
    page.call("Network.setCacheDisabled", cacheDisabled=False)
    return taken


_visits = itertools.count()


def opened(page: Page, web: Web) -> float:
    """Seconds from the navigation to the list on the screen, all of the page's own files with it."""
    page.goto(f"http://127.0.0.1:{web.port}/tidegate/dag/orders?{next(_visits)}#/history")
    eventually("the list is there", lambda: page.run("window.shownAt"), 120)
    return float(page.run("window.shownAt")) / 1000


def turned(page: Page, query: str) -> float:
    """Seconds from a click, within the page, to the new list."""
    number = next(_visits)  # so that it is another address each time
    target = urllib.parse.quote(f"#/history?{query}&visit={number}", safe="#/?&=")
    go = f"document.querySelector('main').ariaBusy = 'true'; window.shownAt = 0; location.hash = {json.dumps(target)}"
    began = page.run(f"{go}; performance.now()")
    eventually("the new list is there", lambda: page.run("window.shownAt"))
    return (float(page.run("window.shownAt")) - float(began)) / 1000
