"""Rows in quarantine that SQL corrects, and rows that today's suite judges again: each continues once, or waits on."""

from __future__ import annotations

import contextlib
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.kit.jvm import settings_of_fixture
from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.cli.main import main
from tidegate.execution.job.run_job import run_job
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend

pytestmark = in_turn(seconds=60)

SUITE = """
expectations:
  - {type: expect_column_values_to_not_be_null, kwargs: {column: amount}, id: amount_known}
  - {type: expect_column_values_to_be_between, kwargs: {column: amount, min_value: 0, max_value: LIMIT}, id: in_range}
  - {type: expect_column_values_to_be_in_set, kwargs: {column: country, value_set: [DE, FR]}, id: country}
  - {type: expect_column_values_to_be_unique, kwargs: {column: id}, id: unique}
  - {type: expect_column_value_lengths_to_be_between, kwargs: {column: raw, max_value: 9}, severity: info, id: short}
"""
NUMBER = "cast(regexp_extract(raw, '[0-9.]+', 0) AS decimal(12,2))"


def order(id: int, raw: str, amount: float | None = None, country: str = "DE") -> dict[str, Any]:
    return {"id": id, "raw": raw, "amount": amount, "country": country, "at": f"2026-03-01T{id:02d}:00:00Z"}


def cli(*arguments: str) -> Any:
    """What a command says, as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*arguments, "--json"])
    return code, json.loads(out.getvalue())


def text(*arguments: str) -> str:
    """What a command says to people."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        main([*arguments])
    return " ".join((out.getvalue() + err.getvalue()).split())


class GatedShop(SmallPipeline):
    """Orders with a gate, and a table after it."""

    def judge_by(self, limit: int = 1000) -> None:
        folder = self.root / "include" / "expectations"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "orders.yaml").write_text(SUITE.replace("LIMIT", str(limit)))

    def feed_and_run(self, *orders: dict[str, Any]) -> int:
        if orders:
            self.feed(orders)
        return self.checkpoint()

    def amounts(self) -> dict[int, Decimal | None]:
        """The table, in which each order is at most once."""
        rows = self.rows("tables/orders")
        assert len({row["id"] for row in rows}) == len(rows), "each once"
        return {row["id"]: row["amount"] for row in rows}

    def aside(self) -> dict[int, dict[str, Any]]:
        rows = self.rows("ledger/play/quarantine/checked")
        assert len({row["id"] for row in rows}) == len(rows), "each once"
        return {row["id"]: row for row in rows}

    def stays(self) -> dict[int, str | None]:
        """The rows that wait, and why they were not released, if somebody asked for it."""
        return {id: row.get("_tidegate_stays") for id, row in self.aside().items() if row["_tidegate_settled"] is None}


@pytest.fixture
def shop(spark: Any, tmp_path: Path, monkeypatch: Any) -> GatedShop:
    (tmp_path / "tidegate.toml").write_text(settings_of_fixture())
    monkeypatch.chdir(tmp_path)

    def declare(pipeline: Pipeline) -> None:
        schema = "id long, raw string, amount decimal(12,2), country string, at timestamp"
        rows = sources(pipeline, schema)
        policy: Any = {"critical": "quarantine", "info": "warn"}
        gate = rows.gate(Expectations("orders", on_failure=policy), name="checked")
        gate.sink("orders", DeltaAppend("tables/orders"))

    shop = GatedShop(tmp_path, spark, declare)
    shop.judge_by()
    return shop


def release(*arguments: str) -> Any:
    return cli("quarantine", "release", "play", "checked", *arguments)


