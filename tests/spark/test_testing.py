"""tidegate.testing as a user's test has it: real checkpoints in a folder, which crash where they are told to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidegate.testing
from tests.kit.documents import code_of
from tests.kit.sampling import in_turn
from tidegate import Pipeline, seams
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.seams import FAULT_POINTS
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Source
from tidegate.testing import Crash, TestSource, crash_at, points_reached

pytestmark = in_turn(seconds=40)

ROWS = ([{"customer": 7, "amount": 10.0}], [{"customer": 7, "amount": 20.0}, {"customer": 8}])


def totals_of(source: Source) -> Pipeline:
    pipeline = Pipeline("orders")
    orders = pipeline.source("orders", source)
    orders.sink("all", DeltaAppend("tables/all"))
    totals = orders.aggregate(by="customer", spent="sum(amount)", uid="totals")
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["customer"]))
    return pipeline


@pytest.fixture
def source() -> TestSource:
    return TestSource("customer long, amount double", *ROWS)


def test_two_checkpoints_with_a_crash_between_them(source, tmp_path, spark):
    with tidegate.testing.run(totals_of(source), tmp_path, spark=spark) as running:
        assert running.rows("totals") == []
        assert running.checkpoint() == 1
        assert running.rows("totals") == [{"customer": 7, "spent": 10.0}]
        running.crash_at("S9.decision.before")
        assert running.rows("totals") == [{"customer": 7, "spent": 10.0}], "2 was not decided"
        assert running.checkpoint() == 3
        wanted = [{"customer": 7, "spent": 30.0}, {"customer": 8, "spent": None}]
        assert sorted(running.rows("totals"), key=lambda row: row["customer"]) == wanted
        assert running.until_idle() == []
        assert (running.data, running.ledger.ids()) == (tmp_path / "data", [1, 2, 3])


def test_a_crash_after_the_decision_loses_nothing_and_publishes_once(source, tmp_path, spark):
    with tidegate.testing.run(totals_of(source), tmp_path, spark=spark) as running:
        running.crash_at("S9.decision.after")
        assert running.rows("all") == []
        assert running.until_idle() == [2]
        assert len(running.rows("all")) == 3
        source.arrive({"customer": 9, "amount": 1.0})
        running.crash_at("S10.publish.after", times_passed=1)
        running.until_idle()
        assert len(running.rows("all")) == 4


def test_another_run_in_the_same_folder_continues_where_it_stood(source, tmp_path, spark):
    for checkpoint in (1, 2):
        with tidegate.testing.run(totals_of(source), tmp_path, spark=spark) as running:
            assert running.checkpoint() == checkpoint
    assert len(running.rows("all")) == 3


@pytest.mark.parametrize("call", ["plan", "verify", "read"])
def test_a_source_that_is_told_to_crash_does(source, tmp_path, spark, call):
    source.crash_at(call)
    with tidegate.testing.run(totals_of(source), tmp_path, spark=spark) as running:
        running.crash()
        running.until_idle()
        assert len(running.rows("all")) == 3


@pytest.mark.parametrize("call", ["plan", "verify", "read"])
def test_a_source_that_does_not_answer_is_asked_again(source, tmp_path, spark, call):
    source.away_at(call, times=2)
    with tidegate.testing.run(totals_of(source), tmp_path, spark=spark) as running:
        assert running.checkpoint() == 1
        source.away_at(call, times=9)
        with pytest.raises(Unavailable, match="does not answer"):
            running.checkpoint()
        source.away_at(call, times=0)
        running.until_idle()
        assert len(running.rows("all")) == 3


def test_a_source_that_answers_late_is_waited_for(source, tmp_path, spark):
    source.late_at("verify", 0.05)
    before = seams.monotonic()
    with tidegate.testing.run(totals_of(source), tmp_path, spark=spark) as running:
        running.checkpoint()
    assert seams.monotonic() - before >= 0.05


def test_input_that_is_lost_after_it_was_planned_is_refused(source, tmp_path, spark):
    with tidegate.testing.run(totals_of(source), tmp_path, spark=spark) as running:

        def lose(point: str) -> None:
            if point == "S1.entry.after":
                source.lose(0)

        with seams.installed(seams.Seams(fault=lose)), pytest.raises(Invalid) as refused:
            running.checkpoint()
        assert refused.value.reason == "INPUT_CHANGED"
        assert running.rows("all") == []


def test_a_checkpoint_that_is_aborted_is_no_success(source, tmp_path, spark):
    pipeline = totals_of(source)
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:

        def abort(point: str) -> None:
            if point == "S6.ack.before":
                running.coordinator().abort(1, "CANCELLED", "by somebody else")

        with seams.installed(seams.Seams(fault=abort)), pytest.raises(Rejected, match="CANCELLED") as refused:
            running.checkpoint()
        assert refused.value.reason == "NOT_COMPLETED"


def test_it_says_what_a_test_gets_wrong(source, tmp_path, spark):
    with pytest.raises(Invalid, match="there is no fault point 'S99'") as refused, crash_at("S99"):
        pass
    assert refused.value.reason == "NO_SUCH_POINT"
    with pytest.raises(AssertionError, match="never reached S9.decision.before"), crash_at("S9.decision.before"):
        pass
    with pytest.raises(Invalid, match="no call 'write'"):
        source.crash_at("write")
    with tidegate.testing.run(totals_of(source), tmp_path, spark=spark) as running:
        with pytest.raises(AssertionError, match="did not crash"):
            running.crash()
        with pytest.raises(Invalid, match="no table of a sink 'sales'"):
            running.rows("sales")


def test_the_fault_points_of_a_checkpoint_are_told_in_their_order(source, tmp_path, spark):
    with tidegate.testing.run(totals_of(source), tmp_path, spark=spark) as running, points_reached() as points:
        running.checkpoint()
    assert set(points) <= set(FAULT_POINTS) == set(tidegate.testing.FAULT_POINTS)
    order = ["S1.entry.after", "S4.stage.after", "S6.ack.after", "S9.decision.after", "S10.publish.after"]
    assert [point for point in dict.fromkeys(points) if point in order] == order


def test_a_crash_is_no_exception_that_anything_would_handle():
    assert not issubclass(Crash, Exception)


def test_settings_are_the_tests_own(source, tmp_path, spark):
    settings = {"num_retained": "1"}
    with tidegate.testing.run(totals_of(source), tmp_path, spark=spark, settings=settings) as running:
        running.until_idle()
        source.arrive({"customer": 9})
        running.until_idle()
        assert running.ledger.ids() == [3]
    misspelt = tidegate.testing.run(totals_of(source), tmp_path, settings={"num_retaind": "1"})
    with pytest.raises(Invalid, match="no such setting"), misspelt:
        pass


def test_a_sink_without_versions_is_not_guessed_at(source, tmp_path, spark):
    module: dict[str, Any] = {}
    exec(code_of("jobs/sqlite_table.py"), module)
    pipeline = Pipeline("copy")
    pipeline.source("orders", source).sink("copied", module["SqliteTable"]("out.db", "t", ["customer", "amount"]))
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        running.checkpoint()
        with pytest.raises(Invalid, match="keeps no versions"):
            running.rows("copied")


# -- without pytest, and with a session of its own ---------------------------------------------------

SCRIPT = """
import sys

