"""Files of an upsert's table that were rewritten before the checkpoint was published: a shortcut, and never more."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit.delta import actions, head, log_file, rows_of
from tests.kit.sampling import some_of
from tests.kit.upserts import Row, Upserted, in_turn
from tidegate.connectors.delta.sink import prerewritten
from tidegate.connectors.delta.sink.table import StagedBatch
from tidegate.connectors.sink import Publication, Staging
from tidegate.errors import Unavailable
from tidegate.records import typed
from tidegate.records.interval import Interval
from tidegate.records.records import Restored
from tidegate.sinks import DeltaUpsert

AHEAD, LATER = "/ahead/", "/merged-"
"""What paths of files have in them that were rewritten ahead, and by a publisher."""
DAY = Interval.between(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))


@pytest.fixture(autouse=True)
def small_tables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerewritten, "MIN_BYTES", 0)


@pytest.fixture(params=[(), "a"], ids=["the later checkpoint counts", "an order counts"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Upserted:
    """A table of four files, of three rows each, and a file of somebody else."""
    world = Upserted(tmp_path, request.param)
    for first in range(0, 12, 3):
        world.publish(([(k, 10, "first") for k in range(first, first + 3)], []))
    foreign(world, (100, 10, "foreign"))
    return world


@pytest.fixture
def ordered(tmp_path: Path) -> Upserted:
    world = Upserted(tmp_path)
    world.publish(([(k, 10, "first") for k in range(3)], []))
    world.publish(([(k, 10, "first") for k in range(3, 6)], []))
    return world


def foreign(world: Upserted, *rows: Row) -> None:
    """Rows that somebody else appends."""
    columns = zip(*rows, strict=True)
    names = {"k": pa.int64(), "a": pa.int64(), "v": pa.string()}
    table = pa.table(
        [pa.array(column, kind) for column, kind in zip(columns, names.values(), strict=True)], list(names)
    )
    write_deltalake(world.location.url, table, mode="append")


def changed(world: Upserted, *rows: Row, but: tuple[int, ...] = ()) -> list[tuple[object, ...]]:
    """The table's rows once these have replaced those with their keys, and `but` is gone."""
    keys = {key for key, *_ in rows} | set(but)
    return sorted([*(row for row in world.rows() if row[0] not in keys), *rows], key=repr)


# -- it is used ----------------------------------------------------------------------------------------


