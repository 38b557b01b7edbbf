"""The kernel of `process`, in Spark's Python workers: calls the user's function per key, and returns its changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid
from tidegate.operators.process.stored_list import FIRST, NEXT, PLACE, EntryFiles, StoredList
from tidegate.versions.python import UTC

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "AT",
    "ROW",
    "SIDE",
    "STREAM",
    "Entries",
    "KeyState",
    "ListFields",
    "MapFields",
    "ProcessKernel",
    "Timer",
    "Timers",
]

AT, ROW = "_at", "_row"
"""The columns that are added to rows: their time, if they are in order, and their ids."""
STREAM = "_stream"
"""The column with the index of a row's stream, 0 or 1, if there are two."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_CALLS = 10_000
SIDE = 3
"""The kind of a record with a row for the first side output. Further side outputs have the next numbers."""


OutputRow = tuple[str, dict[str, Any]]
"""The stream that a row is for, "" for the main output, and the row."""


class KeyState:
    """The state of one key, with the declared fields as attributes, initially None, or an empty list or dict. Maps and
    lists of any size are attributes, too."""

    def __init__(self, values: Mapping[str, Any], maps: Mapping[str, Entries | StoredList] | None = None) -> None:
        object.__setattr__(self, "_values", dict(values))
        object.__setattr__(self, "_maps", dict(maps or {}))

    def __getattr__(self, name: str) -> Any:
        values, maps = object.__getattribute__(self, "_values"), object.__getattribute__(self, "_maps")
        if name in maps:
            return maps[name]
        if name not in values and name.startswith("__"):  # Python itself looks for optional methods
            raise AttributeError(name)
        if name not in values:
            raise Invalid(
                f"the state has no field {name!r}; it was declared with {', '.join((*values, *maps))}",
                help="correct the name in the function, or declare the field, too",
            )
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        before = self.__getattr__(name)
        if isinstance(before, Entries):
            raise Invalid(
                f"state.{name} is a map, and cannot be assigned",
                help=f"set the fields of its entries: state.{name}[…].n = 1",
            )
        if isinstance(before, StoredList):
            raise Invalid(
                f"state.{name} is a list, and cannot be assigned",
                help=f"call state.{name}.append(…), or state.{name}.clear()",
            )
        self._values[name] = value

    def clear(self) -> None:
        """Clear the key's fields. Entries of maps, and lists, have their own `clear()`."""
        for name, value in self._values.items():
            self._values[name] = type(value)() if isinstance(value, list | dict) else None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields."""
        return dict(self._values)


class Entries:
    """A map of one key, with the entries that the rows of a call name. An entry has its declared fields as
    attributes."""

    def __init__(
        self,
        name: str,
        entry_column: str,
        empty: Mapping[str, Any],
        stored: Mapping[Any, Mapping[str, Any]],
    ) -> None:
        self._name, self._entry_column, self._empty, self._stored = name, entry_column, dict(empty), stored
        self._used: dict[Any, KeyState] = {}
        self._entry_names: frozenset[Any] = frozenset()

    def __getitem__(self, entry: Any) -> KeyState:
        if entry not in self._entry_names:
            raise KeyError(
                f"state.{self._name}[{entry!r}]: no row of this call has {entry!r} in {self._entry_column!r}; a call "
                "has the entries that its rows name"
            )
        if entry not in self._used:
            self._used[entry] = KeyState(copy.deepcopy(dict(self._stored.get(entry, self._empty))))
        return self._used[entry]

    def _choose_entries(self, tables: Iterable[pa.Table]) -> None:
        """Give a call access to the entries that its rows name."""
        names: set[Any] = set()
        for table in tables:
            if self._entry_column in table.column_names:
                names.update(table[self._entry_column].to_pylist())
        self._entry_names = frozenset(names)

    def _changed(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield the entries that differ from the stored ones."""
        for entry, state in self._used.items():
            if state.as_dict() != dict(self._stored.get(entry, self._empty)):
                yield entry, state.as_dict()


@dataclass(frozen=True)
class MapFields:
    """The declaration of a map, and its columns in a key's row and in records."""

    entry_column: str
    """The column of rows that names an entry."""
    fields: list[str]
    column: str
    kind: int

    def entries(self, name: str, key_row: pa.Table) -> Entries:
        """Return a key's entries."""
        struct = key_row.schema.field(self.column).type.value_type
        types = {field: struct.field(field).type for field in self.fields}
        stored = {}
        for entry in key_row[self.column].to_pylist()[0] or ():
            stored[entry["_entry"]] = {field: _python(entry[field], kind) for field, kind in types.items()}
        empty = {field: _python(None, kind) for field, kind in types.items()}
        return Entries(name, self.entry_column, empty, stored)


