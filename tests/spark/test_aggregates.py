"""Every aggregate that can be kept: over cuts it gives what Spark gives over all rows at once, in the same type."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.operators.functions import FUNCTIONS, parse
from tidegate.sinks import DeltaUpsert

pytestmark = in_turn(seconds=45)

SCHEMA = (
    "k string, i int, l long, d double, n decimal(12,3), w decimal(38,10), b boolean, s string, "
    "t timestamp, m map<string,int>"
)
CALLS = {
    "rows": "count(*)",
    "some_rows": "count(*) filter (where i > 2 and s <> ')')",
    "pairs": "count(i, d)",
    "kinds": "count(distinct s)",
    "big_kinds": "count(distinct s) filter (where i > 2)",
    "pair_kinds": "count(distinct d, b)",
    "sketched": "approx_count_distinct(l)",
    "positive": "count_if(i > 0)",
    "sum_d": "sum(d)",
    "sum_n": "SUM(n * 2) filter (where b)",
    "sum_w": "sum(w)",
    "avg_i": "avg(i)",
    "avg_n": "mean(n)",
    "avg_w": "avg(w)",
    "min_d": "min(d)",
    "max_d": "max(d)",
    "min_n": "min(n)",
    "first_t": "min(t)",
    "first_s": "first(s, l)",
    "last_s": "last(s, l)",
    "low": "min_by(n, l)",
    "high": "max_by(s, l) filter (where b)",
    "all_b": "bool_and(b)",
    "or_b": "bool_or(b)",
    "and_i": "bit_and(i)",
    "or_i": "bit_or(i)",
    "xor_l": "bit_xor(l)",
    "spread": "stddev(i)",
    "spread4": "stddev_pop(i)",
    "var": "variance(i)",
    "var3": "var_pop(i)",
    "list": "collect_list(n, 1000)",
    "short": "collect_list(i, 3)",
    "bag": "collect_set(d, 1000)",
    "words": "collect_set(substring(s, 1, 2), 2)",
}


def everything(pipeline: Pipeline) -> None:
    rows = sources(pipeline, SCHEMA)
    rows.aggregate(by="k", **CALLS).sink("told", DeltaUpsert("tables/told", keys=["k"]))


def some_rows(count: int) -> list[dict[str, Any]]:
    pick = random.Random(7)

    def maybe(value: object) -> object:
        return None if pick.random() < 0.2 else value

    def row(number: int) -> dict[str, Any]:
        return {
            "k": maybe(pick.choice(["a", "b", "ü", ""])) if number else "only nulls",
            "i": maybe(pick.randint(-5, 9)) if number else None,
            "l": number * 7 + 3 if number % 5 else pick.choice([2**40 + number, None]),
            "d": maybe(pick.choice([1.5, -0.25, 3.0, float("nan"), 8.125])) if number else None,
            "n": maybe(str(Decimal(pick.randint(-99999, 99999)) / 1000)) if number else None,
            "w": maybe(str(Decimal(pick.randint(-(10**20), 10**20)) / 10**9)) if number else None,
            "b": maybe(pick.random() < 0.7) if number else None,
            "s": maybe(pick.choice(["x", "yy", "yyz", ")", "'"])) if number else None,
            "t": maybe(f"2026-01-01T00:00:{pick.randint(0, 59):02d}.00000{pick.randint(0, 9)}Z"),
            "m": {"x": number} if number else None,
        }

    return [row(number) for number in range(count)]


def close(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other


def test_kept_over_cuts_each_aggregate_gives_what_spark_gives_at_once_in_its_type(tmp_path: Path, spark: Any) -> None:
    rows = some_rows(400)
    play = SmallPipeline(tmp_path, spark, everything)
    play.play([rows[:1], rows[1:230], rows[230:]])

    from pyspark.sql import functions as F

    functions = {name: parse(name, text) for name, text in CALLS.items()}
    compared = [FUNCTIONS[f.call.name] for f in functions.values()]  # type: ignore[union-attr]
    assert {name for name, shape in FUNCTIONS.items() if shape not in compared} == {"every", "some", "any"}, (
        "each is compared, but for other names of what is"
    )
    batch = spark.read.schema(SCHEMA).json(str(tmp_path / "landing/rows")).groupBy("k")
    expected = batch.agg(*(F.expr(f.spark).alias(name) for name, f in functions.items()))  # type: ignore[union-attr]
    told = spark.read.format("delta").load(str(tmp_path / "tables/told"))
    kinds = {field.name: field.dataType.simpleString() for field in told.schema.fields}
    assert kinds == {field.name: field.dataType.simpleString() for field in expected.schema.fields}

    mine = {row["k"]: row.asDict() for row in told.collect()}
    theirs = {row["k"]: row.asDict() for row in expected.collect()}
    assert set(mine) == set(theirs)
    wrong = {
        (key, name): (mine[key][name], theirs[key][name])
        for key in theirs
        for name in CALLS
        if name != "sketched" and not close(mine[key][name], theirs[key][name])
    }
    assert not wrong
    assert all(
        abs(mine[key]["sketched"] - theirs[key]["sketched"]) <= 3 + theirs[key]["sketched"] * 0.1 for key in theirs
    )


def test_what_spark_refuses_is_told_with_the_operator_and_what_its_input_has(tmp_path: Path, spark: Any) -> None:
    def build(functions: dict[str, str], by: str = "k") -> Any:
        def declare(pipeline: Pipeline) -> None:
            totals = sources(pipeline, "k string, v long").aggregate(by=by, uid="sums", **functions)
            totals.sink("told", DeltaUpsert("tables/told", keys=["k"]))

        return declare

    def refusal(functions: dict[str, str], by: str = "k", value: int = 1) -> Invalid:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        play = SmallPipeline(folder, spark, build(functions, by))
        play.feed([{"k": "a", "v": value}, {"k": "a", "v": value}])
        with pytest.raises(Invalid) as caught:
            play.checkpoint()
        return caught.value

    unknown = refusal({"total": "sum(amount)"})
    assert unknown.reason == "BAD_EXPRESSION"
    assert "'sums'" in unknown.what
    assert "amount" in unknown.what
    assert "v bigint" in unknown.expected
    assert refusal({"total": "sum(v)"}, by="customer").reason == "UNKNOWN_COLUMN"
    assert refusal({"total": "bool_and(v)"}).reason == "BAD_EXPRESSION"
    assert "overflow" in refusal({"total": "sum(v)"}, value=2**63 - 1).what, (
        "as Spark's own sum: an error, no wrong number"
    )


@pytest.mark.parametrize("beside", [{}, {"kinds": "count(distinct v % 2)"}])
def test_workers_refuse_a_sum_that_does_not_fit_also_where_spark_would_let_it_wrap_around(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, beside: dict[str, str]
) -> None:
    """A state with few rows lets Spark reduce a batch before workers see it, and so do distinct values of a large one:
    not with a setting of Spark's by which it continues with a wrong number."""
    monkeypatch.setattr("tidegate.execution.job.run_job.is_small", lambda _: False)
    monkeypatch.setattr("tidegate.operators.distinct.pre_aggregation.UNREDUCED", 0)
    own = spark.newSession()
    own.conf.set("spark.sql.ansi.enabled", "false")

    def declare(pipeline: Pipeline) -> None:
        totals = sources(pipeline, "k string, v long").aggregate(by="k", total="sum(v)", **beside, uid="sums")
        totals.sink("told", DeltaUpsert("tables/told", keys=["k"]))

    play = SmallPipeline(tmp_path, own, declare)
    play.play([[{"k": "a", "v": 1}]])
    play.feed([{"k": "a", "v": 2**62}, {"k": "a", "v": 2**62}])
    with pytest.raises(Invalid, match="overflow"):
        play.checkpoint()


