"""What a DAG file costs to parse: its import, in turn with that of a DAG file with one empty task, in fresh processes.

Counted is the processor time of each process, so that what else the machine does hardly matters.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench.harness import ROOT, Budget, Options, Result, in_turn

FORBIDDEN = ("pyspark", "delta", "deltalake", "great_expectations", "pandas", "pyarrow", "grpc")
DAG_FILE = ROOT / "dags" / "orders.py"
EMPTY = """from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG("empty") as dag:
    EmptyOperator(task_id="nothing")
"""

SCRIPT = """
import json, runpy, sys, time
before = time.process_time()
found = runpy.run_path(sys.argv[1])
import airflow.sdk
seconds = time.process_time() - before
dags = sorted(value.dag_id for value in found.values() if isinstance(value, airflow.sdk.DAG))
print(json.dumps({"seconds": seconds, "dags": dags, "modules": sorted({name.split(".")[0] for name in sys.modules})}))
"""


def run(options: Options) -> Result:
    home = options.folder("parse")
    empty = home / "empty.py"
    empty.write_text(EMPTY)
    heavy: set[str] = set()
    dags: dict[Path, list[str]] = {}

    def parsed(file: Path) -> float:
        told = fresh(home, file)
        heavy.update(set(FORBIDDEN) & set(told["modules"]))
        dags[file] = told["dags"]
        return float(told["seconds"])

    pairs = in_turn(lambda _: parsed(DAG_FILE), lambda _: parsed(empty), warmups=1, pairs=options.pairs).wall()
    wrong = [f"{name} was imported" for name in sorted(heavy)]
    if dags != {DAG_FILE: ["orders"], empty: ["empty"]}:
        wrong.append(f"the files hold the DAGs {list(dags.values())}, not orders and empty")
    return Result(
        "parse",
        ours_s=statistics.median(pairs.ours),
        pairs=options.pairs,
        rival_s=statistics.median(pairs.rival),
        ratio=pairs.ratio,
        equal=not wrong,
        wrong="; ".join(wrong),
        keys={
            "extra_s": statistics.median(a - b for a, b in zip(pairs.ours, pairs.rival, strict=True)),
            "spread": pairs.spread(),
        },
        budgets=(Budget("ratio", 1.3), Budget("extra_s", 0.3)),
    )


def fresh(home: Path, file: Path) -> dict[str, Any]:
    """One process; answers with what it says of itself."""
    env = {**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'include'}"}
    command = [sys.executable, "-c", SCRIPT, str(file)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the DAG file cannot be parsed:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
