"""Every expectation of Great Expectations: its arguments, and how tidegate judges it.

Great Expectations takes six seconds to import and silently drops an expectation that it does not know. This table is
available at once, so that a suite can be checked when it is read. A test compares it with the library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["CATALOGUE", "ColumnSource", "Kind", "table"]


class ColumnSource(Enum):
    """The origin of an expectation's numbers."""

    ROWS = "compiled, row by row"
    """Its condition is counted in the same query as all others. The bad rows are known."""
    REPEATS = "compiled, by grouping"
    """Its columns are grouped. The bad rows are known."""
    NUMBERS = "compiled, one aggregation"
    """Its aggregates are computed in one query with all others. No single row is to blame."""
    GROUPS = "compiled, by counting values"
    """Its column is grouped in a query of its own. No single row is to blame."""
    SCHEMA = "from the schema"
    """No row is read."""
    THROUGH = "run by Great Expectations"
    """It needs additional Spark jobs, and no single row is to blame."""
    REFUSED = "refused"


@dataclass(frozen=True)
class Kind:
    """One type of expectation. `arguments` are required, `optional` ones have defaults."""

    how: ColumnSource
    arguments: tuple[str, ...]
    optional: tuple[str, ...] = ()
    conditional: bool = True
    """True: it accepts `row_condition`."""
    why: str = ""
    reads_any_column: bool = False
    """True: it may read other columns than those that its arguments name."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that a class of the user's own has by default, if they say what it reads."""

    @property
    def identifies_rows(self) -> bool:
        """True: its bad rows are known, so that they can be quarantined."""
        return self.how in (ColumnSource.ROWS, ColumnSource.REPEATS)


def _kind(
    how: ColumnSource, arguments: str, why: str = "", *, conditional: bool = True, reads_any_column: bool = False
) -> Kind:
    words = arguments.split()
    return Kind(
        how,
        tuple(word for word in words if not word.endswith("?")),
        tuple(word[:-1] for word in words if word.endswith("?")),
        conditional,
        why,
        reads_any_column,
    )


_LIKE = "by Spark's LIKE: Great Expectations has no Spark implementation of it"
_DATEUTIL = "by dateutil in Spark's workers: Great Expectations has no Spark implementation of it"
_MOST_COMMON = "by grouping: Great Expectations would collect every distinct value in one process"
_NO_ORDER = "the rows of a checkpoint have no order"
_DISTINCT = "Great Expectations would collect every distinct value in one process"
_QUERY = "rows are known if the query is `select * from {batch} where …`; otherwise Great Expectations runs it"
_ELSEWHERE = "it reads another table, which may be of another checkpoint"
_RANGE = "min_value? max_value? strict_min? strict_max?"
_APART = "Great Expectations reads the values in a job of its own"

