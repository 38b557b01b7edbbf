"""Adds a pipeline to an Airflow that is there, as a user does, and sees it make two checkpoints.

    make existing-airflow                      the home that Airflow makes itself, run by `airflow standalone`
    make existing-airflow LAYOUT=astro         a project of Astro's layout; each part of Airflow has a folder of its
                                               own, as containers have, in which only four folders are shared
    make existing-airflow EXECUTOR=celery      two Celery workers, each on a machine of its own: what they share is the
                                               ledger and the tables
    make existing-airflow DATABASE=mysql       Airflow's metadata are in a MySQL, or with postgres in a PostgreSQL

Containers and machines are folders here, each with a copy of the project, and a Spark server of its own. Airflow is
configured by its own airflow.cfg, and by variables for what must differ: ports, and that DAGs begin unpaused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit import mysql, postgres
from tidegate.cli.up.home import any_port
from tools.matrix_versions import PLACE, ROOT, build_wheel, environment, find_python

PYTHON, AIRFLOW = "3.12", "3.3"
PACKAGES = {
    "celery": ["apache-airflow-providers-celery", "celery[sqlalchemy]<5.7"],
    "postgres": ["apache-airflow-providers-postgres", "asyncpg"],
    "mysql": ["mysqlclient", "aiomysql"],
}
PARTS = {
    "api-server": ["airflow", "api-server"],
    "scheduler": ["airflow", "scheduler"],
    "dag-processor": ["airflow", "dag-processor"],
    "triggerer": ["airflow", "triggerer"],
}
OF_ASTRO = {
    ".dockerignore": ".git\n.env\n__pycache__/\n",
    ".gitignore": ".git\n.env\n__pycache__/\n",
    "Dockerfile": "FROM astrocrpublic.azurecr.io/runtime:3.1-1\n",
    "airflow_settings.yaml": "airflow:\n  connections: []\n  pools: []\n  variables: []\n",
    "packages.txt": "",
    "requirements.txt": "# Astro Runtime includes Airflow\n",
    "include/.gitkeep": "",
    "plugins/.gitkeep": "",
    "tests/dags/test_dag_example.py": "def test_nothing() -> None:\n    pass\n",
}
"""What `astro dev init` writes, without its example."""
SHARED_BY_ASTRO = ("dags", "include", "plugins", "tests")
MINE = '''"""A DAG of the user's own, which has to stay as it is."""

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG("mine") as dag:
    EmptyOperator(task_id="nothing")
