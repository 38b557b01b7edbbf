"""The steps of a checkpoint are spans below Airflow's span of the task, received by a collector on this machine."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.dags.project import Made
from tests.dags.server import Airflow
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually

pytest.importorskip("opentelemetry.proto", reason="it reads OpenTelemetry's protocol")


class Collector(ThreadingHTTPServer):
    """As much of a collector as is needed to receive spans by OTLP over HTTP; or one that never answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Received)
        self.spans: list[Any] = []
        self.hangs = False
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def find(self, name: str, pipeline: str) -> Any:
        """The span of this pipeline's, or None."""
        found = [span for span in self.spans if span.name == name and attributes(span).get(PIPELINE) == pipeline]
        assert len(found) < 2, f"{name} was emitted twice"
        return found[0] if found else None


class Received(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.hangs:
            self.server.released.wait(60)
            return
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


PIPELINE = "tidegate.pipeline"


def attributes(span: Any) -> dict[str, Any]:
    """The attributes of a span, as plain values."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Airflow]:
    """An Airflow that sends its traces there."""
    settings = {
        "AIRFLOW__TRACES__OTEL_ON": "True",
        "OTEL_TRACES_EXPORTER": "otlp_proto_http",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
    }
    with Airflow(Path(tmp_path_factory.mktemp("traced")), **settings) as started:
        yield started


def by_hand(airflow: Airflow, name: str) -> Made:
    made = airflow.project.pipeline(name, interval="never").feed()
    airflow.known(name)
    return made


@in_turn(seconds=60)
def test_each_step_is_a_span_below_its_task(traced: Airflow, collector: Collector) -> None:
    made = by_hand(traced, "steps")
    assert traced.trigger("steps").ended() == "success"
    parents = {
        "planning": "worker.trigger",
        "job main": "worker.job_main",
        "deciding": "worker.complete",
        "publishing": "worker.complete",
    }

    def received() -> dict[str, str]:
        """The parts whose tasks are there, too: each process sends its own when it likes, and a task ends last."""
        tasks = {span.span_id: span.name for span in collector.spans if span.name.startswith("worker.")}
        found = {name: part for name in parents if (part := collector.find(name, "steps")) is not None}
        return {name: tasks[part.parent_span_id] for name, part in found.items() if part.parent_span_id in tasks}

    eventually("all parts are received", lambda: len(received()) == len(parents))
    assert received() == parents
    job = collector.find("job main", "steps")
    assert len({span.trace_id for span in collector.spans if attributes(span).get(PIPELINE) == "steps"}) == 1

    entry = made.ledger.entry(1)
    assert entry is not None
    recorded = [step.name for step in entry.acks["main"].ack.stats.steps]
    steps = [span for span in collector.spans if span.parent_span_id == job.span_id]
    assert sorted(span.name for span in steps) == sorted(recorded)
    for span in steps:
        assert attributes(span)["tidegate.step"] == span.name
        assert attributes(span)["tidegate.checkpoint"] == 1
        assert job.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    rows = {span.name: attributes(span).get("tidegate.rows") for span in steps}
    assert (rows["stage every"], rows["stage latest"]) == (made.ROWS, made.ROWS)
    assert rows["read"] is None, "nobody has counted them"
    assert attributes(job)["tidegate.rows"] == 2 * made.ROWS


@in_turn(seconds=60)
def test_a_collector_that_never_answers_holds_up_no_checkpoint(traced: Airflow, collector: Collector) -> None:
    made = by_hand(traced, "hangs")
    collector.hangs = True
    run = traced.trigger("hangs")
    assert run.ended() == "success"
    assert made.outcomes() == ["completed"]
    assert collector.find("job main", "hangs") is None
    collector.hangs = False
    collector.released.set()
