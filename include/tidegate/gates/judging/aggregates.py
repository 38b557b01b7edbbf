"""The numbers that are read from the rows: as many as possible in one aggregation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["TIMES", "Count", "Distinct", "FailedAggregate", "GuardedAggregate", "Leaf", "Repeats", "evaluate", "kept"]

TIMES = "_tidegate_times"

Guards: TypeAlias = "tuple[Column | str, ...]"
"""Conditions that a row must all meet to be looked at: a rule's `row_condition`, `ignore_row_if` and what else."""


@dataclass(frozen=True, eq=False)
class Count:
    """How many of the guarded rows meet the condition; all of them, if there is none."""

    guards: Guards
    condition: Column | None
    none_of_none: bool = False
    """Whether it is None, not 0, if no row passes the guards."""
    alone: bool = False
    """Whether the condition runs in Python: Spark calls it for every row, also for those that the guards keep out."""


@dataclass(frozen=True, eq=False)
class GuardedAggregate:
    """One aggregate of the guarded rows. `domain` is the same for the same guards."""

    guards: Guards
    column: Column
    domain: str


@dataclass(frozen=True, eq=False)
class Distinct:
    """How many distinct values one column has in the guarded rows, null not counted."""

    guards: Guards
    name: str


@dataclass(frozen=True, eq=False)
class Repeats:
    """How many of the guarded rows have the same values in these columns as another one."""

    guards: Guards
    columns: tuple[str, ...]


Leaf: TypeAlias = Count | GuardedAggregate | Distinct | Repeats


@dataclass(frozen=True)
class FailedAggregate:
    """Why a number could not be had."""

    error: Exception


def evaluate(frame: DataFrame, leaves: Mapping[Any, Leaf], repeated: dict[Leaf, DataFrame]) -> dict[Any, Any]:
    """The number for each leaf, or Failed. Raises only if the rows themselves cannot be read.

    repeated: gets, for each Repeats, the values that are there more than once, kept in Spark: they are asked for again.
    """
    groups: dict[Hashable, dict[Any, Leaf]] = {}
    for key, leaf in leaves.items():
        groups.setdefault(_group(key, leaf), {})[key] = leaf
    found: dict[Any, Any] = {}
    for group in groups.values():
        found |= _together(frame, group, repeated)
    return found


def kept(frame: DataFrame, guards: Guards) -> DataFrame:
    """The rows that pass the guards."""
    return reduce(lambda rows, guard: rows.filter(guard), guards, frame)


def _group(key: Hashable, leaf: Leaf) -> Hashable:
    """What can be computed in the same aggregation has the same group."""
    if isinstance(leaf, GuardedAggregate):
        return leaf.domain if leaf.guards else "all"
    return "all" if isinstance(leaf, Count) and not leaf.alone else key


def _together(frame: DataFrame, group: Mapping[Any, Leaf], repeated: dict[Leaf, DataFrame]) -> dict[Any, Any]:
    try:
        return _ask(frame, group, repeated)
    except Exception as error:
        if len(group) == 1:
            frame.limit(1).count()  # if even that fails, it is not the rule's fault
            return dict.fromkeys(group, FailedAggregate(error))
    half = len(group) // 2  # one of them is at fault
    halves = list(group.items())[:half], list(group.items())[half:]
    return _together(frame, dict(halves[0]), repeated) | _together(frame, dict(halves[1]), repeated)


def _ask(frame: DataFrame, group: Mapping[Any, Leaf], repeated: dict[Leaf, DataFrame]) -> dict[Any, Any]:
    from pyspark.sql import functions as f

    first = next(iter(group.values()))
    if isinstance(first, Repeats):
        groups = kept(frame, first.guards).groupBy(*map(_named, first.columns)).agg(f.count(f.lit(1)).alias(TIMES))
        repeated[first] = materialize(groups.where(f.col(TIMES) > 1))
        rows = repeated[first].agg(f.coalesce(f.sum(TIMES), f.lit(0))).collect()
    elif isinstance(first, Distinct):
        values = kept(frame, first.guards).select(_named(first.name).alias("value")).where("value is not null")
        rows = values.distinct().agg(f.count(f.lit(1))).collect()
    elif isinstance(first, GuardedAggregate):
        columns = [leaf.column for leaf in group.values() if isinstance(leaf, GuardedAggregate)]
        rows = kept(frame, first.guards).agg(*columns).collect() if first.guards else _ask_all(frame, group)
    elif first.alone:
        rows = kept(frame, first.guards).agg(_counted(replace(first, guards=()))).collect()
    else:
        rows = _ask_all(frame, group)
    return dict(zip(group, rows[0], strict=True))


def _ask_all(frame: DataFrame, group: Mapping[Any, Leaf]) -> list[Any]:
    columns = [
        (_counted(leaf) if isinstance(leaf, Count) else leaf.column).alias(f"n{number}")  # type: ignore[union-attr]
        for number, leaf in enumerate(group.values())
    ]
    return list(frame.agg(*columns).collect())


def _counted(leaf: Count) -> Column:
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
    """The guards as one condition."""
    from pyspark.sql import functions as f

    return reduce(lambda all, one: all & one, (f.expr(g) if isinstance(g, str) else g for g in guards))


def _named(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col(name)
