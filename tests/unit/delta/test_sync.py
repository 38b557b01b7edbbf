"""Files that are made durable beside other work: nothing is said to be durable before it is."""

import errno
import os
import threading

import pytest

from tests.kit.delta import table_at
from tidegate import seams
from tidegate.delta import Syncing, overlapping_seconds
from tidegate.errors import Unavailable


@pytest.fixture
def location(tmp_path):
    for name in "abc":
        path = tmp_path / "table" / name / "1.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"rows")
    return table_at(tmp_path)


def test_what_is_finished_is_on_the_disk_each_file_and_the_folders_above(location, monkeypatch):
    durable, fsync = set(), os.fsync

    def noted(fd):
        fsync(fd)
        durable.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    syncing = Syncing(location)
    syncing(["a/1.parquet", "b/1.parquet"])
    syncing(["c/1.parquet"])
    syncing.finish()
    wanted = [f"{name}{file}" for name in "abc" for file in ("", "/1.parquet")]
    assert {os.stat(location.full(path)).st_ino for path in wanted} <= durable


def test_a_disk_that_refuses_is_met_when_it_counts_and_hides_behind_nothing_that_went_well(location, monkeypatch):
    lost, fsync = os.stat(location.full("a/1.parquet")).st_ino, os.fsync

    def refused(fd):
        if os.fstat(fd).st_ino == lost:
            raise OSError(errno.EIO, "Input/output error")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", refused)
    syncing = Syncing(location)
    for name in "abc":
        syncing([f"{name}/1.parquet"])
    syncing.wait()  # says nothing of it: whoever leaves has given the attempt up
    with pytest.raises(Unavailable, match="Input/output error"):
        syncing.finish()


def test_nothing_to_make_durable_is_durable(location):
    syncing = Syncing(location)
    syncing.finish()
    syncing.wait()


def test_what_it_takes_beside_other_work_is_told_apart_from_what_is_waited_for(location, monkeypatch):
    """Sixty seconds of other work; then the disk needs ten more."""
    clock, nothing_else_to_do = [100.0], threading.Event()

    def monotonic():
        if clock[0] == 160.0:
            nothing_else_to_do.set()
        return clock[0]

    def slowly(paths):
        assert nothing_else_to_do.wait(30)
        clock[0] = 170.0

    monkeypatch.setattr(location.__class__, "sync", lambda self, paths: slowly(paths))
    with seams.installed(seams.Seams(monotonic=monotonic)):
        syncing, idle = Syncing(location), Syncing(location)
        syncing(["a/1.parquet"])
        clock[0] = 160.0
        for each in (syncing, idle):
            each.finish()
        assert (syncing.waited, syncing.span) == (10.0, (100.0, 170.0))
        assert (idle.waited, idle.span) == (0.0, None)
    later = Syncing(location)
    later.span = (150.0, 180.0)
    assert overlapping_seconds([syncing, idle, later]) == 80.0
    assert overlapping_seconds([idle]) == 0.0
