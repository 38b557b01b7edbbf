"""Reading the history: settled checkpoints from its table, later ones from the ledger, as one list.

    history = CheckpointHistory(ledger, options)
    history.page(HistoryFilter(states=("aborted",), sort="seconds"))    # a page of rows, without details
    history.one(17)                                                     # one checkpoint with details, however old
    history.counts(), history.summary(), history.points(...)            # figures over many

If the history's table is lost or broken, what the ledger has is shown without it, and `problem` says why.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidegate.config.settings import masked
from tidegate.delta import Journal, Snapshot
from tidegate.errors import Invalid, TidegateError
from tidegate.history.details import CheckpointDetails
from tidegate.history.row import MEASURES, HistoryRow
from tidegate.history.table import COLUMNS, DETAILS, journal_of, live_row, rows_table
from tidegate.history.view import CheckpointView, ListedCheckpoint
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry, rolled_back_by
from tidegate.records import typed
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LONGEST", "SORTS", "CheckpointHistory", "HistoryFilter", "HistoryPage", "view_of"]

LONGEST = 200
"""No page is longer."""
_LIVE = 1_000
"""At most this many entries are read from the ledger. It has more only if the history is lost, or was never written."""
SORTS: Final = ("state", "undone_by", *COLUMNS)
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
UNDONE = "rolled back"
ENDED = frozenset({"ROLLED_BACK", "STOPPED"})
"""Reasons of aborts that are no failures: somebody went back, or cancelled the pipeline, while the checkpoint ran."""


@dataclass(frozen=True)
class HistoryFilter:
    """Which rows, in which order."""

    states: Sequence[str] = ()
    kinds: Sequence[str] = ()
    text: str = ""
    """In the run, the reason, what is said of it, or its id."""
    since: datetime | None = None
    until: datetime | None = None
    sort: str = "id"
    descending: bool = True
    offset: int = 0
    limit: int = 20


@dataclass(frozen=True)
class HistoryPage:
    """Some of the rows, and how many there are in all."""

    rows: list[ListedCheckpoint]
    total: int


class CheckpointHistory:
    """One pipeline's history as of one moment: make a new one to see later checkpoints."""

    def __init__(self, ledger: Ledger, options: Mapping[str, str]) -> None:
        self.ledger = ledger
        self.journal: Journal = journal_of(ledger, options)
        self.problem = ""
        """Why the history's table is left out; empty: it is not."""

    @functools.cached_property
    def rows(self) -> pa.Table:
        """All rows by id, without details, but with `state` and `undone_by`, which depend on later rollbacks."""
        import pyarrow as pa
        import pyarrow.compute as pc

        last, shelf = self._shelf()
        table = pa.concat_tables([shelf, rows_table(self._live(last), COLUMNS)])
        undone = _undone(table)
        states = pc.if_else(pc.is_null(undone), table["outcome"].combine_chunks(), UNDONE)
        return table.append_column("state", states).append_column("undone_by", undone)

    def page(self, criteria: HistoryFilter) -> HistoryPage:
        """The rows of one page, without details."""
        import pyarrow.compute as pc

        _refuse(criteria)
        matching = _filtered(self.rows, criteria)
        order = "descending" if criteria.descending else "ascending"
        keys = [(criteria.sort, order), *([("id", "descending")] if criteria.sort != "id" else [])]
        indices = pc.sort_indices(matching, sort_keys=keys)
        rows = matching.take(indices.slice(criteria.offset, criteria.limit))
        return HistoryPage([_listed(row) for row in rows.to_pylist()], matching.num_rows)

    def behind(self, id: int, *states: str) -> list[int]:
        """All checkpoints after `id` in these states, newest first."""
        import pyarrow.compute as pc

        matching = _filtered(self.rows, HistoryFilter(states=states))
        later: list[int] = matching.filter(pc.field("id") > id)["id"].to_pylist()
        return sorted(later, reverse=True)

    def one(self, id: int) -> CheckpointView | None:
        """One checkpoint with its details; None: there never was one, as far as anybody knows."""
        import pyarrow.compute as pc

        rows = self.rows.filter(pc.field("id") == id).to_pylist()
        if not rows:
            return None
        columns = {name: _value(value) for name, value in rows[0].items()}
        return CheckpointView(**columns, details=self._details(id), kept=self.ledger.is_retained(id))

    def counts(self) -> dict[str, int]:
        """As Flink's overview counts."""
        import pyarrow.compute as pc

        tally = _tally(self.rows["state"])
        undecided = tally.get("open", 0) + tally.get("held", 0)
        undone = _tally(self.rows.filter(pc.field("state") == UNDONE)["outcome"]).get("completed", 0)
        restored = _tally(self.rows["outcome"]).get("rollback", 0)
        reasons = _tally(self.rows["reason"])
        ended_early = sum(reasons.get(reason, 0) for reason in ENDED)
        completed, failed = tally.get("completed", 0) + undone, tally.get("aborted", 0) - ended_early
        return {
            "triggered": completed + failed + ended_early + undecided + restored,
            "in_progress": undecided,
            "held": tally.get("held", 0),
            "completed": completed,
            "failed": failed,
            "ended": ended_early,
            "restored": restored,
            "rolled_back": tally.get(UNDONE, 0),
        }

    def newest(self, *states: str) -> CheckpointView | None:
        """The last checkpoint in one of these states."""
        import pyarrow.compute as pc

        last = pc.max(_filtered(self.rows, HistoryFilter(states=states))["id"]).as_py()
        return self.one(last) if last is not None else None

    def neighbours(self, id: int) -> tuple[int | None, int | None]:
        """The ids before and after it; None: there is none."""
        import pyarrow.compute as pc

        ids = self.rows["id"]
        before, after = ids.filter(pc.less(ids, id)), ids.filter(pc.greater(ids, id))
        return pc.max(before).as_py(), pc.min(after).as_py()

    def summary(self, criteria: HistoryFilter | None = None) -> dict[str, dict[str, float] | None]:
        """Min, avg, percentiles from p50 to p99.9 and max of each measure, over completed checkpoints; None: never
        measured."""
        import pyarrow.compute as pc

        rows = _filtered(self.rows, criteria or HistoryFilter())
        completed = rows.filter(pc.field("outcome") == "completed")
        return {name: _spread(completed[name]) for name in MEASURES}

    def reasons(self, criteria: HistoryFilter | None = None) -> list[Json]:
        """The reasons of aborts, the most frequent first: how often each occurred, and the last checkpoint with it."""
        aborted = _filtered(self.rows, dataclasses.replace(criteria or HistoryFilter(), states=("aborted",)))
        listed = aborted.select(["id", "reason"]).to_pylist()
        last = {row["reason"]: row["id"] for row in listed}
        counted = Counter(row["reason"] for row in listed).most_common()
        return [{"reason": reason, "count": count, "last": last[reason]} for reason, count in counted]

    def rules(self, gate: str, limit: int = 50) -> list[Json]:
        """For each of the last `limit` checkpoints that the gate has judged, oldest first: how many rows it has judged,
        and how many have broken each rule."""
        ids = self.rows["id"].slice(max(self.rows.num_rows - limit, 0)).to_pylist()
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
        unknown = sorted(set(names) - set(SORTS))
        if unknown:
            raise _unknown(unknown[0], SORTS)
        rows = self.rows.slice(max(self.rows.num_rows - limit, 0)).select(["id", *names])
        return {name: [_value(value) for value in rows[name].to_pylist()] for name in rows.column_names}

    # -- where rows come from --------------------------------------------------------------------------

    def _shelf(self) -> tuple[int, pa.Table]:
        """The rows that the table holds, and up to which id."""
        try:
            snapshot = self.journal.opened()
            return self.journal.last(snapshot), _shelved(self.journal, snapshot)
        except TidegateError as error:
            self.problem = error.what
            return 0, rows_table([], COLUMNS)

    def _live(self, last: int) -> Iterator[HistoryRow]:
        for id in self.ledger.ids(after=last)[-_LIVE:]:
            entry = self.ledger.entry(id)
            if entry is not None:
                yield live_row(self.ledger, entry)

    def _details(self, id: int) -> CheckpointDetails:
        entry = self.ledger.entry(id)
        if entry is not None:
            return live_row(self.ledger, entry).details
        rows = self.journal.read(["id", DETAILS], only=id).to_pylist()
        return self._decoded(id, next((row[DETAILS] for row in rows if row["id"] == id), "{}"))

    def _decoded(self, id: int, text: str) -> CheckpointDetails:
        try:
            details = typed.decode(text, CheckpointDetails)
        except msgspec.DecodeError as error:
            self.problem = f"the details of checkpoint {id} cannot be read: {error}"
            return CheckpointDetails()
        return msgspec.structs.replace(details, config=masked(details.config))