def test_a_publisher_rewrites_nothing_if_the_job_has(world: Upserted, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = changed(world, (1, 20, "new"), (4, 20, "new"), (50, 1, "added"), but=(7, 100))
    staged = world.staged(
        5, [(1, 20, "new"), (4, 20, "new"), (50, 1, "added")], [(7, 20, ""), (100, 20, "")], ahead=True
    )

    def never(*_: Any) -> None:
        raise AssertionError("files were read")

    monkeypatch.setattr("tidegate.connectors.delta.sink.upsert.rewrite", never)
    monkeypatch.setattr("tidegate.connectors.delta.sink.upsert.newest", never)
    assert world.published(5, staged) is not None
    assert world.rows() == expected
    assert world.added_last(AHEAD)


def test_files_without_a_key_stay_as_they_are(world: Upserted) -> None:
    before = {file.path for file in prerewritten.live_files(head(world.location))}
    world.published(5, world.staged(5, [(4, 20, "new")], ahead=True))
    assert len(before - {file.path for file in prerewritten.live_files(head(world.location))}) == 1


def test_late_rows_are_left_out_ahead(ordered: Upserted) -> None:
    """A row that is older than the table's does not count; nor does a late removal."""
    staged = ordered.staged(3, [(0, 5, "late"), (1, 20, "new"), (9, 1, "added")], [(4, 5, "")], ahead=True)
    expected = changed(ordered, (1, 20, "new"), (9, 1, "added"))
    assert ordered.published(3, staged) is not None
    assert ordered.rows() == expected
    assert not ordered.added_last(LATER)
    assert len(ordered.added_last(AHEAD)) == 2, "what is left of a file, and what counts of the batch"


def test_only_late_rows_change_nothing(ordered: Upserted) -> None:
    expected, version = ordered.rows(), head(ordered.location).version
    assert ordered.published(3, ordered.staged(3, [(0, 5, "late")], ahead=True)) is not None
    assert ordered.rows() == expected
    assert head(ordered.location).version == version + 1


# -- it does not fit any more --------------------------------------------------------------------------


def test_a_file_that_came_since_is_looked_at(world: Upserted) -> None:
    staged = world.staged(5, [(1, 20, "new"), (60, 20, "new")], ahead=True)
    foreign(world, (60, 10, "foreign"), (61, 10, "foreign"))
    expected = changed(world, (1, 20, "new"), (60, 20, "new"))
    assert world.published(5, staged) is not None
    assert world.rows() == expected
    assert world.added_last(LATER)
    assert bool(world.added_last(AHEAD)) is not bool(world.sink.order_by), "by an order all of it is decided anew"


def test_a_file_that_came_since_and_has_none_of_the_keys_changes_nothing(world: Upserted) -> None:
    staged = world.staged(5, [(1, 20, "new"), (60, 20, "new")], ahead=True)
    foreign(world, (55, 10, "foreign"), (65, 10, "foreign"))  # its bounds do not tell
    expected = changed(world, (1, 20, "new"), (60, 20, "new"))
    assert world.published(5, staged) is not None
    assert world.rows() == expected
    assert world.added_last(AHEAD)
    assert not world.added_last(LATER)


def test_a_row_that_came_since_and_is_newer_stays(ordered: Upserted) -> None:
    staged = ordered.staged(3, [(1, 20, "new"), (60, 20, "late")], ahead=True)
    foreign(ordered, (60, 30, "newer"))
    expected = changed(ordered, (1, 20, "new"))
    assert ordered.published(3, staged) is not None
    assert ordered.rows() == expected


def test_a_late_row_counts_once_the_newer_one_is_gone(ordered: Upserted) -> None:
    """The file that held it was not to be replaced, but it has decided."""
    staged = ordered.staged(3, [(1, 20, "new"), (4, 5, "late")], ahead=True)
    DeltaTable(ordered.location.url).delete("k = 4")
    expected = changed(ordered, (1, 20, "new"), (4, 5, "late"))
    assert ordered.published(3, staged) is not None
    assert ordered.rows() == expected


def test_a_late_row_counts_though_its_file_was_to_be_replaced(ordered: Upserted) -> None:
    """The file held a row that counted against the batch, beside one that did not. Both are gone."""
    staged = ordered.staged(3, [(0, 20, "new"), (1, 5, "late")], ahead=True)
    DeltaTable(ordered.location.url).delete("k < 2")
    expected = changed(ordered, (0, 20, "new"), (1, 5, "late"))
    assert ordered.published(3, staged) is not None
    assert ordered.rows() == expected


def test_a_checkpoint_that_was_published_since_is_kept(world: Upserted) -> None:
    """Pipelined: both were staged before the first of them was published."""
    first = world.staged(5, [(1, 20, "first"), (4, 20, "first"), (70, 20, "first")], ahead=True)
    second = world.staged(6, [(4, 30, "second"), (7, 30, "second"), (70, 30, "second")], [(2, 30, "")], ahead=True)
    world.published(5, first)
    expected = changed(world, (4, 30, "second"), (7, 30, "second"), (70, 30, "second"), but=(2,))
    assert world.published(6, second) is not None
    assert world.rows() == expected


def test_an_optimize_since_is_no_loss(world: Upserted) -> None:
    staged = world.staged(5, [(1, 20, "new"), (4, 20, "new")], [(7, 20, "")], ahead=True)
    assert DeltaTable(world.location.url).optimize.compact()["numFilesRemoved"] > 1
    expected = changed(world, (1, 20, "new"), (4, 20, "new"), but=(7,))
    assert world.published(5, staged) is not None
    assert world.rows() == expected
    assert not world.added_last(AHEAD)


def test_a_delete_by_somebody_else_is_not_undone(world: Upserted) -> None:
    staged = world.staged(5, [(1, 20, "new")], ahead=True)
    DeltaTable(world.location.url).delete("k = 2")  # in the file that was rewritten ahead
    expected = changed(world, (1, 20, "new"))
    assert (2, 10, "first") not in expected
    assert world.published(5, staged) is not None
    assert world.rows() == expected


def test_a_restore_since_is_no_loss(world: Upserted) -> None:
    version = head(world.location).version
    staged = world.staged(5, [(1, 20, "new")], ahead=True)
    DeltaTable(world.location.url).delete("k = 2")
    DeltaTable(world.location.url).restore(version)
    expected = changed(world, (1, 20, "new"))
    assert world.published(5, staged) is not None
    assert world.rows() == expected
    assert not world.added_last(AHEAD)


def test_a_deletion_vector_since_leaves_it_to_spark(world: Upserted) -> None:
    """Then delta-spark merges; this process has none."""
    staged = world.staged(5, [(1, 20, "new")], ahead=True)
    with_deletion_vector(world, staged["ahead"]["replacements"][0]["files"][0])
    with pytest.raises(Unavailable, match="no Spark"):
        world.published(5, staged)


def test_a_table_with_a_deletion_vector_does_not_go_back(world: Upserted) -> None:
    """delta-rs could not name the file that it would have to remove."""
    assert world.sink.restore_plan(3, None, [], world.context).problems == ()
    live = DeltaTable(world.location.url).get_add_actions()["path"].to_pylist()
    with_deletion_vector(world, next(path for path in live if path.startswith("tidegate/")))
    (problem,) = world.sink.restore_plan(3, None, [], world.context).problems
    assert problem.endswith("has deletion vectors")


_FIRST_ROW = "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg00000"
"""A deletion vector of the first row, as text."""


def with_deletion_vector(world: Upserted, path: str) -> None:
    """Forge the commit by which delta-spark gives a file one."""
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
    vector = {"storageType": "i", "pathOrInlineDv": _FIRST_ROW, "sizeInBytes": 34, "cardinality": 1}
    add = added_as(world, path)
    gone = {"path": path, "deletionTimestamp": 1, "dataChange": True, "partitionValues": {}, "size": add["size"]}
    commit(
        world,
        {"protocol": features | {"writerFeatures": ["deletionVectors", "appendOnly", "invariants"]}},
        {"remove": gone},
        {"add": add | {"deletionVector": vector}},
    )


def added_as(world: Upserted, path: str) -> dict[str, Any]:
    """The action by which a file was added."""
    found = [each for v in range(head(world.location).version + 1) for each in actions(world.location, v)]
    return next(dict(each["add"]) for each in found if "add" in each and each["add"]["path"] == path)


def commit(world: Upserted, *lines: dict[str, Any]) -> None:
    """Forge a commit of somebody else."""
    all_lines = [{"commitInfo": {"timestamp": 0, "operation": "DELETE"}}, *lines]
    log_file(world.location, head(world.location).version + 1).write_bytes(
        b"\n".join(map(msgspec.json.encode, all_lines))
    )


def test_a_file_that_was_added_once_more_is_looked_at_again(world: Upserted) -> None:
    """As by a commit that gives it statistics, or a vector."""
    staged = world.staged(5, [(1, 20, "new")], ahead=True)
    commit(world, {"add": added_as(world, staged["ahead"]["replacements"][0]["files"][0])})
    expected = changed(world, (1, 20, "new"))
    assert world.published(5, staged) is not None
    assert world.rows() == expected
    assert not world.added_last(AHEAD)


def test_another_history_of_the_same_length_is_found_out(world: Upserted) -> None:
    """Somebody has put the log back from a copy, and committed something else under the same number."""
    staged = world.staged(5, [(1, 20, "new"), (100, 20, "new")], ahead=True)
    log_file(world.location, head(world.location).version).unlink()
    foreign(world, (100, 10, "other history"), (1, 1, "again"))
    expected = changed(world, (1, 20, "new"), (100, 20, "new"))
    assert world.published(5, staged) is not None
    assert world.rows() == expected
    assert not world.added_last(AHEAD)


def test_a_shorter_history_is_found_out(world: Upserted) -> None:
    foreign(world, (101, 10, "foreign"))
    staged = world.staged(5, [(1, 20, "new"), (101, 20, "new")], ahead=True)
    log_file(world.location, head(world.location).version).unlink()
    expected = changed(world, (1, 20, "new"), (101, 20, "new"))
    assert world.published(5, staged) is not None
    assert world.rows() == expected


@pytest.mark.parametrize("which", [0, 1], ids=["its own version", "one since"])
def test_if_commits_are_gone_nobody_knows_what_came_since(world: Upserted, which: int) -> None:
    staged = world.staged(5, [(1, 20, "new"), (60, 20, "new")], ahead=True)
    foreign(world, (60, 10, "foreign"))
    foreign(world, (61, 10, "foreign"))
    DeltaTable(world.location.url).create_checkpoint()
    log_file(world.location, head(world.location).version - 2 + which).unlink()
    expected = changed(world, (1, 20, "new"), (60, 20, "new"))
    assert world.published(5, staged) is not None
    assert world.rows() == expected
    assert not world.added_last(AHEAD)


def test_other_columns_since_are_no_loss(world: Upserted) -> None:
    staged = world.staged(5, [(1, 20, "new")], ahead=True)
    more = pa.table({"k": pa.array([80]), "a": pa.array([1]), "v": ["x"], "w": ["y"]})
    write_deltalake(world.location.url, more, mode="append", schema_mode="merge")
    assert world.published(5, staged) is not None
    assert {row[:3] for row in world.rows()} >= {(80, 1, "x"), (1, 20, "new"), (0, 10, "first"), (2, 10, "first")}
    assert len(world.rows()) == 14
    assert not world.added_last(AHEAD)


@pytest.mark.parametrize("how", ["gone", "half"])
def test_a_file_that_was_written_ahead_and_is_damaged_is_no_loss(world: Upserted, how: str) -> None:
    staged = world.staged(5, [(1, 20, "new")], ahead=True)
    path = world.location.local(staged["ahead"]["replacements"][0]["written"][0]["path"])
    data = path.read_bytes()
    path.unlink()
    if how == "half":
        path.write_bytes(data[: len(data) // 2])
    expected = changed(world, (1, 20, "new"))
    assert world.published(5, staged) is not None
    assert world.rows() == expected
    assert not world.added_last(AHEAD)


def test_rows_that_count_of_the_batch_and_are_gone_are_no_loss(ordered: Upserted) -> None:
    staged = ordered.staged(3, [(0, 5, "late"), (1, 20, "new")], ahead=True)
    ordered.location.remove_files([staged["ahead"]["late"]["written"][0]["path"]])
    expected = changed(ordered, (1, 20, "new"))
    assert ordered.published(3, staged) is not None
    assert ordered.rows() == expected


def test_a_sink_that_is_declared_otherwise_by_now_decides_itself(tmp_path: Path) -> None:
    world = Upserted(tmp_path, ())
    world.publish(([(1, 10, "first"), (2, 10, "first")], []))
    staged = world.staged(2, [(1, 5, "late"), (2, 20, "new")], ahead=True)
    world.sink = DeltaUpsert("table", keys=["k"], order_by="a")
    assert world.published(2, staged) is not None
    assert world.rows() == [(1, 10, "first"), (2, 20, "new")]


def test_of_two_batches_none_is_taken_alone(world: Upserted) -> None:
    first = world.staged(5, [(1, 20, "first"), (4, 20, "first")], attempt="upstream", ahead=True)
    second = world.staged(5, [(4, 30, "second"), (7, 30, "second")], attempt="late", ahead=True)
    expected = changed(world, (1, 20, "first"), (4, 30, "second"), (7, 30, "second"))
    assert world.published(5, first, second) is not None
    assert world.rows() == expected


# -- who does what with the files ----------------------------------------------------------------------


def test_a_slower_publisher_takes_nothing_from_the_table(world: Upserted) -> None:
    staged = world.staged(5, [(1, 20, "new")], ahead=True)
    slept = world.sink.head(world.context)
    expected = changed(world, (1, 20, "new"))
    world.published(5, staged)
    late = Publication(id=5, generation=0, attempt="slow", previous=4, committables=(staged,))
    assert world.sink.publish(late, slept, world.context) is None
    assert world.rows() == expected


def test_what_the_table_shows_stays_and_what_was_in_vain_goes(world: Upserted) -> None:
    """Retention, long after: the files of checkpoint 5 are the table's, those of 6 were not used."""
    world.published(5, world.staged(5, [(1, 20, "new")], ahead=True))
    in_vain = world.staged(6, [(4, 20, "new")], ahead=True)
    DeltaTable(world.location.url).optimize.compact()
    world.published(6, in_vain)
    version = head(world.location).version
    expected = {v: rows_of(world.location, v) for v in (5, version)}
    assert world.location.walk(f"{Staging(6, 'attempt').folder(world.context)}/ahead")
    for id in (5, 6):
        world.sink.retire(world.context, Staging(id, "attempt"))
    assert world.location.walk(f"{Staging(5, 'attempt').folder(world.context)}/ahead")
    assert not world.location.walk(f"{Staging(6, 'attempt').folder(world.context)}/ahead")
    assert {v: rows_of(world.location, v) for v in (5, version)} == expected


def test_a_rollback_goes_back_behind_it_and_nothing_of_it_comes_again(world: Upserted) -> None:
    """What was rewritten ahead on a version that is undone fits nothing any more."""
    before, id = world.rows(), world.id
    world.published(5, world.staged(5, [(1, 20, "new")], ahead=True))
    staged = world.staged(7, [(1, 30, "newer"), (100, 30, "newer")], ahead=True)
    restored = Restored(how="discard", to=world.sink.restore_plan(id, None, [], world.context).target_version)
    back = Publication(id=6, generation=1, attempt="a6", previous=5, committables=(), restore=restored, target=id)
    assert world.sink.restore(back, world.sink.head(world.context), world.context) is not None
    assert world.rows() == [row for row in before if row[0] != 100], "the foreign row came later"
    world.after = 6
    expected = changed(world, (1, 30, "newer"), (100, 30, "newer"))
    assert world.published(7, staged) is not None
    assert world.rows() == expected


def test_a_line_brings_what_it_has_rewritten_ahead(world: Upserted) -> None:
    """A backfill: the shadow's files are its own, wherever they were written."""
    since = world.sink.locate(world.id, world.context)
    line = copy.copy(world)
    line.context = replace(world.context, uid="line")
    line.sink = world.sink.shadow(f"{world.context.folder}/line-again")
    line.location, line.id, line.after = line.sink.delta_table(line.context), 0, None
    world.sink.create_shadow(line.sink, since, world.context, line.context)
    line.published(1, line.staged(1, [(1, 20, "again"), (50, 20, "again")], [(4, 20, "")], ahead=True))
    assert line.added_last(AHEAD)
    brought = world.sink.promote_shadow(line.sink, since, world.context, line.context)
    restored = Restored(how="discard", to=since)
    swap = Publication(
        id=5, generation=1, attempt="a5", previous=4, committables=(brought,), restore=restored, target=4
    )
    assert world.sink.restore(swap, world.sink.head(world.context), world.context) is not None
    assert world.rows() == line.rows()
    assert (1, 20, "again") in world.rows()
    assert (4, 10, "first") not in world.rows()


def test_an_attempt_that_does_not_count_leaves_nothing(world: Upserted) -> None:
    world.staged(5, [(1, 20, "new")], ahead=True)
    assert world.sink.attempts(5, world.context) == ["attempt"]
    world.sink.discard(world.context, Staging(5, "attempt"))
    assert world.sink.attempts(5, world.context) == []
    assert len(world.rows()) == 13


# -- ahead, things go wrong ----------------------------------------------------------------------------


def batch_of(committable: Any) -> StagedBatch:
    return typed.convert(committable, StagedBatch)


def loses_an_answer(function: Callable[[Any], Any], items: Any) -> list[Any]:
    """A file that was told is not there."""
    told = in_turn(function, items)
    return [(f"other-{name}", *rest) for name, *rest in told] if told and isinstance(told[0], tuple) else told


def counts_wrongly(function: Callable[[Any], Any], items: Any) -> list[Any]:
    told = in_turn(function, items)
    return [(name, file, lost + 1) for name, file, lost in told] if told and isinstance(told[0], tuple) else told


def fails(function: Callable[[Any], Any], items: Any) -> list[Any]:
    raise RuntimeError("no worker is left")


@pytest.mark.parametrize("workers", [loses_an_answer, counts_wrongly, fails])
def test_whatever_goes_wrong_ahead_is_left_to_the_publisher(
    world: Upserted, workers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plain = world.staged(5, [(1, 20, "new")])
    batch = batch_of(plain)
    assert (
        world.sink._prerewrite(
            head(world.location), batch, Staging(5, "attempt"), "tidegate/u1-s/00000005/attempt/ahead", workers
        )
        is None
    )
    assert "could not be rewritten in advance" in caplog.text
    assert not world.location.walk("tidegate/u1-s/00000005/attempt/ahead")


def not_ahead(world: Upserted, batch: StagedBatch, staging: Staging) -> bool:
    """Whether no worker is asked."""
    return world.sink._prerewrite(head(world.location), batch, staging, "tidegate/x", never_asked) is None


def never_asked(function: Callable[[Any], Any], items: Any) -> list[Any]:
    raise KeyboardInterrupt("a worker was asked")


def test_what_would_be_in_vain_is_not_begun(world: Upserted) -> None:
    """The rows of an open checkpoint are in no table yet; those of an interval are found by their column."""
    batch = batch_of(world.staged(5, [(1, 20, "new")]))
    assert not_ahead(world, batch, Staging(5, "attempt", on_open_base=True))
    assert not_ahead(world, batch, Staging(5, "attempt", DAY))
    with pytest.raises(KeyboardInterrupt):
        not_ahead(world, batch, Staging(5, "attempt"))


def test_little_is_left_to_the_publisher(world: Upserted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerewritten, "MIN_BYTES", 1 << 20)
    batch = batch_of(world.staged(5, [(1, 20, "new")]))
    assert not_ahead(world, batch, Staging(5, "attempt"))


# -- all of it -----------------------------------------------------------------------------------------


def restored(world: Upserted) -> None:
    """Somebody puts back what was there before the last commit."""
    version = head(world.location).version
    if version > 1:
        DeltaTable(world.location.url).restore(version - 1)


EVENTS: dict[str, Callable[[Upserted, random.Random], None]] = {
    "nothing": lambda world, chance: None,
    "rows of somebody else": lambda world, chance: foreign(
        world, (chance.randrange(30), chance.randrange(100), "foreign")
    ),
    "OPTIMIZE": lambda world, chance: DeltaTable(world.location.url).optimize.compact() and None,
    "DELETE": lambda world, chance: DeltaTable(world.location.url).delete(f"k = {chance.randrange(30)}") and None,
    "RESTORE": lambda world, chance: restored(world),
}


@pytest.mark.parametrize("order_by", [(), "a"], ids=["later", "ordered"])
@pytest.mark.parametrize("seed", some_of(range(39), 13))
def test_it_never_makes_a_difference(tmp_path: Path, order_by: Sequence[str], seed: int) -> None:
    """Two tables that are told the same, one of them ahead, with the same interference; at last nobody interferes."""
    worlds = [Upserted(tmp_path / name, order_by) for name in ("ahead", "plain")]
    chance, used = random.Random(seed), 0
    for world in worlds:
        world.publish(([(k, 50, "first") for k in range(0, 30, 2)], []))
    waiting: list[tuple[int, list[Any]]] = []
    for id in range(2, 16):
        keys = chance.sample([*range(30), None], 6)
        rows = [(k, chance.randrange(100), f"of {id}") for k in keys]
        cut = chance.randrange(4, 7)
        waiting.append((id, [w.staged(id, rows[:cut], rows[cut:], ahead=w is worlds[0]) for w in worlds]))
        event, seen = chance.choice(list(EVENTS)) if id < 14 else "nothing", chance.random()
        for world in worlds:
            EVENTS[event](world, random.Random(seen))
        if id >= 14 or len(waiting) > chance.randrange(2):  # else the next one is staged before
            for id_waiting, staged in waiting:
                for world, committable in zip(worlds, staged, strict=True):
                    assert world.published(id_waiting, committable) is not None
                used += bool(worlds[0].added_last(AHEAD))
            waiting = []
        assert worlds[0].rows() == worlds[1].rows(), (id, event)
    assert used, "else this tests nothing"
