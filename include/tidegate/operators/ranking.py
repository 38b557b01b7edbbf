"""The first rows of each key in an order: which they are now, and which they were, where that differs.

A row is kept once, with how many copies of it there are. Only the first rows are, unless the input takes rows back:
then all are kept, for any may come first again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate.operators.join.sides import changed_rows, met
from tidegate.records.names import quoted
from tidegate.state.columns import DELETED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidegate.operators.base import OperatorContext

__all__ = ["RANK", "By", "first_rows", "ranked"]

RANK: Final = "rank"
COUNTED: Final = (("_n", "_now"), ("_was", "_before"))
"""The number of copies of a row, and the number of rows before it: now, and at the base."""


@dataclass(frozen=True)
class By:
    """A column to order by. Null comes last, either way."""

    name: str
    ascending: bool

    @property
    def column(self) -> Column:
        """The term for Spark."""
        from pyspark.sql import functions as F

        column = F.col(quoted(self.name))
        return column.asc_nulls_last() if self.ascending else column.desc_nulls_last()


def ranked(
    rows: DataFrame,
    withdrawn: DataFrame | None,
    by: Sequence[str],
    order: Sequence[By],
    n: int,
    context: OperatorContext,
) -> tuple[DataFrame, DataFrame]:
    """Return the rows that have entered the first `n` of their key, with `rank`; and those that have left them.

    gone: the rows that the input takes back; None: it takes none back.
    """
    changes = changed_rows(rows, withdrawn, by, context)
    touched = context.persist(changes.select(*map(quoted, by)).distinct())
    affected = met(context.state([*by, "_row"]), changes, touched, by, withdrawn is not None, context)
    affected = context.persist(_placed(affected, by, order, COUNTED))
    _put(affected, withdrawn is not None, n, context, by)
    # Of one row: where its copies stand, from which place to which.
    now, before = (f"{place}, least({place} + greatest({count}, 0), {n})" for count, place in COUNTED)
    moved = affected.where(f"NOT struct({now}) <=> struct({before})")
    return tuple(_first(moved, counts, rows.columns, n) for counts in COUNTED)  # type: ignore[return-value]


def first_rows(stored: DataFrame, by: Sequence[str], order: Sequence[By], n: int, columns: Sequence[str]) -> DataFrame:
    """Return the first `n` of all stored rows of each key, with `rank`."""
    return _first(_placed(stored, by, order, COUNTED[:1]), COUNTED[0], columns, n)


def _placed(rows: DataFrame, by: Sequence[str], order: Sequence[By], counted: Sequence[tuple[str, str]]) -> DataFrame:
    """Add to each row the number of rows of its key that come before it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    above = Window.partitionBy(*map(quoted, by)).orderBy(*(term.column for term in order))
    above = above.rowsBetween(Window.unboundedPreceding, -1)
    for count, place in counted:
        place_of = F.coalesce(F.sum(F.greatest(F.col(count), F.lit(0))).over(above), F.lit(0))
        rows = rows.withColumn(place, place_of.cast("long"))
    return rows


def _first(rows: DataFrame, counted: tuple[str, str], columns: Sequence[str], n: int) -> DataFrame:
    """Return each row that is among the first `n`, as often as it occurs, with `rank`."""
    from pyspark.sql import functions as F

    count, place = counted
    ranks = F.explode(F.expr(f"sequence(INT({place}) + 1, INT(least({place} + {count}, {n})))"))
    ranked = rows.where(f"{count} > 0 AND {place} < {n}").withColumn(RANK, ranks)
    return ranked.select(*map(quoted, columns), RANK)


def _put(ranked: DataFrame, all_rows: bool, n: int, context: OperatorContext, by: Sequence[str]) -> None:
    """Store what changed: of all rows, or of the first ones only."""
    state = context.state([*by, "_row"])
    bookkeeping = ("_was", "_touched", "_now", "_before")
    if all_rows:
        stored, stays = ranked.where("_touched"), "_n > 0"
    else:
        stays = f"_n > 0 AND _now < {n}"
        stored = ranked.where(f"(_touched AND {stays}) OR (_was > 0 AND NOT ({stays}))")
    state.put(stored.selectExpr("*", f"NOT ({stays}) AS {DELETED}").drop(*bookkeeping), deletes=True)
