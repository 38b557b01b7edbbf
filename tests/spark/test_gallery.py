"""Every expectation that a gate judges is run once where it holds and once where it does not; and if it tells bad rows,
it tells all of them: Great Expectations itself would tell 200."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tidegate.gates.expectations.catalogue import CATALOGUE, ColumnSource
from tidegate.gates.expectations.suite import Suite, read_suite
from tidegate.gates.judging.judge import judge, split

pytestmark = in_turn(seconds=45)

ROWS = 500
IN_SET, NOT_IN_SET = {"value_set": [1]}, {"value_set": [9]}
IS_INT, IS_LONG = {"column": "one", "type_": "IntegerType"}, {"column": "one", "type_": "LongType"}
COLUMNS = ["id", "fifth", "twice", "one", "also_one", "two", "s", "j", "day", "nothing"]


def quantiles(low: float, high: float) -> dict[str, Any]:
    return {"column": "one", "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[low, high]]}}


def one(**kwargs: Any) -> dict[str, Any]:
    return {"column": "one", **kwargs}


def s(**kwargs: Any) -> dict[str, Any]:
    return {"column": "s", **kwargs}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # type: (where it holds, where it does not, for more than 200 rows if it is about rows)
    "expect_column_distinct_values_to_be_in_set": (one(**IN_SET), one(**NOT_IN_SET)),
    "expect_column_distinct_values_to_contain_set": (one(**IN_SET), one(**NOT_IN_SET)),
    "expect_column_distinct_values_to_equal_set": (one(**IN_SET), one(**NOT_IN_SET)),
    "expect_column_max_to_be_between": (one(max_value=1), one(max_value=0)),
    "expect_column_mean_to_be_between": (one(max_value=1), one(max_value=0)),
    "expect_column_median_to_be_between": (one(max_value=1), one(max_value=0)),
    "expect_column_min_to_be_between": (one(min_value=1), one(min_value=2)),
    "expect_column_most_common_value_to_be_in_set": (one(**IN_SET), one(**NOT_IN_SET)),
    "expect_column_pair_values_a_to_be_greater_than_b": (
        {"column_A": "two", "column_B": "one"},
        {"column_A": "one", "column_B": "two"},
    ),
    "expect_column_pair_values_to_be_equal": (
        {"column_A": "one", "column_B": "also_one"},
        {"column_A": "one", "column_B": "two"},
    ),
    "expect_column_pair_values_to_be_in_set": (
        {"column_A": "one", "column_B": "two", "value_pairs_set": [[1, 2]]},
        {"column_A": "one", "column_B": "two", "value_pairs_set": [[2, 1]]},
    ),
    "expect_column_proportion_of_non_null_values_to_be_between": (
        one(min_value=1),
        {"column": "nothing", "min_value": 0.5},
    ),
    "expect_column_proportion_of_unique_values_to_be_between": ({"column": "id", "min_value": 1}, one(min_value=0.5)),
    "expect_column_quantile_values_to_be_between": (quantiles(0, 2), quantiles(8, 9)),
    "expect_column_stdev_to_be_between": (one(max_value=0.1), {"column": "fifth", "max_value": 0.1}),
    "expect_column_sum_to_be_between": (one(min_value=ROWS), one(max_value=1)),
    "expect_column_to_exist": ({"column": "id"}, {"column": "nowhere"}),
    "expect_column_type_to_be": (IS_INT, IS_LONG),
    "expect_column_unique_value_count_to_be_between": (one(max_value=1), one(min_value=2)),
    "expect_column_value_lengths_to_be_between": (s(max_value=3), s(max_value=2)),
    "expect_column_value_lengths_to_equal": (s(value=3), s(value=2)),
    "expect_column_value_z_scores_to_be_less_than": (
        {"column": "fifth", "threshold": 9, "double_sided": True},
        {"column": "fifth", "threshold": 0.1, "double_sided": True},
    ),
    "expect_column_values_to_be_between": (one(max_value=1), one(min_value=2)),
    "expect_column_values_to_be_dateutil_parseable": ({"column": "day"}, s()),
    "expect_column_values_to_be_in_set": (one(**IN_SET), one(**NOT_IN_SET)),
    "expect_column_values_to_be_in_type_list": (one(type_list=["IntegerType"]), one(type_list=["LongType"])),
    "expect_column_values_to_be_json_parseable": ({"column": "j"}, s()),
    "expect_column_values_to_be_null": ({"column": "nothing"}, s()),
    "expect_column_values_to_be_of_type": (IS_INT, IS_LONG),
    "expect_column_values_to_be_unique": ({"column": "id"}, {"column": "twice"}),
    "expect_column_values_to_match_json_schema": (
        {"column": "j", "json_schema": {"type": "object"}},
        {"column": "j", "json_schema": {"type": "array"}},
    ),
    "expect_column_values_to_match_like_pattern": (s(like_pattern="a%"), s(like_pattern="a_")),
    "expect_column_values_to_match_like_pattern_list": (
        s(like_pattern_list=["z%", "a%"]),
        s(like_pattern_list=["z%", "a%"], match_on="all"),
    ),
    "expect_column_values_to_match_regex": (s(regex="^a"), s(regex="^z")),
    "expect_column_values_to_match_regex_list": (s(regex_list=["^z", "^a"]), s(regex_list=["^z"])),
    "expect_column_values_to_match_strftime_format": (
        {"column": "day", "strftime_format": "%Y-%m-%d"},
        {"column": "day", "strftime_format": "%d.%m.%Y"},
    ),
    "expect_column_values_to_not_be_in_set": (one(**NOT_IN_SET), one(**IN_SET)),
    "expect_column_values_to_not_be_null": (s(), {"column": "nothing"}),
    "expect_column_values_to_not_be_outliers": (
        {"column": "fifth", "method": "std", "multiplier": 9},
        {"column": "fifth", "method": "std", "multiplier": 0.1},
    ),
    "expect_column_values_to_not_match_like_pattern": (s(like_pattern="a_"), s(like_pattern="a%")),
    "expect_column_values_to_not_match_like_pattern_list": (
        s(like_pattern_list=["z%", "a_"]),
        s(like_pattern_list=["z%", "a%"]),
    ),
    "expect_column_values_to_not_match_regex": (s(regex="^z"), s(regex="^a")),
    "expect_column_values_to_not_match_regex_list": (s(regex_list=["^z"]), s(regex_list=["^z", "^a"])),
    "expect_compound_columns_to_be_unique": ({"column_list": ["id", "one"]}, {"column_list": ["twice", "one"]}),
    "expect_multicolumn_sum_to_equal": (
        {"column_list": ["one", "two"], "sum_total": 3},
        {"column_list": ["one", "two"], "sum_total": 4},
    ),
    "expect_multicolumn_values_to_be_equal": ({"column_list": ["one", "also_one"]}, {"column_list": ["one", "two"]}),
    "expect_select_column_values_to_be_unique_within_record": (
        {"column_list": ["one", "two"]},
        {"column_list": ["one", "also_one"]},
    ),
    "expect_table_column_count_to_be_between": ({"min_value": 3}, {"max_value": 3}),
    "expect_table_column_count_to_equal": ({"value": len(COLUMNS)}, {"value": 3}),
    "expect_table_columns_to_match_ordered_list": ({"column_list": COLUMNS}, {"column_list": COLUMNS[::-1]}),
    "expect_table_columns_to_match_set": ({"column_set": COLUMNS}, {"column_set": COLUMNS[1:]}),
    "expect_table_row_count_to_be_between": ({"min_value": ROWS}, {"max_value": 1}),
    "expect_table_row_count_to_equal": ({"value": ROWS}, {"value": 1}),
    "unexpected_rows_expectation": (
        {"unexpected_rows_query": "select * from {batch} where one > 1"},
        {"unexpected_rows_query": "SELECT *\n  FROM {batch}\n WHERE one = 1 AND s <> ';--' ;"},
    ),
}


def suite(number: int) -> Suite:
    rules = [{"type": type, "kwargs": kwargs[number], "id": type} for type, kwargs in CASES.items()]
    return read_suite(json.dumps({"name": "gallery", "expectations": rules}), "gallery.json", "gallery", is_json=True)


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    return spark.range(ROWS).selectExpr(
        "id",
        "cast(id % 5 as int) fifth",
        "cast(id / 2 as int) twice",
        "1 one",
        "1 also_one",
        "2 two",
        "'abc' s",
        """'{"a": 1}' j""",
        "'2026-01-02' day",
        "cast(null as string) nothing",
    )


def test_the_gallery_has_every_expectation_that_is_not_refused() -> None:
    assert set(CASES) == {name for name, kind in CATALOGUE.items() if kind.how is not ColumnSource.REFUSED}


def test_every_expectation_holds_where_it_should(frame: Any) -> None:
    judged = judge(suite(0), frame, keeping=True)
    assert [finding.rule.name for finding in judged.findings if not finding.success] == []


def test_every_expectation_fails_where_it_should_and_tells_all_bad_rows(frame: Any) -> None:
    from pyspark.sql import functions as f

    judged = judge(suite(1), frame, keeping=True)
    assert [finding.rule.name for finding in judged.findings if finding.success] == []
    raised = [each.rule.name for each in judged.findings if each.result["exception_info"]["raised_exception"]]
    assert raised == [], "they fail because of the rows, not because they could not be judged"
    telling = [finding for finding in judged.findings if finding.rule.kind.identifies_rows]
    assert {finding.rule.type for finding in telling} == {
        *(name for name, kind in CATALOGUE.items() if kind.identifies_rows),
        "unexpected_rows_expectation",
    }
    assert [each.rule.name for each in telling if not each.removes_rows or not each.bad or each.bad <= 200] == []
    assert judged.frame is not None
    _, bad = split(judged.frame, judged, telling, "broken")
    rows = bad.select(f.explode("broken").alias("rule")).groupBy("rule").count().collect()
    assert {row["rule"]: row["count"] for row in rows} == {each.rule.name: each.bad for each in telling}


def test_a_query_that_is_more_than_a_condition_is_judged_as_a_whole(frame: Any) -> None:
    """No row of what it returns is a row of the batch, or not for what it is itself."""
    queries = [
        "select one from {batch} where one = 1",
        "select * from {batch} where one = 1 limit 3",
        "select * from {batch} b where b.one = 1",
        "select one, count(*) from {batch} group by one having count(*) > 1",
        "select * from {batch} where id in (select max(id) from {batch})",
    ]
    rules = [{"type": "unexpected_rows_expectation", "kwargs": {"unexpected_rows_query": query}} for query in queries]
    text = json.dumps({"name": "queries", "expectations": rules})
    judged = judge(read_suite(text, "q.json", "q", is_json=True), frame, keeping=True)
    observed = [finding.result["result"]["observed_value"] for finding in judged.findings]
    assert observed == [ROWS, 3, ROWS, 1, 1]
    assert Counter(finding.removes_rows for finding in judged.findings) == {False: len(queries)}