CATALOGUE: dict[str, Kind] = {
    "expect_column_distinct_values_to_be_in_set": _kind(ColumnSource.THROUGH, "column value_set", _APART),
    "expect_column_distinct_values_to_contain_set": _kind(ColumnSource.THROUGH, "column value_set", _APART),
    "expect_column_distinct_values_to_equal_set": _kind(ColumnSource.THROUGH, "column value_set", _APART),
    "expect_column_kl_divergence_to_be_less_than": _kind(
        ColumnSource.REFUSED,
        "column partition_object? threshold? internal_weight_holdout? tail_weight_holdout? bucketize_data? min_value?"
        " max_value?",
        _DISTINCT,
    ),
    "expect_column_max_to_be_between": _kind(ColumnSource.NUMBERS, f"column {_RANGE}"),
    "expect_column_mean_to_be_between": _kind(ColumnSource.NUMBERS, f"column {_RANGE}"),
    "expect_column_median_to_be_between": _kind(ColumnSource.THROUGH, f"column {_RANGE}", _APART),
    "expect_column_min_to_be_between": _kind(ColumnSource.NUMBERS, f"column {_RANGE}"),
    "expect_column_most_common_value_to_be_in_set": _kind(
        ColumnSource.GROUPS, "column value_set ties_okay?", _MOST_COMMON
    ),
    "expect_column_pair_values_a_to_be_greater_than_b": _kind(
        ColumnSource.ROWS, "column_A column_B mostly? or_equal? ignore_row_if?"
    ),
    "expect_column_pair_values_to_be_equal": _kind(ColumnSource.ROWS, "column_A column_B mostly? ignore_row_if?"),
    "expect_column_pair_values_to_be_in_set": _kind(
        ColumnSource.ROWS, "column_A column_B mostly? value_pairs_set ignore_row_if?"
    ),
    "expect_column_proportion_of_non_null_values_to_be_between": _kind(ColumnSource.NUMBERS, f"column {_RANGE}"),
    "expect_column_proportion_of_unique_values_to_be_between": _kind(ColumnSource.NUMBERS, f"column {_RANGE}"),
    "expect_column_quantile_values_to_be_between": _kind(
        ColumnSource.THROUGH, "column quantile_ranges allow_relative_error?", _APART
    ),
    "expect_column_stdev_to_be_between": _kind(ColumnSource.NUMBERS, f"column {_RANGE}"),
    "expect_column_sum_to_be_between": _kind(ColumnSource.NUMBERS, f"column {_RANGE}"),
    "expect_column_to_exist": _kind(ColumnSource.SCHEMA, "column column_index?", conditional=False),
    "expect_column_type_to_be": _kind(ColumnSource.SCHEMA, "column type_", conditional=False),
    "expect_column_unique_value_count_to_be_between": _kind(ColumnSource.NUMBERS, f"column {_RANGE}"),
    "expect_column_value_lengths_to_be_between": _kind(ColumnSource.ROWS, f"column mostly? {_RANGE}"),
    "expect_column_value_lengths_to_equal": _kind(ColumnSource.ROWS, "column mostly? value"),
    "expect_column_value_z_scores_to_be_less_than": _kind(ColumnSource.ROWS, "column mostly? threshold double_sided"),
    "expect_column_values_to_be_between": _kind(ColumnSource.ROWS, f"column mostly? {_RANGE}"),
    "expect_column_values_to_be_dateutil_parseable": _kind(ColumnSource.ROWS, "column mostly?", _DATEUTIL),
    "expect_column_values_to_be_decreasing": _kind(ColumnSource.REFUSED, "column mostly? strictly?", _NO_ORDER),
    "expect_column_values_to_be_in_set": _kind(ColumnSource.ROWS, "column mostly? value_set"),
    "expect_column_values_to_be_in_type_list": _kind(ColumnSource.SCHEMA, "column mostly? type_list?"),
    "expect_column_values_to_be_increasing": _kind(ColumnSource.REFUSED, "column mostly? strictly?", _NO_ORDER),
    "expect_column_values_to_be_json_parseable": _kind(ColumnSource.ROWS, "column mostly?"),
    "expect_column_values_to_be_null": _kind(ColumnSource.ROWS, "column mostly?"),
    "expect_column_values_to_be_of_type": _kind(ColumnSource.SCHEMA, "column mostly? type_"),
    "expect_column_values_to_be_unique": _kind(ColumnSource.REPEATS, "column mostly?"),
    "expect_column_values_to_match_json_schema": _kind(ColumnSource.ROWS, "column mostly? json_schema"),
    "expect_column_values_to_match_like_pattern": _kind(
        ColumnSource.ROWS, "column mostly? like_pattern escape?", _LIKE
    ),
    "expect_column_values_to_match_like_pattern_list": _kind(
        ColumnSource.ROWS, "column mostly? like_pattern_list match_on? escape?", _LIKE
    ),
    "expect_column_values_to_match_regex": _kind(ColumnSource.ROWS, "column mostly? regex?"),
    "expect_column_values_to_match_regex_list": _kind(ColumnSource.ROWS, "column mostly? regex_list match_on?"),
    "expect_column_values_to_match_strftime_format": _kind(ColumnSource.ROWS, "column mostly? strftime_format"),
    "expect_column_values_to_not_be_in_set": _kind(ColumnSource.ROWS, "column mostly? value_set"),
    "expect_column_values_to_not_be_null": _kind(ColumnSource.ROWS, "column mostly?"),
    "expect_column_values_to_not_be_outliers": _kind(
        ColumnSource.THROUGH, "column mostly? method? multiplier?", _APART
    ),
    "expect_column_values_to_not_match_like_pattern": _kind(
        ColumnSource.ROWS, "column mostly? like_pattern escape?", _LIKE
    ),
    "expect_column_values_to_not_match_like_pattern_list": _kind(
        ColumnSource.ROWS, "column mostly? like_pattern_list escape?", _LIKE
    ),
    "expect_column_values_to_not_match_regex": _kind(ColumnSource.ROWS, "column mostly? regex"),
    "expect_column_values_to_not_match_regex_list": _kind(ColumnSource.ROWS, "column mostly? regex_list"),
    "expect_compound_columns_to_be_unique": _kind(ColumnSource.REPEATS, "column_list mostly? ignore_row_if?"),
    "expect_multicolumn_sum_to_equal": _kind(ColumnSource.ROWS, "column_list mostly? ignore_row_if? sum_total"),
    "expect_multicolumn_values_to_be_equal": _kind(ColumnSource.ROWS, "column_list mostly? ignore_row_if?"),
    "expect_query_results_to_match_comparison": _kind(
        ColumnSource.REFUSED,
        "base_query comparison_data_source_name comparison_query mostly?",
        _ELSEWHERE,
        conditional=False,
    ),
    "expect_select_column_values_to_be_unique_within_record": _kind(
        ColumnSource.ROWS, "column_list mostly? ignore_row_if?"
    ),
    "expect_table_column_count_to_be_between": _kind(ColumnSource.SCHEMA, "min_value? max_value?", conditional=False),
    "expect_table_column_count_to_equal": _kind(ColumnSource.SCHEMA, "value", conditional=False),
    "expect_table_columns_to_match_ordered_list": _kind(ColumnSource.SCHEMA, "column_list?", conditional=False),
    "expect_table_columns_to_match_set": _kind(ColumnSource.SCHEMA, "column_set? exact_match?", conditional=False),
    "expect_table_row_count_to_be_between": _kind(ColumnSource.NUMBERS, _RANGE),
    "expect_table_row_count_to_equal": _kind(ColumnSource.NUMBERS, "value"),
    "expect_table_row_count_to_equal_other_table": _kind(ColumnSource.REFUSED, "other_table_name", _ELSEWHERE),
    "unexpected_rows_expectation": _kind(
        ColumnSource.THROUGH, "unexpected_rows_query", _QUERY, conditional=False, reads_any_column=True
    ),
}


def table() -> Iterator[str]:
    """Yield the catalogue as lines of a Markdown table, for the documentation."""
    yield "| expectation | how it is judged | bad rows known | why |"
    yield "| --- | --- | --- | --- |"
    for name, kind in CATALOGUE.items():
        yield f"| `{name}` | {kind.how.value} | {'yes' if kind.identifies_rows else 'no'} | {kind.why} |"
