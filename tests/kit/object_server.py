"""An S3 server of a hundred lines: what a store does that keeps conditional puts, ignores them, or refuses them."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
import urllib.request
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

Puts = Literal["kept", "ignored", "refused"]
"""What becomes of `If-None-Match: *`: it is kept; the object is overwritten all the same; 501 Not Implemented."""

_TIME = "Thu, 01 Jan 2026 00:00:00 GMT"


class ObjectServer:
    """One bucket, named `bucket`, in the memory of a process of its own: delta-rs asks it with this one's lock held."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-P", __file__], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{self._process.stdout.readline().strip()}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def options(self) -> dict[str, str]:
        """How to log in: as obstore and delta-rs take it."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": "someone",
            "aws_secret_access_key": "canary-secret",
            "aws_region": "us-east-1",
            "allow_http": "true",
        }

    def begin(self, puts: Puts) -> None:
        """Nothing is there, and from now on conditional puts are treated so."""
        self.put("", b"")
        self.treat(puts)

    def treat(self, puts: Puts) -> None:
        self._ask("PUT", "/puts", puts.encode())

    def put(self, key: str, data: bytes) -> None:
        self._ask("PUT", f"/bucket/{key}", data)

    @property
    def names(self) -> list[str]:
        return list(json.loads(self._ask("GET", "/names")))

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.endpoint + path, data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())


class _Server(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.puts = "kept"
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/bucket").strip("/")

    def refused(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/puts":
            self.server.puts = data.decode()
        if not self.key or self.path == "/puts":
            with self.server.lock:
                self.server.objects = {} if not self.key else self.server.objects
            self.answer(200)
            return
        once = self.headers.get("If-None-Match") == "*"
        if once and self.server.puts == "refused":
            self.refused(501, "NotImplemented")
            return
        with self.server.lock:
            if once and self.server.puts == "kept" and self.key in self.server.objects:
                self.refused(412, "PreconditionFailed")
                return
            self.server.objects[self.key] = data
        self.answer(200, ETag='"1"')

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if self.path == "/names":
            self.answer(200, json.dumps(sorted(self.server.objects)).encode())
            return
        if "list-type" in query:
            self.list(query)
            return
        data = self.server.objects.get(self.key)
        if data is None:
            self.refused(404, "NoSuchKey")
            return
        if span := self.headers.get("Range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            begin = int(first) if first else max(len(data) - int(last), 0)
            end = min(int(last), len(data) - 1) if first and last else len(data) - 1
            headers = {"Content_Range": f"bytes {begin}-{end}/{len(data)}"}
            self.answer(206, data[begin : end + 1], ETag='"1"', Last_Modified=_TIME, **headers)
            return
        self.answer(200, data, ETag='"1"', Last_Modified=_TIME)

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        with self.server.lock:
            self.server.objects.pop(self.key, None)
        self.answer(204)

    def do_POST(self) -> None:
        """Several are deleted at once."""
        wanted = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        keys = [unescape(key) for key in re.findall("<Key>(.*?)</Key>", wanted)]
        with self.server.lock:
            for key in keys:
                self.server.objects.pop(key, None)
        found = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self.answer(200, f"<DeleteResult>{found}</DeleteResult>".encode(), Content_Type="application/xml")

    def list(self, query: dict[str, list[str]]) -> None:
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        keys = sorted(key for key in self.server.objects if key.startswith(prefix) and key > after)
        folders: set[str] = set()
        if "delimiter" in query:
            folders = {f"{prefix}{key[len(prefix) :].split('/')[0]}/" for key in keys if "/" in key[len(prefix) :]}
            keys = [key for key in keys if "/" not in key[len(prefix) :]]
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>1</ETag><Size>{len(self.server.objects[key])}</Size></Contents>"
            for key in keys
        )
        found += "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)
        )
        body = f"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        self.answer(200, body.encode(), Content_Type="application/xml")


if __name__ == "__main__":
    serving = _Server()
    print(serving.server_address[1], flush=True)
    serving.serve_forever()
