"""The same numbers as Great Expectations, for every expectation that is not refused, on rows of many kinds."""

from __future__ import annotations

import math
import random
import re
import string
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.kit.sampling import in_turn, some_of
from tidegate.connectors.sink import SinkContext, Staging
from tidegate.errors import Invalid
from tidegate.gates.expectations.catalogue import CATALOGUE, ColumnSource
from tidegate.gates.expectations.library import compile_suite, warm
from tidegate.gates.expectations.suite import Suite, read_suite
from tidegate.gates.judging.aggregates import Count
from tidegate.gates.judging.judge import add_samples_from_files, judge, plain, split
from tidegate.gates.judging.samples import cast_to_string_like_spark, display_column, texts_of
from tidegate.records.codec import decode_json, encode_json
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend
from tidegate.spark.frame_facts import no_rows_like

pytestmark = in_turn(seconds=135)


SCHEMA = """id long, i int, d double, m decimal(12,2), s string, j string, day date, at timestamp, b boolean,
    x long, y long, z long"""
RULES = """
- {type: expect_column_distinct_values_to_be_in_set, kwargs: {column: i, value_set: [1, 2, 3]}}
- {type: expect_column_distinct_values_to_contain_set, kwargs: {column: i, value_set: [1, 2, 99]}}
- {type: expect_column_distinct_values_to_equal_set, kwargs: {column: i, value_set: [1, 2]}}
- {type: expect_column_max_to_be_between, kwargs: {column: i, max_value: 5}}
- {type: expect_column_max_to_be_between, kwargs: {column: at, max_value: 2030-01-01}}
- {type: expect_column_max_to_be_between, kwargs: {column: d, min_value: 1}}
- {type: expect_column_mean_to_be_between, kwargs: {column: m, min_value: 0, max_value: 50}}
- {type: expect_column_median_to_be_between, kwargs: {column: i, min_value: 1, max_value: 3}}
- {type: expect_column_min_to_be_between, kwargs: {column: m, min_value: -10}}
- {type: expect_column_most_common_value_to_be_in_set, kwargs: {column: i, value_set: [3], ties_okay: true}}
- {type: expect_column_most_common_value_to_be_in_set, kwargs: {column: s, value_set: [abc], row_condition: "i > 1",
   condition_parser: spark}}
- {type: expect_column_min_to_be_between, kwargs: {column: i, min_value: 0, row_condition: "s is not null",
   condition_parser: spark}}
- {type: expect_column_pair_values_a_to_be_greater_than_b, kwargs: {column_A: x, column_B: y}}
- {type: expect_column_pair_values_a_to_be_greater_than_b, kwargs: {column_A: x, column_B: y, or_equal: true,
   ignore_row_if: either_value_is_missing, mostly: 0.3}}
- {type: expect_column_pair_values_to_be_equal, kwargs: {column_A: x, column_B: y, ignore_row_if: neither}}
- {type: expect_column_pair_values_to_be_equal, kwargs: {column_A: x, column_B: z, row_condition: "i > 2",
   condition_parser: spark}}
- {type: expect_column_pair_values_to_be_in_set, kwargs: {column_A: x, column_B: y, value_pairs_set: [[1, 1], [2, 1]]}}
- {type: expect_column_proportion_of_non_null_values_to_be_between, kwargs: {column: s, min_value: 0.9}}
- {type: expect_column_proportion_of_unique_values_to_be_between, kwargs: {column: i, max_value: 0.1}}
- {type: expect_column_quantile_values_to_be_between, kwargs: {column: i, quantile_ranges: {quantiles: [0.25, 0.5],
   value_ranges: [[0, 2], [1, 3]]}}}
- {type: expect_column_stdev_to_be_between, kwargs: {column: i, max_value: 2}}
- {type: expect_column_sum_to_be_between, kwargs: {column: id, min_value: 0}}
- {type: expect_column_sum_to_be_between, kwargs: {column: m, min_value: 0, row_condition: 'col("i") > 2',
   condition_parser: great_expectations}}
- {type: expect_column_to_exist, kwargs: {column: nowhere}}
- {type: expect_column_type_to_be, kwargs: {column: i, type_: IntegerType}}
- {type: expect_column_unique_value_count_to_be_between, kwargs: {column: s, max_value: 3}}
- {type: expect_column_unique_value_count_to_be_between, kwargs: {column: d, max_value: 3}}
- {type: expect_column_value_lengths_to_be_between, kwargs: {column: s, min_value: 1, max_value: 4}}
- {type: expect_column_value_lengths_to_equal, kwargs: {column: s, value: 3, mostly: 0.1}}
- {type: expect_column_value_z_scores_to_be_less_than, kwargs: {column: i, threshold: 1, double_sided: true}}
- {type: expect_column_values_to_be_between, kwargs: {column: d, min_value: 0, max_value: 2, strict_min: true}}
- {type: expect_column_values_to_be_between, kwargs: {column: m, min_value: 0}}
- {type: expect_column_values_to_be_between, kwargs: {column: day, min_value: 2026-01-05}}
- {type: expect_column_values_to_be_between, kwargs: {column: s, min_value: 3}}
- {type: expect_column_values_to_be_dateutil_parseable, kwargs: {column: j}}
- {type: expect_column_values_to_be_in_set, kwargs: {column: i, value_set: [1, 2, 3], mostly: 0.5}}
- {type: expect_column_values_to_be_in_set, kwargs: {column: s, value_set: ["", "ä", "abc"]}}
- {type: expect_column_values_to_be_in_set, kwargs: {column: b, value_set: [true]}}
- {type: expect_column_values_to_be_in_type_list, kwargs: {column: i, type_list: [LongType, IntegerType]}}
- {type: expect_column_values_to_be_json_parseable, kwargs: {column: j}}
- {type: expect_column_values_to_be_null, kwargs: {column: s, mostly: 0.1}}
- {type: expect_column_values_to_be_of_type, kwargs: {column: i, type_: LongType}}
- {type: expect_column_values_to_be_unique, kwargs: {column: i}}
- {type: expect_column_values_to_be_unique, kwargs: {column: d, mostly: 0.2}}
- {type: expect_column_values_to_be_unique, kwargs: {column: s, row_condition: "i > 1", condition_parser: spark}}
- {type: expect_column_values_to_match_json_schema, kwargs: {column: j, json_schema: {type: object, required: [a]},
   row_condition: "j like '{%}'", condition_parser: spark}}
- {type: expect_column_values_to_match_like_pattern, kwargs: {column: s, like_pattern: "a%"}}
- {type: expect_column_values_to_match_like_pattern, kwargs: {column: s, like_pattern: "a!%%", escape: "!"}}
- {type: expect_column_values_to_match_like_pattern_list, kwargs: {column: s, like_pattern_list: ["a%", "%c"],
   match_on: all}}
- {type: expect_column_values_to_match_like_pattern_list, kwargs: {column: s, like_pattern_list: ["_", "%c"]}}
- {type: expect_column_values_to_match_regex, kwargs: {column: s, regex: "^[a-zä]*$"}}
- {type: expect_column_values_to_match_regex_list, kwargs: {column: s, regex_list: ["^a", "b$"], match_on: all}}
- {type: expect_column_values_to_match_strftime_format, kwargs: {column: j, strftime_format: "%Y-%m-%d"}}
- {type: expect_column_values_to_not_be_in_set, kwargs: {column: i, value_set: [2]}}
- {type: expect_column_values_to_not_be_null, kwargs: {column: s, mostly: 0.6}}
- {type: expect_column_values_to_not_be_null, kwargs: {column: i, row_condition: "s = 'abc'", condition_parser: spark}}
- {type: expect_column_values_to_not_be_null, kwargs: {column: m, row_condition: {type: comparison,
   column: {name: i}, operator: ">", parameter: 1}}}
- {type: expect_column_values_to_not_be_null, kwargs: {column: d, row_condition: {type: or, conditions: [
   {type: nullity, column: {name: s}, is_null: true}, {type: and, conditions: [
   {type: comparison, column: {name: i}, operator: IN, parameter: [1, 2]},
   {type: comparison, column: {name: x}, operator: "==", parameter: 1}]}]}}}
- {type: expect_column_values_to_not_be_outliers, kwargs: {column: i, method: iqr}}
- {type: expect_column_values_to_not_be_outliers, kwargs: {column: i, method: std, multiplier: 1}}
- {type: expect_column_values_to_not_match_like_pattern, kwargs: {column: s, like_pattern: "%b%", mostly: 0.9}}
- {type: expect_column_values_to_not_match_like_pattern_list, kwargs: {column: s, like_pattern_list: ["a%", "_"]}}
- {type: expect_column_values_to_not_match_regex, kwargs: {column: s, regex: "a"}}
- {type: expect_column_values_to_not_match_regex_list, kwargs: {column: s, regex_list: ["^a", "ä"]}}
- {type: expect_compound_columns_to_be_unique, kwargs: {column_list: [x, y]}}
- {type: expect_compound_columns_to_be_unique, kwargs: {column_list: [x, y, s], ignore_row_if: any_value_is_missing,
   row_condition: "i > 1", condition_parser: spark}}
- {type: expect_multicolumn_sum_to_equal, kwargs: {column_list: [x, y], sum_total: 3}}
- {type: expect_multicolumn_values_to_be_equal, kwargs: {column_list: [x, y, z], ignore_row_if: never}}
- {type: expect_select_column_values_to_be_unique_within_record, kwargs: {column_list: [x, y, z]}}
- {type: expect_table_column_count_to_be_between, kwargs: {min_value: 3}}
- {type: expect_table_column_count_to_equal, kwargs: {value: 3}}
- {type: expect_table_columns_to_match_ordered_list, kwargs: {column_list: [id, i]}}
- {type: expect_table_columns_to_match_set, kwargs: {column_set: [id, i], exact_match: false}}
- {type: expect_table_row_count_to_be_between, kwargs: {min_value: 1}}
- {type: expect_table_row_count_to_equal, kwargs: {value: 7, row_condition: "i > 1", condition_parser: spark}}
- {type: unexpected_rows_expectation, kwargs: {unexpected_rows_query: "select * from {batch} where i > 3"}}
"""


