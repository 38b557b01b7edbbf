"""Spark and tidegate do not see the same disk: nothing is completed, and it is said before anything is read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import jvm
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually
from tests.spark.cluster import Cluster
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate.connectors import prestaged
from tidegate.delta import Location
from tidegate.errors import Invalid, Unavailable
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.spark.server.server import environment
from tidegate.spark.session import SparkSettings, session
from tidegate.spark.storage import same_disk, writing
from tidegate.state.arrow import workers

pytestmark = in_turn(seconds=60)

ROWS = [{"id": number, "v": number % 3} for number in range(40)]


def append(pipeline: Any) -> None:
    sources(pipeline, "id long, v int").sink("out", DeltaAppend("tables/out"))


def upsert(pipeline: Any) -> None:
    sources(pipeline, "id long, v int").sink("out", DeltaUpsert("tables/out", keys=["id"]))


def state(pipeline: Any) -> None:
    counted = sources(pipeline, "id long, v int").aggregate(by="v", uid="by_v", n="count(*)")
    counted.sink("out", DeltaUpsert("tables/out", keys=["v"]))


def jobs(pipeline: Any) -> None:
    rows = sources(pipeline, "id long, v int")
    rows.sink("out", DeltaAppend("tables/out"))
    rows.job("other").sink("too", DeltaAppend("tables/too"))


# -- a Spark that writes elsewhere ---------------------------------------------------------------------------


@pytest.mark.parametrize("build", [append, upsert, state, jobs])
def test_files_that_did_not_come_here_are_no_ack(
    tmp_path: Path, spark: Any, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several tasks wrote to a disk of its own: Spark says success, and the folder holds the rest."""
    write = writing.write_files

    def diverted(frame: Any, schema: Any, location: Location, folder: str, by: Any, **more: Any) -> Any:
        counted = write(frame.repartition(2), schema, location, folder, by, **more)
        written = sorted(location.local(folder).rglob("*.parquet"))
        written[0].unlink()
        return counted

    for module in ("delta.sink.append", "delta.sink.upsert", "channel"):
        monkeypatch.setattr(f"tidegate.connectors.{module}.write_files", diverted)
    monkeypatch.setattr("tidegate.state.keyed.write_files", diverted)
    monkeypatch.setattr(workers, "usable", lambda *_: False)
    play = SmallPipeline(tmp_path, spark, build)
    play.feed(ROWS)
    with pytest.raises(Unavailable, match=r"[\d,]+ rows were written into .*, and the files there hold \d+") as found:
        play.checkpoint()
    assert found.value.reason == "ROWS_MISSING"
    assert play.ledger.ack(1, "main") is None
    assert play.rows("tables/out") == []


