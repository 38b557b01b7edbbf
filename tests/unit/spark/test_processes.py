import os
import signal
import subprocess
import sys

import pytest

from tests.kit.waiting import eventually
from tidegate.errors import Invalid
from tidegate.spark.server.processes import ProcessId, identify, is_alive, kill, wait_for_end


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_its_pid_and_its_start(sleeper):
    found = identify(sleeper.pid)
    assert found is not None
    assert is_alive(found)
    assert ProcessId.from_json(found.to_json()) == found
    assert identify(os.getpid()) != found


def test_another_process_with_the_pid_of_a_dead_one_is_not_killed(sleeper):
    stale = ProcessId(sleeper.pid, "1/another boot")
    assert not is_alive(stale)
    assert not kill(stale, signal.SIGKILL)
    assert wait_for_end(stale, 0)
    assert sleeper.poll() is None


def test_a_process_that_waits_for_its_parent_has_gone(sleeper):
    found = identify(sleeper.pid)
    assert kill(found, signal.SIGKILL)
    eventually("the killed process is gone, though nobody has waited for it", lambda: not is_alive(found))
    assert identify(sleeper.pid) is None


@pytest.mark.parametrize("value", [None, 7, {}, {"pid": "7", "start": "x"}, {"pid": 1, "start": "x"}, {"pid": -1}])
def test_what_is_no_process_is_refused(value):
    with pytest.raises(Invalid):
        ProcessId.from_json(value)
