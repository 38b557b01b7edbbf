"""Judges each row by itself: the rules of a suite that are about single rows, without `mostly`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.gates.expectations.library import Walk, compiled
from tidegate.gates.expectations.suite import Rule, Suite
from tidegate.gates.judging.aggregates import Count
from tidegate.gates.judging.caught import text_or_null
from tidegate.gates.judging.judge import counting_condition
from tidegate.gates.row_rules import RowRules

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["row_rules"]


def row_rules(suite: Suite, frame: DataFrame, counts: Callable[[Rule], bool]) -> RowRules:
    """Return a suite's rules about single rows, for rows with these columns.

    counts: whether a rule counts. A rule whose condition fails for a row, such as a cast, is broken by it.
    """
    from pyspark.sql import functions as f

    suite_plan = compiled(suite, frame)
    walk = Walk(suite_plan.expectations, frame, suite_plan)
    names: list[Column] = []
    unjudged: list[str] = []
    for rule, expectation in zip(suite.rules, suite_plan.expectations, strict=True):
        if not counts(rule):
            continue
        leaf = walk.row_leaf(expectation) if rule.kind.identifies_rows else None
        if isinstance(leaf, Count) and leaf.condition is not None:
            names.append(f.when(_is_broken(counting_condition(leaf)), f.lit(rule.name)))
        else:
            unjudged.append(rule.name)
    broken = f.array_compact(f.array(*names)) if names else f.array().cast("array<string>")
    return RowRules(broken, tuple(unjudged))


def _is_broken(condition: Column) -> Column:
    """Return whether a condition is true, or fails."""
    from pyspark.sql import functions as f

    return ~text_or_null(f.when(condition, "broken").otherwise("kept")).eqNullSafe("kept")
