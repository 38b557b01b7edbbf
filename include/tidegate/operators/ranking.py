"""The first rows of each key in an order: which they are now, and which they were, where that differs.

A row is kept once, with how many copies of it there are. Only the first rows are, unless the input takes rows back:
then all are kept, for any may come first again.

    rank           rows that are equal in the order
    "row_number"   are told apart by all that they hold: 1, 2, 3, 4
    "rank"         have the same, and the next one is as far behind as there are rows before it: 1, 2, 2, 4
    "dense_rank"   have the same, and the next one the next number: 1, 2, 2, 3

With the last two there may be more than `n` rows of a key, and the order must be one of the user's columns alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate.operators.join.sides import refuse_missing
from tidegate.operators.kernels.ranked import TopRows
from tidegate.records.names import quoted
from tidegate.spark.frame_facts import is_known_empty, select_sql
from tidegate.spark.row_id import half_fields, row_halves
from tidegate.state.arrow.kernel_worker import IS_CURRENT
from tidegate.state.kernel_driver import StateLookup, run_kernel

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidegate.operators.context import OperatorContext
    from tidegate.state.record import Ttl

__all__ = [
    "RANK",
    "RANKS",
    "OrderTerm",
    "first_rows",
    "placed_rows",
    "rank_problems",
    "ranked",
    "ranked_first",
]

RANK: Final = "rank"
RANKS: Final = ("row_number", "rank", "dense_rank")
COUNTED: Final = (("_n", "_now"), ("_was", "_before"))
"""The number of copies of a row, and the number of rows before it: now, and at the base."""


@dataclass(frozen=True)
class OrderTerm:
    """A column to order by. Null comes last, either way."""

    name: str
    ascending: bool

    @property
    def column(self) -> Column:
        """The term for Spark."""
        from pyspark.sql import functions as F

        column = F.col(quoted(self.name))
        return column.asc_nulls_last() if self.ascending else column.desc_nulls_last()


def rank_problems(rank: object) -> list[str]:
    """Return what is wrong with a declared way to number rows."""
    expected = " or ".join(f'"{name}"' for name in RANKS)
    return [] if rank in RANKS else [f"rank={rank!r}: expected {expected}"]


def ranked(
    rows: DataFrame,
    withdrawn: DataFrame | None,
    by: Sequence[str],
    order: Sequence[OrderTerm],
    n: int,
    context: OperatorContext,
    rank: str = "row_number",
    ttl: Ttl | None = None,
    part: str = "",
    number: str = RANK,
) -> tuple[DataFrame, DataFrame]:
    """Return the rows that have entered the first `n` of their key, with `rank`; and those that have left them.

    withdrawn: the rows that the input takes back; None: it takes none back. order: its last term is `_row`.
    part: the state that has the rows. number: the name of the column with the rank.
    """
    from pyspark.sql import types as T

    state = context.state([*by, "_row"], part, ttl=ttl, grouped_by=by)
    fields = {field.name: field for field in rows.schema.fields}
    keys, values = [fields[name] for name in by], [name for name in fields if name not in by]
    copies = T.StructField("_n", T.LongType())
    stored = [*keys, T.StructField("_row", T.StringType()), *(fields[name] for name in values), copies]
    arriving = [*keys, *half_fields(), *(fields[name] for name in values), copies]
    frames = [(rows, 1)] if withdrawn is None else [(rows, 1), (withdrawn, -1)]
    if withdrawn is not None and state.base is not None:
        refuse_missing([field["name"] for field in state.base.columns["fields"]], [f.name for f in stored], context)
    named = [
        select_sql(
            select_sql(frame, map(quoted, fields)),
            [*map(quoted, by), *row_halves(rows), *map(quoted, values), f"CAST({sign} AS BIGINT) AS _n"],
        )
        for frame, sign in frames
    ]
    batch = named[0] if withdrawn is None else named[0].unionByName(named[1])
    terms = [(term.name, term.ascending) for term in order[:-1]]
    work = TopRows(list(by), values, terms, n, withdrawn is not None, list(fields), number, rank)
    folded = run_kernel(
        batch,
        arriving,
        by,
        [StateLookup(state, stored)],
        work,
        [*fields.values(), T.StructField(number, T.IntegerType())],
        is_empty=all(is_known_empty(frame) for frame, _ in frames),
        is_current_column=IS_CURRENT,
        wants_retractions=context.wants_retractions,
    )
    return folded.rows, folded.retractions


def first_rows(
    stored: DataFrame,
    by: Sequence[str],
    order: Sequence[OrderTerm],
    n: int,
    columns: Sequence[str],
    rank: str = "row_number",
    number: str = RANK,
) -> DataFrame:
    """Return the first `n` of all stored rows of each key, with `rank`. `_n` is the number of copies of each."""
    return _first(placed_rows(stored, by, order, COUNTED[:1], rank), COUNTED[0], columns, n, rank, number)


def ranked_first(rows: DataFrame, by: Sequence[str], order: Sequence[OrderTerm], n: int, rank: str) -> DataFrame:
    """Return the first `n` rows of each key, with `rank`, of rows that are all there."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    terms = order if rank == "row_number" else order[:-1]
    in_order = Window.partitionBy(*map(quoted, by)).orderBy(*(term.column for term in terms))
    number = {"row_number": F.row_number, "rank": F.rank, "dense_rank": F.dense_rank}[rank]()
    return rows.withColumn(RANK, number.over(in_order)).where(f"{RANK} <= {n}")


