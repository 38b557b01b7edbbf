"""Windows on real Spark, against plain Python: however input is cut, whoever is late, whichever source is idle."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, seams
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=30)


SCHEMA = "k string, v long, at timestamp"
BEGIN = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)
"""Clocks are put forward in Europe an hour and a half later: windows must not notice."""
DELAY = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]
Told = dict[tuple[Any, ...], tuple[Any, ...]]


def minutes(number: float) -> datetime:
    return BEGIN + number * MINUTE


def row(k: str | None, v: int, at: datetime | None) -> Row:
    """As it comes in; times are written in a zone that changes its clocks in between."""
    return {"k": k, "v": v, "at": at and at.astimezone(timezone_of(at)).isoformat()}


def timezone_of(at: datetime) -> Any:
    from zoneinfo import ZoneInfo

    return ZoneInfo("Europe/Vienna")


# -- the reference ---------------------------------------------------------------------------------------


def windows_of(at: datetime, size: timedelta, slide: timedelta) -> Iterable[tuple[datetime, datetime]]:
    start = EPOCH + (at - EPOCH) // slide * slide
    while start + size > at:
        yield start, start + size
        start -= slide


def slots(rows: Sequence[tuple[Any, int, datetime]], size: timedelta, slide: timedelta) -> Told:
    found: dict[tuple[Any, ...], list[int]] = {}
    for k, v, at in rows:
        for start, end in windows_of(at, size, slide):
            found.setdefault((start, end, k), []).append(v)
    return {key: (len(values), sum(values)) for key, values in found.items()}


def sessions(rows: Sequence[tuple[Any, int, datetime]], gap: timedelta) -> Told:
    found: Told = {}
    for key in {k for k, _, _ in rows}:
        mine = sorted((at, v) for k, v, at in rows if k == key)
        for place, (at, v) in enumerate(mine):
            if place == 0 or at - mine[place - 1][0] > gap:
                start, count, total = at, 0, 0
            count, total = count + 1, total + v
            if place + 1 == len(mine) or mine[place + 1][0] - at > gap:
                found[(start, at + gap, key)] = (count, total)
    return found


def told(rows: Iterable[Row]) -> Told:
    """A window's table; each window is there once."""
    listed = [((r["window_start"], r["window_end"], r["k"]), (r["n"], r["total"])) for r in rows]
    assert len(listed) == len(dict(listed)), "a window was given twice"
    return dict(listed)


# -- however input is cut ----------------------------------------------------------------------------------

KINDS: dict[str, tuple[Row, Callable[[Sequence[tuple[Any, int, datetime]]], Told]]] = {
    "tumbling": ({"tumbling": "10 min"}, lambda rows: slots(rows, 10 * MINUTE, 10 * MINUTE)),
    "hopping": ({"hopping": ("15 min", "10 min")}, lambda rows: slots(rows, 15 * MINUTE, 10 * MINUTE)),
    "session": ({"session": "4 min"}, lambda rows: sessions(rows, 4 * MINUTE)),
    "other": ({"hopping": ("15 min", "10 min")}, lambda rows: slots(rows, 15 * MINUTE, 10 * MINUTE)),
}


OF_WINDOWS = {"n": "sum(n)", "total": "sum(total)"}
"""A window of windows: the same as one window of the rows."""


def all_kinds(pipeline: Pipeline) -> None:
    rows = sources(pipeline, SCHEMA, event_time="at", watermark="5 min")
    for name, (kind, _) in KINDS.items():
        more = {"most": "bool_or(v > 7)"} if name == "other" else {}  # which workers cannot merge
        once = rows.window(**kind, by="k", uid=name, n="count(*)", total="sum(v)", **more)
        once.sink(name, DeltaAppend(f"tables/{name}"))
        if name == "tumbling":
            halves = once.window(tumbling="30 min", by="k", event_time="window_start", **OF_WINDOWS, uid="halves")
            halves.sink("halves", DeltaAppend("tables/halves"))
    live = rows.window(tumbling="10 min", by="k", emit="update", uid="live", n="count(*)", total="sum(v)")
    live.sink("live", DeltaUpsert("tables/live", keys=["window_start", "k"]))


