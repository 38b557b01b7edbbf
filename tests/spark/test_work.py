"""What Spark does for each step of a job, on a server and in this process: the same, but for analyses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.jvm import INTERPRETED
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.records.records import JobStats
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.spark.server import server
from tidegate.spark.session import SparkSettings, session
from tidegate.spark.work import metered

if TYPE_CHECKING:
    import pyarrow as pa


def small(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "k int, v int")
    rows.sink("raw", DeltaAppend("tables/raw"))
    totals = rows.aggregate(by="k", total="sum(v)", uid="totals")
    totals.sink("out", DeltaUpsert("tables/out", keys=["k"]))
    most = rows.aggregate(by="k", most="max(v)", uid="most")  # at the same time as the totals
    most.sink("most", DeltaUpsert("tables/most", keys=["k"]))


def third_checkpoint(folder: Path, spark: Any) -> JobStats:
    play = SmallPipeline(folder, spark, small)
    play.play([[{"k": n % 7, "v": n} for n in range(first, first + 40)] for first in (0, 20, 40)])
    return play.ack(3).stats


def check(stats: JobStats) -> None:
    queries = {step.name: step.spark.queries for step in stats.steps if step.spark is not None}
    operators = {"state totals": 1, "state most": 1}
    assert queries == {"read": 0, "share rows": 1, **operators, "stage raw": 1, "stage out": 0, "stage most": 0}
    assert stats.between_steps is not None
    assert stats.between_steps.queries == 0
    total = stats.spark
    assert total.queries == 4
    jobs, stages, tasks = total.jobs, total.stages, total.tasks
    assert jobs is not None
    assert stages is not None
    assert tasks is not None
    assert 2 <= jobs <= stages <= tasks
    share = stats.spark_of("share")
    assert (share.jobs, share.tasks) == (0, 0), "it is only planned"
    for step in stats.steps:
        assert step.spark is not None
        work = step.spark
        assert work.query_s is not None
        assert (work.query_s > 0) == (work.queries != 0)
        assert (work.planning_s or 0) + (work.running_s or 0) <= work.query_s + 0.1
        assert (work.task_s or 0) <= 2 * (work.running_s or 0) + 0.1, "on two cores"
        assert work.query_s <= step.seconds + 0.1
        assert 0 <= (work.slowest_task_s or 0) <= step.seconds + 0.1
        assert work.spilled_bytes == 0
    staged = stats.spark_of("stage raw")
    assert (staged.written_bytes or 0) > 100, "its files"
    assert (stats.spark.slowest_task_s or 0) > 0
    assert (stats.spark_of("state totals").read_bytes or 0) > 0, "its files, or what it shuffles"


def test_a_small_pipeline_on_a_server(tmp_path: Path, connect_spark: Any) -> None:
    stats = third_checkpoint(tmp_path, connect_spark)
    check(stats)
    state = stats.spark_of("state totals")
    assert (state.analyses or 0) > 0
    assert (state.analysis_s or 0) > 0
    assert not {"_analyze", "_execute"} & vars(connect_spark.client).keys(), "the client is as it was"


def test_a_small_pipeline_in_this_process(tmp_path: Path, spark: Any) -> None:
    stats = third_checkpoint(tmp_path, spark)
    check(stats)
    assert (stats.spark.analyses, stats.spark.analysis_s) == (None, None)
    assert not any(tag.startswith("tidegate") for tag in spark.sparkContext.getJobTags())


def test_names_that_each_frame_needs_are_looked_up_once(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java looks through its packages and jars for each, a millisecond or two."""
    from py4j.java_gateway import JVMView

    asked: list[str] = []
    real: Any = JVMView.__getattr__
    monkeypatch.setattr(JVMView, "__getattr__", lambda view, name: (asked.append(name), real(view, name))[1])
    play = SmallPipeline(tmp_path, spark, small)
    for _ in range(2):
        asked.clear()
        play.play([[{"k": n % 7, "v": n} for n in range(40)]])
    assert set(asked) == {"org.apache.spark.sql.Observation"}


def test_workers_do_not_look_at_their_modules_again_after_each_task(tmp_path: Path, spark: Any) -> None:
    def spared(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        import pyarrow as pa

        list(batches)
        yield pa.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()]})

    third_checkpoint(tmp_path, spark)
    asked = spark.range(0, 4, 1, 2).mapInArrow(spared, "objects long").collect()
    assert min(row.objects for row in asked) > 10_000


def test_spark_is_asked_to_forget_only_tags_that_it_was_given(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses others, and to bring its refusal here takes longer than some steps do."""
    context, asked = spark.sparkContext, []
    for name in ("addJobTag", "removeJobTag"):
        real = getattr(context, name)
        monkeypatch.setattr(context, name, lambda tag, real=real, name=name: (asked.append((name, tag)), real(tag)))
    with metered(spark) as meter:
        meter.enter(0)
        assert len(context.getJobTags()) == 1
    given, forgotten = ([tag for name, tag in asked if name == which] for which in ("addJobTag", "removeJobTag"))
    assert len(given) == 2
    assert forgotten == given


@pytest.mark.parametrize("how", ["connect_spark", "spark"])
def test_what_fails_is_counted(how: str, request: pytest.FixtureRequest) -> None:
    opened: Any = request.getfixturevalue(how)
    with metered(opened) as meter:
        meter.enter(0)
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
            opened.range(3).selectExpr("1 DIV (id - id)").collect()
        meter.enter(None)
        taken = meter.collect_work()
    assert (taken[0].queries, taken[None].queries) == (1, 0)
    assert (taken[0].jobs or 0) >= 1


def test_a_server_that_does_not_count_leaves_its_part_unknown(
    connect_spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.spark.work._QUESTION", "of somebody else")
    with metered(connect_spark) as meter:
        assert connect_spark.range(3).count() == 3
        work = meter.collect_work()[None]
    assert (work.queries, work.jobs, work.tasks, work.planning_s) == (1, None, None, None)


def test_a_server_whose_spark_does_not_fit_serves_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "SparkWork.java"
    other.write_text("public class SparkWork extends org.apache.spark.GoneWithTheNextVersion {}")
    monkeypatch.setattr(server, "_COUNTING", (other, *server._COUNTING[1:]))
    settings = SparkSettings(home=tmp_path / "spark", master="local[2]", memory="1g", conf=INTERPRETED)
    try:
        with session(settings) as opened, metered(opened) as meter:
            assert opened.range(3).count() == 3
            work = meter.collect_work()[None]
        assert (work.queries, work.jobs) == (1, None)
        (log,) = (tmp_path / "spark").glob("*/server.log")
        assert "cannot count what Spark does" in log.read_text()
    finally:
        server.stop(tmp_path / "spark", force=True)
