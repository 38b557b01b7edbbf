"""The embedded Connect server, with a real JVM: shared, private, and replaced whatever happens to it.

The tests share one home, and each begins with whatever server the one before has left: none may mind.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.sampling import in_turn, only_with_all, some_of
from tests.kit.waiting import eventually
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.spark.server import client as connect_client
from tidegate.spark.server import server as connect_server
from tidegate.spark.server.folder import ServerFolder
from tidegate.spark.server.processes import identify, is_alive
from tidegate.spark.session import SparkSettings, session, translated

pytestmark = in_turn(seconds=200)


PREAMBLE = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
from tidegate.spark.server.server import acquire
from tidegate.spark.session import SparkSettings, session

given = json.loads(sys.argv[1])
settings = SparkSettings(home=Path(given.pop("home")), **given)
"""

CLIENT = """
print("ready", flush=True)
sys.stdin.readline()
with acquire(settings) as info:
    print(info.pid, info.fresh, flush=True)
    with session(settings) as spark:
        print(spark.range(5).count(), flush=True)
        sys.stdin.readline()
"""

HANGING_JOB = """
begun = Path(sys.argv[2])

def never_ends(batches):
    begun.touch()
    while True:
        __import__("signal").pause()
    yield from batches

with session(settings) as spark:
    spark.range(0, 2, 1, 2).mapInArrow(never_ends, "id long").count()
"""

OWN_STAGE = """
import os
import pyarrow as pa
from own_rates import RATE

def rated(batches):
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rate": [RATE] * batch.num_rows, "pid": [os.getpid()] * batch.num_rows})
"""

USING = """
folder = Path(sys.argv[2])
sys.path.insert(0, str(folder))
from own_stage import rated

with session(replace(settings, python_path=(folder,))) as spark:
    rows = spark.range(0, 4, 1, 2).mapInArrow(rated, "rate long, pid long").collect()
print(json.dumps([sorted({row.rate for row in rows}), sorted({row.pid for row in rows})]))
"""

FORKING = """
with session(settings) as spark:
    assert spark.range(3).count() == 3
    if os.fork() == 0:
        sys.exit()  # leaves the block, as every child does that ends properly
    assert os.wait()[1] == 0
    print(spark.range(3).count())
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("server") / "home"
    yield home
    connect_server.stop(home, force=True)


@pytest.fixture
def settings(home) -> SparkSettings:
    conf = {
        "spark.hadoop.fs.s3a.secret.key": "canary-4711",
        # When the job of a killed client ends: seven minutes is Spark's default, one ours.
        "spark.connect.execute.reattachable.senderMaxStreamDuration": "1s",
        "spark.connect.execute.manager.detachedTimeout": "2s",
        "spark.connect.execute.manager.maintenanceInterval": "1s",
    }
    return SparkSettings(home=home, master="local[2]", memory="1g", answer_timeout=10, conf=conf)


def script(text: str, settings: SparkSettings, *arguments: object) -> list[str]:
    """The command line of a process that has the same settings."""
    given = {name: getattr(settings, name) for name in ("master", "memory", "answer_timeout")}
    given |= {"home": str(settings.home), "conf": dict(settings.conf)}
    return [sys.executable, "-c", PREAMBLE + text, json.dumps(given), *map(str, arguments)]


@contextlib.contextmanager
def client(settings: SparkSettings):
    process = subprocess.Popen(script(CLIENT, settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def go_on(process) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_that_start_at_once_share_one(settings, home):
    with client(settings) as one, client(settings) as other:
        go_on(one)
        go_on(other)
        (pid, fresh), (other_pid, other_fresh) = one.stdout.readline().split(), other.stdout.readline().split()
        assert pid == other_pid
        assert {fresh, other_fresh} == {"True", "False"}
        assert one.stdout.readline() == other.stdout.readline() == "5\n"
        [info] = connect_server.status(home)
        assert set(info.used_by) == {one.pid, other.pid}
        # One dies without a word: its lease is gone, the other's session is not.
        one.kill()
        one.wait()
        assert [info.used_by for info in connect_server.status(home)] == [(other.pid,)]
        go_on(other)
        assert other.wait(20) == 0
    assert [info.used_by for info in connect_server.status(home)] == [()]


def test_a_running_server_costs_nothing_to_find(settings):
    assert not connect_server.start(settings).fresh
    with session(settings) as spark:
        assert spark.range(3).count() == 3
        assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_delta_round_trip_and_a_folder_without_markers(settings, tmp_path):
    with session(settings) as spark:
        spark.range(100).write.format("delta").save(str(tmp_path / "table"))
        assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 100
        spark.range(10).coalesce(1).write.parquet(str(tmp_path / "staged"))
    assert [name[:10] for name in os.listdir(tmp_path / "staged") if not name.endswith(".crc")] == ["part-00000"]


def test_a_spare_is_warm_and_takes_over_at_once(settings, home, monkeypatch):
    """Its token and its folder are the ones that clients know; sessions of the dead one are lost, as ever."""
    monkeypatch.setattr(connect_server, "SPARE_AFTER", 0.0)
    settings = replace(settings, spare=True)
    with session(settings) as lost:
        assert lost.range(3).count() == 3
        info = connect_server.start(settings)
        ready = eventually("a spare", lambda: spare_of(home, info), timeout=300)
        os.kill(info.pid, signal.SIGKILL)
        eventually("it has gone", lambda: spare_of(home, info) is None)
        with session(settings) as spark:
            assert spark.range(4).mapInArrow(lambda batches: batches, "id long").count() == 4
        with pytest.raises(Unavailable), translated():
            lost.range(3).count()
    again = connect_server.start(settings)
    assert (again.pid, again.fresh, again.watchdog_pid) == (ready, False, info.watchdog_pid)
    connect_server.stop(home, force=True)
    assert not any(is_alive(process) for process in map(identify, (info.watchdog_pid, ready)) if process)


def spare_of(home, info):
    for each in connect_server.status(home):
        if each.key == info.key and each.pid == info.pid:
            return each.spare_pid
    return None


def test_sessions_have_keys_of_their_own(settings):
    other = replace(settings, conf={"spark.sql.shuffle.partitions": "7"})
    with session(settings) as spark, session(other) as beside:
        assert beside.conf.get("spark.sql.shuffle.partitions") == "7"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    wrong = replace(settings, conf={"spark.sql.shuffle.partitions": "many"})
    with pytest.raises(Invalid, match="INVALID_CONF_VALUE"), session(wrong):
        pass


def test_python_workers_are_there_for_the_next_session_and_none_is_left_for_each(settings):
    """With Spark's own server class each session has workers of its own, whose parent lives as long as the server."""

    def workers_parent(batches):
        import os

        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"id": [os.getppid()] * batch.num_rows})

    parents = set()
    for _ in range(3):
        with session(settings) as spark:
            rows = spark.range(0, 4, 1, 2).mapInArrow(workers_parent, "id long").collect()
            parents |= {row.id for row in rows}
    assert len(parents) == 1


