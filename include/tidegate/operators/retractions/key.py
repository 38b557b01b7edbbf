"""The key of a changelog: columns of a stream whose values are unique among its current rows.

If a sink's keys contain the key of the changelog, the sink can replace and delete rows by its keys. Otherwise several
current rows may share the sink's key (`materializer.py`).

    aggregate(by="k")                 k
    …select("k AS id", "k")           id or k: a column may have several names
    aggregate(by=[])                  no columns: there is one row at most
    a union, a join with copies       None: there is no key, or it is unknown
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

__all__ = ["DELETES", "HELD", "IMPLIED", "ChangelogKey", "key_of", "key_renamed", "key_text", "keys_contain"]

HELD: Final = "held"
"""The state of a materializer: the current rows."""
DELETES: Final = "deletes"
"""The state in front of a sink that orders and deletes rows: the newest deletion of each key."""
IMPLIED: Final = (HELD, DELETES)
"""The states of operators that the graph puts in front of sinks. Operators that users declare have other ones."""
ChangelogKey = tuple[frozenset[str], ...]
"""The names of each column of the key in the stream, in lower case, as Spark compares names."""


def key_of(columns: Iterable[str]) -> ChangelogKey:
    """Return the key with these columns, with one name each."""
    return tuple(frozenset((name.casefold(),)) for name in dict.fromkeys(map(str, columns)))


def key_renamed(key: ChangelogKey | None, names: Mapping[str, Iterable[str]]) -> ChangelogKey | None:
    """Return the key under new names, or None if one of its columns was dropped. names: for each old name the new
    ones."""
    if key is None:
        return None
    folded_names: dict[str, set[str]] = {}
    for old_name, new_names in names.items():
        folded_names[old_name.casefold()] = {name.casefold() for name in new_names}
    columns = []
    for column in key:
        new_column: set[str] = set()
        for name in column:
            new_column |= folded_names.get(name, set())
        if not new_column:
            return None
        columns.append(frozenset(new_column))
    return tuple(columns)


def keys_contain(keys: Sequence[str], key: ChangelogKey | None) -> bool:
    """Return whether `keys` contain the key of a changelog, so that at any time one current row has their values."""
    names = {name.casefold() for name in keys}
    return key is not None and all(not column.isdisjoint(names) for column in key)


def key_text(key: ChangelogKey) -> str:
    """Return the key as text for messages."""
    return ", ".join(min(column) for column in key) or "nothing, for there is one row at most"