# -- the table is read once per version ----------------------------------------------------------------

_read: dict[tuple[int, str], tuple[str, pa.Table]] = {}
_lock = threading.Lock()
_CAPACITY = 32


def _shelved(journal: Journal, snapshot: Snapshot | None) -> pa.Table:
    """All rows of the version. Those of the version that was read last are cached, though not across forks."""
    if snapshot is None:
        return rows_table([], COLUMNS)
    key = os.getpid(), journal.location.url
    cached = _read.get(key)
    if cached is not None and cached[0] == snapshot.log_hash:
        return cached[1]
    rows = journal.read(COLUMNS) if cached is None else _newer(journal, snapshot, cached[1])
    with _lock:
        _read.pop(key, None)
        _read[key] = snapshot.log_hash, rows
        while len(_read) > _CAPACITY:
            del _read[next(iter(_read))]
    return rows


def _newer(journal: Journal, snapshot: Snapshot, older: pa.Table) -> pa.Table:
    """Rows never change: only what has come since is read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    last = pc.max(older["id"]).as_py() or 0
    if journal.last(snapshot) < last:
        return journal.read(COLUMNS)  # it was lost, and has begun anew
    return pa.concat_tables([older, journal.read(COLUMNS, after=last)]).combine_chunks()


# -- rows ----------------------------------------------------------------------------------------------


def _undone(rows: pa.Table) -> pa.Array:
    """For each row, the rollback since which it no longer counts: `rolled_back_by` for all rows at once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    backs = rows.filter(pc.field("outcome") == "rollback")
    if not backs.num_rows:
        return pa.nulls(rows.num_rows, pa.int64())
    undone_by: dict[int, int] = {}
    below: int | None = None
    for rollback, target in reversed(list(zip(backs["id"].to_pylist(), backs["back_to"].to_pylist(), strict=True))):
        if below is None or rollback < below:
            undone_by |= dict.fromkeys(range(target + 1, rollback), rollback)
            below = target + 1
    pairs = zip(rows["id"].to_pylist(), rows["outcome"].to_pylist(), strict=True)
    counted = ("completed", "rollback")
    return pa.array([undone_by.get(id) if outcome in counted else None for id, outcome in pairs], pa.int64())