@dataclass(frozen=True)
class ListFields:
    """The declaration of a list, and its columns in a key's row and in records."""

    fields: list[str]
    column: str
    """The column of records with an entry, and of a key's row with all entries, if workers cannot read the files."""
    ends: str
    kinds: tuple[int, int, int]
    """The kinds of records with an entry, with cleared places, and with ends."""
    files: EntryFiles | None

    def list_for(self, name: str, key_row: pa.Table, group: int) -> StoredList:
        """Return a key's list. group: the key group."""
        ends = key_row[self.ends].to_pylist()[0] or {}
        return StoredList(
            name, self.fields, lambda: self._stored(key_row, group), ends.get(FIRST) or 0, ends.get(NEXT) or 0
        )

    def _stored(self, key_row: pa.Table, group: int) -> Iterator[dict[str, Any]]:
        struct = key_row.schema.field(self.column).type.value_type
        if self.files is not None:
            entries: Iterable[dict[str, Any]] = self.files.entries(key_row, group, self.fields)
        else:
            entries = sorted(key_row[self.column].to_pylist()[0] or (), key=lambda entry: entry[PLACE])
        for entry in entries:
            yield {name: _python(entry[name], struct.field(name).type) for name in self.fields}

    def records(self, stored_list: StoredList) -> Iterator[dict[str, Any]]:
        """Yield the records of a list's changes, without the key."""
        entry_kind, cleared_kind, ends_kind = self.kinds
        removed = stored_list._removed()
        if removed is not None:
            yield {"_kind": cleared_kind, self.ends: {FIRST: removed[0], NEXT: removed[1]}}
        for place, entry in stored_list._appended():
            yield {"_kind": entry_kind, self.column: {PLACE: place, **_arrow(entry)}, "_deleted": False}
        ends = stored_list._ends()
        if ends is not None:
            first, following = ends
            yield {"_kind": ends_kind, self.ends: {FIRST: first, NEXT: following}, "_deleted": first == following}


@dataclass(frozen=True)
class Timer:
    """A moment at which the key's function is called even without rows."""

    kind: str
    """event or clock."""
    name: str
    at: datetime


class Timers:
    """The key's timers and the current time. A timer fires once. Setting one with the same name moves it."""

    def __init__(
        self, timers: Iterable[Timer], watermark: datetime | None, now: datetime, *, alone: bool = False
    ) -> None:
        self.watermark = watermark
        """The time up to which event time is complete. None: unknown."""
        self.now = now
        """The checkpoint's clock."""
        self.fired: list[Timer] = []
        """The timers of one moment that this call is for. They are removed, unless they are set again."""
        self._set = {(timer.kind, timer.name): timer for timer in timers}
        self._alone = alone
        """Whether no later checkpoint will read the state."""

    def event(self, at: datetime, name: str = "") -> None:
        """Call again once the watermark reaches `at`, in this checkpoint if it already has."""
        self._set["event", name] = Timer("event", name, _utc(at))

    def clock(self, at: datetime, name: str = "") -> None:
        """Call again in the first checkpoint after this one that is planned at `at` or later."""
        if self._alone:
            raise Invalid(
                "timers.clock requests a call in a later checkpoint, but in a pipeline that reads by data interval, no "
                "later one has its state",
                help="set timers.event, which fires at the end of the interval at the latest",
            )
        self._set["clock", name] = Timer("clock", name, _utc(at))

    def cancel(self, name: str = "") -> None:
        """Remove the timers with this name."""
        for kind in ("event", "clock"):
            self._set.pop((kind, name), None)

    def pending(self) -> list[Timer]:
        """Return the timers that have not fired, earliest first."""
        return sorted(self._set.values(), key=lambda timer: (timer.at, timer.kind, timer.name))

    def _due(self, kind: str, limit: datetime | None) -> list[Timer]:
        """Return the timers of the first moment up to the limit."""
        if limit is None:
            return []
        due = [timer for timer in self.pending() if timer.kind == kind and timer.at <= limit]
        return [timer for timer in due if timer.at == due[0].at]

    def _fire(self, due: list[Timer]) -> None:
        for timer in due:
            del self._set[timer.kind, timer.name]
        self.fired = due


