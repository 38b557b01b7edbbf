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
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LONGEST", "SORTS", "CheckpointHistory", "HistoryFilter", "HistoryPage", "view_of"]

LONGEST = 200
"""No page is longer."""
_LIVE = 1_000
"""So many entries are read from the ledger at most: more are there only if the history is lost, or was never made."""
SORTS: Final = ("state", "undone_by", *COLUMNS)
PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99)
UNDONE = "rolled back"
ENDED = frozenset({"ROLLED_BACK", "STOPPED"})
"""Why checkpoints are aborted that have not failed: somebody went back, or cancelled the pipeline, while they ran."""


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
    """One pipeline's history as it is at one moment: ask a new one for what has come since."""

    def __init__(self, ledger: Ledger, options: Mapping[str, str]) -> None:
        self.ledger = ledger
        self.journal: Journal = journal_of(ledger, options)
        self.problem = ""
        """Why the history's table is left out; empty: it is not."""

    @functools.cached_property
    def rows(self) -> pa.Table:
        """All rows by id, without details, but with `state` and `undone_by`: what is rolled back is told by what came
        later."""
        import pyarrow as pa

        last, shelf = self._shelf()
        found = pa.concat_tables([shelf, rows_table(self._live(last), COLUMNS)])
        undone = _undone(found)
        ended = found["outcome"].to_pylist()
        states = [UNDONE if by is not None else outcome for by, outcome in zip(undone, ended, strict=True)]
        return found.append_column("state", pa.array(states, pa.string())).append_column(
            "undone_by", pa.array(undone, pa.int64())
        )

    def page(self, wanted: HistoryFilter) -> HistoryPage:
        """The rows that are wanted, in short."""
        import pyarrow.compute as pc

        _refuse(wanted)
        found = _filtered(self.rows, wanted)
        order = "descending" if wanted.descending else "ascending"
        keys = [(wanted.sort, order), *([("id", "descending")] if wanted.sort != "id" else [])]
        chosen = pc.sort_indices(found, sort_keys=keys)
        rows = found.take(chosen.slice(wanted.offset, wanted.limit))
        return HistoryPage([_listed(row) for row in rows.to_pylist()], found.num_rows)

    def behind(self, id: int, *states: str) -> list[int]:
        """All checkpoints in these states behind one, newest first."""
        import pyarrow.compute as pc

        found = _filtered(self.rows, HistoryFilter(states=states))
        later: list[int] = found.filter(pc.field("id") > id)["id"].to_pylist()
        return sorted(later, reverse=True)

    def one(self, id: int) -> CheckpointView | None:
        """One checkpoint with its details; None: there never was one, as far as anybody knows."""
        import pyarrow.compute as pc

        found = self.rows.filter(pc.field("id") == id).to_pylist()
        if not found:
            return None
        columns = {name: _value(value) for name, value in found[0].items()}
        return CheckpointView(**columns, details=self._details(id), kept=self.ledger.is_kept(id))

    def counts(self) -> dict[str, int]:
        """As Flink's overview counts."""
        states = self.rows["state"].to_pylist()
        tally = {name: states.count(name) for name in set(states)}
        undecided = tally.get("open", 0) + tally.get("held", 0)
        undone = sum(
            state == UNDONE and outcome == "completed"
            for state, outcome in zip(states, self.rows["outcome"].to_pylist(), strict=True)
        )
        restored = self.rows["outcome"].to_pylist().count("rollback")
        ended = sum(reason in ENDED for reason in self.rows["reason"].to_pylist())
        completed, failed = tally.get("completed", 0) + undone, tally.get("aborted", 0) - ended
        return {
            "triggered": completed + failed + ended + undecided + restored,
            "in_progress": undecided,
            "held": tally.get("held", 0),
            "completed": completed,
            "failed": failed,
            "ended": ended,
            "restored": restored,
            "rolled_back": tally.get(UNDONE, 0),
        }

    def newest(self, *states: str) -> CheckpointView | None:
        """The last checkpoint in one of these states."""
        rows = self.page(HistoryFilter(states=states, limit=1)).rows
        return self.one(rows[0].id) if rows else None

    def summary(self, wanted: HistoryFilter | None = None) -> dict[str, dict[str, float] | None]:
        """Of completed checkpoints: min, avg, p50, p90, p95, p99, max of all that is measured; None: it never was."""
        import pyarrow.compute as pc

        rows = _filtered(self.rows, wanted or HistoryFilter())
        done = rows.filter(pc.field("outcome") == "completed")
        return {name: _spread(done[name]) for name in MEASURES}

    def reasons(self, wanted: HistoryFilter | None = None) -> list[Json]:
        """Why checkpoints were aborted, the most frequent first: how often, and which was the last."""
        aborted = _filtered(self.rows, dataclasses.replace(wanted or HistoryFilter(), states=("aborted",)))
        listed = aborted.select(["id", "reason"]).to_pylist()
        last = {row["reason"]: row["id"] for row in listed}
        counted = Counter(row["reason"] for row in listed).most_common()
        return [{"reason": reason, "count": count, "last": last[reason]} for reason, count in counted]

    def points(self, names: Sequence[str], limit: int = 500) -> dict[str, list[Any]]:
        """Columns over the last `limit` checkpoints, oldest first: for plots."""
        unknown = sorted(set(names) - set(SORTS))
        if unknown:
            raise _unknown(unknown[0], SORTS)
        rows = self.rows.slice(max(self.rows.num_rows - limit, 0)).select(["id", *names])
        return {name: [_value(each) for each in rows[name].to_pylist()] for name in rows.column_names}

    # -- where rows come from --------------------------------------------------------------------------

    def _shelf(self) -> tuple[int, pa.Table]:
        """What the table holds, and up to which id."""
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
        text = next((row[DETAILS] for row in rows if row["id"] == id), "{}")
        try:
            details = msgspec.json.decode(text, type=CheckpointDetails)
        except msgspec.DecodeError as error:
            self.problem = f"the details of checkpoint {id} cannot be read: {error}"
            return CheckpointDetails()
        return msgspec.structs.replace(details, config=masked(details.config))


