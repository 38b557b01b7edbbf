import os
import signal
import subprocess
import sys

import pytest

from tests.kit.waiting import eventually
from tidegate.errors import Unavailable
from tidegate.spark.server.locks import lock, try_lock
from tidegate.spark.server.processes import lock_holders


def test_one_at_a_time(tmp_path):
    with lock(tmp_path / "x", timeout=1, purpose="x"):
        assert try_lock(tmp_path / "x") is None
        assert try_lock(tmp_path / "x", shared=True) is None
    again = try_lock(tmp_path / "x")
    assert again is not None
    again.release()
    again.release()


def test_many_share_and_none_is_alone_with_them(tmp_path):
    first = try_lock(tmp_path / "x", shared=True)
    with try_lock(tmp_path / "x", shared=True):
        first.release()
        assert try_lock(tmp_path / "x") is None
    assert try_lock(tmp_path / "x") is not None


def test_waiting_has_an_end_and_says_for_what(tmp_path):
    with (
        lock(tmp_path / "x", timeout=1, purpose="x"),
        pytest.raises(Unavailable, match="Starting Spark has been held by another process"),
    ):
        lock(tmp_path / "x", timeout=0.05, purpose="Starting Spark")


def test_a_lock_on_a_removed_file_is_none(tmp_path):
    held = try_lock(tmp_path / "x")
    (tmp_path / "x").unlink()
    with try_lock(tmp_path / "x") as other:
        assert other is not None
    held.release()


def test_the_holder_is_known_and_its_death_gives_the_lock_up(tmp_path):
    code = (
        "import sys, signal; from pathlib import Path; from tidegate.spark.server.locks import try_lock\n"
        "held = try_lock(Path(sys.argv[1])); print('held', flush=True); signal.pause()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, tmp_path / "x"], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"held\n"
        assert lock_holders(tmp_path / "x") == [child.pid]
        assert try_lock(tmp_path / "x") is None
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    eventually("the lock is free", lambda: try_lock(tmp_path / "x"))


def test_a_forked_child_does_not_hold_what_its_parent_held(tmp_path):
    held = try_lock(tmp_path / "x")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        # The child's closing its copy has not taken the lock from us, and it does not outlive ours.
        assert try_lock(tmp_path / "x") is None
        held.release()
        eventually("the lock is free, though the child lives", lambda: try_lock(tmp_path / "x"))
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)
