"""The base of sinks with transactions, without Spark: what a subclass is given, and what it need not care about."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.kit.delta import KV, kv, staged
from tidegate.connectors.sink import Head, Publication, Staging
from tidegate.connectors.transactional import StagedPart
from tidegate.errors import Corrupt, Invalid
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable, Restored
from tidegate.sinks import SinkContext, StagedRows, TransactionalSink


class Remembering(TransactionalSink):
    """A target in memory: a mark, and what it was given."""

    kind = "memory"

    def __init__(self) -> None:
        self.mark: int | None = None
        self.loaded: list[StagedRows] = []

    def describe(self) -> Json:
        return {"kind": self.kind}

    def target(self, place: Place) -> str:
        return "memory:1"

    def last(self, context: SinkContext) -> int | None:
        return self.mark

    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        if self.mark != rows.after:
            return False
        self.loaded.append(rows)
        self.mark = rows.checkpoint
        return True


class Target:
    def __init__(self, folder: Path) -> None:
        self.sink = Remembering()
        self.context = SinkContext("p", "u", "s", Place(str(folder)), home=str(folder / "home"))

    def stage(self, id: int, rows: pa.Table, attempt: str = "a", removed: pa.Table | None = None) -> Json:
        files = self.files(f"{Staging(id, attempt).folder(self.context)}/rows", rows)
        part = StagedPart(columns=KV, files=files)
        if removed is not None:
            folder = f"{Staging(id, attempt).folder(self.context)}/removed"
            part = msgspec.structs.replace(part, removed_columns=KV, removed=self.files(folder, removed))
        return msgspec.to_builtins(part)

    def files(self, folder: str, rows: pa.Table) -> Any:
        return staged(self.sink.staging_folder(self.context), folder, rows, KV)

    def publish(self, id: int, *committables: Json, **more: Any) -> PublishedTable | None:
        head = self.sink.head(self.context)
        return self.sink.publish(
            Publication(id, 0, f"m{id}", head.last_entry, committables, **more), head, self.context
        )


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


# -- what `load` is given ----------------------------------------------------------------------------


def test_it_is_given_the_rows_of_all_jobs_in_the_same_order_each_time(target):
    parts = [target.stage(1, kv((1, "a"), (2, "b")), "one"), target.stage(1, kv((3, "c")), "other")]
    assert target.publish(1, *parts) is not None
    (rows,) = target.sink.loaded
    assert (rows.checkpoint, rows.after, rows.attempt, rows.count, rows.removed_count) == (1, None, "m1", 3, 0)
    assert list(rows.tuples()) == list(rows.tuples()) == [(1, "a"), (2, "b"), (3, "c")]
    assert list(rows.tuples(["v"])) == [("a",), ("b",), ("c",)]
    assert next(rows.tuples(["v", "k"])) == ("a", 1), "in the order that was asked for"
    assert [batch.num_rows for batch in rows.batches()] == [2, 1]
    assert rows.columns == KV


def test_rows_to_be_removed_come_apart_from_those_to_be_added(target):
    part = target.stage(1, kv((1, "new")), removed=kv((1, "old"), (2, "gone")))
    assert target.publish(1, part) is not None
    (rows,) = target.sink.loaded
    assert (rows.count, rows.removed_count) == (1, 2)
    assert [batch.to_pydict()["k"] for batch in rows.removed_batches(["k"])] == [[1, 2]]


def test_a_checkpoint_without_rows_moves_the_mark_alone(target):
    assert target.publish(1) is not None
    (rows,) = target.sink.loaded
    assert (rows.count, rows.columns, list(rows.batches())) == (0, None, [])
    assert target.sink.mark == 1


# -- what it need not care about ---------------------------------------------------------------------


def test_it_is_not_called_for_what_the_target_has_already(target):
    part = target.stage(2, kv((1, "a")))
    target.publish(2, part)
    assert target.publish(2, part) is None
    assert target.publish(1, part) is None
    assert len(target.sink.loaded) == 1


def test_it_is_not_called_when_staged_files_are_gone(target):
    part = target.stage(1, kv((1, "a")), removed=kv((2, "b")))
    for lost in ("rows", "removed"):
        whole = target.stage(3, kv((1, "a")), lost, removed=kv((2, "b")))
        folder = f"{Staging(3, lost).folder(target.context)}/{lost}"
        target.sink.staging_folder(target.context).remove_folder(folder)
        assert len(target.sink.missing_files([whole], target.context)) == 1
        with pytest.raises(Corrupt) as refused:
            target.publish(3, whole)
        assert refused.value.reason == "STAGED_FILES_GONE"
        assert "1 files that checkpoint 3 staged are gone" in refused.value.what
    assert target.sink.loaded == []
    assert target.sink.missing_files([part], target.context) == []


def test_the_mark_stands_for_the_versions_that_the_target_does_not_have(target):
    at = target.publish(4, target.stage(4, kv((1, "a"))))
    assert (at.uri, at.version, at.is_delta, at.displayed_version, at.rows) == ("memory:1", 4, False, "checkpoint 4", 1)
    assert target.sink.locate(4, target.context).version == 4
    assert target.sink.locate(5, target.context) is None
    target.sink.verify(at, target.context)


@pytest.mark.parametrize(("mark", "said"), [(3, "its mark is 3"), (None, "it has no mark")])
def test_a_target_that_was_made_again_or_put_back_is_damage(target, mark, said):
    at = target.publish(4, target.stage(4, kv((1, "a"))))
    target.sink.mark = mark
    with pytest.raises(Corrupt, match=said) as refused:
        target.sink.verify(at, target.context)
    assert refused.value.reason == "TABLE_DAMAGED"
    with pytest.raises(Corrupt):
        target.sink.restore_plan(4, at, (), target.context)


def test_an_output_that_does_not_fit_is_refused_with_all_reasons_before_anything_is_written(target):
    class Frame:
        """As much of a DataFrame as is looked at before it is written."""

        class schema:
            json = staticmethod(lambda: '{"type": "struct", "fields": []}')

    target.sink.output_problems = lambda schema, context: ["no key", "no value"]
    with pytest.raises(Invalid) as refused:
        target.sink.prepare(Frame(), target.context, Staging(1, "a"))
    assert refused.value.reason == "BAD_OUTPUT"
    assert "does not fit memory:1" in refused.value.what
    assert "no key\n    no value" in refused.value.what
    assert target.sink.attempts(1, target.context) == []


def test_what_was_staged_goes_when_it_is_discarded_or_retired_and_nothing_else(target):
    for attempt in ("kept", "lost", "old"):
        target.stage(1, kv((1, "a")), attempt)
    assert target.sink.attempts(1, target.context) == ["kept", "lost", "old"]
    target.sink.discard(target.context, Staging(1, "lost"))
    target.sink.retire(target.context, Staging(1, "old"))
    assert target.sink.attempts(1, target.context) == ["kept"]


# -- going back --------------------------------------------------------------------------------------


def test_a_target_that_was_never_given_anything_has_nothing_to_go_back_from(target):
    assert target.sink.restore_plan(None, None, (), target.context).exists is False
    way = target.sink.restore_plan(3, None, (), target.context)
    assert (way.exists, way.not_published_yet) == (False, True)


def test_a_checkpoint_that_it_lacks_is_told(target):
    target.publish(2, target.stage(2, kv((1, "a"))))
    way = target.sink.restore_plan(3, None, (), target.context)
    assert (way.not_published_yet, way.version, way.rows_stay_reason) == (
        True,
        2,
        "a sink of kind memory cannot undo what it has published",
    )


def test_a_rollback_moves_the_mark_and_adds_nothing(target):
    target.publish(2, target.stage(2, kv((1, "a"))))
    restore = Restored(how="keep", to=None)
    head = target.sink.head(target.context)
    back = Publication(5, 0, "back", 2, (), restore=restore, target=1)
    assert target.sink.restore(back, head, target.context) is not None
    assert (target.sink.mark, target.sink.loaded[-1].count) == (5, 0)
    assert target.sink.restore(back, target.sink.head(target.context), target.context) is None
    assert target.sink.restore(back, Head(version=2, last_entry=2), target.context) is None, "it slept"


# -- the guide's sink, in its own words ---------------------------------------------------------------


def test_two_sinks_in_one_database_have_marks_of_their_own(tmp_path):
    from tests.kit.documents import code_of

    module: dict[str, Any] = {}
    exec(code_of("jobs/sqlite_table.py"), module)
    sink = module["SqliteTable"]("t.db", "t", ["k", "v"])
    for name, checkpoint in (("one", 3), ("two", 7)):
        context = SinkContext("p", "u", name, Place(str(tmp_path)), home=str(tmp_path / "home"))
        rows = StagedRows(checkpoint, None, "m", sink.staging_folder(context), ())
        assert sink.load(rows, context)
        assert not sink.load(rows, context)
    with closing(sqlite3.connect(tmp_path / "t.db")) as database:
        marks = database.execute("SELECT app, last FROM tidegate ORDER BY app").fetchall()
    assert marks == [("tidegate/u/one", 3), ("tidegate/u/two", 7)]