'''
PATIENCE_S = 900


class Failed(Exception):
    """What did not come true, and where to look."""


@dataclass
class Airflow:
    """An Airflow in a folder, and the folders of its machines."""

    home: Path
    bin: Path
    env: dict[str, str]
    machines: list[Path] = field(default_factory=list)
    running: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)

    def say(self, *command: str, cwd: Path | None = None) -> str:
        """Run a command to its end; return what it prints."""
        program = str(self.bin / command[0]) if (self.bin / command[0]).is_file() else command[0]
        done = subprocess.run(
            [program, *command[1:]], cwd=cwd or self.home, env=self.env, capture_output=True, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        if done.returncode:
            said = done.stdout[-3000:] + done.stderr[-3000:]
            raise Failed(f"`{' '.join(command)}` ends with {done.returncode}:\n{said}")
        return done.stdout

    def start(self, name: str, command: list[str], machine: Path) -> None:
        """Start a part of Airflow on a machine."""
        env = self.env | {"AIRFLOW_HOME": str(machine)}
        if machine != self.home:
            env["AIRFLOW__CORE__DAGS_FOLDER"] = str(machine / "dags")
            env["AIRFLOW__CORE__PLUGINS_FOLDER"] = str(machine / "plugins")
        with (self.home.parent / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(self.bin / command[0]), *command[1:]], cwd=machine, env=env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        self.running.append((name, process))

    def stop(self) -> None:
        """End all parts, and the Spark servers of all machines."""
        for _, process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for _, process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for machine in {self.home, *self.machines}:
            with contextlib.suppress(Failed):
                self.say("tidegate", "spark", "stop", "--force", cwd=machine)

    def ended(self) -> list[str]:
        return [name for name, process in self.running if process.poll() is not None]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make existing-airflow", description="Add a pipeline to an Airflow.")
    parser.add_argument("--layout", choices=("airflow", "astro"), default="airflow")
    parser.add_argument("--executor", choices=("local", "celery"), default="local")
    parser.add_argument("--database", choices=("sqlite", "postgres", "mysql"), default="")
    args = parser.parse_args()
    database = args.database or ("postgres" if args.executor == "celery" else "sqlite")
    try:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-existing-")))
            url = stack.enter_context(database_url(database))
            env = variables(folder, url, args.executor)
            airflow = Airflow(folder / "project", PLACE / "existing/venv/bin", env)
            install(airflow, ["postgres"] if database == "postgres" else [], args.executor, database)
            make_home(airflow, args.layout)
            add_pipeline(airflow, args.layout)
            stack.callback(airflow.stop)
            try:
                start(airflow, args.layout, args.executor)
                checkpoints = wait_for(airflow, 2)
                look(airflow)
            except Failed:
                keep_logs(folder)
                raise
    except Failed as error:
        print(f"existing-airflow: {error}", file=sys.stderr)
        return 1
    print(f"existing-airflow: {args.layout}, {args.executor}, {database}: checkpoints {checkpoints} are completed")
    return 0


def tell(text: str) -> None:
    print(f"existing-airflow: {text}", flush=True)


@contextlib.contextmanager
def database_url(database: str) -> Iterator[str]:
    """Start a database for Airflow's metadata; SQLite needs none."""
    if database == "sqlite":
        yield ""
        return
    kind: Any = {"postgres": postgres.postgres, "mysql": mysql.mysql}[database]
    with kind() as url:
        yield url


def variables(folder: Path, url: str, executor: str) -> dict[str, str]:
    """Return the environment of all parts: that of a user, and what must differ from the usual."""
    port = any_port()
    own = {
        "API__PORT": str(port),
        "API__BASE_URL": f"http://127.0.0.1:{port}",
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "API__WORKERS": "1",
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__PARALLELISM": "4",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "LOGGING__WORKER_LOG_SERVER_PORT": str(any_port()),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(any_port()),
        "SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(any_port()),
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
    }
    if url:
        own["DATABASE__SQL_ALCHEMY_CONN"] = url
    if executor == "celery":
        queue = folder / "queue"
        for name in ("in", "control"):
            (queue / name).mkdir(parents=True)
        own |= {
            "CORE__EXECUTOR": "CeleryExecutor",
            "CELERY__BROKER_URL": "filesystem://",
            "CELERY__RESULT_BACKEND": f"db+{url}",
            "CELERY__WORKER_CONCURRENCY": "1",
            "CELERY__WORKER_PREFETCH_MULTIPLIER": "1",
            "CELERY_BROKER_TRANSPORT_OPTIONS__DATA_FOLDER_IN": str(queue / "in"),
            "CELERY_BROKER_TRANSPORT_OPTIONS__DATA_FOLDER_OUT": str(queue / "in"),
            "CELERY_BROKER_TRANSPORT_OPTIONS__CONTROL_FOLDER": str(queue / "control"),
        }
    env = environment(folder) | {f"AIRFLOW__{name}": value for name, value in own.items()}
    env["AIRFLOW_HOME"] = str(folder / "project")
    env["PATH"] = f"{PLACE / 'existing/venv/bin'}{os.pathsep}{env['PATH']}"
    if executor == "celery":  # what all machines reach
        env |= {"TIDEGATE_ROOT": str(folder / "shared/ledger"), "TIDEGATE_DATA": str(folder / "shared/data")}
    return env


def install(airflow: Airflow, extras: list[str], *more: str) -> None:
    """Make the environment: first an Airflow, then tidegate beside it, which must leave Airflow as it is."""
    wheel = build_wheel()
    uv, venv = str(ROOT / ".cache/uv/bin/uv"), airflow.bin.parent
    if not (airflow.bin / "python").is_file():
        subprocess.run([uv, "venv", "--quiet", "--python", find_python(PYTHON), str(venv)], check=True)
    into = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(airflow.bin / "python")]
    wanted = [package for name in {*extras, *more} for package in PACKAGES.get(name, [])]
    tell("installing Airflow")
    subprocess.run([*into, f"apache-airflow~={AIRFLOW}.0", *wanted, "setuptools", "wheel"], check=True, env=airflow.env)
    before = version(airflow)
    tell("installing tidegate beside it")
    isolation = ["--no-build-isolation-package", "pyspark", "--reinstall-package", "tidegate"]
    asked = f"tidegate[spark,gates] @ {wheel.as_uri()}"
    subprocess.run([*into, *isolation, asked, "pytest"], check=True, env=airflow.env)
    if version(airflow) != before:
        raise Failed(f"Airflow was {before}, and is {version(airflow)} now")


def version(airflow: Airflow) -> str:
    ask = "import importlib.metadata as m; print(m.version('apache-airflow-core'))"
    command = [str(airflow.bin / "python"), "-c", ask]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def make_home(airflow: Airflow, layout: str) -> None:
    """Let Airflow make its configuration and database, and add a DAG of the user's own."""
    airflow.home.mkdir(parents=True)
    for name, text in (OF_ASTRO if layout == "astro" else {}).items():
        (airflow.home / name).parent.mkdir(parents=True, exist_ok=True)
        (airflow.home / name).write_text(text)
    (airflow.home / "dags").mkdir(exist_ok=True)
    (airflow.home / "dags/mine.py").write_text(MINE)
    tell("airflow db migrate")
    airflow.say("airflow", "db", "migrate")
    if not (airflow.home / "airflow.cfg").is_file():
        raise Failed(f"Airflow has made no airflow.cfg in {airflow.home}")


def add_pipeline(airflow: Airflow, layout: str) -> None:
    """Do what `tidegate init --into` says, where it concerns this machine."""
    told = json.loads(airflow.say("tidegate", "init", "--into", ".", "--json"))
    for each in told["by_hand"]:
        tell(f"by hand: {each['what']}")
    if layout == "astro":
        append(airflow.home / "requirements.txt", "tidegate[spark,gates]")
        append(airflow.home / "packages.txt", "default-jre-headless")
        append(airflow.home / "Dockerfile", "RUN tidegate spark jars")
    airflow.say("tidegate", "spark", "jars")
    if (airflow.home / "dags/mine.py").read_text() != MINE:
        raise Failed("the user's DAG has been changed")
    tell("its doctor: " + airflow.say("tidegate", "doctor", "--environment").strip().splitlines()[-1])


def append(file: Path, line: str) -> None:
    with file.open("a") as opened:
        opened.write(f"{line}\n")


def machine(airflow: Airflow, name: str, shared: Mapping[str, Path]) -> Path:
    """Make a folder as a container or another machine has it: a copy of the project, with links to what is shared."""
    folder = airflow.home.parent / name
    ignored = shutil.ignore_patterns("data", ".tidegate", "logs", "airflow.db*", *shared)
    shutil.copytree(airflow.home, folder, ignore=ignored)
    for each, target in shared.items():
        target.mkdir(parents=True, exist_ok=True)
        (folder / each).symlink_to(target)
    airflow.machines.append(folder)
    return folder


def start(airflow: Airflow, layout: str, executor: str) -> None:
    if layout == "airflow" and executor == "local":
        tell("airflow standalone")
        airflow.start("standalone", ["airflow", "standalone"], airflow.home)
        return
    logs = {"logs": airflow.home / "logs"}
    if layout == "astro":
        shared = logs | {name: airflow.home / name for name in SHARED_BY_ASTRO}
        places = {part: machine(airflow, f"container-{part}", shared) for part in PARTS}
    else:
        places = dict.fromkeys(PARTS, airflow.home)
    for part, command in PARTS.items():
        airflow.start(part, command, places[part])
    if executor == "celery":
        for number in (1, 2):
            place = machine(airflow, f"worker-{number}", logs)
            name = ["--celery-hostname", f"worker-{number}@%h", "--skip-serve-logs"]
            airflow.start(f"worker-{number}", ["airflow", "celery", "worker", *name], place)
    tell(", ".join(name for name, _ in airflow.running))


def wait_for(airflow: Airflow, count: int) -> list[int]:
    """Wait until so many checkpoints are completed; return their numbers."""
    until = time.monotonic() + PATIENCE_S
    completed: list[int] = []
    while len(completed) < count:
        time.sleep(5)
        if ended := airflow.ended():
            raise Failed(f"{', '.join(ended)} has ended")
        rows: list[dict[str, Any]] = []
        with contextlib.suppress(Failed):  # there is no ledger yet
            rows = json.loads(airflow.say("tidegate", "list", "visits", "--json"))["checkpoints"]
        before, completed = completed, sorted(row["id"] for row in rows if row["state"] == "completed")
        if len(completed) > len(before):  # and the next one finds something new
            airflow.say("python", "-m", "jobs.visits_feed", "--files", "3")
        if aborted := [row for row in rows if row["state"] == "aborted"]:
            raise Failed(f"a checkpoint is aborted: {aborted}")
        if time.monotonic() > until:
            raise Failed(f"only {completed} are completed after {PATIENCE_S} s")
    return completed


def look(airflow: Airflow) -> None:
    """Read what was made, verify it, and ask Airflow whether all is well with it."""
    rows = json.loads(airflow.say("tidegate", "read", "visits", "pages", "--json"))["rows"]
    if not sum(row["visits"] for row in rows):
        raise Failed(f"the table has no visits: {rows}")
    airflow.say("tidegate", "doctor", "jobs.visits:pipeline")
    if errors := listed(airflow, "dags", "list-import-errors"):
        raise Failed(f"DAG files cannot be imported: {errors}")
    if missing := {"mine", "visits", "visits__backfill"} - {each["dag_id"] for each in listed(airflow, "dags", "list")}:
        raise Failed(f"Airflow does not know the DAGs {missing}")
    if missing := {"tidegate", "tidegate_pages"} - {each["name"] for each in listed(airflow, "plugins")}:
        raise Failed(f"Airflow has not loaded the plugins {missing}")


def listed(airflow: Airflow, *command: str) -> list[dict[str, Any]]:
    """Return what a command of Airflow lists. Its log may stand before it."""
    said = airflow.say("airflow", *command, "-o", "json").splitlines()
    return list(json.loads(next((line for line in reversed(said) if line.startswith("[{")), "[]")))


def keep_logs(folder: Path) -> None:
    """Keep what the parts said, since the folder goes."""
    kept = PLACE / "existing/logs"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, kept)
    with contextlib.suppress(OSError):
        shutil.copytree(folder / "project/logs", kept / "tasks", dirs_exist_ok=True)
    tell(f"the logs are in {kept}")


if __name__ == "__main__":
    sys.exit(main())
