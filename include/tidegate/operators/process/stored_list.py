"""A worker's part of lists that `process` keeps: entries are read from the state's files as they are iterated over.

Files hold the entries of a key in the order of their places, so several files are read side by side, and a reader
holds no more than a row group of each, however long the list is. Of two rows with one place the newer one counts.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import Invalid
from tidegate.state.arrow.matching import Matcher
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout, opened, read
from tidegate.state.columns import CHECKPOINT, DELETED, TOUCHED

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FIRST", "NEXT", "PLACE", "EntryFiles", "StoredList"]

PLACE: Final = "_place"
"""The place of an entry in its list: a key of its state."""
FIRST, NEXT = "_first", "_next"
"""The ends of a list: the place of its first entry, and the one that the next will have."""
_MAX_ROWS = 1000
"""So many entries are made Python objects at once."""
_MAX_GROUPS = 16
"""Of so many row groups a worker keeps the keys: the next key's entries may be in the same."""

Entry = dict[str, Any]
_Found = tuple[int, int, bool, Entry]
"""An entry's place, its checkpoint with a minus, whether it lives, and its columns."""


@dataclass(frozen=True)
class EntryFiles:
    """The files with the entries of all keys."""

    key_columns: list[str]
    layout: StateLayout
    runs: Sequence[SortedFile]
    limit: int | None
    """Entries that were written then or before have expired."""
    _keys: dict[tuple[str, int], pa.Table] = field(default_factory=dict, init=False, repr=False, compare=False)

    def entries(self, key: pa.Table, group: int, names: Sequence[str]) -> Iterator[Entry]:
        """Yield the entries of a key, in order. key: one row. group: its key group. names: the fields."""
        import pyarrow as pa

        sought = key.select(self.key_columns).cast(
            pa.schema([self.layout.schema.field(name) for name in self.key_columns])
        )
        matcher = Matcher(sought, self.key_columns)
        runs = [run for run in self.runs if run.groups[0] <= group <= run.groups[1]]
        streams = [self._in_run(run, matcher, names) for run in runs]
        last = -1
        for place, _, lives, entry in heapq.merge(*streams, key=_age):
            if place != last and lives:
                yield entry
            last = place

    def _in_run(self, run: SortedFile, matcher: Matcher, names: Sequence[str]) -> Iterator[_Found]:
        import pyarrow as pa

        known = [name for name in (PLACE, CHECKPOINT, DELETED, TOUCHED, *names) if name in self.layout.schema.names]
        with opened(run) as file:
            columns = [file.metadata.schema.column(place).path for place in range(file.metadata.num_columns)]
            first = columns.index(self.key_columns[0])
            for group in range(file.num_row_groups):
                if not matcher.may_be_in(file.metadata.row_group(group), first):
                    continue
                keys = self._keys_in(run, file, group)
                places = matcher.all_rows_in([keys[name].combine_chunks() for name in self.key_columns])
                if not len(places):
                    continue
                rows = read(file, self.layout, known, group).take(pa.array(places))
                for begin in range(0, rows.num_rows, _MAX_ROWS):
                    for row in rows.slice(begin, _MAX_ROWS).to_pylist():
                        yield row[PLACE], -row[CHECKPOINT], self._lives(row), {name: row.get(name) for name in names}

    def _keys_in(self, run: SortedFile, file: Any, group: int) -> pa.Table:
        if (run.path, group) not in self._keys:
            if len(self._keys) >= _MAX_GROUPS:
                self._keys.clear()
            self._keys[run.path, group] = read(file, self.layout, self.key_columns, group)
        return self._keys[run.path, group]

    def _lives(self, row: Mapping[str, Any]) -> bool:
        if row[DELETED]:
            return False
        touched = row.get(TOUCHED)
        return self.limit is None or touched is None or touched > self.limit


def _age(found: _Found) -> tuple[int, int]:
    return found[:2]


class StoredList:
    """A list of one key: `append`, iterate, `clear`. Entries are dicts of the declared fields."""

    def __init__(
        self, name: str, fields: Sequence[str], stored: Callable[[], Iterable[Entry]], first: int, following: int
    ) -> None:
        """stored: gives the entries as of the base, in order. first, following: the ends."""
        self._name, self._fields, self._stored = name, list(fields), stored
        self._first, self._next = first, following
        self._cleared = False
        self._new: list[Entry] = []

    def append(self, entry: Entry) -> None:
        """Add an entry behind all others."""
        if not isinstance(entry, dict):
            raise Invalid(
                f"state.{self._name}.append got a {type(entry).__name__}", help=f"give it a dict of {self._named}"
            )
        if unknown := sorted(set(entry).difference(self._fields)):
            raise Invalid(
                f"state.{self._name}.append got {unknown}; entries have {self._named}",
                help="correct the names in the function, or declare the fields, too",
            )
        self._new.append({name: copy.deepcopy(entry.get(name)) for name in self._fields})

    @property
    def _named(self) -> str:
        return ", ".join(self._fields)

    def __iter__(self) -> Iterator[Entry]:
        new = copy.deepcopy(self._new)
        if not self._cleared and self._next > self._first:
            yield from self._stored()
        yield from new

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def clear(self) -> None:
        """Forget all entries."""
        self._cleared = True
        self._new.clear()

    def _appended(self) -> Iterator[tuple[int, Entry]]:
        """Yield the new entries with their places."""
        yield from enumerate(self._new, self._next)

    def _removed(self) -> tuple[int, int] | None:
        """Return the places of stored entries that are cleared. None: there are none."""
        return (self._first, self._next) if self._cleared and self._next > self._first else None

    def _ends(self) -> tuple[int, int] | None:
        """Return the ends as they are now. None: they have not changed."""
        if not self._new and self._removed() is None:
            return None
        return (self._next if self._cleared else self._first), self._next + len(self._new)
