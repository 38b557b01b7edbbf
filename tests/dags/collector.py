"""A collector of OpenLineage events: it takes them over HTTP, and checks them by OpenLineage's own schemas."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.kit.waiting import eventually

__all__ = ["Collector", "problems"]

SCHEMAS = Path(__file__).parent / "openlineage"
"""Copied from github.com/OpenLineage/OpenLineage at 8f02abfb, spec/ (Apache License 2.0)."""
OURS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "openlineage-facets.json"
EVENT = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
PROVIDERS = f"{EVENT}#/$defs/"
"""Facets of the provider have no schema but this."""

Event = dict[str, Any]


class Collector:
    """Answers as long as it is not told to keep everybody waiting."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.answers = threading.Event()
        self.answers.set()
        self.kept_waiting = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not collector.answers.is_set():
                    collector.kept_waiting.set()
                    collector.answers.wait()
                collector.events.append(json.loads(body))
                self.send_response(201)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.set()
        self.server.shutdown()
        self.server.server_close()

    def of(self, job: str, run: str) -> list[Event]:
        """The events of one task of one DAG run, in the order in which they came."""
        told = [event for event in list(self.events) if event["job"]["name"] == job]
        return [event for event in told if event["run"]["facets"]["airflow"]["dagRun"]["run_id"] == run]

    def end_of(self, job: str, run: str, tries: int = 1) -> Event:
        """Wait for the end of a task. It comes after the start of the same try, of which it is the end."""
        ends: list[Event] = []

        def ended() -> bool:
            ends[:] = [event for event in self.of(job, run) if event["eventType"] in ("COMPLETE", "FAIL")]
            return len(ends) >= tries

        eventually(f"the end of try {tries} of {job} is told", ended)
        end = ends[tries - 1]
        (start,) = [
            event
            for event in self.of(job, run)
            if event["eventType"] == "START" and event["run"]["runId"] == end["run"]["runId"]
        ]
        assert self.events.index(start) < self.events.index(end)
        assert start["eventTime"] <= end["eventTime"]
        return end


@cache
def _registry() -> Registry[Any]:
    read = [json.loads(path.read_text()) for path in (*sorted(SCHEMAS.glob("*.json")), OURS)]
    return Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in read)


def problems(event: Event) -> list[str]:
    """What is wrong with an event, by the schema of events and by that of each of its facets."""
    found = [error.message for error in _validator(EVENT).iter_errors(event)]
    for key, facet in _facets(event):
        found += [f"{key}: {error.message}" for error in _validator(facet["_schemaURL"]).iter_errors(facet)]
    return found


@cache
def _validator(url: str) -> Any:
    checker = Draft202012Validator.FORMAT_CHECKER
    return Draft202012Validator({"$ref": url}, registry=_registry(), format_checker=checker)


def _facets(event: Event) -> Iterator[tuple[str, Any]]:
    holders = [event["run"]["facets"], event["job"]["facets"]]
    for dataset in (*event["inputs"], *event["outputs"]):
        holders += [dataset.get(key) or {} for key in ("facets", "inputFacets", "outputFacets")]
    for holder in holders:
        yield from holder.items()