sys.modules["pytest"] = None  # as if it were not installed
import tidegate.testing
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend

try:
    tidegate.testing.SinkContract
except Invalid as error:
    print(error.reason, error.help)
pipeline = Pipeline("orders", spark={"mode": "submit"})
source = tidegate.testing.TestSource("id long", [{"id": 1}])
rows = pipeline.source("in", source)
rows.sink("out", DeltaAppend("tables/out"))
told = []


def seen(rows):  # it is called once more by the first checkpoint, which traces its columns
    partitions = rows.sparkSession.conf.get("spark.sql.shuffle.partitions")
    if partitions not in told:
        told.append(partitions)
    return rows


first = pipeline.stage(rows, name="first")(seen)
own = {"spark.sql.shuffle.partitions": 3, "spark.executor.memory": "100g"}
pipeline.stage(first.job("second", spark=own), name="second")(seen).sink("too", DeltaAppend("tables/too"))
with tidegate.testing.run(pipeline, sys.argv[1]) as running:
    running.checkpoint()
    with tidegate.testing.local_spark() as spark:
        print(spark.range(3).count(), running.rows("out"), told)
"""


def test_it_works_without_pytest_and_opens_spark_by_itself(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["NOT_INSTALLED pip install pytest", "3 [{'id': 1}] ['2', '3']"]