def test_changed_modules_of_the_user_count_at_once_in_workers_that_are_warm(settings, tmp_path):
    """Workers have them imported. Both modules: the one that a function is in, and one that it imports."""
    own = replace(settings, python_path=(tmp_path,))
    (tmp_path / "own_stage.py").write_text(OWN_STAGE)
    told = []
    for rate in (1, 2, 3):
        (tmp_path / "own_rates.py").write_text(f"RATE = {rate}\n")
        found = subprocess.run(script(USING, own, tmp_path), capture_output=True, text=True, timeout=120, check=True)
        told.append(json.loads(found.stdout))
    connect_server.stop(own.home, force=True)
    assert [rates for rates, _ in told] == [[1], [2], [3]]
    assert len({worker for _, workers in told for worker in workers}) <= 2, "the workers were warm"


def test_functions_are_connects_while_a_session_is_open(settings):
    from pyspark.sql.utils import is_remote

    assert not is_remote()
    with session(settings):
        with session(settings):
            assert is_remote()
        assert is_remote()
    assert not is_remote()


def test_no_token_no_answer(settings):
    info = connect_server.start(settings)
    assert (Path(info.log).parent / "token").read_text() == info.token
    for token in ("", "wrong", info.token[:-1], info.token + "0"):
        with pytest.raises(TidegateError) as caught:
            connect_client.check_answers(connect_client.loopback(info.port, token), 10)
        assert caught.value.reason == "SPARK_TOKEN"
    connect_client.check_answers(connect_client.loopback(info.port, info.token), 10)
    # pyspark's own way to say it, which a remote server's URL takes.
    url = f"sc://localhost:{info.port}/;token={info.token}"
    with session(replace(settings, remote=url, conf={"spark.sql.shuffle.partitions": "3"})) as spark:
        assert spark.conf.get("mapreduce.fileoutputcommitter.marksuccessfuljobs") == "false"
        assert spark.range(4).count() == 4
    with pytest.raises(Invalid, match="refuses the token"), session(replace(settings, remote=url[:-1], conf={})):
        pass


