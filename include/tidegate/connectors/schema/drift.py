"""What a source does with input that its schema lacks: new columns, and values of another type.

    a job       surveys its range, before it reads it, and names in its ack what does not fit: columns, types, files
    a plan      computes from what the checkpoints below it have found the schema with which its range is read
    the rows    what does not fit stays with its row, as JSON, in the rescue column

So every attempt at a checkpoint reads alike, a rollback returns to the schema of its target, and input is never read
again because its schema has changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote

import msgspec

from tidegate.connectors.schema.ddl import Column, parse_ddl
from tidegate.connectors.schema.widening import is_wider, wider_type
from tidegate.records.records import Drift, FoundColumn, KnownColumn, SourceSchema

__all__ = [
    "MAX_KNOWN_COLUMNS",
    "MAX_NEW_COLUMNS",
    "RESCUED",
    "OnNewColumn",
    "OnType",
    "SchemaPolicy",
    "Survey",
    "columns_after",
    "common_type",
    "evolved_schema",
    "policy_problems",
    "rescued_json",
    "select_new_columns",
    "type_of_variant",
]

OnNewColumn = Literal["ignore", "refuse", "rescue", "hold", "evolve"]
OnType = Literal["refuse", "rescue", "widen"]

RESCUED: Final = "_rescued"
"""The default name of the rescue column."""

MAX_NEW_COLUMNS: Final = 100
"""How many new columns a source may get. More of them look like data that is used as keys."""

MAX_KNOWN_COLUMNS: Final = 1_000
"""How many columns that the schema lacks a plan remembers."""

_MOMENT: Final = r"yyyy-MM-dd\'T\'HH:mm:ss.SSSSSS"
_WHOLE_MOMENTS: Final = f"map('timestampFormat', '{_MOMENT}XXX', 'timestampNTZFormat', '{_MOMENT}')"
"""Options of to_json, in SQL, for microseconds. Spark's default formats stop at milliseconds."""

MAX_COLUMN_NAME: Final = 255
_UNFIT: Final = re.compile(r"[ ,;{}()\n\t=`.]|[\x00-\x1f]")
"""Characters that a column's name cannot have in a Delta table or in Parquet, or that would be read as a path."""


@dataclass(frozen=True)
class SchemaPolicy:
    """What a source does with input that does not fit its schema."""

    on_new_column: OnNewColumn = "ignore"
    on_type: OnType = "refuse"
    rescue_column: str = RESCUED

    @property
    def rescues(self) -> bool:
        """True: rows have the rescue column."""
        return self.rescues_keys or self.rescues_types

    @property
    def rescues_keys(self) -> bool:
        """True: a key that the schema lacks goes to the rescue column."""
        return self.on_new_column in ("rescue", "hold", "evolve")

    @property
    def evolves(self) -> bool:
        """True: a key that the schema lacks becomes a column with the next plan, with "hold" once a person approves."""
        return self.on_new_column in ("hold", "evolve")

    @property
    def rescues_types(self) -> bool:
        """True: a value of another type goes to the rescue column, and does not make its record malformed."""
        return self.on_type != "refuse"


@dataclass(frozen=True)
class Survey:
    """What a source has found in a range before it reads it."""

    drift: Drift | None
    """What does not fit the schema, if anything."""
    is_clean: bool
    """True: every record fits the schema, so that reading it needs no further check."""

    def with_names_in(self, folder: str) -> Survey:
        """Return the same with names of files as they are in this folder."""
        if self.drift is None:
            return self
        found = [msgspec.structs.replace(column, file=_name_in(folder, column.file)) for column in self.drift.found]
        return Survey(msgspec.structs.replace(self.drift, found=found), self.is_clean)


def policy_problems(policy: SchemaPolicy, columns: Mapping[str, str]) -> list[str]:
    """Return all problems of the policy's declaration. columns: the types of the schema, by name."""
    problems = []
    for name, value, choices in (
        ("on_new_column", policy.on_new_column, ("ignore", "refuse", "rescue", "hold", "evolve")),
        ("on_type", policy.on_type, ("refuse", "rescue", "widen")),
    ):
        if value not in choices:
            problems.append(f"{name} is {value!r}; it must be {' or '.join(repr(choice) for choice in choices)}")
    if not isinstance(policy.rescue_column, str) or not policy.rescue_column or _UNFIT.search(policy.rescue_column):
        problems.append(f"rescue_column is {policy.rescue_column!r}; it must be the name of a column, like {RESCUED!r}")
    elif policy.rescues and policy.rescue_column.casefold() in {name.casefold() for name in columns}:
        problems.append(
            f"the schema has a column {policy.rescue_column!r}, which the source adds itself; rename it, or set "
            "rescue_column to another name"
        )
    for name, kind in columns.items() if policy.rescues else ():
        if re.search(r"\b(var)?char\(", kind):
            problems.append(f"column {name!r} is {kind}, which Spark cannot parse beside a rescue column: use string")
    return problems