def suite(every: int = 1) -> Suite:
    """All rules, or every so manieth."""
    whole = read_suite(f"name: contract\nexpectations:\n{RULES}", "contract.yaml", "contract")
    return replace(whole, rules=whole.rules[::every])


def rows(seed: int, count: int) -> list[tuple[Any, ...]]:
    dice = random.Random(seed)

    def some(*values: Any) -> Any:
        return dice.choice([*values, None])

    def row(id: int) -> tuple[Any, ...]:
        return (
            id,
            some(*range(6)),
            some(0.0, -0.0, 1.5, math.nan, math.inf, dice.random()),
            some(Decimal("-3.20"), Decimal("12.01"), Decimal(dice.randrange(9999)) / 100),
            some("", "abc", "ä", "日本", "a\tb", "".join(dice.choices(string.printable, k=4))),
            some('{"a": 1}', "{}", "{", "2026-01-02", "nul"),
            some(date(2026, 1, 1) + timedelta(days=dice.randrange(9))),
            some(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=dice.randrange(99))),
            some(True, False),
            some(1, 2),
            some(1, 2),
            some(1, 2),
        )

    return [row(id) for id in range(count)]


def theirs(suite: Suite, frame: Any) -> list[dict[str, Any]]:
    """What Great Expectations says, by its public interface."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    asset = context.data_sources.add_spark("spark", persist=False).add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    rules = [
        {"type": rule.type, "kwargs": dict(rule.kwargs), "severity": rule.severity, "meta": {"n": number}}
        for number, rule in enumerate(suite.rules)
    ]
    given = gx.ExpectationSuite(name=suite.name, expectations=rules)
    assert len(given.expectations) == len(suite.rules)
    said = batch.validate(given, result_format={"result_format": "BASIC", "partial_unexpected_count": 0})
    found = sorted(said.results, key=lambda result: result.expectation_config.meta["n"])
    return [result.to_json_dict() for result in found]


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """A result without samples."""
    said = {key: value for key, value in result["result"].items() if not key.startswith("partial_")}
    return {"success": result["success"], **said}


def rounded(result: dict[str, Any]) -> dict[str, Any]:
    """A sum of floats depends on the order of the rows, which files and partitions have their own way."""
    return {key: round(value, 9) if isinstance(value, float) else value for key, value in numbers(result).items()}


def test_every_expectation_that_is_not_refused_is_compared():
    judged = {rule.type for rule in suite().rules}
    assert judged == {name for name, kind in CATALOGUE.items() if kind.how is not ColumnSource.REFUSED}


@pytest.mark.parametrize(("count", "every"), [(60, 1), (0, 3)], ids=["random", "empty"])
def test_the_numbers_are_those_of_great_expectations(spark, count, every):
    frame = spark.createDataFrame(rows(7, count), SCHEMA).coalesce(1)
    judged = judge(suite(every), frame)
    different = {
        finding.rule.name: (numbers(finding.result), numbers(their))
        for finding, their in zip(judged.findings, theirs(suite(every), frame), strict=True)
        if numbers(finding.result) != numbers(their) and finding.rule.type != "unexpected_rows_expectation"
    }
    assert different == {}
    assert judged.rows == count
    if count:
        query = judged.findings[-1]  # Great Expectations looks for its view in another session than the rows'
        assert query.result["result"]["observed_value"] == frame.where("i > 3").count()


ODD = """expectations:
- {type: expect_column_max_to_be_between, kwargs: {column: d, max_value: 5}}
- {type: expect_column_min_to_be_between, kwargs: {column: d, min_value: 5}}
- {type: expect_column_mean_to_be_between, kwargs: {column: d, max_value: 5}}
- {type: expect_column_values_to_be_in_set, kwargs: {column: d, value_set: [1.0]}}
- {type: expect_column_quantile_values_to_be_between, kwargs: {column: d, quantile_ranges: {quantiles: [0.25, 1.0],
   value_ranges: [[0, 2], [1, 3]]}}}
