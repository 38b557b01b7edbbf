"""A side of a bench in a process of its own, which takes a turn for each line that it is given.

For sides that cannot share one Spark: one on the embedded server, the other in its process, or one whose queries look
for input all the time. Between its turns a side stands still, so that it takes nothing from the other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench.harness import ROOT, core_seconds

_END_S = 30.0


class Side:
    """The bench's end: starts `python -m module words …` in a folder. The end of the `with` block ends it.

    It is a process group of its own, but of the bench's session: if the bench is killed while the side stands still,
    the kernel hangs it up.

    beside: tells the pids of processes that work for it and are not below it, such as a Spark server.
    """

    def __init__(self, folder: Path, module: str, *words: str, beside: Callable[[], list[int]] = list) -> None:
        self.core_s: list[float] = []
        """Processor time of each of its turns."""
        self._beside = beside
        self.log = folder / f"{module.rpartition('.')[2]}.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                cwd=folder,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
            )

    def take(self, number: int) -> float:
        """Its turn: the seconds that it says it took. Its start is part of its first one, and not of these."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before = self._core_seconds()
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # it has ended: then its answer is empty
            print(number, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.log.name} ends:\n{self.log.read_text()[-4000:]}")
        self._signal(signal.SIGSTOP)
        self.core_s.append(self._core_seconds() - before)
        return float(answer)

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self._process.communicate(timeout=_END_S)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _core_seconds(self) -> float:
        return sum(core_seconds(pid) for pid in [self._process.pid, *self._beside()])

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def environment() -> dict[str, str]:
    """Of processes that work in another folder, and find these modules all the same."""
    places = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(place for place in places if place)}


def serve(take: Callable[[int], float]) -> None:
    """The other end: call it for each line until there are no more. What else is printed goes to the log."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(take(int(line)), file=answers, flush=True)
