"""The history of a pipeline with 100,000 checkpoints: a page of the list, one checkpoint, percentiles; one row more.

Rows are those of a real checkpoint, with details as long as theirs. Most are written in batches, the last ones one by
one, as runs do: so files lie as they would. What a page costs is asked of a process that has just started, of one that
has shown a page before, and after each new checkpoint, sorted and filtered in turn. Then by whoever looks at it:
through Airflow's web server (http), and in a browser from the navigation to the list (opened; fresh: by one that has
never been there), or from a click within the page (turned). At last two people look at ten pages each, while 500,000
rows wait in quarantine: what that costs Airflow's own answers, and what the dearest answer of ours costs
(page_viewers.py).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.bench import page_viewers
from tests.bench import page_web as web
from tests.bench.harness import Budget, Options, Result
from tests.kit.toy_world import ToyWorld
from tidegate.delta import CommitStamp
from tidegate.history import query as reading
from tidegate.history.query import CheckpointHistory, HistoryFilter
from tidegate.history.row import HistoryRow
from tidegate.history.table import BATCH, HISTORY, journal_of, live_row, remember, rows_table
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Handle, LatestHint

ASKED = (
    HistoryFilter(),
    HistoryFilter(limit=200),
    HistoryFilter(offset=5_000, limit=50),
    HistoryFilter(sort="seconds", limit=50),
    HistoryFilter(states=("aborted",), limit=50),
    HistoryFilter(text="run7", limit=50),
)
LOOKS = ("http", "opened", "fresh", "turned")


def run(options: Options) -> Result:
    count, quarantined = options.size(100_000, 40), options.size(500_000, 200)
    world = ToyWorld(options.folder("page"))
    rows = build(world, count)
    rounds = 10 * options.pairs
    cold, warm, one, summary, more, written = [], [], [], [], [], []
    for number in range(rounds):
        reading._cache.clear()
        cold.append(timed(lambda: page(world, HistoryFilter())))
        warm += [timed(lambda asked=asked: page(world, asked)) for asked in ASKED]
        one.append(timed(lambda number=number: CheckpointHistory(world.ledger, {}).find(1 + number * 37 % count)))
        summary.append(timed(lambda: CheckpointHistory(world.ledger, {}).summary()))
        world.checkpoint(f"more{number}", rows=3)
        written.append(timed(lambda: remember(world.ledger, {})))
        more.append(timed(lambda: page(world, HistoryFilter())))
    told = CheckpointHistory(world.ledger, {})
    files = len(list((world.folder / HISTORY).glob("*.parquet")))
    found, total = told.page(HistoryFilter(limit=1)).rows[0].id, told.page(HistoryFilter()).total
    wrong = "" if (found, total) == (count + rounds, count + rounds) else f"{total} rows, the last is {found}"
    page_viewers.set_many_aside(world, quarantined)
    home, seconds = options.folder("page-airflow"), 2.0 if options.quick else 60.0
    looked, viewed = by_people(world, home, count, 2 if options.quick else rounds, quarantined, seconds)
    wrong = wrong or str(viewed.pop("wrong"))
    pages = cold + warm + more
    return Result(
        "page",
        ours_s=p95(pages),
        pairs=rounds,
        equal=not wrong,
        wrong=wrong,
        keys={
            "page_p95_s": p95(pages),
            "cold_p95_s": p95(cold),
            "warm_p95_s": p95(warm),
            "behind_a_new_one_p95_s": p95(more),
            **{f"{name}_{what}_s": of(times) for name, times in looked.items() for what, of in FIGURES.items()},
            "one_p95_s": p95(one),
            "summary_p95_s": p95(summary),
            "written_p50_s": p50(written),
            "written_p95_s": p95(written),
            **viewed,
            "quarantined": quarantined,
            "rows": rows,
            "files": files,
        },
        budgets=(
            *(Budget(f"{name}_p95_s", 0.200) for name in ("page", *LOOKS)),
            Budget("written_p50_s", 0.010),
            Budget("version_p99_extra_ms", 50.0),
            Budget("answer_cpu_s", 1.0),
        ),
    )


def by_people(
    world: ToyWorld, home: Path, count: int, rounds: int, quarantined: int, seconds: float
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """What they wait for, while checkpoints are made all the time; and what Airflow's own answers wait for them."""
    http: list[float] = []
    opened: list[float] = []
    fresh: list[float] = []
    turned: list[float] = []
    with web.Web(home, world.root) as server, web.viewer(server) as viewer:
        caller = web.Caller(server)
        caller.page("")
        for number in range(rounds):
            world.checkpoint(f"looked{number}", rows=3)
            remember(world.ledger, {})
            http += [timed(lambda query=query: caller.page(query)) for query in web.asked(count)]
            if viewer is not None:
                fresh.append(web.fresh(viewer, server))
                opened.append(web.opened(viewer, server))
                turned += [web.turned(viewer, query) for query in web.asked(count)]
        last = CheckpointHistory(world.ledger, {}).page(HistoryFilter(limit=1)).rows[0].id
        viewed = page_viewers.look(server, last, count // 2, quarantined, seconds)
    looked = {name: times for name, times in zip(LOOKS, (http, opened, fresh, turned), strict=True) if times}
    return looked, viewed


def page(world: ToyWorld, asked: HistoryFilter) -> bytes:
    """What the API does for a page of the list."""
    return msgspec.json.encode([row.document() for row in CheckpointHistory(world.ledger, {}).page(asked).rows])


def build(world: ToyWorld, count: int) -> int:
    """A history of so many rows, of which the ledger has the last one only."""
    world.limit(num_retained=1)
    world.checkpoint("first", rows=3)
    row = live_row(world.ledger, world.ledger.entry(1))
    journal = journal_of(world.ledger, {})
    alone = min(count // 4, 300)
    sizes = [*(min(BATCH, count - alone - at) for at in range(0, count - alone, BATCH)), *[1] * alone]
    last = 0
    for size in sizes:
        made = [like(row, last + n) for n in range(1, size + 1)]
        last += size
        who = CommitStamp(journal.app_id, last, "orders", 0, f"{last:016x}", ("owner", 1))
        assert journal.add(journal.opened(), rows_table(made), who) is not None
    behind(world, count)
    return last


def like(row: HistoryRow, id: int) -> HistoryRow:
    outcome = "aborted" if id % 17 == 0 else "completed"
    padded = msgspec.structs.replace(row.details, detail=" " * 2000)
    return msgspec.structs.replace(
        row, id=id, run=f"run{id}", outcome=outcome, seconds=float(id * 7919 % 1000), details=padded
    )


def behind(world: ToyWorld, count: int) -> None:
    """Let the ledger continue where the history ends: its one entry gets the number of the last row."""
    ledger, entry = world.ledger, world.ledger.entry(1)
    put = msgspec.structs.replace
    ledger.create_entry(put(entry.plan, id=count))
    ledger.index_run(put(entry.plan, id=count))
    sha = ledger.create_ack(put(entry.acks["main"].ack, id=count)).sha
    made = ledger.create_manifest(put(entry.manifest, id=count, jobs={"main": Handle(entry=count, sha=sha)}))
    ledger.create_decision(put(entry.decision, id=count, manifest=made))
    ledger.create_published(put(ledger.published(1), id=count))
    ledger.hint(LatestHint(**stamp("bench"), id=count))
    ledger.delete_entry(1, ())
    for name in world.sinks:
        commits = world.tables[name].commits
        commits[:] = [dataclasses.replace(commit, id=count) for commit in commits]


def timed(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def p95(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


def p50(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


FIGURES = {"p50": p50, "p95": p95}