"""


@pytest.mark.parametrize("staged", [False, True], ids=["kept", "staged"])
def test_what_is_found_can_be_told_in_an_ack(spark, tmp_path, staged):
    """Also numbers that are none in JSON, and those of numpy, which Great Expectations leaves in what it tells."""
    suite = read_suite(ODD, "s.yaml", "s")
    for values, most, least in (
        ([1.0, math.inf], "Infinity", 1.0),
        ([-math.inf, 2.0], 2.0, "-Infinity"),
        ([math.nan], None, None),  # as Great Expectations says it
    ):
        frame = spark.createDataFrame([(value,) for value in values], "d double")
        judged = judge(suite, frame, keeping=True, stage=in_files(tmp_path, str(values)) if staged else None)
        told = decode_json(encode_json(judged.record()), "an ack")["results"]
        observed = [each["result"]["observed_value"] for each in told[:2]]
        assert observed == [most, least]
        assert [each["exception_info"]["raised_exception"] for each in told] == [False] * 5


@pytest.mark.parametrize("first", range(3))
def test_the_numbers_are_the_same_where_rows_are_kept(spark, first):
    """Then all conditions are evaluated once for each row, and equal values are found by their hashes."""
    every = suite()
    rules = replace(every, rules=every.rules[first::3])
    frame = spark.createDataFrame(rows(7, 60), SCHEMA).coalesce(1)
    kept, asked = judge(rules, frame, keeping=True), judge(rules, frame)
    assert kept.marked_rows is not None
    assert [numbers(each.result) for each in kept.findings] == [numbers(each.result) for each in asked.findings]
    assert [each.bad for each in kept.findings] == [each.bad for each in asked.findings]


def in_files(folder: Any, attempt: str = "a") -> Any:
    """How a gate right before a table has its rows staged."""
    context = SinkContext("p", "u", "s", Place(str(folder)), home="p")
    return partial(DeltaAppend("t").prestage, context=context, staging=Staging(1, attempt))


def test_of_no_rows_spark_tells_the_same_whether_it_was_known_or_not(spark, tmp_path):
    """Also what only Spark can count: then there are no files either."""
    frame = spark.createDataFrame(rows(7, 5), SCHEMA)
    asked = judge(suite(), frame.limit(0))
    known = judge(suite(), no_rows_like(frame), keeping=True, stage=in_files(tmp_path))
    assert known.rows == 0
    assert [numbers(each.result) for each in known.findings] == [numbers(each.result) for each in asked.findings]
    assert [each.bad for each in known.findings] == [each.bad for each in asked.findings]


@pytest.mark.parametrize(
    ("first", "at_once"),
    some_of([(first, at_once) for at_once in (32_000_000, 25) for first in range(3)], 2),
)
def test_the_numbers_are_the_same_where_rows_are_staged(spark, tmp_path, monkeypatch, first, at_once):
    """Then what Spark has noted beside each row is counted in the files, and equal values are found there."""
    monkeypatch.setattr("tidegate.gates.judging.in_files.AT_ONCE", at_once)
    every = suite()
    by_spark = [("d", "unique"), ("i", "z_scores"), ("i", "outliers"), ("s", "to_be_between")]  # see the next test
    left = [rule for rule in every.rules for name, type in by_spark if name in rule.columns and type in rule.type]
    rules = replace(every, rules=tuple(rule for rule in every.rules[first::3] if rule not in left))
    frame = spark.createDataFrame(rows(7, 60), SCHEMA).repartition(3)
    staged = judge(rules, frame, keeping=True, stage=in_files(tmp_path))
    asked = judge(rules, frame)
    assert staged.files is not None
    assert (staged.rows, staged.marked_rows) == (60, None)
    assert [rounded(each.result) for each in staged.findings] == [rounded(each.result) for each in asked.findings]
    assert [each.bad for each in staged.findings] == [each.bad for each in asked.findings]
    asked = judge(rules, frame.limit(0))
    for attempt, nothing in (("b", frame.limit(0)), ("known", no_rows_like(frame))):
        none = judge(rules, nothing, keeping=True, stage=in_files(tmp_path, attempt))
        assert none.files is not None
        assert [rounded(each.result) for each in none.findings] == [rounded(each.result) for each in asked.findings]


def test_rows_are_staged_first_only_if_all_that_is_asked_can_be_told_from_files(spark, tmp_path):
    frame = spark.createDataFrame([(1.0, "x"), (1.0, "1")], "d double, s string")
    floats = "expectations: [{type: expect_column_values_to_be_unique, kwargs: {column: d}}]"
    judged = judge(read_suite(floats, "s.yaml", "s"), frame, keeping=True, stage=in_files(tmp_path))
    assert (judged.files, judged.findings[0].bad) == (None, 2), "which of 0.0, -0.0 and NaN are equal, Spark knows"
    far = "expectations: [{type: expect_column_value_z_scores_to_be_less_than, kwargs: {KW}}]"
    far = far.replace("KW", "column: n, threshold: 1, double_sided: true")
    numbers_of = spark.createDataFrame([(each,) for each in (1, 2, 1, 2, 1, 2, 99)], "n int")
    judged = judge(read_suite(far, "s.yaml", "s"), numbers_of, keeping=True, stage=in_files(tmp_path))
    assert (judged.files, judged.findings[0].bad) == (None, 1), "what is far is only known when all have been seen"
    judged = judge(read_suite(ANSI, "s.yaml", "s"), frame, keeping=True, stage=in_files(tmp_path))
    assert (judged.files, [each.success for each in judged.findings]) == (None, [False, True, False])
    assert not list(tmp_path.rglob("*.parquet")), "what was begun, before a condition failed for a row, is gone"


KINDS = """s string, b boolean, t byte, i int, l long, f float, d double, m decimal(20,3), x binary, y date,
    at timestamp, n timestamp_ntz, o struct<a: int, b: array<string>>, k map<string, int>"""


def test_values_are_shown_as_spark_shows_them(spark):
    """Times in the session's zone, floats as Java writes them, what has parts as JSON."""
    from pyspark.sql import functions as f

    dice = random.Random(5)
    floats = [dice.choice([1, -1]) * dice.random() * 10 ** dice.randint(-12, 12) for _ in range(200)]
    floats = [float(f"{each:.4g}") for each in floats]  # what Java 17 writes is not always the shortest
    odd = [0.0, -0.0, math.nan, math.inf, -math.inf, 0.125, 1e7, 9999999.0, 100.0, 1.5e300]
    floats += odd

    def row(value: float) -> tuple[Any, ...]:
        small = value if abs(value) < 1e12 else 1.0  # NaN too
        whole, at = int(small), datetime(2026, 3, 29, tzinfo=UTC) + timedelta(seconds=small % 1e8)
        texts = "ü" * (whole % 400)
        single = value if value in odd else whole % 4096 / 8
        kinds = (whole % 2 == 0, whole % 100, whole % 10**9, whole, single, value, Decimal(whole) / 1000)
        return (
            texts,
            *kinds,
            texts.encode()[:200],
            date(1, 1, 1) + timedelta(abs(whole) % 3_000_000),
            at,
            at.replace(tzinfo=None),
            (whole % 5, ["a", None]),
            {"k": 1},
        )

    every = [row(each) for each in floats] + [(None,) * 14]
    spark.conf.set("spark.sql.session.timeZone", "Europe/Vienna")
    try:
        frame = spark.createDataFrame(every, KINDS)
        held = frame.toArrow()
        flat = [name for name in frame.columns if name not in ("o", "k")]
        expected = frame.select(*(display_column(frame, name).alias(name) for name in frame.columns)).collect()
        found = texts_of(
            {0: held, 1: held.select(flat), 2: held.select(["o"])}, {0: frame.columns, 1: flat, 2: ["o"]}, frame
        )
        assert found[0] == [list(row) for row in expected]
        assert found[1] == [[row[name] for name in flat] for row in expected]
        assert found[2] == [[row["o"]] for row in expected]
        sure = frame.where("o IS NOT NULL").select(
            f.struct(f.lit(1).alias("a")).alias("o"), f.array(f.lit("b")).alias("l")
        )
        rows_of = {0: sure.limit(1).toArrow().select(["o"]), 1: sure.limit(1).toArrow().select(["l"])}
        assert texts_of(rows_of, {0: ["o"], 1: ["l"]}, sure) == {0: [['{"a":1}']], 1: [['["b"]']]}, "never null"
        here = {name: cast_to_string_like_spark(held[name], lambda: "Europe/Vienna", 256) for name in flat}
        assert here == {name: [row[name] for row in expected] for name in flat}, "and Spark was not asked"
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