def test_the_least_and_the_greatest_text_are_sparks_whatever_its_letters(tmp_path: Path, spark: Any) -> None:
    """In UTF-8 letters above U+FFFF come last, in UTF-16 they do not: workers and Spark must agree."""
    letters = ["", "Z", "a", "ab", "ü", "\uffff", "😀", None]
    pick = random.Random(3)
    rows = [{"k": pick.choice("xyz"), "s": pick.choice(letters)} for _ in range(120)] + [{"k": "none", "s": None}]
    calls = {"least": "min(s)", "greatest": "max(upper(s))", "bids": "count(*)"}

    def texts(pipeline: Pipeline) -> None:
        sources(pipeline, "k string, s string").aggregate(by="k", **calls).sink(
            "texts", DeltaUpsert("tables/texts", keys=["k"])
        )

    SmallPipeline(tmp_path, spark, texts).play([rows[:40], rows[40:80], rows[80:]])

    from pyspark.sql import functions as F

    batch = spark.read.schema("k string, s string").json(str(tmp_path / "landing/rows")).groupBy("k")
    expected = batch.agg(*(F.expr(text).alias(name) for name, text in calls.items())).collect()
    told = spark.read.format("delta").load(str(tmp_path / "tables/texts")).collect()
    assert sorted(told, key=repr) == sorted(expected, key=repr)
    assert ("none", None, None, 1) in map(tuple, told)
