"""Commits: exactly the next version, or nothing; and whatever is not as it was written is noticed."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tests.kit.delta import (
    KV,
    actions,
    appended,
    by_foreigner,
    head,
    kv,
    log_file,
    made,
    rows_of,
    schema,
    staged,
    stamp,
    table_at,
)
from tidegate import seams
from tidegate.delta import (
    Location,
    add_columns,
    append,
    create,
    data_files,
    find_commit,
    live_files,
    open_table,
    overwrite,
    owner_of,
    refuse_owner,
    refuse_unsafe,
    replace,
    restore,
    verify,
)
from tidegate.delta.files.access import error_text
from tidegate.delta.log import active_files, commits
from tidegate.delta.log import files as rawlog
from tidegate.delta.log import snapshot as snapshots
from tidegate.delta.log.files import list_log, read_commit
from tidegate.errors import Corrupt, Invalid, Unavailable


def test_a_table_is_made_as_version_0_with_its_rows_and_both_transactions(tmp_path):
    location = table_at(tmp_path)
    done = create(location, KV, staged(location, "first", kv((1, "a"))), stamp(7))
    assert done is not None
    assert done.version == 0
    table = head(location)
    assert table.txn("tidegate/u1/s") == 7
    assert table.txn(owner_of("p", "s", "u1")[0]) == owner_of("p", "s", "u1")[1]
    assert rows_of(location) == [(1, "a")]


def test_a_table_that_is_made_while_it_is_looked_for_is_not_taken_for_half_a_log(tmp_path, monkeypatch):
    """delta-rs has found nothing; when we look what there is, somebody has made it."""
    location = table_at(tmp_path)

    def made_meanwhile(location: Location) -> bool:
        create(location, KV, [], stamp(1))
        return rawlog.has_log(location)

    monkeypatch.setattr(snapshots, "has_log", made_meanwhile)
    table = open_table(location)
    assert table is not None
    assert table.version == 0


def test_a_log_without_its_beginning_is_refused_and_one_that_is_being_made_is_none(tmp_path):
    location = table_at(tmp_path)
    unfinished = location.local("_delta_log/_commit_1.json.tmp")
    unfinished.parent.mkdir(parents=True)
    unfinished.touch()
    assert open_table(location) is None
    location.local("_delta_log/00000000000000000007.crc").touch()
    with pytest.raises(Corrupt, match="no readable table") as refused:
        open_table(location)
    assert refused.value.reason == "LOG_BROKEN"


def test_the_history_shows_who_committed(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    info = next(action["commitInfo"] for action in actions(location, 0) if "commitInfo" in action)
    assert info["tidegate.pipeline"] == "p"
    assert info["tidegate.checkpoint"] == 1
    assert info["tidegate.attempt"] == "attempt-1"
    assert info["tidegate.generation"] == 0


def test_of_many_creators_at_once_exactly_one_wins(tmp_path):
    location = table_at(tmp_path)
    files = staged(location, "first", kv((1, "a")))
    start, outcomes = threading.Barrier(6), []

    def make(number: int) -> None:
        start.wait()
        outcomes.append(create(location, KV, files, stamp(number, attempt=f"racer-{number}")))

    racers = [threading.Thread(target=make, args=(number,)) for number in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len([done for done in outcomes if done is not None]) == 1
    assert rows_of(location) == [(1, "a")]


def test_a_commit_on_an_old_version_is_lost_and_changes_nothing(tmp_path):
    location = table_at(tmp_path)
    old = made(location, (1, "a"))
    appended(location, 2, (2, "b"))
    assert append(old, staged(location, "late", kv((3, "c"))), stamp(3)) is None
    assert rows_of(location) == [(1, "a"), (2, "b")]
    assert head(location).txn("tidegate/u1/s") == 2


def test_our_own_commit_is_recognised_when_it_is_tried_again_on_the_old_version(tmp_path):
    location = table_at(tmp_path)
    old = made(location, (1, "a"))
    files = staged(location, "next", kv((2, "b")))
    first = append(old, files, stamp(2))
    assert append(old, files, stamp(2)) == first
    assert rows_of(location) == [(1, "a"), (2, "b")]


def test_a_commit_that_landed_though_an_error_was_reported_is_a_success(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    real = Location.put_new

    def lands_then_fails(self: Location, path: str, data: bytes) -> str:
        real(self, path, data)
        raise OSError("connection reset")

    monkeypatch.setattr(Location, "put_new", lands_then_fails)
    done = append(table, staged(location, "next", kv((2, "b"))), stamp(2))
    assert done is not None
    assert done.version == 1
    assert rows_of(location) == [(1, "a"), (2, "b")]


def failing(error: Exception) -> Any:
    """Return a method that raises this error."""

    def fails(self: object, *args: Any, **kwargs: Any) -> None:
        raise error

    return fails


def test_a_commit_that_did_not_land_and_was_not_raced_is_unavailable(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    monkeypatch.setattr(Location, "put_new", failing(OSError("no route")))
    with pytest.raises(Unavailable, match="commit 1 to .* failed"):
        append(table, [], stamp(2))


@pytest.mark.parametrize("error", [OSError("no route"), CommitFailedError("odd")])
def test_a_commit_by_delta_rs_that_did_not_land_is_unavailable_too(tmp_path, monkeypatch, error):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing(error))
    with pytest.raises(Unavailable, match="commit 1 to .* failed"):
        overwrite(table, table.schema, [], stamp(2))


def test_a_reported_success_that_is_not_in_the_log_is_not_believed(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    monkeypatch.setattr(Location, "put_new", lambda *args: "")
    with pytest.raises(Unavailable, match="not in the log"):
        append(table, [], stamp(2))


def test_after_a_commit_the_next_look_at_the_table_opens_nothing(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    files = staged(location, "next", kv((2, "b")))
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "handle", failing(AssertionError("it was opened")))
        assert append(table, files, stamp(2)) is not None
        assert (head(location).version, head(location).txn("tidegate/u1/s")) == (1, 2)
    assert rows_of(location) == [(1, "a"), (2, "b")]
    by_foreigner(location)
    assert head(location).version == 2, "what others commit is seen all the same"


@pytest.mark.parametrize("seed", range(6))
def test_which_files_a_table_has_is_known_through_whatever_is_committed(tmp_path, monkeypatch, seed):
    """After our own commits without opening it; with others' commits between them as the table says."""
    location, chance = table_at(tmp_path), random.Random(seed)
    made(location, (1, "a"))
    for id in range(2, 16):
        table = head(location)
        known = [*data_files(table).values()]
        files = staged(location, f"part {id} ü", kv(*((id, "b") for _ in range(id))))
        with monkeypatch.context() as patched:
            patched.setattr(snapshots, "handle", failing(AssertionError("it was opened")))
            assert replace(table, files, chance.sample(known, chance.randrange(len(known))), stamp(id)) is not None
            mine = data_files(head(location))
        chance.choice(
            [
                lambda: None,
                lambda: by_foreigner(location, (chance.randrange(16), "other")),
                lambda: DeltaTable(location.url).optimize.compact(),
                lambda id=id: DeltaTable(location.url).delete(f"k = {id}"),
            ]
        )()
        told = {file.path: (file.size, file.rows, file.partition_texts()) for file in live_files(head(location))}
        for files in (mine, data_files(head(location))) if head(location).version == table.version + 1 else ():
            assert {path: (file.size, file.rows, file.values) for path, file in files.items()} == told


