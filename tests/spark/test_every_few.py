"""Changes that are given every few checkpoints: of all rows as they hold then, however rows come to workers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.state import kernel_driver
from tidegate.state.arrow import workers

pytestmark = in_turn(seconds=60)

FED = [[(n % 3, n % 2) for n in range(4 * checkpoint, 4 * checkpoint + 4)] for checkpoint in range(6)]
"""For each checkpoint its rows: many are the same."""


def declare(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "k long, v long, m map<string, long>")
    rows.every(3, uid="as-they-are").sink("log", DeltaAppend("tables/log"))
    plain = rows.select("k", "v")
    plain.every(3, uid="plain").sink("plain", DeltaAppend("tables/plain"))
    totals = plain.aggregate(by="k", uid="totals", n="count(*)", total="sum(v)").every(3, uid="seldom")
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))


def shown(play: SmallPipeline) -> tuple[Counter[Any], Counter[Any], dict[int, tuple[int, int]]]:
    log = Counter((row["k"], row["v"], tuple(row["m"])) for row in play.rows("tables/log"))
    plain = Counter((row["k"], row["v"]) for row in play.rows("tables/plain"))
    return log, plain, {row["k"]: (row["n"], row["total"]) for row in play.rows("tables/totals")}


def wanted(checkpoints: int) -> tuple[Counter[Any], Counter[Any], dict[int, tuple[int, int]]]:
    """What so many checkpoints have, in plain Python."""
    rows = [row for fed in FED[:checkpoints] for row in fed]
    totals = {k: (len(of), sum(of)) for k in {k for k, _ in rows} for of in [[v for other, v in rows if other == k]]}
    return Counter((k, v, (("a", v),)) for k, v in rows), Counter(rows), totals


@pytest.mark.parametrize(("by_files", "most_bytes"), [(True, 1 << 30), (True, 100), (False, 100)])
def test_each_row_is_given_as_often_as_it_holds_with_each_third_checkpoint(
    by_files: bool, most_bytes: int, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps are brought by Spark in any case. With little memory rows wait on local disk."""
    monkeypatch.setattr(kernel_driver, "MAX_BYTES", most_bytes)
    if not by_files:
        monkeypatch.setattr(workers, "usable", lambda *_: False)
    play = SmallPipeline(tmp_path, spark, declare)
    play.watched = True
    spilled = 0
    for number, rows in enumerate(FED, 1):
        play.feed([{"k": k, "v": v, "m": {"a": v}} for k, v in rows])
        id = play.checkpoint()
        assert shown(play) == wanted(number - number % 3), f"after checkpoint {number}"
        for step in play.ack(id).stats.steps:
            spilled += step.computed.spilled if step.computed is not None and "seldom" in step.name else 0
    assert bool(spilled) is (most_bytes == 100)
