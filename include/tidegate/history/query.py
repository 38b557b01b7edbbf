"""Reading the history: settled checkpoints from its table, later ones from the ledger, as one list.

    history = CheckpointHistory(ledger, options)
    history.page(HistoryFilter(states=("aborted",), sort="seconds"))    # a page of rows, without details
    history.one(17)                                                     # one checkpoint with details, however old
    history.counts(), history.summary(), history.points(...)            # figures over many

If the history's table is lost or broken, what the ledger has is shown without it, and `problem` says why.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.config.settings import masked
from tidegate.delta import Journal
from tidegate.errors import TidegateError
from tidegate.history.details import CheckpointDetails
from tidegate.history.row import HistoryRow
from tidegate.history.selection import MAX_LENGTH, REPLACED, SORTS, UNDONE, HistoryFilter, HistoryRows
from tidegate.history.table import COLUMNS, DETAILS, journal_of, live_row, rows_table
from tidegate.history.view import CheckpointView, ListedCheckpoint
from tidegate.history.without_values import details_without_rows
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry, rolled_back_by
from tidegate.records import typed
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MAX_LENGTH", "SORTS", "CheckpointHistory", "HistoryFilter", "HistoryPage", "view_of"]

_LIVE = 1_000
"""At most this many entries are read from the ledger. It has more only if the history is lost, or was never written."""


@dataclass(frozen=True)
class HistoryPage:
    """Some of the rows, and how many there are in all."""

    rows: list[ListedCheckpoint]
    total: int


class CheckpointHistory:
    """One pipeline's history as of one moment: make a new one to see later checkpoints."""

    def __init__(self, ledger: Ledger, options: Mapping[str, str], *, with_values: bool = True) -> None:
        """with_values: whoever asks may read rows. Texts of older versions, which may quote some, are for them only."""
        self.ledger = ledger
        self.with_values = with_values
        self.journal: Journal = journal_of(ledger, options)
        self.problem = ""
        """Why the history's table is left out; empty: it is not."""

    @functools.cached_property
    def rows(self) -> HistoryRows:
        """All rows: the very object of whoever has looked before, if nothing has changed since."""
        key = os.getpid(), self.journal.location.url  # nothing is shared across forks
        lock = _locks.setdefault(key, threading.Lock())
        with lock:
            shelf = self._shelf(_known.get(key))
        live = list(self._live(shelf.last))
        with lock:
            known = _known.get(key)
            if known is None or known.shelf is not shelf or known.live != live:
                known = _Found(shelf, live, HistoryRows(_joined(shelf.rows, rows_table(live, COLUMNS))))
                _keep(key, known)
        return known.all if self.with_values else known.all.without_texts()

    def page(self, criteria: HistoryFilter) -> HistoryPage:
        """The rows of one page, without details."""
        rows, total = self.rows.page(criteria)
        return HistoryPage([_listed(row) for row in rows], total)

    def checkpoints_after(self, id: int, *states: str) -> list[int]:
        """All checkpoints after `id` in these states, newest first."""
        return self.rows.ids(*states, after=id)

    def swaps_after(self, id: int) -> list[ListedCheckpoint]:
        """All swaps after `id` that count, newest first."""
        found = map(self.rows.find, self.checkpoints_after(id, "swap"))
        return [_listed(row) for row in found if row is not None]

    def find(self, id: int) -> CheckpointView | None:
        """One checkpoint with its details; None: there never was one, as far as anybody knows."""
        row = self.rows.find(id)
        if row is None:
            return None
        columns = {name: _value(value) for name, value in row.items()}
        details = self._details(id)
        if not self.with_values:
            details = details_without_rows(details, quotes_rows=row["quotes_rows"] is not False)
        return CheckpointView(**columns, details=details, records_retained=self.ledger.is_retained(id))

    def counts(self) -> dict[str, int]:
        """As Flink's overview counts."""
        return self.rows.counts()

    def newest(self, *states: str) -> CheckpointView | None:
        """The last checkpoint in one of these states."""
        last = self.rows.newest(*states)
        return self.find(last) if last is not None else None

    def last_completed(self) -> CheckpointView | None:
        """The last completed checkpoint whose input counts: with its rows, or with those of a backfill in their
        place."""
        return self.newest("completed", REPLACED)

    def neighbours(self, id: int) -> tuple[int | None, int | None]:
        """The ids before and after it; None: there is none."""
        return self.rows.neighbours(id)

    def summary(self, criteria: HistoryFilter | None = None) -> dict[str, dict[str, float] | None]:
        """Min, avg, percentiles from p50 to p99.9 and max of each measure, over completed checkpoints; None: never
        measured."""
        return self.rows.summary(criteria or HistoryFilter())

    def reasons(self, criteria: HistoryFilter | None = None) -> list[Json]:
        """The reasons of aborts, the most frequent first: how often each occurred, and the last checkpoint with it."""
        return self.rows.reasons(criteria or HistoryFilter())

    def rules(self, gate: str, limit: int = 50) -> list[Json]:
        """For each of the last `limit` checkpoints that the gate has judged, oldest first: how many rows it has judged,
        and how many have broken each rule."""
        ids = self.rows.last(["id"], limit)["id"].to_pylist()
        shelved = self.journal.read(["id", DETAILS], after=ids[0] - 1).to_pylist() if ids and not self.problem else []
        texts = {row["id"]: row[DETAILS] for row in shelved}
        found = []
        for id in ids:
            details = self._decoded(id, texts[id]) if id in texts else self._details(id)
            verdict = details.gates.get(gate)
            if verdict is not None:
                broken = {rule.rule: rule.rows for rule in verdict.broken}
                found.append({"id": id, "outcome": verdict.outcome, "rows": verdict.rows, "broken": broken})
        return found

    def points(self, names: Sequence[str], limit: int = 500) -> dict[str, list[Any]]:
        """Columns over the last `limit` checkpoints, oldest first: for plots."""
        rows = self.rows.last(["id", *names], limit)
        return {name: [_value(value) for value in rows[name].to_pylist()] for name in rows.column_names}

    # -- where rows come from --------------------------------------------------------------------------

    def _shelf(self, known: _Found | None) -> _Shelf:
        """The rows that the table holds. Rows never change: only what has come since others have looked is read."""
        older = known.shelf if known is not None else _nothing()
        try:
            snapshot = self.journal.opened()
            if snapshot is None:
                return _nothing()
            if snapshot.log_hash == older.version:
                return older
            last, after = self.journal.last(snapshot), older.last
            if not older.version or last < after:  # nobody has looked; or it was lost, and has begun anew
                older, after = _nothing(), 0
            rows = _joined(older.rows, self.journal.read(COLUMNS, after=after))
            # Others may have added more since it was opened, which has been read, too.
            highest = rows["id"][-1].as_py() if rows.num_rows else 0
            return _Shelf(snapshot.log_hash, max(last, highest), rows)
        except TidegateError as error:
            self.problem = error.what
            return _nothing()

    def _live(self, last: int) -> Iterator[HistoryRow]:
        for id in self.ledger.ids(after=last)[-_LIVE:]:
            entry = self.ledger.entry(id)
            if entry is not None:
                yield live_row(self.ledger, entry)

    def _details(self, id: int) -> CheckpointDetails:
        entry = self.ledger.entry(id)
        if entry is not None:
            return live_row(self.ledger, entry).details
        return self._decoded(id, self.rows.compute_once((DETAILS, id), lambda: self._written(id)))

    def _written(self, id: int) -> str:
        texts: list[str] = self.journal.read(["id", DETAILS], only=id)[DETAILS].to_pylist()
        return texts[0] if texts else "{}"

    def _decoded(self, id: int, text: str) -> CheckpointDetails:
        try:
            details = typed.decode(text, CheckpointDetails)
        except msgspec.DecodeError as error:
            self.problem = f"the details of checkpoint {id} cannot be read: {error}"
            return CheckpointDetails()
        return msgspec.structs.replace(details, config=masked(details.config))


