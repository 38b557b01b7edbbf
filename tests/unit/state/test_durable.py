"""A state's files are on the disk before an ack names them: after a power loss it would name what is not there."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.toy_world import ToyWorld
from tidegate.delta import Location, Syncing, WrittenFile
from tidegate.delta.files import access as files
from tidegate.errors import Unavailable
from tidegate.execution.job.exchange import Exchange
from tidegate.execution.job.operators import OperatorRunner
from tidegate.execution.job.run_job import run_job
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP
from tidegate.state.keyed import KeyedState, StateFolder

FIELDS = {GROUP: "integer", CHECKPOINT: "long", DELETED: "boolean", "k": "long"}
SCHEMA: Any = {
    "type": "struct",
    "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in FIELDS.items()],
}


def written(folder: Path) -> KeyedState:
    """A state to which a worker has written one file, which is being made durable."""
    state = KeyedState(None, "aggregate 'a'", None, StateFolder(Location(str(folder)), "a1", 1), ["k"], 8)  # type: ignore[arg-type]
    rows = {GROUP: pa.array([1], pa.int32()), CHECKPOINT: [1], DELETED: [False], "k": [7]}
    (folder / "a1/put-1").mkdir(parents=True)
    file = folder / "a1/put-1/part.parquet"
    pq.write_table(pa.table(rows), file)
    state._added += state._stage_files("a1/put-1", SCHEMA, {"part.parquet": WrittenFile(1, file.stat().st_size)})
    state._columns = SCHEMA
    return state


def test_what_cannot_be_made_durable_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "_fsync", broken)
    state = written(tmp_path)
    with pytest.raises(Unavailable, match="Input/output error"):
        state.finish()


def test_the_state_is_told_once_its_files_and_their_folders_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, disk, done = files._fsync, threading.Event(), []

    def slow(path: Path) -> None:
        assert disk.wait(60)
        fsync(path)
        done.append(path)

    monkeypatch.setattr(files, "_fsync", slow)
    state = written(tmp_path)
    assert done == []
    threading.Timer(0.05, disk.set).start()
    table = state.finish()
    assert table is not None
    assert [each.file.path for each in table.files] == ["a1/put-1/part.parquet"]
    assert {tmp_path / "a1/put-1/part.parquet", tmp_path / "a1/put-1", tmp_path / "a1", tmp_path} <= {*done}


def test_what_is_sent_to_other_jobs_is_durable_as_well(tmp_path: Path) -> None:
    syncing = Syncing(Location(str(tmp_path)))
    syncing(["not/there.parquet"])
    sender: Any = SimpleNamespace(syncing=[syncing], _unsettled={})
    with pytest.raises(Unavailable, match="No such file"):
        Exchange.finish(sender)


@pytest.mark.parametrize("part", [OperatorRunner, Exchange])
def test_there_is_no_ack_before_all_is_durable(tmp_path: Path, part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = ToyWorld(tmp_path)
    world.feed_more(1)
    id = world.trigger("run")

    def broken(*_: object) -> None:
        raise Unavailable("the disk does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(part, "finish", broken)
        with pytest.raises(Unavailable, match="the disk does not answer"):
            run_job(world.coordinator(), id, "main", None)  # type: ignore[arg-type]
        assert world.ledger.ack(id, "main") is None
    assert run_job(world.coordinator(), id, "main", None)  # type: ignore[arg-type]
