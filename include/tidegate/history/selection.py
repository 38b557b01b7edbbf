"""The rows of a history at one moment, and queries of them: a page, counts, percentiles, the newest of a kind.

Every open page sends the same queries over 100,000 rows every few seconds. So results are cached next to the rows, and
unchanged rows are the same object (`query.py`): then an answer reads no more rows than it shows.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tidegate.errors import Invalid
from tidegate.history.row import MEASURES
from tidegate.history.table import COLUMNS
from tidegate.history.without_values import rows_without_texts
from tidegate.records.records import LINE_RUN, Json

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = [
    "COUNTED",
    "ENDED",
    "MAX_LENGTH",
    "REPLACED",
    "SORTS",
    "UNDONE",
    "HistoryFilter",
    "HistoryRows",
    "undone",
]

T = TypeVar("T")

MAX_LENGTH = 200
"""The maximum length of a page."""
SORTS: Final = ("state", "undone_by", *COLUMNS)
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
UNDONE: Final = "rolled back"
REPLACED: Final = "replaced"
"""A swap has replaced its output with that of a backfill of the same input."""
ENDED = frozenset({"ROLLED_BACK", "STOPPED"})
"""Reasons of aborts that are not failures: the pipeline was rolled back or cancelled while the checkpoint ran."""
COUNTED = ("completed", "rollback", "swap")
"""The outcomes that a rollback can undo and return to."""
_BACK = ("rollback", "swap")
_MAX_ANSWERS = 24
"""The number of cached answers. The largest is one number per row."""


@dataclass(frozen=True)
class HistoryFilter:
    """Selects rows, and their order."""

    states: Sequence[str] = ()
    kinds: Sequence[str] = ()
    text: str = ""
    """Searched for in the run, the reason, the explanation and the id."""
    since: datetime | None = None
    until: datetime | None = None
    sort: str = "id"
    descending: bool = True
    offset: int = 0
    limit: int = 20

    @property
    def conditions(self) -> tuple[Hashable, ...]:
        """The fields that select rows, without their order."""
        return tuple(self.states), tuple(self.kinds), self.text, self.since, self.until

    @property
    def all(self) -> bool:
        """True if all rows are selected."""
        return self.conditions == HistoryFilter().conditions


class HistoryRows:
    """All rows by ascending id, without details, but with `state`, `undone_by` and `replaced_by`, which depend on later
    rollbacks and swaps."""

    def __init__(self, rows: pa.Table) -> None:
        import pyarrow.compute as pc

        rows = _as_written_today(rows.combine_chunks())
        undone_by = undone(rows)
        swaps = rows["id"].filter(pc.equal(rows["outcome"], "swap")).combine_chunks()
        undone_states = pc.if_else(pc.is_in(undone_by, swaps), REPLACED, UNDONE)
        states = pc.if_else(pc.is_null(undone_by), rows["outcome"].combine_chunks(), undone_states)
        places = pc.index_in(undone_by, rows["id"].combine_chunks())
        backfills = rows["backfill"].combine_chunks().take(places)
        table = rows.append_column("state", states)
        table = table.append_column("undone_by", undone_by)
        self.table: pa.Table = table.append_column("replaced_by", backfills)
        self._ids = _numbers(rows["id"])
        self._answers: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def without_texts(self) -> HistoryRows:
        """Return the same rows without texts that may quote values, so that these cannot be searched either."""
        if not self.table.num_rows:
            return self
        plain = self.table.drop_columns(["state", "undone_by", "replaced_by"])
        return self.compute_once("without texts", lambda: HistoryRows(rows_without_texts(plain)))

    def page(self, criteria: HistoryFilter) -> tuple[list[Json], int]:
        """Return the rows of a page, and the number of all matching rows."""
        _refuse(criteria)
        low, high = criteria.offset, criteria.offset + criteria.limit
        if criteria.all and criteria.sort == "id":
            count = self.table.num_rows
            if not criteria.descending:
                return self.table.slice(low, high - low).to_pylist(), count
            first, last = max(count - high, 0), max(count - low, 0)
            rows = self.table.slice(first, last - first).to_pylist()
            return rows[::-1], count
        whole = dataclasses.replace(criteria, offset=0, limit=1)
        key = "sorted", whole.conditions, whole.sort, whole.descending
        places = self.compute_once(key, lambda: self._sorted(whole))
        return self.table.take(places.slice(low, criteria.limit)).to_pylist(), len(places)

    def find(self, id: int) -> Json | None:
        """Return the row of a checkpoint, or None."""
        place = int(self._ids.searchsorted(id))
        if place == len(self._ids) or self._ids[place] != id:
            return None
        rows: list[Json] = self.table.slice(place, 1).to_pylist()
        return rows[0]

    def neighbours(self, id: int) -> tuple[int | None, int | None]:
        """Return the ids before and after this one, or None at either end."""
        before = int(self._ids.searchsorted(id)) - 1
        after = int(self._ids.searchsorted(id, side="right"))
        previous_id = int(self._ids[before]) if before >= 0 else None
        next_id = int(self._ids[after]) if after < len(self._ids) else None
        return previous_id, next_id

    def ids(self, *states: str, after: int = 0) -> list[int]:
        """Return all checkpoints after `after` in these states, newest first."""
        import pyarrow.compute as pc

        later = self.table.select(["id", "state"]).slice(int(self._ids.searchsorted(after, side="right")))
        ids: list[int] = later.filter(pc.is_in(later["state"], _texts(states)))["id"].to_pylist()
        return ids[::-1]

    def newest(self, *states: str) -> int | None:
        """Return the last checkpoint in one of these states."""
        return self.compute_once(("newest", states), lambda: self._newest(states))

    def _newest(self, states: Sequence[str]) -> int | None:
        import pyarrow.compute as pc

        ids = self.table["id"].filter(pc.is_in(self.table["state"], _texts(states)))
        last: int | None = pc.max(ids).as_py()
        return last

    def counts(self) -> dict[str, int]:
        """Return counts of checkpoints, like those of Flink's overview."""
        return dict(self.compute_once("counts", self._counts))

    def _counts(self) -> dict[str, int]:
        import pyarrow.compute as pc

        states, outcomes = _tally(self.table["state"]), _tally(self.table["outcome"])
        in_progress = states.get("open", 0) + states.get("held", 0)
        completed = states.get("completed", 0)
        for undone_state in (UNDONE, REPLACED):
            undone_outcomes = self.table["outcome"].filter(pc.equal(self.table["state"], undone_state))
            completed += _tally(undone_outcomes).get("completed", 0)
        rollbacks, swaps = outcomes.get("rollback", 0), outcomes.get("swap", 0)
        reasons = _tally(self.table["reason"])
        cancelled = sum(reasons.get(reason, 0) for reason in ENDED)
        failed = states.get("aborted", 0) - cancelled
        return {
            "triggered": completed + failed + cancelled + in_progress + rollbacks + swaps,
            "in_progress": in_progress,
            "held": states.get("held", 0),
            "completed": completed,
            "failed": failed,
            "cancelled": cancelled,
            "rollbacks": rollbacks,
            "rolled_back": states.get(UNDONE, 0),
            "swaps": swaps,
            "replaced": states.get(REPLACED, 0),
        }

    def summary(self, criteria: HistoryFilter) -> dict[str, dict[str, float] | None]:
        """Return min, avg, percentiles from p50 to p99.9 and max of each measure, over completed checkpoints. None if
        it was never measured."""
        return dict(self.compute_once(("summary", criteria.conditions), lambda: self._summary(criteria)))

    def _summary(self, criteria: HistoryFilter) -> dict[str, dict[str, float] | None]:
        import pyarrow.compute as pc

        rows = self._matching(criteria, ["outcome", *MEASURES])
        completed = rows.filter(pc.field("outcome") == "completed")
        return {name: _spread(completed[name]) for name in MEASURES}

    def reasons(self, criteria: HistoryFilter) -> list[Json]:
        """Return the reasons of aborts, the most frequent first, with their counts and the last checkpoint of each."""
        aborted = self._matching(dataclasses.replace(criteria, states=("aborted",)), ["id", "reason"]).to_pylist()
        last = {row["reason"]: row["id"] for row in aborted}
        counted = Counter(row["reason"] for row in aborted).most_common()
        return [{"reason": reason, "count": count, "last_checkpoint": last[reason]} for reason, count in counted]

    def last(self, names: Sequence[str], limit: int) -> pa.Table:
        """Return columns of the last `limit` checkpoints, oldest first."""
        unknown = sorted(set(names) - set(SORTS))
        if unknown:
            raise _unknown(unknown[0])
        return self.table.slice(max(self.table.num_rows - limit, 0)).select(list(names))

    def compute_once(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return the cached answer for this key, computed on the first call. Concurrent callers wait for it."""
        with self._lock:
            answer = self._answers.pop(key) if key in self._answers else find()
            self._answers[key] = answer
            while len(self._answers) > _MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
            return cast(T, answer)

    def _sorted(self, criteria: HistoryFilter) -> pa.Array:
        """Return the places of the matching rows in their order."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        order = "descending" if criteria.descending else "ascending"
        keys = [(criteria.sort, order), *([("id", "descending")] if criteria.sort != "id" else [])]
        columns = self.table.select(list(dict.fromkeys([criteria.sort, "id"])))
        columns = columns.append_column("place", pa.array(np.arange(columns.num_rows, dtype=np.int32)))
        mask = self._mask(criteria)
        matching = columns if mask is None else columns.filter(mask)
        places: pa.Array = matching["place"].combine_chunks().take(pc.sort_indices(matching, sort_keys=keys))
        return places

    def _matching(self, criteria: HistoryFilter, names: Sequence[str]) -> pa.Table:
        mask = self._mask(criteria)
        columns = self.table.select(list(names))
        return columns if mask is None else columns.filter(mask)

    def _mask(self, criteria: HistoryFilter) -> Any:
        """Return for each row whether it matches. None if all do."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows, masks = self.table, []
        if criteria.states:
            masks.append(pc.is_in(rows["state"], _texts(criteria.states)))
        if criteria.kinds:
            masks.append(pc.is_in(rows["kind"], _texts(criteria.kinds)))
        if criteria.since is not None:
            masks.append(pc.greater_equal(rows["planned"], pa.scalar(criteria.since, rows["planned"].type)))
        if criteria.until is not None:
            masks.append(pc.less(rows["planned"], pa.scalar(criteria.until, rows["planned"].type)))
        if criteria.text:
            columns = [rows[name] for name in ("run", "reason", "why", "by")]
            columns.append(pc.cast(rows["id"], pa.string()))
            hits = [pc.match_substring(column, criteria.text, ignore_case=True) for column in columns]
            masks.append(functools.reduce(pc.or_, [pc.fill_null(hit, False) for hit in hits]))
        return functools.reduce(pc.and_, masks) if masks else None


def undone(rows: pa.Table) -> pa.Array:
    """Return, for each row, the rollback or swap that undid it: `rollback_of` for all rows at once.

    If an entry was rolled back before a swap, the rollback undid it: the swap has replaced nothing of it.
    """
    import pyarrow.compute as pc

    by_rollback, by_any = _undone_by_outcomes(rows, ["rollback"]), _undone_by_outcomes(rows, _BACK)
    return pc.if_else(pc.is_valid(by_rollback), by_rollback, by_any)


def _undone_by_outcomes(rows: pa.Table, outcomes: Sequence[str]) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    backs = rows.select(["id", "back_to", "outcome"]).filter(pc.field("outcome").isin(outcomes))
    if not backs.num_rows:
        return pa.nulls(rows.num_rows, pa.int64())
    ids = _numbers(rows["id"])
    undone_by = np.zeros(len(ids), dtype=np.int64)
    rollbacks = list(zip(backs["id"].to_pylist(), backs["back_to"].to_pylist(), strict=True))
    below: int | None = None
    for rollback, target in reversed(rollbacks):
        if below is None or rollback < below:
            undone_by[ids.searchsorted(target + 1) : ids.searchsorted(rollback)] = rollback
            below = target + 1
    counted = pc.is_in(rows["outcome"].combine_chunks(), _texts(COUNTED)).to_numpy(zero_copy_only=False)
    return pa.array(undone_by, pa.int64(), mask=(undone_by == 0) | ~counted)


def _as_written_today(rows: pa.Table) -> pa.Table:
    """Return the rows as the present version would write them. Until 0.2 a swap was written as a rollback, with null
    for the beginning."""
    import pyarrow.compute as pc

    is_swap = pc.and_(pc.starts_with(rows["run"], LINE_RUN), pc.equal(rows["kind"], "restart"))
    is_beginning = pc.and_(pc.is_in(rows["outcome"], _texts(_BACK)), pc.is_null(rows["back_to"]))
    is_completed_swap = pc.and_(is_swap, pc.equal(rows["outcome"], "rollback"))
    rows = _put(rows, "outcome", pc.if_else(is_completed_swap, "swap", rows["outcome"]))
    rows = _put(rows, "kind", pc.if_else(is_swap, "swap", rows["kind"]))
    return _put(rows, "back_to", pc.if_else(is_beginning, 0, rows["back_to"]))


def _put(rows: pa.Table, name: str, values: Any) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), values)


def _numbers(ids: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    numbers: np.ndarray[Any, Any] = ids.to_numpy()
    return numbers


def _texts(values: Sequence[str]) -> pa.Array:
    import pyarrow as pa

    return pa.array(list(values), pa.string())


def _tally(column: pa.ChunkedArray) -> dict[str, int]:
    """Return how often each value occurs."""
    import pyarrow.compute as pc

    return {pair["values"]: pair["counts"] for pair in pc.value_counts(column).to_pylist()}


def _spread(column: pa.ChunkedArray) -> dict[str, float] | None:
    import pyarrow.compute as pc

    measured = column.drop_null()
    if not len(measured):
        return None
    values = pc.quantile(measured, q=[0.0, *PERCENTILES.values(), 1.0]).to_pylist()
    names = ["min", *PERCENTILES, "max"]
    return dict(zip(names, values, strict=True)) | {"avg": pc.mean(measured).as_py(), "count": len(measured)}


def _refuse(criteria: HistoryFilter) -> None:
    if criteria.sort not in SORTS:
        raise _unknown(criteria.sort)
    if not 1 <= criteria.limit <= MAX_LENGTH or criteria.offset < 0:
        raise Invalid(
            f"a page of {criteria.limit} rows from {criteria.offset} on is not possible",
            expected=f"1 to {MAX_LENGTH} rows, from 0 on",
            help="request several pages",
            reason="BAD_PAGE",
        )


def _unknown(name: str) -> Invalid:
    return Invalid(
        f"the history has no column {name!r}",
        expected=", ".join(SORTS),
        help="name one of these",
        reason="NO_SUCH_COLUMN",
    )