ANSI = """
expectations:
- {type: expect_column_values_to_be_in_set, kwargs: {column: s, value_set: [1, 2]}}
- {type: expect_column_values_to_not_be_null, kwargs: {column: s}}
- {type: expect_column_values_to_be_between, kwargs: {column: s, min_value: 3}}
"""


def test_an_error_of_one_rule_fails_that_rule_and_no_other(spark):
    suite = read_suite(ANSI, "s.yaml", "s")
    frame = spark.createDataFrame([("x",), ("1",)], "s string")
    judged = judge(suite, frame)
    assert [numbers(f.result) for f in judged.findings] == [numbers(their) for their in theirs(suite, frame)]
    assert [finding.success for finding in judged.findings] == [False, True, False]
    told = [finding.result["exception_info"]["exception_message"] for finding in judged.findings]
    assert "CAST_INVALID_INPUT" in told[0]
    assert told[1] is None
    assert "cannot be computed on column of type StringType" in told[2]
    assert judge(suite, frame, keeping=True).marked_rows is None, "what fails for one row could not be noted"


def test_equal_hashes_of_unequal_values_are_no_repeats(spark):
    """Whoever knows the hash can make such rows. Then values themselves are grouped."""
    rule = "{type: expect_compound_columns_to_be_unique, kwargs: {column_list: [a, b], ignore_row_if: never}}"
    suite = read_suite(f"name: s\nexpectations: [{rule}]", "s.yaml", "s")
    twin = (2, same_hash(spark, 1, 7, 2))
    assert spark.range(1).selectExpr(f"xxhash64(1L, 7L) = xxhash64(2L, {twin[1]}L)").first()[0]
    found, hashed = [], []
    for each in ([(1, 7), twin], [(3, 3), (3, 3)], [(1, 7), twin, (3, 3), (3, 3)], [(1, None), (None, 1)]):
        judged = judge(suite, spark.createDataFrame(each, "a long, b long"), keeping=True)
        assert judged.marked_rows is not None
        found.append(judged.findings[0].bad)
        hashed.append(judged.findings[0].repeated is None)
    assert found == [0, 2, 2, 0]
    assert hashed == [False, True, False, True]