# -- the table is read once per version ----------------------------------------------------------------

_Key = tuple[int, str]


@dataclass(frozen=True)
class _Shelf:
    """The rows of one version of the history's table."""

    version: str
    """The hash of its log; empty: there is no table, or it cannot be read."""
    last: int
    """Up to which id it has been written."""
    rows: pa.Table


@dataclass(frozen=True)
class _Found:
    """All rows as somebody has found them."""

    shelf: _Shelf
    live: list[HistoryRow]
    all: HistoryRows


_known: dict[_Key, _Found] = {}
_locks: dict[_Key, threading.Lock] = {}
_lock = threading.Lock()
_CAPACITY = 32


def _keep(key: _Key, known: _Found) -> None:
    with _lock:
        _known.pop(key, None)
        _known[key] = known
        while len(_known) > _CAPACITY:
            del _known[next(iter(_known))]


@functools.cache
def _nothing() -> _Shelf:
    return _Shelf("", 0, rows_table([], COLUMNS))


def _joined(first: pa.Table, second: pa.Table) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([first, second]).combine_chunks() if second.num_rows else first


# -- rows ----------------------------------------------------------------------------------------------


def view_of(ledger: Ledger, entry: Entry, *, sizes: bool = True) -> CheckpointView:
    """The view of an entry, as its records are now; without `sizes`, without those of states and rows in flight."""
    row = live_row(ledger, entry, sizes=sizes)
    undone_by, replaced_by = _undone(ledger, entry.id) if entry.completed else (None, None)
    undone = UNDONE if replaced_by is None else REPLACED
    return CheckpointView(
        **msgspec.structs.asdict(row),
        state=undone if undone_by is not None else row.outcome,
        undone_by=undone_by,
        replaced_by=replaced_by,
        records_retained=True,
    )


def _undone(ledger: Ledger, id: int) -> tuple[int | None, str | None]:
    """Return the rollback or swap since which an entry no longer counts; and of a swap, its backfill."""
    rollbacks = ledger.rollbacks()
    by = rolled_back_by(id, rollbacks)
    if by is None or _backfill_of(ledger, by) is None:
        return by, None
    # What was rolled back before has not been computed again: the swap has replaced nothing of it.
    of_input = [each for each in rollbacks if _backfill_of(ledger, each[0]) is None]
    before = rolled_back_by(id, of_input)
    return (before, None) if before is not None else (by, _backfill_of(ledger, by))


def _backfill_of(ledger: Ledger, id: int) -> str | None:
    """Return the backfill that the entry has swapped in; None: it is a rollback."""
    plan = ledger.plan(id)
    line = plan.rollback.line if plan is not None and plan.rollback is not None else None
    return line.name if line is not None else None


def _listed(row: Mapping[str, Any]) -> ListedCheckpoint:
    return ListedCheckpoint(**{name: _value(value) for name, value in row.items()})


def _value(value: Any) -> Any:
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value
