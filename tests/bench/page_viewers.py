"""Two people who have ten pages open each, and what Airflow's own answers cost meanwhile.

Each page asks as the real ones do: the overview and its own data, again and again, each at its own pace. Airflow's
`/api/v2/version` does next to nothing: its latency is what a request waits for others. What an answer costs is the
processor time of the web server's process for one request, with nobody else there.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from contextlib import closing
from typing import Any

from tests.bench.page_web import Web
from tests.kit.toy_world import ToyWorld

GATE = "enough"
FILES = 10
VERSION = "/api/v2/version"
DAG = "/tidegate/api/v1/dags/orders"
PAGES: dict[str, tuple[float, list[str]]] = {
    "overview": (4.0, ["/quarantine"]),
    "history": (2.5, ["/checkpoints?limit=20"]),
    "checkpoint": (8.0, ["/checkpoints/{last}"]),
    "old checkpoint": (8.0, ["/checkpoints/{old}"]),
    "summary": (10.0, ["/summary"]),
    "graph": (6.0, ["/graph"]),
    "plots": (6.0, ["/plots?limit=2000"]),
    "quarantine": (2.0, ["/quarantine", f"/quarantine/{GATE}?offset=0&limit=50"]),
    "configuration": (30.0, ["/configuration"]),
    "actions": (5.0, ["/audit"]),
}
"""Each page's pace in seconds, and what it asks for besides the overview."""
MORE = (
    "/compare?before={old}&after={last}",
    f"/quarantine/{GATE}?rule=positive&offset=400000&limit=200",
    "/checkpoints?text=run7&limit=200",
    "/rollback?to={last}",
    "/../../metrics",
    "/../../pipelines",
)
"""What else an answer may cost."""


def set_many_aside(world: ToyWorld, rows: int) -> None:
    """Rows that wait at the gate, as ten checkpoints have set them aside."""
    import numpy as np
    import pyarrow as pa
    from deltalake import write_deltalake

    from tidegate.gates.quarantine import columns as q
    from tidegate.gates.quarantine.table import QuarantineSink

    path, each = QuarantineSink(GATE).path(world.ledger.home), rows // FILES
    for file in range(FILES):
        numbers = np.arange(file * each, (file + 1) * each)
        own = {
            q.ID: pa.array([f"{number:032x}" for number in numbers]),
            q.CHECKPOINT: pa.array(np.full(each, file + 1)),
            q.STREAM: pa.array(["in"] * each),
            q.RULES: pa.array([["positive"] if number % 3 else ["positive", "known"] for number in numbers]),
            q.SETTLED: pa.nulls(each, pa.string()),
            q.SETTLED_IN: pa.nulls(each, pa.int64()),
            q.SETTLED_BY: pa.nulls(each, pa.string()),
        }
        values = {"amount": pa.array(-numbers), "customer": pa.array([f"customer {n % 5000}" for n in numbers])}
        write_deltalake(path, pa.table(own | values), mode="append")


class Asker:
    """One connection that is kept open."""

    def __init__(self, web: Web, token: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=120)
        self.headers = {"Cookie": f"_token={token}"}

    def close(self) -> None:
        self.connection.close()

    def seconds(self, path: str) -> float:
        began = time.perf_counter()
        self.answer(path)
        return time.perf_counter() - began

    def answer(self, path: str) -> bytes:
        self.connection.request("GET", path, headers=self.headers)
        answer = self.connection.getresponse()
        body = answer.read()
        assert answer.status in (200, 503), (path, answer.status, body[:300])  # 503: rows are read for somebody else
        return body


def address(path: str, last: int, old: int) -> str:
    return os.path.normpath(f"{DAG}{path.format(last=last, old=old)}")


def look(web: Web, last: int, old: int, quarantined: int, seconds: float) -> dict[str, Any]:
    """The figures, and what is wrong: "" if nothing."""
    token = web.token()
    with closing(Asker(web, token)) as asker:
        wrong, counting = _counted(web, asker, quarantined)
        paths = ["/overview", *(path for _, each in PAGES.values() for path in each), *MORE]
        costs = {path: _cost(web, asker, address(path, last, old)) for path in dict.fromkeys(paths)}
        costs["/quarantine, while it is counted"] = counting
        alone = _latencies(asker, seconds)
    over = threading.Event()
    viewers = [
        threading.Thread(target=_view, args=(web, token, page, last, old, over), daemon=True)
        for page in PAGES
        for _ in range(2)
    ]
    for viewer in viewers:
        viewer.start()
    with closing(Asker(web, token)) as asker:
        beside = _latencies(asker, seconds)
    over.set()
    for viewer in viewers:
        viewer.join(timeout=120)
    dearest = max(costs, key=lambda path: costs[path])
    return {
        "wrong": wrong,
        "version_p99_ms": round(1000 * _p99(alone), 1),
        "version_p99_extra_ms": round(1000 * (_p99(beside) - _p99(alone)), 1),
        "answer_cpu_s": costs[dearest],
        "dearest": dearest,
    }


def _counted(web: Web, asker: Asker, rows: int) -> tuple[str, float]:
    """Have the quarantine counted to its end: answers that are not complete continue from there. The dearest one."""
    dearest = 0.0
    for _ in range(1000):
        before = _cpu_s(web.processes["api-server"].pid)
        told = json.loads(asker.answer(f"{DAG}/quarantine"))["gates"][GATE]
        dearest = max(dearest, round(_cpu_s(web.processes["api-server"].pid) - before, 3))
        if told["complete"]:
            wrong = "" if told["waiting"] == rows else f"{told['waiting']} rows are said to wait, not {rows}"
            return wrong, dearest
    return "the quarantine is never counted", dearest


def _view(web: Web, token: str, page: str, last: int, old: int, over: threading.Event) -> None:
    pace, paths = PAGES[page]
    with closing(Asker(web, token)) as asker:
        while not over.is_set():
            for path in ["/overview", *paths]:
                asker.answer(address(path, last, old))
            over.wait(pace)


def _latencies(asker: Asker, seconds: float) -> list[float]:
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until or len(found) < 10:
        found.append(asker.seconds(VERSION))
        time.sleep(0.02)
    return found


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def _cost(web: Web, asker: Asker, path: str) -> float:
    """Processor seconds of the web server for one answer."""
    before = _cpu_s(web.processes["api-server"].pid)
    asker.answer(path)
    return round(_cpu_s(web.processes["api-server"].pid) - before, 3)


def _cpu_s(session: int) -> float:
    """Processor seconds of all processes of a session. Airflow's web server may be several."""
    ticks = 0
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[3]) == session:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
