"""A gate's rules about single rows: each row by itself breaks what it breaks among all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.sampling import in_turn
from tidegate.gates import Expectations
from tidegate.gates.base import GateContext, Judgement
from tidegate.records.place import Place

pytestmark = in_turn(seconds=15)

SUITE = """
expectations:
  - {type: expect_column_values_to_not_be_null, kwargs: {column: amount}, id: known}
  - {type: expect_column_values_to_be_between, kwargs: {column: amount, min_value: 0, max_value: 9}, id: in_range}
  - {type: expect_column_values_to_be_in_set, kwargs: {column: country, value_set: [DE, FR]}, id: country}
  - {type: expect_column_values_to_match_regex, kwargs: {column: raw, regex: '^[a-z{]'}, id: letters}
  - {type: expect_column_values_to_be_json_parseable, kwargs: {column: raw}, id: json}
  - {type: expect_column_value_lengths_to_be_between, kwargs: {column: raw, max_value: 5}, id: short}
  - {type: expect_column_pair_values_to_be_equal, kwargs: {column_A: country, column_B: raw}, id: pair}
  - {type: expect_column_pair_values_a_to_be_greater_than_b, kwargs: {column_A: id, column_B: amount}, id: greater}
  - type: expect_column_values_to_be_in_set
    kwargs: {column: country, value_set: [FR], row_condition: 'amount > 3', condition_parser: spark}
    id: conditional
  - {type: expect_column_values_to_be_unique, kwargs: {column: id}, id: unique}
  - {type: expect_table_row_count_to_be_between, kwargs: {max_value: 3}, id: few}
  - {type: expect_column_mean_to_be_between, kwargs: {column: amount, max_value: 1}, id: mean}
"""
ROWS = [
    (1, "{}", 5, "DE"),
    (2, "a", None, "XX"),
    (2, "FR", 4, "FR"),
    (3, "1234567", 20, "FR"),
    (50, "{", -1, None),
    (6, None, None, None),
]


def test_each_row_breaks_by_itself_what_it_breaks_among_others(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    (tmp_path / "suite.yaml").write_text(SUITE)
    rows = spark.createDataFrame(ROWS, "id int, raw string, amount int, country string")
    context = GateContext("p", "g", Place(str(tmp_path), {}, str(tmp_path), {}))
    gate = Expectations(str(tmp_path / "suite.yaml"), on_failure="quarantine")
    judgement = gate.judge(rows, context)
    assert judgement.split is not None
    marked = judgement.split[1].select("id", "raw", Judgement.RULES).collect()
    among_others = {(id, raw): set(rules) - {"unique"} for id, raw, rules in marked}
    rules = gate.row_rules(rows, context)
    assert rules is not None
    assert set(rules.unjudged) == {"unique", "few", "mean"}
    one_by_one = rows.select("id", "raw", F.when(F.col("id") > 0, rules.broken)).collect()
    assert {(id, raw): set(broken) for id, raw, broken in one_by_one} == {
        (id, raw): among_others.get((id, raw), set()) for id, raw, _, _ in ROWS
    }
    assert one_by_one[3][2] == ["in_range", "letters", "short", "pair", "greater"]


def test_rules_that_only_warn_do_not_count_and_mostly_tolerates_no_single_row(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    (tmp_path / "suite.yaml").write_text(
        "expectations:\n"
        "  - {type: expect_column_values_to_be_between, kwargs: {column: id, max_value: 1, mostly: 0.1}, id: most}\n"
        "  - {type: expect_column_values_to_be_between, kwargs: {column: id, max_value: 0}, severity: info, id: told}\n"
    )
    rows = spark.range(3)
    context = GateContext("p", "g", Place(str(tmp_path), {}, str(tmp_path), {}))
    gate = Expectations(str(tmp_path / "suite.yaml"), on_failure={"critical": "quarantine", "info": "warn"})
    broken = gate.row_rules(rows, context).broken
    assert [row[1] for row in rows.select("id", F.when(F.col("id") >= 0, broken)).collect()] == [[], [], ["most"]]
