"""A list for each key of `process`, of any size: what is appended is written, and what was appended is read as it is
iterated over.

    state of the entries   keys: the operator's, and the entry's place: 0, 1, 2 …
    state of the ends      the places of the first entry, and of the next one

Entries are rows of a keyed state of their own. A call gets the two ends only. When its function iterates, the worker
itself reads the state's files, a row group at a time (`stored_list.py`). Where workers cannot, a list comes whole with
its key, as a field of `state` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.connectors.ddl import Column as Field
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
"""The column with a key's group, by which a worker knows the files that may hold its entries."""


@dataclass(frozen=True)
class ListState(KeyedEntries):
    """Entries with the fields of `state`, a schema in DDL, in the order in which they were appended.

    state_ttl, ttl_time: when an entry is forgotten after it was appended, as for `aggregate`.
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
    """Return what is wrong with declared lists. by: the operator's key. taken: the names that its state has already."""
    own = [name for name in by if lists and name in (PLACE, FIRST, NEXT, GROUP_OF_KEY)]
    problems = [f"by names {name!r}, as its lists do: rename it in a stage before" for name in own]
    for name, declared in lists.items():
        subject = f"lists[{name!r}]"
        problems += name_problems(subject, name, taken, "visits")
        if not isinstance(declared, ListState):
            problems.append(f'{subject} is a {type(declared).__name__}: say ListState("page string, at timestamp")')
            continue
        wrong, names = field_problems(subject, declared)
        problems += wrong
        problems += [f"{subject}: {each!r} begins with '_', which is tidegate's" for each in names if each[0] == "_"]
        problems += [f"{subject}: {each!r} is a key, which is kept anyway" for each in names if each in by]
    return problems


def entry_files(state: KeyedState, by: Sequence[str], limit: int | None) -> EntryFiles | None:
    """Return where workers find entries, to read them as they are needed. None: they cannot.

    limit: what was appended then or before has expired.
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
    """Return the entries that were appended, and those of lists that were cleared, for the state.

    column, ends: the columns of records with an entry, and with the places of entries that are cleared.
    kinds: of records with an entry, and of those with places.
    """
    fields = [f"{column}.{quoted(field.name)} AS {quoted(field.name)}" for field in declared.fields]
    appended = results.where(f"_kind = {kinds[0]}").selectExpr(
        *keys, f"{column}.{PLACE} AS {PLACE}", *fields, "_deleted"
    )
    none = [f"CAST(NULL AS {field.type}) AS {quoted(field.name)}" for field in declared.fields]
    places = f"explode(sequence({ends}.{FIRST}, {ends}.{NEXT} - 1)) AS {PLACE}"
    cleared = results.where(f"_kind = {kinds[1]}").selectExpr(*keys, places, *none, "true AS _deleted")
    return appended.unionByName(cleared)
