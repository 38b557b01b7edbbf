"""The code in Spark's Python workers for `process`: calls the user's function per key, and returns what it changed."""

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
"""Columns added to the rows' own: their time, if they come in order, and what distinguishes them."""
STREAM = "_stream"
"""Of which stream a row is, if there are two: 0 or 1."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_CALLS = 10_000
SIDE = 3
"""The kind of a record with a row for the first side output; the next ones count on."""


Given = tuple[str, dict[str, Any]]
"""The stream that a row is for, "" for its own, and the row."""


class KeyState:
    """The state of one key: the declared fields as attributes. At first None, or an empty list or dict. Maps and lists
    of any size are attributes, too."""

    def __init__(self, values: Mapping[str, Any], maps: Mapping[str, Entries | StoredList] | None = None) -> None:
        object.__setattr__(self, "_values", dict(values))
        object.__setattr__(self, "_maps", dict(maps or {}))

    def __getattr__(self, name: str) -> Any:
        values, maps = object.__getattribute__(self, "_values"), object.__getattribute__(self, "_maps")
        if name in maps:
            return maps[name]
        if name not in values and name.startswith("__"):  # Python itself asks whether there is such a method
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
                f"state.{name} is a map, and cannot be set as a whole",
                help=f"set the fields of its entries: state.{name}[…].n = 1",
            )
        if isinstance(before, StoredList):
            raise Invalid(
                f"state.{name} is a list, and cannot be set as a whole",
                help=f"call state.{name}.append(…), or state.{name}.clear()",
            )
        self._values[name] = value

    def clear(self) -> None:
        """Forget the key's fields. Entries of its maps, and its lists, are forgotten each by its own `clear()`."""
        for name, value in self._values.items():
            self._values[name] = type(value)() if isinstance(value, list | dict) else None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields."""
        return dict(self._values)


class Entries:
    """A map of one key: the entries that the rows of a call name, each with its declared fields as attributes."""

    def __init__(self, name: str, by: str, empty: Mapping[str, Any], stored: Mapping[Any, Mapping[str, Any]]) -> None:
        self._name, self._by, self._empty, self._stored = name, by, dict(empty), stored
        self._touched: dict[Any, KeyState] = {}
        self._named: frozenset[Any] = frozenset()

    def __getitem__(self, entry: Any) -> KeyState:
        if entry not in self._named:
            raise KeyError(
                f"state.{self._name}[{entry!r}]: no row of this call has {entry!r} in {self._by!r}; a call has the "
                "entries that its own rows name"
            )
        if entry not in self._touched:
            self._touched[entry] = KeyState(copy.deepcopy(dict(self._stored.get(entry, self._empty))))
        return self._touched[entry]

    def _choose_entries(self, tables: Iterable[pa.Table]) -> None:
        """Let a call have what its rows name."""
        columns = [table[self._by] for table in tables if self._by in table.column_names]
        self._named = frozenset(value for column in columns for value in column.to_pylist())

    def _changed(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield the entries that are not as they were stored."""
        for entry, state in self._touched.items():
            if state.as_dict() != dict(self._stored.get(entry, self._empty)):
                yield entry, state.as_dict()


@dataclass(frozen=True)
class MapFields:
    """A map as it is declared, and as it is found in a key's columns and records."""

    entry_column: str
    """The column of rows that names an entry."""
    fields: list[str]
    column: str
    kind: int

    def entries(self, name: str, held: pa.Table) -> Entries:
        """Return a key's entries. held: its row."""
        struct = held.schema.field(self.column).type.value_type
        stored = {}
        for entry in held[self.column].to_pylist()[0] or ():
            stored[entry["_entry"]] = {each: _python(entry[each], struct.field(each).type) for each in self.fields}
        return Entries(
            name, self.entry_column, {each: _python(None, struct.field(each).type) for each in self.fields}, stored
        )


