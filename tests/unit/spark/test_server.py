"""Starting, sharing and stopping servers, with a fake one: who may do what, and what is left of the dead."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.kit.waiting import eventually
from tidegate import seams
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.spark.server import server as connect_server
from tidegate.spark.server.folder import ServerFolder, private_folder
from tidegate.spark.server.processes import is_alive
from tidegate.spark.server.server import identity

pytestmark = pytest.mark.slow  # starts processes and waits for them


def test_the_second_one_finds_the_first_ones_server(servers):
    first = servers.start()
    second = servers.start()
    assert first.fresh
    assert not second.fresh
    assert replace(first, fresh=False) == second
    assert connect_server.status(servers.home) == [replace(second, token="", used_by=())]


def test_a_server_is_stopped_once_and_for_all(servers):
    server = servers.server(servers.start())
    assert [info.pid for info in connect_server.stop(servers.home)] == [server.pid]
    assert not is_alive(server)
    assert connect_server.stop(servers.home) == []
    assert connect_server.status(servers.home) == []


def test_nothing_is_stopped_where_nothing_was(tmp_path):
    assert connect_server.stop(tmp_path / "none") == []
    assert connect_server.status(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_a_server_in_use_is_stopped_by_force_only(servers):
    with connect_server.acquire(servers.settings) as info:
        assert connect_server.status(servers.home)[0].used_by == (os.getpid(),)
        with pytest.raises(Rejected, match=f"in use \\(process {os.getpid()}\\)"):
            connect_server.stop(servers.home)
        assert connect_server.stop(servers.home, force=True)[0].pid == info.pid


def test_other_settings_mean_another_server_and_the_unused_one_ends(servers):
    first = servers.start()
    server = servers.server(first)
    second = servers.start(memory="1g")
    assert second.key != first.key
    eventually("the first server has gone", lambda: not is_alive(server))
    assert [info.key for info in connect_server.status(servers.home)] == [second.key]


def test_a_used_server_stays_beside_one_with_other_settings(servers):
    with connect_server.acquire(servers.settings) as first:
        second = servers.start(memory="1g")
        assert {info.key for info in connect_server.status(servers.home)} == {first.key, second.key}


def test_what_changes_a_server_and_what_does_not(servers, tmp_path, monkeypatch):
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "extra.jar").write_bytes(b"one")
    settings = replace(servers.settings, conf={"spark.jars": str(jars / "extra.jar")})
    same = [
        replace(settings, idle_timeout=1, answer_timeout=2, start_timeout=3),
        replace(settings, conf={**settings.conf, "spark.sql.shuffle.partitions": "7"}),
    ]
    assert {identity(other) for other in same} == {identity(settings)}
    keys = [identity(settings), identity(servers.settings)]
    keys += [identity(replace(settings, **change)) for change in ({"memory": "1g"}, {"master": "local[1]"})]
    keys.append(identity(replace(settings, python_path=(tmp_path,))))
    (jars / "extra.jar").write_bytes(b"other")
    keys.append(identity(settings))
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    keys.append(identity(settings))
    assert len(set(keys)) == len(keys)
    java.unlink()
    with pytest.raises(Invalid, match="no Java"):
        identity(settings)


def test_a_stale_state_file_kills_nobody(servers):
    folder = servers.folder(servers.start())
    connect_server.stop(servers.home)
    innocent = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        process = {"pid": innocent.pid, "start": "12/another boot"}
        stale = {"format": 1, "port": 1, "started": "x", "server": process, "watchdog": process}
        folder.state_file.write_text(json.dumps(stale))
        folder.watch_lock.write_text(json.dumps(process))
        assert connect_server.status(servers.home) == []
        assert connect_server.stop(servers.home, force=True) == []
        folder.state_file.write_text(json.dumps(stale))
        assert servers.start().fresh
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


@pytest.mark.parametrize("text", ["", '{"format": 2}', "[" * 100_000], ids=["empty", "foreign", "deep"])
def test_a_broken_state_file_is_replaced(servers, text):
    first = servers.start()
    servers.folder(first).state_file.write_text(text)
    second = servers.start()
    assert second.fresh
    assert second.pid != first.pid
    assert len(connect_server.status(servers.home)) == 1


def test_a_server_that_does_not_answer_is_replaced(servers, monkeypatch):
    first = servers.start()
    server = servers.server(first)
    answering = iter([False, True])

    def check(builder, timeout):
        if not next(answering):
            raise Unavailable("no answer")

    monkeypatch.setattr(connect_server, "check_answers", check)
    second = servers.start()
    assert second.fresh
    assert not is_alive(server)


def test_servers_that_never_answer_are_given_up(servers, monkeypatch):
    def check(builder, timeout):
        raise Unavailable("no answer")

    monkeypatch.setattr(connect_server, "check_answers", check)
    with pytest.raises(Unavailable, match="does not answer: no answer") as caught:
        servers.start()
    assert "server.log" in caught.value.help
    assert connect_server.status(servers.home) == []


def test_whoever_starts_a_server_may_die_meanwhile(servers):
    """Its watchdog continues, and the next one waits for that server instead of starting a second."""
    folder = ServerFolder(private_folder(servers.home) / identity(servers.settings))
    private_folder(folder.path)
    connect_server.launch(folder, servers.settings)
    info = servers.start()
    assert not info.fresh


def test_who_tries_again_continues_with_the_server_that_is_still_starting(servers, monkeypatch):
    """On a busy machine each try began from zero, and none came to an end."""
    servers.how = "slow"
    folder = ServerFolder(private_folder(servers.home) / identity(servers.settings))
    monkeypatch.setattr(connect_server, "STARTS", 1000)  # its watchdog has patience
    with pytest.raises(Unavailable) as caught:
        servers.start(start_timeout=0.3)
    assert caught.value.reason == "SPARK_STARTING"
    assert caught.value.of_environment
    assert "within 0.3 s, and is still starting" in caught.value.what
    assert "spark.start_timeout" in caught.value.help
    started = eventually("its watchdog says who it is", folder.watchdog)
    assert is_alive(started)
    eventually("it runs", folder.places[0].scratch.is_dir)
    (folder.places[0].scratch / "go").touch()
    assert servers.start().watchdog_pid == started.pid


def test_a_watchdog_that_hangs_is_not_waited_for(servers):
    servers.how = "slow"
    folder = ServerFolder(private_folder(servers.home) / identity(servers.settings))
    with pytest.raises(Unavailable):
        servers.start(start_timeout=0.3)
    started = eventually("its watchdog says who it is", folder.watchdog)
    os.kill(started.pid, signal.SIGSTOP)
    os.utime(folder.launch_file, (1, 1))  # its time was over long ago
    servers.how = "ok"
    waited = []

    def sleep(seconds):
        waited.append(seconds if waited else 60.0)  # who waits for that watchdog has waited in vain
        time.sleep(seconds)

    with seams.installed(seams.Seams(monotonic=lambda: time.monotonic() + sum(waited[:1]), sleep=sleep)):
        assert servers.start().watchdog_pid != started.pid


def test_only_this_user_sees_anything(servers):
    info = servers.start()
    folder = servers.folder(info)
    for path in (servers.home, folder.path, folder.places[0].scratch):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for path in (folder.token_file, folder.state_file, folder.log, folder.lease_lock, folder.places[0].properties_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert info.token not in repr(info)
    assert info.token not in json.dumps(info.to_json())
    assert len(info.token) == 64


def test_a_home_that_is_somebody_elses_is_refused(servers, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    servers.home.symlink_to(tmp_path / "real")
    with pytest.raises(Invalid, match="not a folder of user"):
        servers.start()
    servers.home.unlink()
    servers.home.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(Invalid, match="not a folder of user 4711"):
        servers.start()


def test_a_home_that_cannot_be_one_is_said_to(servers, monkeypatch):
    servers.home.write_text("a file")
    with pytest.raises(Invalid, match="cannot be used") as caught:
        servers.start()
    assert str(servers.home) in caught.value.help
    servers.home.unlink()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ServerFolder, "write_private", full)
    with pytest.raises(Unavailable, match="No space left on device"):
        servers.start()


def test_a_home_that_others_may_read_is_closed(servers):
    servers.home.mkdir(mode=0o755)
    servers.start()
    assert stat.S_IMODE(servers.home.stat().st_mode) == 0o700


def test_logs_of_the_last_few_servers_are_kept(servers, monkeypatch):
    monkeypatch.setattr(connect_server, "_FOLDERS_KEPT", 1)
    keys = []
    for memory in ("1g", "2g", "3g", "4g"):
        info = servers.start(memory=memory)
        keys.append(info.key)
        connect_server.stop(servers.home)
    assert {path.name for path in servers.home.iterdir()} == set(keys[-2:])


@pytest.mark.parametrize("change", [{"mode": "local"}, {"remote": "sc://elsewhere:15002"}])
def test_only_the_embedded_server_is_ours_to_start(servers, change):
    with pytest.raises(Invalid, match="Only the embedded Spark server"):
        servers.start(**change)
