"""Rows that an operator's workers have written become a table's files as they are: Spark does not write them again."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate.operators import aggregate
from tidegate.operators.window import closing
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.spark.storage import writing
from tidegate.state import kernel_driver
from tidegate.state.arrow.kernel_worker import KernelPlan as plan

pytestmark = in_turn(seconds=55)

BIDS = "id long, seller long, price decimal(9,2), tags array<string>, at timestamp"
SELLERS = "seller long, name string, since date"


def paired(pipeline: Any) -> None:
    bids, sellers = sources(pipeline, BIDS, "bids"), sources(pipeline, SELLERS, "sellers")
    pairs = bids.join(sellers, on="seller", uid="pairs")
    pairs.sink("out", DeltaAppend("tables/out"))


def newest(pipeline: Any) -> None:
    bids = sources(pipeline, BIDS, "bids")
    bids.latest(by="seller", order_by="at", uid="newest").sink("out", DeltaUpsert("tables/out", keys=["seller"]))


def highest(pipeline: Any) -> None:
    bids = sources(pipeline, BIDS, "bids")
    first = bids.top_n(2, by="seller", order_by=["price desc", "id asc"], uid="highest")
    first.sink("out", DeltaUpsert("tables/out", keys=["seller", "rank"]))


SUMS = {"n": "count(*)", "ids": "sum(id)", "most": "max(price)", "mean": "avg(id)", "kinds": "count(distinct price)"}


def totals(pipeline: Any) -> None:
    sums = sources(pipeline, BIDS, "bids").aggregate(by="seller", **SUMS, uid="totals")
    sums.sink("out", DeltaUpsert("tables/out", keys=["seller"]))


def totals_of_newest(pipeline: Any) -> None:
    """Over rows that are replaced, and themselves replaced under another key than their own."""
    latest = sources(pipeline, BIDS, "bids").latest(by="seller", order_by="at", uid="newest")
    by_price = latest.aggregate(by="price", n="count(*)", ids="sum(id)", mean="avg(id)", uid="by_price")
    by_price.sink("out", DeltaUpsert("tables/out", keys=["n", "ids"]))


def windows(pipeline: Any) -> None:
    counts = sources(pipeline, BIDS, "bids", event_time="at").window(
        tumbling="7 s", emit="update", by="seller", n="count(*)", mean="avg(id)", uid="counts"
    )
    counts.sink("out", DeltaUpsert("tables/out", keys=["seller", "window_start"]))


def windows_by_result(pipeline: Any) -> None:
    counts = sources(pipeline, BIDS, "bids", event_time="at").window(
        tumbling="7 s", emit="update", by="seller", n="count(*)", mean="avg(id)", uid="counts"
    )
    counts.sink("out", DeltaUpsert("tables/out", keys=["seller", "window_start", "n"]))


def late_windows(pipeline: Any) -> None:
    counts = sources(pipeline, BIDS, "bids", event_time="at", watermark="0 s").window(
        hopping=("8 s", "4 s"), allowed_lateness="1 hour", by="seller", n="count(*)", ids="sum(id)", uid="counts"
    )
    counts.sink("out", DeltaUpsert("tables/out", keys=["seller", "window_start"]))


def spells(pipeline: Any) -> None:
    spells = sources(pipeline, BIDS, "bids", event_time="at").window(
        session="3 s", by="seller", n="count(*)", mean="avg(id)", uid="spells"
    )
    spells.sink("out", DeltaAppend("tables/out"))


def twice(pipeline: Any) -> None:
    bids, sellers = sources(pipeline, BIDS, "bids"), sources(pipeline, SELLERS, "sellers")
    pairs = bids.join(sellers, on="seller", uid="pairs")
    pairs.sink("out", DeltaAppend("tables/out"))
    pairs.sink("copy", DeltaAppend("tables/copy"))


def bids(begin: int, end: int) -> list[dict[str, Any]]:
    rows = [{"id": n, "seller": None if n % 7 == 6 else n % 4, "tags": [f"t{n}", None]} for n in range(begin, end)]
    return [row | {"price": f"{row['id'] * 7 % 11}.50", "at": f"2026-01-01T00:00:{row['id']:02}Z"} for row in rows]


def told(root: Path, spark: Any, build: Any) -> SmallPipeline:
    """A pipeline after two checkpoints."""
    play = SmallPipeline(root, spark, build)
    for begin in (0, 20):
        play.feed(bids(begin, begin + 20), "bids")
        play.feed([{"seller": begin // 10 + n, "name": f"s{n}", "since": "2020-02-02"} for n in (0, 1)], "sellers")
        play.checkpoint()
    return play


def by_spark(spark: Any, play: SmallPipeline, table: str = "out") -> list[Any]:
    rows = spark.read.format("delta").load(str(play.root / "tables" / table)).collect()
    return sorted((row.asDict() for row in rows), key=repr)


@pytest.mark.parametrize("build", [paired, newest, highest])
def test_spark_writes_nothing_that_workers_have_written(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, build: Any
) -> None:
    with monkeypatch.context() as no_links:
        no_links.setattr(writing, "_linked", lambda *_: False)
        wanted = by_spark(spark, told(tmp_path / "spark", spark, build))
    asked = []
    monkeypatch.setattr(writing, "_write_with_spark", lambda *told: asked.append(told))
    play = told(tmp_path / "linked", spark, build)
    assert by_spark(spark, play) == wanted
    assert len(wanted) >= 5
    assert not asked


@pytest.mark.parametrize(
    ("build", "by_spark_too"),
    [(totals, 0), (totals_of_newest, 2), (windows, 0), (windows_by_result, 2), (late_windows, 0), (spells, 0)],
)
def test_results_are_written_by_workers_and_are_what_spark_computes(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, build: Any, by_spark_too: int
) -> None:
    """What rows of other keys may replace is put together by Spark."""
    with monkeypatch.context() as no_results:
        for module in (aggregate, closing):
            no_results.setattr(module, "project_in_workers", lambda *_: None)
        wanted = by_spark(spark, told(tmp_path / "spark", spark, build))
    written, write = [], writing._write_with_spark
    monkeypatch.setattr(writing, "_write_with_spark", lambda *told: (written.append(told), write(*told))[1])
    play = told(tmp_path / "workers", spark, build)
    assert by_spark(spark, play) == wanted
    assert len(wanted) >= 4
    assert len(written) == by_spark_too


def test_where_a_file_has_only_one_name_spark_writes(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of the files cannot be linked: what was linked before is gone, or rows would be there twice."""
    links = []

    def refused(source: Any, target: Any, **how: Any) -> None:
        if "/tables/" in str(target):
            links.append(target)
            if len(links) % 2 == 0:
                raise OSError(errno.EXDEV, "another disk")
        real(source, target, **how)

    real = os.link
    monkeypatch.setattr(kernel_driver, "MAX_STORED_FOR_ONE_WORKER", -1)  # two workers, so two files
    wanted = by_spark(spark, told(tmp_path / "linked", spark, paired))
    monkeypatch.setattr(os, "link", refused)
    assert by_spark(spark, told(tmp_path / "refused", spark, paired)) == wanted
    assert links[0].parent == links[1].parent, "the first file was linked before the second could not be"


