"""Read a gate's quarantine for display: through delta-rs and Arrow, without a JVM.

The cost depends on what is shown, not on the size of the quarantine. The number of waiting rows comes from the log's
statistics. The rules that they broke are counted once per file, since files never change, for a bounded number of rows
at a time. A page reads only the files that hold its rows. At most one batch of rows is in memory, and only rows that
are shown become Python objects.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.delta import LiveFile, Location, Snapshot, live_files, open_table
from tidegate.delta.as_python import python_rows
from tidegate.delta.dataset import dataset
from tidegate.delta.files.footers import open_parquet
from tidegate.errors import Invalid
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.table import QuarantineSink
from tidegate.records.records import Request

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["QuarantineCounts", "QuarantinePage", "QuarantinedRows", "open_quarantine"]

BUDGET = 1_000_000
"""Rows that one call counts. The next call counts the rest."""
_BATCH = 65_536
_WIDE = 4_096
_CAPACITY, _TABLES = 50_000, 32


def open_quarantine(home: str, gate: str, options: Mapping[str, str]) -> QuarantinedRows | None:
    """Open the quarantine of a gate in a pipeline's folder. None: the gate has quarantined no rows."""
    snapshot = open_table(Location(QuarantineSink(gate).path(home), options))
    return QuarantinedRows(gate, snapshot) if snapshot is not None else None


@dataclass
class QuarantineCounts:
    """The number of waiting rows, the outcomes of settled ones, and the rules that the waiting ones broke."""

    waiting: int = 0
    settled: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    complete: bool = True
    """True: everything was counted. Otherwise `rules` and `settled` are those of the files counted so far."""


@dataclass(frozen=True)
class QuarantinePage:
    """Some waiting rows, as they were when they were quarantined, and the total number of them."""

    total: int
    complete: bool
    """True: everything was counted. Otherwise there may be more than `total`."""
    columns: list[str]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class _RowSelection:
    """A selection of rows."""

    last_seen: int | None = None
    ids: tuple[str, ...] = ()
    checkpoints: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    settled: bool = False

    @classmethod
    def from_request(cls, request: Request, *, settled: bool) -> _RowSelection:
        return cls(request.seen, tuple(request.ids), tuple(request.checkpoints), tuple(request.rules), settled)

    @property
    def columns(self) -> list[str]:
        """The columns that must be read to decide."""
        is_needed = {q.SETTLED: not self.settled, q.ID: self.ids, q.RULES: self.rules}
        return [q.CHECKPOINT, *(name for name, needed in is_needed.items() if needed)]

    def mask(self, batch: Any) -> Any:
        """Return for each row of a batch whether it is selected."""
        import pyarrow as pa
        import pyarrow.compute as pc

        mask = pc.is_valid(batch[q.CHECKPOINT])
        if self.last_seen is not None:
            mask = pc.and_(mask, pc.less_equal(batch[q.CHECKPOINT], self.last_seen))
        if not self.settled:
            mask = pc.and_(mask, pc.is_null(batch[q.SETTLED]))
        for column, values in ((q.ID, self.ids), (q.CHECKPOINT, self.checkpoints)):
            if values:
                mask = pc.and_(mask, pc.is_in(batch[column], pa.array(list(values))))
        return pc.and_(mask, _broke(batch[q.RULES], self.rules)) if self.rules else mask


