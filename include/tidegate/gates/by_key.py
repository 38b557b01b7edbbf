"""What gates share that judge rows by the values of key columns, so that single rows are to blame."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Literal

from tidegate.errors import Invalid
from tidegate.gates.base import (
    BrokenRule,
    Gate,
    GateContext,
    Judgement,
    Policy,
    is_share,
    policies_among,
    policy_problems,
)
from tidegate.operators.inputs import key_problems, null_safe_equality
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["BROADCAST_KEYS", "BROKEN", "TIMES", "KeyGate", "has_no_null", "key_names", "split_bad_keys"]

TIMES, BROKEN = "_tidegate_times", "_tidegate_broken"
"""Columns of a frame of keys: how many rows have the key, and the rules that these break."""
_KEY = "_tidegate_key"
BROADCAST_KEYS = 500_000
"""Up to this many keys are sent to every worker."""


class KeyGate(Gate):
    """Base of gates that judge each row by its key, with one policy."""

    def __init__(
        self,
        by: str | Sequence[str],
        on_failure: Policy,
        at_most: float,
        hold_for: float | str | None,
        unanswered: Literal["approve", "reject"],
    ) -> None:
        self.by = listed(by)
        self.on_failure = on_failure
        self.at_most = at_most
        self.hold_for = hold_for
        self.unanswered = unanswered

    @property
    def identity_parts(self) -> list[str]:
        return self.by

    @property
    def quarantines(self) -> bool:
        return self.on_failure in ("quarantine", "hold")

    @property
    def policies(self) -> frozenset[Policy]:
        return policies_among([self.on_failure])

    def describe(self) -> Json:
        settings: Json = {"by": self.by, "on_failure": self.on_failure, "at_most": self.at_most}
        if self.on_failure == "hold":
            settings |= {"hold_for": self.hold_for, "unanswered": self.unanswered}
        return settings

    def problems(self) -> list[str]:
        problems = [*key_problems(self.by), *policy_problems({"on_failure": self.on_failure})]
        if not is_share(self.at_most):
            problems.append(f"at_most is {self.at_most!r}: expected a share from 0 to 1")
        return problems

    def check_columns(self, frame: DataFrame, context: GateContext) -> None:
        missing = [name for name in self.by if name not in frame.columns]
        if missing:
            raise Invalid(
                f"gate {context.gate!r}: the rows have no column {', '.join(missing)}",
                expected=f"the key columns {', '.join(self.by)} among {', '.join(frame.columns)}",
                help="name the columns as they are called at the gate",
                reason="BAD_GATE",
            )

    def rules_broken(self, rows: dict[str, tuple[int, str]], context: GateContext) -> tuple[BrokenRule, ...]:
        """Return the broken rules. rows: for each rule how many rows break it, and why."""
        was_held = context.quarantine_held and self.on_failure == "hold"
        policy: Policy = "quarantine" if was_held else self.on_failure
        broken = []
        for rule, (count, why) in rows.items():
            if count:
                broken.append(BrokenRule(rule, policy, rows=count, why=why, was_held=was_held))
        return tuple(broken)


def has_no_null(columns: Sequence[str]) -> Column:
    """Return the condition that no key column is null."""
    from pyspark.sql import functions as f

    return reduce(lambda first, second: first & second, (f.col(quoted(name)).isNotNull() for name in columns))


def key_names(columns: Sequence[str]) -> list[str]:
    """Return names for key columns, under which another frame has them."""
    return [f"{_KEY}{place}" for place in range(len(columns))]


def split_bad_keys(
    frame: DataFrame, by: Sequence[str], bad_keys: DataFrame, key_count: int, *, nulls: bool = False
) -> tuple[DataFrame, DataFrame]:
    """Return the rows with good keys, and those with bad ones and the rules that they break.

    bad_keys: each with its rules in the column BROKEN. key_count: their number. nulls: they may have nulls.
    """
    from pyspark.sql import functions as f

    names = key_names(by)
    keys = bad_keys.select(*map(quoted, by), BROKEN).toDF(*names, BROKEN)
    if key_count <= BROADCAST_KEYS:
        keys = f.broadcast(keys)
    marked = frame.join(keys, null_safe_equality(by, names, nulls=nulls), "left").drop(*names)
    good = marked.where(f.col(BROKEN).isNull()).drop(BROKEN)
    return good, marked.where(f.col(BROKEN).isNotNull()).withColumnRenamed(BROKEN, Judgement.RULES)