def stream(seed: int, count: int) -> list[tuple[Any, int, datetime]]:
    """Rows in the order in which they come: none later than the delay."""
    dice = random.Random(seed)
    rows = [(dice.choice([None, "a", "b"]), dice.randrange(9), minutes(dice.random() * 200)) for _ in range(count)]
    rows = [(k, v, at.replace(microsecond=at.microsecond // 1000 * 1000)) for k, v, at in rows]
    return sorted(rows, key=lambda each: each[2] + dice.random() * DELAY)


def test_windows_are_the_same_however_the_rows_are_cut_into_checkpoints(tmp_path: Path, spark: Any) -> None:
    rows = stream(seed=7, count=220)
    random.seed(1)
    complete = max(at for _, _, at in rows) - DELAY
    cuts = sorted(random.sample(range(220), 3))
    play = SmallPipeline(tmp_path, spark, all_kinds)
    play.play([[row(*each) for each in rows[a:b]] for a, b in zip([0, *cuts], [*cuts, 220], strict=True)])
    play.checkpoint()  # nothing new: nothing is given again
    for kind, (_, reference) in KINDS.items():
        expected = {key: value for key, value in reference(rows).items() if key[1] <= complete}
        assert told(play.rows(f"tables/{kind}")) == expected, kind
        assert expected, f"{kind}: the test shows something"
    halves = slots(rows, 30 * MINUTE, 30 * MINUTE)
    assert told(play.rows("tables/halves")) == {key: halves[key] for key in halves if key[1] <= complete - 10 * MINUTE}
    assert told(play.rows("tables/live")) == KINDS["tumbling"][1](rows), "all windows as of now"

    stats = play.ack(play.coordinator().ledger.view().last_id).stats
    assert stats.counts == {}, "nothing was late"
    assert {datetime.fromisoformat(at) for at in stats.watermarks.values()} == {complete, complete - 10 * MINUTE}
    assert 1 not in {each.checkpoint for each in play.state("tumbling").files}, (
        "files in which all windows are over are let go"
    )


def gaps(pipeline: Pipeline) -> None:
    rows = sources(pipeline, SCHEMA, event_time="at", watermark=0)
    result = {"n": "count(*)", "total": "sum(v)"}
    rows.window(session="4 min", by="k", uid="once", **result).sink("once", DeltaAppend("tables/once"))
    live = rows.window(session="4 min", by="k", emit="update", uid="live", **result)
    live.sink("live", DeltaUpsert("tables/live", keys=["window_start", "k"]))
    again = rows.window(session="4 min", by="k", allowed_lateness="1 min", uid="again", **result)
    again.sink("again", DeltaUpsert("tables/again", keys=["window_start", "k"]))


def test_a_break_exactly_as_long_as_the_gap_is_within_a_session_as_in_spark(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, gaps)
    a = [row("a", 1, minutes(0)), row("a", 2, minutes(4)), row("a", 4, minutes(8)), row("a", 8, minutes(12.001))]
    b = [row("b", 16, minutes(at)) for at in (0, 4, 8, 12, 99)]
    # Each time the watermark stands just where a's session ends so far; and what follows is not late.
    cuts = [[b[0], a[0]], [b[1]], [a[1]], [b[2]], [a[2], b[3]], [a[3], b[4]]]
    play.play(cuts)
    frame = spark.createDataFrame([(r["k"], r["v"], datetime.fromisoformat(r["at"])) for r in a + b[:4]], SCHEMA)
    frame.createOrReplaceTempView("rows_with_gaps")
    whole = spark.sql(
        "SELECT w.start AS window_start, w.end AS window_end, k, n, total FROM (SELECT session_window(at, '4 minutes') "
        "AS w, k, count(*) AS n, sum(v) AS total FROM rows_with_gaps GROUP BY 1, 2)"
    ).collect()
    expected: Told = {
        (minutes(0), minutes(12), "a"): (3, 7),
        (minutes(12.001), minutes(16.001), "a"): (1, 8),
        (minutes(0), minutes(16), "b"): (4, 64),
    }
    by_spark = [each.asDict() for each in whole]
    for each in by_spark:
        each |= {name: each[name].astimezone(UTC) for name in ("window_start", "window_end")}
    assert told(by_spark) == expected
    assert told(play.rows("tables/once")) == expected
    last = {(minutes(99), minutes(103), "b"): (1, 16)}
    assert told(play.rows("tables/live")) == expected | last
    assert told(play.rows("tables/again")) == expected
    assert [play.ack(id).stats.counts for id in play.coordinator().ledger.ids()] == [{}] * 3, "nothing was late"


def test_pairs_of_values_count_once_and_those_of_which_one_is_missing_do_not(tmp_path: Path, spark: Any) -> None:
    def counted(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k string, v long, w long, at timestamp", event_time="at", watermark=0)
        windows = rows.window(tumbling="10 min", by="k", uid="pairs", pairs="count(distinct v, w)")
        windows.sink("pairs", DeltaAppend("tables/pairs"))

    play = SmallPipeline(tmp_path, spark, counted)
    some = [(1, 1), (1, 2), (1, None), (None, 2), (None, None)]
    for pairs, at in ((some, 0), ([(1, 2), (2, 2), (2, None)], 1), ([(0, 0)], 60)):
        play.feed([{**row("a", 0, minutes(at)), "v": v, "w": w} for v, w in pairs])
        play.checkpoint()
    assert [each["pairs"] for each in play.rows("tables/pairs")] == [3]


# -- late rows ---------------------------------------------------------------------------------------------


def late_rows(pipeline: Pipeline) -> None:
    rows = sources(pipeline, SCHEMA, event_time="at", watermark=0)
    dropped = rows.window(tumbling="10 min", by="k", uid="dropped", n="count(*)", total="sum(v)")
    dropped.sink("dropped", DeltaAppend("tables/dropped"))
    aside = rows.window(session="4 min", by="k", late="side", uid="aside", n="count(*)", total="sum(v)")
    aside.sink("aside", DeltaAppend("tables/aside"))
    aside["late"].sink("late", DeltaAppend("tables/late"))
    hops = rows.window(hopping=("20 min", "10 min"), by="k", late="side", uid="hops", n="count(*)", total="sum(v)")
    hops["late"].sink("hops_late", DeltaAppend("tables/hops_late"))
    again = rows.window(tumbling="10 min", by="k", allowed_lateness="10 min", uid="again", n="count(*)", total="sum(v)")
    again.sink("again", DeltaUpsert("tables/again", keys=["window_start", "k"]))
    other = rows.window(
        tumbling="10 min",
        by="k",
        allowed_lateness="10 min",
        uid="other",
        n="count(*)",
        total="sum(v)",
        b="bool_or(v > 7)",
    )
    other.sink("other", DeltaUpsert("tables/other", keys=["window_start", "k"]))


def test_late_rows_are_counted_or_given_out_or_taken_for_a_while(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, late_rows)
    play.play([[row("a", 1, minutes(1)), row("a", 2, minutes(15)), row("a", 4, None)]])
    late = [row("a", 8, minutes(2)), row("a", 16, minutes(12)), row("b", 32, minutes(16))]
    play.play([late, [row("a", 64, minutes(40))], [row("a", 128, minutes(3)), row("a", 256, minutes(41))]])

    first, second = (minutes(0), minutes(10), "a"), (minutes(10), minutes(20), "a")
    expected: Told = {first: (1, 1), second: (2, 18), (minutes(10), minutes(20), "b"): (1, 32)}
    assert told(play.rows("tables/dropped")) == expected
    for table in ("again", "other"):
        given = told(play.rows(f"tables/{table}"))
        assert given == expected | {first: (2, 9)}, "late, but within the allowed lateness"
    assert told(play.rows("tables/aside")) == {
        (minutes(1), minutes(5), "a"): (1, 1),
        (minutes(12), minutes(19), "a"): (2, 18),
        (minutes(16), minutes(20), "b"): (1, 32),
    }
    assert sorted(r["v"] for r in play.rows("tables/late")) == [4, 8, 128]
    assert sorted(r["v"] for r in play.rows("tables/hops_late")) == [4, 128], "a row is late if all its windows are"
    counts = [play.ack(id).stats.counts for id in play.coordinator().ledger.ids()]
    assert counts[-1]["dropped"] == counts[-1]["again"] == counts[-1]["other"] == {"late": 1}
    assert play.ack(2).stats.counts["dropped"] == {"late": 1}
    assert "again" not in play.ack(2).stats.counts


# -- several sources -----------------------------------------------------------------------------------------


def two_sources(pipeline: Pipeline) -> None:
    left = sources(pipeline, SCHEMA, "left", event_time="at")
    right = sources(pipeline, SCHEMA, "right", event_time="at", watermark="20 min")

    @pipeline.stage(left, right)
    def both(left: Any, right: Any) -> Any:
        return left.unionByName(right)

    counted = both.window(session="10 min", by="k", uid="counted", n="count(*)", total="sum(v)")
    counted.sink("counted", DeltaAppend("tables/counted"))


def test_the_slowest_source_holds_windows_back_until_it_is_idle(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, two_sources, watermark="1 min", idle_timeout="1 h")

    def at(hour: float) -> int:
        with seams.installed(seams.Seams(now=lambda: BEGIN + timedelta(days=9, hours=hour))):
            return play.checkpoint()

    def marks(id: int) -> dict[str, float]:
        found = play.ack(id).stats.watermarks
        return {name: (datetime.fromisoformat(text) - BEGIN) / MINUTE for name, text in found.items()}

    play.feed([row("a", 1, minutes(1)), row("a", 2, minutes(50))], "left")
    (tmp_path / "landing/right").mkdir()
    assert marks(at(0)) == {"left": 49}, "nothing is known of the other source, so nothing is complete"
    play.feed([row("a", 4, minutes(40)), row("a", 8, minutes(9))], "right")
    assert marks(at(0.5)) == {"left": 49, "right": 20, "counted": 20}
    assert told(play.rows("tables/counted")) == {(minutes(1), minutes(19), "a"): (2, 9)}, "one session of two sources"

    play.feed([row("a", 16, minutes(62))], "left")
    id = at(1.4)
    assert (marks(id)["counted"], play.ack(id).stats.idle) == (20, [])
    id = at(1.5)
    assert (marks(id)["counted"], play.ack(id).stats.idle) == (61, ["right"]), "without a row, by the clock alone"
    assert told(play.rows("tables/counted")) == {
        (minutes(1), minutes(19), "a"): (2, 9),
        (minutes(40), minutes(60), "a"): (2, 6),
    }

    play.feed([row("a", 32, minutes(45))], "right")
    id = at(1.6)
    assert marks(id) == {"left": 61, "right": 25, "counted": 61}, "watermarks do not go back"
    assert play.ack(id).stats.counts == {"counted": {"late": 1}}
    partition = play.ack(id).memory["right"]["partitions"][""]
    assert datetime.fromisoformat(partition["highest"]) == minutes(45)


# -- what is refused -----------------------------------------------------------------------------------------


def test_rows_without_the_time_that_was_promised_are_refused(tmp_path: Path, spark: Any) -> None:
    def of(schema: str, **window: Any) -> Callable[[Pipeline], None]:
        def build(pipeline: Pipeline) -> None:
            rows = sources(pipeline, schema, event_time="at")
            counted = rows.window(tumbling="1 hour", uid="hours", n="count(*)", **window)
            counted.sink("hours", DeltaAppend("tables/hours"))

        return build

    refused = {
        "source 'rows' uses event-time column 'at', but its input has no such column": of("k string"),
        "source 'rows' uses event-time column 'at', which is of type bigint": of("at long"),
        "window 'hours' uses event-time column 'then', but its input has no such column": of(
            "at date", event_time="then"
        ),
        "operator 'hours': by names 'c', which its input does not have": of("at timestamp", by="c"),
    }
    for number, (message, build) in enumerate(refused.items()):
        play = SmallPipeline(tmp_path / str(number), spark, build)
        play.feed([{"k": "a"}])
        with pytest.raises(Invalid, match=message):
            play.checkpoint()