def test_of_a_table_with_very_many_files_it_is_not_remembered_which(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshots, "MAX_LISTED_FILES", 2)
    monkeypatch.setattr(active_files, "MAX_LISTED_FILES", 2)
    location = table_at(tmp_path)
    assert len(data_files(made(location, (1, "a")))) == 1
    assert len(data_files(appended(location, 2, (2, "b")))) == 2
    assert not appended(location, 3, (3, "c")).listed
    assert len(data_files(head(location))) == 3
    assert not head(location).listed


@pytest.mark.parametrize("versions", [1, 3, 5])
def test_a_table_that_was_made_anew_meanwhile_gets_no_commit_of_the_one_before(tmp_path, versions):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    for id in (2, 3):
        assert append(table, staged(location, f"part{id}", kv((id, "b"))), stamp(id)) is not None
        table = head(location)
    files = staged(location, "late", kv((9, "z")))
    location.remove_folder("_delta_log")
    for version in range(versions):
        by_foreigner(location, (version, "other"))
    assert append(table, files, stamp(4)) is None
    assert {file.version for file in list_log(location)} == set(range(versions))
    assert head(location).table_id != table.table_id
    assert sorted(rows_of(location)) == [(version, "other") for version in range(versions)]


def test_a_commit_that_comes_onto_a_table_made_anew_is_not_remembered_as_one_of_the_table_before(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    put_new = Location.put_new

    def comes_late(self: Location, path: str, data: bytes) -> str | None:
        location.remove_folder("_delta_log")
        by_foreigner(location, (7, "other"))
        return put_new(self, path, data)

    monkeypatch.setattr(Location, "put_new", comes_late)
    assert append(table, [], stamp(2)) is not None
    assert head(location).version == 1
    assert head(location).table_id != table.table_id


def test_what_a_dead_writer_has_left_beside_the_log_is_removed_with_its_next_checkpoint(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    first = staged(location, "first", kv((1, "a")))
    assert create(location, KV, first, stamp(1), properties={"delta.checkpointInterval": "3"}) is not None
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda *args, **kwargs: None)
        assert append(head(location), staged(location, "next", kv((2, "b"))), stamp(2)) is not None
    left = [path for path, _ in location.walk("_delta_log") if path.endswith(".tmp")]
    assert len(left) == 1
    for id in range(3, 8):
        assert append(head(location), staged(location, f"part{id}", kv((id, "b"))), stamp(id)) is not None
    assert [path for path, _ in location.walk("_delta_log") if path.endswith(".tmp")] == []
    assert len(rows_of(location)) == 7


def test_a_commit_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    done: list[str] = []
    sync, link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append("synced"), sync(fd)))
    monkeypatch.setattr(os, "link", lambda *names: (done.append("linked"), link(*names)))
    assert append(table, [], stamp(2)) is not None
    assert done[:2] == ["synced", "linked"]


