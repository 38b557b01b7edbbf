"""A headless Chromium, driven by its own protocol (CDP): what tests of pages need, and no more."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.kit.waiting import PATIENCE_S, eventually

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def program() -> str:
    """Where Chromium is. Without one tests of pages are skipped; .ci/run gets one where it may."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium on the PATH: apt-get install chromium")
    return found


class NoPage(AssertionError):
    """Between two pages nothing can be evaluated."""


class Browser:
    """Started and stopped as a `with` block, with a profile of its own."""

    def __init__(self) -> None:
        self.profile = tempfile.mkdtemp(prefix="tidegate-chromium-")
        self.numbers = itertools.count(1)
        self.open = contextlib.ExitStack()
        self.process: subprocess.Popen[bytes]
        self.socket: ClientConnection
        self.pages: dict[str, Page] = {}

    def __enter__(self) -> Browser:
        words = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--remote-debugging-port=0",
            f"--user-data-dir={self.profile}",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            [program(), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        told = Path(self.profile, "DevToolsActivePort")
        eventually("Chromium answers", lambda: told.exists() and told.read_text().count("\n") >= 1)
        port, path = told.read_text().split("\n")[:2]
        # Between two commands nobody reads: a bounded queue of events would stop the reading of pongs, too, and a ping
        # that is not answered closes the connection.
        self.socket = self.open.enter_context(
            connect(f"ws://127.0.0.1:{port}{path}", max_size=None, max_queue=None, ping_interval=None)
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.open.close()
        os.killpg(self.process.pid, signal.SIGKILL)  # the session that we made for it
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, session: str | None = None, **words: Any) -> Any:
        """One command, and its answer; events that come meanwhile are kept."""
        number = next(self.numbers)
        self.socket.send(
            json.dumps({"id": number, "method": method, "params": words} | ({"sessionId": session} if session else {}))
        )
        while True:
            told = json.loads(self.socket.recv(timeout=PATIENCE_S))
            if told.get("id") == number:
                if "error" in told:  # an error of the script itself is a result
                    raise (NoPage if method == "Runtime.evaluate" else AssertionError)(f"{method}: {told['error']}")
                return told["result"]
            if told.get("sessionId") in self.pages:
                self.pages[told["sessionId"]].heard(told)

    def page(self, width: int = 1400, height: int = 900) -> Page:
        """A new page, with cookies of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        self.pages[session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.size(width, height)
        return page


class Page:
    """One tab. `here` is where selectors are looked for: the document, or that of a frame of Airflow's."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self.browser = browser
        self.session = session
        self.context = context
        self.wrong: list[str] = []
        """Errors, alerts and whatever the content policy has refused."""
        self.here = "document"

    def heard(self, told: dict[str, Any]) -> None:
        method, words = told["method"], told.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.wrong.append(str(words["exceptionDetails"].get("exception", words["exceptionDetails"]))[:500])
        elif method == "Page.javascriptDialogOpening":
            self.wrong.append(f"a dialog: {words['message']}")
        elif method == "Log.entryAdded" and words["entry"]["level"] == "error":
            entry = words["entry"]
            self.wrong.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")

    def call(self, method: str, **words: Any) -> Any:
        return self.browser.call(method, self.session, **words)

    def close(self) -> None:
        """It asks the server for nothing any more."""
        del self.browser.pages[self.session]
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def cookie(self, url: str, name: str, value: str) -> None:
        self.call("Network.setCookie", url=url, name=name, value=value)

    def goto(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        eventually(f"{url} is there", lambda: self.look("document.readyState") == "complete")

    def run(self, script: str) -> Any:
        """What an expression gives."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise AssertionError(f"{script}: {told['exceptionDetails'].get('exception', {}).get('description')}")
        return told["result"].get("value")

    def look(self, script: str) -> Any:
        """What an expression that changes nothing gives; between two pages, once the next one is there."""

        def found() -> list[Any]:
            with contextlib.suppress(NoPage):
                return [self.run(script)]
            return []

        return eventually("a page is there", found)[0]

    def text(self, selector: str = "body") -> str:
        return str(self.look(f"{self.here}?.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def has(self, text: str, selector: str = "body", timeout: float = PATIENCE_S) -> None:
        """Wait until a part of the page shows a text."""
        try:
            eventually(f"the page shows {text!r}", lambda: text in self.text(selector), timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()[:2000]}\n{self.wrong}") from None

    def is_new(self, mark: str) -> bool:
        """Whether another page is there than the one that was marked."""
        return bool(self.look(f"window.{mark} === undefined"))

    def there(self, selector: str) -> bool:
        return bool(self.look(f"!!{self.here}?.querySelector({json.dumps(selector)})"))

    def click(self, selector: str) -> None:
        eventually(f"{selector} is there", lambda: self.there(selector))
        self.run(f"{self.here}.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, text: str) -> None:
        eventually(f"{selector} is there", lambda: self.there(selector))
        self.run(
            f"(() => {{ const it = {self.here}.querySelector({json.dumps(selector)}); it.value = {json.dumps(text)};"
            " it.dispatchEvent(new Event('input', {bubbles: true}));"
            " it.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def key(self, key: str) -> None:
        text = key if len(key) == 1 else {"Enter": "\r"}.get(key, "")
        code = {"Tab": 9, "Enter": 13, "Escape": 27}.get(key, ord(key.upper()[0]) if text else 0)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "",
                      windowsVirtualKeyCode=code)  # fmt: skip

    def screenshot(self, path: Path) -> Path:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return path
