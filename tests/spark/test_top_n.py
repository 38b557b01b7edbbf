"""The first rows of each key: ties in three ways, of closed windows for good, and rows that expire."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.kit.sampling import in_turn
from tests.spark.random_cuts import counted
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.operators.ranking import RANKS
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=30)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
Row = dict[str, Any]


def numbered(rows: list[Row], key: Any, order: Any, n: int, rank: str) -> list[Row]:
    """The first rows of each key as plain Python numbers them."""
    found = []
    for _, group in itertools.groupby(sorted(rows, key=lambda row: (str(key(row)), order(row))), key=key):
        ordered = list(group)
        ranks = sorted({order(row) for row in ordered})
        for place, row in enumerate(ordered, 1):
            first = next(n for n, other in enumerate(ordered, 1) if order(other) == order(row))
            number = {"row_number": place, "rank": first, "dense_rank": ranks.index(order(row)) + 1}[rank]
            found += [{**row, "rank": number}] if number <= n else []
    return found


def declare(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "k string, v long, id long, at timestamp", event_time="at")
    sums = rows.aggregate(by=["k", "v"], uid="sums", n="count(*)")
    hours = rows.window(tumbling="1 h", by=["k", "v"], uid="hours", n="count(*)")
    for rank in RANKS:
        order = ["v desc", "id"] if rank == "row_number" else "v desc"
        top = rows.top_n(2, by="k", order_by=order, rank=rank, uid=f"top-{rank}")
        top.sink(f"top-{rank}", DeltaUpsert(f"tables/top-{rank}", keys=["k", "id", "rank"]))
        order = ["n desc", "v asc"] if rank == "row_number" else "n desc"
        often = sums.top_n(2, by="k", order_by=order, rank=rank, uid=f"often-{rank}")
        often.sink(f"often-{rank}", DeltaUpsert(f"tables/often-{rank}", keys=["k", "v", "rank"]))
        order = ["n desc", "v asc", "k asc"] if rank == "row_number" else "n desc"
        best = hours.top_n(2, by="window_end", order_by=order, rank=rank, uid=f"best-{rank}")
        best.sink(f"best-{rank}", DeltaAppend(f"tables/best-{rank}"))


def test_ties_are_numbered_as_declared_however_rows_are_cut_and_windows_are_final(tmp_path: Path, spark: Any) -> None:
    dice = random.Random(3)
    rows = [
        {"k": dice.choice("ab"), "v": dice.randrange(4), "id": n, "at": (BEGIN + 7 * n * MINUTE).isoformat()}
        for n in range(36)
    ]
    play = SmallPipeline(tmp_path, spark, declare)
    play.play([rows[:9], rows[9:12], rows[12:25], rows[25:]])

    counts = Counter((row["k"], row["v"]) for row in rows)
    sums = [{"k": k, "v": v, "n": n} for (k, v), n in counts.items()]
    hours: Counter[Any] = Counter()
    for n, row in enumerate(rows):
        start = BEGIN + (7 * n // 60) * 60 * MINUTE
        hours[start, row["k"], row["v"]] += 1
    last = BEGIN + 7 * 35 // 60 * 60 * MINUTE
    windows = [
        {"window_start": start, "window_end": start + 60 * MINUTE, "k": k, "v": v, "n": n}
        for (start, k, v), n in hours.items()
        if start < last
    ]
    for rank in RANKS:
        found = {name: play.rows(f"tables/{name}-{rank}") for name in ("top", "often", "best")}
        found["top"] = [{**row, "at": row["at"].isoformat()} for row in found["top"]]
        wanted = first_rows(rows, sums, windows, rank)
        assert {name: counted(found[name]) for name in found} == {name: counted(wanted[name]) for name in wanted}, rank
    assert play.state("sums").files
    ledger = play.coordinator().ledger
    assert "state.best-rank" not in play.ack(ledger.view().last_id).states, "nothing is kept of closed windows"


def first_rows(rows: list[Row], sums: list[Row], windows: list[Row], rank: str) -> dict[str, list[Row]]:
    """What each of the three tables holds."""
    tells = rank == "row_number"  # then the declared order tells all rows apart
    return {
        "top": numbered(rows, lambda row: row["k"], lambda row: (-row["v"], -row["id"] if tells else 0), 2, rank),
        "often": numbered(sums, lambda row: row["k"], lambda row: (-row["n"], row["v"] if tells else 0), 2, rank),
        "best": numbered(
            windows,
            lambda row: row["window_end"],
            lambda row: (-row["n"], *((row["v"], row["k"]) if tells else ())),
            2,
            rank,
        ),
    }


def test_what_expires_is_as_if_it_had_never_been(tmp_path: Path, spark: Any) -> None:
    def forgetful(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k string, v long, at timestamp", event_time="at")
        other = sources(pipeline, "k string, w long, at2 timestamp", "other", event_time="at2")
        ttl = {"state_ttl": "1 hour", "ttl_time": "event"}
        rows.deduplicate(by="k", uid="once", **ttl).sink("once", DeltaAppend("tables/once"))
        rows.latest(by="k", order_by="v", uid="newest", **ttl).sink("newest", DeltaUpsert("tables/newest", keys=["k"]))
        top = rows.top_n(1, by="k", order_by="v desc", uid="top", **ttl)
        top.sink("top", DeltaAppend("tables/top", changelog=True))
        rows.join(other, on="k", uid="pairs", **ttl).sink("pairs", DeltaAppend("tables/pairs"))

    def row(v: int, hours: float) -> Row:
        return {"k": "a", "v": v, "at": (BEGIN + hours * 60 * MINUTE).isoformat()}

    play = SmallPipeline(tmp_path, spark, forgetful)
    play.feed([{"k": "a", "w": 1, "at2": (BEGIN + 9 * 60 * MINUTE).isoformat()}], "other")
    play.play([[row(7, 0)], [row(5, 0.5)], [row(3, 4)], [row(1, 4.5)], [row(2, 9)]])
    assert sorted(row["v"] for row in play.rows("tables/once")) == [1, 7]
    assert [row["v"] for row in play.rows("tables/newest")] == [2]
    assert sorted(row["v"] for row in play.rows("tables/top")) == [1, 2, 7], "by the watermark as of the base"
    assert sorted(row["v"] for row in play.rows("tables/pairs")) == [3, 5, 7], "the other side's row is gone, too"
