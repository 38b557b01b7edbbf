"""Delta's own checkpoints of a log: durable before anything names them; a torn one is done without."""

import logging
import os

import pytest
from deltalake import DeltaTable

from tests.kit.delta import KV, head, log_file, made, rows_of, staged, stamp, table_at
from tests.kit.delta import kv as rows
from tests.kit.sinks import Published
from tidegate.delta import append, create, open_table
from tidegate.delta.log.checkpoints import find_torn_files
from tidegate.delta.log.snapshot import _cache
from tidegate.errors import Corrupt

CHECKPOINT = "_delta_log/00000000000000000002.checkpoint.parquet"
HINT = "_delta_log/_last_checkpoint"


def five_versions(folder, every="3"):
    """A table whose third version has a checkpoint of the log."""
    location = table_at(folder)
    properties = {"delta.checkpointInterval": every}
    create(location, KV, staged(location, "first", rows((1, "row"))), stamp(1), properties=properties)
    for id in range(2, 6):
        append(head(location), staged(location, f"next-{id}", rows((id, "row"))), stamp(id))
    return location


ROWS = [(id, "row") for id in range(1, 6)]


def test_a_checkpoint_of_the_log_is_durable_before_anything_names_it(tmp_path, monkeypatch):
    synced = []
    hint, real = table_at(tmp_path).local(HINT), os.fsync

    def fsync(fd):
        synced.append((os.fstat(fd).st_ino, hint.exists()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    location = five_versions(tmp_path)
    inode = os.stat(location.local(CHECKPOINT)).st_ino
    folder = os.stat(location.local("_delta_log")).st_ino
    file = synced.index((inode, False))
    assert (folder, False) in synced[file:], "its name too"
    named = next(place for place, each in enumerate(synced) if each[0] == os.stat(hint).st_ino)
    assert (folder, True) in synced[named:]
    assert DeltaTable(location.url).version() == 4
    assert rows_of(location) == ROWS


def test_the_checkpoint_is_what_the_log_says(tmp_path):
    location = five_versions(tmp_path)
    for version in range(3):
        log_file(location, version).unlink()  # as its owner's clean-up may
    assert rows_of(location) == ROWS
    assert head(location).txn("tidegate/u1/s") == 5
    assert not [path for path, _ in location.walk("_delta_log") if path.endswith(".tmp")]


def test_a_checkpoint_that_cannot_be_made_fails_no_commit_and_is_made_with_the_next(tmp_path, monkeypatch, caplog):
    from tidegate.delta.log import checkpoints as log_checkpoints

    real = os.replace
    monkeypatch.setattr(log_checkpoints.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "full")))
    location = five_versions(tmp_path)
    assert "its log's checkpoint at version 2 failed" in caplog.text
    assert rows_of(location) == ROWS
    monkeypatch.setattr(log_checkpoints.os, "replace", real)
    append(head(location), [], stamp(6))
    assert location.size("_delta_log/00000000000000000005.checkpoint.parquet")
    assert not [path for path, _ in location.walk("_delta_log") if path.endswith(".tmp")]


TORN = {
    "empty": lambda path: path.write_bytes(b""),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:1000]),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", TORN)
def test_a_torn_checkpoint_of_the_log_is_done_without_if_the_commits_have_every_row(tmp_path, caplog, how):
    location = five_versions(tmp_path)
    TORN[how](location.local(CHECKPOINT))
    _cache.clear()  # as in a new process
    with caplog.at_level(logging.WARNING):
        assert rows_of(location) == ROWS
    assert "_last_checkpoint" in caplog.text
    assert location.url in caplog.text
    assert location.size(CHECKPOINT) is None
    assert location.size(HINT) is None
    assert location.url in caplog.text
    files = ["_delta_log/torn-_last_checkpoint"]
    files = [CHECKPOINT.replace("/", "/torn-"), *files] if how != "gone" else files
    assert find_torn_files(location) == files, "whoever looks later is told of it"
    assert DeltaTable(location.url).version() == 4
    assert append(head(location), [], stamp(6)) is not None
    assert location.size("_delta_log/00000000000000000005.checkpoint.parquet"), "the next commit makes another one"
    assert rows_of(location) == ROWS
    assert find_torn_files(location) == [], "from there on it is of no interest any more"


def test_an_older_checkpoint_that_is_whole_stands_in_for_commits_that_are_gone(tmp_path):
    location = five_versions(tmp_path)
    append(head(location), [], stamp(6))
    for version in range(3):
        log_file(location, version).unlink()
    newer = location.local("_delta_log/00000000000000000005.checkpoint.parquet")
    newer.write_bytes(newer.read_bytes()[:1000])
    _cache.clear()
    assert rows_of(location) == ROWS
    assert not newer.exists()
    assert location.size(CHECKPOINT)


@pytest.mark.parametrize("gone", [0, 1, 3])
def test_without_every_commit_nothing_is_removed_and_the_file_is_named(tmp_path, gone):
    location = five_versions(tmp_path)
    torn = location.local(CHECKPOINT)
    torn.write_bytes(torn.read_bytes()[:1000])
    log_file(location, gone).unlink()
    _cache.clear()
    with pytest.raises(Corrupt) as refused:
        open_table(location)
    assert refused.value.reason == "LOG_BROKEN"
    assert CHECKPOINT in str(refused.value)
    assert "restore" in str(refused.value)
    assert torn.exists()
    assert location.size(HINT)


def test_a_torn_commit_behind_a_torn_checkpoint_is_told_and_nothing_is_removed(tmp_path):
    location = five_versions(tmp_path)
    location.local(CHECKPOINT).write_bytes(b"PAR1")
    commit = log_file(location, 1)
    commit.write_bytes(commit.read_bytes()[:50])
    _cache.clear()
    with pytest.raises(Corrupt):
        open_table(location)
    assert location.size(CHECKPOINT) == 4


def test_publishing_continues_after_a_power_loss_tore_the_checkpoint_of_the_log(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    world.checkpoint(2)
    DeltaTable(world.location.url).create_checkpoint()
    torn = world.location.local("_delta_log/00000000000000000001.checkpoint.parquet")
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    _cache.clear()
    world.checkpoint(3)
    assert world.rows() == [(1, "row 1"), (2, "row 2"), (3, "row 3")]


def test_a_table_without_any_checkpoint_is_left_as_it_is(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    log_file(location, 0).write_bytes(b"{")
    _cache.clear()
    with pytest.raises(Corrupt) as refused:
        open_table(location)
    assert refused.value.reason == "LOG_TORN"
