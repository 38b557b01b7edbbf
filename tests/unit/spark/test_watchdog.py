"""The watchdog, with a fake server: when it ends the server, and that neither outlives the other."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.waiting import eventually
from tidegate import seams
from tidegate.errors import Invalid, Unavailable
from tidegate.spark.server import server as connect_server
from tidegate.spark.server import watchdog as connect_watchdog
from tidegate.spark.server.folder import Launch, ServerFolder, ServerState
from tidegate.spark.server.locks import try_lock
from tidegate.spark.server.processes import identify, is_alive, kill

pytestmark = pytest.mark.slow  # starts processes and waits for them

FAKE = Path(__file__).with_name("fake_server.py")
ANSWER_S = 2.0
"""Of servers that hang. On a busy machine one that is well may need half of it."""


def test_an_idle_server_goes_away_and_leaves_its_log_only(servers):
    with servers.used(idle_timeout=0.2) as info:
        folder, server = servers.folder(info), servers.server(info)
    eventually("the server has gone", lambda: not is_alive(server))
    eventually("the watchdog has gone", lambda: try_lock(folder.watch_lock))
    assert "had no client for 0.2 s" in folder.log.read_text()
    left = {path.name for path in folder.path.iterdir()}
    assert left == {"launch.json", "lease.lock", "server.log", "start.lock", "watch.lock"}


def test_a_client_keeps_it(servers):
    with servers.used(idle_timeout=0.3) as used:
        # Two others come and go one after the other: more than the time that the first would have had.
        for memory in ("1g", "3g"):
            with servers.used(idle_timeout=0.3, memory=memory) as info:
                other = servers.server(info)
            eventually("an unused server has gone", lambda server=other: not is_alive(server))
        server = servers.server(used)
        assert is_alive(server)
    eventually("the server has gone", lambda: not is_alive(server))


def a_state():
    me = identify(os.getpid())
    return ServerState(1, me, me, "now")


def test_a_client_that_came_and_went_between_two_looks_counts(tmp_path, monkeypatch):
    """In this process, on a clock of its own."""
    folder = ServerFolder(tmp_path)
    folder.lease_lock.touch()
    folder.log.touch()
    clock = [0.0]

    def sleep(seconds):
        before, clock[0] = clock[0], clock[0] + seconds
        if before < 7 <= clock[0]:
            os.utime(folder.lease_lock, (7, 7))

    class Server:
        def poll(self):
            return None

    monkeypatch.setattr(connect_watchdog, "answers", lambda port, timeout: True)
    launch = Launch((), idle_timeout=10, answer_timeout=30, start_timeout=1)
    with seams.installed(seams.Seams(monotonic=lambda: clock[0], sleep=sleep)):
        reason = connect_watchdog._watch(folder, Server(), a_state(), launch)
    assert reason == "had no client for 10 s"
    assert 17 <= clock[0] <= 18


def test_one_late_answer_is_no_reason(tmp_path, monkeypatch):
    """The machine was asleep, or another process had it all: the server gets three chances."""
    folder = ServerFolder(tmp_path)
    folder.lease_lock.touch()
    folder.log.touch()
    clock = [0.0]
    asked = []

    def sleep(seconds):
        clock[0] += seconds

    def answers(port, timeout):
        asked.append(clock[0])
        clock[0] += 100.0 if len(asked) == 1 else timeout
        return 1 < len(asked) < 5

    class Server:
        def poll(self):
            return None

    monkeypatch.setattr(connect_watchdog, "answers", answers)
    launch = Launch((), idle_timeout=1e6, answer_timeout=30, start_timeout=1)
    with seams.installed(seams.Seams(monotonic=lambda: clock[0], sleep=sleep)):
        reason = connect_watchdog._watch(folder, Server(), a_state(), launch)
    assert reason.startswith("did not answer for")
    assert len(asked) == 7


def test_a_server_that_does_not_answer_is_killed(servers):
    info = servers.start(answer_timeout=ANSWER_S)
    server = servers.server(info)
    kill(server, signal.SIGSTOP)
    eventually("the server has gone", lambda: not is_alive(server))
    eventually("the watchdog says why", lambda: "did not answer for" in info.log.read_text())


def test_a_server_that_is_not_what_it_says_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        assert not connect_watchdog.answers(port, 0.1)
    assert not connect_watchdog.answers(port, 0.1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_spare_takes_over_from_a_server_that_dies_or_hangs_and_gets_a_spare_of_its_own(servers, monkeypatch, how):
    monkeypatch.setattr(connect_server, "SPARE_AFTER", 0.0)
    info = servers.start(spare=True, answer_timeout=ANSWER_S)
    folder, server = servers.folder(info), servers.server(info)

    def said(count):
        return len(re.findall("listens at", info.log.read_text())) >= count

    eventually("the spare listens", lambda: said(2))
    assert folder.places[1].scratch.is_dir()
    kill(server, how)
    eventually("another one runs", lambda: folder.state() and folder.state().server != server)
    assert not is_alive(server)
    again = servers.start(spare=True, answer_timeout=ANSWER_S)
    assert (again.fresh, again.watchdog_pid, again.key) == (False, info.watchdog_pid, info.key)
    assert again.pid != info.pid
    assert again.port != info.port
    eventually("it has a spare, too", lambda: said(3))
    connect_server.stop(servers.home, force=True)
    left = {path.name for path in folder.path.iterdir()}
    assert left == {"launch.json", "lease.lock", "server.log", "start.lock", "watch.lock"}


def test_a_server_that_hangs_is_killed_at_once_though_its_spare_is_not_ready(servers, monkeypatch):
    """Its clients would wait for it all the while."""
    monkeypatch.setattr(connect_server, "SPARE_AFTER", 0.0)
    commands = {True: servers.command(None), False: (sys.executable, str(FAKE), "slow")}
    monkeypatch.setattr(connect_server, "command", lambda place: commands[place.path.name != "spare"])
    info = servers.start(spare=True, answer_timeout=ANSWER_S)
    folder, server = servers.folder(info), servers.server(info)
    eventually("the spare starts", lambda: "loading classes" in info.log.read_text())
    kill(server, signal.SIGSTOP)
    eventually("the server has gone", lambda: not is_alive(server))
    assert folder.state().server == server, "nothing has taken over yet"
    (folder.places[1].scratch / "go").touch()
    eventually("the spare has taken over", lambda: folder.state().server != server)


def test_on_a_cluster_there_is_no_spare_that_holds_executors(servers):
    here, there = servers.start(spare=True), servers.start(spare=True, master="spark://127.0.0.1:7077")
    assert [len(servers.folder(info).launch().commands) for info in (here, there)] == [2, 1]


def test_a_server_that_is_stopped_is_not_followed_by_its_spare(servers, monkeypatch):
    monkeypatch.setattr(connect_server, "SPARE_AFTER", 0.0)
    info = servers.start(spare=True)
    eventually("the spare listens", lambda: len(re.findall("listens at", info.log.read_text())) == 2)
    folder = servers.folder(info)
    folder.state_file.unlink()
    eventually("the watchdog has gone", lambda: try_lock(folder.watch_lock)).release()
    assert "takes over" not in info.log.read_text()
    assert folder.state() is None


def test_a_spare_that_does_not_start_is_tried_again(servers, monkeypatch):
    monkeypatch.setattr(connect_server, "SPARE_AFTER", 0.0)
    info = servers.start(spare=True)
    folder = servers.folder(info)
    eventually("the spare listens", lambda: len(re.findall("listens at", info.log.read_text())) == 2)
    found = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (info.pid, info.watchdog_pid)]
    inside = [pid for pid in found if _works_in(pid, folder.places[1].scratch)]
    os.kill(inside[0], signal.SIGKILL)
    eventually("another spare listens", lambda: len(re.findall("listens at", info.log.read_text())) == 3)
    assert servers.start(spare=True).pid == info.pid


def _works_in(pid, folder):
    try:
        return os.readlink(f"/proc/{pid}/cwd") == str(folder)
    except OSError:
        return False


@pytest.mark.parametrize("how", ["removed", "broken", "foreign", "folder"])
def test_without_its_state_file_the_server_ends(servers, how):
    info = servers.start()
    folder, server = servers.folder(info), servers.server(info)
    if how == "removed":
        folder.state_file.unlink()
    elif how == "folder":
        shutil.rmtree(servers.home)
    else:
        folder.state_file.write_text("{" if how == "broken" else "{}")
    eventually("the server has gone", lambda: not is_alive(server))


def test_a_server_that_does_not_end_when_told_is_killed(tmp_path):
    server = subprocess.Popen([sys.executable, FAKE, "stubborn"], stderr=subprocess.PIPE)
    assert b"listens" in server.stderr.readline()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        connect_watchdog._end(ServerFolder(tmp_path), server, 0.05)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        server.stderr.close()
    assert server.poll() == -signal.SIGKILL


def test_neither_outlives_the_other(servers):
    info = servers.start()
    server, watchdog = servers.server(info), identify(info.watchdog_pid)
    kill(watchdog, signal.SIGKILL)
    eventually("the server has gone", lambda: not is_alive(server))
    info = servers.start()
    server, watchdog = servers.server(info), identify(info.watchdog_pid)
    kill(server, signal.SIGKILL)
    eventually("the watchdog has gone", lambda: not is_alive(watchdog))
    assert "ended on its own with -9" in info.log.read_text()


def test_the_watchdog_is_no_child_of_ours_and_in_no_group_of_ours(servers):
    info = servers.start()
    assert os.getsid(info.watchdog_pid) != os.getsid(0)
    assert os.getpgid(info.watchdog_pid) != os.getpgid(0)
    with pytest.raises(ChildProcessError):
        os.waitpid(info.watchdog_pid, os.WNOHANG)


def test_why_a_server_did_not_start(servers):
    servers.how = "failing"
    with pytest.raises(Invalid, match="did not start: java.lang.IllegalArgumentException: no such thing") as caught:
        servers.start()
    assert "server.log" in caught.value.help
    servers.how = "ok"
    assert servers.start().fresh


def test_a_server_that_never_gets_ready_is_given_up(servers, monkeypatch):
    monkeypatch.setattr(connect_server, "command", lambda folder: ("sleep", "600"))
    monkeypatch.setattr(connect_server, "STARTS", 0.05)  # given up after a second, while who asked for it still waits
    with pytest.raises(Unavailable) as caught:
        servers.start()
    assert caught.value.reason == "SPARK_START"
    assert re.search("did not start: .*it was not ready within 1 s, or ended before", caught.value.what)
