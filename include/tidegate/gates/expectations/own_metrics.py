"""Conditions that Great Expectations has for other engines, written for Spark.

They mean what they mean there: LIKE is Spark's own, as its other databases use theirs; and a text is a date if dateutil
reads it, as with pandas. Great Expectations finds them in its registry, like its own.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["IN_PYTHON", "register"]

IN_PYTHON = ("column_values.dateutil_parseable",)
"""Those whose condition is a Python function."""


@functools.cache
def register() -> None:
    """Add them to the registry. Great Expectations must be imported."""
    from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
    from great_expectations.expectations.metrics.map_metric_provider.column_condition_partial import (
        column_condition_partial,
    )
    from great_expectations.expectations.metrics.map_metric_provider.column_map_metric_provider import (
        ColumnMapMetricProvider,
    )
    from great_expectations.expectations.registry import get_metric_kwargs

    def on_spark(name: str, condition: Any) -> None:
        metric = f"column_values.{name}"
        keys = get_metric_kwargs(f"{metric}.condition")["metric_value_keys"]  # as this version has them
        for_spark = column_condition_partial(engine=SparkDFExecutionEngine)(condition)
        members = {"condition_metric_name": metric, "condition_value_keys": tuple(keys), "_spark": for_spark}
        type(f"Tidegate_{name}", (ColumnMapMetricProvider,), members)

    on_spark("match_like_pattern", _like)
    on_spark("not_match_like_pattern", _not_like)
    on_spark("match_like_pattern_list", _like_any_or_all)
    on_spark("not_match_like_pattern_list", _like_none)
    on_spark("dateutil_parseable", _dateutil_parseable)


def _is_like(column: Any, pattern: str, escape: str | None) -> Any:
    from pyspark.sql import functions as f

    return f.like(column, f.lit(pattern), f.lit(escape) if escape is not None else None)


def _like(cls: Any, column: Any, like_pattern: str, escape: str | None = None, **_: Any) -> Any:
    return _is_like(column, like_pattern, escape)


def _not_like(cls: Any, column: Any, like_pattern: str, escape: str | None = None, **_: Any) -> Any:
    return ~_is_like(column, like_pattern, escape)


def _like_any_or_all(
    cls: Any, column: Any, like_pattern_list: list[str], match_on: str | None, escape: str | None = None, **_: Any
) -> Any:
    found = [_is_like(column, pattern, escape) for pattern in like_pattern_list]
    if match_on == "all":
        return functools.reduce(lambda first, second: first & second, found)
    return functools.reduce(lambda first, second: first | second, found)


def _like_none(cls: Any, column: Any, like_pattern_list: list[str], escape: str | None = None, **_: Any) -> Any:
    found = [_is_like(column, pattern, escape) for pattern in like_pattern_list]
    return ~functools.reduce(lambda first, second: first | second, found)


def _dateutil_parseable(cls: Any, column: Any, **_: Any) -> Any:
    from pyspark.sql import functions as f

    def is_date(value: object) -> bool | None:
        from dateutil.parser import parse  # type: ignore[import-untyped]

        if value is None:  # Spark calls it for every row, and counts those without a value as missing
            return None
        if not isinstance(value, str):
            raise TypeError("a text is parsed; a date or a timestamp is one already")
        try:
            parse(value)
        except (ValueError, OverflowError):
            return False
        return True

    is_date.__annotations__.clear()  # Spark would try to understand them
    return f.udf(is_date, "boolean")(column)
