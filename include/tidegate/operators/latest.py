"""The latest row of each key, or its top rows, by an order of columns, independent of the order of arrival.

Ties are broken by the rows' content, so that the result depends neither on the attempt nor on how the input is cut.
Both operators replace rows that they have emitted. Over an input with retractions they keep all rows of a key, because
the next row may have to replace a retracted one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.inputs import (
    key_problems,
    need_keys,
    need_order,
    recalled,
    refuse_reserved_columns,
)
from tidegate.operators.join.sides import side_rows
from tidegate.operators.kernels.greatest import LatestRow
from tidegate.operators.ranking import RANK, OrderTerm, first_rows, rank_problems, ranked, ranked_first
from tidegate.operators.retractions.key import key_of
from tidegate.operators.spec import (
    ANY_INTERVAL,
    Changelog,
    Growth,
    Inputs,
    OperatorSpec,
    OutputSpec,
    StateSpec,
    Updates,
    joined,
)
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import is_known_empty, select_sql
from tidegate.spark.row_id import half_fields, row_halves, row_id
from tidegate.state.arrow.kernel_worker import IS_CURRENT
from tidegate.state.kernel_driver import StateLookup, run_kernel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


__all__ = ["Latest", "TopN", "first_stored_rows"]


class Latest(Operator):
    """The row of each key that is the greatest in `order_by`. Null is least."""

    kind: ClassVar[str] = "latest"

    def __init__(self, by: Sequence[str], order_by: Sequence[str], expiry: Expiry = NEVER) -> None:
        self.by = listed(by)
        self.order_by = listed(order_by)
        self.expiry = expiry

    def spec(self) -> OperatorSpec:
        return OperatorSpec(
            identity=[*self.by, *self.order_by],
            inputs=Inputs(retractions=True),
            changelog=Changelog(
                updates=Updates.ALWAYS, key=key_of(self.by), stable_keys=[frozenset(map(str, self.by))], is_kept=True
            ),
            states=[StateSpec("", self.expiry)],
            growth=Growth(keeps=f"a row for each {joined(self.by)}" if self.expiry.is_never else None),
            permanent_keys=self.by if self.expiry.is_never else None,
            intervals=ANY_INTERVAL,
        )

    def describe(self) -> Json:
        return {"by": self.by, "order_by": self.order_by} | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        return {"by": self.by, "order_by": self.order_by, "over a stream that replaces rows": over_updates}

    def problems(self) -> list[str]:
        problems = key_problems(self.by)
        if not self.order_by:
            problems.append("it has no order to find the latest row: name the columns in order_by=[…]")
        for text in self.order_by:
            if not isinstance(text, str) or not text or re.search(r"\s(asc|desc)\s*$", text, re.IGNORECASE):
                problems.append(
                    f"order_by has {text!r}: name columns, without a direction: the greatest value wins; for another "
                    'order use top_n(1, order_by="amount asc")'
                )
        return problems + self.expiry.problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows = inputs[0]
        retractions = context.retractions[0] if context.retractions else None
        need_keys(rows, self.by, "by", context)
        need_order(rows, self.order_by, context)
        refuse_reserved_columns(rows, context)
        if retractions is None:
            return self._latest_of_final_rows(rows, context)
        refuse_reserved_columns(rows, context, [RANK])
        now, before = ranked(rows, retractions, self.by, self._order, 1, context)
        return {"": now.drop(RANK), "-": before.drop(RANK)}

    @property
    def _order(self) -> list[OrderTerm]:
        return [*(OrderTerm(name, ascending=False) for name in self.order_by), OrderTerm("_row", ascending=False)]

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        rows, stored = inputs[0], states[""]
        if stored is None:
            return None
        if not context.retractions or context.retractions[0] is None:
            return recalled(context.state(self.by), stored, rows, context)
        return first_stored_rows(stored, rows, self.by, self._order, 1, context).drop(RANK)

    def _latest_of_final_rows(self, rows: DataFrame, context: OperatorContext) -> dict[str, DataFrame]:
        """Return the result over an input without retractions, for which only the greatest rows need be stored."""
        state = context.state(self.by)
        fields = {field.name: field for field in rows.schema.fields}
        stored = [*(fields[name] for name in self.by), *(fields[name] for name in fields if name not in self.by)]
        batch = select_sql(rows, [*(quoted(field.name) for field in stored), *row_halves(rows)])
        output = run_kernel(
            batch,
            [*stored, *half_fields()],
            self.by,
            [StateLookup(state, stored)],
            LatestRow(self.by, self.order_by, list(fields)),
            list(fields.values()),
            is_empty=is_known_empty(rows),
            is_current_column=IS_CURRENT,
            wants_retractions=context.wants_retractions,
        )
        return {"": output.rows, "-": output.retractions}


class TopN(Operator):
    """The first `n` rows of each key in `order_by`: the greatest ones, unless it says asc. Null comes last.

    at_once: all rows of a key arrive in one checkpoint, as those of a closed window do. Then the output is final, and
    no state is kept.
    """

    kind: ClassVar[str] = "top-n"

    def __init__(
        self,
        n: int,
        by: Sequence[str],
        order_by: Sequence[str],
        rank: str = "row_number",
        *,
        at_once: bool = False,
        expiry: Expiry = NEVER,
    ) -> None:
        self.n = n
        self.by = listed(by)
        self.order_by = listed(order_by)
        self.rank = rank
        self.at_once = at_once
        self.expiry = expiry

    def spec(self) -> OperatorSpec:
        by, is_numbered = list(map(str, self.by)), self.rank == "row_number"
        key = by if self.n == 1 else [*by, RANK]  # with one row per key, the rank is always 1
        keeps_all = self.expiry.is_never and not self.at_once
        return OperatorSpec(
            identity=[*self.by, *self.order_by],
            inputs=Inputs(retractions=True),
            output=OutputSpec(complete_per_checkpoint_by=frozenset(by) if self.at_once else frozenset()),
            changelog=Changelog(
                updates=Updates.NEVER if self.at_once else Updates.ALWAYS,
                key=key_of(key) if is_numbered else None,
                stable_keys=[frozenset([*by, RANK])] if is_numbered else [],
                is_kept=True,
            ),
            states=[StateSpec("", self.expiry)],
            growth=Growth(keeps=f"the first rows of each {joined(by)}" if keeps_all else None),
            intervals=ANY_INTERVAL,
        )

    def describe(self) -> Json:
        rank = {} if self.rank == "row_number" else {"rank": self.rank}
        return {"n": self.n, "by": self.by, "order_by": self.order_by} | rank | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        order = []
        for term in map(_parse_order_term, self.order_by):
            order.append(f"{term.name} asc" if term.ascending else f"{term.name} desc")
        meaning: Json = {"n": self.n, "by": self.by, "order_by": order}
        return meaning | {"rank": self.rank, "over a stream that replaces rows": over_updates}

    def problems(self) -> list[str]:
        problems = key_problems(self.by) + rank_problems(self.rank)
        if isinstance(self.n, bool) or not isinstance(self.n, int) or not 1 <= self.n <= 10_000:
            problems.append(f"n is {self.n!r}: expected a number of rows per key, from 1 to 10000")
        if not self.order_by:
            problems.append("it has no order to find the first rows: name the columns in order_by=[…]")
        for text in self.order_by:
            if not isinstance(text, str) or not _parse_order_term(text).name:
                problems.append(
                    f'order_by has {text!r}: write a column, followed by asc or desc, such as "amount desc"'
                )
        return problems + self.expiry.problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows = inputs[0]
        retractions = context.retractions[0] if context.retractions else None
        need_keys(rows, self.by, "by", context)
        need_order(rows, [term.name for term in self.order[:-1]], context)
        refuse_reserved_columns(rows, context)
        refuse_reserved_columns(rows, context, [RANK])
        if self.at_once and retractions is None:
            with_id = rows.withColumn("_row", row_id(rows))
            return {"": ranked_first(with_id, self.by, self.order, self.n, self.rank).drop("_row")}
        now, before = ranked(rows, retractions, self.by, self.order, self.n, context, self.rank)
        return {"": now, "-": before}

    @property
    def order(self) -> list[OrderTerm]:
        """The terms of the order. The last one breaks ties."""
        return [*map(_parse_order_term, self.order_by), OrderTerm("_row", ascending=True)]

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        stored = states[""]
        if stored is None:
            return None
        return first_stored_rows(stored, inputs[0], self.by, self.order, self.n, context, self.rank)


def first_stored_rows(
    stored: DataFrame,
    rows: DataFrame,
    by: Sequence[str],
    order: Sequence[OrderTerm],
    n: int,
    context: OperatorContext,
    rank: str = "row_number",
    part: str = "",
    number: str = RANK,
) -> DataFrame:
    """Return the first rows of each key among stored rows. rows: the input, for its columns."""
    stored = recalled(context.state([*by, "_row"], part, grouped_by=by), stored, side_rows(rows, rows, by), context)
    return first_rows(stored, by, order, n, rows.columns, rank, number)


def _parse_order_term(text: str) -> OrderTerm:
    """Parse a column, optionally followed by asc or desc. Names may have spaces."""
    match = re.fullmatch(r"\s*(.*?)(?:\s+(asc|desc))?\s*", text, re.IGNORECASE | re.DOTALL)
    assert match is not None
    return OrderTerm(match[1], ascending=(match[2] or "").lower() == "asc")