@dataclass(frozen=True)
class ListFields:
    """A list as it is declared, and as it is found in a key's columns and records."""

    fields: list[str]
    column: str
    """Of records with an entry; of a key, with all entries, if workers cannot read them from the files."""
    ends: str
    kinds: tuple[int, int, int]
    """Of records with an entry, with places that are cleared, and with ends."""
    files: EntryFiles | None

    def of(self, name: str, held: pa.Table, group: int) -> StoredList:
        """Return a key's list. held: its row. group: its key group."""
        ends = held[self.ends].to_pylist()[0] or {}
        return StoredList(
            name, self.fields, lambda: self._stored(held, group), ends.get(FIRST) or 0, ends.get(NEXT) or 0
        )

    def _stored(self, held: pa.Table, group: int) -> Iterator[dict[str, Any]]:
        struct = held.schema.field(self.column).type.value_type
        if self.files is not None:
            entries: Iterable[dict[str, Any]] = self.files.entries(held, group, self.fields)
        else:
            entries = sorted(held[self.column].to_pylist()[0] or (), key=lambda entry: entry[PLACE])
        for entry in entries:
            yield {name: _python(entry[name], struct.field(name).type) for name in self.fields}

    def records(self, changed: StoredList) -> Iterator[dict[str, Any]]:
        """Yield the records of what has changed, without the key."""
        entry_kind, cleared_kind, ends_kind = self.kinds
        if (removed := changed._removed()) is not None:
            yield {"_kind": cleared_kind, self.ends: {FIRST: removed[0], NEXT: removed[1]}}
        for place, entry in changed._appended():
            yield {"_kind": entry_kind, self.column: {PLACE: place, **_arrow(entry)}, "_deleted": False}
        if (ends := changed._ends()) is not None:
            are = {FIRST: ends[0], NEXT: ends[1]}
            yield {"_kind": ends_kind, self.ends: are, "_deleted": ends[0] == ends[1]}


@dataclass(frozen=True)
class Timer:
    """A moment at which the key's function is called even without rows."""

    kind: str
    """event or clock."""
    name: str
    at: datetime


class Timers:
    """The key's timers and the current time. A timer fires once; setting one of the same name moves it."""

    def __init__(
        self, timers: Iterable[Timer], watermark: datetime | None, now: datetime, *, alone: bool = False
    ) -> None:
        self.watermark = watermark
        """Event time is complete up to here; None: not known."""
        self.now = now
        """The checkpoint's own clock."""
        self.fired: list[Timer] = []
        """The timers that this call is for, of one moment. They are removed now, unless they are set again."""
        self._set = {(t.kind, t.name): t for t in timers}
        self._alone = alone
        """No checkpoint comes after this one that knows of it."""

    def event(self, at: datetime, name: str = "") -> None:
        """Call again once the watermark reaches `at`: in this checkpoint still, if it already has."""
        self._set["event", name] = Timer("event", name, _utc(at))

    def clock(self, at: datetime, name: str = "") -> None:
        """Call again in the first checkpoint after this one that is planned at `at` or later."""
        if self._alone:
            raise Invalid(
                "timers.clock asks for a call in a later checkpoint, and in a pipeline that reads by data interval no "
                "later one knows of it",
                help="set timers.event, which fires at the latest when the interval is over",
            )
        self._set["clock", name] = Timer("clock", name, _utc(at))

    def cancel(self, name: str = "") -> None:
        """Forget the timers of this name."""
        for kind in ("event", "clock"):
            self._set.pop((kind, name), None)

    def pending(self) -> list[Timer]:
        """Return the timers that have not fired, earliest first."""
        return sorted(self._set.values(), key=lambda timer: (timer.at, timer.kind, timer.name))

    def _due(self, kind: str, limit: datetime | None) -> list[Timer]:
        """Return the timers of the first moment up to the limit."""
        due = [t for t in self.pending() if t.kind == kind and limit is not None and t.at <= limit]
        return [t for t in due if t.at == due[0].at]

    def _fire(self, due: list[Timer]) -> None:
        for timer in due:
            del self._set[timer.kind, timer.name]
        self.fired = due


