"""A standalone Spark cluster from the pip package, on loopback: a master and two workers, each a process of its own.

Workers may be blind to some folders, as if they were on other machines: each has a mount namespace of its own, with an
empty folder in their place.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.kit.jvm import environment
from tests.kit.waiting import eventually
from tidegate.spark.installation import spark_home

DEPLOY = "org.apache.spark.deploy"


class Cluster:
    """Started and stopped as a `with` block."""

    def __init__(self, home: Path, hidden: Sequence[Path] = (), memory: str = "1g") -> None:
        """hidden: the folders that workers and their executors do not see. memory: that of each worker."""
        self.home = home
        self.memory = memory
        self.hidden = hidden
        self.log = home / "master.log"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Cluster:
        here = "127.0.0.1"
        try:
            self._start("master", "master.Master", "--host", here, "--port", "0", "--webui-port", "0")
            found = eventually("the master runs", lambda: self._said(r"Starting Spark master at (spark://\S+)"))
            self.master = found[0]
            other = "127.0.0.2" if self.hidden else here  # Spark speculates on another host only
            for name, host in (("worker-1", here), ("worker-2", other)):
                size = ("--cores", "1", "--memory", self.memory)
                folder = ("--work-dir", str(self.home / name))
                self._start(name, "worker.Worker", "--host", host, *size, "--webui-port", "0", *folder, self.master)
            eventually("two workers are there", lambda: len(self._said("Registering worker")) == 2)
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

    def executor_pids(self, name: str) -> list[int]:
        """The processes that are executors of this worker now."""
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if _is_executor_of(pid, str(self.home / name))]

    def _start(self, name: str, role: str, *arguments: str) -> None:
        env = dict(os.environ) | environment() | {"SPARK_HOME": str(spark_home()), "SPARK_DAEMON_MEMORY": "256m"}
        env["SPARK_LOCAL_IP"] = arguments[arguments.index("--host") + 1]
        words = [str(spark_home() / "bin" / "spark-class"), f"{DEPLOY}.{role}", *arguments]
        if self.hidden and role == "worker.Worker":
            env = {key: value for key, value in env.items() if key not in ("PYTHONPATH", "TMPDIR")}
            mounts = [f"mount -t tmpfs none {shlex.quote(str(folder))}" for folder in self.hidden]
            words = ["unshare", "-m", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh", *words]
        with (self.home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                words,
                env=env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)


def can_be_blind() -> bool:
    """Whether this process may give others a mount namespace of their own."""
    return (
        shutil.which("unshare") is not None and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
    )


def _is_executor_of(pid: int, folder: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        return any("CoarseGrainedExecutorBackend" in word for word in words) and os.readlink(
            f"/proc/{pid}/cwd"
        ).startswith(folder)
    except OSError:
        return False
