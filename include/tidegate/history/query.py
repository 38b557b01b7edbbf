"""Reads the history: settled checkpoints from its table, later ones from the ledger, as one list.

    history = CheckpointHistory(ledger, options)
    history.page(HistoryFilter(states=("aborted",), sort="seconds"))    # a page of rows, without details
    history.one(17)                                                     # one checkpoint with details, however old
    history.counts(), history.summary(), history.points(...)            # figures over many

If the history's table is lost or broken, only the ledger's checkpoints are listed, and `problem` says why.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

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
from tidegate.protocol.view import Entry, rollback_of
from tidegate.records import typed
from tidegate.records.records import Json, State

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MAX_LENGTH", "SORTS", "CheckpointHistory", "HistoryFilter", "HistoryPage", "view_of"]

_MAX_LIVE = 1_000
"""At most this many entries are read from the ledger. It has more only if the history is lost, or was never written."""


@dataclass(frozen=True)
class HistoryPage:
    """Some of the rows, and their total number."""

    rows: list[ListedCheckpoint]
    total: int


class CheckpointHistory:
    """One pipeline's history as of one moment: make a new one to see later checkpoints."""

    def __init__(self, ledger: Ledger, options: Mapping[str, str], *, with_values: bool = True) -> None:
        """with_values: the user may read rows, and so also the texts of older versions, which may quote some."""
        self.ledger = ledger
        self.with_values = with_values
        self.journal: Journal = journal_of(ledger, options)
        self.problem = ""
        """Why the history's table could not be used, or empty."""

    @functools.cached_property
    def rows(self) -> HistoryRows:
        """All rows, cached per process until the history changes."""
        key = os.getpid(), self.journal.location.url  # nothing is shared across forks
        lock = _locks.setdefault(key, threading.Lock())
        with lock:
            stored = self._stored_rows(_cache.get(key))
        live = list(self._live(stored.last))
        with lock:
            cached = _cache.get(key)
            if cached is None or cached.stored is not stored or cached.live != live:
                cached = _CachedRows(stored, live, HistoryRows(_joined(stored.rows, rows_table(live, COLUMNS))))
                _put_into_cache(key, cached)
        return cached.all if self.with_values else cached.all.without_texts()

    def page(self, criteria: HistoryFilter) -> HistoryPage:
        """Return the rows of one page, without details."""
        rows, total = self.rows.page(criteria)
        return HistoryPage([_listed(row) for row in rows], total)

    def checkpoints_after(self, id: int, *states: str) -> list[int]:
        """Return all checkpoints after `id` in these states, newest first."""
        return self.rows.ids(*states, after=id)

    def swaps_after(self, id: int) -> list[ListedCheckpoint]:
        """Return all swaps after `id` that count, newest first."""
        rows = map(self.rows.find, self.checkpoints_after(id, "swap"))
        return [_listed(row) for row in rows if row is not None]

    def find(self, id: int) -> CheckpointView | None:
        """Return one checkpoint with its details, or None if it is unknown."""
        row = self.rows.find(id)
        if row is None:
            return None
        columns = {name: _value(value) for name, value in row.items()}
        details = self._visible_details(id, self._details(id))
        return CheckpointView(**columns, details=details, records_retained=self.ledger.is_retained(id))

    def counts(self) -> dict[str, int]:
        """Return counts of checkpoints, like those of Flink's overview."""
        return self.rows.counts()

    def newest(self, *states: str) -> CheckpointView | None:
        """Return the last checkpoint in one of these states."""
        last = self.rows.newest(*states)
        return self.find(last) if last is not None else None

    def last_completed(self) -> CheckpointView | None:
        """Return the last completed checkpoint whose input counts, even if a backfill has replaced its rows."""
        return self.newest("completed", REPLACED)

    def neighbours(self, id: int) -> tuple[int | None, int | None]:
        """Return the ids before and after this one, or None at either end."""
        return self.rows.neighbours(id)

    def summary(self, criteria: HistoryFilter | None = None) -> dict[str, dict[str, float] | None]:
        """Return min, avg, percentiles from p50 to p99.9 and max of each measure, over completed checkpoints. None if
        it was never measured."""
        return self.rows.summary(criteria or HistoryFilter())

    def reasons(self, criteria: HistoryFilter | None = None) -> list[Json]:
        """Return the reasons of aborts, the most frequent first, with their counts and the last checkpoint of each."""
        return self.rows.reasons(criteria or HistoryFilter())

    def rules(self, gate: str, limit: int = 50) -> list[Json]:
        """Return, for each of the last `limit` checkpoints that the gate has judged, oldest first: how many rows it has
        judged, and how many have broken each rule."""
        verdicts = []
        for id, details in self.details_of(self.rows.last(["id"], limit)["id"].to_pylist()).items():
            verdict = details.gates.get(gate)
            if verdict is not None:
                broken = {rule.rule: rule.rows for rule in verdict.broken}
                verdicts.append({"id": id, "outcome": verdict.outcome, "rows": verdict.rows, "broken": broken})
        return verdicts

    def details_of(self, ids: Sequence[int]) -> dict[int, CheckpointDetails]:
        """Return the details of these checkpoints, oldest first. ids: in this order."""
        stored: list[Json] = []
        if ids and not self.problem:
            stored = self.journal.read(["id", DETAILS], after=ids[0] - 1).to_pylist()
        texts = {row["id"]: row[DETAILS] for row in stored}
        return {
            id: self._visible_details(id, self._decoded(id, texts[id]) if id in texts else self._details(id))
            for id in ids
        }

    def points(self, names: Sequence[str], limit: int = 500) -> dict[str, list[Any]]:
        """Return columns over the last `limit` checkpoints, oldest first: for plots."""
        rows = self.rows.last(["id", *names], limit)
        return {name: [_value(value) for value in rows[name].to_pylist()] for name in rows.column_names}

    # -- the sources of rows ---------------------------------------------------------------------------

    def _stored_rows(self, cached: _CachedRows | None) -> _StoredRows:
        """Return the rows that the table holds. Rows never change, so only those added since the last call are read."""
        older = cached.stored if cached is not None else _no_stored_rows()
        try:
            snapshot = self.journal.opened()
            if snapshot is None:
                return _no_stored_rows()
            if snapshot.log_hash == older.version:
                return older
            last, after = self.journal.last(snapshot), older.last
            if not older.version or last < after:  # the first read, or the table was lost and created again
                older, after = _no_stored_rows(), 0
            rows = _joined(older.rows, self.journal.read(COLUMNS, after=after))
            # Rows that another process has added since the table was opened have been read too.
            highest = rows["id"][-1].as_py() if rows.num_rows else 0
            return _StoredRows(snapshot.log_hash, max(last, highest), rows)
        except TidegateError as error:
            self.problem = error.what
            return _no_stored_rows()

    def _live(self, last: int) -> Iterator[HistoryRow]:
        for id in self.ledger.ids(after=last)[-_MAX_LIVE:]:
            entry = self.ledger.entry(id)
            if entry is not None:
                yield live_row(self.ledger, entry)

    def _visible_details(self, id: int, details: CheckpointDetails) -> CheckpointDetails:
        """Return what the user may see of a checkpoint's details."""
        row = self.rows.find(id)
        if self.with_values or row is None:
            return details
        return details_without_rows(details, quotes_rows=row["quotes_rows"] is not False)

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
class _StoredRows:
    """The rows of one version of the history's table."""

    version: str
    """The hash of its log. Empty if the table does not exist or cannot be read."""
    last: int
    """The highest id written to it."""
    rows: pa.Table