def same_hash(spark: Any, a: int, b: int, other: int) -> int:
    """With which number `other` has the hash of (a, b): XXH64 mixes a number in by steps that can all be undone."""
    p1, p2, p5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x27D4EB2F165667C5
    every = 2**64 - 1

    def rotated(value: int, by: int) -> int:
        return (value << by | value >> (64 - by)) & every

    seeds = [
        int(each) + p5 + 8 & every
        for each in spark.range(1).selectExpr(f"xxhash64({a}L)", f"xxhash64({other}L)").first()
    ]
    mixed = rotated(b * p2 & every, 31) * p1 & every
    mixed ^= seeds[0] ^ seeds[1]
    found = rotated(mixed * pow(p1, -1, 2**64) & every, 33) * pow(p2, -1, 2**64) & every
    return found - 2**64 if found >= 2**63 else found


SMALL = """
name: small
expectations:
- {type: expect_column_values_to_not_be_null, kwargs: {column: s, mostly: 0.5}}
- {type: expect_column_values_to_be_between, kwargs: {column: i, min_value: 2, row_condition: "s is not null",
   condition_parser: spark}}
- {type: expect_column_values_to_be_unique, kwargs: {column: i}, id: once}
- {type: expect_compound_columns_to_be_unique, kwargs: {column_list: [i, s]}, id: both}
- {type: expect_column_distinct_values_to_be_in_set, kwargs: {column: s, value_set: [a]}}
"""
FEW = [(1, "a"), (2, "b"), (2, None), (None, "x" * 300), (3, None), (3, None), (0, None)]


