"""Expressions whose errors Spark catches row by row, where a failing row would otherwise fail the whole query."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["text_or_null"]


def text_or_null(text: Column) -> Column:
    """Return a text, or null for a row for which it fails. It must not be null itself.

    Use it in a branch of `when` only: Spark catches what fails within one of its `try_` functions, but computes an
    expression that occurs twice before them, unless it is in a branch.
    """
    from pyspark.sql import functions as f

    return f.try_to_binary(text, f.lit("utf-8")).cast("string")
