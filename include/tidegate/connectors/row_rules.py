"""Rules that a target declares for single rows, such as constraints, so that rows are judged before the decision.

A decided checkpoint must be published, so a row that the target refuses then stops the publication. A sink knows its
target's rules (`Sink.row_rules`), and applies them in the pass that stages rows: a row that breaks one fails the
attempt, or, with `refused="quarantine"`, goes to quarantine (`gates/target.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tidegate.records.names import quoted
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["OUTSIDE_YEARS", "DeclaredRules", "RowRule", "exempting", "is_broken", "partition_rules", "refusing"]

OUTSIDE_YEARS: Final = {
    "timestamp": "unix_micros({0}) NOT BETWEEN -62135596800000000 AND 253402300799999999",
    "timestamp_ntz": "{0} < TIMESTAMP_NTZ'0001-01-01 00:00:00' OR {0} >= TIMESTAMP_NTZ'+10000-01-01 00:00:00'",
    "date": "{0} < DATE'0001-01-01' OR {0} > DATE'9999-12-31'",
}
"""By type, the SQL condition that a value is outside of the years 1 to 9999."""


@dataclass(frozen=True)
class RowRule:
    """A rule that each row must keep, or the target refuses it."""

    name: str
    """Its name in verdicts and in quarantine, such as "amount not null"."""
    broken_if: str | Column = field(compare=False, repr=False)
    """The condition that a row breaks it, as SQL or a column of Spark over the sink's rows. Null means that it does
    not."""
    says: str
    """What is wrong with such a row, such as "column 'amount' is null, and must not be"."""


@dataclass(frozen=True)
class DeclaredRules:
    """The rules of a target for rows with certain columns."""

    rules: tuple[RowRule, ...] = ()
    not_judged: tuple[str, ...] = ()
    """The target's other rules, in words. A row that breaks one is only found by publishing it."""


def is_broken(rule: RowRule) -> Column:
    """Return the condition that a row breaks a rule. It is never null."""
    from pyspark.sql import functions as F

    if isinstance(rule.broken_if, str):
        condition = F.expr(rule.broken_if)
    else:
        condition = rule.broken_if
    return F.coalesce(condition, F.lit(False))


def exempting(rules: Iterable[RowRule], exempt: str | None) -> list[RowRule]:
    """Return the rules for all rows but those that meet an SQL condition, such as rows that only delete a key."""
    from pyspark.sql import functions as F

    if exempt is None:
        return list(rules)
    judged = ~F.coalesce(F.expr(exempt), F.lit(False))
    return [replace(rule, broken_if=judged & is_broken(rule)) for rule in rules]


def refusing(frame: DataFrame, rules: Iterable[RowRule], name: str) -> DataFrame:
    """Return the rows. Writing them fails if one breaks a rule. name: a column that is written."""
    from pyspark.sql import functions as F

    from tidegate.delta.files.partitions import refuse_rows
    from tidegate.spark.frame_facts import empty_if

    rules = list(rules)
    if not rules:
        return frame
    column = F.col(quoted(name))
    for rule in reversed(rules):
        column = refuse_rows(column, is_broken(rule), f"the target would not accept it: {rule.says}")
    return empty_if(frame, frame.withColumn(name, column))


def partition_rules(output: Json, partition_by: Sequence[str]) -> list[RowRule]:
    """Return the rules for values that become folders."""
    kinds = {field["name"]: field["type"] for field in output["fields"]}
    rules = []
    for name in partition_by:
        kind, value = kinds.get(name), quoted(name)
        if kind == "string":
            rules += [
                RowRule(
                    f"{name} folder",
                    f"{value} = '__HIVE_DEFAULT_PARTITION__'",
                    f"partition column {name!r} is __HIVE_DEFAULT_PARTITION__, which stands for null",
                ),
                RowRule(
                    f"{name} encoding", f"NOT is_valid_utf8({value})", f"partition column {name!r} is not valid UTF-8"
                ),
            ]
        elif kind in OUTSIDE_YEARS:
            says = f"partition column {name!r} is outside of the years 1 to 9999"
            rules.append(RowRule(f"{name} year", OUTSIDE_YEARS[kind].format(value), says))
        elif isinstance(kind, str) and kind.startswith("decimal"):
            rules.append(
                RowRule(
                    f"{name} folder",
                    f"{value} < 0 AND {value} <> floor({value})",
                    f"partition column {name!r} is below zero, and not a whole number",
                )
            )
    return rules
