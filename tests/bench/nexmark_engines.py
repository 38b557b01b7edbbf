"""The engines of the race, each in processes of its own, which stand still between their turns.

An engine is started for a query, and ended after it, so that no query finds what another one left behind: compiled
code, memory, files. What is measured of a turn is that of all its processes, and of nobody else's.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.bench import nexmark_streaming
from tests.bench.harness import core_seconds
from tests.bench.memory import everything, resident
from tests.bench.sides import environment
from tests.bench.spark import CORES
from tests.kit.processes import die_with_parent
from tests.nexmark.playing import Play
from tests.nexmark.reference import Closing, Reference

__all__ = ["Engine", "Failed", "Figures", "Spark", "Talk", "measured", "processes", "spent", "stand_still"]

Figures = dict[str, float]
SAMPLE_S = 0.1
TICKS = os.sysconf("SC_CLK_TCK")


class Failed(RuntimeError):
    """An engine has no answer: it said why, or ended, or took too long."""


class Engine(Protocol):
    """A side of the race for one query."""

    closing: Closing
    """Which windows it gives at the end of its input: as in tests/nexmark/reference.py."""
    learns_when: bool
    """It takes checkpoints by time, and learns from a run when it has to."""
    processes: list[subprocess.Popen[Any]]

    def run(self, query: str, out: Path, checkpoints: int, longest: float) -> Figures:
        """Run a query to its end. Return the seconds, and how many checkpoints were completed."""

    def found(self, query: str, out: Path, reference: Reference) -> Any:
        """Return the rows of its result."""


class Talk:
    """Lines of JSON to a process and from it."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log

    def ask(self, what: Mapping[str, Any], longest: float) -> dict[str, Any]:
        """Return its answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: then there is no answer
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        return self.answer(longest)

    def answer(self, longest: float) -> dict[str, Any]:
        """Return the next answer."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], longest)[0]:
            raise Failed(f"no answer within {longest:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"it has ended: {self.log.read_text()[-2000:]}")
        said = dict(json.loads(line))
        if "error" in said:
            raise Failed(str(said["error"]))
        return said


class Spark:
    """tidegate or Structured Streaming."""

    learns_when = False

    def __init__(self, side: Closing, talk: Talk, landing: Path, cuts: int) -> None:
        self.closing: Closing = side
        self.talk = talk
        self.landing, self.cuts = landing, cuts
        self.processes: list[subprocess.Popen[Any]] = [talk.process]

    @classmethod
    @contextlib.contextmanager
    def started(cls, side: str, folder: Path, landing: Path, cuts: int, longest: float) -> Iterator[Spark]:
        """Start it in a folder, and end it with the block."""
        log = folder / f"{side}.log"
        command = [sys.executable, "-m", "tests.bench.nexmark_side", side]
        with processes() as start:
            process = start(
                command,
                log,
                cwd=folder,
                env=environment() | {"SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            talk = Talk(process, log)
            talk.answer(longest)
            yield cls("ours" if side == "ours" else "streaming", talk, landing, cuts)

    def run(self, query: str, out: Path, checkpoints: int, longest: float) -> Figures:
        files = CORES if checkpoints > 1 else CORES * self.cuts
        asked = {"query": query, "out": str(out), "landing": str(self.landing), "files": files}
        return self.talk.ask(asked | {"checkpoints": checkpoints}, longest)

    def found(self, query: str, out: Path, reference: Reference) -> Any:
        if self.closing == "ours":
            return Play(query, out).found()
        return nexmark_streaming.found(query, out, reference)


@contextlib.contextmanager
def processes() -> Iterator[Any]:
    """Start processes, each a group of its own, that end with the block, and with this process."""
    started: list[subprocess.Popen[Any]] = []

    def start(command: Sequence[object], log: Path, **options: Any) -> subprocess.Popen[Any]:
        with log.open("w") as written:
            given: dict[str, Any] = {"stdout": written, "stderr": written, "process_group": 0} | options
            words = [str(word) for word in command]
            process: subprocess.Popen[Any] = subprocess.Popen(words, preexec_fn=die_with_parent, **given)
        started.append(process)
        return process

    try:
        yield start
    finally:
        below = [pid for process in started for pid in everything(process.pid)]
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for pid in below:  # workers of Spark are groups of their own, and end by themselves, but later
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in started:
            process.wait()


def tell(engine: Engine, what: signal.Signals) -> None:
    """Send a signal to all processes of an engine."""
    for process in engine.processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, what)


def stand_still(engine: Engine) -> None:
    """Let an engine take nothing from the others, until it is measured."""
    tell(engine, signal.SIGSTOP)


def measured(engine: Engine, query: str, out: Path, checkpoints: int, longest: float) -> Figures:
    """Let an engine take its turn at a query, in an empty folder. Return what it took."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tell(engine, signal.SIGCONT)
    try:
        with Watch([process.pid for process in engine.processes]) as watch:
            figures = engine.run(query, out, checkpoints, longest)
    finally:
        stand_still(engine)
    return {**figures, "core_seconds": watch.core_seconds, "megabytes": watch.megabytes}


def spent(engine: Engine) -> float:
    """Return the processor time of all its processes so far."""
    return sum(core_seconds(process.pid) for process in engine.processes)


class Watch(threading.Thread):
    """The processor time of some processes and all below them, and the most memory that they had together.

    It looks ten times a second. The time of a process that has ended is that at the last look: Spark ends workers that
    had nothing to do for a minute, and nobody above them is told what they have taken. Memory that processes share
    counts for each of them: no more than a part of Python's, and the same for all.
    """

    def __init__(self, roots: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self.megabytes = 0.0
        self._roots, self._ended = roots, threading.Event()
        self._begun = time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS
        self._ticks: dict[tuple[int, int], tuple[int, int]] = {}
        """By process, told from others with its number by its start: the time at the first look, and at the last."""

    @property
    def core_seconds(self) -> float:
        return sum(last - first for first, last in self._ticks.values()) / TICKS

    def run(self) -> None:
        """Look until the turn has ended."""
        while not self._ended.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        pids = [pid for root in self._roots for pid in everything(root)]
        self.megabytes = max(self.megabytes, sum(map(resident, pids)))
        for pid in pids:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                started, ticks = int(fields[19]), int(fields[11]) + int(fields[12])
                is_younger = started >= self._begun
                first, _ = self._ticks.get((pid, started), (0 if is_younger else ticks, 0))
                self._ticks[pid, started] = first, ticks

    def __enter__(self) -> Watch:
        self._look()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        self._look()
