"""The stage of `Stream.union`. Like any stage, it runs on retracted rows as well."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from tidegate.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["union"]


def union(first: DataFrame, *others: DataFrame) -> DataFrame:
    """Return the rows of all frames, by the names of their columns. Raise Invalid if they do not have the same."""
    for other in others:
        unlike = sorted(set(first.columns) ^ set(other.columns))
        if unlike:
            raise Invalid(
                f"streams of a union do not have the same columns: not all have {', '.join(map(repr, unlike))}",
                expected=f"{', '.join(first.columns)} in each",
                help="select or add columns in a stage before, null if need be",
                reason="BAD_UNION",
            )
    return reduce(lambda one, other: one.unionByName(other), others, first)