def test_one_sql_corrects_all_rows_of_a_rule_and_those_it_cannot_correct_wait(shop: GatedShop) -> None:
    shop.feed_and_run(
        order(1, "EUR 1", 1),
        order(2, "EUR 12.50"),
        order(3, "12.75 EUR"),
        order(4, "none"),  # the cast fails
        order(5, "1.2.3"),  # so does this
        order(6, "EUR 2000"),  # breaks another rule then
        order(7, "EUR 7", country="XX"),  # breaks another rule still
        order(8, "EUR 8", -8),  # broke another rule, so nobody asks for it
    )
    assert sorted(shop.stays()) == [2, 3, 4, 5, 6, 7, 8]
    sql = f"amount = {NUMBER}"
    code, said = release("--rule", "amount_known", "--set", sql, "--dry-run")
    assert (code, said["rows"], "request" in said) == (0, 6, False)
    found = said["preview"]
    assert (found["changed"], found["to_null"], found["failed"]) == (4, {}, 2)
    assert "[CAST_INVALID_INPUT]" in found["error"]
    fails = f"amount cannot be corrected: {NUMBER} fails for this row"
    not_released = {fails: 2, "corrected, it breaks in_range": 1, "corrected, it breaks country": 1}
    assert said["expected"] == {"counts": 2, "not_released": not_released, "operators": []}
    after = {sample["before"]["raw"]: (sample["after"]["amount"], sample["stays"]) for sample in found["samples"]}
    assert after["EUR 12.50"] == ("12.50", None)
    assert after["none"] == (None, fails)
    assert after["EUR 2000"] == ("2000.00", "corrected, it breaks in_range")

    assert release("--rule", "amount_known", "--set", sql, "--note", "the feed has a currency")[1]["request"] == 1
    coordinator = shop.coordinator()  # an attempt that dies before it is decided: the next one does the same
    id = coordinator.trigger("dies", only_if_new=True).plan.id
    run_job(coordinator, id, "main", shop.spark)
    coordinator.abort(id, "RUN_GONE")
    last = shop.checkpoint()
    assert shop.amounts() == {1: Decimal(1), 2: Decimal("12.50"), 3: Decimal("12.75")}
    verdict = shop.ack(last).gates["checked"]
    assert (verdict.released, verdict.stays) == (2, not_released)
    assert shop.stays() == {
        4: fails, 5: fails, 6: "corrected, it breaks in_range", 7: "corrected, it breaks country", 8: None
    }  # fmt: skip

    row = shop.aside()[2]
    assert (row["amount"], row["raw"]) == (None, "EUR 12.50"), "the quarantine keeps the row as it was"
    assert json.loads(row["_tidegate_corrected"]) == {"amount": 12.50}
    assert (row["_tidegate_settled_request"], row["_tidegate_settled_in"]) == (1, last)
    shown = cli("quarantine", "show", "play", "checked", "--settled")[1]
    (request,) = shown["requests"]
    assert (request["correct_sql"], request["note"]) == ({"amount": NUMBER}, "the feed has a currency")
    assert f"Request 1 by {request['requested_by']}, at {request['requested_at']}, set amount = {NUMBER}." in text(
        "quarantine", "show", "play", "checked", "--settled"
    )
    (asked,) = [event for event in cli("explain", "play", str(last))[1]["events"] if "asked, by request 1" in event]
    assert asked.endswith(f"to release rows that broke amount_known, with amount = {NUMBER} (the feed has a currency).")
    assert "in place" not in text("quarantine", "show", "play", "checked"), "that would not help here"


def test_sql_that_fails_for_all_rows_is_refused_with_sparks_reason(shop: GatedShop) -> None:
    shop.feed_and_run(order(1, "EUR 12.50"), order(2, "EUR 13"))
    sql = "amount = cast(regexp_extract(raw, '[0-9.]+') AS decimal(12,2))"  # there is no group 1, which it would take
    code, said = release("--all", "--set", sql)
    assert (code, said["error"]["reason"]) == (2, "BAD_SQL")
    assert (
        "fails for all 2 rows, for one of them with: [INVALID_PARAMETER_VALUE.REGEX_GROUP_INDEX]"
        in (said["error"]["message"])
    )
    assert release("--all", "--set", sql, "--dry-run")[0] == 0
    assert not shop.coordinator().ledger.requests("checked")


def test_several_columns_see_the_row_as_it_was_and_constants_may_be_among_them(shop: GatedShop) -> None:
    shop.feed_and_run(order(1, "5", country="YY"), order(2, "6", country="ZZ"))
    words = ["--set", "amount = cast(raw AS decimal(12,2))", "--set", "raw = concat(country, raw)"]
    assert release("--all", *words, "--set", "country=FR")[0] == 0
    shop.checkpoint()
    rows = sorted((row["id"], row["amount"], row["raw"], row["country"]) for row in shop.rows("tables/orders"))
    assert rows == [(1, Decimal(5), "YY5", "FR"), (2, Decimal(6), "ZZ6", "FR")]
    corrected = json.loads(shop.aside()[2]["_tidegate_corrected"])
    assert corrected == {"country": "FR", "amount": 6.00, "raw": "ZZ6"}


@pytest.mark.parametrize("mode", ["NO_CODEGEN", "CODEGEN_ONLY"])
def test_what_fails_for_a_row_fails_for_that_row_only_though_two_columns_need_it(shop: GatedShop, mode: str) -> None:
    """Spark computes an expression that occurs twice only once, and before what would catch its error."""
    shop.spark = shop.spark.newSession()
    shop.spark.conf.set("spark.sql.codegen.factoryMode", mode)
    shop.spark.conf.set("spark.sql.codegen.wholeStage", str(mode == "CODEGEN_ONLY").lower())
    shop.feed_and_run(order(1, "5"), order(2, "x"), order(3, ""))
    number = "cast(raw AS int)"
    words = ["--set", f"amount = {number} + {number}", "--set", f"country = if({number} > 1, 'DE', 'FR')"]
    assert release("--all", *words)[0] == 0
    shop.checkpoint()
    assert shop.amounts() == {1: Decimal(10)}
    assert set(shop.stays().values()) == {f"amount cannot be corrected: {number} + {number} fails for this row"}