def broken_of(between: Any) -> list[Any]:
    """The bad ones of these rows, with the rules that they break."""
    twice = [(2, "", ("once",)), (2, "b", ("once",)), (3, "", ("once", "both")), (3, "", ("once", "both"))]
    return [(1, "a", (between.rule.name,)), *twice]


def check_small(spark: Any) -> None:
    frame = spark.createDataFrame(FEW, "i int, s string")
    judged = judge(read_suite(SMALL.replace("mostly: 0.5", "mostly: 0.1"), "s.yaml", "s"), frame)
    _, between, once, both, distinct = judged.findings
    assert [finding.success for finding in judged.findings] == [True, False, False, False, False]
    assert [finding.bad for finding in judged.findings] == [4, 1, 4, 2, None]
    assert [finding.removes_rows for finding in judged.findings] == [False, True, True, True, False]
    assert between.result["result"]["partial_unexpected_list"] == ["1"]
    assert sorted(once.result["result"]["partial_unexpected_list"]) == ["2", "3"]
    assert both.result["result"]["partial_unexpected_list"] == [{"i": "3", "s": None}]
    assert sorted(map(len, distinct.result["result"]["partial_unexpected_list"])) == [1, 256]
    assert judged.record()["statistics"]["successful_expectations"] == 1
    good, bad = split(frame, judged, [finding for finding in judged.findings if finding.removes_rows], "broken")
    assert good.columns == frame.columns
    assert sorted(map(tuple, good.collect()), key=str) == sorted([FEW[3], FEW[6]], key=str)
    told = sorted((row["i"], row["s"], tuple(row["broken"])) for row in bad.na.fill("").collect())
    assert told == broken_of(between)
    hidden = judge(null_suite(), frame, private=["s"]).findings
    assert [finding.result["result"]["partial_unexpected_list"] for finding in hidden] == [[], []]