# -- the table is read once per version ----------------------------------------------------------------

_read: dict[tuple[int, str], tuple[str, pa.Table]] = {}
_lock = threading.Lock()
_CAPACITY = 32


def _shelved(journal: Journal, snapshot: Snapshot | None) -> pa.Table:
    """All rows of the version; those of the version that was read last are remembered. Not across forks."""
    if snapshot is None:
        return rows_table([], COLUMNS)
    key = os.getpid(), journal.location.url
    known = _read.get(key)
    if known is not None and known[0] == snapshot.log_hash:
        return known[1]
    rows = journal.read(COLUMNS) if known is None else _newer(journal, snapshot, known[1])
    with _lock:
        _read.pop(key, None)
        _read[key] = snapshot.log_hash, rows
        while len(_read) > _CAPACITY:
            del _read[next(iter(_read))]
    return rows


def _newer(journal: Journal, snapshot: Snapshot, known: pa.Table) -> pa.Table:
    """Rows never change: only what has come since is read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    last = pc.max(known["id"]).as_py() or 0
    if journal.last(snapshot) < last:
        return journal.read(COLUMNS)  # it was lost, and has begun anew
    return pa.concat_tables([known, journal.read(COLUMNS, after=last)]).combine_chunks()


# -- rows ----------------------------------------------------------------------------------------------


def _undone(rows: pa.Table) -> list[int | None]:
    """By which rollback each row no longer counts, as `rolled_back_by` tells it of one."""
    import pyarrow.compute as pc

    ids, outcomes = rows["id"].to_pylist(), rows["outcome"].to_pylist()
    backs = rows.filter(pc.field("outcome") == "rollback")
    found: dict[int, int] = {}
    below: int | None = None
    for rollback, target in reversed(list(zip(backs["id"].to_pylist(), backs["back_to"].to_pylist(), strict=True))):
        if below is None or rollback < below:
            found |= dict.fromkeys(range(target + 1, rollback), rollback)
            below = target + 1
    counted = ("completed", "rollback")
    return [found.get(id) if outcome in counted else None for id, outcome in zip(ids, outcomes, strict=True)]


def _filtered(rows: pa.Table, wanted: HistoryFilter) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if wanted.states:
        rows = rows.filter(pc.is_in(rows["state"], pa.array(list(wanted.states), pa.string())))
    if wanted.kinds:
        rows = rows.filter(pc.is_in(rows["kind"], pa.array(list(wanted.kinds), pa.string())))
    if wanted.since is not None:
        rows = rows.filter(pc.greater_equal(rows["planned"], pa.scalar(wanted.since, rows["planned"].type)))
    if wanted.until is not None:
        rows = rows.filter(pc.less(rows["planned"], pa.scalar(wanted.until, rows["planned"].type)))
    if wanted.text:
        looked = [rows[name] for name in ("run", "reason", "why", "by")] + [pc.cast(rows["id"], pa.string())]
        hits = (pc.match_substring(column, wanted.text, ignore_case=True) for column in looked)
        rows = rows.filter(functools.reduce(pc.or_, (pc.fill_null(hit, False) for hit in hits)))
    return rows


def _spread(column: pa.ChunkedArray) -> dict[str, float] | None:
    import pyarrow.compute as pc

    known = column.drop_null()
    if not len(known):
        return None
    values = pc.quantile(known, q=[0.0, *PERCENTILES, 1.0]).to_pylist()
    names = ["min", *(f"p{round(q * 100)}" for q in PERCENTILES), "max"]
    return dict(zip(names, values, strict=True)) | {"avg": pc.mean(known).as_py(), "count": len(known)}


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


def _refuse(wanted: HistoryFilter) -> None:
    if wanted.sort not in SORTS:
        raise _unknown(wanted.sort, SORTS)
    if not 1 <= wanted.limit <= LONGEST or wanted.offset < 0:
        raise Invalid(
            f"a page of {wanted.limit} rows from {wanted.offset} on is not possible",
            expected=f"1 to {LONGEST} rows, from 0 on",
            help="ask for several pages",
            reason="BAD_PAGE",
        )


def _unknown(name: str, known: Sequence[str]) -> Invalid:
    return Invalid(
        f"the history has no column {name!r}",
        expected=", ".join(known),
        help="name one of these",
        reason="NO_SUCH_COLUMN",
    )
