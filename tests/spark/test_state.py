"""Keyed state on real Spark and Delta: it follows the batch, survives, is cleaned up, and reads in other engines."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.spark.play import Play, sources
from tidegate import Pipeline
from tidegate.sinks import DeltaUpsert


def totals(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "k string, v long")
    sums = rows.aggregate(by=["k"], uid="totals", n="count(*)", total="sum(v)", least="min(v)", mean="avg(v)")
    sums.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))


def reference(rows: list[dict[str, Any]]) -> dict[Any, tuple[Any, ...]]:
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(row["k"], []).append(row["v"])
    told = {}
    for key, values in found.items():
        known = [v for v in values if v is not None]
        mean = sum(known) / len(known) if known else None
        told[key] = (len(values), sum(known) if known else None, min(known, default=None), mean)
    return told


def test_totals_follow_their_input_however_it_is_cut_and_old_files_go(tmp_path: Path, spark: Any) -> None:
    random.seed(5)
    keys = ["", "a", "b", "é", *(f"k{n}" for n in range(40))]
    rows = [{"k": random.choice(keys), "v": random.choice([None, 1, 2, -7])} for _ in range(400)]
    play = Play(tmp_path, spark, totals)
    cuts = sorted(random.sample(range(400), 19))
    play.play([rows[a:b] for a, b in zip([0, *cuts], [*cuts, 400], strict=True)])

    told = {row["k"]: (row["n"], row["total"], row["least"], row["mean"]) for row in play.rows("tables/totals")}
    assert told == reference(rows)

    assert len(play.state("totals").files) < 18, "runs are merged"
    held = {path.name for path in (tmp_path / "ledger/play/state/totals").rglob("*.parquet")}
    kept = play.coordinator.ledger.ids()
    assert held == {Path(f.file.path).name for id in kept for f in play.state("totals", id).files}, (
        "retention removes what compaction has replaced, and nothing else"
    )
