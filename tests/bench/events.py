"""From a file's landing, or a Kafka record's commit, until its rows are visible in a table: by event, under a real
Airflow, warm.

Two pipelines with one operator each, one reading a folder and one a topic, wait for input in one Airflow, started as
`tidegate up` starts it. They get input in turn, and each arrival is awaited before the next. Afterwards nothing arrives
for a while, and what counts is how much processor time a watcher then takes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import textwrap
import time
from collections import Counter
from pathlib import Path

from deltalake import DeltaTable

from tests.bench.dag import airflow, until
from tests.bench.harness import ROOT, Budget, Options, Result
from tests.kit.kafka import Broker, kafka
from tests.kit.processes import input_watchers
from tidegate.cli.up.airflow import Airflow
from tidegate.ledger.ledger import open_ledger

WARMUPS = 3
ROWS = 100
KINDS = ("files", "topic")

PIPELINES = """
    from tidegate import Pipeline
    from tidegate.dag import build_dag
    from tidegate.sinks import DeltaUpsert
    from tidegate.sources import Files, Kafka

    SCHEMA = "id long, customer long"

    def counted(name, source):
        pipeline = Pipeline(name, interval="event", max_pause="1 day")
        counts = pipeline.source("rows", source).aggregate(by="customer", orders="count(*)", uid="counts")
        counts.sink("counts", DeltaUpsert(f"tables/{{name}}", keys=["customer"]))
        return pipeline

    files = counted("files", Files("landing/*.json", schema=SCHEMA))
    topic = counted("topic", Kafka("orders", servers={servers!r}, schema=SCHEMA))
    files_dag = build_dag(files)
    topic_dag = build_dag(topic)
"""


def run(options: Options) -> Result:
    arrivals, warmups = options.size(20, 1), options.size(WARMUPS, 0)
    folder = options.folder("events")
    shutil.copytree(ROOT / "plugins", folder / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "dags").mkdir()
    (folder / "landing").mkdir()
    (folder / "tidegate.toml").write_text('[spark]\nmemory = "1g"\n')
    with kafka() as broker:
        broker.create_topic("orders", 2)
        (folder / "dags" / "by_event.py").write_text(textwrap.dedent(PIPELINES.format(servers=broker.servers)))
        with airflow(folder) as server:
            begin(server, folder)
            pause = random.Random(1)
            seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for number in range(warmups + arrivals):
                for kind in KINDS:
                    time.sleep(pause.uniform(0.5, 1.5))  # in no step with the looks of the watcher
                    took = seconds_until_visible(folder, broker, kind, number)
                    if number >= warmups:
                        seconds[kind].append(took)
            idle = idle_share(folder, options.size(60, 2))
        wrong = differs(folder, warmups + arrivals)
    everything = [took for kind in KINDS for took in seconds[kind]]
    return Result(
        "events",
        ours_s=statistics.median(everything),
        pairs=arrivals,
        rival_s=None,
        ratio=None,
        equal=not wrong,
        wrong=wrong,
        keys={
            "p50_s": statistics.median(everything),
            "p95_s": percentile(everything, 0.95),
            **{f"{kind}_p50_s": statistics.median(seconds[kind]) for kind in KINDS},
            "idle_share": idle,
            "rows": ROWS,
        },
        budgets=(Budget("p50_s", 3.0), Budget("p95_s", 5.0), Budget("idle_share", 0.01)),
    )


def begin(server: Airflow, folder: Path) -> None:
    """Wait until both pipelines have made their first checkpoint, which starts Spark."""

    def known() -> list[object]:
        if errors := server.import_errors():
            raise RuntimeError(str(errors))
        found = [dag for dag in server.dags() if dag.id in KINDS]
        return found if len(found) == len(KINDS) else []

    for dag in until("both DAGs", known):
        server.unpause(dag)
    for kind in KINDS:
        until(f"the first checkpoint of {kind}", lambda kind=kind: published(folder, kind) >= 1)


def published(folder: Path, kind: str) -> int:
    """The last checkpoint that is in all tables."""
    ledger = open_ledger(str(folder / "tidegate-data" / "ledger"), kind)
    ids = [id for id in ledger.ids() if ledger.published(id) is not None]
    return max(ids, default=0)


def seconds_until_visible(folder: Path, broker: Broker, kind: str, number: int) -> float:
    """Let input arrive, and wait until the table has it."""
    rows = [{"id": number * ROWS + place, "customer": place} for place in range(ROWS)]
    if kind == "files":
        path = folder / "landing" / f"{number:05d}.json"
        path.with_suffix(".tmp").write_text("".join(json.dumps(row) + "\n" for row in rows))
        path.with_suffix(".tmp").rename(path)
    else:
        broker.send("orders", [(str(row["customer"]), json.dumps(row)) for row in rows])
    began = time.monotonic()
    table = folder / "tables" / kind
    deadline = began + 300
    while orders(table) < (number + 1) * ROWS:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the input {number} of {kind} is not visible after 300 s")
        time.sleep(0.02)
    return time.monotonic() - began


def orders(table: Path) -> int:
    """How many orders the table has counted."""
    if not (table / "_delta_log").exists():
        return 0
    return sum(DeltaTable(str(table)).to_pyarrow_table(columns=["orders"]).column("orders").to_pylist())


def idle_share(folder: Path, seconds: float) -> float:
    """The share of a core that the busier of the two watchers takes while nothing arrives."""
    time.sleep(min(seconds, 5))
    pids = input_watchers(folder)
    before = {pid: processor_seconds(pid) for pid in pids}
    time.sleep(seconds)
    return max((processor_seconds(pid) - before[pid]) / seconds for pid in pids)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def differs(folder: Path, arrivals: int) -> str:
    """Every row is counted once."""
    for kind in KINDS:
        table = DeltaTable(str(folder / "tables" / kind)).to_pyarrow_table().to_pylist()
        counted = Counter({row["customer"]: row["orders"] for row in table})
        if counted != Counter(dict.fromkeys(range(ROWS), arrivals)):
            return f"{kind}: {sum(counted.values())} orders are counted, of {arrivals * ROWS}"
    return ""
