"""What an engine is measured by."""

from __future__ import annotations

import subprocess
import sys

from tests.bench.harness import core_seconds
from tests.bench.memory import everything
from tests.bench.nexmark_engines import Watch
from tests.kit.waiting import eventually

BUSY = "import time\nwhile time.process_time() < {}: pass\n"
PARENT = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so nobody is told what a child has taken
print(subprocess.Popen([sys.executable, "-c", sys.argv[1]]).pid, flush=True)
sys.stdin.readline()
"""


def test_the_time_of_a_process_that_has_ended_is_not_lost_and_that_of_before_does_not_count():
    words = [sys.executable, "-c", PARENT, BUSY.format(1.5)]
    parent = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        eventually("it has done some", lambda: core_seconds(child) > 0.3)
        before = core_seconds(child)
        with Watch([parent.pid]) as watch:
            eventually("it has ended", lambda: child not in everything(parent.pid))
        assert 0 < watch.core_seconds <= 1.5 - before + 0.1, "what is left of it, and nothing of before"
        assert watch.megabytes > 1
    finally:
        parent.kill()
        parent.wait()