def test_disks_without_hard_links_are_left_to_delta_rs_if_it_is_told_to_rename(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    renaming = Location(location.url, {"allow_unsafe_rename": "true"})
    monkeypatch.setattr(os, "link", failing(OSError("no links here")))
    assert append(head(renaming), staged(location, "next", kv((2, "b"))), stamp(2)) is not None
    assert sorted(rows_of(location)) == [(1, "a"), (2, "b")]


def test_a_commit_that_cannot_be_put_whole_is_not_there_at_all(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", failing(OSError("disk full")))
        with pytest.raises(Unavailable, match="commit 1 to .* failed"):
            append(table, [], stamp(2))
    assert [path for path, _ in location.walk("_delta_log") if not path.endswith(".json")] == []
    assert head(location).version == 0
    assert append(table, [], stamp(2)) is not None


def test_a_commit_is_durable_before_it_is_reported(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))[1])
    append(table, [], stamp(2))
    assert str(log_file(location, 1)) in synced
    assert str(log_file(location, 1).parent) in synced


def test_staged_files_are_durable_before_they_are_named(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))[1])
    files = staged(location, "a/b", kv((1, "a")))
    for path in [location.full(files[0].path), location.full("a/b"), location.full("a"), location.url]:
        assert path in synced


def test_an_empty_commit_is_a_fence(tmp_path):
    location = table_at(tmp_path)
    old = made(location, (1, "a"))
    assert replace(old, [], [], stamp(2)) is not None
    assert append(old, [], stamp(3)) is None
    assert head(location).txn("tidegate/u1/s") == 2


