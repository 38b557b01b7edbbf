"""A real deployment: a project on a small disk of its own, `tidegate up`, its processes, the REST API, commands."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.chaos.reference import DAG, NAME, PIPELINE, SUITE
from tests.dags import processes
from tests.dags.up_project import Project
from tests.kit.jvm import QUICK, toml
from tidegate.cli.up.airflow import Airflow
from tidegate.errors import Unavailable
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.spark.server import server as connect_server
from tidegate.spark.server.processes import ProcessId, is_alive

__all__ = ["CODE", "COMPONENTS", "Deployment"]

CODE = "jobs.chaos_pipeline:pipeline"
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
DISK_MB = 512
SETTINGS = """
root = "{store}/ledger"
data = "{store}"
tolerable_failed_checkpoints = 1000000
timeout = "3 min"
[spark]
memory = "1g"
master = "local[2]"
spare = {spare}
[restart]
delay = "1 s"
max_delay = "2 s"
"""


class Deployment:
    """`with` it: from an empty folder to nothing left. Records, tables and landing files are on a disk of their own if
    this user may mount one."""

    def __init__(self, folder: Path, *, spare: bool = True) -> None:
        self.store = folder / "store"
        self.store.mkdir(parents=True)
        self.small_disk = self._mount()
        project = folder / "project"
        for path, text in {
            "jobs/chaos_pipeline.py": PIPELINE,
            "dags/chaos.py": DAG,
            "include/expectations/chaos.yaml": SUITE,
            "tidegate.toml": SETTINGS.format(store=self.store, spare=str(spare).lower()) + toml(QUICK),
        }.items():
            (project / path).parent.mkdir(parents=True, exist_ok=True)
            (project / path).write_text(text)
        foreign = {name for name in os.environ if name.startswith(("AIRFLOW", "TIDEGATE_"))}
        self.project = Project(project, {k: v for k, v in os.environ.items() if k not in foreign})
        self.landing = self.store / "landing"
        self.landing.mkdir()
        self.up: subprocess.Popen[bytes] | None = None
        self.stopped: set[ProcessId] = set()
        """Processes that were told to stand still."""

    def _mount(self) -> bool:
        if os.getuid() != 0:
            return False
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(self.store)]
        with contextlib.suppress(OSError):
            return subprocess.run(words, capture_output=True).returncode == 0
        return False

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()
        if self.up is not None:
            self.up.kill()
            self.up.wait()
        self.project.clean_up()
        if self.small_disk:
            subprocess.run(["umount", "--lazy", str(self.store)], check=False)

    # -- `tidegate up` -------------------------------------------------------------------------------

    @property
    def log(self) -> Path:
        return self.project.folder.parent / "up.log"

    def start(self) -> None:
        with self.log.open("ab") as file:
            self.up = subprocess.Popen(
                self.project.command("up"),
                cwd=self.project.folder,
                env=self.project.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    @property
    def components(self) -> dict[str, ProcessId]:
        """Those that live, by name."""
        known = self.project.home.state().get("processes", {})
        found = {name: ProcessId.from_json(value) for name, value in known.items() if name in COMPONENTS}
        return {name: process for name, process in found.items() if is_alive(process)}

    def workers(self) -> list[int]:
        """Processes of Airflow's executor."""
        scheduler = self.components.get("scheduler")
        return processes.children(scheduler.pid) if scheduler else []

    def tasks(self) -> list[int]:
        """Processes of tasks."""
        return [task for worker in self.workers() for task in processes.children(worker)]

    def sparks(self) -> list[connect_server.ServerInfo]:
        """Spark servers of the project."""
        return connect_server.status(self.project.folder / ".tidegate" / "spark")

    def go_on(self) -> None:
        """Whoever stands still does so no longer."""
        for process in self.stopped:
            if is_alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
        self.stopped.clear()

    # -- Airflow -------------------------------------------------------------------------------------

    def airflow(self, method: str, path: str, body: object = None) -> Any:
        """Below /api/v2; None if it does not answer, or refuses."""
        home = self.project.home
        try:
            url = f"http://127.0.0.1:{home.state().get('port')}"
            return Airflow(url, home.password()[0])._call(method, path, body)
        except (Unavailable, OSError):
            return None

    def airflow_runs(self) -> list[dict[str, Any]]:
        """The latest first."""
        found = self.airflow("GET", f"/dags/{NAME}/dagRuns?order_by=-id&limit=12")
        return list(found["dag_runs"]) if found else []

    # -- tidegate ------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        return open_ledger(str(self.store / "ledger"), NAME)

    def tidegate(self, *words: str, timeout: float = 180.0) -> tuple[int, str]:
        """Exit code, and all that it said."""
        try:
            done = subprocess.run(
                self.project.command(*words),
                cwd=self.project.folder,
                env=self.project.env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            return -1, f"not ended within {timeout:.0f} s"
        return done.returncode, done.stdout + done.stderr

    def fill_disk(self) -> None:
        """Not a byte is left."""
        with contextlib.suppress(OSError), (self.store / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        with contextlib.suppress(OSError), (self.store / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(512))

    def empty_disk(self) -> None:
        (self.store / "filler").unlink(missing_ok=True)


def python_workers(jvm: int) -> list[int]:
    """Python processes that a Spark server has started, and those that these have."""
    found = processes.children(jvm)
    return found + [child for each in found for child in processes.children(each)]


assert sys.platform == "linux", "chaos finds processes in /proc"