def check_small_in_files(spark: Any, folder: Any) -> None:
    """The same of rows that are staged."""
    frame = spark.createDataFrame(FEW, "i int, s string")
    suite = read_suite(SMALL.replace("mostly: 0.5", "mostly: 0.1"), "s.yaml", "s")
    judged = judge(suite, frame, keeping=True, stage=in_files(folder))
    _, between, once, both, distinct = judged.findings
    assert judged.files is not None
    assert [finding.bad for finding in judged.findings] == [4, 1, 4, 2, None]
    taken = [(each.leaf, each.rule.name) for each in judged.findings if each.removes_rows]
    parts = list(judged.files.divide(taken, "broken"))
    add_samples_from_files(frame, judged, ())
    assert between.result["result"]["partial_unexpected_list"] == ["1"]
    assert sorted(once.result["result"]["partial_unexpected_list"]) == ["2", "3"]
    assert both.result["result"]["partial_unexpected_list"] == [{"i": "3", "s": None}]
    assert sorted(map(len, distinct.result["result"]["partial_unexpected_list"])) == [1, 256]
    told = sorted((row["i"], row["s"] or "", tuple(row["broken"])) for part in parts for row in part.to_pylist())
    assert told == broken_of(between)
    files = judged.files.ahead.staged()
    good = [row for file in files for row in pq.read_table(f"{folder}/t/{file.path}").to_pylist()]
    assert sorted(map(tuple, (row.values() for row in good)), key=str) == sorted([FEW[3], FEW[6]], key=str)
    left = {f"{folder}/t/{file.path}" for file in files}
    assert {str(path) for path in folder.rglob("*.parquet")} == left, "what was staged at first is gone"


def null_suite() -> Suite:
    whole = read_suite(SMALL.replace("mostly: 0.5", "mostly: 0.9"), "s.yaml", "s")
    return replace(whole, rules=(whole.rules[0], whole.rules[4]))


@pytest.mark.parametrize("few", [1000, 0], ids=["kept", "too many to keep"])
def test_bad_rows_are_told_from_good_ones_with_the_rules_that_they_broke(spark, monkeypatch, few):
    monkeypatch.setattr("tidegate.gates.judging.judge.FEW_ROWS", few)
    check_small(spark)


def test_bad_rows_are_taken_out_of_the_files_with_the_rules_that_they_broke(spark, tmp_path):
    check_small_in_files(spark, tmp_path)


def test_the_same_over_connect(connect_spark, tmp_path):
    check_small(connect_spark)
    check_small_in_files(connect_spark, tmp_path)


def test_what_great_expectations_reads_itself_are_the_rows_that_continue(spark, tmp_path):
    """Not the same ones computed again: a stage may give others each time."""
    from pyspark.sql import functions as f

    text = """expectations: [{type: expect_column_quantile_values_to_be_between, kwargs: {column: r,
        quantile_ranges: {quantiles: [0.5], value_ranges: [[0, 1]]}}}]"""
    dice = f.udf(lambda: random.SystemRandom().random(), "double").asNondeterministic()
    for stage in (None, in_files(tmp_path)):
        frame = spark.range(200).select(dice().alias("r"))
        judged = judge(read_suite(text, "s.yaml", "s"), frame, keeping=True, stage=stage)
        kept = judged.files.ahead.read() if judged.files is not None else plain(judged)
        observed = judged.findings[0].result["result"]["observed_value"]["values"][0]
        assert kept.where(f.col("r") == observed).count() == 1


