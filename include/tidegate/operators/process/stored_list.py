"""Lists of `process`: the worker's part, which reads entries from the state's files on iteration.

Each file has the entries of a key in the order of their places. Files are read in parallel, with at most a row group of
each in memory, whatever the length of the list. Of two rows with the same place, the newer one counts.
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
"""The place of an entry in its list, a key of its state."""
FIRST, NEXT = "_first", "_next"
"""The ends of a list: the place of its first entry, and that of the next one to append."""
_MAX_ROWS = 1000
"""The number of entries that are converted to Python objects at a time."""
_MAX_GROUPS = 16
"""The number of row groups whose keys stay cached. Neighbouring keys often share one."""

Entry = dict[str, Any]
_StoredEntry = tuple[int, int, bool, Entry]
"""An entry's place, its negated checkpoint, whether it is live, and its columns."""


@dataclass(frozen=True)
class EntryFiles:
    """The files with the entries of all keys."""

    key_columns: list[str]
    layout: StateLayout
    runs: Sequence[SortedFile]
    limit: int | None
    """Entries that were written at this time or before have expired."""
    _keys: dict[tuple[str, int], pa.Table] = field(default_factory=dict, init=False, repr=False, compare=False)

    def entries(self, key: pa.Table, group: int, names: Sequence[str]) -> Iterator[Entry]:
        """Yield the entries of a key, in order. key: one row. group: its key group. names: the fields."""
        import pyarrow as pa

        key_schema = pa.schema([self.layout.schema.field(name) for name in self.key_columns])
        matcher = Matcher(key.select(self.key_columns).cast(key_schema), self.key_columns)
        runs = [run for run in self.runs if run.groups[0] <= group <= run.groups[1]]
        streams = [self._entries_in_run(run, matcher, names) for run in runs]
        last_place = -1
        for place, _, is_live, entry in heapq.merge(*streams, key=_place_and_age):
            if place != last_place and is_live:
                yield entry
            last_place = place

    def _entries_in_run(self, run: SortedFile, matcher: Matcher, names: Sequence[str]) -> Iterator[_StoredEntry]:
        import pyarrow as pa

        columns = []
        for name in (PLACE, CHECKPOINT, DELETED, TOUCHED, *names):
            if name in self.layout.schema.names:
                columns.append(name)
        with opened(run) as file:
            paths = []
            for index in range(file.metadata.num_columns):
                paths.append(file.metadata.schema.column(index).path)
            first_key = paths.index(self.key_columns[0])
            for group in range(file.num_row_groups):
                if not matcher.may_be_in(file.metadata.row_group(group), first_key):
                    continue
                keys = self._keys_in(run, file, group)
                positions = matcher.all_rows_in([keys[name].combine_chunks() for name in self.key_columns])
                if not len(positions):
                    continue
                rows = read(file, self.layout, columns, group).take(pa.array(positions))
                for start in range(0, rows.num_rows, _MAX_ROWS):
                    for row in rows.slice(start, _MAX_ROWS).to_pylist():
                        entry = {name: row.get(name) for name in names}
                        yield row[PLACE], -row[CHECKPOINT], self._is_live(row), entry

    def _keys_in(self, run: SortedFile, file: Any, group: int) -> pa.Table:
        if (run.path, group) not in self._keys:
            if len(self._keys) >= _MAX_GROUPS:
                self._keys.clear()
            self._keys[run.path, group] = read(file, self.layout, self.key_columns, group)
        return self._keys[run.path, group]

    def _is_live(self, row: Mapping[str, Any]) -> bool:
        if row[DELETED]:
            return False
        touched = row.get(TOUCHED)
        return self.limit is None or touched is None or touched > self.limit


def _place_and_age(entry: _StoredEntry) -> tuple[int, int]:
    return entry[:2]


class StoredList:
    """A list of one key: `append`, iterate, `clear`. Entries are dicts of the declared fields."""

    def __init__(
        self, name: str, fields: Sequence[str], stored: Callable[[], Iterable[Entry]], first: int, following: int
    ) -> None:
        """stored: returns the entries at the base, in order. first, following: the ends."""
        self._name, self._fields, self._stored = name, list(fields), stored
        self._first, self._next = first, following
        self._cleared = False
        self._new: list[Entry] = []

    def append(self, entry: Entry) -> None:
        """Add an entry at the end."""
        if not isinstance(entry, dict):
            raise Invalid(
                f"state.{self._name}.append got a {type(entry).__name__}", help=f"pass a dict of {self._field_list}"
            )
        if unknown := sorted(set(entry).difference(self._fields)):
            raise Invalid(
                f"state.{self._name}.append got {unknown}; entries have {self._field_list}",
                help="correct the names in the function, or declare the fields, too",
            )
        self._new.append({name: copy.deepcopy(entry.get(name)) for name in self._fields})

    @property
    def _field_list(self) -> str:
        return ", ".join(self._fields)

    def __iter__(self) -> Iterator[Entry]:
        new = copy.deepcopy(self._new)
        if not self._cleared and self._next > self._first:
            yield from self._stored()
        yield from new

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def clear(self) -> None:
        """Remove all entries."""
        self._cleared = True
        self._new.clear()

    def _appended(self) -> Iterator[tuple[int, Entry]]:
        """Yield the new entries with their places."""
        yield from enumerate(self._new, self._next)

    def _removed(self) -> tuple[int, int] | None:
        """Return the range of places of stored entries that were cleared, or None."""
        if self._cleared and self._next > self._first:
            return (self._first, self._next)
        return None

    def _ends(self) -> tuple[int, int] | None:
        """Return the new ends, or None if they have not changed."""
        if not self._new and self._removed() is None:
            return None
        return (self._next if self._cleared else self._first), self._next + len(self._new)