def test_what_workers_wrote_elsewhere_is_no_ack(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python workers name their files, and how many rows each has: these must be here."""
    play = SmallPipeline(tmp_path, spark, state)
    play.play([ROWS])
    reported = workers.reported

    def elsewhere(*asked: Any, **how: Any) -> Any:
        lines = reported(*asked, **how)
        for file in (tmp_path / "ledger/play/state/by_v").rglob("00000002/**/*.parquet"):
            file.unlink()
        return lines

    monkeypatch.setattr(workers, "reported", elsewhere)
    play.feed(ROWS)
    with pytest.raises(Unavailable, match="rows were written into .*, and the files there hold 0"):
        play.checkpoint()
    assert play.ledger.ack(2, "main") is None


def test_a_folder_that_is_not_there_after_a_write_is_an_error(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = lambda frame, *_: _Elsewhere(frame, tmp_path / "elsewhere")  # noqa: E731
    monkeypatch.setattr(writing, "with_plain_partition_text", elsewhere)
    with pytest.raises(Unavailable, match="that folder does not exist here"):
        writing.write_files(spark.range(5), {"type": "struct", "fields": []}, Location(str(tmp_path)), "here", ())


class _Elsewhere:
    """A frame whose writer writes to another folder than it is told."""

    def __init__(self, frame: Any, folder: Path) -> None:
        self.frame, self.folder = frame, folder

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.frame, name)
        if name != "parquet":
            return lambda *a, **k: _Elsewhere(found(*a, **k) if callable(found) else found, self.folder)
        return lambda _: found(str(self.folder))

    @property
    def write(self) -> _Elsewhere:
        return _Elsewhere(self.frame.write, self.folder)


FRAMES = {
    "rows": (lambda s: s.range(7), 7),
    "none": (lambda s: s.range(7).where("id < 0"), 0),
    "a limit": (lambda s: s.range(100).limit(7), 7),
    "a limit of none": (lambda s: s.range(100).limit(0), 0),
    "rows that are kept": (lambda s: s.range(9).localCheckpoint(), 9),
    "behind rows that are kept": (lambda s: s.range(9).localCheckpoint().limit(4), 4),
    "groups": (lambda s: s.range(9).groupBy("id").count(), 9),
    "a join with none": (lambda s: s.range(9).join(s.range(9).where("id < 0"), "id"), 0),
    "a union": (lambda s: s.range(3).union(s.range(4)), 7),
    "rows of this process": (lambda s: s.createDataFrame([(1,), (2,)], "id long"), 2),
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("by", [(), ("id",)])
def test_what_is_written_is_counted_as_it_is_written(tmp_path: Path, spark: Any, name: str, by: Any) -> None:
    frame, rows = FRAMES[name]
    assert _written(frame(spark), tmp_path, by) == rows


def test_a_server_counts_as_well(tmp_path: Path, connect_spark: Any) -> None:
    for number, (frame, rows) in enumerate(FRAMES.values()):
        for by in ((), ("id",)):
            assert _written(frame(connect_spark), tmp_path / f"{number}{by}", by) == rows


def _written(frame: Any, folder: Path, by: Any) -> Any:
    frame = frame.selectExpr("id", "id AS v")
    return writing.write_files(frame, json.loads(frame.schema.json()), Location(str(folder)), "out", by)


# -- the question, once per session ----------------------------------------------------------------------------


def test_the_same_disk_is_asked_about_once_and_leaves_nothing_behind(
    tmp_path: Path, connect_spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    ask = same_disk._check_in_one_query
    monkeypatch.setattr(
        same_disk, "_check_in_one_query", lambda s, places: (asked.append(len(places)), ask(s, places))[1]
    )
    play = SmallPipeline(tmp_path, connect_spark, state)
    play.play([ROWS, ROWS])
    assert asked == [3], "the ledger's folder, the state's and the table's, at once"
    assert not list(tmp_path.rglob(".tidegate-*"))
    assert same_disk.is_shared(connect_spark, Location(str(tmp_path / "not there yet")))
    assert not (tmp_path / "not there yet").exists()


def test_a_cluster_is_asked_by_its_tasks(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, as a cluster whose workers all see the folder; then some of what they write does not arrive."""
    monkeypatch.setattr(same_disk, "on_one_machine", lambda _: False)
    monkeypatch.setattr(prestaged, "on_one_machine", lambda _: False)
    whole, half = Location(str(tmp_path / "whole")), Location(str(tmp_path / "half"))
    same_disk.refuse_unshared_disks(spark, [whole])
    below = same_disk.rows_below
    monkeypatch.setattr(same_disk, "rows_below", lambda *a: below(*a) // 2)
    with pytest.raises(Invalid, match=r"of 32 rows that Spark's tasks wrote there, this process sees 16") as found:
        same_disk.refuse_unshared_disks(spark, [whole, half])
    assert found.value.reason == "OTHER_DISK"
    assert list(tmp_path.iterdir()) == []


# -- real parts: a server whose disk is another one ----------------------------------------------------------------


def _can_unshare() -> bool:
    return (
        shutil.which("unshare") is not None and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
    )


@contextlib.contextmanager
def serving(home: Path, hidden: Path) -> Iterator[SparkSettings]:
    """`tidegate spark serve` in a container of its own, so to speak: it has another folder under this path."""
    home.mkdir()
    port, token = _free_port(), "t" * 32
    (home / "token").write_text(token)
    (home / "serve.py").write_text(SERVE.format(home=str(home), port=port, conf=dict(jvm.QUICK)))
    words = [
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount -t tmpfs none "{hidden}" && exec "{sys.executable}" "{home}/serve.py"',
    ]
    with (home / "log").open("wb") as log:
        env = environment(SparkSettings(home=home))
        process = subprocess.Popen(words, stdout=log, stderr=log, env=env, start_new_session=True)
        try:
            eventually("it listens", lambda: "listens at" in (home / "log").read_text(errors="replace"), 240)
            yield SparkSettings(home=home, remote=f"sc://localhost:{port}/;token={token}", answer_timeout=60)
        finally:
            process.terminate()
            process.wait(30)


SERVE = """
from pathlib import Path
from tidegate.spark.server.serve import serve
from tidegate.spark.session import SparkSettings
settings = SparkSettings(home=Path({home!r}), master="local[2]", memory="1g", conf={conf!r})
serve(settings, {port}, Path({home!r}, "token"))
"""


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_server_with_another_disk_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    if not _can_unshare():
        return
    data = tmp_path / "data"
    data.mkdir()
    with serving(tmp_path / "server", data) as settings, session(settings) as spark:
        play = SmallPipeline(data, spark, append)
        play.feed(ROWS)
        with pytest.raises(Invalid) as found:
            play.checkpoint()
        assert found.value.reason == "OTHER_DISK"
        assert str(data / "tables/out") in found.value.what
        assert "same volume" in found.value.help
        assert play.ledger.ack(1, "main") is None
        assert not (data / "tables").exists(), "what was made to ask is gone"
        location = Location(str(data))
        assert not prestaged.can_prestage(spark.range(1), location)
        assert not workers.usable(spark, location), "though its master is local"
        shared = Location(str(tmp_path))
        assert prestaged.can_prestage(spark.range(1), shared)
        assert workers.usable(spark, shared)


# -- real parts: a cluster of which one worker has another disk ------------------------------------------------


class HalfBlind(Cluster):
    """Its second worker has another folder under a path."""

    def __init__(self, home: Path, hidden: Path) -> None:
        super().__init__(home)
        self.unseen = hidden

    def _start(self, name: str, role: str, *arguments: str) -> None:
        start = subprocess.Popen

        def elsewhere(words: list[str], **options: Any) -> Any:
            hide = f'mount -t tmpfs none "{self.unseen}" && exec "$@"'
            return start(["unshare", "-m", "sh", "-c", hide, "sh", *words], **options)

        with pytest.MonkeyPatch.context() as patched:
            if name == "worker-2":
                patched.setattr(subprocess, "Popen", elsewhere)
            super()._start(name, role, *arguments)


DRIVER = """
import sys
import time
from pathlib import Path
from pyspark.sql import SparkSession
from tests.spark.cluster import Cluster
from tests.spark.small_pipeline import SmallPipeline
from tests.spark.test_other_disk import ROWS, append
from tidegate.errors import TidegateError
from tidegate.execution.job import run_job

master, data = sys.argv[1], Path(sys.argv[2])
conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
builder = SparkSession.builder.master(master)
for key, value in conf.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
while len(spark._jsc.sc().statusTracker().getExecutorInfos()) < 3:  # the driver is one
    time.sleep(0.1)
play = SmallPipeline(data, spark, append)
for _ in range(4):
    play.feed(ROWS)
for asks in (True, False):
    if not asks:  # as if the worker had come later
        run_job.refuse_unshared_disks = lambda *_: None
    try:
        play.checkpoint()
    except TidegateError as error:
        print("refused", error.reason, error.what, flush=True)
    assert play.ledger.ack(play.ledger.view().last_id, "main") is None
    play.coordinator().abort(play.ledger.view().last_id, "TEST")
assert play.rows("tables/out") == []
spark.stop()
"""


def test_a_cluster_of_which_one_worker_has_another_disk_completes_nothing(tmp_path: Path) -> None:
    if not _can_unshare():
        return
    data, home = tmp_path / "data", tmp_path / "cluster"
    data.mkdir()
    home.mkdir()
    (data / "tables").mkdir()
    with HalfBlind(home, data / "tables") as cluster:
        env = environment(SparkSettings(home=home)) | jvm.environment() | {"PYTHONPATH": os.pathsep.join(sys.path)}
        words = [sys.executable, "-c", DRIVER, cluster.master, str(data)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=400, check=False)
    told = [line.split(" ", 2)[1] for line in done.stdout.splitlines() if line.startswith("refused")]
    assert told == ["OTHER_DISK", "ROWS_MISSING"], done.stdout + done.stderr[-3000:]
