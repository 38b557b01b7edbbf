"""A schema registry of Avro schemas: what consumers and producers ask one for, on loopback, in this process."""

from __future__ import annotations

import base64
import contextlib
import http.server
import io
import json
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["SchemaRegistry", "schema_registry"]


class SchemaRegistry(http.server.ThreadingHTTPServer):
    """Knows schemas by number. `login`: `user:password` that it asks for; `away`: it answers that it is not there."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: dict[int, str] = {}
        self.login: str | None = None
        self.away = False
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def register(self, schema: Any) -> int:
        """Return the number of a schema."""
        number = 100_000 + len(self.schemas)
        self.schemas[number] = json.dumps(schema)
        return number

    def encoded(self, number: int, record: Any) -> bytes:
        """Return a record as Confluent's serialisers write it."""
        import fastavro

        out = io.BytesIO()
        fastavro.schemaless_writer(out, json.loads(self.schemas[number]), record)
        return b"\0" + number.to_bytes(4, "big") + out.getvalue()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: SchemaRegistry

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        wanted = self.server.login
        if self.server.away:
            self._answer(503, {"error_code": 50302})
        elif wanted and self.headers["Authorization"] != f"Basic {base64.b64encode(wanted.encode()).decode()}":
            self._answer(401, {"error_code": 40101})
        elif (schema := self.server.schemas.get(int(self.path.rpartition("/")[2]))) is None:
            self._answer(404, {"error_code": 40403})
        else:
            self._answer(200, {"schema": schema})

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """A registry that serves until the end of the block."""
    registry = SchemaRegistry()
    thread = threading.Thread(target=registry.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.shutdown()
        registry.server_close()
