"""Drives forked children: run, crash, hang, resume. Waits for conditions, never for time."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.crash.at_least_once import OnceWorld
from tests.crash.diverted import DivertedWorld
from tests.crash.gated import GatedWorld
from tests.crash.intervals import IntervalWorld
from tests.crash.overtaking import FourWorld
from tests.crash.stateful import StatefulWorld
from tests.crash.world import CrashWorld, check
from tidegate import seams

DEADLINE_S = 120.0


class Crew:
    """A zygote, its children, and the Spark server that they share."""

    def __init__(self, root: Path, spark: dict[str, Any]) -> None:
        self.root = root
        self.spark = spark
        self.numbers = itertools.count(1)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)

    def start(
        self,
        world: CrashWorld,
        *runs: str,
        fault: tuple[str, str, int] | None = None,
        impatient: bool = False,
        back_to: int | None = None,
    ) -> Child:
        """A child that does these DAG runs in turn, or goes back to a checkpoint, with a fault armed."""
        base = self.root / f"child-{next(self.numbers)}"
        request = {
            "root": str(world.root),
            "intervals": isinstance(world, IntervalWorld),
            "gated": isinstance(world, GatedWorld),
            "four": world.limits.recorded["unaligned"] if isinstance(world, FourWorld) else None,
            "stateful": isinstance(world, StatefulWorld),
            "once": isinstance(world, OnceWorld),
            "diverted": isinstance(world, DivertedWorld),
            "num_retained": world.limits.num_retained,
            "runs": list(runs),
            "fault": fault,
            "impatient": impatient,
            "back_to": back_to,
            "spark": self.spark,
            "gate": f"{base}.gate",
            "result": f"{base}.result",
            "log": f"{base}.log",
        }
        return Child(self, base, self._ask(request)["pid"])

    def run(self, world: CrashWorld, *runs: str, **how: Any) -> list[int | None]:
        """The same, to its end, which must be a good one."""
        child = self.start(world, *runs, **how)
        assert child.ended() == 0, child.log()
        return child.result()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


class Child:
    """One forked process."""

    def __init__(self, crew: Crew, base: Path, pid: int) -> None:
        self.crew = crew
        self.base = base
        self.pid = pid

    def ended(self) -> int:
        """Its exit status, waited for; negative for a signal."""
        status: int = self.crew._ask({"wait": self.pid})["status"]
        return status

    def reached(self) -> None:
        """Wait until it hangs at its fault point."""
        until = seams.monotonic() + DEADLINE_S
        while not Path(f"{self.base}.gate.reached").exists():
            assert not self._gone(), f"ended without reaching its point: {self.log()}"
            assert seams.monotonic() < until, f"never reached its point: {self.log()}"
            seams.sleep(0.02)

    def _gone(self) -> bool:
        """Ended, though nobody has asked for its status yet."""
        stat = Path(f"/proc/{self.pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

    def kill(self) -> int:
        """SIGKILL, wherever it hangs."""
        os.kill(self.pid, signal.SIGKILL)
        return self.ended()

    def resume(self) -> int:
        """Let it continue from its fault point, to its end."""
        Path(f"{self.base}.gate").touch()
        return self.ended()

    def result(self) -> list[int | None]:
        ids: list[int | None] = json.loads(Path(f"{self.base}.result").read_text())["ids"]
        return ids

    def peak_mb(self) -> int:
        """The most memory that it had, of its own process."""
        peak: int = json.loads(Path(f"{self.base}.result").read_text())["peak_mb"]
        return peak

    def log(self) -> str:
        path = Path(f"{self.base}.log")
        return path.read_text() if path.exists() else "no log"


def finish(crew: Crew, world: CrashWorld, files: int, *, first: str = "recovery") -> None:
    """After the fault: the next runs, until nothing is left to read. Then everything must hold."""
    world.feed(files)
    crew.run(world, first, *(f"{first}-{n}" for n in range(files + 2)), impatient=True)
    check(world, files)
