"""What many pipelines cost one Airflow: rows in its database by run, the size of a DAG there, processor time by parse.

Counted with Airflow's own code on SQLite. Jobs ack without Spark, because what Airflow pays does not depend on rows.
Everything is counted; only processor time is measured, that of processes which wait for nothing.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.bench.harness import ROOT, Options, Result
from tests.dags.server import migrate

DAG_FILE = """# for airflow
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

for number in range({pipelines}):
    pipeline = Pipeline("p%05d" % number, interval="5 min")
    rows = pipeline.source("rows", Files("in/*.json", schema="id long, amount double"))
    kept = pipeline.stage(rows, name="kept")(lambda rows: rows)
    jobs = [kept, *(kept.job("job-%d" % job) for job in range(1, {jobs}))]
    for table in range({tables}):
        jobs[table % {jobs}].sink("table-%04d" % table, DeltaAppend("tables/table-%04d" % table))
    globals()[pipeline.name] = build_dag(pipeline)
"""
SIZES = ((1, 1), (1, 10), (3, 10))
ROWS = ((1, 1), (3, 10))
"""Jobs and tables of the pipelines that are looked at."""


def run(options: Options) -> Result:
    root = options.folder("pipelines")
    few, many = options.size(10, 2), options.size(200, 12)
    parses = {count: in_process("parse", root, count, 1, 1) for count in (0, few, many)}
    sizes = {
        f"{jobs}, {tables}": in_process("size", root, 1, jobs, tables) for jobs, tables in SIZES[: options.size(3, 1)]
    }
    rows = {
        f"{jobs}, {tables}": in_process("rows", root, 1, jobs, tables) for jobs, tables in ROWS[: options.size(2, 0)]
    }
    wrong = [f"{shape}: {told['states']}" for shape, told in rows.items() if set(told["states"]) != {"success"}]
    return Result(
        "pipelines",
        ours_s=(parses[many]["cpu_s"] - parses[few]["cpu_s"]) / (many - few),
        pairs=1,
        equal=not wrong,
        wrong="; ".join(wrong),
        keys={
            "airflow_cpu_s": parses[0]["cpu_s"],
            "file_cpu_s": parses[few]["cpu_s"] - parses[0]["cpu_s"],
            "serialized_bytes": {shape: told["bytes"] for shape, told in sizes.items()},
            "rows_by_run": {shape: told["rows"] for shape, told in rows.items()},
        },
    )


def in_process(what: str, root: Path, *shape: int) -> dict[str, Any]:
    """One fresh process with an Airflow of its own; answers with what it has found."""
    home = root / "-".join(map(str, (what, *shape)))
    (home / "dags").mkdir(parents=True)
    (home / "tidegate.toml").write_text('root = "ledger"\ndata = "."\n')
    pipelines, jobs, tables = shape
    file = home / "dags" / "made.py"
    file.write_text(DAG_FILE.format(pipelines=pipelines, jobs=jobs, tables=tables))
    env = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "PYTHONPATH": f"{ROOT / 'include'}{os.pathsep}{ROOT}",
    }
    if what == "rows":
        migrate(env)
    command = [sys.executable, "-m", "tests.bench.pipelines", what, str(file)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{what} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


# -- in that process -------------------------------------------------------------------------------------


def parse(file: str) -> dict[str, Any]:
    """Processor time of a DAG processor's child: Airflow is imported, then the file."""
    import runpy

    import airflow.sdk  # noqa: F401

    if "range(0)" not in Path(file).read_text():
        runpy.run_path(file)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": used.ru_utime + used.ru_stime}


def size(file: str) -> dict[str, Any]:
    """The size of one DAG as Airflow stores it."""
    from airflow.serialization.serialized_objects import DagSerialization

    return {"bytes": len(json.dumps(DagSerialization.to_dict(dags_of(file)[0])))}


def rows(file: str) -> dict[str, Any]:
    """What runs add to Airflow's database: rows by table."""
    import pendulum
    import sqlalchemy

    from tidegate.dag.tasks.operators import JobOperator

    JobOperator._run = acked  # type: ignore[assignment,method-assign]
    dag = dags_of(file)[0]
    database = sqlalchemy.create_engine(os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])

    def counted() -> Counter[str]:
        with database.connect() as connection:
            names = sqlalchemy.inspect(connection).get_table_names()
            return Counter(
                {name: connection.execute(sqlalchemy.text(f'SELECT count(*) FROM "{name}"')).scalar() for name in names}
            )

    def made(number: int) -> str:
        folder = Path(file).parents[1] / "in"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.json").write_text('{"id": 1}\n')
        when = pendulum.datetime(2026, 1, 1).add(days=number)
        run = dag.test(logical_date=when, run_after=when)
        return str(getattr(run.state, "value", run.state))

    states = [made(1)]  # which also stores the DAG
    before = counted()
    states.append(made(2))
    return {"rows": dict(counted() - before), "states": states}


def acked(self: Any, task: Any, plan: Any, left: float) -> Any:
    """Do what a job does, without Spark: nothing is staged for any table."""
    from tidegate.ledger.ledger import stamp
    from tidegate.records.records import Ack, JobStats, Payload

    ledger, job = task.coordinator.ledger, task.coordinator.graph.job(self.job)
    _, base = task.coordinator.entry_and_base(plan.id)
    prev = base.acks[self.job].handle if base is not None else None
    channels = {name: Payload(data={}) for name in job.gives}
    told: dict[str, Any] = {"id": plan.id, "job": self.job, "prev": prev, "channels": channels, "sinks": {}}
    ack = Ack(**stamp("0" * 16), **told, stats=JobStats())
    ledger.create_ack(ack)
    return ack


def dags_of(file: str) -> list[Any]:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(file, collect_dags=False)
    bag.process_file(file)
    assert not bag.import_errors, bag.import_errors
    return list(bag.dags.values())


if __name__ == "__main__":
    print(json.dumps({"parse": parse, "size": size, "rows": rows}[sys.argv[1]](sys.argv[2])))
