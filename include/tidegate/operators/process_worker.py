"""What runs in Spark's Python workers for `process`: calls the user's function per key, and tells what it changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeyState", "Timer", "Timers", "Work"]


class KeyState:
    """What is remembered of one key: the declared fields as attributes. None, or an empty list or dict, at first."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_values", dict(values))

    def __getattr__(self, name: str) -> Any:
        values = object.__getattribute__(self, "_values")
        if name not in values:
            raise AttributeError(f"the state has no field {name!r}; it was declared with {', '.join(values)}")
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self.__getattr__(name)
        self._values[name] = value

    def clear(self) -> None:
        """Forget the key."""
        for name, value in self._values.items():
            self._values[name] = type(value)() if isinstance(value, list | dict) else None

    def as_dict(self) -> dict[str, Any]:
        """All fields."""
        return dict(self._values)


@dataclass(frozen=True)
class Timer:
    """A moment at which the key's function is called though there may be no rows."""

    kind: str
    """event or clock."""
    name: str
    at: datetime


class Timers:
    """The key's timers, and where time stands. A timer fires once; setting one of the same name moves it."""

    def __init__(self, timers: Iterable[Timer], watermark: datetime | None, now: datetime) -> None:
        everything = list(timers)
        self.watermark = watermark
        """Up to here event time is complete; None: not known."""
        self.now = now
        """The checkpoint's own clock."""
        self.fired = [timer for timer in everything if self._due(timer)]
        """Those that are due, earliest first. They are gone now, unless they are set again."""
        self.fired.sort(key=lambda timer: (timer.at, timer.kind, timer.name))
        self._set = {(t.kind, t.name): t for t in everything if not self._due(t)}

    def _due(self, timer: Timer) -> bool:
        limit = self.watermark if timer.kind == "event" else self.now
        return limit is not None and timer.at <= limit

    def event(self, at: datetime, name: str = "") -> None:
        """Call again once the watermark has come to `at`."""
        self._set["event", name] = Timer("event", name, _utc(at))

    def clock(self, at: datetime, name: str = "") -> None:
        """Call again in the first checkpoint that is planned at `at` or later."""
        self._set["clock", name] = Timer("clock", name, _utc(at))

    def cancel(self, name: str = "") -> None:
        """Forget the timers of this name."""
        for kind in ("event", "clock"):
            self._set.pop((kind, name), None)

    def pending(self) -> list[Timer]:
        """Those that have not fired."""
        return sorted(self._set.values(), key=lambda timer: (timer.at, timer.kind, timer.name))


@dataclass
class Work:
    """Called by Spark for each key: its new rows (left), and its state and timers (right)."""

    uid: str
    function: Callable[..., Any]
    schema: pa.Schema
    keys: list[str]
    values: list[str]
    order_by: list[str]
    clock: datetime
    watermark: datetime | None

    def __call__(self, rows: pa.Table, held: pa.Table) -> pa.Table:
        import pyarrow as pa

        before = held.to_pylist()[0]
        key = {name: before[name] for name in self.keys}
        values = {name: _python(before[name], held.schema.field(name).type) for name in self.values}
        state = KeyState(copy.deepcopy(values))
        known = [Timer(t["kind"], t["name"], _utc(t["at"])) for t in before["_timers"] or ()]
        timers = Timers(known, self.watermark and _utc(self.watermark), _utc(self.clock))
        if self.order_by:
            rows = rows.sort_by([(name, "ascending") for name in self.order_by])
        made = [{"_kind": 0, "_out": out, "_key": key} for out in self._called(key, rows, state, timers)]
        if state.as_dict() != values:
            gone = not any(value not in (None, [], {}) for value in state.as_dict().values())
            made.append({"_kind": 1, "_key": key, "_state": _arrow(state.as_dict()), "_deleted": gone})
        if timers.pending() != sorted(known, key=lambda timer: (timer.at, timer.kind, timer.name)):
            left = [{"kind": t.kind, "name": t.name, "at": t.at} for t in timers.pending()]
            made.append({"_kind": 2, "_key": key, "_timers": left, "_deleted": not left})
        return pa.Table.from_pylist(made, schema=self.schema)

    def _called(self, key: dict[str, Any], rows: pa.Table, state: KeyState, timers: Timers) -> list[dict[str, Any]]:
        """The rows that the function gives, as dicts."""
        given = self.function(key, rows, state, timers)
        if given is None:
            return []
        if hasattr(given, "to_pylist"):
            return list(given.to_pylist())
        found = list(given)
        for row in found:
            if not isinstance(row, dict):
                raise TypeError(
                    f"process {self.uid!r} gave a {type(row).__name__}: give dicts, one per row, or an Arrow table"
                )
            if unknown := set(row) - set(self.schema.field("_out").type.names):
                raise ValueError(f"process {self.uid!r} gave columns that its output does not have: {sorted(unknown)}")
        return found


def _utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _python(value: Any, kind: Any) -> Any:
    """A field of the state for the function: maps as dicts, and never None where a list or dict can be."""
    import pyarrow as pa

    if pa.types.is_map(kind):
        return dict(value or ())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return list(value or ())
    return value


def _arrow(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value.items()) if isinstance(value, dict) else value for name, value in values.items()}