def evolved_schema(
    declared: Sequence[Column],
    policy: SchemaPolicy,
    before: SourceSchema | None,
    drifts: Iterable[tuple[int, Drift | None]],
) -> SourceSchema:
    """Return the schema with which the next range of a source is read.

    declared: the columns of the declaration as it is now. before: the schema of an earlier plan. drifts: what the
    checkpoints since that plan have found, each with its number, oldest first.
    """
    known = dict(before.known) if before is not None else {}
    widened = dict(before.widened) if before is not None else {}
    more = before.more if before is not None else 0
    through = before.through if before is not None else 0
    are_columns = {column.name for column in parse_ddl(before.ddl)} if before is not None else set()
    for checkpoint, drift in drifts:
        through = max(through, checkpoint)
        if drift is None:
            continue
        more = max(more, drift.more)
        for found in drift.found:
            if found.kind == "type":
                if found.wider:
                    _widen(widened, found, checkpoint)
                continue
            if found.path in known and found.path in are_columns:
                continue  # a checkpoint that was planned before it was a column has found it
            if found.path in known:
                column = known[found.path]
                known[found.path] = msgspec.structs.replace(column, type=common_type(column.type, found.type))
            elif len(known) < MAX_KNOWN_COLUMNS:
                known[found.path] = KnownColumn(type=found.type, checkpoint=checkpoint, file=found.file)
            else:
                more += 1
    columns = list(declared)
    if policy.evolves:
        evolved = are_columns & known.keys()
        columns += _new_columns(declared, policy, known, evolved, more)
    if policy.on_type == "widen":
        columns = [_as_widened(column, widened) for column in columns]
    ddl = ", ".join(column.ddl for column in columns)
    return SourceSchema(ddl=ddl, known=known, widened=widened, more=more, through=through, evolves=policy.evolves)


def columns_after(schema: SourceSchema, drift: Drift, checkpoint: int) -> set[str]:
    """Return the columns that a source gets by what a checkpoint has found. schema: the one with which it has read."""
    columns = parse_ddl(schema.ddl)
    policy = SchemaPolicy(on_new_column="evolve" if schema.evolves else "rescue")
    following = evolved_schema(columns, policy, schema, [(checkpoint, drift)])
    return {column.name for column in parse_ddl(following.ddl)} - {column.name for column in columns}


def select_new_columns(schema: SourceSchema, drift: Drift) -> list[FoundColumn]:
    """Return the keys with values that no checkpoint had found when this schema was planned.

    If there were more than a plan remembers, a further one may have been seen, so none counts.
    """
    unknown = []
    for found in drift.found:
        known = schema.known.get(found.path)
        is_known = schema.more > 0 if known is None else known.type != "void"
        if found.kind != "type" and found.type != "void" and not is_known:
            unknown.append(found)
    return unknown


def _widen(widened: dict[str, KnownColumn], found: FoundColumn, checkpoint: int) -> None:
    """Remember that a column has to become wider, for values that a checkpoint has found."""
    before = widened.get(found.path)
    kind: str | None = found.wider
    if before is not None:
        kind = wider_type(before.type, found.wider)
    if kind is not None:
        widened[found.path] = KnownColumn(type=kind, checkpoint=checkpoint, file=found.file)


def _as_widened(column: Column, widened: Mapping[str, KnownColumn]) -> Column:
    """Return a column with the type that it has become, unless it is declared with another one by now."""
    now = widened.get(column.name)
    if now is None or not is_wider(column.type, now.type):
        return column
    return Column(column.name, now.type)


def _new_columns(
    declared: Sequence[Column],
    policy: SchemaPolicy,
    known: Mapping[str, KnownColumn],
    evolved: Collection[str],
    more: int,
) -> list[Column]:
    """Return the columns that a source gets, in the order in which they were found. evolved: those that it has got."""
    candidates = {name: column for name, column in known.items() if why_no_column(name, column.type) is None}
    if more or len(candidates) > MAX_NEW_COLUMNS:
        candidates = {name: column for name, column in candidates.items() if name in evolved}
    taken = {column.name.casefold() for column in declared} | {policy.rescue_column.casefold(), "_corrupt_record"}
    columns = []
    for name, column in candidates.items():
        if name.casefold() not in taken:
            taken.add(name.casefold())
            columns.append(Column(name, column.type))
    return columns


def why_no_column(name: str, kind: str) -> str | None:
    """Return why a key of the input cannot become a column by itself, or None if it can."""
    if kind == "void":
        return "it has been null so far, so its type is unknown"
    if "." in name:
        return "it is inside another column: declare that column's type with it"
    if name.startswith("_"):  # such as _offset of a topic, or _deleted in an operator's state
        return "it begins with an underscore, as columns do that tidegate adds: declare it"
    if not name or len(name) > MAX_COLUMN_NAME or _UNFIT.search(name):
        return "a column cannot have this name"
    return None


def rescued_json(members: Iterable[str]) -> str:
    """Return SQL for the content of the rescue column: JSON of those of these values that are not null, if any."""
    return f"nullif(to_json(struct({', '.join(members)}), {_WHOLE_MOMENTS}), '{{}}')"


def _name_in(folder: str, url: str) -> str:
    path = re.sub("^file:/+", "/", unquote(url))
    return path.removeprefix(f"{folder.removeprefix('file://').rstrip('/')}/")


_VARIANT_TYPES: Final = {
    "VOID": "void",
    "BOOLEAN": "boolean",
    "BIGINT": "bigint",
    "STRING": "string",
    "DOUBLE": "double",
    "FLOAT": "double",
    "INTEGER": "decimal(38,0)",
    "FRACTION": "double",
    "TINYINT": "bigint",
    "SMALLINT": "bigint",
    "INT": "bigint",
}


def type_of_variant(text: str) -> str:
    """Return the column type for a type that the survey names. Objects are kept as the text of their JSON."""
    if text.startswith("ARRAY<"):
        element = type_of_variant(text[len("ARRAY<") : -1])
        return "string" if element == "void" else f"array<{element}>"
    return _VARIANT_TYPES.get(text, "string")


def common_type(one: str, other: str) -> str:
    """Return the narrowest type that holds the values of both. Where nothing else does, it is their text."""
    if one == other or other == "void":
        return one
    if one == "void":
        return other
    if one.startswith("array<") and other.startswith("array<"):
        element = common_type(one[6:-1], other[6:-1])
        return f"array<{element}>"
    numbers = ("bigint", "decimal(38,0)", "double")
    if one in numbers and other in numbers:
        return max(one, other, key=numbers.index)
    return "string"
