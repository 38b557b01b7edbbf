"""The folder of the Airflow that `tidegate up` runs: its files between two calls, and Airflow's configuration.

.tidegate/airflow/       AIRFLOW_HOME, readable by this user only
  up.lock                held by the running `tidegate up`
  up.json                its port and processes, so that the next call can end those of a killed one
  secrets.json           created once: running tasks, browsers' logins and the database depend on them
  passwords.json         the logins of the UI
  airflow.db             the metadata database, if no other is configured
  config/                settings that Airflow imports in each of its processes
  logs/                  logs of tasks; logs/up/ has those of the components
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate import seams
from tidegate.errors import Unavailable
from tidegate.versions.ranges import installed_version, release_of

__all__ = ["USER", "Home", "any_port", "free_port"]

USER = "admin"
_USUAL_PORT = 8080
_NOBODY = "1"
"""A port without a listener."""
_DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"

# Runs in the scheduler before it forks the processes of tasks, which saves each task two seconds of imports. Only
# libraries, because project code would not be reloaded until a restart. And only imports, because a session, a client
# or an open table does not survive a fork.
_LOCAL_SETTINGS = '''\
"""Written by `tidegate up`, again at each start."""

import sys
from pathlib import Path

PROJECT = "…"

if "scheduler" in sys.argv:
    import gc

    import deltalake
    import grpc
    import pandas
    import pyarrow.parquet
    import pyspark.sql.connect.session

    import tidegate.coordinator
    import tidegate.execution.finish
    import tidegate.execution.input_watch
    import tidegate.execution.job.run_job
    import tidegate.sinks
    import tidegate.sources
    import tidegate.spark.session

    if any(Path(PROJECT, "include", "expectations").glob("*.y*ml")):
        from tidegate.gates.expectations.library import warm

        warm()

    gc.collect()
    gc.freeze()
'''


@dataclass(frozen=True)
class Home:
    """Paths and files of this folder. Starts no process."""

    project: Path

    @property
    def folder(self) -> Path:
        return self.project / ".tidegate" / "airflow"

    @property
    def lock(self) -> Path:
        return self.folder / "up.lock"

    @property
    def state_file(self) -> Path:
        return self.folder / "up.json"

    @property
    def passwords_file(self) -> Path:
        return self.folder / "passwords.json"

    @property
    def dags(self) -> Path:
        return self.project / "dags"

    def log(self, name: str) -> Path:
        """Return the log file of a component."""
        return self.folder / "logs" / "up" / f"{name}.log"

    def task_log(self, dag: str, run: str, task: str, attempt: int) -> Path:
        """Return the log file of a task's attempt."""
        return self.folder / "logs" / f"dag_id={dag}" / f"run_id={run}" / f"task_id={task}" / f"attempt={attempt}.log"

    def make(self) -> None:
        """Create the folders, readable by this user only, and the settings that Airflow imports."""
        settings = _LOCAL_SETTINGS.replace('"…"', repr(str(self.project)))
        try:
            for folder in (self.folder, self.folder / "config", self.log("").parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            self.write_private(self.folder / "config" / "airflow_local_settings.py", settings)
        except OSError as error:
            raise Unavailable(
                f"{error.filename or self.folder} cannot be written: {error.strerror or error}",
                expected="a project folder that this user may write to: Airflow's database and logs are in .tidegate",
                help=f"change its owner: sudo chown -R $(id -un) '{self.project}'",
                reason="NO_ACCESS",
            ) from error

    def password(self) -> tuple[str, bool]:
        """Return the password of the UI's user, and whether it has just been generated."""
        logins = _read_json(self.passwords_file)
        if isinstance(password := logins.get(USER), str) and password:
            return password, False
        password = seams.new_id()
        self.write_private(self.passwords_file, json.dumps(logins | {USER: password}) + "\n")
        return password, True

    def secrets(self) -> dict[str, str]:
        """Return the keys that sign tokens and encrypt passwords in the database, the same at every start."""
        path = self.folder / "secrets.json"
        names = ("jwt", "session", "fernet")
        stored = _read_json(path)
        if all(isinstance(stored.get(name), str) for name in names):
            return {name: stored[name] for name in names}
        generated = {"jwt": _random(64), "session": _random(32)}
        generated["fernet"] = base64.urlsafe_b64encode(bytes.fromhex(_random(32))).decode()
        self.write_private(path, json.dumps(generated) + "\n")
        return generated

    def state(self) -> dict[str, Any]:
        """Return the state that the last `tidegate up` wrote, or an empty one."""
        return _read_json(self.state_file)

    def write_private(self, path: Path, text: str) -> None:
        """Write a file that only this user may read, atomically."""
        temporary = path.with_name(f".{path.name}.{seams.new_id()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)

    # -- the database --------------------------------------------------------------------------------

    @property
    def manages_database(self) -> bool:
        """Return true if the metadata database is ours, because no other is configured."""
        return not os.environ.get(_DATABASE)

    def is_migrated(self) -> bool:
        """Return true if our own database is known to be migrated to this Airflow version, without calling Airflow,
        which takes seconds."""
        stamp = self.folder / "migrated"
        with contextlib.suppress(OSError):
            return self.manages_database and stamp.read_text() == _airflow() and self._database_file.is_file()
        return False

    def set_migrated(self) -> None:
        """Record that the database is migrated."""
        self.write_private(self.folder / "migrated", _airflow())

    @property
    def _database_file(self) -> Path:
        return self.folder / "airflow.db"

    # -- Airflow's configuration ---------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Return how many tasks may run at the same time."""
        return max(2, min(4, os.cpu_count() or 2))

    def environment(self, port: int) -> dict[str, str]:
        """Return Airflow's whole configuration, independent of any airflow.cfg."""
        configured = {
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__PLUGINS_FOLDER": str(self.project / "plugins"),
            "CORE__LOAD_EXAMPLES": "False",
            # Otherwise files without the word "airflow", such as one with just build_dag, are skipped silently.
            "CORE__DAG_DISCOVERY_SAFE_MODE": "False",
            "CORE__EXECUTOR": _executor(),
            "CORE__PARALLELISM": str(self.room),
            "CORE__HOSTNAME_CALLABLE": "socket.gethostname",  # the default asks the network who we are
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "API__HOST": "127.0.0.1",
            "API__PORT": str(port),
            "API__BASE_URL": f"http://127.0.0.1:{port}",
            "API__WORKERS": "1",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
            # None of our processes serves logs: that server listens on all addresses. The UI reads the files.
            "LOGGING__WORKER_LOG_SERVER_PORT": _NOBODY,
            "LOGGING__TRIGGER_LOG_SERVER_PORT": _NOBODY,
            "LOGGING__COLORED_CONSOLE_LOG": "False",
            "LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"),
        }
        configured |= _TUNED | self._secret_settings()
        if self.manages_database:
            configured["DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{self._database_file}"
        places = [str(self.project), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        return {
            **os.environ,
            **{f"AIRFLOW__{name}": value for name, value in configured.items()},
            "AIRFLOW_HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(place for place in places if place),
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
            **_around_proxies(os.environ),
        }

    def fingerprint(self, environment: Mapping[str, str]) -> str:
        """Return a digest of everything that a component reads only when it starts. Components with the same digest may
        continue under another `tidegate up`."""
        plugins = sorted((self.project / "plugins").rglob("*.py"))
        told = {
            "python": sys.executable,
            "versions": [_airflow(), installed_version("tidegate")],
            "environment": {name: value for name, value in environment.items() if name not in _OF_A_SHELL},
            "plugins": [[str(plugin), plugin.stat().st_mtime_ns] for plugin in plugins],
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def _secret_settings(self) -> dict[str, str]:
        secrets = self.secrets()
        manager = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
        return {
            "CORE__AUTH_MANAGER": manager,
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.passwords_file),
            "CORE__FERNET_KEY": secrets["fernet"],
            "API_AUTH__JWT_SECRET": secrets["jwt"],
            "API__SECRET_KEY": secrets["session"],
        }


# Measured: with the defaults each task waits a second for the scheduler, and a failed one up to five for its
# supervisor. Short heartbeats let tasks continue soon if their process is gone or hangs. Calls to an API server that is
# being restarted are retried for a minute, at least every two seconds.
_TUNED = {
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",
    "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "25",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "DAG_PROCESSOR__REFRESH_INTERVAL": "30",
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    "WORKERS__EXECUTION_API_RETRIES": "30",
    "WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "2",
}
_OF_A_SHELL = {"_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES"}
"""Variables of the user's shell that do not affect a command."""


def free_port(requested: int | None, last: object) -> int:
    """Return a free loopback port: the requested one, otherwise the last one, the usual one, or any."""
    if requested is not None:
        if _is_free(requested):
            return requested
        raise Unavailable(
            f"port {requested} is in use by another program, or this user may not listen on it",
            expected="a free port",
            help="leave out --port to use a free one; or end the other program",
            reason="PORT_TAKEN",
        )
    for port in (last, _USUAL_PORT):
        if isinstance(port, int) and 0 < port < 65536 and _is_free(port):
            return port
    return any_port()


def any_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _around_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that keep Airflow's processes, which call each other on loopback, from using a proxy."""
    if not any(name.lower() in ("http_proxy", "all_proxy") for name in environment):
        return {}
    given = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if given.strip() == "*":
        return {}
    direct = ",".join(dict.fromkeys([*filter(None, given.split(",")), "127.0.0.1", "localhost"]))
    return {"no_proxy": direct, "NO_PROXY": direct}


def _random(count: int) -> str:
    """Return `count` random bytes in hex digits."""
    return "".join(seams.new_id() for _ in range(count // 8))


def _executor() -> str:
    """Return the executor: ours, if Airflow is new enough for it and the system can fork."""
    ours = sys.platform == "linux" and release_of(_airflow()) >= (3, 3)
    if ours:
        return "tidegate.dag.executor.ForkingLocalExecutor"
    return "LocalExecutor"


def _airflow() -> str:
    return importlib.metadata.version("apache-airflow")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
