"""A map of any size for each key of `process`. A call gets only the entries that its rows name.

Entries are rows of a separate keyed state, by the operator's key and the entry's name, and are looked up as in any
keyed state. Only named entries are passed to the function, and only changed ones are written, so no task ever loads a
whole map.
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
"""The column with the name of an entry, in the records of a call."""
_NO_NAMES = re.compile(r"<|^(float|double|variant|void)$")
"""Matches types that cannot name entries, because equality of their values is not simple."""


@dataclass(frozen=True)
class MapState(KeyedEntries):
    """An entry for each value of the column `by`, with the fields of `state`, a schema in DDL.

    state_ttl, ttl_time: when an unchanged entry expires, as for `aggregate`.
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
    """Return what is wrong with declared maps. by: the operator's key. taken: the names that the state has already."""
    problems = []
    for name, declared in maps.items():
        subject = f"maps[{name!r}]"
        problems += name_problems(subject, name, taken, "bought")
        if not isinstance(declared, MapState):
            expected = 'MapState(by="product", state="n long")'
            problems.append(f"{subject} is a {type(declared).__name__}: expected {expected}")
            continue
        if not isinstance(declared.by, str) or not declared.by or declared.by.startswith("_"):
            problems.append(f"{subject}: by={declared.by!r}: name the column whose values name its entries")
        elif declared.by in by:
            problems.append(f"{subject}: by={declared.by!r} is a key of the operator: each call has one value of it")
        problems_of_fields, names = field_problems(subject, declared)
        problems += problems_of_fields
        for field in names:
            if field.startswith("_") or field in (declared.by, *by, "clear", "as_dict"):
                problems.append(f"{subject}: {field!r} is another name of an entry, or tidegate's: rename it")
    return problems


def entry_type(name: str, declared: MapState, columns: Sequence[str], rows: DataFrame, context: OperatorContext) -> str:
    """Return the type of the entries' names. columns: those of the rows with the names. Raise Invalid if values of the
    type cannot be names."""
    if not columns:
        need_columns(rows, [declared.by], f"maps[{name!r}]", context)
    types = list(dict.fromkeys(rows.schema[column].dataType.simpleString() for column in columns))
    if len(types) > 1 or _NO_NAMES.search(types[0]):
        raise Invalid(
            f"operator {context.uid!r}: entries of maps[{name!r}] are named by {declared.by!r}, which is "
            + " and ".join(types),
            expected="one type whose values can be compared for equality: a number without a fraction, a text, a time",
            help="cast it in an upstream stage",
            reason="BAD_KEY",
        )
    return types[0]


def named_entries(declared: MapState, columns: Sequence[str], rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the distinct entries that these rows name: the key, and the entry's name."""
    from pyspark.sql import functions as F

    keys = list(map(quoted, by))
    frames = []
    for column in columns:
        frames.append(rows.select(*keys, F.col(quoted(column)).alias(declared.by)))
    entries = frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])
    return entries.distinct()