@dataclass
class ProcessKernel:
    """Called by Spark for each key: its new rows (left), its state and timers (right)."""

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
    """No timer is due by the clock."""
    reached: datetime | None = None
    """The watermark from rows alone, if event time `ends`."""
    ends: bool = False
    alone: bool = False
    """Nothing is left for a later checkpoint."""
    sides: Mapping[str, int] = field(default_factory=dict)
    """The side outputs, numbered."""
    streams: Sequence[Mapping[str, str]] = ()
    """If it takes two streams: the columns of each, with their names in `rows`, where `STREAM` tells them apart."""
    table: pa.Table | None = None
    """The lookup table."""
    maps: Mapping[str, MapFields] = field(default_factory=dict)
    lists: Mapping[str, ListFields] = field(default_factory=dict)
    group: str = ""
    """If there are lists, the column with the key's group."""
    separate_fields: Mapping[str, int] = field(default_factory=dict)
    """Fields of the state that are kept on their own, each with the kind of its records."""

    def __call__(self, rows: pa.Table, state_rows: pa.Table) -> pa.Table:
        import pyarrow as pa

        rows, state_rows = rows.rename_columns(self.rows), state_rows.rename_columns(self.stored_columns)
        before = state_rows.to_pylist()[0]
        key = {name: before[name] for name in self.keys}
        values = {name: _python(before[name], state_rows.schema.field(name).type) for name in self.values}
        maps = {name: declared.entries(name, state_rows) for name, declared in self.maps.items()}
        lists = {name: declared.of(name, state_rows, before[self.group]) for name, declared in self.lists.items()}
        state = KeyState(copy.deepcopy(values), {**maps, **lists})
        pending = [Timer(t["kind"], t["name"], _utc(t["at"])) for t in before["_timers"] or ()]
        timers = Timers(pending, self.watermark and _utc(self.watermark), _utc(self.clock), alone=self.alone)
        rows = rows.sort_by([(name, "ascending") for name in (AT, *self.order_by, ROW)])
        outputs = self._calls(key, rows, state, timers)
        records = [self._record(name, out, key) for name, out in outputs]
        records += [{"_key": key, **record} for record in self._changed(values, state.as_dict())]
        for name, declared in self.maps.items():
            for entry, fields in maps[name]._changed():
                row = {"_entry": entry, **_arrow(fields)}
                records.append(
                    {"_kind": declared.kind, "_key": key, declared.column: row, "_deleted": _is_empty(fields)}
                )
        for name, of_key in lists.items():
            records += [{"_key": key, **record} for record in self.lists[name].records(of_key)]
        if timers.pending() != sorted(pending, key=lambda timer: (timer.at, timer.kind, timer.name)):
            still_set = [{"kind": t.kind, "name": t.name, "at": t.at} for t in timers.pending()]
            records.append({"_kind": 2, "_key": key, "_timers": still_set, "_deleted": not still_set})
        return pa.Table.from_pylist(records, schema=self.schema)

    def _changed(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the records of fields that have changed: of those that are kept on their own, and of all others."""
        kinds = {1: [name for name in now if name not in self.separate_fields]}
        for kind, names in (kinds | {kind: [name] for name, kind in self.separate_fields.items()}).items():
            own = {name: now[name] for name in names}
            if own != {name: before[name] for name in names}:
                yield {"_kind": kind, "_state": _arrow(own), "_deleted": _is_empty(own)}

    def _record(self, name: str, out: dict[str, Any], key: dict[str, Any]) -> dict[str, Any]:
        """Return the record of a row for a stream: its own is ""."""
        kind, column = (SIDE + self.sides[name], self._column(name)) if name else (0, "_out")
        return {"_kind": kind, column: out, "_key": key}

    def _column(self, name: str) -> str:
        return f"_out{self.sides[name]}" if name else "_out"

    def _calls(self, key: dict[str, Any], rows: pa.Table, state: KeyState, timers: Timers) -> Iterator[Given]:
        """Call the function for everything that is due, in order: timers of the clock; rows and event-time timers;
        timers that these make due."""
        none, calls = rows.slice(0, 0), 0
        clock = [timer for timer in timers.pending() if timer.kind == "clock" and timer.at <= timers.now]
        clock = [] if self.waits else clock
        for position in sorted({timer.at for timer in clock}):  # what these set anew is for the next checkpoint
            timers._fire(
                [
                    timer
                    for timer in clock
                    if timer.at == position and timers._set.get((timer.kind, timer.name)) == timer
                ]
            )
            if timers.fired:
                yield from self._called(key, none, state, timers)
        for moment, part in _moments(rows):
            while due := timers._due("event", moment):
                calls = self._count(calls, due)
                timers._fire(due)
                yield from self._called(key, none, state, timers)
            timers._fire([])
            yield from self._called(key, part, state, timers)
        limit = timers.watermark if not self.ends else self.reached and _utc(self.reached)
        while due := timers._due("event", limit):
            calls = self._count(calls, due)
            timers._fire(due)
            yield from self._called(key, none, state, timers)
        if self.ends:
            yield from self._last_calls(key, none, state, timers)

    def _last_calls(self, key: dict[str, Any], none: pa.Table, state: KeyState, timers: Timers) -> Iterator[Given]:
        """Fire each timer once more at the end of event time. One that renews itself would otherwise never stop."""
        fired: set[str] = set()
        last = datetime.max.replace(tzinfo=UTC) if self.alone else timers.watermark
        while due := timers._due("event", last):
            timers._fire(due)
            timers.fired = [timer for timer in due if timer.name not in fired and len(fired) < MAX_CALLS]
            fired |= {timer.name for timer in timers.fired}
            if timers.fired:
                yield from self._called(key, none, state, timers)

    def _count(self, calls: int, due: list[Timer]) -> int:
        if calls == MAX_CALLS:
            raise Invalid(
                f"process {self.uid!r} has set {calls} timers in a row that were due at once",
                help="set timers later than timers.watermark",
            )
        return calls + 1

    def _called(self, key: dict[str, Any], rows: pa.Table, state: KeyState, timers: Timers) -> list[Given]:
        """Return the rows that the function yields, as dicts, each with the stream that it is for."""
        tables = [_of_stream(rows, place, columns) for place, columns in enumerate(self.streams)] or [rows]
        more = [] if self.table is None else [self.table]
        for name in self.maps:
            getattr(state, name)._choose_entries(tables)
        yielded = self.function(copy.deepcopy(key), *tables, state, timers, *more)  # theirs to do with as they like
        if yielded is None:
            return []
        if hasattr(yielded, "schema"):
            self._refuse_unknown(yielded.schema.names)
        outputs = []
        for given in yielded.to_pylist() if hasattr(yielded, "to_pylist") else yielded:
            is_named = isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)
            name, row = given if is_named else ("", given)
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
                    help="give dicts, one per row, or an Arrow table",
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


def _of_stream(rows: pa.Table, place: int, columns: Mapping[str, str]) -> pa.Table:
    """Return the rows of one of two streams, in that stream's own columns."""
    import pyarrow.compute as pc

    own = rows.filter(pc.equal(rows[STREAM], place))
    return own.select(list(columns.values())).rename_columns(list(columns))


def _is_empty(values: Mapping[str, Any]) -> bool:
    """Return whether nothing is left to be remembered."""
    return all(value in (None, [], {}) for value in values.values())


def _copy_value(value: Any) -> Any:
    """Return a copy of the value: the function may change later what it has yielded."""
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def _moments(rows: pa.Table) -> Iterator[tuple[datetime | None, pa.Table]]:
    """Yield rows that are sorted by time, moment by moment. Rows without a time are one moment."""
    times = rows[AT].to_pylist()
    rows = rows.drop_columns([AT, ROW])
    begin = 0
    for end in range(1, len(times) + 1):
        if end == len(times) or times[end] != times[begin]:
            time = times[begin]
            yield None if time is None else EPOCH + timedelta(microseconds=time), rows.slice(begin, end - begin)
            begin = end


def _utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _python(value: Any, kind: Any) -> Any:
    """Return a field of the state for the function: maps as dicts, and never None where a list or dict is declared."""
    import pyarrow as pa

    if pa.types.is_map(kind):
        return dict(value or ())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return list(value or ())
    return value


def _arrow(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value.items()) if isinstance(value, dict) else value for name, value in values.items()}
