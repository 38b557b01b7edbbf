"""A list of any size for each key of `process`. Only appended entries are written, and entries are read on iteration.

    state of the entries   keys: the operator's, and the entry's place: 0, 1, 2 …
    state of the ends      the places of the first entry, and of the next one

Entries are rows of a separate keyed state. A call only gets the two ends. When the function iterates, the worker reads
the state's files, a row group at a time (`stored_list.py`). If workers cannot read the files, the whole list is passed
with its key, as a field of `state` is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.connectors.schema.ddl import Column as Field
from tidegate.operators.process.entries import KeyedEntries, field_problems, name_problems
from tidegate.operators.process.stored_list import FIRST, NEXT, PLACE, EntryFiles
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.state.arrow import workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.state.keyed import KeyedState

__all__ = [
    "ENDS",
    "GROUP_OF_KEY",
    "ListState",
    "entry_changes",
    "entry_files",
    "list_parts",
    "list_problems",
]

ENDS = (Field(FIRST, "bigint"), Field(NEXT, "bigint"))
GROUP_OF_KEY = "_key_group"
"""The column with a key's group, by which a worker finds the files that may hold its entries."""


@dataclass(frozen=True)
class ListState(KeyedEntries):
    """Entries with the fields of `state`, a schema in DDL, in the order in which they were appended.

    state_ttl, ttl_time: when an entry expires after it was appended, as for `aggregate`.
    """

    state: str
    state_ttl: str | float | None = None
    ttl_time: str = "processing"

    def describe(self) -> Json:
        """Return the declaration for fingerprints."""
        return {"state": self.state} | self.expiry.describe()


def list_parts(name: str) -> tuple[str, str]:
    """Return the names of the states with a list's entries, and with its ends."""
    return f"list-{name}", f"list-{name}-ends"


def list_problems(lists: Mapping[str, object], by: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return what is wrong with declared lists. by: the operator's key. taken: the names that the state has already."""
    problems = []
    if lists:
        for name in by:
            if name in (PLACE, FIRST, NEXT, GROUP_OF_KEY):
                problems.append(f"by names {name!r}, which its lists need: rename it in an upstream stage")
    for name, declared in lists.items():
        subject = f"lists[{name!r}]"
        problems += name_problems(subject, name, taken, "visits")
        if not isinstance(declared, ListState):
            expected = 'ListState("page string, at timestamp")'
            problems.append(f"{subject} is a {type(declared).__name__}: expected {expected}")
            continue
        problems_of_fields, names = field_problems(subject, declared)
        problems += problems_of_fields
        for field in names:
            if field[0] == "_":
                problems.append(f"{subject}: {field!r} begins with '_', which tidegate reserves")
            if field in by:
                problems.append(f"{subject}: {field!r} is a key, which is stored anyway")
    return problems


def entry_files(state: KeyedState, by: Sequence[str], limit: int | None) -> EntryFiles | None:
    """Return the files with entries for workers to read, or None if they cannot.

    limit: entries that were appended at this time or before have expired.
    """
    base = state.base
    if base is None or not state.is_kept or list(base.grouped_by) != list(by):
        return None
    types = {field["name"]: field["type"] for field in base.columns["fields"]}
    if not (all(workers.is_key(types[name]) for name in by) and workers.writes(base.columns)):
        return None
    if not workers.usable(state.spark, state.to.location):
        return None
    location = state.to.location
    layout = workers.layout_of(base.columns, base.keys, location)
    return EntryFiles(list(by), layout, workers.runs_of(base.files, location), limit)


def entry_changes(
    results: DataFrame, keys: Sequence[str], declared: ListState, column: str, ends: str, kinds: tuple[int, int]
) -> DataFrame:
    """Return the changes of the state: appended entries, and deleted ones of lists that were cleared.

    column, ends: the columns of records with an entry, and of records with the places of cleared entries.
    kinds: the kinds of these records.
    """
    appended_kind, cleared_kind = kinds
    fields = []
    for field in declared.fields:
        fields.append(f"{column}.{quoted(field.name)} AS {quoted(field.name)}")
    appended = results.where(f"_kind = {appended_kind}").selectExpr(
        *keys, f"{column}.{PLACE} AS {PLACE}", *fields, "_deleted"
    )
    nulls = [f"CAST(NULL AS {field.type}) AS {quoted(field.name)}" for field in declared.fields]
    places = f"explode(sequence({ends}.{FIRST}, {ends}.{NEXT} - 1)) AS {PLACE}"
    cleared = results.where(f"_kind = {cleared_kind}").selectExpr(*keys, places, *nulls, "true AS _deleted")
    return appended.unionByName(cleared)