@dataclass(frozen=True)
class _CachedRows:
    """All rows of a pipeline, as last read."""

    stored: _StoredRows
    live: list[HistoryRow]
    all: HistoryRows


_cache: dict[_Key, _CachedRows] = {}
_locks: dict[_Key, threading.Lock] = {}
_lock = threading.Lock()
_CAPACITY = 32


def _put_into_cache(key: _Key, rows: _CachedRows) -> None:
    with _lock:
        _cache.pop(key, None)
        _cache[key] = rows
        while len(_cache) > _CAPACITY:
            del _cache[next(iter(_cache))]


@functools.cache
def _no_stored_rows() -> _StoredRows:
    return _StoredRows("", 0, rows_table([], COLUMNS))


def _joined(first: pa.Table, second: pa.Table) -> pa.Table:
    import pyarrow as pa

    if not second.num_rows:
        return first
    return pa.concat_tables([first, second]).combine_chunks()


# -- rows ----------------------------------------------------------------------------------------------


def view_of(ledger: Ledger, entry: Entry, *, sizes: bool = True) -> CheckpointView:
    """Return the view of an entry, from its records. sizes: include the sizes of states and of rows in flight."""
    row = live_row(ledger, entry, sizes=sizes)
    undone_by, replaced_by = _undone(ledger, entry.id) if entry.completed else (None, None)
    state = cast(State, row.outcome)
    if undone_by is not None:
        state = UNDONE if replaced_by is None else REPLACED
    return CheckpointView(
        **msgspec.structs.asdict(row),
        state=state,
        undone_by=undone_by,
        replaced_by=replaced_by,
        records_retained=True,
    )


def _undone(ledger: Ledger, id: int) -> tuple[int | None, str | None]:
    """Return the rollback or swap that undid an entry, and for a swap, its backfill."""
    rollbacks = ledger.rollbacks()
    undone_by = rollback_of(id, rollbacks)
    if undone_by is None:
        return None, None
    backfill = _backfill_of(ledger, undone_by)
    if backfill is None:
        return undone_by, None
    # If the entry had been rolled back before the swap, the backfill did not replay it, and replaced nothing of it.
    without_swaps = [(rollback, target) for rollback, target in rollbacks if _backfill_of(ledger, rollback) is None]
    rolled_back = rollback_of(id, without_swaps)
    return (rolled_back, None) if rolled_back is not None else (undone_by, backfill)


def _backfill_of(ledger: Ledger, id: int) -> str | None:
    """Return the backfill that the entry has swapped in, or None for an ordinary rollback."""
    plan = ledger.plan(id)
    line = plan.rollback.line if plan is not None and plan.rollback is not None else None
    return line.name if line is not None else None


def _listed(row: Mapping[str, Any]) -> ListedCheckpoint:
    return ListedCheckpoint(**{name: _value(value) for name, value in row.items()})


def _value(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return value.isoformat(timespec="milliseconds")