def test_each_of_two_tables_keeps_its_rows_when_the_other_is_removed(tmp_path: Path, spark: Any) -> None:
    play = told(tmp_path, spark, twice)
    rows = by_spark(spark, play)
    assert by_spark(spark, play, "copy") == rows
    shutil.rmtree(tmp_path / "tables/out")
    assert by_spark(spark, play, "copy") == rows


def test_a_sink_that_leaves_out_a_column_has_it_written_without(tmp_path: Path, spark: Any) -> None:
    def build(pipeline: Any) -> None:
        latest = sources(pipeline, BIDS, "bids").latest(by="seller", order_by="at", uid="newest")
        latest.sink("out", DeltaUpsert("tables/out", keys=["seller"], omit=["tags"]))

    rows = by_spark(spark, told(tmp_path, spark, build))
    assert rows
    assert all("tags" not in row for row in rows)


@pytest.mark.parametrize("asked", ["another compression", "the folder's group"])
def test_where_files_are_to_be_otherwise_spark_writes(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    codec = "spark.sql.parquet.compression.codec"
    written, write = [], writing._write_with_spark
    monkeypatch.setattr(writing, "_write_with_spark", lambda *told: (written.append(told), write(*told))[1])
    if asked == "another compression":
        spark.conf.set(codec, "zstd")
    else:
        (tmp_path / "tables").mkdir()
        (tmp_path / "tables").chmod(0o2775)
    try:
        play = told(tmp_path, spark, paired)
    finally:
        spark.conf.unset(codec)
    assert len(written) == 2, "once in each checkpoint"
    assert len(by_spark(spark, play)) == len(play.rows("tables/out")) > 5


def test_rows_that_are_replaced_are_written_only_if_somebody_takes_them(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(pipeline: Any) -> None:
        latest = sources(pipeline, BIDS, "bids").latest(by="seller", order_by="at", uid="newest")
        sums = latest.aggregate(by=[], ids="sum(id)", uid="sums")
        sums.sink("out", DeltaUpsert("tables/out", keys=["ids"]))

    plans = []

    def kernel_plan(**arguments: Any) -> Any:
        plans.append(arguments["emit_plan"].retractions_folder)
        return plan(**arguments)

    monkeypatch.setattr(kernel_driver, "KernelPlan", kernel_plan)
    told(tmp_path / "nobody", spark, newest)
    assert plans == [None, None]
    (row,) = by_spark(spark, told(tmp_path / "taken", spark, taken))
    last = {bid["seller"]: bid["id"] for bid in bids(0, 40)}
    assert row["ids"] == sum(last.values()), "of each seller's last bid, in place of the one before"