def placed_rows(
    rows: DataFrame,
    by: Sequence[str],
    order: Sequence[OrderTerm],
    counted: Sequence[tuple[str, str]] = COUNTED[:1],
    rank: str = "row_number",
) -> DataFrame:
    """Add to each row the number of rows of its key that come before it; with dense ranks the number of their ranks.

    counted: how many copies of each row there are, and the name of what is added. The last term of `order` tells rows
    apart that are equal in the others.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = list(map(quoted, by))
    in_order = Window.partitionBy(*keys).orderBy(*(term.column for term in order))
    above = in_order.rowsBetween(Window.unboundedPreceding, -1)
    equals = Window.partitionBy(*keys, *(quoted(term.name) for term in order[:-1]))
    ahead_of = equals.orderBy(order[-1].column).rowsBetween(Window.unboundedPreceding, -1)
    to_equals = Window.partitionBy(*keys).orderBy(*(term.column for term in order[:-1]))
    for count, place in counted:
        copies = F.greatest(F.col(count), F.lit(0))
        if rank == "dense_rank":
            ahead = F.coalesce(F.sum(copies).over(ahead_of), F.lit(0))
            rows = rows.withColumn("_first", ((copies > 0) & (ahead == 0)).cast("long"))
            ranks = F.sum("_first").over(to_equals.rangeBetween(Window.unboundedPreceding, Window.currentRow))
            rows = rows.withColumn(place, F.greatest(ranks - 1, F.lit(0)).cast("long")).drop("_first")
            continue
        rows = rows.withColumn(place, F.coalesce(F.sum(copies).over(above), F.lit(0)).cast("long"))
        if rank == "rank":
            rows = rows.withColumn(place, F.min(place).over(equals))
    return rows


def _first(
    rows: DataFrame, counted: tuple[str, str], columns: Sequence[str], n: int, rank: str, number: str
) -> DataFrame:
    """Return each row that is among the first `n`, as often as it occurs, with `rank`."""
    from pyspark.sql import functions as F

    count, place = counted
    if rank == "row_number":
        ranks = F.explode(F.expr(f"sequence(INT({place}) + 1, INT(least({place} + {count}, {n})))"))
    else:
        ranks = F.explode(F.expr(f"array_repeat(INT({place}) + 1, INT({count}))"))
    ranked = rows.where(f"{count} > 0 AND {place} < {n}").withColumn(number, ranks)
    return ranked.select(*map(quoted, columns), number)
