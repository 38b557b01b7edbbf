"""What a DAG file costs to parse: its import, in turn with `import airflow.sdk` alone, in fresh processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from tests.bench.harness import ROOT, Budget, Options, Result, in_turn

FORBIDDEN = ("pyspark", "delta", "deltalake", "great_expectations", "pandas", "pyarrow", "grpc")
DAG_FILE = ROOT / "dags" / "orders.py"

# What a DAG processor does: Airflow is there already when it reads a file, so only the file's own part is extra.
SCRIPT = """
import json, runpy, sys, time
before = time.perf_counter()
import airflow.sdk
found = runpy.run_path(sys.argv[1]) if sys.argv[1:] else {}
seconds = time.perf_counter() - before
dags = sorted(value.dag_id for value in found.values() if isinstance(value, airflow.sdk.DAG))
print(json.dumps({"seconds": seconds, "dags": dags, "modules": sorted({name.split(".")[0] for name in sys.modules})}))
"""


def run(options: Options) -> Result:
    home = options.folder("parse")
    heavy: set[str] = set()
    dags: list[str] = []

    def ours(_: int) -> float:
        nonlocal dags
        told = fresh(str(home), str(DAG_FILE))
        heavy.update(set(FORBIDDEN) & set(told["modules"]))
        dags = told["dags"]
        return float(told["seconds"])

    pairs = in_turn(ours, lambda _: float(fresh(str(home))["seconds"]), warmups=1, pairs=options.pairs).wall()
    wrong = [f"{name} was imported" for name in sorted(heavy)]
    wrong += [] if dags == ["orders"] else [f"the file holds the DAGs {dags}, not orders"]
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
        budgets=(Budget("extra_s", 0.3),),
    )


def fresh(home: str, *file: str) -> dict[str, Any]:
    """One process; answers with what it says of itself."""
    env = {**os.environ, "AIRFLOW_HOME": home, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, *file]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the DAG file cannot be parsed:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