def _broke(column: Any, rules: Sequence[str]) -> Any:
    """Return for each row whether it broke one of the rules."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    hit = pc.is_in(pc.list_flatten(column), pa.array(list(rules), pa.string()))
    mask = np.zeros(len(column), dtype=bool)
    mask[pc.list_parent_indices(column).filter(hit).to_numpy(zero_copy_only=False)] = True
    return pa.array(mask)


@dataclass(frozen=True)
class QuarantinedRows:
    """A quarantine table at one moment."""

    gate: str
    snapshot: Snapshot

    @property
    def url(self) -> str:
        return self.snapshot.location.url

    @cached_property
    def _files(self) -> list[LiveFile]:
        key = (self.url, self.snapshot.log_hash)
        files: list[LiveFile] = _get_or_compute(_file_lists, key, lambda: live_files(self.snapshot), _TABLES)
        return files

    @cached_property
    def _fields(self) -> dict[str, Any]:
        """The columns that rows had when they were quarantined, with their types."""
        fields = dataset(self.snapshot).schema
        return {field.name: field.type for field in fields if field.name not in q.OWN_COLUMNS}

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """The types of the rows' own columns, by their names."""
        return self._fields

    @property
    def columns(self) -> list[str]:
        """The names of the rows' own columns."""
        return list(self._fields)

    # -- counting ------------------------------------------------------------------------------------

    def counts(self, budget: int | None = BUDGET) -> QuarantineCounts:
        """Count the rows. budget: the maximum number of rows to read, which one file may exceed. None: no limit."""
        total, remaining = QuarantineCounts(), budget
        for file in self._files:
            counts, remaining = self._file_counts(file, remaining)
            if counts is None:
                waiting = file.nulls.get(q.SETTLED)
                total.complete = False
                total.waiting += waiting if waiting is not None else file.rows or 0
                continue
            total.waiting += counts.waiting
            total.settled.update(counts.settled)
            total.rules.update(counts.rules)
        return total

    def broken(self) -> set[str]:
        """Return the rules that any row here broke, waiting or not."""
        import pyarrow.compute as pc

        batches = (batch for file in self._files for batch in self._batches(file, [q.RULES]))
        return {rule for batch in batches for rule in pc.unique(pc.list_flatten(batch[q.RULES])).to_pylist()}

    def _file_counts(self, file: LiveFile, budget: int | None) -> tuple[QuarantineCounts | None, int | None]:
        """Return the counts of one file, and the remaining budget. None: they are unknown, and the budget is used
        up."""
        key = (self.url, file.path)
        cached = _counts_by_file.get(key)
        if cached is not None:
            return cached, budget
        if budget is not None and budget <= 0:
            return None, budget
        counts = _get_or_compute(_counts_by_file, key, lambda: self._count_file(file))
        return counts, budget - (file.rows or _BATCH) if budget is not None else None

    def _count_file(self, file: LiveFile) -> QuarantineCounts:
        import pyarrow.compute as pc

        counts = QuarantineCounts()
        for batch in self._batches(file, [q.SETTLED, q.RULES]):
            waits = batch.filter(pc.is_null(batch[q.SETTLED]))
            counts.waiting += waits.num_rows
            counts.settled.update(_tally(batch[q.SETTLED].drop_null()))
            counts.rules.update(_tally(pc.list_flatten(waits[q.RULES])))
        return counts

    def _batches(
        self, file: LiveFile, columns: Sequence[str] | None, group: int | None = None, size: int = _BATCH
    ) -> Iterator[Any]:
        """Yield a file's rows in batches, of one row group or of all. columns: None for all columns."""
        with open_parquet(self.snapshot.location, file.path) as parquet:
            groups = [group] if group is not None else range(parquet.num_row_groups)
            yield from parquet.iter_batches(
                batch_size=size, row_groups=list(groups), columns=list(columns) if columns is not None else None
            )

    @property
    def last_checkpoint(self) -> int:
        """The last checkpoint that has quarantined rows here."""
        import pyarrow.compute as pc

        last = 0
        for file in self._files:
            high = file.high.get(q.CHECKPOINT)
            if high is None:
                maxima = (pc.max(batch[q.CHECKPOINT]).as_py() or 0 for batch in self._batches(file, [q.CHECKPOINT]))
                high = max(maxima, default=0)
            last = max(last, int(high))
        return last

    # -- rows ----------------------------------------------------------------------------------------

    def count(self, request: Request, *, settled: bool = False) -> int:
        """Return how many rows a request selects. settled: include those that no longer wait."""
        choice = _RowSelection.from_request(request, settled=settled)
        return sum(
            _hits(batch, choice)
            for file in self._candidate_files(choice)
            for batch in self._batches(file, choice.columns)
        )

    def chosen(self, request: Request, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the rows that a request selects; null in rows that are older than a column."""
        import pyarrow as pa

        choice = _RowSelection.from_request(request, settled=False)
        for file in self._candidate_files(choice):
            for batch in self._batches(file, [*choice.columns, *columns]):
                rows = batch.filter(choice.mask(batch))
                arrays = [
                    rows[name] if name in rows.schema.names else pa.nulls(rows.num_rows, self._fields[name])
                    for name in columns
                ]
                yield pa.RecordBatch.from_arrays(arrays, list(columns))

    def first(self, request: Request, limit: int, *, settled: bool = False) -> list[dict[str, Any]]:
        """Return the first rows that a request selects, with all columns."""
        choice = _RowSelection.from_request(request, settled=settled)
        rows: list[dict[str, Any]] = []
        for file in self._candidate_files(choice):
            rows += self._read_rows(file, choice, 0, limit - len(rows))
            if len(rows) >= limit:
                break
        return rows

    def of_checkpoint(self, id: int, limit: int, budget: int = BUDGET) -> list[dict[str, Any]]:
        """Return the first rows that a checkpoint has quarantined, settled or not, with all columns.

        budget: the number of rows to read. If more would be needed, those found so far are returned."""
        choice = _RowSelection(checkpoints=(id,), settled=True)
        rows: list[dict[str, Any]] = []
        for file in self._candidate_files(choice):
            if not file.low.get(q.CHECKPOINT, id) <= id <= file.high.get(q.CHECKPOINT, id):
                continue
            rows += self._read_rows(file, choice, 0, limit - len(rows))
            budget -= file.rows or _BATCH
            if len(rows) >= limit or budget <= 0:
                break
        return rows

    def page(self, rules: Sequence[str], offset: int, limit: int, budget: int | None = BUDGET) -> QuarantinePage:
        """Return a page of waiting rows, in the order of files."""
        choice = _RowSelection(rules=tuple(sorted(set(rules))))
        total, complete, remaining = 0, True, budget
        rows: list[dict[str, Any]] = []
        for file in self._files:
            hits, remaining = self._count_waiting(file, choice, remaining)
            if hits is None:
                complete = False
                continue
            if len(rows) < limit and offset < total + hits:
                rows += self._read_rows(file, choice, max(offset - total, 0), limit - len(rows))
            total += hits
        return QuarantinePage(total, complete, self.columns, rows)

    def _count_waiting(
        self, file: LiveFile, choice: _RowSelection, budget: int | None
    ) -> tuple[int | None, int | None]:
        """Return how many of a file's waiting rows are selected, and the remaining budget. None: they are not counted
        yet."""
        if not choice.rules and (waiting := file.nulls.get(q.SETTLED)) is not None:
            return int(waiting), budget
        if len(choice.rules) < 2:
            counts, budget = self._file_counts(file, budget)
            if counts is None:
                return None, budget
            return counts.rules[choice.rules[0]] if choice.rules else counts.waiting, budget
        key = (self.url, file.path, choice.rules)
        if key not in _counts_by_file and budget is not None and budget <= 0:
            return None, budget
        if key not in _counts_by_file and budget is not None:
            budget -= file.rows or _BATCH

        def count() -> int:
            return sum(_hits(batch, choice) for batch in self._batches(file, choice.columns))

        return _get_or_compute(_counts_by_file, key, count), budget

    def _candidate_files(self, choice: _RowSelection) -> Iterator[LiveFile]:
        """Yield the files that may hold selected rows, as far as the log shows."""
        for file in self._files:
            low = file.low.get(q.CHECKPOINT)
            if choice.last_seen is not None and low is not None and low > choice.last_seen:
                continue
            if not choice.settled and file.nulls.get(q.SETTLED) == 0:
                continue
            yield file

    def _read_rows(self, file: LiveFile, choice: _RowSelection, skip: int, limit: int) -> list[dict[str, Any]]:
        """Return up to `limit` selected rows of a file, after the first `skip` ones. Only row groups that hold such
        rows are read completely."""
        with open_parquet(self.snapshot.location, file.path) as parquet:
            groups = parquet.num_row_groups
        rows: list[dict[str, Any]] = []
        for group in range(groups):
            hits = sum(_hits(batch, choice) for batch in self._batches(file, choice.columns, group))
            if skip >= hits:
                skip -= hits
                continue
            for batch in self._batches(file, None, group, _WIDE):
                selected = batch.filter(choice.mask(batch))
                batch_rows = python_rows(selected.slice(skip, limit - len(rows)))
                rows += [dict.fromkeys(self._fields) | row for row in batch_rows]
                skip = max(skip - selected.num_rows, 0)
                if len(rows) >= limit:
                    return rows
        return rows

    def whole_ids(self, prefixes: Iterable[str]) -> list[str]:
        """Return the full ids for prefixes. Raise Invalid unless each prefix belongs to exactly one row."""
        texts = list(dict.fromkeys(prefixes))
        exact = {text for text in texts if len(text) == _ID_LENGTH}
        short = [text for text in texts if len(text) != _ID_LENGTH]
        matches: dict[str, list[str]] = {text: [] for text in texts}
        for file in self._files if texts else ():
            for batch in self._batches(file, [q.ID]):
                for text, id in _match_prefixes(batch[q.ID], exact, short):
                    matches[text].append(id)
        for text, ids in matches.items():
            if len(ids) != 1:
                raise Invalid(
                    f"{len(ids)} rows in quarantine of gate {self.gate!r} have an id that begins with {text!r}",
                    expected="the id of one row",
                    help="`tidegate quarantine show` shows the ids",
                    reason="NO_SUCH_ROW",
                )
        return [matches[text][0] for text in texts]

    def refuse_unknown_columns(self, names: Iterable[str]) -> None:
        """Raise Invalid if a column does not exist."""
        for name in names:
            if name not in self._fields:
                raise Invalid(
                    f"the rows in quarantine of gate {self.gate!r} have no column {name!r}",
                    expected=", ".join(self._fields),
                    help="`tidegate quarantine show` shows the rows with their columns; correct one of those",
                    reason="NO_SUCH_COLUMN",
                )

    def refuse_corrections(self, correct: Mapping[str, str | None]) -> None:
        """Raise Invalid if a column does not exist, or cannot hold the value: it would fail every checkpoint that uses
        it."""
        import pyarrow as pa

        self.refuse_unknown_columns(correct)
        for column, value in correct.items():
            kind = self._fields[column]
            try:
                pa.scalar(value, pa.string()).cast(kind)
                fits_spark = value is None or _spark_reads_same_value(value, kind)
                why = "" if fits_spark else "Spark, which casts it, reads it differently"
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                why = str(error).splitlines()[0]
            if why:
                raise Invalid(
                    f"column {column!r} cannot be {value!r}: {why}",
                    expected=f"a value of type {kind}, such as {_example(kind)}",
                    help="write the value in this form; the quarantined rows are unchanged",
                    reason="BAD_VALUE",
                )


_ID_LENGTH = 32


def _hits(batch: Any, choice: _RowSelection) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(choice.mask(batch)).as_py() or 0)


def _tally(values: Any) -> dict[str, int]:
    """Return how often each value occurs."""
    return {entry["values"]: entry["counts"] for entry in values.value_counts().to_pylist()}


def _match_prefixes(ids: Any, exact: set[str], short: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each text with the ids that begin with it. For a short text, at most two per batch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if exact:
        for id in ids.filter(pc.is_in(ids, pa.array(list(exact), pa.string()))).to_pylist():
            yield id, id
    for text in short:
        for id in ids.filter(pc.starts_with(ids, pattern=text)).slice(0, 2).to_pylist() if text else ():
            yield text, id


def _spark_reads_same_value(value: str, kind: pa.DataType) -> bool:
    """Return whether Spark reads a text as the same value as Arrow does. They agree on numbers in decimal digits, and
    on times that are complete down to the second."""
    import pyarrow.types as types

    if types.is_integer(kind):
        return re.fullmatch(r"[+-]?[0-9]+", value) is not None
    if types.is_floating(kind) or types.is_decimal(kind):
        return (
            re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity)|nan", value, re.I)
            is not None
        )
    if types.is_date(kind):
        return re.fullmatch(_DATE, value) is not None
    if types.is_timestamp(kind):
        zone = r"(Z|[+-][0-9]{2}:[0-9]{2})" if kind.tz is not None else ""
        return re.fullmatch(rf"{_DATE}[ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{1,6}})?{zone}", value) is not None
    if types.is_boolean(kind):
        return value.lower() in ("true", "false")
    return True


_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"


def _example(kind: pa.DataType) -> str:
    import pyarrow.types as types

    if types.is_timestamp(kind):
        return "2026-01-31T12:00:00" + ("Z" if kind.tz is not None else "")
    if types.is_date(kind):
        return "2026-01-31"
    return "true" if types.is_boolean(kind) else "12"


# -- caches for files, which never change --------------------------------------------------------------

_Cache = OrderedDict[tuple[Any, ...], Any]
_counts_by_file: _Cache = OrderedDict()
"""By table and file: its counts. By table, file and rules: the number of waiting rows that broke one of them."""
_file_lists: _Cache = OrderedDict()
"""By table and version: its files."""
_lock = threading.Lock()


def _get_or_compute(cache: _Cache, key: tuple[Any, ...], compute: Callable[[], Any], capacity: int = _CAPACITY) -> Any:
    """Return the cached value, or compute and cache it."""
    with _lock:
        if key in cache:
            cache.move_to_end(key)
            return cache[key]
    value = compute()
    with _lock:
        cache[key] = value
        while len(cache) > capacity:
            cache.popitem(last=False)
    return value
