"""The gate directly behind a source with `on_new_column="hold"`: a person decides about new keys of its input."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from tidegate.connectors.schema.drift import columns_after, select_new_columns
from tidegate.gates.base import BrokenRule, Gate, GateContext, Judgement, Policy
from tidegate.records.records import FoundColumn, Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["NewColumns"]

MAX_NAMED = 20
"""How many new columns a verdict names. `explain` names all of them."""


class NewColumns(Gate):
    """Holds the first checkpoint that finds a key which its source's schema lacks.

    Approved, the key becomes a column with the next plan, if it can. Each key is asked about once: again only if it was
    null until then, and so had no type.

    hold_for: how long to wait for a person. None waits without limit.
    unanswered: the answer that counts after that.
    """

    kind: ClassVar[str] = "new-columns"

    def __init__(
        self, hold_for: float | str | None = "1 day", unanswered: Literal["approve", "reject"] = "reject"
    ) -> None:
        self.hold_for = hold_for
        self.unanswered = unanswered

    def describe(self) -> Json:
        described: Json = {"on_new_column": "hold"}
        if (self.hold_for, self.unanswered) != ("1 day", "reject"):
            described |= {"hold_for": self.hold_for, "unanswered": self.unanswered}
        return described

    @property
    def policies(self) -> frozenset[Policy]:
        return frozenset({"hold"})

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        return self.judge_keys(frame.count(), context)

    def judge_keys(self, rows: int, context: GateContext) -> Judgement:
        """Judge rows by the keys that the source has found in its input."""
        if context.drift is None or context.schema is None:
            return Judgement(rows)
        found = select_new_columns(context.schema, context.drift)
        columns = columns_after(context.schema, context.drift, context.checkpoint)
        new = [key for key in found if key.path in columns]
        others = [key for key in found if key.path not in columns]
        broken = []
        if new:
            named = [f"{key.path} {key.type} in {_records(key)}" for key in new[:MAX_NAMED]]
            more = f", and {len(new) - MAX_NAMED} more" if len(new) > MAX_NAMED else ""
            broken.append(BrokenRule("new_columns", "hold", why=", ".join(named) + more))
        if others:  # without their names, which may be data: who may read rows finds them in `explain`
            why = f"{len(others)} keys become no columns: they stay in the rescue column"
            if len(others) == 1:
                why = "1 key becomes no column: it stays in the rescue column"
            broken.append(BrokenRule("other_keys", "hold", why=why))
        return Judgement(rows, tuple(broken))


def _records(key: FoundColumn) -> str:
    return "1 record" if key.records == 1 else f"{key.records:,} records"
