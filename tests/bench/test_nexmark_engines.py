"""What an engine is measured by."""

from __future__ import annotations

import subprocess
import sys

from tests.bench.harness import core_seconds
from tests.bench.nexmark_engines import Watch
from tests.kit.waiting import eventually

BUSY = "import time\nwhile time.process_time() < {}: pass\n"
PARENT = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so nobody is told what a child has taken
children = [subprocess.Popen([sys.executable, "-c", text]) for text in sys.argv[1:]]
print("ready", flush=True)
sys.stdin.readline()
"""


def test_the_time_of_a_process_that_has_ended_is_not_lost_and_that_of_before_does_not_count():
    words = [sys.executable, "-c", PARENT, BUSY.format(0.8), "import time; time.sleep(60)"]
    parent = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    try:
        eventually("it has done some", lambda: core_seconds(parent.pid) > 0.3)
        before = core_seconds(parent.pid)
        with Watch([parent.pid]) as watch:
            eventually("it has ended", lambda: core_seconds(parent.pid) < before)
        assert 0 < watch.core_seconds < 0.8 - 0.1
        assert watch.megabytes > 1
    finally:
        subprocess.run(["pkill", "-P", str(parent.pid)], check=False)
        parent.kill()
        parent.wait()