def test_columns_are_added_once_and_without_looking_like_a_publication(tmp_path):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    new = schema(extra="date")["fields"]
    done = add_columns(table, new, _before(stamp(2)))
    assert done is not None
    assert head(location).txn("tidegate/u1/s") == 1
    assert [field["name"] for field in head(location).schema["fields"]] == ["k", "v", "extra"]
    assert add_columns(table, new, _before(stamp(3))) is None
    assert rows_of(location) == [(1, "a", None)]


def test_nothing_is_there_before_the_first_commit(tmp_path):
    assert open_table(table_at(tmp_path)) is None
    (tmp_path / "table").mkdir()
    assert open_table(table_at(tmp_path)) is None


def test_a_log_folder_without_a_readable_table_is_corrupt_never_a_fresh_table(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    appended(location, 2)
    log_file(location, 0).unlink()
    with pytest.raises(Corrupt):
        open_table(location)


# Scenario 4 of docs/reliability.md: power loss leaves a zero-length head, which both engines read as an empty version.
def test_scenario_4_a_zero_length_head_is_corrupt(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    appended(location, 2, (2, "b"))
    log_file(location, 1).write_bytes(b"")
    assert DeltaTable(location.url).version() == 1  # delta-rs sees no harm in it
    with pytest.raises(Corrupt, match="version 1 is empty"):
        open_table(location)


def test_scenario_4_an_empty_version_below_the_head_is_corrupt_too(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    appended(location, 2, (2, "b"))
    appended(location, 3, (3, "c"))
    log_file(location, 1).write_bytes(b"")
    with pytest.raises(Corrupt, match="version 1 is empty"):
        open_table(location)


@pytest.mark.parametrize("left", [1, 100, -2])
def test_scenario_4_a_torn_head_is_corrupt_and_named(tmp_path, left):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    appended(location, 2, (2, "b"))
    whole = log_file(location, 1).read_bytes()
    log_file(location, 1).write_bytes(whole[:left])
    with pytest.raises(Corrupt, match="version 1"):
        open_table(location)


def test_a_commit_on_an_empty_version_never_happens(tmp_path):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    log_file(location, 1).write_bytes(b"")  # somebody else's commit, torn by a power loss
    with pytest.raises(Corrupt):
        append(table, [], stamp(2))


# Scenario 5: dropped and made again, or a version overwritten, under the same number.
def test_scenario_5_a_recreated_table_is_caught_by_version_and_log_hash(tmp_path):
    location = table_at(tmp_path)
    published = made(location, (1, "a"))
    verify(location, 0, published.log_hash)
    shutil.rmtree(location.url)
    made(location, (1, "a"))
    with pytest.raises(Corrupt, match="version 0 is not the one"):
        verify(location, 0, published.log_hash)


def test_scenario_5_an_overwritten_version_is_caught(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    published = appended(location, 2, (2, "b"))
    text = log_file(location, 1).read_text()
    log_file(location, 1).write_text(text.replace("attempt-2", "attempt-3"))
    with pytest.raises(Corrupt, match="log hash"):
        verify(location, 1, published.log_hash)


def test_scenario_5_a_table_that_went_back_is_caught(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    published = appended(location, 2, (2, "b"))
    log_file(location, 1).unlink()
    with pytest.raises(Corrupt, match="it no longer exists"):
        verify(location, 1, published.log_hash)
    with pytest.raises(Corrupt, match="version 1 is gone"):
        open_table(location, 1)


def test_a_version_whose_commit_file_was_cleaned_up_is_no_damage(tmp_path):
    location = table_at(tmp_path)
    published = made(location, (1, "a"))
    for id in range(2, 6):
        appended(location, id)
    DeltaTable(location.url).create_checkpoint()
    log_file(location, 0).unlink()
    verify(location, 0, published.log_hash)
    assert rows_of(location) == [(1, "a")]


def test_a_publication_is_found_in_the_history(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"), id=3)
    by_foreigner(location, (9, "z"))
    appended(location, 5, (2, "b"))
    table = head(location)
    found = find_commit(table, "tidegate/u1/s", 5)
    assert found is not None
    assert found.version == 2
    first = find_commit(table, "tidegate/u1/s", 3)
    assert first is not None
    assert first.version == 0
    assert find_commit(table, "tidegate/u1/s", 4) is None
    assert find_commit(table, "tidegate/u1/other", 5) is None


def test_in_a_long_history_a_publication_is_found_with_few_reads(tmp_path, monkeypatch):
    location = table_at(tmp_path)
    made(location, (1, "a"), id=2)
    versions = {2: 0}
    for id in range(4, 100, 2):
        if id % 10 == 0:
            by_foreigner(location, (id, "z"))
        versions[id] = append(head(location), [], stamp(id)).version
    reads = []
    for module in (commits, snapshots):
        monkeypatch.setattr(module, "read_commit", lambda *asked: reads.append(asked) or read_commit(*asked))
    for id in range(1, 102):
        snapshots._cache.clear()
        table = head(location)
        reads.clear()
        found = find_commit(table, "tidegate/u1/s", id)
        assert (found.version if found else None) == versions.get(id)
        assert len(reads) <= 10, f"{len(reads)} of {table.version + 1} commits"
    reads.clear()
    assert [find_commit(table, "tidegate/u1/s", id).version for id in versions] == list(versions.values())
    assert len(reads) <= table.version + 1 + len(versions), (
        "one snapshot reads each commit once, and what is found again"
    )
    reads.clear()
    assert find_commit(table, "tidegate/u1/other", 5) is None
    assert not reads, "the table itself says that there is none"
    for version in range(40):
        log_file(location, version).unlink()
    there = [id for id in range(1, 102) if find_commit(table, "tidegate/u1/s", id)]
    assert there == [id for id, version in versions.items() if version >= 40]


def test_names_that_are_prefixes_of_one_another_do_not_see_each_other(tmp_path):
    location = table_at(tmp_path)
    create(location, KV, [], stamp(10, uid="u", sink="a"))
    table = head(location)
    assert table.txn("tidegate/u/a") == 10
    assert table.txn("tidegate/u/a1") is None
    assert table.txn("tidegate/u1/a") is None


# Scenario 23: a pipeline whose root was wiped, against the same targets.
def test_scenario_23_another_uid_of_the_same_pipeline_is_refused_with_both_named(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    refuse_owner(head(location), "p", "s", "u1")
    refuse_owner(head(location), "q", "s", "u2")  # another pipeline may write here, too
    with pytest.raises(Invalid, match="OTHER_OWNER|take_over") as refused:
        refuse_owner(head(location), "p", "s", "u2")
    shown = str(refused.value)
    assert f"{owner_of('p', 's', 'u1')[1]:016x}" in shown
    assert f"{owner_of('p', 's', 'u2')[1]:016x}" in shown


def test_an_owner_is_a_number_that_delta_can_hold():
    app_id, number = owner_of("p", "s", "0123456789abcdef")
    assert app_id == "tidegate-owner/p/s"
    assert 0 <= number < 2**62
    assert number != owner_of("p", "s", "0123456789abcdee")[1]


def test_paths_are_raw_however_odd(tmp_path):
    location = Location(str(tmp_path / "tä ble #1 ?=+&'\""))
    folder = "a b=%2F é#?&+=x"
    assert create(location, KV, staged(location, folder, kv((1, "a"))), stamp(1)) is not None
    assert rows_of(location) == [(1, "a")]
    table = head(location)
    assert replace(table, staged(location, f"{folder}2", kv((2, "b"))), _files(table), stamp(2)) is not None
    assert rows_of(location) == [(2, "b")]


@pytest.mark.slow
def test_a_hundred_commits_make_a_checkpoint_of_the_log_and_continue(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    for id in range(2, 104):
        append(head(location), [], stamp(id))
    assert (location.local("_delta_log/_last_checkpoint")).exists()
    assert head(location).txn("tidegate/u1/s") == 103
    assert rows_of(location) == [(1, "a")]


@pytest.mark.slow
def test_log_files_are_never_cleaned_up_by_a_commit(tmp_path):
    location = table_at(tmp_path)
    create(location, KV, [], stamp(1), properties={"delta.logRetentionDuration": "interval 1 hours"})
    old = log_file(location, 0).stat()
    os.utime(log_file(location, 0), (old.st_atime - 10**6, old.st_mtime - 10**6))
    for id in range(2, 104):
        append(head(location), [], stamp(id))
    assert log_file(location, 0).exists()


def test_a_feature_that_delta_rs_does_not_know_is_invalid_not_a_lost_race(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    lines = actions(location, 0)
    for action in lines:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}
    log_file(location, 0).write_text("\n".join(json.dumps(action) for action in lines) + "\n")
    with pytest.raises(Invalid):
        append(head(location), [], stamp(2))


def test_a_crash_on_either_side_of_the_commit_leaves_all_or_nothing(tmp_path):
    location = table_at(tmp_path)
    table = made(location, (1, "a"))
    files = staged(location, "next", kv((2, "b")))

    class Crash(BaseException):
        pass

    for point, after in (("S10.publish.before", [(1, "a")]), ("S10.publish.after", [(1, "a"), (2, "b")])):

        def stop(at: str, point: str = point) -> None:
            if at == point:
                raise Crash

        with seams.installed(seams.Seams(fault=stop)), pytest.raises(Crash):
            append(table, files, stamp(2))
        assert rows_of(location) == after
    assert append(table, files, stamp(2)) is not None
    assert rows_of(location) == [(1, "a"), (2, "b")]


def _before(made_by: Any) -> Any:
    import dataclasses

    return dataclasses.replace(made_by, publishes=False)


def _files(table: Any) -> Any:
    from tidegate.delta import live_files

    return live_files(table)


def test_storage_that_fails_is_unavailable(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    location = Location(str(blocked / "table"))
    with pytest.raises(Unavailable):
        create(location, KV, [], stamp(1))


def test_an_engines_error_is_told_in_one_line_without_colours():
    raw = (
        "Kernel error -> Generic S3 error\n   \x1b[31m↳\x1b[0m Error performing GET\n   0: <unknown>\n   1: <unknown>\n"
    )
    assert error_text(OSError(raw)) == "Kernel error -> Generic S3 error : Error performing GET"


def test_every_commit_says_its_checkpoint_where_the_history_of_each_engine_shows_it(tmp_path):
    """DESCRIBE HISTORY of Spark shows the user's metadata and none of our tags; delta-rs shows both."""
    location = table_at(tmp_path)
    assert create(location, KV, staged(location, "one", kv((1, "a"))), stamp(1)) is not None
    assert append(head(location), staged(location, "two", kv((2, "b"))), stamp(2)) is not None
    assert replace(head(location), [], live_files(head(location)), stamp(3)) is not None
    more = [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]
    assert add_columns(head(location), more, stamp(4)) is not None
    assert restore(head(location), 0, stamp(5)) is not None
    history = DeltaTable(location.url).history()
    told = [json.loads(entry["userMetadata"]) for entry in history]
    assert [each["tidegate.checkpoint"] for each in told] == [5, 4, 3, 2, 1]
    assert {(each["tidegate.pipeline"], each["tidegate.generation"]) for each in told} == {("p", 0)}


def test_a_table_that_a_catalog_manages_is_refused_and_not_called_damaged(tmp_path):
    """Corrupt would suspend the pipeline, and the advice would be to restore a log that is whole."""
    location = table_at(tmp_path)
    assert create(location, KV, staged(location, "one", kv((1, "a"))), stamp(1)) is not None
    for feature in ("catalogManaged", "catalogOwned-preview"):
        named = {"readerFeatures": [feature], "writerFeatures": [feature]}
        action = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **named}}
        location.local(f"_delta_log/{1:020d}.json").write_text(json.dumps(action) + "\n")
        with pytest.raises(Invalid, match="is managed by a catalog") as refused:
            refuse_unsafe(head(location), rewrites=False)
        assert refused.value.reason == "CATALOG_TABLE"
