"""What tables, states and quarantines hold, read by delta-rs and Arrow: nothing of tidegate compares or folds here.

Where files lie, and which of a state's count, is what records say; what is in them is read by others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from deltalake import DeltaTable

from tidegate.backfill import OpenBackfill
from tidegate.coordinator import Coordinator
from tidegate.gates.quarantine import columns as q
from tidegate.ledger import Ledger
from tidegate.records.records import Ack, Json
from tidegate.state import StateTable
from tidegate.state.table import expired_name

__all__ = ["Held", "contents", "held_by_line", "held_by_pipeline", "plain", "quarantine_rows"]

Rows = Counter[Any]
NAMES = (q.ID, q.CHECKPOINT, q.SETTLED_IN, q.SETTLED_BY)
"""By what people and records name a row of quarantine."""


class Held(msgspec.Struct):
    """Everything that a pipeline has, or would have."""

    tables: dict[str, Rows] = {}
    states: dict[str, Rows] = {}
    quarantines: dict[str, Rows] = {}
    memory: dict[str, Any] = {}
    """The small state of operators, sources and gates."""

    def sizes(self) -> tuple[int, int, int, int]:
        """Count tables, states, quarantines, and the rows of all."""
        parts = (self.tables, self.states, self.quarantines)
        rows = sum(counted.total() for part in parts for counted in part.values())
        return len(self.tables), len(self.states), len(self.quarantines), rows

    def named(self) -> dict[str, Any]:
        """Return it by name: a table's, `state.` or `quarantine.` and a name, `memory.` and a key."""
        found: dict[str, Any] = dict(self.tables)
        found |= {f"state.{name}": rows for name, rows in self.states.items()}
        found |= {f"quarantine.{name}": rows for name, rows in self.quarantines.items()}
        return found | {f"memory.{name}": value for name, value in self.memory.items()}


def plain(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Return rows as a multiset. A column that is not there is one without a value."""
    return Counter(
        tuple(sorted((name, _plain(value)) for name, value in row.items() if value is not None)) for row in rows
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return tuple(sorted((name, _plain(each)) for name, each in value.items() if each is not None))
    return value


def delta_rows(path: str, version: int | None = None) -> list[Json]:
    """Return the rows of a Delta table; none if there is no table."""
    if not (Path(path) / "_delta_log").exists():
        return []
    return list(DeltaTable(path, version=version).to_pyarrow_table().to_pylist())


def held_by_pipeline(live: Coordinator, *, by_name: bool = False) -> Held:
    """Return what the pipeline has. by_name: with what names rows of quarantine."""
    ledger, found = live.ledger, Held()
    for name, sinking in live.graph.sinks.items():
        if sinking.sink.shadow("") is not None:
            found.tables[name] = plain(delta_rows(_table(live, name)))
        else:
            found.tables[name] = _exported(Path(sinking.sink.target(live.place)))
    for gated in live.graph.gates:
        if gated.quarantine:
            found.quarantines[gated.name] = contents(quarantine_rows(ledger, gated.name), by_name=by_name)
    _add_states(found, ledger)
    return found


def held_by_line(line: OpenBackfill) -> Held:
    """Return what the pipeline would have, but for rows of quarantine: what was set aside since the line's origin."""
    found, origin = Held(), line.record.origin
    published = line.live.ledger.published(origin) if origin else None
    then = published.tables if published is not None else {}
    for name, sinking in line.backfill.graph.sinks.items():
        rows = delta_rows(_url(sinking.sink.delta_table(line.backfill.context(name))))  # type: ignore[attr-defined]
        shadow = Path(_url(sinking.sink.delta_table(line.backfill.context(name))))  # type: ignore[attr-defined]
        rewrites = getattr(sinking.sink, "rewrites", False)
        if name in then and not (rewrites and (shadow / "_delta_log").exists()):
            rows += delta_rows(_table(line.live, name), then[name].version)
        found.tables[name] = plain(rows)
    for gated in line.live.graph.gates:
        if gated.quarantine:
            found.quarantines[gated.name] = contents(quarantine_rows(line.backfill.ledger, gated.name))
    _add_states(found, line.backfill.ledger)
    return found


def quarantine_rows(ledger: Ledger, gate: str) -> list[Json]:
    """Return the rows of a quarantine as they are stored."""
    return delta_rows(f"{_path(ledger.home)}/quarantine/{gate}")


def contents(rows: Iterable[Json], *, by_name: bool = False) -> Rows:
    """Return rows of a quarantine as a multiset, by default without what names them."""
    return plain(
        {name: value for name, value in row.items() if by_name or name not in NAMES}
        | {q.RULES: sorted(row[q.RULES] or ())}
        for row in rows
    )


def _add_states(found: Held, ledger: Ledger) -> None:
    """Add the states of the last completed checkpoint, by the files that its acks name; without what has expired."""
    for ack in _acks(ledger):
        found.memory |= ack.memory
        for name, payload in ack.states.items():
            table = msgspec.convert(ledger.unpack(payload), StateTable)
            operator, _, part = name.removeprefix("state.").partition(".")
            expired = ack.memory.get(expired_name(operator), {}).get(part)
            rows = _state_rows(ledger, name, table, expired)
            mark = ack.memory.get(f"{operator}.watermark", {}).get("at")
            if mark is not None:
                rows = [row for row in rows if not _is_closed(row, datetime.fromisoformat(mark))]
            found.states[name.removeprefix("state.")] = plain(rows)


def _is_closed(row: Json, watermark: datetime) -> bool:
    """Whether it is a window that has ended: when its row goes depends on which files are merged when."""
    end = row.get("window_end")
    return isinstance(end, datetime) and end <= watermark


def _acks(ledger: Ledger) -> list[Ack]:
    entry = ledger.view().last_completed
    if entry is None or entry.manifest is None:
        return []
    return [ledger.chosen_ack(handle, job) for job, handle in entry.manifest.jobs.items()]


def _state_rows(ledger: Ledger, name: str, table: StateTable, expired: int | None) -> list[Json]:
    import pyarrow.parquet

    home = f"{_path(ledger.home)}/state/{name.removeprefix('state.')}"
    files = [pyarrow.parquet.ParquetFile(f"{home}/{each.file.path}") for each in table.files]
    rows = [row for file in files for row in file.read().to_pylist()]
    newest: dict[tuple[Any, ...], Json] = {}
    for row in sorted(rows, key=lambda row: row["_checkpoint"]):
        newest[tuple(_plain(row[key]) for key in table.keys)] = row
    hidden = ("_checkpoint", "_group", "_deleted", "_since")  # numbers of checkpoints, and whether a row is gone
    return [
        {name: value for name, value in row.items() if name not in hidden}
        for row in newest.values()
        if not row["_deleted"] and not (expired is not None and (row.get("_touched") or expired + 1) <= expired)
    ]


def _exported(folder: Path) -> Rows:
    lines = [line for path in folder.glob("checkpoint=*/**/*.json") for line in path.open()]
    return Counter(line.strip() for line in lines)


def _table(live: Coordinator, name: str) -> str:
    return _url(live.graph.sinks[name].sink.delta_table(live.context(name)))  # type: ignore[attr-defined]


def _url(location: Any) -> str:
    return _path(location.url)


def _path(url: str) -> str:
    return url.removeprefix("file://")
