"""Checks of arguments that several kinds of sink share: lists of columns, and keys with an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from tidegate.delta.log.schema import collations, render
from tidegate.records.names import quoted
from tidegate.records.records import Json

__all__ = [
    "ByKey",
    "collation_problems",
    "column_problems",
    "describe_keyed_sink",
    "key_and_order_problems",
    "keyed_problems",
    "refuse_order",
]

_KEY_TYPES: Final = ("byte", "short", "integer", "long", "string", "date", "timestamp", "timestamp_ntz", "boolean")


class ByKey(Protocol):
    """The arguments of a sink that keeps one row for each key."""

    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def order_by(self) -> tuple[str, ...]: ...
    @property
    def delete_when(self) -> str | None: ...
    @property
    def omit(self) -> tuple[str, ...]: ...


def column_problems(argument: str, names: Sequence[str]) -> list[str]:
    """Return the problems of a list of column names."""
    if any(not isinstance(name, str) or not name for name in names):
        return [f"{argument} holds something that is not a column name: {list(names)!r}"]
    folded = [name.casefold() for name in names]
    doubled = sorted({name for name in names if folded.count(name.casefold()) > 1})
    if doubled:
        return [f"{argument} names {', '.join(map(repr, doubled))} twice"]
    return []


def collation_problems(schema: Json, names: Sequence[str] | None = None, noun: str = "column") -> list[str]:
    """Return a problem for each column whose texts have a collation.

    schema: in Spark's JSON form. names: check only these columns.
    """
    problems = []
    for name, collation in collations(schema).items():
        if names is None or name in names:
            problems.append(
                f"{noun} {name!r} has the collation {collation}, which treats texts as equal that other systems tell "
                f"apart: write {_without_collation(name, collation)} in the stage before"
            )
    return problems


def _without_collation(name: str, collation: str) -> str:
    """Return SQL for the column without its collation."""
    if collation.endswith("LCASE"):
        value = f"lower({quoted(name)})"
    else:
        value = quoted(name)
    return f"{value} COLLATE UTF8_BINARY"


def describe_keyed_sink(sink: ByKey) -> Json:
    """Return the arguments' part of a sink's `describe`."""
    return {
        "keys": list(sink.keys),
        "order_by": list(sink.order_by),
        "delete_when": sink.delete_when,
        "omit": list(sink.omit),
    }


def keyed_problems(sink: ByKey, appending: str, partition_by: Sequence[str] = ()) -> list[str]:
    """Return the problems of the arguments. appending: the name of the sink to use without keys."""
    problems = []
    if not sink.keys:
        problems.append(f"keys is empty: name the columns that identify a row, or use {appending}")
    for argument, names in (("keys", sink.keys), ("order_by", sink.order_by), ("omit", sink.omit)):
        problems += column_problems(argument, names)
    if partition_by:
        needed = "key, order or partition column"
    else:
        needed = "key or order column"
    for name in sorted(set(sink.omit) & {*sink.keys, *sink.order_by, *partition_by}):
        problems.append(f"omit names {name!r}, which the table needs as a {needed}")
    if sink.delete_when is not None and not sink.delete_when.strip():
        problems.append("delete_when is empty: write a SQL condition, or leave it out")
    return problems


def key_and_order_problems(sink: ByKey, types: Mapping[str, Json]) -> list[str]:
    """Return the problems of key and order columns in an output with these types."""
    problems = []
    for name in sink.keys:
        if name not in types:
            problems.append(f"key column {name!r} is not in the output ({', '.join(types)})")
        elif not _is_key_type(types[name]):
            problems.append(f"key column {name!r} is {render(types[name])}: keys need a type with plain equality")
    for name in sink.order_by:
        if name not in types:
            problems.append(f"order_by column {name!r} is not in the output ({', '.join(types)})")
        elif not isinstance(types[name], str):
            problems.append(f"order_by column {name!r} is {render(types[name])}, which has no order")
    return problems


def refuse_order(sink: ByKey, stream: str) -> list[str]:
    """Return a problem if the sink has an order, but its stream has retractions, which already determine the rows."""
    if not sink.order_by:
        return []
    return [f"order_by is for rows that arrive in any order; {stream} itself says which row counts: leave it out"]


def _is_key_type(kind: Json) -> bool:
    return isinstance(kind, str) and (kind in _KEY_TYPES or kind.startswith("decimal"))
