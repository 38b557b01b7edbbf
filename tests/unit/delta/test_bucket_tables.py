"""Tables in a bucket: few requests, and never another answer than from the table's log itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.kit.delta import appended, by_foreigner, head, kv, made, rows_of, schema, staged, stamp
from tests.kit.s3 import BUCKET, S3Server, s3
from tidegate.delta import (
    Location,
    StagedFile,
    add_columns,
    append,
    create,
    live_files,
    missing_files,
    observed_tables,
    open_table,
    read_commit,
    replace,
    trust_hint,
)
from tidegate.delta.log import snapshot as snapshots
from tidegate.delta.log.files import list_log
from tidegate.errors import Corrupt, Unavailable

NUMBERS = count(1)
ODD = "".join(map(chr, range(32, 127))).replace("/", "").replace("\\", "") + "äß€"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3() as server:
        yield server


@pytest.fixture
def table(server: S3Server) -> Location:
    return Location(f"s3://{BUCKET}/table-{next(NUMBERS)}", server.options)


def as_in_a_new_process() -> None:
    snapshots._cache.clear()


def actions(location: Location, version: int) -> list[dict[str, Any]]:
    commit = read_commit(location, version)
    assert commit is not None
    return commit.actions()


def wipe(server: S3Server, table: Location) -> None:
    table.remove_folder("")


# -- commits ---------------------------------------------------------------------------------------------------


def test_a_commit_is_one_request_and_so_is_the_next_look(server: S3Server, table: Location) -> None:
    made(table, (1, "a"))
    files = staged(table, "next", kv((2, "b")))
    with server.asked() as requests:
        before = head(table)
        assert append(before, files, stamp(2)) is not None
        after = head(table)
    assert [request.split()[0] for request in requests] == ["GET", "PUT", "GET"]
    assert (after.version, after.txn(stamp(2).app_id)) == (1, 2)
    assert rows_of(table) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("partition", ["plain", None, ODD])
def test_the_commit_says_what_delta_rs_would_say(table: Location, partition: str | None) -> None:
    """Readers, and commits that remove the file again, must find the very same words."""
    columns = schema(k="long", p="string")
    first = StagedFile(path="p=x/a.parquet", size=5, rows=1, partition={"p": "x"}, stats='{"numRecords":1}')
    second = StagedFile(path=f"p={ODD}/b.parquet", size=7, rows=2, partition={"p": partition}, stats='{"numRecords":2}')
    assert create(table, columns, [first], stamp(1), partition_by=["p"]) is not None
    assert append(head(table), [second], stamp(2)) is not None
    ours = actions(table, 1)
    theirs_at = Location(f"{table.url}-by-delta-rs", dict(table.options) | {"aws_s3_locking_provider": "none"})
    assert create(theirs_at, columns, [first, second], stamp(1), partition_by=["p"]) is not None
    (added,) = (action["add"] for action in ours if "add" in action)
    (expected,) = (action["add"] for action in actions(theirs_at, 0) if action.get("add", {}).get("size") == 7)
    meant = {name: value for name, value in expected.items() if value is not None} | {"modificationTime": 0}
    assert added | {"modificationTime": 0} == meant
    found = {(file.path, file.size, file.rows, file.partition["p"]) for file in live_files(head(table))}
    assert found == {("p=x/a.parquet", 5, 1, "x"), (second.path, 7, 2, partition)}
    assert replace(head(table), [], live_files(head(table)), stamp(3)) is not None
    as_in_a_new_process()
    assert live_files(head(table)) == []


def test_of_two_publishers_on_one_version_one_wins(table: Location) -> None:
    made(table, (1, "a"))
    before = head(table)
    files = staged(table, "both", kv((2, "b")))
    assert append(before, files, stamp(2)) is not None
    assert append(before, files, stamp(3)) is None
    assert append(before, files, stamp(2)) is not None, "its own commit is known again"
    assert head(table).txn(stamp(2).app_id) == 2
    assert rows_of(table) == [(1, "a"), (2, "b")]


def test_a_commit_whose_answer_is_lost_is_looked_up(table: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    made(table, (1, "a"))
    put = Location.put_new

    def lost(self: Location, path: str, data: bytes) -> str | None:
        put(self, path, data)
        raise OSError("connection reset")

    monkeypatch.setattr(Location, "put_new", lost)
    done = append(head(table), staged(table, "next", kv((2, "b"))), stamp(2))
    assert done is not None
    assert done.version == 1
    monkeypatch.setattr(Location, "put_new", lambda *_: (_ for _ in ()).throw(OSError("no route")))
    with pytest.raises(Unavailable, match="no route"):
        append(head(table), staged(table, "third", kv((3, "c"))), stamp(3))
    assert rows_of(table) == [(1, "a"), (2, "b")]


def test_the_log_gets_a_checkpoint_of_its_own_every_twenty_commits(table: Location) -> None:
    made(table, (0, "a"))
    for id in range(2, 24):
        appended(table, id, (id, "b"))
    assert [file.version for file in list_log(table) if file.kind == "checkpoint"] == [20]
    as_in_a_new_process()
    assert head(table).since == 20
    assert len(rows_of(table)) == 23


# -- looks -----------------------------------------------------------------------------------------------------


def test_commits_of_others_are_followed(table: Location) -> None:
    appended_once = made(table, (1, "a"))
    by_foreigner(table, (2, "b"))
    by_foreigner(table, (3, "c"))
    assert (appended_once.version, head(table).version) == (0, 2)
    assert head(table).txn(stamp(1).app_id) == 1
    assert rows_of(table) == [(1, "a"), (2, "b"), (3, "c")]


def test_a_new_column_is_seen(table: Location) -> None:
    made(table, (1, "a"))
    other = snapshots.handle(table, None)
    assert head(table).version == 0
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    other.alter.add_columns([Field("more", PrimitiveType("string"))])
    assert [field["name"] for field in head(table).schema["fields"]] == ["k", "v", "more"]
    assert add_columns(head(table), schema(most="long")["fields"], stamp(2)) is not None
    assert [field["name"] for field in head(table).schema["fields"]] == ["k", "v", "more", "most"]


def test_a_table_that_was_made_again_with_as_many_versions_is_another_one(server: S3Server, table: Location) -> None:
    made(table, (1, "a"))
    before = appended(table, 2, (2, "b"))
    known = observed_tables(table)
    assert known is not None
    wipe(server, table)
    as_in_a_new_process()
    made(table, (8, "x"))
    appended(table, 2, (9, "y"))
    as_in_a_new_process()
    trust_hint(table, known)
    after = head(table)
    assert after.version == before.version
    assert after.table_id != before.table_id
    unopened = dataclasses.replace(before, opened=[])
    with pytest.raises(Corrupt, match="created again"):
        live_files(unopened)


def test_a_table_that_is_gone_or_went_back_is_seen(server: S3Server, table: Location) -> None:
    made(table, (1, "a"))
    appended(table, 2, (2, "b"))
    table.remove_files([f"_delta_log/{1:020d}.json"])
    assert head(table).version == 0
    wipe(server, table)
    assert open_table(table) is None


def test_a_listing_that_lags_costs_a_request_and_loses_nothing(
    table: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(table, (1, "a"))
    before = appended(table, 2, (2, "b"))
    monkeypatch.setattr(Location, "tags", lambda *_, **__: {})
    assert head(table) is before
    assert append(before, staged(table, "third", kv((3, "c"))), stamp(3)) is not None
    assert head(table).version == 2
    monkeypatch.undo()
    assert rows_of(table) == [(1, "a"), (2, "b"), (3, "c")]


# -- hints -----------------------------------------------------------------------------------------------------


def test_a_new_process_starts_from_what_another_has_seen(server: S3Server, table: Location) -> None:
    made(table, (1, "a"))
    appended(table, 2, (2, "b"))
    known = observed_tables(table)
    assert known is not None
    as_in_a_new_process()
    trust_hint(table, known)
    with server.asked() as requests:
        assert (head(table).version, head(table).txn(stamp(2).app_id)) == (1, 2)
        assert append(head(table), [], stamp(3)) is not None
    assert [request.split()[0] for request in requests] == ["GET", "GET", "GET", "PUT"]
    assert rows_of(table) == [(1, "a"), (2, "b")]


def test_an_old_hint_is_followed_to_the_head(table: Location) -> None:
    made(table, (1, "a"))
    known = observed_tables(table)
    assert known is not None
    appended(table, 2, (2, "b"))
    as_in_a_new_process()
    trust_hint(table, known)
    assert (head(table).version, head(table).txn(stamp(2).app_id)) == (1, 2)


def test_what_a_process_has_seen_itself_is_not_replaced_by_a_hint(table: Location) -> None:
    made(table, (1, "a"))
    known = observed_tables(table)
    assert known is not None
    after = appended(table, 2, (2, "b"))
    trust_hint(table, known)
    assert observed_tables(table) is not None
    assert head(table) is after


# -- staged files ----------------------------------------------------------------------------------------------


def test_staged_files_are_looked_at_together_and_a_missing_one_is_found(server: S3Server, table: Location) -> None:
    made(table, (1, "a"))
    folder = "tidegate/u1-s/00000002/attempt"
    for n in range(5):
        files = staged(table, folder, kv((n, "b")))
    with server.asked() as requests:
        assert missing_files(table, files) == []
    assert len(requests) == 1
    table.remove_files([files[3].path])
    with table.create(files[4].path) as out:
        out.write(b"another file")
    assert missing_files(table, files) == [files[3].path, files[4].path]


def test_the_log_is_json_lines_as_the_protocol_wants_them(table: Location) -> None:
    made(table, (1, "a"))
    appended(table, 2, (2, "b"))
    commit = read_commit(table, 1)
    assert commit is not None
    kinds = [next(iter(json.loads(line))) for line in commit.data.decode().splitlines()]
    assert kinds == ["commitInfo", "txn", "txn", "add"]
    assert commit.info()["operation"] == "WRITE"
    assert pa.table(DeltaTable(table.url, storage_options=dict(table.options)).to_pyarrow_table()).num_rows == 2
