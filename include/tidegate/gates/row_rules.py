"""The rules of a gate about single rows, for rows that return from quarantine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["RowRules"]


@dataclass(frozen=True)
class RowRules:
    """The rules of a gate that a single row can break, whatever the other rows are."""

    broken: Column = field(compare=False, repr=False)
    """For each row the names of the rules that it breaks, as an array of texts. It does not fail for any row, if it is
    in a branch of `when` (`gates/judging/caught.py`)."""
    unjudged: tuple[str, ...] = ()
    """The names of the gate's other rules, such as a rule of uniqueness."""
    binding: bool = False
    """Whether nobody can overrule them. Rows that are released as they are must keep them, too."""
