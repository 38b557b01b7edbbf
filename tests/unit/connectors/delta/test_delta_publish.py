"""Publishing to a Delta table, without Spark: what the table may have become since the rows were staged."""

from __future__ import annotations

import json
import shutil
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.kit.delta import KV, actions, by_foreigner, head, kv, log_file, rows_of, schema
from tests.kit.sinks import Published
from tidegate import seams
from tidegate.connectors.delta.sink import upsert
from tidegate.connectors.sink import Head, Staging
from tidegate.delta import Location
from tidegate.delta.log.files import read_commit
from tidegate.errors import Corrupt, Invalid, Unavailable
from tidegate.records.codec import sha256
from tidegate.sinks import DeltaAppend, DeltaUpsert


def test_rows_are_there_and_the_answer_says_where(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    done = world.checkpoint(2)
    assert world.rows() == [(1, "row 1"), (2, "row 2")]
    assert (done.version, done.rows) == (1, 1)
    assert done.log_hash == sha256(log_file(world.location, 1).read_bytes())
    assert world.sink.locate(2, world.context) == done.__class__(
        uri=done.uri, version=1, log_hash=done.log_hash, rows=None
    )
    world.sink.verify(done, world.context)


def test_a_repeated_publish_changes_nothing_however_old_its_head(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    old, batch = world.head(), world.stage(2)
    done = world.publish(2, batch, head=old)
    assert world.publish(2, batch, head=old) == done  # its own commit, found again
    assert world.publish(2, batch, head=old, attempt="another") is None
    assert world.publish(2, batch) is None
    assert world.rows() == [(1, "row 1"), (2, "row 2")]


def test_an_id_never_goes_back(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(5)
    assert world.publish(4, world.stage(4)) is None
    assert world.publish(4, world.stage(4), head=Head(version=0, last_entry=3)) is None
    assert world.head() == Head(version=0, last_entry=5)
    assert world.rows() == [(5, "row 5")]


def test_a_foreign_commit_in_between_is_a_lost_race_then_a_success(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    old, batch = world.head(), world.stage(2)
    by_foreigner(world.location, (9, "z"))
    assert world.publish(2, batch, head=old) is None
    assert world.publish(2, batch) is not None
    assert world.rows() == [(1, "row 1"), (2, "row 2"), (9, "z")]


def test_two_pipelines_on_one_table_do_not_see_each_other(tmp_path):
    a, a1 = Published(tmp_path, pipeline="a", uid="u"), Published(tmp_path, pipeline="a1", uid="u1")
    a.checkpoint(10)
    a1.checkpoint(1)
    assert (a.head().last_entry, a1.head().last_entry) == (10, 1)
    assert a.rows() == [(1, "row 1"), (10, "row 10")]


def test_a_table_that_somebody_made_meanwhile_is_a_lost_race(tmp_path):
    world = Published(tmp_path)
    old, batch = world.head(), world.stage(1)
    assert old == Head(version=None, last_entry=None)
    by_foreigner(world.location, (9, "z"))
    assert world.publish(1, batch, head=old) is None
    assert world.publish(1, batch) is not None
    assert world.rows() == [(1, "row 1"), (9, "z")]


def test_an_empty_first_checkpoint_makes_the_table(tmp_path):
    world = Published(tmp_path)
    assert world.publish(1, world.stage(1, kv())) is not None
    assert world.rows() == []
    assert world.head() == Head(version=0, last_entry=1)


def test_several_batches_are_one_commit(tmp_path):
    world = Published(tmp_path)
    batches = [world.stage(id) for id in (1, 2, 3)]
    assert world.publish(3, *batches) is not None
    assert world.head() == Head(version=0, last_entry=3)
    assert len(world.rows()) == 3


# Scenario 4: power loss leaves a zero-length head, which both engines read as an empty version.
def test_scenario_4_nothing_is_published_on_a_zero_length_head(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    published, batch, before = world.checkpoint(2), world.stage(3), world.head()
    log_file(world.location, 1).write_bytes(b"")
    for look in (
        world.head,
        lambda: world.sink.check(world.context),
        lambda: world.publish(3, batch, head=before),
        lambda: world.sink.verify(published, world.context),
    ):
        with pytest.raises(Corrupt):
            look()
    assert not log_file(world.location, 2).exists()


# Scenario 5: a table dropped and recreated, or a version overwritten, under the same number.
def test_scenario_5_a_recreated_table_does_not_pass_for_the_published_one(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    published = world.checkpoint(2)
    shutil.rmtree(world.location.url)
    by_foreigner(world.location, (8, "x"))
    by_foreigner(world.location, (9, "y"))
    with pytest.raises(Corrupt, match="version 1 is not the one"):
        world.sink.verify(published, world.context)
    assert world.head() == Head(version=1, last_entry=None)  # so the coordinator finds 2 published and 2 missing


def test_scenario_5_a_recreated_table_loses_the_race_of_who_saw_the_old_one(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    old, batch = world.head(), world.stage(2)
    for path in world.location.local("_delta_log").iterdir():
        path.unlink()
    by_foreigner(world.location, (9, "y"))
    assert world.publish(2, batch, head=old) is None


def test_scenario_5_an_overwritten_version_is_caught(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    published = world.checkpoint(2)
    path = log_file(world.location, 1)
    path.write_text(path.read_text().replace("publisher-2", "publisher-9"))
    with pytest.raises(Corrupt, match="log hash"):
        world.sink.verify(published, world.context)


# Scenario 10: VACUUM by someone else while staged files are needed.
def test_scenario_10_staged_files_that_a_vacuum_removed_are_named(tmp_path):
    from deltalake import DeltaTable

    world = Published(tmp_path)
    world.checkpoint(1)
    batch = world.stage(2)
    DeltaTable(world.location.url).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(Corrupt, match="1 of 1 files that checkpoint 2 staged") as found:
        world.publish(2, batch)
    assert batch["files"][0]["path"] in found.value.what
    assert found.value.reason == "STAGED_FILES_GONE"
    assert world.head().last_entry == 1
    assert world.rows() == [(1, "row 1")]


def test_scenario_10_a_staged_file_that_was_cut_is_named(tmp_path):
    world = Published(tmp_path)
    batch = world.stage(1)
    path = world.location.local(batch["files"][0]["path"])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Corrupt, match="gone or changed"):
        world.publish(1, batch)
    assert world.head().version is None


# Scenario 23: a pipeline whose root was wiped, against the same targets.
def test_scenario_23_a_wiped_pipeline_is_refused_never_skipped_or_doubled(tmp_path):
    Published(tmp_path).checkpoint(7)
    fresh = Published(tmp_path, uid="u2")
    batch = fresh.stage(1)
    for look in (
        fresh.head,
        lambda: fresh.sink.check(fresh.context),
        lambda: fresh.publish(1, batch, head=Head(version=0, last_entry=None)),
    ):
        with pytest.raises(Invalid, match="published by another pipeline"):
            look()
    assert fresh.rows() == [(7, "row 7")]


def test_scenario_23_taking_over_is_a_choice_and_fences_the_old_pipeline(tmp_path):
    old = Published(tmp_path)
    old.checkpoint(7)
    fresh = Published(tmp_path, DeltaAppend("t", take_over=True), uid="u2")
    fresh.checkpoint(1)
    assert fresh.rows() == [(1, "row 1"), (7, "row 7")]
    with pytest.raises(Invalid, match="another pipeline"):
        old.head()


def test_a_target_that_forgets_transactions_is_refused(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    _configure(world.location, "delta.setTransactionRetentionDuration", "interval 1 day")
    with pytest.raises(Invalid, match="setTransactionRetentionDuration"):
        world.head()


def test_an_append_only_table_takes_no_upserts(tmp_path):
    Published(tmp_path).checkpoint(1)
    _configure(Location(str(tmp_path / "t")), "delta.appendOnly", "true")
    assert Published(tmp_path).head().last_entry == 1
    with pytest.raises(Invalid, match="appendOnly"):
        Published(tmp_path, DeltaUpsert("t", keys=["k"])).head()


def test_other_partition_columns_are_refused(tmp_path):
    Published(tmp_path).checkpoint(1)
    with pytest.raises(Invalid, match="partitioned by"):
        Published(tmp_path, DeltaAppend("t", partition_by=["k"])).head()


def test_a_table_that_needs_spark_waits_for_a_process_that_has_it(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    _configure(world.location, "delta.constraints.positive", "k > 0")
    with pytest.raises(Unavailable, match="no Spark"):
        world.publish(2, world.stage(2))
    assert world.head() == Head(version=0, last_entry=1)


def test_a_committable_of_another_kind_is_corrupt(tmp_path):
    with pytest.raises(Corrupt, match="something that this sink does not write"):
        Published(tmp_path).publish(1, {"rows": 7})


# Schema evolution.
WIDE = {"type": "struct", "fields": [*KV["fields"], *schema(extra="date")["fields"]]}


def _wide(id: int) -> pa.Table:
    return kv((id, "wide")).append_column("extra", pa.nulls(1, pa.date32()))


def test_new_columns_are_added_before_the_rows_and_old_batches_still_fit(tmp_path):
    world = Published(tmp_path, DeltaAppend("t", schema_evolution="add"))
    world.checkpoint(1)
    narrow = world.stage(2)
    done = world.checkpoint(3, _wide(3), WIDE)
    assert done.version == 2  # 1 added the column
    assert world.head() == Head(version=2, last_entry=3)
    assert world.publish(4, narrow) is not None
    assert world.rows() == [(1, "row 1", None), (2, "row 2", None), (3, "wide", None)]


@pytest.mark.parametrize("point", ["S10.publish.before", "S10.publish.after"])
@pytest.mark.parametrize("passing", [1, 2])
def test_a_crash_between_the_new_column_and_the_rows_is_repaired_by_the_next_publish(tmp_path, point, passing):
    world = Published(tmp_path, DeltaAppend("t", schema_evolution="add"))
    world.checkpoint(1)
    batch = world.stage(2, _wide(2), WIDE)
    left = [passing]

    def crash(at: str) -> None:
        if at == point:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    with seams.installed(seams.Seams(fault=crash)), pytest.raises(KeyboardInterrupt):
        world.publish(2, batch)
    if world.head().last_entry != 2:
        assert world.publish(2, batch) is not None
    assert world.rows() == [(1, "row 1", None), (2, "wide", None)]
    assert [("add" in action) for action in actions(world.location, 1)].count(True) == 0
    assert not log_file(world.location, 3).exists()


def test_a_new_column_is_refused_unless_asked_for(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    with pytest.raises(Invalid, match="'extra' \\(date\\) is not in the table"):
        world.publish(2, world.stage(2, _wide(2), WIDE))
    assert world.head() == Head(version=0, last_entry=1)


def test_a_table_that_got_more_columns_meanwhile_takes_the_rows(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    batch = world.stage(2)
    from deltalake import DeltaTable, Field

    DeltaTable(world.location.url).alter.add_columns(Field("theirs", "long"))
    assert world.publish(2, batch) is not None
    assert world.rows() == [(1, "row 1", None), (2, "row 2", None)]


@pytest.mark.parametrize("evolution", ["refuse", "add"])
def test_a_type_that_changed_meanwhile_is_refused_with_both_types(tmp_path, evolution):
    world = Published(tmp_path, DeltaAppend("t", schema_evolution=evolution))
    world.checkpoint(1)
    other = schema(k="long", v="date")
    rows = pa.table({"k": pa.array([2]), "v": pa.nulls(1, pa.date32())})
    with pytest.raises(Invalid, match="'v' is date; the table has string"):
        world.publish(2, world.stage(2, rows, other))


def test_not_null_is_kept_by_proof(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    _change_schema(world.location, lambda fields: fields[0].update(nullable=False))
    with pytest.raises(Invalid, match="'k' is NOT NULL"):
        world.publish(2, world.stage(2))
    assert world.publish(3, world.stage(3, not_null=["k"])) is not None


def test_batches_with_different_columns_make_one_table(tmp_path):
    world = Published(tmp_path, DeltaAppend("t", schema_evolution="add"))
    assert world.publish(2, world.stage(1), world.stage(2, _wide(2), WIDE)) is not None
    assert [field["name"] for field in head(world.location).schema["fields"]] == ["k", "v", "extra"]
    assert len(world.rows()) == 2


# Cleaning up.
def test_a_discarded_attempt_is_gone_and_only_that(tmp_path):
    world, twin = Published(tmp_path), Published(tmp_path, uid="u11", pipeline="p1")
    world.checkpoint(1)
    kept, lost, other = world.stage(12), world.stage(2), twin.stage(2)
    assert world.sink.attempts(2, world.context) == ["attempt2"]
    world.sink.discard(world.context, Staging(2, "attempt2"))
    world.sink.discard(world.context, Staging(2, "attempt2"))
    assert world.sink.attempts(2, world.context) == []
    assert world.location.size(lost["files"][0]["path"]) is None
    assert world.location.size(kept["files"][0]["path"]) is not None
    assert world.location.size(other["files"][0]["path"]) is not None
    assert world.rows() == [(1, "row 1")]


def test_retiring_an_append_removes_nothing_that_is_published(tmp_path):
    world = Published(tmp_path)
    world.checkpoint(1)
    world.sink.retire(world.context, Staging(1, "attempt1"))
    assert world.rows() == [(1, "row 1")]


def test_retiring_an_upsert_removes_what_no_version_needs_and_nothing_else(tmp_path):
    world = Published(tmp_path, DeltaUpsert("t", keys=["k"]))
    world.checkpoint(1, kv((1, "a"), (2, "b"), (3, "c")))
    batch = world.stage(2, kv((1, "new")))
    deletes = world.files(f"{Staging(2, 'attempt2').folder(world.context)}/deleted", kv((3, "-")))
    assert world.publish(2, batch | {"deletes": msgspec.to_builtins(deletes)}) is not None
    assert world.rows() == [(1, "new"), (2, "b")]
    orphan = "tidegate/u1-s/00000002/merged-dead/kept/part-00000.parquet"
    world.location.local(orphan).parent.mkdir(parents=True)
    world.location.local(orphan).write_bytes(b"left by a publisher that died")
    world.checkpoint(3, kv((1, "newer"), (2, "newer")))
    assert world.sink.attempts(2, world.context) == ["attempt2"]
    world.sink.retire(world.context, Staging(2, "attempt2"))
    assert world.location.size(orphan) is None
    assert world.location.size(deletes[0].path) is None
    for version, rows in ((0, 3), (1, 2), (2, 2)):
        assert len(rows_of(world.location, version)) == rows


@pytest.mark.parametrize("cleaned", ["gone", "made anew"])
def test_nothing_of_an_upsert_is_removed_if_its_commit_goes_while_one_looks(tmp_path, monkeypatch, cleaned):
    world = Published(tmp_path, DeltaUpsert("t", keys=["k"]))
    world.checkpoint(1, kv((1, "a"), (2, "b")))
    world.checkpoint(2, kv((1, "new")))
    before = world.location.walk("tidegate")
    other = read_commit(world.location, 0) if cleaned == "made anew" else None
    monkeypatch.setattr(upsert, "read_commit", lambda location, version: other)
    world.sink.retire(world.context, Staging(2, "attempt2"))
    assert world.location.walk("tidegate") == before


def test_a_publisher_that_lost_its_race_leaves_no_files_behind(tmp_path):
    world = Published(tmp_path, DeltaUpsert("t", keys=["k"]))
    world.checkpoint(1, kv((1, "a"), (2, "b")))
    old, batch = world.head(), world.stage(2, kv((1, "new")))
    by_foreigner(world.location, (9, "z"))
    assert world.publish(2, batch, head=old) is None
    assert not [path for path, _ in world.location.walk("tidegate") if "merged-" in path]
    assert world.publish(2, batch) is not None
    assert world.rows() == [(1, "new"), (2, "b"), (9, "z")]


def test_of_two_publishers_of_one_upsert_the_loser_removes_only_its_own_files(tmp_path):
    world = Published(tmp_path, DeltaUpsert("t", keys=["k"]))
    world.checkpoint(1, kv((1, "a"), (2, "b")))
    old, batch = world.head(), world.stage(2, kv((1, "new")))
    first = world.publish(2, batch, head=old, attempt="same")
    assert world.publish(2, batch, head=old, attempt="same") == first
    assert len({path.split("/")[3] for path, _ in world.location.walk("tidegate") if "merged-" in path}) == 1
    assert world.rows() == [(1, "new"), (2, "b")]


def _configure(location: Location, key: str, value: str) -> None:
    def change(metadata: dict[str, Any]) -> None:
        metadata["configuration"][key] = value

    _change_metadata(location, change)


def _change_schema(location: Location, change: Any) -> None:
    def rewrite(metadata: dict[str, Any]) -> None:
        columns = json.loads(metadata["schemaString"])
        change(columns["fields"])
        metadata["schemaString"] = json.dumps(columns)

    _change_metadata(location, rewrite)


def _change_metadata(location: Location, change: Any) -> None:
    """Another table's past: as if its first commit had said something else."""
    lines = actions(location, 0)
    for action in lines:
        if "metaData" in action:
            change(action["metaData"])
    log_file(location, 0).write_text("\n".join(map(json.dumps, lines)) + "\n")