def test_a_constant_that_breaks_a_rule_waits_and_rows_as_they_are_are_not_judged(shop: GatedShop) -> None:
    shop.feed_and_run(order(1, "a", -1), order(2, "b", -2), order(3, "c", -3))
    ids = {id: row["_tidegate_id"] for id, row in shop.aside().items()}
    release("--id", ids[1], "--set", "amount=-5")
    release("--id", ids[2], "--set", "amount=5")
    release("--id", ids[3])
    shop.checkpoint()
    assert shop.amounts() == {2: Decimal(5), 3: Decimal(-3)}
    assert shop.stays() == {1: "corrected, it breaks in_range"}


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("amount = total", "with name `total` cannot be resolved"),
        ("amount = cast(raw AS", "cannot be cast(raw AS: [PARSE_SYNTAX_ERROR]"),
        ("amount = raw", "column 'amount' is decimal(12,2), and raw is string"),
        ("amount = max(amount)", "which is about several rows"),
        ("amount = sum(amount) OVER ()", "which is about several rows"),
        ("amount = (SELECT 1)", "which reads other rows, by a subquery"),
        ("amount = (SELECT max(amount) FROM VALUES (1) AS t(amount))", "which reads other rows, by a subquery"),
        ("amount = if(id IN (SELECT 1), 1, 2)", "which reads other rows, by a subquery"),
        ("amount = rand() * 9", "which has another value each time"),
        ("raw = uuid()", "which has another value each time"),
        ("id = monotonically_increasing_id()", "which has another value each time"),
        ("at = current_timestamp()", "current_timestamp has another value each time"),
        ("at = now()", "now has another value each time"),
        ("at = CURRENT_DATE", "current_date has another value each time"),
        ("id = unix_timestamp()", "unix_timestamp has another value each time"),
        ("raw = current_user", "current_user has another value each time"),
        ("amount = explode(array(1))", "which is no expression over the values of one row"),
        ("raw = _tidegate_settled", "`_tidegate_settled` cannot be resolved"),
        ("country = DE", "a text is written in quotes, as in: country = 'DE'"),
        ("nothing = 1", "have no column 'nothing'"),
    ],
)
def test_sql_that_is_no_function_of_a_row_is_refused_before_it_is_recorded(
    shop: GatedShop, sql: str, told: str
) -> None:
    shop.feed_and_run(order(1, "a"))
    code, said = release("--all", "--set", sql)
    assert code == 2, said
    error = said["error"]
    assert told in f"{error['message']} {error['help']}".replace("\n", " "), error
    assert not shop.coordinator().ledger.requests("checked"), "nothing is recorded"


@pytest.mark.parametrize("sql", ["raw = 'now() and current_date'", "raw = concat('(SELECT 1)', country) -- rand()"])
def test_what_only_looks_like_it_is_sql_like_any_other(shop: GatedShop, sql: str) -> None:
    shop.feed_and_run(order(1, "a"))
    assert release("--all", "--set", sql, "--set", "amount=1", "--dry-run")[0] == 0


def test_a_rule_that_was_too_strict_is_loosened_and_its_rows_are_judged_again(shop: GatedShop) -> None:
    shop.judge_by(limit=10)
    first = shop.feed_and_run(order(1, "a", 5), order(2, "b", 50), order(3, "c", 500), order(4, "d", 20, "XX"))
    shop.feed_and_run(order(5, "e", 60), order(6, "f", 6), order(6, "f", 6))
    assert len(shop.rows("ledger/play/quarantine/checked")) == 6
    shop.judge_by(limit=100)
    code, said = cli("quarantine", "rejudge", "play", "checked", "--checkpoint", str(first), "--dry-run")
    assert (code, said["rows"], said["expected"]["counts"]) == (0, 3, 1)
    assert said["preview"]["rules"] == {"in_range": 3, "country": 1}
    assert said["preview"]["rules_after"] == {"country": 1, "in_range": 1}
    asked = text("quarantine", "rejudge", "play", "checked")
    assert "Request 1: 2 rows continue after the gate with the next checkpoint." in asked
    last = shop.checkpoint()
    rows = shop.rows("tables/orders")
    assert sorted(row["id"] for row in rows) == [1, 2, 5], "a rule of uniqueness cannot judge a row by itself"
    assert shop.ack(last).gates["checked"].stays == {
        "judged again, it breaks unique": 2,
        "judged again, it breaks in_range": 1,
        "judged again, it breaks country": 1,
    }
    waiting = [row for row in shop.rows("ledger/play/quarantine/checked") if row["_tidegate_settled"] is None]
    assert sorted((row["id"], row["_tidegate_rules"]) for row in waiting) == [
        (3, ["in_range"]), (4, ["country"]), (6, ["unique"]), (6, ["unique"])
    ]  # fmt: skip
    assert {row["_tidegate_corrected"] for row in waiting} == {None}
