"""A pipeline is analysed on empty frames: every error of its declaration at once, and none that is not there."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tidegate.testing
from jobs import orders, spending
from tests.kit.sampling import in_turn
from tidegate import Pipeline
from tidegate.errors import Invalid, TidegateError
from tidegate.execution.analysis import analyse
from tidegate.gates import Freshness
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.testing import RunningPipeline, TestSource

pytestmark = in_turn(seconds=30)

COLUMNS = "id long, country string, amount double, at timestamp"
ROWS = ([{"id": 1, "country": "AT", "amount": 1.5, "at": datetime(2026, 1, 1, tzinfo=UTC)}],)


def found(running: RunningPipeline, spark: Any) -> list[TidegateError]:
    coordinator = running.coordinator()
    base = coordinator.ledger.view().last_completed if coordinator.ledger.identity_or_none() is not None else None
    errors = analyse(coordinator, spark, base)
    assert running.errors() == [str(error) for error in errors], "a user's test says the same"
    return errors


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def wrong_everywhere(pipeline: Pipeline, source: TestSource) -> None:
    rows = pipeline.source("rows", source, event_time="sent")
    rows.aggregate(by="country", spent="sum(price)", uid="totals").sink("totals", DeltaUpsert("t", keys=["country"]))
    rows.sink("by_amount", DeltaUpsert("tables/by_amount", keys=["amount"]))
    rows.sink("by_nothing", DeltaUpsert("tables/by_nothing", keys=["customer"]))
    rows.sink("by_when", DeltaUpsert("tables/by_when", keys=["id"], delete_when="gone"))
    rows.gate(Freshness("came", within="1 h"), name="fresh").sink("fresh", DeltaAppend("tables/fresh"))

    @pipeline.stage(rows)
    def priced(rows: Any) -> Any:
        return rows.selectExpr("price * 2 AS twice")

    @pipeline.stage(rows)
    def doubled(rows: Any) -> Any:
        return rows.selectExpr("id", "id + 1 AS id")

    priced.deduplicate(by="nothing", uid="once").sink("priced", DeltaAppend("tables/priced"))
    doubled.sink("doubled", DeltaAppend("tables/doubled"))


def test_every_error_is_found_at_once_and_nothing_is_written(tmp_path: Path, spark: Any) -> None:
    pipeline = Pipeline("wrong")
    wrong_everywhere(pipeline, TestSource(COLUMNS, *ROWS))
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        before = files_below(tmp_path)
        texts = [str(error) for error in found(running, spark)]
        assert files_below(tmp_path) == before
    wanted = [
        "source 'rows' uses event-time column 'sent'",
        "operator 'totals'",
        "sink by_amount",
        "sink by_nothing",
        "`gone`",
        "gate 'fresh' uses event-time column 'came'",
        "stage 'priced'",
        "sink doubled",
    ]
    missing = [part for part in wanted if not any(part in text for text in texts)]
    assert missing == [], texts
    assert len(texts) == len(wanted), "what follows from them is not told"
    (stage,) = (text for text in texts if "stage 'priced'" in text)
    assert f"{Path(__file__).name}, line" in stage


@pytest.mark.parametrize("example", [orders.pipeline, spending.pipeline], ids=lambda each: each.name)
def test_the_examples_have_none(example: Pipeline, tmp_path: Path, spark: Any) -> None:
    with tidegate.testing.run(example, tmp_path, spark=spark) as running:
        assert [str(error) for error in found(running, spark)] == []


def all_operators(source: TestSource) -> Pipeline:
    pipeline = Pipeline("all", watermark="1 min")
    rows = pipeline.source("rows", source, event_time="at")
    once = rows.deduplicate(by="id", uid="once")
    totals = once.aggregate(by="country", spent="sum(amount)", n="count(*)", kinds="count(distinct id)", uid="totals")
    minutes = once.window(tumbling="1 min", by="country", n="count(*)", uid="minutes")
    sessions = once.window(session="1 min", by="country", n="count(*)", uid="sessions")
    newest = rows.latest(by="id", order_by="at", uid="newest")
    best = rows.top_n(2, by="country", order_by="amount desc", uid="best")
    joined = newest.join(totals, on="country", prefix="all_", uid="joined")
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["country"]))
    minutes.sink("minutes", DeltaAppend("tables/minutes"))
    sessions.sink("sessions", DeltaAppend("tables/sessions"))
    best.sink("best", DeltaUpsert("tables/best", keys=["country", "id"]))
    joined.sink("joined", DeltaUpsert("tables/joined", keys=["id"]))
    return pipeline


def test_no_operator_is_wrong_on_nothing_before_a_checkpoint_or_after_it(tmp_path: Path, spark: Any) -> None:
    with tidegate.testing.run(all_operators(TestSource(COLUMNS, *ROWS)), tmp_path, spark=spark) as running:
        assert [str(error) for error in found(running, spark)] == []
        running.checkpoint()
        before = files_below(tmp_path)
        assert [str(error) for error in found(running, spark)] == []
        assert files_below(tmp_path) == before


# -- what the tables and states that are there have to say ---------------------------------------------------


def totals(source: TestSource, extra: str = "country") -> Pipeline:
    pipeline = Pipeline("shop")
    rows = pipeline.source("rows", source)
    rows.select("id", extra).sink("rows", DeltaAppend("tables/rows"))
    rows.aggregate(by="country", spent="sum(amount)", uid="totals").sink(
        "totals", DeltaUpsert("tables/t", keys=["country"])
    )
    return pipeline


def test_a_new_column_that_its_table_does_not_take_is_found_before_it_is_deployed(tmp_path: Path, spark: Any) -> None:
    with tidegate.testing.run(totals(TestSource(COLUMNS, *ROWS)), tmp_path, spark=spark) as running:
        running.checkpoint()
    changed = totals(TestSource(COLUMNS, *ROWS), extra="amount * 2 AS twice")
    with tidegate.testing.run(changed, tmp_path, spark=spark) as running:
        (error,) = found(running, spark)
    assert "'twice' (double) is not in the table" in error.what
    assert 'schema_evolution="add"' in error.help


def test_another_type_than_the_tables_is_found_and_only_what_helps_is_suggested(tmp_path: Path, spark: Any) -> None:
    columns = "id long, country string, amount decimal(12,2), at timestamp"
    row = ROWS[0][0] | {"amount": Decimal("1.50")}
    with tidegate.testing.run(totals(TestSource(columns, [row])), tmp_path, spark=spark) as running:
        running.checkpoint()
    wider = totals(TestSource(columns.replace("(12,2)", "(15,3)"), [row]))
    with tidegate.testing.run(wider, tmp_path, spark=spark) as running:
        (error,) = found(running, spark)
    assert error.reason == "STATE_CHANGED", "what comes behind it is told once this is right"
    assert "'spent' is decimal(25,3); the state has decimal(22,2)" in error.what
    cast = totals(TestSource(columns, [row]), extra="CAST(country AS binary) AS country")
    with tidegate.testing.run(cast, tmp_path, spark=spark) as running:
        told = {error.reason: error for error in found(running, spark)}
    assert "'country' is binary; the table has string" in told["BAD_OUTPUT"].what
    assert "schema_evolution" not in told["BAD_OUTPUT"].help, "it does not help"
    assert "cast to the table's types" in told["BAD_OUTPUT"].help


def test_a_state_that_cannot_continue_is_found_before_a_checkpoint_fails(tmp_path: Path, spark: Any) -> None:
    def newest(amount: str) -> Pipeline:
        pipeline = Pipeline("shop")
        rows = pipeline.source("rows", TestSource(COLUMNS, *ROWS)).select("id", f"{amount} AS amount", "at")
        rows.latest(by="id", order_by="at", uid="newest").sink("rows", DeltaUpsert("tables/rows", keys=["id"]))
        return pipeline

    with tidegate.testing.run(newest("amount"), tmp_path, spark=spark) as running:
        running.checkpoint()
    with tidegate.testing.run(newest("CAST(amount AS string)"), tmp_path, spark=spark) as running:
        told = {error.reason: error for error in found(running, spark)}
    assert "'amount' is string; the state has double" in str(told["STATE_CHANGED"])


# -- the job -------------------------------------------------------------------------------------------------


def test_the_first_job_tells_all_of_it_suspends_nothing_and_the_right_code_continues(
    tmp_path: Path, spark: Any
) -> None:
    pipeline, told = Pipeline("wrong"), []
    wrong_everywhere(pipeline, TestSource(COLUMNS, *ROWS))
    pipeline.on_suspended(lambda suspension: told.append(suspension.suspended))
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        with pytest.raises(Invalid) as caught:
            running.checkpoint()
        assert caught.value.reason == "BAD_DECLARATION"
        assert "wrong in 8 places" in caught.value.what
        coordinator = running.coordinator()
        decision = coordinator.ledger.decision(1)
        assert decision is not None
        assert (decision.reason, decision.counts, coordinator.suspended()) == ("BAD_DECLARATION", False, None)
        with pytest.raises(Invalid, match="wrong in 8 places"):
            coordinator.trigger("another run")
        with pytest.raises(Invalid, match="wrong in 8 places"):
            running.checkpoint()
        assert running.ledger.ids() == [1], "neither makes an entry"
        assert told == [False], "it is told once"
    right = Pipeline("wrong")
    right.source("rows", TestSource(COLUMNS, *ROWS)).sink("rows", DeltaAppend("tables/rows"))
    with tidegate.testing.run(right, tmp_path, spark=spark) as running:
        assert running.checkpoint() == 2


def test_a_failure_of_rows_is_none_of_the_declaration(tmp_path: Path, spark: Any) -> None:
    pipeline = Pipeline("rows")
    rows = pipeline.source("rows", TestSource(COLUMNS, *ROWS))
    rows.select("id", "CAST(country AS int) AS number").sink("rows", DeltaAppend("tables/rows"))
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        with pytest.raises(Invalid):
            running.checkpoint()
        decision = running.ledger.decision(1)
        assert decision is not None
        assert (decision.reason, decision.counts) == ("JOB_FAILED", True)
        assert running.ledger.declined() is None