TWICE = """
name: twice
expectations:
- {type: expect_column_values_to_be_unique, kwargs: {column: i}, id: strict}
- {type: expect_column_values_to_be_unique, kwargs: {column: i, mostly: 0.9}, id: mild}
- {type: expect_column_values_to_not_be_null, kwargs: {column: s}, id: named}
"""


def test_all_processes_ask_spark_the_same_of_a_suite(spark):
    """Rule by rule, so a server compiles it once. Great Expectations' order is that of hashes, each process's own."""
    rules = "".join(f"- {{type: expect_column_values_to_not_be_null, kwargs: {{column: c{n}}}}}\n" for n in range(9))
    suite = read_suite(f"expectations:\n{rules}", "s.yaml", "s")
    frame = spark.createDataFrame([], ", ".join(f"c{n} int" for n in (3, 1, 4, 0, 5, 2, 6, 8, 7)))
    counting = [str(leaf.condition) for leaf in compile_suite(suite, frame).first.values() if isinstance(leaf, Count)]
    assert [re.findall("c[0-9]", each) for each in counting if "c" in each] == [[f"c{n}"] for n in range(9)]


def test_a_suite_judges_one_batch_after_another_and_what_is_taken_is_chosen(spark):
    """What it makes for the first batch serves the second one, and nothing of the first is in that. Two rules may ask
    the same of the rows, and of broken rules only some may take any."""
    suite = read_suite(TWICE, "s.yaml", "s")
    batches = [[(1, "a"), (1, "b"), (2, None), (3, "c")], [(1, "a"), (2, "b"), (5, "c"), (5, "d"), (6, None)]]
    for batch, again in zip(batches, (1, 5), strict=True):
        judged = judge(suite, spark.createDataFrame(batch, "i int, s string"), keeping=True)
        strict, mild, named = judged.findings
        assert judged.marked_rows is not None
        assert [each.bad for each in judged.findings] == [2, 2, 1]
        for taken in ([strict, mild, named], [mild], [named]):
            good, bad = split(judged.frame, judged, taken, "broken")
            rules = {each.rule.name for each in taken}
            wrong = {(i, s): {"strict", "mild"} & rules for i, s in batch if i == again}
            wrong |= {(i, s): {"named"} & rules for i, s in batch if s is None}
            wrong = {row: broken for row, broken in wrong.items() if broken}
            assert {(row["i"], row["s"]): set(row["broken"]) for row in bad.collect()} == wrong
            assert sorted(map(tuple, good.collect()), key=str) == sorted(set(batch) - wrong.keys(), key=str)


def test_of_many_bad_values_a_few_are_told(spark):
    text = "expectations: [{type: expect_column_values_to_be_null, kwargs: {column: id}}]"
    finding = judge(read_suite(text, "s.yaml", "s"), spark.range(100_000)).findings[0]
    assert finding.bad == 100_000
    assert len(finding.result["result"]["partial_unexpected_list"]) == 20


def test_rows_that_cannot_be_read_are_no_fault_of_a_rule(spark, tmp_path):
    spark.range(10).write.parquet(str(tmp_path / "rows"))
    frame = spark.read.parquet(str(tmp_path / "rows"))
    for file in (tmp_path / "rows").glob("*.parquet"):
        file.unlink()
    text = "expectations: [{type: expect_column_values_to_be_null, kwargs: {column: id}}]"
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        judge(read_suite(text, "s.yaml", "s"), frame)


def test_a_wrong_argument_that_only_great_expectations_notices_is_told_with_its_line(spark):
    text = "expectations:\n- {type: expect_column_value_lengths_to_equal, kwargs: {column: id, value: long}}"
    with pytest.raises(Invalid, match=r"s.yaml:2: expect_column_value_lengths_to_equal: value"):
        judge(read_suite(text, "s.yaml", "s"), spark.range(1))


def test_the_catalogue_is_great_expectations_own():
    from great_expectations.expectations.registry import (
        get_expectation_impl,
        list_registered_expectation_implementations,
    )

    warm()
    everywhere = {
        *("id", "meta", "notes", "result_format", "description", "catch_exceptions", "rendered_content", "windows"),
        *("batch_id", "severity", "row_condition", "condition_parser", "library_metadata"),
    }
    assert set(CATALOGUE) == set(list_registered_expectation_implementations())
    for name, kind in CATALOGUE.items():
        fields = get_expectation_impl(name).__fields__
        ours = {**dict.fromkeys(kind.arguments, True), **dict.fromkeys(kind.optional, False)}
        assert ours == {key: field.required for key, field in fields.items() if key not in everywhere}, name
        assert kind.conditional == ("row_condition" in fields), name
