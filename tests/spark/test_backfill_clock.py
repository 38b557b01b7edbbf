"""A backfill goes by the clock of the checkpoints that it replays, and not by the one of the day on which it runs.

Some days are computed as they come, and again a year later by the same code: whatever goes by processing time (state
that expires, windows, timers, freshness) is as it was. With recorded cuts so is all else, to the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.mended_shop import NoFives, OneSession, never
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, seams
from tidegate.backfill import OpenBackfill, begin, replay, swap
from tidegate.backfill.choosing import outlook
from tidegate.backfill.compare import difference_of
from tidegate.checkpoint.quarantine_requests import ask
from tidegate.errors import Rejected
from tidegate.execution.by_hand.editing import edit_state
from tidegate.execution.loop import Observer, Schedule
from tidegate.gates import Freshness
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Request
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.state.table import STATE

pytestmark = in_turn(seconds=30)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
A_YEAR_LATER = BEGIN + timedelta(days=365)
SCHEMA = "id long, k string, v long, at timestamp"
TABLES = ("firsts", "totals", "days", "rung", "seldom")

DAYS: dict[int, list[list[tuple[int, str, int]]]] = {
    1: [[(1, "a", 1), (2, "b", 10)]],
    2: [[(3, "a", 100), (5, "x", 7), (4, "c", 1)]],
    4: [[(6, "a", 1000), (7, "b", 3)]],
    6: [],
    9: [[(8, "a", 10)], [(9, "d", 4)]],
}
"""The files of each day on which there is a checkpoint, with their rows. Keys are forgotten after three days, and the
gate sets every fifth row aside."""


def rings(key: Any, rows: Any, state: Any, timers: Any) -> Iterator[dict[str, Any]]:
    """Asks to be called two days after a key's first row."""
    if timers.fired:
        yield {"k": key["k"], "n": state.n}
    state.n = (state.n or 0) + rows.num_rows
    if state.n == rows.num_rows:
        timers.clock(timers.now + timedelta(days=2))


class Days(SmallPipeline):
    """Each day some files come, and a checkpoint reads them."""

    def __init__(self, root: Path, spark: Any, files_at_once: int = 1000) -> None:
        super().__init__(root, spark, self.declare)
        self.files_at_once = files_at_once
        self.limit(num_retained=100)

    def declare(self, pipeline: Pipeline) -> None:
        rows = sources(pipeline, SCHEMA, max_files=self.files_at_once).gate(Freshness("at", "2 days"), name="fresh")
        good = rows.gate(NoFives(), name="checked")
        firsts = good.deduplicate(by="k", state_ttl="3 days", uid="firsts")
        firsts.sink("firsts", DeltaAppend("tables/firsts"))
        totals = good.aggregate(by="k", state_ttl="3 days", uid="totals", s="sum(v)", n="count(*)")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
        days = good.window(tumbling="1 d", by="k", time="processing", uid="days", n="count(*)", s="sum(v)")
        days.sink("days", DeltaAppend("tables/days"))
        rung = good.process(by="k", state="n long", output="k string, n long", uid="rung")(rings)
        rung.sink("rung", DeltaAppend("tables/rung"))
        seldom = good.aggregate(by="k", uid="all", s="sum(v)").every(2, uid="seldom")
        seldom.sink("seldom", DeltaUpsert("tables/seldom", keys=["k"]))

    def live(self, *days: int) -> None:
        for day in days or DAYS:
            at = BEGIN + timedelta(days=day)
            for rows in DAYS[day]:
                self.feed([{"id": id, "k": k, "v": v, "at": at.isoformat()} for id, k, v in rows])
            if day == 6:
                ask(self.ledger, Request(**stamp("x"), number=1, gate="checked", action="release", seen=3, by="mia"))
            with seams.installed(seams.Seams(now=lambda at=at: at)):  # type: ignore[misc]
                self.checkpoint()

    def tables(self) -> dict[str, list[str]]:
        """All tables, and what is set aside, with the ids and checkpoints by which people name it."""
        shown = {name: sorted(map(repr, self.rows(f"tables/{name}"))) for name in TABLES}
        aside = self.rows("ledger/play/quarantine/checked")
        return shown | {"checked": sorted(map(repr, aside))}

    def states(self) -> dict[str, list[str]]:
        """All states as of the last checkpoint, without the numbers of the checkpoints that wrote the rows."""
        names = [name for name in self.graph().tables if name.startswith(STATE)]
        return {name: sorted(repr(each) for each in _newest(self, name)) for name in names}

    def line(self, origin: int, **options: Any) -> OpenBackfill:
        with seams.installed(seams.Seams(now=lambda: A_YEAR_LATER)):
            line = begin(self.coordinator(), "again", origin, by="ann", **options)
            replay(line, OneSession(self.spark), Schedule(), Observer())
        return line

    def swapped(self, line: OpenBackfill) -> None:
        with seams.installed(seams.Seams(now=lambda: A_YEAR_LATER)):
            assert swap(line, by="ann", choices={}, wait=never).error is None


