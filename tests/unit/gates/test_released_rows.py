"""The rules for rows that are released from quarantine: which operators behind the gate would lose one, and what is
said beforehand. tests/spark/test_released_rows.py plays them end to end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.aside_gate import Aside
from tidegate import Pipeline
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.forecast import Forecast, forecast
from tidegate.gates.quarantine.reader import QuarantinedRows, open_quarantine
from tidegate.gates.quarantine.returning import LateLimit
from tidegate.gates.quarantine.table import QuarantineSink
from tidegate.ledger.ledger import stamp
from tidegate.operators import Clock, KeyedOperator, StepResult
from tidegate.pipeline.graph.late_sensitive import find_late_sensitive_operators
from tidegate.records.records import LateBehind, Request
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

# -- which operators would lose one ------------------------------------------------------------------------


def behind(build: Callable[[Pipeline, Any], Any], *, changelog: bool = False) -> dict[str, LateBehind]:
    """The operators behind a gate that take no late rows, by name."""
    pipeline = Pipeline("events")
    rows = pipeline.source("rows", Files("rows/*.json", schema="id long, k string, at timestamp"), event_time="at")
    gate = rows.gate(Aside(quarantines=True), name="checked")
    build(pipeline, gate).sink("out", DeltaAppend("tables/out", changelog=changelog))
    return {each.operator: each for each in find_late_sensitive_operators(pipeline.graph(), "checked")}


def test_a_row_is_lost_by_what_goes_by_event_time_and_no_other_operator() -> None:
    assert behind(lambda _, rows: rows.aggregate(by="k", uid="totals", n="count(*)"), changelog=True) == {}
    assert behind(lambda _, rows: rows.deduplicate(by="id", uid="once")) == {}
    (once,) = behind(lambda _, rows: rows.deduplicate(by="id", within="1 hour", uid="once")).values()
    assert (once.what, once.column, once.stream, once.stages) == ("deduplicate 'once'", "at", "checked", [])


def test_a_window_takes_a_row_until_it_ends_and_its_lateness_is_over() -> None:
    minute = 60_000_000
    (hours,) = behind(
        lambda _, rows: rows.window(tumbling="1 hour", by="k", allowed_lateness="5 min", uid="hours", n="count(*)"),
        changelog=True,
    ).values()
    assert (hours.lasts, hours.slide, hours.allowed) == (60 * minute, 60 * minute, 5 * minute)


def test_what_an_operator_computes_of_a_row_is_no_such_row() -> None:
    def two_windows(_: Pipeline, rows: Any) -> Any:
        hours = rows.window(tumbling="1 hour", by="k", uid="hours", n="count(*)")
        return hours.window(tumbling="1 day", by="k", event_time="window_end", uid="days", s="sum(n)")

    assert list(behind(two_windows)) == ["hours"]


class PassedOn(KeyedOperator):
    by = ("k",)
    state = "n int"
    emits = "k string, at timestamp"

    def step(self, arrived: Any, stored: Any, clock: Clock) -> StepResult:
        return StepResult(rows=arrived.select(["k", "at"]))


@pytest.mark.parametrize(
    "pass_on",
    [
        lambda rows: rows.process(by="k", state="n int", output="k string, at timestamp", uid="passed")(lambda *_: ()),
        lambda rows: rows.apply(PassedOn(), uid="passed"),
    ],
    ids=["process", "an operator of one's own"],
)
def test_what_a_users_function_makes_of_a_row_may_be_that_row(pass_on: Callable[[Any], Any]) -> None:
    """It says which columns its rows have, and nothing says where their times come from."""
    found = behind(lambda _, rows: pass_on(rows).window(tumbling="1 hour", by="k", uid="hours", n="count(*)"))
    assert {name: (each.stream, each.column) for name, each in found.items()} == {"hours": ("passed", "at")}


def test_a_stream_of_late_rows_loses_none_but_an_operator_behind_it_may() -> None:
    def late_rows(_: Pipeline, rows: Any) -> Any:
        hours = rows.window(tumbling="1 hour", by="k", late="side", uid="hours", n="count(*)")
        hours.sink("hours", DeltaAppend("tables/hours"))
        return hours["late"].deduplicate(by="id", within="1 hour", uid="once")

    found = behind(late_rows)
    assert list(found) == ["once"]
    assert found["once"].stream == "hours.late"


def test_stages_on_the_way_are_known_for_they_may_make_the_time_anew() -> None:
    def renamed(pipeline: Pipeline, rows: Any) -> Any:
        @pipeline.stage(rows)
        def first(rows: Any) -> Any:
            return rows

        once = first.deduplicate(by="id", within="1 hour", uid="once")

        @pipeline.stage(once)
        def second(rows: Any) -> Any:
            return rows

        return second.window(tumbling="1 hour", by="k", event_time="moment", uid="hours", n="count(*)")

    assert {name: (each.stages, each.column) for name, each in behind(renamed).items()} == {
        "once": (["first"], "at"),
        "hours": (["first", "second"], "moment"),
    }


# -- what is said beforehand -------------------------------------------------------------------------------

ROWS: dict[int, tuple[int, str | None]] = {1: (2, "10:05"), 2: (3, "11:59"), 3: (4, "12:00"), 4: (4, None)}
"""By id: the checkpoint that has quarantined the row, and its time."""
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(clock: str) -> datetime:
    hour, minute = map(int, clock.split(":"))
    return datetime(2026, 3, 1, hour, minute, tzinfo=UTC)


@pytest.fixture
def quarantine(tmp_path: Path) -> QuarantinedRows:
    count = len(ROWS)
    rows = {
        "id": pa.array(list(ROWS), pa.int64()),
        "at": pa.array([at(clock) if clock else None for _, clock in ROWS.values()], pa.timestamp("us", "UTC")),
        q.ID: [f"{id:032x}" for id in ROWS],
        q.CHECKPOINT: pa.array([checkpoint for checkpoint, _ in ROWS.values()], pa.int64()),
        q.STREAM: ["rows"] * count,
        q.RULES: pa.array([["positive"]] * count, pa.list_(pa.string())),
        **{name: pa.nulls(count, pa.string()) for name in (q.SETTLED, q.SETTLED_BY)},
        q.SETTLED_IN: pa.nulls(count, pa.int64()),
    }
    write_deltalake(QuarantineSink("checked").path(str(tmp_path)), pa.table(rows))
    found = open_quarantine(str(tmp_path), "checked", {})
    assert found is not None
    return found


def told(quarantine: QuarantinedRows, *takers: LateLimit, **correct: str) -> Forecast:
    request = Request(**stamp("x"), number=1, gate="checked", action="release", seen=9, correct=dict(correct), by="ann")
    return forecast(quarantine, request, takers)


def once(column: str = "at", watermark: datetime | None = NOON, **words: Any) -> LateLimit:
    words = {"operator": "once", "what": "deduplicate 'once'", "column": column, "stream": "checked"} | words
    return LateLimit(LateBehind(**words), watermark)


LATE = "too late for deduplicate 'once', whose watermark is at 2026-03-01 12:00:00 UTC"
TIMELESS = "no time in at, which deduplicate 'once' needs"


def test_rows_from_the_watermark_on_count_and_each_other_one_is_told_with_its_reason(
    quarantine: QuarantinedRows,
) -> None:
    found = told(quarantine, once())
    assert (found.rows, found.counts, found.stays) == (4, 1, {LATE: 2, TIMELESS: 1})
    assert found.first == 2, "a backfill begins before the checkpoint of the first one that would stay"
    assert list(found.lines()) == [
        "deduplicate 'once' takes rows from 2026-03-01 12:00:00 UTC on, by at",
        f"1 row stays in quarantine: {TIMELESS}",
        f"2 rows stay in quarantine: {LATE}",
    ]


def test_without_a_watermark_every_row_that_has_a_time_counts(quarantine: QuarantinedRows) -> None:
    assert told(quarantine, once(watermark=None)).stays == {TIMELESS: 1}


def test_a_row_counts_by_the_time_that_the_request_gives_it(quarantine: QuarantinedRows) -> None:
    assert told(quarantine, once(), at="2026-03-01T12:30:00Z").stays == {}
    assert told(quarantine, once(), at="2026-03-01T11:30:00Z").stays == {LATE: 4}


def test_a_row_that_two_operators_would_lose_is_told_once(quarantine: QuarantinedRows) -> None:
    hour = 3_600_000_000
    hours = once(operator="hours", what="window 'hours'", lasts=hour, slide=hour)
    assert told(quarantine, hours, once()).stays == {
        "too late for window 'hours', whose watermark is at 2026-03-01 12:00:00 UTC": 2,
        "no time in at, which window 'hours' needs": 1,
    }
    assert told(quarantine, once(watermark=at("11:00")), hours).stays == {
        LATE.replace("12:00:00", "11:00:00"): 1,
        "too late for window 'hours', whose watermark is at 2026-03-01 12:00:00 UTC": 1,
        TIMELESS: 1,
    }


def test_of_a_time_that_stages_make_it_is_said_that_the_checkpoint_finds_out(quarantine: QuarantinedRows) -> None:
    found = told(quarantine, once("moment", stages=["renamed"]))
    assert (found.counts, found.stays) == (4, {})
    assert list(found.lines()) == [
        "deduplicate 'once' uses moment as stage 'renamed' computes it: the checkpoint finds out which rows it takes, "
        "and all others stay in quarantine"
    ]


def test_rows_whose_time_nobody_can_tell_are_not_called_released(quarantine: QuarantinedRows) -> None:
    found = told(quarantine, once("moment"))
    assert found.counts == 0
    assert found.stays == {
        "maybe too late for deduplicate 'once': its time in moment is computed after the gate, "
        "not from this row alone": 4
    }


def test_of_a_verdict_that_does_not_know_the_way_no_row_is_promised_to_count(quarantine: QuarantinedRows) -> None:
    (line,) = told(quarantine, once("moment", stream="")).lines()
    assert "the checkpoint finds out which rows it takes, and all others stay in quarantine" in line
