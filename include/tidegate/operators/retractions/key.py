"""The key of a changelog: columns of a stream of which no two rows that hold at one time have the same values.

A row that is taken back is found by them. A sink may therefore replace and remove rows by its own keys if these contain
the key of the changelog; otherwise several rows that hold may share the sink's key (`materializer.py`).

    aggregate(by="k")                 k
    …select("k AS id", "k")           id or k: a column may stand there under several names
    aggregate(by=[])                  no column at all: there is one row at most
    a union, a join with copies       None: rows are told apart by nothing, or nobody knows by what
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

__all__ = ["DELETES", "HELD", "IMPLIED", "ChangelogKey", "key_of", "key_renamed", "key_text", "keys_contain"]

HELD: Final = "held"
"""The state of a materializer: the rows that hold."""
DELETES: Final = "deletes"
"""The state in front of a sink that orders rows and removes: the newest removal of each key."""
IMPLIED: Final = (HELD, DELETES)
"""The states of operators that the graph puts in front of sinks. No operator that users declare has one so called."""
ChangelogKey = tuple[frozenset[str], ...]
"""For each column of the key, the names that it has in the stream, in lower case, as Spark compares them."""


def key_of(columns: Iterable[str]) -> ChangelogKey:
    """Return the key that these columns make, each under its own name."""
    return tuple(frozenset((name.casefold(),)) for name in dict.fromkeys(map(str, columns)))


def key_renamed(key: ChangelogKey | None, names: Mapping[str, Iterable[str]]) -> ChangelogKey | None:
    """Return the key under new names. names: by a column's old name, all of its new ones. None: a column is gone."""
    if key is None:
        return None
    new = {old.casefold(): frozenset(name.casefold() for name in given) for old, given in names.items()}
    columns = [frozenset[str]().union(*(new.get(name, ()) for name in column)) for column in key]
    return tuple(columns) if all(columns) else None


def keys_contain(keys: Sequence[str], key: ChangelogKey | None) -> bool:
    """Return whether rows that have the same values of `keys` are one row of the changelog at any time."""
    names = {name.casefold() for name in keys}
    return key is not None and all(not column.isdisjoint(names) for column in key)


def key_text(key: ChangelogKey) -> str:
    """Return the key for users."""
    return ", ".join(min(column) for column in key) or "nothing, for there is one row at most"
