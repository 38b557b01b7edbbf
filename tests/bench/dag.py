"""A whole DAG run under a real scheduler: trigger, job, complete; 10,000 rows, warm. Its rival: the same with no work.

Both DAGs live in one Airflow, started as `tidegate up` starts it, and run in turn. What counts is how long Airflow says
that a run took, from the moment it was asked for to its end.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.bench.harness import ROOT, Budget, Options, Result, in_turn
from tidegate.cli.up.airflow import Airflow, Dag
from tidegate.cli.up.home import Home, any_port
from tidegate.cli.up.processes import Processes
from tidegate.cli.up.up import COMPONENTS
from tidegate.ledger.ledger import open_ledger
from tidegate.spark.server import server as connect_server

WARMUPS = 2
PATIENCE_S = 300.0

PIPELINE = """
    from tidegate import Pipeline
    from tidegate.dag import build_dag
    from tidegate.sinks import DeltaAppend
    from tidegate.sources import Generator

    pipeline = Pipeline("ours", interval="never")
    rows = pipeline.source("rows", Generator(rows={rows}, columns={{"id": "id", "amount": "id % 100"}}))

    @pipeline.stage(rows)
    def doubled(rows):
        return rows.selectExpr("id", "amount * 2 AS amount")

    doubled.sink("doubled", DeltaAppend("tables/doubled"))
    dag = build_dag(pipeline)
"""

EMPTY = """
    from airflow.sdk import dag, task

    @dag(dag_id="empty", schedule=None, tags=["tidegate"])
    def empty():
        @task
        def trigger(): ...
        @task
        def job(): ...
        @task(trigger_rule="all_done")
        def complete(): ...
        first, second = trigger(), job()
        first >> second >> complete()

    empty()
"""


def run(options: Options) -> Result:
    folder = options.folder("dag")
    rows = options.size(10_000, 100)
    shutil.copytree(ROOT / "plugins", folder / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "dags").mkdir()
    (folder / "dags" / "ours.py").write_text(textwrap.dedent(PIPELINE.format(rows=rows)))
    (folder / "dags" / "empty.py").write_text(textwrap.dedent(EMPTY))
    (folder / "tidegate.toml").write_text('[spark]\nmemory = "1g"\n')
    with airflow(folder) as server:
        dags = until("both DAGs", lambda: both(server))
        for dag in dags.values():
            server.unpause(dag)
        turns = in_turn(
            lambda _: one_run(server, dags["ours"]),
            lambda _: one_run(server, dags["empty"]),
            warmups=1 if options.quick else WARMUPS,
            pairs=options.pairs,
        )
    pairs = turns.wall()
    wrong = differs(folder, rows, (1 if options.quick else WARMUPS) + options.pairs)
    return Result(
        "dag",
        ours_s=statistics.median(pairs.ours),
        pairs=options.pairs,
        rival_s=statistics.median(pairs.rival),
        ratio=pairs.ratio,
        equal=not wrong,
        wrong=wrong,
        keys={
            "extra_s": statistics.median(a - b for a, b in zip(pairs.ours, pairs.rival, strict=True)),
            "rows": rows,
            "spread": pairs.spread(),
        },
        budgets=(Budget("extra_s", 3.0),),
    )


@contextmanager
def airflow(folder: Path) -> Iterator[Airflow]:
    """A real one; all of it has gone at the end."""
    home = Home(folder)
    home.make()
    port = any_port()
    server = Airflow(f"http://127.0.0.1:{port}", home.password()[0])
    command = [sys.executable, "-m", "airflow"]
    try:
        with Processes(home, port) as processes:
            if processes.start("db-migrate", [*command, "db", "migrate"]).process.wait(PATIENCE_S):
                raise RuntimeError(home.log("db-migrate").read_text())
            for name, words in COMPONENTS.items():
                processes.start(name, [*command, *words])
            until("Airflow", lambda: ended(processes) or not server.not_ready())
            yield server
    finally:
        connect_server.stop(folder / ".tidegate" / "spark", force=True)


def ended(processes: Processes) -> bool:
    for child in processes.children:
        if child.ended and child.name in COMPONENTS:
            raise RuntimeError(child.log.read_text())
    return False


def both(server: Airflow) -> dict[str, Dag]:
    if errors := server.import_errors():
        raise RuntimeError(str(errors))
    found = {dag.id: dag for dag in server.dags()}
    return found if {"ours", "empty"} <= set(found) else {}


def one_run(server: Airflow, dag: Dag) -> float:
    """Seconds from the request for a run to its end."""
    run_id = server.trigger(dag)

    def ended() -> dict[str, Any]:
        found = server.details(dag, run_id)
        return found if found["state"] in ("success", "failed") else {}

    run = until(f"the run of {dag.id}", ended)
    if run["state"] != "success":
        raise RuntimeError(f"the run {run_id} of {dag.id} has failed")
    moments = [datetime.fromisoformat(run[name]) for name in ("queued_at", "end_date")]
    return (moments[1] - moments[0]).total_seconds()


def differs(folder: Path, rows: int, checkpoints: int) -> str:
    """Every row of every checkpoint is in the table, once."""
    from deltalake import DeltaTable

    ids = DeltaTable(str(folder / "tables" / "doubled")).to_pyarrow_table()["id"].to_pylist()
    if sorted(ids) != list(range(rows * checkpoints)):
        return f"the table holds {len(ids)} rows, not each of {rows * checkpoints} once"
    ledger = open_ledger(str(folder / "tidegate-data" / "ledger"), "ours")
    ledger_ids = ledger.ids()
    return "" if ledger_ids[-1] == checkpoints else f"the ledger ends at {ledger_ids[-1]}, not {checkpoints}"


def until(what: str, look: Callable[[], Any]) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {PATIENCE_S:g} s")
        time.sleep(0.1)
    return found
