"""What works beside production takes processors only when nobody else needs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions have a priority only on Linux")

SHOWN = """
import os, subprocess, threading
from pathlib import Path
from tidegate.spark.server.priority import lower_own_session, lowest_priority

GROUPS = Path("/proc/self/autogroup")

def session():
    return GROUPS.read_text().split()[-1] if GROUPS.exists() else "-"

def threads():
    return [os.getpriority(os.PRIO_PROCESS, int(id)) for id in os.listdir("/proc/self/task")]

stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
other = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!"], stdout=subprocess.PIPE, text=True)
orphan = int(other.stdout.readline())
other.wait()
with lowest_priority():
    print(*threads(), session())
os.kill(orphan, 9)
while os.path.exists(f"/proc/{orphan}") and "Z" not in Path(f"/proc/{orphan}/stat").read_text().split()[2]:
    pass
with lowest_priority():
    print(*threads(), session())
os.nice(19)
lower_own_session()
print(session())
stop.set()
"""


def test_all_threads_have_the_lowest_priority_and_their_session_too_unless_others_are_in_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOWN], stdout=subprocess.PIPE, text=True, check=True, start_new_session=True
    )
    beside_others, alone, new_session = done.stdout.splitlines()
    grouped = Path("/proc/self/autogroup").exists()
    assert beside_others == "19 19 " + ("0" if grouped else "-")
    assert alone == "19 19 " + ("19" if grouped else "-")
    assert new_session == ("19" if grouped else "-"), "a server knows that its session is new"
