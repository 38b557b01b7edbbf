"""Sources and sinks with a defect each, as an author might make it: the contract tests must notice every one."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.connectors.duck import DuckRows, DuckTable, opened
from tests.connectors.duck_contracts import DuckRowsContract, DuckTableContract
from tests.kit.sampling import in_turn
from tidegate.connectors.sink import entry_folder
from tidegate.errors import Unavailable
from tidegate.records.place import Place

pytestmark = in_turn(seconds=30)

NOTICED_BY = {
    "AlwaysSaysThatItHasLoaded": "test_a_publisher_that_sleeps_right_before_it_publishes_does_nothing",
    "ComparesNoMark": "test_a_publisher_that_sleeps_right_before_it_publishes_does_nothing",
    "DiscardsAllAttempts": "test_a_discarded_attempt_takes_only_its_own_files",
    "DropsRowsWithNulls": "test_rows_in_many_files_and_batches_are_all_published",
    "ForgetsItsPosition": "test_a_bound_from_outside_is_kept_as_far_as_possible",
    "ForgetsTheSecondPart": "test_the_parts_of_several_jobs_are_published_together",
    "HasNoColumnsWithoutRows": "test_an_empty_range_has_no_rows_and_all_columns",
    "HasOneMarkForAll": "test_a_checkpoint_never_comes_after_a_later_one",
    "IgnoresTheBound": "test_a_bound_from_outside_is_kept_as_far_as_possible",
    "KeepsRowsInARollback": "test_a_rollback_takes_rows_back_or_says_why_they_stay",
    "LeavesTheMark": "test_a_checkpoint_never_comes_after_a_later_one",
    "LetsOldCheckpointsComeAfterARollback": "test_a_rollback_takes_rows_back_or_says_why_they_stay",
    "LosesWhatIsReleasedTooMuch": "test_notices_may_come_often_and_take_nothing_that_is_still_wanted",
    "MovesTheMarkAlone": "test_a_checkpoint_never_comes_after_a_later_one",
    "MovesTheMarkFirst": "test_wherever_the_sink_itself_dies_while_it_publishes_each_row_is_there_once",
    "MovesTheMarkLast": "test_wherever_the_sink_itself_dies_while_it_publishes_each_row_is_there_once",
    "ReadsTheFirstRowTwice": "test_a_bound_from_outside_is_kept_as_far_as_possible",
    "ReadsToTheEnd": "test_a_bound_from_outside_is_kept_as_far_as_possible",
    "ShowsItsPasswordInAnError": "test_no_secret_is_shown_when_a_login_is_refused",
    "TakesAnything": "test_an_output_that_does_not_fit_is_refused_before_anything_is_written",
    "TakesTheFirstFileOnly": "test_rows_in_many_files_and_batches_are_all_published",
    "TellsItsPassword": "test_no_secret_is_shown",
    "VerifiesNothing": "test_a_range_that_cannot_be_read_as_planned_is_refused",
}
"""By defect, the test that notices it. It is run first; if it no longer does, all others are."""


def first_failure(contract: type[Any], folder: Path, spark: Any, defect: str = "") -> str | None:
    """Run the tests of a contract, without the pipeline that dies at each step, until one fails, and return it."""
    in_order = sorted(calls(contract), key=lambda call: call[0] != NOTICED_BY.get(defect))
    for number, (name, arguments) in enumerate(in_order):
        if "dies_at_any_step" in name:
            continue
        world = contract()
        own = folder / str(number)
        own.mkdir()
        world.set_up(own, spark)
        try:
            getattr(world, name)(*arguments)
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception):
            return name
    return None


def calls(contract: type[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the tests of a contract, each with its arguments."""
    for name, test in inspect.getmembers(contract, inspect.isfunction):
        if name.startswith("test_"):
            parameters = [mark.args[1] for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
            yield from ((name, (value,)) for value in parameters[0]) if parameters else [(name, ())]


def with_source(source: type[DuckRows]) -> type[Any]:
    class Contract(DuckRowsContract):
        secrets = ("hunter2",)

        def source(self) -> DuckRows:
            return source("in.db", "orders", "id long, name string", max_rows=2)

    return Contract


def with_sink(sink: type[DuckTable]) -> type[Any]:
    class Contract(DuckTableContract):
        secrets = ("hunter2",)

        def place(self) -> Place:
            return replace(super().place(), connections={"duck.password": "hunter2"})

        def sink(self) -> DuckTable:
            return sink("out.db", self.unique_name, self.keys)

    return Contract


# -- sources -----------------------------------------------------------------------------------------


class ReadsToTheEnd(DuckRows):
    def read(self, spark, splits, context):
        return super().read(spark, splits | {"upto": 2**62}, context)


class ReadsTheFirstRowTwice(DuckRows):
    def read(self, spark, splits, context):
        return super().read(spark, splits | {"after": splits["after"] - 1}, context)


class VerifiesNothing(DuckRows):
    def verify(self, splits, context):
        return None


class ForgetsItsPosition(DuckRows):
    def plan(self, start, context):
        planned = super().plan(start, context)
        return replace(planned, end=(planned.end["id"],))


class IgnoresTheBound(DuckRows):
    def plan(self, start, context):
        planned = super().plan(start, replace(context, at_most=None))
        return replace(planned, end={"id": 2**62}) if context.at_most else planned


class HasNoColumnsWithoutRows(DuckRows):
    def read(self, spark, splits, context):
        frame = super().read(spark, splits, context)
        return frame if splits["rows"] else frame.select("id")


class TellsItsPassword(DuckRows):
    def describe(self):
        return super().describe() | {"password": "hunter2"}


class LosesWhatIsReleasedTooMuch(DuckRows):
    def release(self, before, context):
        with opened(context.place, self.path) as database:
            database.execute(f"DELETE FROM {self.table} WHERE id <= ?", (before["id"] + 1,))


SOURCES = [
    ReadsToTheEnd,
    ReadsTheFirstRowTwice,
    VerifiesNothing,
    ForgetsItsPosition,
    IgnoresTheBound,
    HasNoColumnsWithoutRows,
    TellsItsPassword,
    LosesWhatIsReleasedTooMuch,
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda each: each.__name__)
def test_the_contract_of_sources_notices(source, tmp_path, spark):
    assert first_failure(with_source(source), tmp_path, spark, source.__name__)


# -- sinks -------------------------------------------------------------------------------------------


class ComparesNoMark(DuckTable):
    def load(self, rows, context):
        return super().load(replace(rows, after=self.last(context)), context)


class HasOneMarkForAll(DuckTable):
    def _last(self, database, context):
        return super()._last(database, replace(context, uid="one", sink="mark"))


class MovesTheMarkAlone(DuckTable):
    def load(self, rows, context):
        return super().load(replace(rows, parts=()), context)


class LeavesTheMark(DuckTable):
    def load(self, rows, context):
        before = self.last(context)
        loaded = super().load(rows, context)
        with opened(context.place, self.path) as database:
            database.execute("UPDATE tidegate SET last = ? WHERE app = ?", (before or 0, context.app_id))
        return loaded


class AlwaysSaysThatItHasLoaded(DuckTable):
    def load(self, rows, context):
        super().load(rows, context)
        return True


class ForgetsTheSecondPart(DuckTable):
    def load(self, rows, context):
        return super().load(replace(rows, parts=rows.parts[:1]), context)


class TakesTheFirstFileOnly(DuckTable):
    def load(self, rows, context):
        parts = tuple(msgspec.structs.replace(part, files=part.files[:1]) for part in rows.parts)
        return super().load(replace(rows, parts=parts), context)


class DropsRowsWithNulls(DuckTable):
    def staged_form(self, frame, context):
        return frame.dropna()


class InTwoTransactions(DuckTable):
    """Nobody gets in between, but a process can die there."""

    turn = threading.Lock()

    def load(self, rows, context):
        with self.turn:
            return self.last(context) == rows.after and self.steps(rows, context)

    def add(self, rows, context):
        with opened(context.place, self.path) as database:
            for batch in rows.batches():
                database.register("new", batch)
                database.execute(f"CREATE TABLE IF NOT EXISTS {self.table} AS SELECT * FROM new LIMIT 0")
                database.execute(f"INSERT INTO {self.table} SELECT * FROM new")

    def mark(self, rows, context):
        with opened(context.place, self.path) as database:
            database.execute("INSERT OR REPLACE INTO tidegate VALUES (?, ?)", (context.app_id, rows.checkpoint))

    def rows_stay_reason(self):
        return "it cannot tell them apart"


class MovesTheMarkFirst(InTwoTransactions):
    def steps(self, rows, context):
        self.mark(rows, context)
        self.add(rows, context)
        return True


class MovesTheMarkLast(InTwoTransactions):
    def steps(self, rows, context):
        self.add(rows, context)
        self.mark(rows, context)
        return True


class ShowsItsPasswordInAnError(DuckTable):
    def last(self, context):
        if context.place.connections.get("duck.password") == "hunter2":
            return super().last(context)
        raise Unavailable(f"cannot log in with {dict(context.place.connections)}")


class DiscardsAllAttempts(DuckTable):
    def discard(self, context, staging):
        self.staging_folder(context).remove_folder(entry_folder(context, staging.checkpoint))


class TakesAnything(DuckTable):
    def output_problems(self, schema, context):
        return []


class KeepsRowsInARollback(DuckTable):
    def undo_after(self, rows, to, context):
        return self.load(rows, context)


class LetsOldCheckpointsComeAfterARollback(DuckTable):
    def undo_after(self, rows, to, context):
        done = super().undo_after(rows, to, context)
        with opened(context.place, self.path) as database:
            database.execute("UPDATE tidegate SET last = 3")
        return done


class ShowsItsPassword(DuckTable):
    def __repr__(self):
        return "DuckTable(password=hunter2)"


SINKS = [
    ComparesNoMark,
    HasOneMarkForAll,
    MovesTheMarkAlone,
    LeavesTheMark,
    AlwaysSaysThatItHasLoaded,
    ForgetsTheSecondPart,
    TakesTheFirstFileOnly,
    DropsRowsWithNulls,
    MovesTheMarkFirst,
    MovesTheMarkLast,
    ShowsItsPasswordInAnError,
    DiscardsAllAttempts,
    TakesAnything,
    KeepsRowsInARollback,
    LetsOldCheckpointsComeAfterARollback,
    ShowsItsPassword,
]


@pytest.mark.parametrize("sink", SINKS, ids=lambda each: each.__name__)
def test_the_contract_of_sinks_notices(sink, tmp_path, spark):
    assert first_failure(with_sink(sink), tmp_path, spark, sink.__name__)


def test_without_a_defect_nothing_is_noticed(tmp_path, spark):
    """So what is noticed above is the defect."""
    for number, contract in enumerate((with_source(DuckRows), with_sink(DuckTable))):
        folder = tmp_path / f"whole {number}"
        folder.mkdir()
        assert first_failure(contract, folder, spark) is None
