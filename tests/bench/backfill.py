"""Thirty days of the example computed again: against the time that they took live, and against a full refresh.

A day is a checkpoint of 20 files of orders, and of payments, with 1,000 orders each. First the pipeline makes its
checkpoints, on the embedded server. `speedup` is their time, without the first, which starts Spark, over that of a
backfill from the beginning, from its begin until it is swapped into all tables; it reads DAYS times as much in a
checkpoint as the sources' bounds allow, so all of it in one.

`ratio_refresh`: in turn with Structured Streaming, which computes the same graph from the beginning into new tables, in
one batch per query, in a warm process of its own (backfill_refresh.py). It quarantines nothing, and nobody's tables
are replaced by it.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from tests.bench.floor import revenue, table
from tests.bench.floor_project import Project
from tests.bench.harness import Budget, Options, Pairs, Result, in_turn
from tests.bench.sides import Side
from tests.kit.example import Expected

DAYS = 30


def run(options: Options) -> Result:
    root = options.folder("backfill")
    days = options.size(DAYS, 3)
    project = Project(root / "example", options.size(20, 4), options.size(1_000, 20))
    project.feed(days)
    theirs = root / "streaming"
    theirs.mkdir()
    try:
        with (
            Side(theirs, "tests.bench.backfill_refresh", str(theirs), str(project.data / "landing")) as refresh,
            Side(project.folder, "tests.bench.backfill_ours", str(days), str(days), beside=project.server) as ours,
        ):
            live = [ours.take(number) for number in range(days)]
            turns = in_turn(
                lambda number: ours.take(days + number),
                refresh.take,
                warmups=options.size(1, 0),
                pairs=options.pairs,
            )
            wrong = differs(project, theirs / f"{len(turns.rounds) - 1 + options.size(1, 0)}")
    finally:
        project.stop_spark()
    wall = turns.wall()
    cores = Pairs(*(side.core_s[-options.pairs :] for side in (ours, refresh)))
    warm_s = statistics.median(live[len(live) // 2 :])
    took_s = sum(live[1:]) + warm_s
    ours_s = statistics.median(wall.ours)
    return Result(
        "backfill",
        ours_s=ours_s,
        pairs=options.pairs,
        rival_s=statistics.median(wall.rival),
        ratio=wall.ratio,
        equal=not wrong,
        wrong=wrong,
        keys={
            "ratio_refresh": wall.ratio,
            "spread": wall.spread(),
            "ratio_cores": cores.ratio,
            "speedup": took_s / ours_s,
            "slowness": ours_s / took_s,
            "live_s": took_s,
            "checkpoint_s": warm_s,
            "orders": days * project.files * project.rows,
        },
        budgets=(Budget("ratio_refresh", 1.0), Budget("slowness", 0.2)),
    )


def differs(project: Project, theirs: Path) -> str:
    """All rows that are due are in our tables, and no others; in the rival's, too, but for the last minutes."""
    expected = Expected(project.fed, project.fed, project.rows)
    ours = project.data / "tables"
    found = {row[:2]: row[2:] for row in revenue(ours)}
    if found != expected.revenue:
        return f"our revenue has {len(found)} rows, not {len(expected.revenue)}, or others"
    their_found = {row[:2]: row[2:] for row in revenue(theirs)}
    closed = min(max(start for start, _ in side) for side in (found, their_found))
    ours_closed, theirs_closed = (
        {key: row for key, row in side.items() if key[0] <= closed} for side in (found, their_found)
    )
    if ours_closed != theirs_closed:
        return f"Structured Streaming has other revenue until {closed}"
    for name, side in (("our", ours), ("Structured Streaming's", theirs)):
        totals = {row["customer_id"]: (row["spent"], row["orders"], row["last"]) for row in table(side / "totals")}
        if totals != expected.totals:
            return f"{name} totals are not those of the files"
    return ""