@dataclass
class ProcessKernel:
    """Called by Spark for each key, with its new rows, and its row with state and timers."""

    uid: str
    function: Callable[..., Any]
    schema: pa.Schema
    rows: list[str]
    stored_columns: list[str]
    keys: list[str]
    values: list[str]
    order_by: list[str]
    clock: datetime
    watermark: datetime | None
    waits: bool = False
    """Whether timers of the clock are paused."""
    reached: datetime | None = None
    """The watermark from rows alone, if event time `ends`."""
    ends: bool = False
    alone: bool = False
    """Whether nothing is left for a later checkpoint."""
    sides: Mapping[str, int] = field(default_factory=dict)
    """The side outputs, numbered."""
    streams: Sequence[Mapping[str, str]] = ()
    """With two streams, the columns of each, with their names in `rows`, which has the index of the stream in
    `STREAM`."""
    table: pa.Table | None = None
    """The lookup table."""
    maps: Mapping[str, MapFields] = field(default_factory=dict)
    lists: Mapping[str, ListFields] = field(default_factory=dict)
    group: str = ""
    """The column with the key's group, if there are lists."""
    separate_fields: Mapping[str, int] = field(default_factory=dict)
    """The fields with separate states, each with the kind of its records."""

    def __call__(self, rows: pa.Table, state_rows: pa.Table) -> pa.Table:
        import pyarrow as pa

        rows, state_rows = rows.rename_columns(self.rows), state_rows.rename_columns(self.stored_columns)
        before = state_rows.to_pylist()[0]
        key = {name: before[name] for name in self.keys}
        values = {}
        for name in self.values:
            values[name] = _python(before[name], state_rows.schema.field(name).type)
        maps = {name: declared.entries(name, state_rows) for name, declared in self.maps.items()}
        lists = {}
        for name, list_fields in self.lists.items():
            lists[name] = list_fields.list_for(name, state_rows, before[self.group])
        state = KeyState(copy.deepcopy(values), {**maps, **lists})
        pending = [Timer(timer["kind"], timer["name"], _utc(timer["at"])) for timer in before["_timers"] or ()]
        timers = Timers(pending, self.watermark and _utc(self.watermark), _utc(self.clock), alone=self.alone)
        rows = rows.sort_by([(name, "ascending") for name in (AT, *self.order_by, ROW)])
        outputs = self._calls(key, rows, state, timers)
        records = [self._record(name, out, key) for name, out in outputs]
        records += [{"_key": key, **record} for record in self._changed(values, state.as_dict())]
        for name, declared in self.maps.items():
            for entry, fields in maps[name]._changed():
                record = {"_kind": declared.kind, "_key": key, "_deleted": _is_empty(fields)}
                record[declared.column] = {"_entry": entry, **_arrow(fields)}
                records.append(record)
        for name, stored_list in lists.items():
            records += [{"_key": key, **record} for record in self.lists[name].records(stored_list)]
        if timers.pending() != sorted(pending, key=lambda timer: (timer.at, timer.kind, timer.name)):
            still_set = [{"kind": timer.kind, "name": timer.name, "at": timer.at} for timer in timers.pending()]
            records.append({"_kind": 2, "_key": key, "_timers": still_set, "_deleted": not still_set})
        return pa.Table.from_pylist(records, schema=self.schema)

    def _changed(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the records of changed fields: one for all fields with a common state, and one for each separate
        field."""
        names_by_kind = {1: [name for name in now if name not in self.separate_fields]}
        for name, kind in self.separate_fields.items():
            names_by_kind[kind] = [name]
        for kind, names in names_by_kind.items():
            fields = {name: now[name] for name in names}
            if fields != {name: before[name] for name in names}:
                yield {"_kind": kind, "_state": _arrow(fields), "_deleted": _is_empty(fields)}

    def _record(self, name: str, row: dict[str, Any], key: dict[str, Any]) -> dict[str, Any]:
        """Return the record of a row for a stream, "" for the main output."""
        kind = SIDE + self.sides[name] if name else 0
        return {"_kind": kind, self._column(name): row, "_key": key}

    def _column(self, name: str) -> str:
        return f"_out{self.sides[name]}" if name else "_out"

    def _calls(self, key: dict[str, Any], rows: pa.Table, state: KeyState, timers: Timers) -> Iterator[OutputRow]:
        """Call the function for everything that is due, in order: timers of the clock, rows and event-time timers,
        and timers that are due after that."""
        no_rows, calls = rows.slice(0, 0), 0
        clock_timers = []
        if not self.waits:
            for timer in timers.pending():
                if timer.kind == "clock" and timer.at <= timers.now:
                    clock_timers.append(timer)
        for time in sorted({timer.at for timer in clock_timers}):  # timers that these calls set wait for a checkpoint
            still_set = []
            for timer in clock_timers:
                if timer.at == time and timers._set.get((timer.kind, timer.name)) == timer:
                    still_set.append(timer)
            timers._fire(still_set)
            if timers.fired:
                yield from self._call(key, no_rows, state, timers)
        for time_of_rows, part in _moments(rows):
            while due := timers._due("event", time_of_rows):
                calls = self._count(calls)
                timers._fire(due)
                yield from self._call(key, no_rows, state, timers)
            timers._fire([])
            yield from self._call(key, part, state, timers)
        limit = timers.watermark
        if self.ends:
            limit = self.reached and _utc(self.reached)
        while due := timers._due("event", limit):
            calls = self._count(calls)
            timers._fire(due)
            yield from self._call(key, no_rows, state, timers)
        if self.ends:
            yield from self._last_calls(key, no_rows, state, timers)

    def _last_calls(
        self, key: dict[str, Any], no_rows: pa.Table, state: KeyState, timers: Timers
    ) -> Iterator[OutputRow]:
        """Fire each timer one last time at the end of event time. One that sets itself again would never stop."""
        fired: set[str] = set()
        last = datetime.max.replace(tzinfo=UTC) if self.alone else timers.watermark
        while due := timers._due("event", last):
            timers._fire(due)
            timers.fired = [timer for timer in due if timer.name not in fired and len(fired) < MAX_CALLS]
            for timer in timers.fired:
                fired.add(timer.name)
            if timers.fired:
                yield from self._call(key, no_rows, state, timers)

    def _count(self, calls: int) -> int:
        """Return the number of calls for timers with one more. Raise Invalid if they are too many."""
        if calls == MAX_CALLS:
            raise Invalid(
                f"process {self.uid!r} has set {calls} timers in a row that were due at once",
                help="set timers later than timers.watermark",
            )
        return calls + 1

    def _call(self, key: dict[str, Any], rows: pa.Table, state: KeyState, timers: Timers) -> list[OutputRow]:
        """Call the function, and return its rows as dicts, each with the stream that it is for."""
        tables = [rows]
        if self.streams:
            tables = []
            for number, columns in enumerate(self.streams):
                tables.append(_rows_of_stream(rows, number, columns))
        lookup_tables = [] if self.table is None else [self.table]
        for name in self.maps:
            getattr(state, name)._choose_entries(tables)
        # The key is copied, because the function may change it.
        yielded = self.function(copy.deepcopy(key), *tables, state, timers, *lookup_tables)
        if yielded is None:
            return []
        if hasattr(yielded, "schema"):
            self._refuse_unknown(yielded.schema.names)
        outputs = []
        for item in yielded.to_pylist() if hasattr(yielded, "to_pylist") else yielded:
            name, row = "", item
            if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
                name, row = item
            if name and name not in self.sides:
                raise Invalid(
                    f"process {self.uid!r} gave a row for an output that it does not have; its outputs are "
                    f"{', '.join(self.sides) or 'none'}",
                    quoted=f"for {name!r}",
                    help="correct the name in the function, or declare the output, too",
                )
            if not isinstance(row, dict):
                raise Invalid(
                    f"process {self.uid!r} gave a {type(row).__name__}, not a row",
                    help="yield dicts, one per row, or return an Arrow table",
                )
            self._refuse_unknown(row, name)
            outputs.append((name, {column: _copy_value(value) for column, value in row.items()}))
        return outputs

    def _refuse_unknown(self, names: Iterable[str], output: str = "") -> None:
        field_names = self.schema.field(self._column(output)).type.names
        if unknown := sorted(set(names).difference(field_names)):
            raise Invalid(
                f"process {self.uid!r} gave columns that its output {f'{output!r} ' if output else ''}does not have: "
                f"{unknown}; it has {', '.join(field_names)}",
                help="correct the names in the function, or declare the columns, too",
            )


def _rows_of_stream(rows: pa.Table, number: int, columns: Mapping[str, str]) -> pa.Table:
    """Return the rows of one of two streams, with that stream's columns."""
    import pyarrow.compute as pc

    stream_rows = rows.filter(pc.equal(rows[STREAM], number))
    return stream_rows.select(list(columns.values())).rename_columns(list(columns))


def _is_empty(values: Mapping[str, Any]) -> bool:
    """Return whether all values are empty, so that nothing need be stored."""
    return all(value in (None, [], {}) for value in values.values())


def _copy_value(value: Any) -> Any:
    """Return a copy of the value, because the function may later change an object that it has yielded."""
    if isinstance(value, list | dict):
        return copy.deepcopy(value)
    return value


def _moments(rows: pa.Table) -> Iterator[tuple[datetime | None, pa.Table]]:
    """Yield sorted rows in groups with the same time. Rows without a time are one group."""
    times = rows[AT].to_pylist()
    rows = rows.drop_columns([AT, ROW])
    start = 0
    for end in range(1, len(times) + 1):
        if end == len(times) or times[end] != times[start]:
            micros = times[start]
            time = None if micros is None else EPOCH + timedelta(microseconds=micros)
            yield time, rows.slice(start, end - start)
            start = end


def _utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    return time.astimezone(UTC)


def _python(value: Any, kind: Any) -> Any:
    """Return a field of the state for the function: maps as dicts, and never None where a list or dict is declared."""
    import pyarrow as pa

    if pa.types.is_map(kind):
        return dict(value or ())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return list(value or ())
    return value


def _arrow(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in the form that Arrow expects, with maps as lists of pairs."""
    converted = {}
    for name, value in values.items():
        converted[name] = list(value.items()) if isinstance(value, dict) else value
    return converted
