"""A standalone Spark cluster from the pip package, on loopback: a master and two workers, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from tests.kit.jvm import environment
from tests.kit.waiting import eventually
from tidegate.spark.installation import spark_home

DEPLOY = "org.apache.spark.deploy"


class Cluster:
    """Started and stopped as a `with` block."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / "master.log"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Cluster:
        here = "127.0.0.1"
        try:
            self._start("master", "master.Master", "--host", here, "--port", "0", "--webui-port", "0")
            found = eventually("the master runs", lambda: self._said(r"Starting Spark master at (spark://\S+)"), 60)
            self.master = found[0]
            for name in ("worker-1", "worker-2"):
                shape = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(self.home / name))
                self._start(name, "worker.Worker", "--host", here, *shape, self.master)
            eventually("two workers are there", lambda: len(self._said("Registering worker")) == 2, 60)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        for process in reversed(self.processes):  # workers first: they end their executors
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def registered(self) -> int:
        """How many applications have come so far."""
        return len(self._said("Registered app"))

    @property
    def gone(self) -> int:
        """And how many of them have gone."""
        return len(self._said("Removing app app-"))

    @property
    def executors(self) -> int:
        """How many executors were started for them."""
        return len(self._said("Launching executor"))

    def _said(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.log.read_text(errors="replace"))

    def _start(self, name: str, role: str, *arguments: str) -> None:
        env = dict(os.environ) | environment() | {"SPARK_HOME": str(spark_home()), "SPARK_DAEMON_MEMORY": "256m"}
        with (self.home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(spark_home() / "bin" / "spark-class"), f"{DEPLOY}.{role}", *arguments],
                env=env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
