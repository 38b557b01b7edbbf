"""Rows that are released from quarantine are old: each counts in every table behind the gate, or stays where it is."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.jvm import settings_of_fixture
from tests.kit.sampling import in_turn
from tests.spark.mended_shop import OneSession, never
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.backfill import OpenBackfill, begin, discard, replay, swap
from tidegate.backfill.choosing import outlook
from tidegate.backfill.compare import difference_of
from tidegate.cli.main import main
from tidegate.execution.job.run_job import run_job
from tidegate.execution.loop import Observer, Schedule
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend

pytestmark = in_turn(seconds=55)

SUITE = """
name: orders
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: v, min_value: 0}, id: positive}
"""


def at(clock: str) -> str:
    return f"2026-03-01T{clock}:00Z"


def order(id: int, clock: str | None, v: float = 1.0) -> dict[str, Any]:
    return {"id": id, "k": "a", "at": at(clock) if clock else None, "v": v}


def cli(*arguments: str) -> Any:
    """What a command says, as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*arguments, "--json"])
    return code, json.loads(out.getvalue())


def text(*arguments: str) -> str:
    """What a command says to people."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main([*arguments])
    return " ".join(out.getvalue().split())


@pytest.fixture
def played(spark: Any, tmp_path: Path, monkeypatch: Any) -> Any:
    """Begins a pipeline: `build` puts operators behind a gate that sets rows with a negative v aside."""
    folder = tmp_path / "include" / "expectations"
    folder.mkdir(parents=True)
    (folder / "orders.yaml").write_text(SUITE)
    (tmp_path / "tidegate.toml").write_text(settings_of_fixture())
    monkeypatch.chdir(tmp_path)

    def begin(build: Any) -> SmallPipeline:
        def declare(pipeline: Pipeline) -> None:
            rows = sources(pipeline, "id long, k string, at timestamp, v double", event_time="at")
            gate = rows.gate(Expectations("orders", on_failure="quarantine"), name="checked")
            build(pipeline, gate)

        return SmallPipeline(tmp_path, spark, declare)

    return begin


def feed(played: SmallPipeline, *orders: dict[str, Any]) -> int:
    played.feed(orders)
    return played.checkpoint()


def waiting(played: SmallPipeline) -> dict[int, str | None]:
    """The rows that wait in quarantine, with the reason why they were not released, if somebody asked for it."""
    rows = played.rows("ledger/play/quarantine/checked")
    return {row["id"]: row.get("_tidegate_stays") for row in rows if row["_tidegate_settled"] is None}


def release(*arguments: str) -> Any:
    return cli("quarantine", "release", "play", "checked", "--set", "v=1", *arguments)


def test_behind_deduplicate_a_join_and_a_window_each_row_is_in_every_table_or_in_quarantine(played: Any) -> None:
    def build(pipeline: Pipeline, orders: Any) -> None:
        payments = sources(pipeline, "id long, paid_at timestamp", "payments", event_time="paid_at")
        orders.deduplicate(by="id", within="1 hour", uid="once").sink("once", DeltaAppend("tables/once"))
        near = orders.join(payments, on="id", within="30 min", how="left", event_time=("at", "paid_at"), uid="near")
        near.sink("near", DeltaAppend("tables/near"))
        hours = orders.window(tumbling="1 hour", by="k", uid="hours", n="count(*)", ids="collect_list(id, 100)")
        hours.sink("hours", DeltaAppend("tables/hours"))

    pipeline = played(build)
    clocks = {1: "10:00", 2: "10:05", 3: "10:20", 4: "11:30", 5: "11:40"}
    pipeline.feed([{"id": id, "paid_at": at(clock)} for id, clock in clocks.items()], "payments")
    feed(pipeline, order(1, "10:00"), order(2, "10:05", -1))
    feed(pipeline, order(3, "10:20", -1), order(4, "11:30"))
    asked_after = feed(pipeline, order(5, "11:40", -1))
    assert waiting(pipeline) == {2: None, 3: None, 5: None}

    code, told = release("--all", "--dry-run")
    assert (code, told["rows"], told["expected"]["counts"], "request" in told) == (0, 3, 1, False)
    ((reason, rows),) = told["expected"]["not_released"].items()
    assert (rows, reason) == (2, "too late for deduplicate 'once', whose watermark is at 2026-03-01 11:40:00 UTC")
    assert told["expected"]["operators"] == [
        "deduplicate 'once' takes rows from 2026-03-01 11:40:00 UTC on, by at",
        "join 'near' takes rows from 2026-03-01 11:40:00 UTC on, by at",
        "window 'hours' takes rows of windows that end after 2026-03-01 11:40:00 UTC, by at",
    ]
    sql = "at = at + INTERVAL 2 HOURS"
    later = cli("quarantine", "release", "play", "checked", "--all", "--set", sql, "--set", "v=1", "--dry-run")[1]
    assert (later["expected"]["counts"], later["preview"]["changed"]) == (3, 3), "by the corrected time none is late"
    assert release("--all")[1]["request"] == 1
    assert "2 rows stay in quarantine: too late for deduplicate 'once'" in text(
        "quarantine", "release", "play", "checked", "--all", "--dry-run"
    )

    coordinator = pipeline.coordinator()  # an attempt that dies before it is decided: the next one does the same
    id = coordinator.trigger("dies", only_if_new=True).plan.id
    run_job(coordinator, id, "main", pipeline.spark)
    coordinator.abort(id, "RUN_GONE")
    last = feed(pipeline, order(6, "13:10"))
    verdict = pipeline.ack(last).gates["checked"]
    assert (verdict.released, verdict.stays) == (1, {reason: 2})
    assert all(not counts.get("late") for counts in pipeline.ack(last).stats.counts.values())
    feed(pipeline, order(7, "15:10"))

    once = sorted(row["id"] for row in pipeline.rows("tables/once"))
    near = {row["id"] for row in pipeline.rows("tables/near")}
    in_hours = sorted(id for row in pipeline.rows("tables/hours") for id in row["ids"])
    aside = waiting(pipeline)
    assert aside == {2: reason, 3: reason}
    assert sorted([*once, *aside]) == list(range(1, 8)), "rows in = rows in the table + quarantine"
    assert sorted([*near, *aside]) == list(range(1, 6)), "6 and 7 wait for payments still"
    assert sorted([*in_hours, *aside]) == list(range(1, 7)), "the window of 7 is open still"
    shown = cli("quarantine", "show", "play", "checked")[1]["rows"]
    assert {row["id"]: row["_tidegate_stays"] for row in shown} == aside
    events = cli("explain", "play", str(last))[1]["events"]
    assert any("released 1 from quarantine" in event for event in events)
    assert f"Gate checked: of the rows to be released 2 stay there: {reason}." in events

    pipeline.coordinator().roll_back(asked_after, run="back", by="ann")
    pipeline.coordinator().publish()
    assert waiting(pipeline) == {2: None, 3: None, 5: None}, "a rollback takes the release back"
    pipeline.checkpoint()
    assert waiting(pipeline) == aside, "and the next checkpoint takes the request up again"
    assert sorted(row["id"] for row in pipeline.rows("tables/once")) == once
    assert sorted(id for row in pipeline.rows("tables/hours") for id in row["ids"]) == in_hours


def test_a_row_of_a_window_that_is_open_counts_although_it_is_late(played: Any) -> None:
    def build(pipeline: Pipeline, orders: Any) -> None:
        hours = orders.window(tumbling="1 hour", by="k", uid="hours", n="count(*)")
        hours.sink("hours", DeltaAppend("tables/hours"))

    pipeline = played(build)
    feed(pipeline, order(1, "10:00"), order(2, "10:05", -1))
    feed(pipeline, order(3, "10:50"))
    assert release("--all")[1]["expected"] == {
        "counts": 1,
        "not_released": {},
        "operators": ["window 'hours' takes rows of windows that end after 2026-03-01 10:50:00 UTC, by at"],
    }
    feed(pipeline, order(4, "11:10"))
    assert [row["n"] for row in pipeline.rows("tables/hours")] == [3]
    assert waiting(pipeline) == {}


def test_a_row_that_came_too_late_is_let_out_where_it_was_held_back(played: Any) -> None:
    def build(pipeline: Pipeline, orders: Any) -> None:
        orders.deduplicate(by="id", within="1 hour", uid="once").sink("once", DeltaAppend("tables/once"))
        hours = orders.window(tumbling="1 hour", by="k", uid="hours", n="count(*)", ids="collect_list(id, 100)")
        hours.sink("hours", DeltaAppend("tables/hours"))

    def tables() -> Any:
        hours = sorted((row["window_start"], sorted(row["ids"])) for row in pipeline.rows("tables/hours"))
        return sorted(row["id"] for row in pipeline.rows("tables/once")), [ids for _, ids in hours]

    def aside() -> dict[int, Any]:
        return {row["id"]: row for row in pipeline.rows("ledger/play/quarantine/checked")}

    def line(name: str) -> OpenBackfill:
        line = begin(pipeline.coordinator(), name, 1, by="mia", cuts="recorded")
        replay(line, OneSession(pipeline.spark), Schedule(), Observer())
        return line

    pipeline = played(build)
    pipeline.limit(num_retained=100)
    feed(pipeline, order(1, "09:00"))
    feed(pipeline, order(2, "10:00"), order(3, "10:05", -1), order(9, "10:05", -1))
    assert release("--id", aside()[9]["_tidegate_id"])[1]["request"] == 1
    feed(pipeline, order(4, "12:00"), order(5, "08:00", -1), order(6, "12:05", -1))
    before, rows = ([1, 2, 4, 9], [[1], [2, 9]]), aside()
    assert tables() == before
    assert release("--id", rows[3]["_tidegate_id"], "--dry-run")[1]["in_place"] == {"rows": 1, "left": 0, "from": 1}
    lines = text("quarantine", "release", "play", "checked", "--all", "--set", "v=1", "--dry-run")
    assert "tidegate quarantine release play checked --all --set v=1 --in-place" in lines
    assert "tidegate backfill MODULE:play --from 1 --cuts recorded --swap" in lines
    ids = [word for id in (3, 5) for word in ("--id", rows[id]["_tidegate_id"])]
    assert release(*ids, "--in-place")[1]["request"] == 2
    feed(pipeline, order(7, "12:10"))
    assert waiting(pipeline) == {3: None, 5: None, 6: None}, "no checkpoint of the pipeline takes it up"
    assert cli("quarantine", "list", "play")[1]["gates"]["checked"]["requests"][0]["in_place"] is True
    assert outlook(pipeline.coordinator(), 1, "recorded")["released_in_place"] == [
        "request 2 of gate 'checked': 2 rows are released where the gate held them"
    ]

    first = line("late")
    code, refused = cli("quarantine", "withdraw", "play", "checked", "2")
    assert (code, refused["error"]["reason"]) == (1, "TAKEN_UP")
    swapped = swap(first, by="ann", choices={}, wait=never)
    discard(first, "ann")
    assert tables() == ([1, 2, 3, 4, 7, 9], [[1], [2, 3, 9]]), "the window had been closed and appended without it"
    assert waiting(pipeline) == {
        5: "too late for deduplicate 'once', whose watermark is at 2026-03-01 10:05:00 UTC",
        6: None,
    }, "what came too late from the beginning stays, and what was let out later on is out"
    row = aside()[3]
    assert row == rows[3] | {
        "_tidegate_settled": "released",
        "_tidegate_settled_in": swapped.id,
        "_tidegate_settled_by": row["_tidegate_settled_by"],
        "_tidegate_settled_request": 2,
        "_tidegate_corrected": '{"v":1.0}',
    } | ({"_tidegate_stays": None} if "_tidegate_stays" in row else {})

    after, again = tables(), line("again")
    for name in ("once", "hours"):
        difference = difference_of(again, name)
        assert (difference.rows_removed, difference.rows_added) == (0, 0), "a later backfill lets it out again"
    discard(again, "ann")
    feed(pipeline, order(8, "14:10"))
    assert tables()[0] == sorted([*after[0], 8]), "it is let out once"

    pipeline.coordinator().roll_back(4, run="back", by="ann")
    pipeline.coordinator().publish()
    assert waiting(pipeline) == {3: None, 5: None, 6: None}, "taking the swap back holds them back again"
    assert tables()[0] == [1, 2, 4, 7, 9]


def test_operators_in_other_jobs_lose_no_released_row_either(played: Any) -> None:
    def build(pipeline: Pipeline, orders: Any) -> None:
        orders.deduplicate(by="id", within="1 hour", uid="once").sink("once", DeltaAppend("tables/once"))

    pipeline = played(build)
    pipeline.in_jobs = True
    feed(pipeline, order(1, "10:00"), order(2, "10:05", -1))
    feed(pipeline, order(3, "12:00"), order(4, "12:00", -1))
    assert len(pipeline.graph().jobs) > 1
    reason = "too late for deduplicate 'once', whose watermark is at 2026-03-01 12:00:00 UTC"
    assert release("--all")[1]["expected"]["not_released"] == {reason: 1}
    feed(pipeline, order(5, "12:10"))
    assert waiting(pipeline) == {2: reason}
    assert sorted(row["id"] for row in pipeline.rows("tables/once")) == [1, 3, 4, 5]


def test_late_rows_that_somebody_takes_are_released_and_go_there(played: Any) -> None:
    def build(pipeline: Pipeline, orders: Any) -> None:
        once = orders.deduplicate(by="id", within="1 hour", uid="once")
        once.sink("once", DeltaAppend("tables/once"))
        once["late"].sink("late", DeltaAppend("tables/late"))

    pipeline = played(build)
    feed(pipeline, order(1, "10:00"), order(2, "10:05", -1))
    feed(pipeline, order(3, "12:00"))
    assert release("--all")[1]["expected"]["counts"] == 1
    feed(pipeline, order(4, "12:10"))
    assert [row["id"] for row in pipeline.rows("tables/late")] == [2]
    assert waiting(pipeline) == {}


def test_a_row_without_a_time_stays_until_somebody_gives_it_one(played: Any) -> None:
    def build(pipeline: Pipeline, orders: Any) -> None:
        orders.deduplicate(by="id", within="1 hour", uid="once").sink("once", DeltaAppend("tables/once"))

    pipeline = played(build)
    feed(pipeline, order(1, "10:00"), order(2, None, -1))
    assert release("--all")[1]["expected"]["not_released"] == {"no time in at, which deduplicate 'once' needs": 1}
    feed(pipeline, order(3, "10:10"))
    assert waiting(pipeline) == {2: "no time in at, which deduplicate 'once' needs"}
    assert release("--all", "--set", "at=2026-03-01T10:20:00Z")[1]["expected"]["counts"] == 1
    feed(pipeline, order(4, "10:20"))
    assert waiting(pipeline) == {}
    assert sorted(row["id"] for row in pipeline.rows("tables/once")) == [1, 2, 3, 4]


def test_a_row_whose_time_is_made_behind_the_gate_counts_or_stays_by_what_its_stages_make_of_it(played: Any) -> None:
    def build(pipeline: Pipeline, orders: Any) -> None:
        @pipeline.stage(orders)
        def renamed(orders: Any) -> Any:
            return orders.withColumnRenamed("at", "moment")

        @pipeline.stage(orders)
        def earlier(orders: Any) -> Any:
            return orders.selectExpr("id", "at - interval 1 hour AS at")

        once = renamed.deduplicate(by="id", within="1 hour", event_time="moment", uid="once")
        once.sink("once", DeltaAppend("tables/once"))
        before = earlier.deduplicate(by="id", within="1 hour", event_time="at", uid="before")
        before.sink("before", DeltaAppend("tables/before"))

    pipeline = played(build)
    feed(pipeline, order(1, "10:00"), order(2, "10:05", -1))
    feed(pipeline, order(3, "12:00"), order(4, "12:30", -1), order(5, "14:00", -1))
    assert release("--all")[1]["expected"]["operators"] == [
        f"deduplicate {name!r} uses {column} as stage {stage!r} computes it: the checkpoint finds out which rows it "
        "takes, and all others stay in quarantine"
        for name, column, stage in (("once", "moment", "renamed"), ("before", "at", "earlier"))
    ]
    feed(pipeline, order(6, "14:10"))
    too_late = "too late for deduplicate {!r}, whose watermark is at 2026-03-01 14:00:00 UTC"
    of_another = "; or another row of its request is: release it alone"
    behind_earlier = too_late.format("before") + of_another
    late = too_late.format("once")
    assert waiting(pipeline) == {2: late, 4: late, 5: behind_earlier}
    assert sorted(row["id"] for row in pipeline.rows("tables/once")) == [1, 3, 6]

    release("--rule", "positive", "--set", "at=2026-03-01T15:20:00Z")
    last = feed(pipeline, order(7, "14:20"))
    assert waiting(pipeline) == {}
    assert pipeline.ack(last).gates["checked"].released == 3
    assert sorted(row["id"] for row in pipeline.rows("tables/once")) == list(range(1, 8))
    assert {2, 4, 5} <= {row["id"] for row in pipeline.rows("tables/before")}


def test_a_pipeline_that_leaves_out_late_rows_behind_a_gate_is_not_called_well(played: Any) -> None:
    def build(pipeline: Pipeline, orders: Any) -> None:
        once = orders.deduplicate(by="id", within="1 hour", uid="once")
        once.sink("once", DeltaAppend("tables/once"))

    pipeline = played(build)
    feed(pipeline, order(1, "12:00"))
    last = feed(pipeline, order(2, "10:00"), order(3, "12:10"))
    assert pipeline.ack(last).stats.counts["once"]["late"] == 1
    _, standing = cli("explain", "play")
    assert standing["state"] == "losing"
    assert "Deduplicate 'once' dropped 1 row: late, or without event time" in standing["cause"]
    assert any("backfill" in remedy for remedy in standing["remedy"])
