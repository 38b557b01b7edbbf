"""A schema registry of Avro schemas: what consumers and producers ask one for, on loopback, in this process.

A new version of a subject has to be compatible with the latest one: with BACKWARD, its readers can read old records;
with FULL, readers of the old version can read new ones, too. With …_TRANSITIVE, it is compared with all versions.
"""

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
    """Knows schemas by number. `login`: `user:password` that it asks for; `away`: it answers that it is not there;
    `refuses`: why it calls each schema invalid."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: dict[int, str] = {}
        self.login: str | None = None
        self.away = False
        self.asked: list[str] = []
        self.refuses: str | None = None
        self.subjects: dict[str, list[int]] = {}
        self.compatibility = "BACKWARD"
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def register(self, schema: Any) -> int:
        """Return the number of a schema."""
        number = 100_000 + len(self.schemas)
        self.schemas[number] = json.dumps(schema)
        return number

    def incompatibilities(self, subject: str, schema: str) -> list[str]:
        """Return why a subject does not take a schema."""
        versions = self.subjects.get(subject)
        if not versions:
            return []
        new = json.loads(schema)
        problems: list[str] = []
        for number in versions if self.compatibility.endswith("_TRANSITIVE") else versions[-1:]:
            old = json.loads(self.schemas[number])
            problems += reading_problems(new, old, "")
            if self.compatibility.startswith("FULL"):
                problems += reading_problems(old, new, "")
        return problems

    def known(self, subject: str, schema: str) -> int | None:
        """Return the number of a schema if it is a version of a subject."""
        for number in self.subjects.get(subject, ()):
            if json.loads(self.schemas[number]) == json.loads(schema):
                return number
        return None

    def version(self, subject: str, schema: str) -> int:
        """Register a schema as a version of a subject, and return its number."""
        number = self.register(json.loads(schema))
        self.subjects.setdefault(subject, []).append(number)
        return number

    def decoded(self, value: bytes) -> Any:
        """Return a record that was written as Confluent's serialisers do."""
        import fastavro

        schema = json.loads(self.schemas[int.from_bytes(value[1:5], "big")])
        return fastavro.schemaless_reader(io.BytesIO(value[5:]), schema)

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

    def do_POST(self) -> None:
        self.server.asked.append(self.path)
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        parts = self.path.partition("?")[0].strip("/").split("/")
        if self.server.away:
            self._answer(503, {"error_code": 50302})
        elif parts[0] not in ("compatibility", "subjects"):
            self._answer(404, {"error_code": 404, "message": "HTTP 404 Not Found"})
        elif self.server.refuses is not None:
            self._answer(422, {"error_code": 42201, "message": self.server.refuses})
        elif parts[0] == "compatibility":
            if parts[2] not in self.server.subjects:
                self._answer(404, {"error_code": 40401})
                return
            problems = self.server.incompatibilities(parts[2], schema)
            self._answer(200, {"is_compatible": not problems, "messages": problems})
        elif (number := self.server.known(parts[1], schema)) is not None:
            self._answer(200, {"id": number})
        elif len(parts) == 2:
            self._answer(404, {"error_code": 40403 if parts[1] in self.server.subjects else 40401})
        elif problems := self.server.incompatibilities(parts[1], schema):
            self._answer(409, {"error_code": 409, "message": "; ".join(problems)})
        else:
            self._answer(200, {"id": self.server.version(parts[1], schema)})

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


READ_AS = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}
"""By the type that was written: others that readers may have for it."""


def reading_problems(reader: Any, writer: Any, path: str) -> list[str]:
    """Return why records of one schema cannot be read with another one, by Avro's rules for resolving schemas."""
    if isinstance(writer, list):
        return [problem for kind in writer for problem in reading_problems(reader, kind, path)]
    if isinstance(reader, list):
        found = [reading_problems(kind, writer, path) for kind in reader]
        return [] if any(not problems for problems in found) else [f"{path}: no type of the reader fits {writer}"]
    kinds = [kind["type"] if isinstance(kind, dict) else kind for kind in (writer, reader)]
    if kinds[0] != kinds[1]:
        return [] if kinds[1] in READ_AS.get(kinds[0], ()) else [f"{path} was {kinds[0]} and is {kinds[1]}"]
    if kinds[0] == "array":
        return reading_problems(reader["items"], writer["items"], path)
    if kinds[0] == "map":
        return reading_problems(reader["values"], writer["values"], path)
    if kinds[0] == "bytes" and isinstance(reader, dict) and reader != writer:
        return [f"{path} is another decimal"]
    if kinds[0] != "record":
        return []
    written = {field["name"]: field["type"] for field in writer["fields"]}
    problems = []
    for field in reader["fields"]:
        name = field["name"]
        if name in written:
            problems += reading_problems(field["type"], written[name], f"{path}.{name}")
        elif "default" not in field:
            problems.append(f"{path}.{name} has no default")
    return problems


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
