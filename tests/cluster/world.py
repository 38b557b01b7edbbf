"""A cluster whose workers share nothing with the driver but an object store, and the example pipeline on it.

Everything of the driver's is hidden from the workers: the project, its temporary files, tidegate's code, the jars. What
they need has to be brought to them. `python -m tests.cluster.world DAG_FILE RUN…` makes runs of a DAG, as Airflow does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jobs import orders_feed
from tests.kit.example import Expected, two_files_each_time
from tests.kit.jvm import environment
from tests.kit.s3 import BUCKET, S3Server, s3
from tests.spark.cluster import Cluster
from tidegate.spark.jars import jars_folder

ROOT = Path(__file__).resolve().parents[2]
HERE = ("include", "jobs", "tests", "dags")
"""The code of this checkout."""
ROWS = 60


@dataclass(frozen=True)
class Place:
    """A cluster, a store, and the folder of everything that the driver has."""

    cluster: Cluster
    server: S3Server
    driver: Path

    def spark(self, mode: str, **conf: str) -> dict[str, str]:
        """The settings of a Spark on this cluster: small executors, few partitions."""
        small = {"spark.executor.memory": "600m", "spark.sql.shuffle.partitions": "2"} | {
            f"spark.{key.replace('_', '.')}": value for key, value in conf.items()
        }
        chosen = {"mode": mode, "master": self.cluster.master, "memory": "1g", "idle_timeout": "20 s"}
        return {f"spark.{key}": value for key, value in chosen.items()} | {
            f"spark.conf.{key}": value for key, value in small.items()
        }

    def environment(self, project: Path) -> dict[str, str]:
        """The environment of the driver's processes: their temporary files are hidden, too."""
        path = os.pathsep.join([str(project), str(ROOT / "include"), str(ROOT)])
        return dict(os.environ) | environment() | {"PYTHONPATH": path, "TMPDIR": str(self.driver / "tmp")}


@contextlib.contextmanager
def place(home: Path, memory: str = "1g") -> Iterator[Place]:
    """Start the store and the cluster; they end with the block. memory: that of each worker."""
    driver, workers = home / "driver", home / "workers"
    (driver / "tmp").mkdir(parents=True)
    workers.mkdir()
    installed = Path(__import__("tidegate").__file__).resolve().parents[1]
    hidden = {driver, installed, jars_folder().resolve().parent, *(ROOT / name for name in HERE)}
    hidden |= {Path(entry) for entry in sys.path if entry.endswith("/include") and Path(entry).is_dir()}
    hidden |= {path for each in HERE if (path := (ROOT / ".venv").resolve().parent / each).is_dir()}
    with s3() as server, Cluster(workers, sorted(hidden), memory) as cluster:
        yield Place(cluster, server, driver)


class Example:
    """The example pipeline with everything in a folder of the bucket."""

    def __init__(self, where: Place, name: str, mode: str, **conf: str) -> None:
        self.place, self.name = where, name
        self.project = where.driver / name
        for folder in ("jobs", "include/expectations", "dags"):
            shutil.copytree(ROOT / folder, self.project / folder, ignore=shutil.ignore_patterns("__pycache__"))
        two_files_each_time(self.project)
        _use_a_module_of_its_own(self.project)
        settings = where.server.settings(name) | where.spark(mode, **conf)
        (self.project / "tidegate.toml").write_text(_toml(settings))
        self.fed = 0

    def feed(self, files: int) -> None:
        """Let so many more files of each source land in the bucket."""
        for number in range(self.fed + 1, self.fed + files + 1):
            for path in orders_feed.write_both(self.project / "fed", number, ROWS):
                key = path.relative_to(self.project / "fed").as_posix()
                self.place.server.put(f"{self.name}/data/{key}", path.read_bytes())
        self.fed += files

    def command(self, *words: str) -> subprocess.Popen[str]:
        """Start a command of Python in the project."""
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=self.project,
            env=self.place.environment(self.project),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> str:
        """Run it to its end; what it said."""
        process = self.command(*words)
        told, _ = process.communicate(timeout=400)
        assert process.returncode == 0, told[-6000:]
        return told

    def checkpoints(self, count: int, mode: str) -> str:
        """Make so many."""
        if mode == "connect":
            return self.run("tidegate", "run", "jobs.orders:pipeline", "--checkpoints", str(count))
        return self.run("tests.cluster.world", str(self.project / "dags/orders.py"), *_names(count))

    def rows(self, path: str) -> list[dict[str, Any]]:
        """The rows of a table in the bucket."""
        from deltalake import DeltaTable

        url = f"s3://{BUCKET}/{self.name}/{path}"
        table = DeltaTable(url, storage_options=self.place.server.options)
        return list(table.to_pyarrow_table().to_pylist())

    def check(self, files: int) -> None:
        """The tables are what plain Python makes of so many files."""
        expected = Expected(files, files, ROWS)
        totals = {r["customer_id"]: (r["spent"], r["orders"], r["last"]) for r in self.rows("data/tables/totals")}
        assert totals == expected.totals
        revenue = self.rows("data/tables/revenue") if expected.revenue else []
        found = Counter((r["window_start"], r["country"], r["revenue"], r["orders"]) for r in revenue)
        assert found == Counter((*key, *value) for key, value in expected.revenue.items())
        aside = Counter(map(_why, self.rows("ledger/orders/quarantine/checked")))
        assert aside == expected.quarantine

    def stop(self) -> None:
        """End its Spark server, if it has one."""
        self.run("tidegate", "spark", "stop")


def _use_a_module_of_its_own(project: Path) -> None:
    """Let a stage of the example call a function of Python, in a module of the project: workers have to import it.

    Behind a shuffle: right behind Parquet files, Spark 4.2.0 waits forever for such a function.
    """
    (project / "jobs" / "texts.py").write_text("def upper(text):\n    return text and text.upper()\n")
    code, kept = project / "jobs" / "orders.py", 'return checked.drop("_corrupt_record")'
    text = code.read_text()
    assert text.count(kept) == 1
    upper = "from pyspark.sql.functions import udf\n\n    from jobs.texts import upper\n"
    changed = 'checked.repartition(2).drop("_corrupt_record").withColumn("country", udf(upper, "string")("country"))'
    code.write_text(text.replace(kept, f"{upper}\n    return {changed}"))


def _names(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]


def _why(row: Mapping[str, Any]) -> str:
    if row["_corrupt_record"] is not None:
        return "not readable"
    return "no order id" if row["order_id"] is None else "no time" if row["at"] is None else "bad amount"


def _toml(settings: Mapping[str, str]) -> str:
    """The settings as tidegate.toml has them."""
    tables: dict[str, list[str]] = {"": [], "spark": [], "spark.conf": [], "storage_options": []}
    for key, value in settings.items():
        table = next((name for name in ("spark.conf", "storage_options", "spark") if key.startswith(f"{name}.")), "")
        tables[table].append(f'"{key[len(table) + 1 if table else 0 :]}" = "{value}"')
    return "\n".join("\n".join([f"[{name}]" if name else "", *lines]) for name, lines in tables.items()) + "\n"


def main(dag_file: str, *runs: str) -> None:
    """Make runs of a DAG, task by task."""
    from tests.dags import by_hand

    dag = by_hand.load(dag_file)
    dag.fileloc = dag_file
    for run in runs:
        for name in ("trigger", "job_main", "complete"):
            context = by_hand.context(dag, run)
            context["ti"].get_task_states = lambda **_: {}
            context["outlet_events"] = defaultdict(lambda: SimpleNamespace(extra=None))
            print(name, dag.task_dict[name].execute(context), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
