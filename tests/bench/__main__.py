"""python -m tests.bench [NAME …] [--quick]: measure, print tables, write build/bench/NAME.json."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from tests.bench.harness import Options, report

BENCHES = {
    "append": "a whole checkpoint of a map and a Delta append, against a plain script with delta-spark",
    "overhead": "the control plane alone: trigger, three acks, decide, publish three tables",
    "upsert": "changed rows into a large table, against delta-spark's MERGE",
    "state": "a running count per key at 1 M to 20 M keys, against Structured Streaming and MERGE",
    "restore": "back to an older checkpoint of such a state, against a start of Structured Streaming",
    "window": "counts per hour and key with a watermark, against Structured Streaming",
    "gates": "ten expectations judged while staging, against staging and then Great Expectations",
    "pipelined": "three jobs in a row, three checkpoints at once against one at a time",
    "latency": "from the trigger to the first job's rows in their table: at least once against exactly once",
    "dag": "a whole DAG run under a real scheduler, against one with empty tasks",
    "parse": "import of a DAG file, against one with an empty task",
    "requests": "what a checkpoint asks of an object store, by jobs, tables and sources, and a formula that fits it",
    "large_state": "files and rewritten rows of states up to 10 TB, on paper, with the code that merges them",
    "pipelines": "what many pipelines cost one Airflow: rows in its database, the size of a DAG, parsing",
    "ledger": "latest, a list page and many triggers at once on a ledger with a long history",
    "scale": "a trigger after a million landed files or 100,000 checkpoints; the requests of one in a bucket",
    "page": "pages of 100,000 checkpoints and 500,000 quarantined rows, and what Airflow waits for viewers",
    "changing_columns": "JSON read with a policy for what does not fit the schema, against JSON without one",
    "postgres": "a checkpoint into PostgreSQL, rows added and rows replaced, against Spark's JDBC writer",
    "kafka": "a million records from topic to topic, exactly once, against Structured Streaming, at least once",
    "cluster": "state, gates and upserts on a cluster and an object store, against what is used without tidegate",
    "backfill": "thirty days computed again, against the time they took and a refresh by Structured Streaming",
    "beside": "a checkpoint of production while a proposal is at work, against one alone",
    "nexmark": "the queries of Nexmark, against Structured Streaming and Flink",
    "events": "from a file's landing, or a record's commit, until its rows are visible: by event, under Airflow",
    "floor": "a small checkpoint: the shipped example, one operator, none; against Structured Streaming's batch",
}


ALONE = ("cluster",)
"""Those whose Spark is another one: a process has one."""


def in_own_process(name: str, options: Options) -> bool:
    """Run one bench, which prints for itself. Return whether it was equal."""
    command = [sys.executable, "-m", "tests.bench", name, "--pairs", str(options.pairs), "--spark", options.spark]
    command += ["--out", str(options.out), *(["--quick"] if options.quick else [])]
    return subprocess.run(command).returncode == 0


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0; 1 if results are not equal; 2 for a wrong call. A budget that is missed is only printed."""
    listed = "\n".join(f"  {name:<10}{what}" for name, what in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=f"Benches (all without a name):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works, measures nothing")
    parser.add_argument("--pairs", type=int, default=None, help="counted rounds; 5 if not given")
    parser.add_argument("--spark", choices=("local", "connect"), default="local", help="where Spark runs; local")
    parser.add_argument("--out", type=Path, default=None, help="where results and data go; build/bench if not given")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in BENCHES]
    if unknown:
        parser.error(f"there is no bench {', '.join(map(repr, unknown))}; there are: {', '.join(BENCHES)}")
    if given.pairs is not None and given.pairs < 1:
        parser.error("--pairs must be 1 or more")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each process compiles all modules, for a second or two
    options = Options(given.quick, given.pairs or (1 if given.quick else 5), given.spark)
    if given.out is not None:
        options = dataclasses.replace(options, out=given.out.absolute())
    console = Console()
    equal = True
    names = given.names or list(BENCHES)
    for name in names:
        if name in ALONE and len(names) > 1:
            equal &= in_own_process(name, options)
            continue
        result = importlib.import_module(f"tests.bench.{name}").run(options)
        report(result, options, console)
        equal &= result.equal
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
