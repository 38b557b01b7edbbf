"""A real S3 server on loopback (moto's), for tests: with one bucket, requests that are counted, slow, or fail.

What it does wrong, it does by counting requests, never by a clock: the same requests fail in the same places.
"""

from __future__ import annotations

import collections
import contextlib
import html
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.kit.waiting import eventually
from tidegate.cli.up.home import any_port

SECRET = "canary-of-the-store"
BUCKET = "bucket"
_CONTROL = "/kit/"


@dataclass(frozen=True)
class S3Server:
    """Where it is. It forgets everything when it ends."""

    endpoint: str

    @property
    def options(self) -> dict[str, str]:
        """How to log in, as storage_options take it."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": "someone",
            "aws_secret_access_key": SECRET,
            "aws_region": "us-east-1",
            "allow_http": "true",
        }

    def settings(self, folder: str) -> dict[str, str]:
        """The settings of a pipeline that has everything in a folder of the bucket."""
        login = {f"storage_options.{name}": value for name, value in self.options.items()}
        return {"root": f"s3://{BUCKET}/{folder}/ledger", "data": f"s3://{BUCKET}/{folder}/data", **login}

    def put(self, key: str, data: bytes) -> None:
        """Make an object."""
        self._ask("PUT", f"/{BUCKET}/{key}", data)

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """All objects whose keys begin so."""
        from obstore.store import S3Store

        login: Any = {name: value for name, value in self.options.items() if name != "allow_http"}
        store = S3Store(BUCKET, config=login, client_options={"allow_http": True})
        found = [meta["path"] for batch in store.list(prefix or None) for meta in batch]
        return {path: bytes(store.get(path).bytes()) for path in found}

    def treat(
        self, *, delay_s: float = 0.0, fail_every: int = 0, lose_every: int = 0, lag: int = 0, expired: bool = False
    ) -> None:
        """From now on each request takes longer, and every so many-th is answered 503 Slow Down before it counts.

        lose_every: every so many-th counts, and then the connection breaks before it is answered.
        lag: listings do not show the objects of so many last puts.
        expired: no login is valid any more.
        """
        how = {"delay_s": delay_s, "fail_every": fail_every, "lose_every": lose_every, "lag": lag, "expired": expired}
        self._ask("POST", f"{_CONTROL}treat", json.dumps(how).encode())

    @contextlib.contextmanager
    def counted(self) -> Iterator[collections.Counter[str]]:
        """The requests of a block, by method. They are known at its end."""
        counts: collections.Counter[str] = collections.Counter()
        before = self._counts()
        yield counts
        counts.update({method: number - before.get(method, 0) for method, number in self._counts().items()})

    @contextlib.contextmanager
    def asked(self) -> Iterator[list[str]]:
        """The requests of a block, each as its method, path and query. They are known at its end."""
        requests: list[str] = []
        self._ask("GET", f"{_CONTROL}asked")
        yield requests
        requests += json.loads(self._ask("GET", f"{_CONTROL}asked"))

    @contextlib.contextmanager
    def counted_by_client(self) -> Iterator[collections.Counter[str]]:
        """The requests of a block, by who asked: "spark", which is Hadoop in a JVM, or "python"."""
        counts: collections.Counter[str] = collections.Counter()
        before = self._asked_for("clients")
        yield counts
        counts.update({who: number - before.get(who, 0) for who, number in self._asked_for("clients").items()})

    def _counts(self) -> dict[str, int]:
        return self._asked_for("counts")

    def _asked_for(self, what: str) -> dict[str, int]:
        return dict(json.loads(self._ask("GET", f"{_CONTROL}{what}")))

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(self.endpoint + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())


@contextlib.contextmanager
def s3() -> Iterator[S3Server]:
    """Start a server with an empty bucket; it ends with the block."""
    port = any_port()
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kit.s3", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )
    server = S3Server(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        assert process.poll() is None, "the server has ended"
        with contextlib.suppress(OSError):
            server.treat()
            return True
        return False

    try:
        eventually("the server answers", answers)
        server._ask("PUT", f"/{BUCKET}")
        yield server
    finally:
        process.kill()
        process.wait()


class Treated:
    """A web application in front of another one."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._counts: collections.Counter[str] = collections.Counter()
        self._requests: collections.deque[str] = collections.deque(maxlen=10_000)
        self._clients: collections.Counter[str] = collections.Counter()
        self._how: dict[str, Any] = {}
        self._asked = 0
        self._put: list[str] = []
        """The paths of all puts, in order."""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path.startswith(_CONTROL):
            if method == "POST":
                self._how = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
                self._asked = 0
            start_response("200 OK", [("Content-Type", "application/json")])
            if path.endswith("asked"):
                requests = [self._requests.popleft() for _ in range(len(self._requests))]
                return [json.dumps(requests).encode()]
            return [json.dumps(self._clients if path.endswith("clients") else self._counts).encode()]
        self._counts[method] += 1
        self._requests.append(f"{method} {path}?{unquote(environ.get('QUERY_STRING', ''))}")
        self._clients["spark" if "java" in environ.get("HTTP_USER_AGENT", "").lower() else "python"] += 1
        self._asked += 1
        time.sleep(self._how.get("delay_s", 0))
        if self._how.get("expired"):
            start_response("400 Bad Request", [("Content-Type", "application/xml")])
            return [b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"]
        if self._is_turn_of("fail_every"):
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"]
        if method == "PUT":
            self._put.append(path.removeprefix(f"/{BUCKET}/"))
        if self._is_turn_of("lose_every"):
            list(self._application(environ, lambda *_: None))
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        query = parse_qs(environ.get("QUERY_STRING", ""))
        if self._how.get("lag") and "list-type" in query:
            return self._lagging(environ, start_response)
        return self._application(environ, start_response)

    def _is_turn_of(self, what: str) -> bool:
        every = self._how.get(what, 0)
        return bool(every) and self._asked % every == 0

    def _lagging(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """A listing without what was put last, and without the folders that only these have made."""
        begun: list[Any] = []
        body = b"".join(self._application(environ, lambda *told: begun.extend(told))).decode()
        before = set(self._put[: -self._how["lag"]])
        hidden = set(self._put) - before

        def shown(found: re.Match[str]) -> str:
            key = html.unescape(found[2])
            made = [path for path in hidden if path == key or (key.endswith("/") and path.startswith(key))]
            old = any(path == key or (key.endswith("/") and path.startswith(key)) for path in before)
            return "" if made and not old else found[0]

        body = re.sub(r"<(Contents)>.*?<Key>(.*?)</Key>.*?</\1>", shown, body, flags=re.DOTALL)
        body = re.sub(r"<(CommonPrefixes)>.*?<Prefix>(.*?)</Prefix>.*?</\1>", shown, body, flags=re.DOTALL)
        data = body.encode()
        headers = [(name, value) for name, value in begun[1] if name.lower() != "content-length"]
        start_response(begun[0], [*headers, ("Content-Length", str(len(data)))])
        return [data]


def _serve(port: int) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    run_simple("127.0.0.1", port, Treated(DomainDispatcherApplication(create_backend_app)), threaded=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
