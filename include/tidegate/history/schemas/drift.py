"""What of a source's input did not fit its schema in a checkpoint, and what becomes of it.

A key of the input may be data: an address, where data is used as keys. So users who may not read rows see the names of
columns only: of those that exist, and of keys that become columns.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tidegate.connectors.schema.ddl import parse_ddl
from tidegate.connectors.schema.drift import MAX_NEW_COLUMNS, columns_after, select_new_columns, why_no_column
from tidegate.records.records import Drift, FoundColumn, SourceSchema

__all__ = ["DriftDetails", "MisfitDetails", "drift_of", "drift_without_rows", "misfit_name", "misfit_text", "news_of"]

MAX_IN_A_SENTENCE = 20
"""How many columns a notice names."""
MAX_NAMED = 100
"""How many misfits the history keeps for each source and checkpoint, those in most records first."""


class MisfitDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the input that does not fit: a key that the schema lacks, or values that their column cannot hold."""

    path: Annotated[
        str | None,
        msgspec.Meta(description="Such as `customer.vip`. Null if you may not read rows and it is not a column's name"),
    ] = None
    kind: Literal["new", "type", "case"] = "new"
    """A key that the schema lacks, values of another type, or a key that differs from a column only in case."""
    type: str = ""
    """The narrowest type that holds all of these values; `void` if all are null."""
    records: int = 0
    file: Annotated[str | None, msgspec.Meta(description="The first file with one. Null if you may not read rows")] = ""
    becomes_column: bool = False
    """True: from the next checkpoint on it is a column. Its values in this one are in the rescue column."""
    becomes_type: str = ""
    """For values of another type: the type that the column has from the next checkpoint on, so that it holds them."""
    why_not: str = ""
    """Why it does not become a column, if keys of this source may."""

    @property
    def is_column(self) -> bool:
        """True if its path names a column of the table, or will."""
        return self.becomes_column or self.kind != "new"


class DriftDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What of a source's input does not fit its schema."""

    records: int = 0
    """The number of records with anything that does not fit."""
    misfits: list[MisfitDetails] = []
    more: int = 0
    """At least this many more are not listed."""

    @property
    def new_columns(self) -> int:
        """How many keys become columns."""
        return sum(misfit.becomes_column for misfit in self.misfits)

    @property
    def keys_without_column(self) -> int:
        """How many keys, at least, become no columns."""
        return sum(misfit.kind != "type" and not misfit.becomes_column for misfit in self.misfits) + self.more


def drift_of(schema: SourceSchema, drift: Drift, checkpoint: int) -> DriftDetails:
    """Return the details of what a checkpoint has found. schema: the one with which it has read its input."""
    present = {column.name for column in parse_ddl(schema.ddl)}
    new = columns_after(schema, drift, checkpoint)
    misfits = []
    for found in sorted(drift.found, key=lambda found: -found.records)[:MAX_NAMED]:
        becomes_column = found.kind == "new" and found.path in new
        if becomes_column or not schema.evolves:
            why_not = ""
        else:
            why_not = _why_not(found, present)
        misfits.append(
            MisfitDetails(
                path=found.path,
                kind=found.kind,
                type=found.type,
                records=found.records,
                file=found.file,
                becomes_column=becomes_column,
                becomes_type=found.wider,
                why_not=why_not,
            )
        )
    return DriftDetails(records=drift.records, misfits=misfits, more=len(drift.found) - len(misfits) + drift.more)


def news_of(schema: SourceSchema, drift: Drift, checkpoint: int) -> str:
    """Return what no earlier checkpoint had found, in words, or "". Keys that become no columns may be data: they are
    counted only."""
    new = columns_after(schema, drift, checkpoint)
    columns, others = [], 0
    for found in select_new_columns(schema, drift):
        if found.path in new:
            columns.append(f"{found.path} {found.type}")
        else:
            others += 1
    parts = []
    if columns:
        more = f" and {len(columns) - MAX_IN_A_SENTENCE} more" if len(columns) > MAX_IN_A_SENTENCE else ""
        parts.append(f"new columns {', '.join(columns[:MAX_IN_A_SENTENCE])}{more}")
    if others:
        parts.append("1 key that becomes no column" if others == 1 else f"{others} keys that become no columns")
    wider = [f"{found.path} becomes {found.wider}" for found in drift.found if found.wider]
    return "; ".join([*parts, *wider[:MAX_IN_A_SENTENCE]])


def _why_not(column: FoundColumn, columns: set[str]) -> str:
    """Return why what was found does not become a column, or "" for values of a column."""
    if column.kind == "type":
        return ""
    if column.kind == "case":
        return "it differs from a column only in case"
    if column.path in columns:  # a list or a map with the key in some element
        return "it is inside another column: declare that column's type with it"
    why = why_no_column(column.path, column.type)
    if "." in column.path and column.path.split(".")[0] not in columns:
        why = "a column cannot have this name"
    if why is not None:
        return why
    if column.path.casefold() in {name.casefold() for name in columns}:
        return "it differs from a column only in case"
    return f"the source has more than {MAX_NEW_COLUMNS} new keys, which look like data that is used as keys"


def drift_without_rows(drift: DriftDetails) -> DriftDetails:
    """Return the same without names of files and of keys, which may be data, except for names of columns."""
    misfits = []
    for misfit in drift.misfits:
        path = misfit.path if misfit.is_column else None
        misfits.append(msgspec.structs.replace(misfit, path=path, file=None))
    return msgspec.structs.replace(drift, misfits=misfits)


def misfit_name(misfit: MisfitDetails) -> str:
    """Return what does not fit, in words."""
    kind = {"new": "new key", "type": "column", "case": "key in another case"}[misfit.kind]
    if misfit.path is not None:
        return f"{kind} {misfit.path}"
    return f"a {kind}"


def misfit_text(misfit: MisfitDetails) -> str:
    """Return what happens with a misfit, as the end of a sentence."""
    if misfit.becomes_column:
        return "it becomes a column with the next checkpoint; until then it is in the rescue column"
    if misfit.becomes_type:
        return (
            f"with the next checkpoint it becomes {misfit.becomes_type}; until then they are in the rescue column, and "
            "null in their own"
        )
    if misfit.kind == "type":
        return "they are in the rescue column, and null in their own"
    because = f": {misfit.why_not}" if misfit.why_not else ""
    return f"it stays in the rescue column{because}"