def _tally(column: pa.ChunkedArray) -> dict[str, int]:
    """How often each value occurs."""
    import pyarrow.compute as pc

    return {pair["values"]: pair["counts"] for pair in pc.value_counts(column).to_pylist()}


def _filtered(rows: pa.Table, criteria: HistoryFilter) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if criteria.states:
        rows = rows.filter(pc.is_in(rows["state"], pa.array(list(criteria.states), pa.string())))
    if criteria.kinds:
        rows = rows.filter(pc.is_in(rows["kind"], pa.array(list(criteria.kinds), pa.string())))
    if criteria.since is not None:
        rows = rows.filter(pc.greater_equal(rows["planned"], pa.scalar(criteria.since, rows["planned"].type)))
    if criteria.until is not None:
        rows = rows.filter(pc.less(rows["planned"], pa.scalar(criteria.until, rows["planned"].type)))
    if criteria.text:
        looked = [rows[name] for name in ("run", "reason", "why", "by")] + [pc.cast(rows["id"], pa.string())]
        hits = (pc.match_substring(column, criteria.text, ignore_case=True) for column in looked)
        rows = rows.filter(functools.reduce(pc.or_, (pc.fill_null(hit, False) for hit in hits)))
    return rows


def _spread(column: pa.ChunkedArray) -> dict[str, float] | None:
    import pyarrow.compute as pc

    measured = column.drop_null()
    if not len(measured):
        return None
    values = pc.quantile(measured, q=[0.0, *PERCENTILES.values(), 1.0]).to_pylist()
    names = ["min", *PERCENTILES, "max"]
    return dict(zip(names, values, strict=True)) | {"avg": pc.mean(measured).as_py(), "count": len(measured)}


def view_of(ledger: Ledger, entry: Entry, *, sizes: bool = True) -> CheckpointView:
    """The view of an entry, as its records are now; without `sizes`, without those of states and rows in flight."""
    row = live_row(ledger, entry, sizes=sizes)
    undone_by = rolled_back_by(entry.id, ledger.rollbacks()) if entry.completed else None
    return CheckpointView(
        **msgspec.structs.asdict(row),
        state=UNDONE if undone_by is not None else row.outcome,
        undone_by=undone_by,
        kept=True,
    )


def _listed(row: Mapping[str, Any]) -> ListedCheckpoint:
    return ListedCheckpoint(**{name: _value(value) for name, value in row.items()})


def _value(value: Any) -> Any:
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value


def _refuse(criteria: HistoryFilter) -> None:
    if criteria.sort not in SORTS:
        raise _unknown(criteria.sort, SORTS)
    if not 1 <= criteria.limit <= LONGEST or criteria.offset < 0:
        raise Invalid(
            f"a page of {criteria.limit} rows from {criteria.offset} on is not possible",
            expected=f"1 to {LONGEST} rows, from 0 on",
            help="ask for several pages",
            reason="BAD_PAGE",
        )


def _unknown(name: str, names: Sequence[str]) -> Invalid:
    return Invalid(
        f"the history has no column {name!r}",
        expected=", ".join(names),
        help="name one of these",
        reason="NO_SUCH_COLUMN",
    )
