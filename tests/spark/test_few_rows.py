"""Few rows are not shared out: one worker computes what they change, and the next checkpoint continues from that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.execution.job import small_input
from tidegate.sinks import DeltaUpsert
from tidegate.state import kernel_driver


def totals(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "k long, v long").select("k", "v", where="v > 0")
    sums = rows.aggregate(by="k", n="count(*)", total="sum(v)", uid="totals")
    sums.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))


KEYS = range(100)
ROWS = [{"k": key, "v": key + 1} for key in KEYS]


def added(play: SmallPipeline) -> int:
    """How many files a checkpoint with all keys adds to the state: one for each worker that has computed some."""
    play.feed(ROWS)
    id = play.checkpoint()
    return sum(file.checkpoint == id for file in play.state("totals", id).files)


@pytest.mark.parametrize("what", ["bytes", "stored"])
def test_few_rows_are_computed_by_one_worker_and_many_by_several(
    what: str, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = SmallPipeline(tmp_path, spark, totals)
    first = added(play)
    assert added(play) == 1
    with monkeypatch.context() as fewer:
        if what == "stored":
            fewer.setattr(kernel_driver, "MAX_STORED_FOR_ONE_WORKER", len(KEYS) - 1)
        else:
            fewer.setattr(small_input, "FEW_BYTES", 1)
        shared_out = added(play)
    assert added(play) == 1

    told = {row["k"]: (row["n"], row["total"]) for row in play.rows("tables/totals")}
    assert told == {key: (4, 4 * (key + 1)) for key in KEYS}
    assert (first, shared_out) == (1, 2)
