"""One row per key, or the first few, by an order that rows carry themselves: whatever the order in which they come.

Rows that are equal in that order are told apart by all that they hold, so that each attempt and each way to cut the
input gives the same. Both replace rows that they gave before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate.model.records import Json
from tidegate.operators.base import Operator, OperatorContext
from tidegate.operators.inputs import columns_of, need_columns, refuse_own, row_id, same
from tidegate.state.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, WindowSpec

__all__ = ["RANK", "Latest", "TopN"]

RANK = "rank"


class Latest(Operator):
    """The row of each key that is the greatest in `order_by`; null is least."""

    kind: ClassVar[str] = "latest"

    def __init__(self, by: Sequence[str], order_by: Sequence[str]) -> None:
        self.by = [by] if isinstance(by, str) else list(by)
        self.order_by = [order_by] if isinstance(order_by, str) else list(order_by)

    @property
    def updates(self) -> bool:
        return True

    def keeps(self, keys: Sequence[str], over_updates: bool) -> bool:
        return set(keys) == set(self.by)

    def describe(self) -> Json:
        return {"by": self.by, "order_by": self.order_by}

    def problems(self) -> list[str]:
        found = [] if self.by else ["it has no key: name the columns in by=[…]"]
        if not self.order_by:
            found.append("nothing says which row is the latest: name the columns in order_by=[…]")
        return found

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        rows = inputs[0]
        need_columns(rows, self.by, "by", context)
        need_columns(rows, self.order_by, "order_by", context)
        refuse_own(rows, context)
        by, columns = list(map(quoted, self.by)), columns_of(rows)
        state = context.state(self.by)
        found = self._greatest(rows.withColumn("_new", F.lit(True)), rows)
        before = None
        if not state.is_empty:
            found = context.keep(found)
            before = state.of(found)
        if before is not None:
            both = found.unionByName(before.select(*columns, F.lit(False).alias("_new")))
            found = context.keep(self._greatest(both, rows).where("_new"))
        new = state.put(found.select(*by, *(name for name in columns if name not in by))).select(*columns)
        if before is None:
            return {"": new, "-": new.where("false")}
        aside = found.select(*(F.col(name).alias(f"_aside{place}") for place, name in enumerate(by)))
        same_key = same(self.by, aside.columns, nulls=True)
        return {"": new, "-": before.select(*columns).join(aside, same_key, "left_semi")}

    def _greatest(self, rows: DataFrame, like: DataFrame) -> DataFrame:
        """Of copies of a row the one that was there before."""
        from pyspark.sql import functions as F

        order = F.struct(*map(quoted, self.order_by), row_id(like).alias("_row"), (~F.col("_new")).alias("_was"))
        row = F.max_by(F.struct(*columns_of(rows)), order).alias("_row")
        return rows.groupBy(*map(quoted, self.by)).agg(row).select("_row.*")


class TopN(Operator):
    """The `n` rows of each key that come first in `order_by`: the greatest, unless it says asc. Null comes last."""

    kind: ClassVar[str] = "top-n"

    def __init__(self, n: int, by: Sequence[str], order_by: Sequence[str]) -> None:
        self.n = n
        self.by = [by] if isinstance(by, str) else list(by)
        self.order_by = [order_by] if isinstance(order_by, str) else list(order_by)

    @property
    def updates(self) -> bool:
        return True

    def keeps(self, keys: Sequence[str], over_updates: bool) -> bool:
        return set(keys) == {*self.by, RANK}

    def describe(self) -> Json:
        return {"n": self.n, "by": self.by, "order_by": self.order_by}

    def problems(self) -> list[str]:
        found = [] if self.by else ["it has no key: name the columns in by=[…]"]
        if isinstance(self.n, bool) or not isinstance(self.n, int) or not 1 <= self.n <= 10_000:
            found.append(f"n is {self.n!r}: how many rows of a key are wanted, 1 to 10000")
        if not self.order_by:
            found.append("nothing says which rows come first: name the columns in order_by=[…]")
        for text in self.order_by:
            words = text.split()
            if not words or len(words) > 2 or (len(words) == 2 and words[1].lower() not in ("asc", "desc")):
                found.append(f'order_by has {text!r}: write a column, and asc or desc behind it, such as "amount desc"')
        return found

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        rows = inputs[0]
        need_columns(rows, self.by, "by", context)
        need_columns(rows, [text.split()[0] for text in self.order_by], "order_by", context)
        refuse_own(rows, context)
        refuse_own(rows, context, [RANK])
        by, columns = list(map(quoted, self.by)), columns_of(rows)
        state = context.state(self.by)
        found = rows.withColumn("_new", F.lit(True))
        before = None if state.is_empty else state.of(rows.select(*by).distinct())
        if before is not None:
            before = context.keep(before)
            found = found.unionByName(self._rows(before, columns).select(*columns, F.lit(False).alias("_new")))
        top = found.withColumn(RANK, F.row_number().over(self._order(rows))).where(f"{RANK} <= {self.n}")
        values = [name for name in columns if name not in by]
        # With a column of its own, because a struct of none cannot be stored.
        packed = F.collect_list(F.struct(RANK, F.struct(*values, F.lit(0).alias("_n")).alias("_row")))
        kept = top.groupBy(*by).agg(packed.alias("_top"), F.max("_new").alias("_new"))
        new = state.put(kept.where("_new").drop("_new"))
        given = self._rows(new, columns)
        if before is None:
            return {"": given, "-": given.where("false")}
        aside = new.select(*(F.col(name).alias(f"_aside{place}") for place, name in enumerate(by)))
        replaced = before.join(aside, same(self.by, aside.columns, nulls=True), "left_semi")
        return {"": given, "-": self._rows(replaced, columns)}

    def _rows(self, kept: DataFrame, columns: Sequence[str]) -> DataFrame:
        """A row for each one in a key's list."""
        from pyspark.sql import functions as F

        by = list(map(quoted, self.by))
        each = kept.select(*by, F.explode("_top").alias("_top"))
        values = (name if name in by else F.col(f"_top._row.{name}") for name in columns)
        return each.select(*values, F.col(f"_top.{RANK}").alias(RANK))

    def _order(self, rows: DataFrame) -> WindowSpec:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        order = []
        for text in self.order_by:
            name, *way = text.split()
            column = F.col(quoted(name))
            order.append(column.asc_nulls_last() if [w.lower() for w in way] == ["asc"] else column.desc_nulls_last())
        return Window.partitionBy(*map(quoted, self.by)).orderBy(*order, row_id(rows))
