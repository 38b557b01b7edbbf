"""A real Airflow: scheduler, DAG processor, triggerer and API server, each a process of its own, on free ports."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.dags.project import Project
from tests.kit.waiting import PATIENCE_S, eventually

WARM = """
import sys

if "scheduler" in sys.argv:  # once, before it forks its workers: each task would take seconds for these
    import deltalake, grpc, pandas, pyarrow.parquet, pyspark.sql.connect.session
    import tidegate.dag
"""
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
DONE = ("success", "failed")
DATABASES = Path(__file__).resolve().parents[2] / ".cache" / "tests"


def migrate(env: dict[str, str]) -> None:
    """Make Airflow's database. On sqlite it is a copy of one that was made once for this version of Airflow."""
    kind, _, path = env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].partition(":///")
    if kind != "sqlite":
        _migrate(env)
        return
    made = DATABASES / f"airflow-{importlib.metadata.version('apache-airflow')}.db"
    DATABASES.mkdir(parents=True, exist_ok=True)
    with (DATABASES / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            new = made.with_suffix(".new")
            new.unlink(missing_ok=True)
            _migrate(env | {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{new}"})
            new.rename(made)
    if not Path(path).exists():  # else it is in use: tests of DAGs and of pages share one in their process
        shutil.copy(made, path)


def _migrate(env: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Busy(Exception):
    """On sqlite Airflow answers 500 if another of its parts writes for too long. Nothing has been done then."""


def is_busy(status: int, reply: str) -> bool:
    """Whether Airflow says so."""
    return status in (500, 503) and "atabase" in reply


FERNET_KEY = base64.urlsafe_b64encode(b"of-this-test".ljust(32)).decode()
"""One for all processes: each would make its own as it starts, and none could read another's triggers."""


class Airflow:
    """Started and stopped as a `with` block. Talk to it through REST, as its users do."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.project = Project(home / "project")
        self.port = free_port()
        self.env = dict(os.environ) | self._environment() | settings
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._token = ""
        self.local_settings = WARM
        """What each of its processes runs when it starts."""

    def _environment(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.port}"
        return {
            "AIRFLOW_HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self.project.folder), os.environ.get("PYTHONPATH")))),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.project.dags),
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": "of-this-test",
            "AIRFLOW__CORE__FERNET_KEY": FERNET_KEY,
            "AIRFLOW__API_AUTH__JWT_SECRET": "of-this-test-" * 6,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        }

    # -- its processes -------------------------------------------------------------------------------

    def __enter__(self) -> Airflow:
        (self.home / "config").mkdir()
        (self.home / "config" / "airflow_local_settings.py").write_text(self.local_settings)
        migrate(self.env)
        for name in COMPONENTS:
            self.start(name)
        eventually("Airflow answers", self._healthy, 240)
        return self

    def start(self, name: str) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "airflow", name],
                env=self.env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
                process.terminate()
        until = time.monotonic() + 5
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.1))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the session that we made for it: its workers and their tasks
            process.wait()
        self.project.close()

    def _healthy(self) -> bool:
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} has ended:\n{(self.home / f'{name}.log').read_text()[-3000:]}"
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v2/monitor/health", timeout=5) as answer:
                health = json.load(answer)
            return all(health[name]["status"] == "healthy" for name in ("scheduler", "dag_processor", "triggerer"))
        return False

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """For a while nothing but the API server writes to Airflow's database.

        On sqlite Airflow cannot make a backfill beside others that write: it gives up half-way, and *deletes* the runs
        that it was about to clear.
        """
        others = [self.processes[name].pid for name in ("scheduler", "dag-processor", "triggerer")]
        database = self.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].removeprefix("sqlite:///")

        def stopped_outside_of_a_transaction() -> bool:
            for pid in others:
                os.killpg(pid, signal.SIGSTOP)
            with (
                contextlib.suppress(sqlite3.OperationalError),
                contextlib.closing(sqlite3.connect(database, timeout=0.5, isolation_level=None)) as probe,
            ):
                probe.execute("BEGIN IMMEDIATE")
                probe.execute("ROLLBACK")
                return True
            go_on()
            return False

        def go_on() -> None:
            for pid in others:
                os.killpg(pid, signal.SIGCONT)

        eventually("nobody writes to Airflow's database", stopped_outside_of_a_transaction)
        try:
            yield
        finally:
            go_on()

    # -- REST ----------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: object = None, *, fine: tuple[int, ...] = ()) -> Any:
        """One request below /api/v2, or one that Airflow's own pages make, below /ui. An error is a failure, unless its
        status is `fine`."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._call(method, path, body, fine)
            except Busy:
                assert time.monotonic() < until, f"{method} {path}: Airflow's database stays busy"
                time.sleep(0.5)

    def _call(self, method: str, path: str, body: object, fine: tuple[int, ...]) -> Any:
        url = path if path.startswith(("/auth", "/ui/")) else f"/api/v2{path}"
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if not path.startswith("/auth"):
            self._token = self._token or str(self.call("GET", "/auth/token")["access_token"])
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{url}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            if error.code in fine:
                return None
            told = error.read().decode()[:2000]
            if is_busy(error.code, told):
                raise Busy from error
            raise AssertionError(f"{method} {path}: {error.code} {told}") from error
        return json.loads(text) if text else None

    def known(self, dag_id: str) -> None:
        """Wait until Airflow has read the DAG's file."""

        def parsed() -> Any:
            broken = self.call("GET", "/importErrors")["import_errors"]
            assert not broken, broken[0]["stack_trace"]
            return self.call("GET", f"/dags/{dag_id}", fine=(404,))

        eventually(f"DAG {dag_id} is known", parsed)

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None, run_id: str | None = None) -> Run:
        body = {"logical_date": None, "conf": conf or {}} | ({"dag_run_id": run_id} if run_id else {})
        return Run(self, dag_id, self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def runs(self, dag_id: str) -> list[Run]:
        found = self.call("GET", f"/dags/{dag_id}/dagRuns?order_by=id&limit=100")["dag_runs"]
        return [Run(self, dag_id, run["dag_run_id"]) for run in found]

    def events(self, dag_id: str) -> list[dict[str, Any]]:
        """The asset events that the DAG has emitted. Airflow 3.3.2 answers 500 while a run that one of them triggered
        is queued: its answer cannot hold a run without a start."""
        path = f"/assets/events?source_dag_id={dag_id}&limit=100"
        found = eventually("all runs triggered have started", lambda: self.call("GET", path, fine=(500,)))
        return list(found["asset_events"])


class Run:
    """One DAG run."""

    def __init__(self, airflow: Airflow, dag_id: str, run_id: str) -> None:
        self.airflow = airflow
        self.dag_id = dag_id
        self.run_id = run_id
        self.path = f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}"

    @property
    def state(self) -> str:
        return str(self.airflow.call("GET", self.path)["state"])

    def tasks(self) -> dict[str, str]:
        found = self.airflow.call("GET", f"{self.path}/taskInstances")["task_instances"]
        return {task["task_id"]: str(task["state"]) for task in found}

    def tries(self) -> dict[str, int]:
        found = self.airflow.call("GET", f"{self.path}/taskInstances")["task_instances"]
        return {task["task_id"]: int(task["try_number"]) for task in found}

    def pid(self, task: str) -> int | None:
        pid = self.airflow.call("GET", f"{self.path}/taskInstances/{task}")["pid"]
        return int(pid) if pid else None

    def log(self, task: str, tries: int = 1) -> str:
        """What the task has told."""
        answer = self.airflow.call("GET", f"{self.path}/taskInstances/{task}/logs/{tries}")
        return json.dumps(answer["content"])

    def links(self, task: str) -> dict[str, str]:
        """Where the task's details lead to."""
        return dict(self.airflow.call("GET", f"{self.path}/taskInstances/{task}/links")["extra_links"])

    def ended(self, timeout: float = 240) -> str:
        """Wait for the run's end; answers with its state."""
        return str(eventually(f"run {self.run_id} of {self.dag_id} ends", lambda: self._state_if(DONE), timeout))

    def _state_if(self, wanted: tuple[str, ...]) -> str | None:
        state = self.state
        return state if state in wanted else None

    def until(self, task: str, *states: str, timeout: float = 240) -> None:
        """Wait until a task is in one of these states."""
        eventually(f"task {task} is {' or '.join(states)}", lambda: self.tasks().get(task) in states, timeout)

    def clear(self, *tasks: str, only_failed: bool = False) -> None:
        """Clear some tasks, or all."""
        body: dict[str, Any] = {"dry_run": False, "dag_run_id": self.run_id, "only_failed": only_failed}
        self.airflow.call(
            "POST", f"/dags/{self.dag_id}/clearTaskInstances", body | ({"task_ids": list(tasks)} if tasks else {})
        )

    def mark(self, task: str, state: str) -> None:
        self.airflow.call("PATCH", f"{self.path}/taskInstances/{task}", {"new_state": state})

    def mark_run(self, state: str) -> None:
        self.airflow.call("PATCH", self.path, {"state": state})
