"""The top rows of each key in an order.

A row is stored once, with its number of copies. Only the top rows are stored, unless the input emits retractions: then
all rows are, because any of them may become a top row.

    rank           ties in the order
    "row_number"   are broken by the rows' content: 1, 2, 3, 4
    "rank"         have the same rank, and leave a gap after it: 1, 2, 2, 4
    "dense_rank"   have the same rank, without a gap: 1, 2, 2, 3

With the last two, a key may have more than `n` top rows.
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
"""The columns for the number of copies of a row, and for the number of rows before it: now, and at the base."""


@dataclass(frozen=True)
class OrderTerm:
    """A column to order by. Null comes last in both directions."""

    name: str
    ascending: bool

    @property
    def column(self) -> Column:
        """The term as a column of Spark."""
        from pyspark.sql import functions as F

        column = F.col(quoted(self.name))
        if self.ascending:
            return column.asc_nulls_last()
        return column.desc_nulls_last()


def rank_problems(rank: object) -> list[str]:
    """Return what is wrong with a declared way to rank rows."""
    expected = " or ".join(f'"{name}"' for name in RANKS)
    if rank in RANKS:
        return []
    return [f"rank={rank!r}: expected {expected}"]


def ranked(
    rows: DataFrame,
    retractions: DataFrame | None,
    by: Sequence[str],
    order: Sequence[OrderTerm],
    n: int,
    context: OperatorContext,
    rank: str = "row_number",
    part: str = "",
    number: str = RANK,
) -> tuple[DataFrame, DataFrame]:
    """Return the rows that have entered the first `n` of their key, with their rank, and those that have left them.

    retractions: those of the input, or None if its rows are final. order: its last term is `_row`.
    part: the state with the rows. number: the name of the column with the rank.
    """
    from pyspark.sql import types as T

    state = context.state([*by, "_row"], part, grouped_by=by)
    fields = {field.name: field for field in rows.schema.fields}
    keys, values = [fields[name] for name in by], [name for name in fields if name not in by]
    copies = T.StructField("_n", T.LongType())
    stored = [*keys, T.StructField("_row", T.StringType()), *(fields[name] for name in values), copies]
    arriving = [*keys, *half_fields(), *(fields[name] for name in values), copies]

    def with_change(frame: DataFrame, change: int) -> DataFrame:
        columns = [*map(quoted, by), *row_halves(rows), *map(quoted, values), f"CAST({change} AS BIGINT) AS _n"]
        return select_sql(select_sql(frame, map(quoted, fields)), columns)

    batch, is_empty = with_change(rows, 1), is_known_empty(rows)
    if retractions is not None:
        batch = batch.unionByName(with_change(retractions, -1))
        is_empty = is_empty and is_known_empty(retractions)
        if state.base is not None:
            stored_names = [field["name"] for field in state.base.columns["fields"]]
            refuse_missing(stored_names, [field.name for field in stored], context)
    terms = [(term.name, term.ascending) for term in order[:-1]]
    kernel = TopRows(list(by), values, terms, n, retractions is not None, list(fields), number, rank)
    output = run_kernel(
        batch,
        arriving,
        by,
        [StateLookup(state, stored)],
        kernel,
        [*fields.values(), T.StructField(number, T.IntegerType())],
        is_empty=is_empty,
        is_current_column=IS_CURRENT,
        wants_retractions=context.wants_retractions,
    )
    return output.rows, output.retractions


def first_rows(
    stored: DataFrame,
    by: Sequence[str],
    order: Sequence[OrderTerm],
    n: int,
    columns: Sequence[str],
    rank: str = "row_number",
    number: str = RANK,
) -> DataFrame:
    """Return the first `n` of all stored rows of each key, with their rank. `_n` is the number of copies of a row."""
    return _first(placed_rows(stored, by, order, COUNTED[:1], rank), COUNTED[0], columns, n, rank, number)


def ranked_first(rows: DataFrame, by: Sequence[str], order: Sequence[OrderTerm], n: int, rank: str) -> DataFrame:
    """Return the first `n` rows of each key, with their rank, if all rows of each key are in the frame."""
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
    """Add to each row the number of rows of its key before it, or with dense ranks, the number of ranks before it.

    counted: the column with the number of copies, and the name of the added column. order: the last term breaks ties.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = list(map(quoted, by))
    in_order = Window.partitionBy(*keys).orderBy(*(term.column for term in order))
    rows_before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    ties = Window.partitionBy(*keys, *(quoted(term.name) for term in order[:-1]))
    ties_before = ties.orderBy(order[-1].column).rowsBetween(Window.unboundedPreceding, -1)
    up_to_ties = Window.partitionBy(*keys).orderBy(*(term.column for term in order[:-1]))
    for count, place in counted:
        copies = F.greatest(F.col(count), F.lit(0))
        if rank == "dense_rank":  # count the first row of each group of ties
            copies_before = F.coalesce(F.sum(copies).over(ties_before), F.lit(0))
            rows = rows.withColumn("_first", ((copies > 0) & (copies_before == 0)).cast("long"))
            ranks = F.sum("_first").over(up_to_ties.rangeBetween(Window.unboundedPreceding, Window.currentRow))
            rows = rows.withColumn(place, F.greatest(ranks - 1, F.lit(0)).cast("long")).drop("_first")
            continue
        rows = rows.withColumn(place, F.coalesce(F.sum(copies).over(rows_before), F.lit(0)).cast("long"))
        if rank == "rank":
            rows = rows.withColumn(place, F.min(place).over(ties))
    return rows


def _first(
    rows: DataFrame, counted: tuple[str, str], columns: Sequence[str], n: int, rank: str, number: str
) -> DataFrame:
    """Return each row that is among the first `n`, once per copy, with its rank."""
    from pyspark.sql import functions as F

    count, place = counted
    if rank == "row_number":
        ranks = F.explode(F.expr(f"sequence(INT({place}) + 1, INT(least({place} + {count}, {n})))"))
    else:
        ranks = F.explode(F.expr(f"array_repeat(INT({place}) + 1, INT({count}))"))
    ranked = rows.where(f"{count} > 0 AND {place} < {n}").withColumn(number, ranks)
    return ranked.select(*map(quoted, columns), number)
