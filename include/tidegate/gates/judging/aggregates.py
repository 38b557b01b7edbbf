"""Read numbers from the rows: as many as possible in one aggregation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "TIMES",
    "Count",
    "Distinct",
    "FailedAggregate",
    "GuardedAggregate",
    "Leaf",
    "MostCommon",
    "Repeats",
    "apply_guards",
    "evaluate",
]

TIMES = "_tidegate_times"
MAX_MOST_COMMON = 10_000

Guards: TypeAlias = "tuple[Column | str, ...]"
"""Conditions that a row must all meet to be judged: a rule's `row_condition`, `ignore_row_if` and the like."""


@dataclass(frozen=True, eq=False)
class Count:
    """The number of guarded rows that meet the condition. Without a condition, of all guarded rows."""

    guards: Guards
    condition: Column | None
    none_of_none: bool = False
    """True: the number is None, not 0, if no row passes the guards."""
    alone: bool = False
    """True: the condition runs in Python. Spark calls it for every row, even for those that the guards exclude."""


@dataclass(frozen=True, eq=False)
class GuardedAggregate:
    """One aggregate of the guarded rows. `domain` is the same for the same guards."""

    guards: Guards
    column: Column
    domain: str


@dataclass(frozen=True, eq=False)
class Distinct:
    """The number of distinct values of one column in the guarded rows, without null."""

    guards: Guards
    name: str


@dataclass(frozen=True, eq=False)
class Repeats:
    """The number of guarded rows that have the same values in these columns as another row."""

    guards: Guards
    columns: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class MostCommon:
    """The values of one column that occur most often in the guarded rows, without null."""

    guards: Guards
    name: str


Leaf: TypeAlias = Count | GuardedAggregate | Distinct | MostCommon | Repeats


@dataclass(frozen=True)
class FailedAggregate:
    """The error that prevented a number from being read."""

    error: Exception


def evaluate(frame: DataFrame, leaves: Mapping[Any, Leaf], repeated: dict[Leaf, DataFrame]) -> dict[Any, Any]:
    """Return the number for each leaf, or FailedAggregate. Raise only if the rows themselves cannot be read.

    repeated: receives, for each Repeats, the values that occur more than once, persisted in Spark, since they are read
    again.
    """
    groups: dict[Hashable, dict[Any, Leaf]] = {}
    for key, leaf in leaves.items():
        groups.setdefault(_group_of(key, leaf), {})[key] = leaf
    numbers: dict[Any, Any] = {}
    for group in groups.values():
        numbers |= _evaluate_group(frame, group, repeated)
    return numbers


def apply_guards(frame: DataFrame, guards: Guards) -> DataFrame:
    """Return the rows that pass the guards."""
    return reduce(lambda rows, guard: rows.filter(guard), guards, frame)


def _group_of(key: Hashable, leaf: Leaf) -> Hashable:
    """Return the group of a leaf. All leaves of a group can be computed in one aggregation."""
    if isinstance(leaf, GuardedAggregate):
        return leaf.domain if leaf.guards else "all"
    return "all" if isinstance(leaf, Count) and not leaf.alone else key


def _evaluate_group(frame: DataFrame, group: Mapping[Any, Leaf], repeated: dict[Leaf, DataFrame]) -> dict[Any, Any]:
    try:
        return _compute(frame, group, repeated)
    except Exception as error:
        if len(group) == 1:
            frame.limit(1).count()  # if even this fails, the rule is not at fault
            return dict.fromkeys(group, FailedAggregate(error))
    half = len(group) // 2  # one of them is at fault
    halves = list(group.items())[:half], list(group.items())[half:]
    return _evaluate_group(frame, dict(halves[0]), repeated) | _evaluate_group(frame, dict(halves[1]), repeated)


def _compute(frame: DataFrame, group: Mapping[Any, Leaf], repeated: dict[Leaf, DataFrame]) -> dict[Any, Any]:
    from pyspark.sql import functions as f

    first = next(iter(group.values()))
    if isinstance(first, Repeats):
        groups = (
            apply_guards(frame, first.guards).groupBy(*map(_column, first.columns)).agg(f.count(f.lit(1)).alias(TIMES))
        )
        repeated[first] = materialize(groups.where(f.col(TIMES) > 1))
        rows = repeated[first].agg(f.coalesce(f.sum(TIMES), f.lit(0))).collect()
    elif isinstance(first, Distinct):
        values = apply_guards(frame, first.guards).select(_column(first.name).alias("value")).where("value is not null")
        rows = values.distinct().agg(f.count(f.lit(1))).collect()
    elif isinstance(first, MostCommon):
        return dict.fromkeys(group, _most_common(frame, first))
    elif isinstance(first, GuardedAggregate):
        columns = [leaf.column for leaf in group.values() if isinstance(leaf, GuardedAggregate)]
        rows = apply_guards(frame, first.guards).agg(*columns).collect() if first.guards else _compute_all(frame, group)
    elif first.alone:
        rows = apply_guards(frame, first.guards).agg(_count_column(replace(first, guards=()))).collect()
    else:
        rows = _compute_all(frame, group)
    return dict(zip(group, rows[0], strict=True))


def _most_common(frame: DataFrame, leaf: MostCommon) -> list[Any]:
    """Return the values that occur most often. If very many do, no process could hold them."""
    from pyspark.sql import functions as f

    values = apply_guards(frame, leaf.guards).select(_column(leaf.name).alias("value")).where("value is not null")
    counted = values.groupBy("value").agg(f.count(f.lit(1)).alias(TIMES))
    most = counted.agg(f.max(TIMES)).collect()[0][0]
    rows = counted.where(f.col(TIMES) == most).select("value").limit(MAX_MOST_COMMON + 1).collect()
    if len(rows) > MAX_MOST_COMMON:
        raise ValueError(f"more than {MAX_MOST_COMMON:,} values occur equally often, {most:,} times each")
    return [row[0] for row in rows]


def _compute_all(frame: DataFrame, group: Mapping[Any, Leaf]) -> list[Any]:
    columns = [
        (_count_column(leaf) if isinstance(leaf, Count) else leaf.column).alias(f"n{number}")  # type: ignore[union-attr]
        for number, leaf in enumerate(group.values())
    ]
    return list(frame.agg(*columns).collect())


def _count_column(leaf: Count) -> Column:
    from pyspark.sql import functions as f

    if leaf.condition is None:
        inner: Any = f.lit(1)
    elif leaf.none_of_none:
        inner = f.when(leaf.condition, 1).otherwise(0)
    else:
        inner = f.when(leaf.condition, 1)
    if leaf.guards:
        inner = f.when(guarded(leaf.guards), inner)
    return f.sum(inner) if leaf.none_of_none else f.count(inner)


def guarded(guards: Guards) -> Column:
    """Combine the guards into one condition."""
    from pyspark.sql import functions as f

    return reduce(lambda first, second: first & second, (f.expr(g) if isinstance(g, str) else g for g in guards))


def _column(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col(name)
