"""What works beside production takes processors only when nobody else needs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidegate import seams
from tidegate.spark.server import priority

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions have a priority only on Linux")

SHOWN = """
import os, subprocess, threading
from pathlib import Path
from tidegate.spark.server.priority import lower_session_priority, lowest_priority

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
print(session())
os.nice(19)
lower_session_priority()
print(session(), Path("/proc/self/oom_score_adj").read_text().strip())
stop.set()
"""


def test_all_threads_have_the_lowest_priority_and_their_session_too_unless_others_are_in_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOWN], stdout=subprocess.PIPE, text=True, check=True, start_new_session=True
    )
    beside_others, alone, after, new_session = done.stdout.splitlines()
    grouped = Path("/proc/self/autogroup").exists()
    assert beside_others == "19 19 " + ("0" if grouped else "-")
    assert alone == "19 19 " + ("19" if grouped else "-")
    assert after == ("0" if grouped else "-"), "put back, however soon"
    assert new_session == ("19" if grouped else "-") + " 900", "a server knows that its session is new"


LED = """
import os
from pathlib import Path
from tidegate.spark.server.priority import lower_session_priority, lowest_priority

GROUPS = Path("/proc/self/autogroup")
FIRST_TO_END = Path("/proc/self/oom_score_adj")
before = FIRST_TO_END.read_text()
with lowest_priority():
    print(os.getpriority(os.PRIO_PROCESS, 0), GROUPS.read_text().split()[-1] if GROUPS.exists() else "-")
os.nice(19)
lower_session_priority()
print(GROUPS.read_text().split()[-1] if GROUPS.exists() else "-", FIRST_TO_END.read_text() == before)
"""


def test_the_session_of_somebody_else_keeps_its_priority() -> None:
    """That of a worker, a scheduler or a terminal, although nobody else is in it."""
    words = [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])", LED]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, start_new_session=True)
    kept = "0" if Path("/proc/self/autogroup").exists() else "-"
    assert done.stdout.splitlines() == [f"19 {kept}", f"{kept} True"]


def test_a_session_gets_its_priority_back_although_the_kernel_first_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = [BlockingIOError(), BlockingIOError()]
    written: list[str] = []

    def write(path: Path, text: str) -> int:
        if refusals:
            raise refusals.pop()
        written.append(text)
        return len(text)

    monkeypatch.setattr(Path, "write_text", write)
    with seams.installed(seams.Seams(sleep=lambda seconds: None)):
        priority._set_session_priority(19)
        assert written == []
        priority._set_session_priority(0, tries_again=True)
    assert written == ["0"]