def _newest(play: Days, name: str) -> list[dict[str, Any]]:
    rows = play.rows(f"ledger/play/state/{name.removeprefix(STATE)}")
    keys = [column for column in (rows[0] if rows else {}) if column in ("k", "window_start", "_row")]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["_checkpoint"]):
        found[tuple(row[key] for key in keys)] = {n: v for n, v in row.items() if n not in ("_checkpoint", "_group")}
    return [row for row in found.values() if not row["_deleted"]]


def clocks(line: OpenBackfill) -> list[str]:
    """Those of the checkpoints that the line has made itself."""
    plans = (line.backfill.ledger.plan(id) for id in line.backfill.ledger.ids(after=line.record.origin))
    return [plan.time[:10] for plan in plans if plan is not None]


@pytest.mark.parametrize(("cuts", "origin"), [("recorded", 0), ("recorded", 1), ("own", 1)])
def test_a_backfill_a_year_later_by_the_same_code_changes_nothing(
    tmp_path: Path, spark: Any, cuts: str, origin: int
) -> None:
    play = Days(tmp_path, spark)
    play.live(*([1, 2, 4] if cuts == "own" else []))
    before, states = play.tables(), play.states()
    if cuts == "recorded":
        assert {row["k"]: (row["s"], row["n"]) for row in play.rows("tables/totals")}["a"] == (10, 1), "forgotten since"
        assert [row["k"] for row in play.rows("tables/firsts")].count("a") == 3, "as was the first one"
        assert [row["k"] for row in play.rows("tables/firsts")].count("x") == 1, "let out of quarantine"
    play.files_at_once = 1  # by bounds of today it would be cut in another way

    line = play.line(origin, cuts=cuts)
    days = [1, 2, 4, 6, 9] if cuts == "recorded" else [1, 2, 4]
    assert clocks(line) == [f"{BEGIN + timedelta(days=day):%Y-%m-%d}" for day in days[origin:]]
    for name in TABLES if cuts == "recorded" else ("firsts", "totals", "days"):
        difference = difference_of(line, name)
        assert (difference.rows_removed, difference.rows_added) == (0, 0), name
    play.swapped(line)
    if cuts == "own":  # nobody has asked about what is set aside, so it has names of its own
        before["checked"] = play.tables()["checked"]
    assert play.tables() == before
    assert play.states() == states
    if origin == 0:  # what was asked is taken up again, and finds that it is done
        with seams.installed(seams.Seams(now=lambda: BEGIN + timedelta(days=10))):
            play.checkpoint()
        assert [row["k"] for row in play.rows("tables/firsts")].count("x") == 1
        assert play.tables()["checked"] == before["checked"]
        return
    plan = play.coordinator().ledger.plan(len(days) + 1)
    assert plan is not None
    assert plan.time.startswith(f"{BEGIN + timedelta(days=days[-1]):%Y-%m-%d}"), "what comes next continues from there"


def test_with_own_cuts_the_dry_run_tells_which_operators_may_have_other_rows(tmp_path: Path) -> None:
    play = Days(tmp_path, None)
    live = play.coordinator()
    live.ledger.start()
    told = "\n".join(outlook(live, 0)["may_differ"])
    for text in (
        "deduplicate 'firsts': which of several different rows of a key is the first: that of the earlier checkpoint; "
        "when a key is forgotten: 3 days by the checkpoints' clock (state_ttl)",
        "aggregate 'totals': when a key is forgotten",
        "window 'days': in which window a row is: that of its checkpoint's clock",
        "process 'rung': which rows of a key it gets in one call: those of a checkpoint; when timers.clock calls it",
        "every 'seldom': when it emits changes: every 2 checkpoints",
        "gate 'fresh': how old its newest row is, by the checkpoint's clock",
    ):
        assert text in told
    assert "'all'" not in told, "a sum is the same, however it is cut"
    assert outlook(live, 0, "recorded")["may_differ"] == []


def test_a_state_that_somebody_has_edited_is_not_lost_without_a_word(tmp_path: Path, spark: Any) -> None:
    play = Days(tmp_path, spark)
    play.live(1, 2)
    with seams.installed(seams.Seams(now=lambda: A_YEAR_LATER)):
        outcome = edit_state(play.coordinator(), spark, "all", lambda rows: rows.where("k <> 'c'"))
    plan = play.coordinator().ledger.plan(outcome.id)
    assert plan is not None
    assert plan.by_hand is not None
    assert plan.time[:10] == "2026-01-03", "no time passes by it"
    with pytest.raises(Rejected) as refused:
        play.line(1, cuts="recorded")
    assert f"in checkpoint 3 {plan.by_hand.by} edited the state of operator 'all'" in str(refused.value)
    line = play.line(1, cuts="recorded", drops_by_hand=True)
    play.swapped(line)
    assert "'c'" in repr(play.states()["state.all"]), "by choice"
