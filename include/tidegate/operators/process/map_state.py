"""A map for each key of `process`, of any size: a call has the entries that its own rows name, and no others.

Entries are rows of a keyed state of their own, by the key and by what names the entry. They are looked up as in any
keyed state: Spark looks through its files for the named ones. Only these come to the function, and only changed ones
are written; however large a key's map becomes, no task ever holds all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.errors import Invalid
from tidegate.operators.inputs import need_columns
from tidegate.operators.process.entries import KeyedEntries, field_problems, name_problems
from tidegate.records.names import quoted
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.context import OperatorContext

__all__ = ["ENTRY", "MapState", "entry_type", "map_part", "map_problems", "named_entries"]

ENTRY = "_entry"
"""What names an entry, in the records of a call."""
_NO_NAMES = re.compile(r"<|^(float|double|variant|void)$")
"""Types of which two values are not simply the same or not."""


@dataclass(frozen=True)
class MapState(KeyedEntries):
    """An entry for each value of the column `by`, with the fields of `state`, a schema in DDL.

    state_ttl, ttl_time: when an entry is forgotten that has not changed, as for `aggregate`.
    """

    by: str
    state: str
    state_ttl: str | float | None = None
    ttl_time: str = "processing"

    def describe(self) -> Json:
        """Return the declaration for fingerprints."""
        return {"by": self.by, "state": self.state} | self.expiry.describe()


def map_part(name: str) -> str:
    """Return the name of the state with a map's entries."""
    return f"map-{name}"


def map_problems(maps: Mapping[str, object], by: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return what is wrong with declared maps. by: the operator's key. taken: the names that its state has already."""
    problems = []
    for name, declared in maps.items():
        subject = f"maps[{name!r}]"
        problems += name_problems(subject, name, taken, "bought")
        if not isinstance(declared, MapState):
            expected = 'MapState(by="product", state="n long")'
            problems.append(f"{subject} is a {type(declared).__name__}: say {expected}")
            continue
        if not isinstance(declared.by, str) or not declared.by or declared.by.startswith("_"):
            problems.append(f"{subject}: by={declared.by!r}: name the column whose values name its entries")
        elif declared.by in by:
            problems.append(f"{subject}: by={declared.by!r} is a key of the whole: each call has one such value")
        wrong, names = field_problems(subject, declared)
        problems += wrong
        unfit = [each for each in names if each.startswith("_") or each in (declared.by, *by, "clear", "as_dict")]
        problems += [f"{subject}: {each!r} is another name of an entry, or tidegate's: rename it" for each in unfit]
    return problems


def entry_type(name: str, declared: MapState, columns: Sequence[str], rows: DataFrame, context: OperatorContext) -> str:
    """Return the type of what names entries. columns: where rows have it. Raise Invalid if it cannot name anything."""
    if not columns:
        need_columns(rows, [declared.by], f"maps[{name!r}]", context)
    kinds = list(dict.fromkeys(rows.schema[column].dataType.simpleString() for column in columns))
    if len(kinds) > 1 or _NO_NAMES.search(kinds[0]):
        raise Invalid(
            f"operator {context.uid!r}: entries of maps[{name!r}] are named by {declared.by!r}, which is "
            + " and ".join(kinds),
            expected="one type, of which two values are the same or not: a number without a fraction, a text, a time",
            help="cast it in a stage before",
            reason="BAD_KEY",
        )
    return kinds[0]


def named_entries(declared: MapState, columns: Sequence[str], rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the entries that these rows name, each once: the key, and what names it."""
    from pyspark.sql import functions as F

    keys = list(map(quoted, by))
    named = [rows.select(*keys, F.col(quoted(column)).alias(declared.by)) for column in columns]
    both = named[0] if len(named) == 1 else named[0].unionAll(named[1])
    return both.distinct()
