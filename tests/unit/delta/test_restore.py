"""Back to an older version by one more commit."""

from __future__ import annotations

import json

import pytest

from tests.kit.delta import (
    KV,
    actions,
    appended,
    by_foreigner,
    head,
    kv,
    made,
    rows_of,
    schema,
    staged,
    stamp,
    table_at,
)
from tidegate.delta import append, create, foreign_commits, live_files, owner_of, replace, restore, vacuum
from tidegate.errors import Corrupt, Rejected

OURS = {"tidegate/u1/s": None, owner_of("p", "s", "u1")[0]: owner_of("p", "s", "u1")[1]}


def test_rows_are_those_of_the_version_and_ids_continue(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    appended(location, 2, (2, "b"))
    replace(head(location), staged(location, "new", kv((3, "c"))), live_files(head(location)), stamp(3))
    assert rows_of(location) == [(3, "c")]
    done = restore(head(location), 1, stamp(4))
    assert done is not None
    assert done.version == 3
    assert rows_of(location) == [(1, "a"), (2, "b")]
    assert head(location).txn("tidegate/u1/s") == 4
    assert rows_of(location, 2) == [(3, "c")]


def test_a_restore_that_changes_nothing_is_committed_all_the_same(tmp_path):
    location = table_at(tmp_path)
    old = made(location, (1, "a"))
    assert restore(old, 0, stamp(2)) is not None
    assert append(old, staged(location, "zombie", kv((9, "z"))), stamp(3)) is None
    assert rows_of(location) == [(1, "a")]


def test_a_restore_that_lost_its_race_says_so(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    old = appended(location, 2, (2, "b"))
    appended(location, 3, (3, "c"))
    assert restore(old, 0, stamp(4)) is None
    assert len(rows_of(location)) == 3


def test_statistics_and_partitions_survive(tmp_path):
    location = table_at(tmp_path)
    columns = schema(k="long", v="string", p="timestamp")
    files = staged(location, "a/p=-1", kv((1, "a"), (None, "é" * 40)), columns, ("p",))
    create(location, columns, files, stamp(1), partition_by=["p"])
    replace(head(location), [], live_files(head(location)), stamp(2))
    assert restore(head(location), 0, stamp(3)) is not None
    before = next(action["add"] for action in actions(location, 0) if "add" in action)
    after = next(action["add"] for action in actions(location, 2) if "add" in action)
    assert after["path"] == before["path"]
    assert after["partitionValues"] == before["partitionValues"] == {"p": "1969-12-31T23:59:59.999999Z"}
    assert json.loads(after["stats"]) == json.loads(before["stats"])


def test_foreign_commits_are_named_and_refused_unless_told(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    appended(location, 2, (2, "b"))
    by_foreigner(location, (9, "z"))
    assert [(each.version, each.operation) for each in foreign_commits(head(location), 0, OURS)] == [(2, "WRITE")]
    with pytest.raises(Rejected, match="2 \\(WRITE\\)"):
        restore(head(location), 0, stamp(3))
    assert len(rows_of(location)) == 3
    assert restore(head(location), 0, stamp(3), discard_foreign=True) is not None
    assert rows_of(location) == [(1, "a")]


def test_another_pipelines_commit_is_foreign(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    append(head(location), staged(location, "theirs", kv((2, "b"))), stamp(9, uid="u2", pipeline="q"))
    assert len(foreign_commits(head(location), 0, OURS)) == 1


def test_files_that_are_gone_are_named_and_nothing_is_committed(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    replace(head(location), [], live_files(head(location)), stamp(2))
    location.remove_folder("first-1")
    with pytest.raises(Corrupt, match="first-1"):
        restore(head(location), 0, stamp(3))
    assert head(location).version == 1


def test_vacuum_spares_kept_versions_and_everything_that_is_staged(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    for id in (2, 3):
        files = staged(location, f"next-{id}", kv((id, "x")))
        replace(head(location), files, live_files(head(location)), stamp(id))
    waiting = staged(location, "waiting", kv((9, "z")), KV)
    dropped = vacuum(location, keep=[1], dry_run=False)
    assert [path.split("/")[0] for path in dropped] == ["first-1"]
    assert location.size(waiting[0].path) is not None
    assert rows_of(location, 1) == [(2, "x")]
    assert rows_of(location) == [(3, "x")]


def test_vacuum_and_optimize_are_no_foreign_rows(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    replace(head(location), staged(location, "new", kv((3, "c"))), live_files(head(location)), stamp(2))
    appended(location, 3, (4, "d"))
    from deltalake import DeltaTable

    DeltaTable(location.url).optimize.compact()
    assert vacuum(location, keep=[2], dry_run=False) != []
    assert head(location).version > 3
    assert foreign_commits(head(location), 1, OURS) == []
    assert restore(head(location), 2, stamp(4)) is not None
    assert rows_of(location) == [(3, "c"), (4, "d")]