def listening(pid: int) -> set[str]:
    """The addresses on which a process listens, in /proc's hexadecimal."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].rpartition(":")[0])
    return found


def test_only_loopback_is_listened_on(settings):
    with connect_server.acquire(settings) as info, session(settings) as spark:
        spark.range(10).mapInArrow(lambda batches: batches, "id long").count()
        addresses = listening(info.pid)
    assert addresses
    assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F"}


@contextlib.contextmanager
def job_running(settings: SparkSettings, tmp_path: Path):
    """A job that has begun and does not end by itself; yields what it will have raised, and its thread."""
    begun = tmp_path / "begun"
    raised: list[BaseException] = []

    def never_ends(batches):
        import signal

        begun.touch()
        signal.pause()
        yield from batches

    def work():
        try:
            with session(settings) as spark, translated():
                spark.range(0, 1, 1, 1).mapInArrow(never_ends, "id long").count()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    eventually("the job has begun", begun.exists)
    yield raised, thread


@pytest.mark.parametrize("number", some_of([signal.SIGSTOP, signal.SIGKILL], 2), ids=lambda number: number.name)
def test_a_server_that_dies_or_hangs_in_a_job_is_replaced(settings, tmp_path, number):
    with job_running(settings, tmp_path) as (raised, thread):
        [info] = connect_server.status(settings.home)
        server = identify(info.pid)
        os.kill(info.pid, number)
        thread.join(120)
        assert not thread.is_alive()
        assert [type(error) for error in raised] == [Unavailable]
        assert raised[0].reason == "SPARK_LOST"
        eventually("the server has gone", lambda: not is_alive(server))
    with session(settings) as spark:
        assert spark.range(3).count() == 3
    [after] = connect_server.status(settings.home)
    assert after.pid != info.pid


def test_a_server_that_hangs_before_it_is_used_is_replaced(settings):
    """The watchdog would take five times as long: it is the client that finds out."""
    first = connect_server.start(settings)
    os.kill(first.pid, signal.SIGSTOP)
    assert connect_server.start(replace(settings, answer_timeout=2)).fresh
    [after] = connect_server.status(settings.home)
    assert after.pid != first.pid


@only_with_all
def test_the_job_of_a_killed_client_gives_its_cores_back(settings, tmp_path):
    child = subprocess.Popen(script(HANGING_JOB, settings, tmp_path / "begun"))
    try:
        eventually("the job has begun", (tmp_path / "begun").exists)
    finally:
        child.kill()
        child.wait()
    with session(settings) as spark:
        assert spark.range(3).count() == 3


def test_a_forked_child_leaves_its_parents_session_alone(settings):
    said = subprocess.run(script(FORKING, settings), capture_output=True, text=True, timeout=120)
    assert (said.stdout, said.returncode) == ("3\n", 0), said.stderr


def test_the_token_and_passwords_are_in_private_files_only(settings, home):
    with connect_server.acquire(settings) as info:
        seen = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
        assert str(info.log.parent) in seen
        for word in (info.token, "canary-4711"):
            assert word not in seen
            assert word not in info.log.read_text()
            assert word not in (info.log.parent / "server.json").read_text()
            assert word not in (info.log.parent / "launch.json").read_text()
        assert "canary-4711" in ServerFolder(info.log.parent).places[0].properties_file.read_text()
    connect_server.stop(home)
    assert "token" not in os.listdir(info.log.parent)
    assert "spark.properties" not in os.listdir(info.log.parent)


def test_a_changed_configuration_is_another_server_and_an_idle_one_goes_away(settings):
    first = connect_server.start(settings)
    server = identify(first.pid)
    changed = replace(settings, conf={"spark.driver.maxResultSize": "512m"}, idle_timeout=1)
    with session(changed) as spark:
        assert spark.range(3).count() == 3
        eventually("the first server has gone", lambda: not is_alive(server))
        [second] = connect_server.status(settings.home)
        assert second.key != first.key
        server = identify(second.pid)
    eventually("the second server has gone as well", lambda: not is_alive(server))
    assert "had no client for 1 s" in eventually("its log", lambda: _ended(second.log))
    assert connect_server.status(settings.home) == []


def _ended(log: Path) -> str:
    text = log.read_text()
    return text if "tidegate: the server" in text else ""


def test_what_spark_refuses_at_its_start_is_told(settings):
    with pytest.raises(Invalid, match="The Spark server did not start") as caught:
        connect_server.start(replace(settings, conf={"spark.driver.extraJavaOptions": "-XX:NoSuchOption=1g -Xmx1g"}))
    assert "server.log" in caught.value.help


def test_a_server_elsewhere_that_does_not_answer(settings):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"sc://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(Unavailable), session(replace(settings, remote=url, conf={}, answer_timeout=0.5)):
            pass
    with pytest.raises(Unavailable), session(replace(settings, remote=url, conf={}, answer_timeout=5)):
        pass


def test_its_workers_are_reached_through_sockets_in_its_folder(settings, home):
    """Over TCP each task of a worker waits for an acknowledgement, 40 ms."""

    def same(batches):
        yield from batches

    with session(settings) as spark:
        assert spark.range(5).mapInArrow(same, "id long").count() == 5
        sockets = [path for path in home.glob("*/scratch/.*.sock") if path.is_socket()]
    assert sockets
    assert all(path.parent.stat().st_mode & 0o077 == 0 for path in sockets), "others may not enter"
