"""What an upsert writes anew is durable before the commit that names it."""

import os

import pytest

from tests.kit.upserts import Upserted
from tidegate.delta import read_commit
from tidegate.delta.log.files import log_path
from tidegate.sinks import DeltaUpsert


@pytest.fixture(params=["order_by", "the later checkpoint"])
def world(request, tmp_path):
    world = Upserted(tmp_path)
    if request.param != "order_by":
        world.sink = DeltaUpsert("table", keys=["k"])
    return world


def test_rewritten_files_are_synced_before_the_log_names_them(world, monkeypatch):
    world.publish(([(1, 1, "a"), (2, 1, "a"), (3, 1, "a")], []))
    commit, synced, real = world.location.local(log_path(1)), [], os.fsync

    def fsync(fd):
        if not commit.exists():
            synced.append(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    # The second batch takes a key of the first, and a key of the table; an older row loses against it.
    world.publish(([(2, 2, "b"), (4, 2, "b"), (5, 0, "b")], []), ([(4, 3, "c"), (5, 1, "c")], [(1, 5, "gone")]))
    found = read_commit(world.location, 1)
    staged = {path for path in found.added_paths() if "/attempt-" in path}
    rewritten = found.added_paths() - staged
    assert rewritten, "the table's own file has lost rows"
    assert any("kept" in path for path in rewritten)
    for path in rewritten:
        assert os.stat(world.location.local(path)).st_ino in synced, path
        assert os.stat(world.location.local(path).parent).st_ino in synced, "its name, too"
