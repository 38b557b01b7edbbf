"""A gate's quarantine as people look at it: through delta-rs and Arrow, no JVM.

However large it is, looking costs what is shown. How many rows wait is told by the log's statistics; which rules they
broke is counted once per file, since files never change, and a bounded number of rows at a time; a page reads the files
that its rows are in. No more than a batch of rows is in memory, and only what is shown is made Python objects.
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
from tidegate.delta.dataset import dataset
from tidegate.delta.files.footers import open_parquet
from tidegate.errors import Invalid
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.table import QuarantineSink
from tidegate.records.records import Request

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["QuarantineCounts", "QuarantinePage", "SetAside", "open_quarantine"]

BUDGET = 1_000_000
"""So many rows are counted in one look. What is left is counted by the next one."""
_BATCH = 65_536
_WIDE = 4_096
_CAPACITY, _TABLES = 50_000, 32


def open_quarantine(home: str, gate: str, options: Mapping[str, str]) -> SetAside | None:
    """The quarantine of a gate in a pipeline's folder; None: it has set no rows aside."""
    snapshot = open_table(Location(QuarantineSink(gate).path(home), dict(options)))
    return SetAside(gate, snapshot) if snapshot is not None else None


@dataclass
class QuarantineCounts:
    """How many rows wait, what became of the others, which rules those that wait broke."""

    waiting: int = 0
    settled: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    complete: bool = True
    """Whether all of it was counted. If not, `rules` and `settled` are those of the files counted so far."""


@dataclass(frozen=True)
class QuarantinePage:
    """Some rows that wait, as they were when they were set aside, and how many there are."""

    total: int
    complete: bool
    """Whether all of it was counted. If not, there may be more than `total`."""
    columns: list[str]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class _Choice:
    """Which rows are meant."""

    seen: int | None = None
    ids: tuple[str, ...] = ()
    checkpoints: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    settled: bool = False

    @classmethod
    def of(cls, request: Request, *, settled: bool) -> _Choice:
        return cls(request.seen, tuple(request.ids), tuple(request.checkpoints), tuple(request.rules), settled)

    @property
    def columns(self) -> list[str]:
        """What must be read to tell."""
        wanted = {q.SETTLED: not self.settled, q.ID: self.ids, q.RULES: self.rules}
        return [q.CHECKPOINT, *(name for name, asked in wanted.items() if asked)]

    def mask(self, batch: Any) -> Any:
        """For each row of a batch, whether it is meant."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kept = pc.is_valid(batch[q.CHECKPOINT])
        if self.seen is not None:
            kept = pc.and_(kept, pc.less_equal(batch[q.CHECKPOINT], self.seen))
        if not self.settled:
            kept = pc.and_(kept, pc.is_null(batch[q.SETTLED]))
        for column, values in ((q.ID, self.ids), (q.CHECKPOINT, self.checkpoints)):
            if values:
                kept = pc.and_(kept, pc.is_in(batch[column], pa.array(list(values))))
        return pc.and_(kept, _broke(batch[q.RULES], self.rules)) if self.rules else kept


def _broke(column: Any, rules: Sequence[str]) -> Any:
    """For each row, whether it broke one of the rules."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    hit = pc.is_in(pc.list_flatten(column), pa.array(list(rules), pa.string()))
    found = np.zeros(len(column), dtype=bool)
    found[pc.list_parent_indices(column).filter(hit).to_numpy(zero_copy_only=False)] = True
    return pa.array(found)


@dataclass(frozen=True)
class SetAside:
    """The table at one moment."""

    gate: str
    snapshot: Snapshot

    @property
    def url(self) -> str:
        return self.snapshot.location.url

    @cached_property
    def _files(self) -> list[LiveFile]:
        key = (self.url, self.snapshot.log_hash)
        found: list[LiveFile] = _remembered(_listed, key, lambda: live_files(self.snapshot), _TABLES)
        return found

    @cached_property
    def _fields(self) -> dict[str, Any]:
        """The columns that rows had when they were set aside, with their types."""
        fields = dataset(self.snapshot).schema
        return {field.name: field.type for field in fields if field.name not in q.OWN_COLUMNS}

    @property
    def columns(self) -> list[str]:
        """The names of these columns."""
        return list(self._fields)

    # -- counting ------------------------------------------------------------------------------------

    def counts(self, budget: int | None = BUDGET) -> QuarantineCounts:
        """In numbers. budget: so many rows are read at most, but for one file; None: all that it takes."""
        told, left = QuarantineCounts(), budget
        for file in self._files:
            counted, left = self._counted(file, left)
            if counted is None:
                waiting = file.nulls.get(q.SETTLED)
                told.complete = False
                told.waiting += waiting if waiting is not None else file.rows or 0
                continue
            told.waiting += counted.waiting
            told.settled.update(counted.settled)
            told.rules.update(counted.rules)
        return told

    def broken(self) -> set[str]:
        """The rules that any row here broke, whatever has become of it."""
        import pyarrow.compute as pc

        batches = (batch for file in self._files for batch in self._batches(file, [q.RULES]))
        return {rule for batch in batches for rule in pc.unique(pc.list_flatten(batch[q.RULES])).to_pylist()}

    def _counted(self, file: LiveFile, left: int | None) -> tuple[QuarantineCounts | None, int | None]:
        """What is in one file, if it is known or there is room to find out; and how much room is left then."""
        key = (self.url, file.path)
        if (known := _known.get(key)) is not None:
            return known, left
        if left is not None and left <= 0:
            return None, left
        found = _remembered(_known, key, lambda: self._count(file))
        return found, left - (file.rows or _BATCH) if left is not None else None

    def _count(self, file: LiveFile) -> QuarantineCounts:
        import pyarrow.compute as pc

        told = QuarantineCounts()
        for batch in self._batches(file, [q.SETTLED, q.RULES]):
            waits = batch.filter(pc.is_null(batch[q.SETTLED]))
            told.waiting += waits.num_rows
            told.settled.update(_tally(batch[q.SETTLED].drop_null()))
            told.rules.update(_tally(pc.list_flatten(waits[q.RULES])))
        return told

    def _batches(
        self, file: LiveFile, columns: Sequence[str] | None, group: int | None = None, size: int = _BATCH
    ) -> Iterator[Any]:
        """A file's rows, some at a time; of one row group, or of all. columns: None for all that there are."""
        with open_parquet(self.snapshot.location, file.path) as parquet:
            groups = [group] if group is not None else range(parquet.num_row_groups)
            yield from parquet.iter_batches(
                batch_size=size, row_groups=list(groups), columns=list(columns) if columns is not None else None
            )

    @property
    def last_checkpoint(self) -> int:
        """The last checkpoint that has set rows aside here."""
        import pyarrow.compute as pc

        last = 0
        for file in self._files:
            high = file.high.get(q.CHECKPOINT)
            if high is None:
                found = (pc.max(batch[q.CHECKPOINT]).as_py() or 0 for batch in self._batches(file, [q.CHECKPOINT]))
                high = max(found, default=0)
            last = max(last, int(high))
        return last

    # -- rows ----------------------------------------------------------------------------------------

    def count(self, request: Request, *, settled: bool = False) -> int:
        """How many rows a request is about. settled: also those that do not wait any more."""
        choice = _Choice.of(request, settled=settled)
        return sum(
            _hits(batch, choice) for file in self._meant(choice) for batch in self._batches(file, choice.columns)
        )

    def first(self, request: Request, limit: int, *, settled: bool = False) -> list[dict[str, Any]]:
        """The first of the rows that a request is about, with all columns."""
        choice = _Choice.of(request, settled=settled)
        found: list[dict[str, Any]] = []
        for file in self._meant(choice):
            found += self._read(file, choice, 0, limit - len(found))
            if len(found) >= limit:
                break
        return found

    def page(self, rules: Sequence[str], offset: int, limit: int, budget: int | None = BUDGET) -> QuarantinePage:
        """Rows that wait, some of them, in the order of files."""
        choice = _Choice(rules=tuple(sorted(set(rules))))
        total, complete, left = 0, True, budget
        rows: list[dict[str, Any]] = []
        for file in self._files:
            hits, left = self._waiting(file, choice, left)
            if hits is None:
                complete = False
                continue
            if len(rows) < limit and offset < total + hits:
                rows += self._read(file, choice, max(offset - total, 0), limit - len(rows))
            total += hits
        return QuarantinePage(total, complete, self.columns, rows)

    def _waiting(self, file: LiveFile, choice: _Choice, left: int | None) -> tuple[int | None, int | None]:
        """How many of a file's rows a page is about; None: it was not counted yet."""
        if not choice.rules and (waiting := file.nulls.get(q.SETTLED)) is not None:
            return int(waiting), left
        if len(choice.rules) < 2:
            counted, left = self._counted(file, left)
            if counted is None:
                return None, left
            return (counted.rules[choice.rules[0]] if choice.rules else counted.waiting), left
        key = (self.url, file.path, choice.rules)
        if key not in _known and left is not None and left <= 0:
            return None, left
        if key not in _known and left is not None:
            left -= file.rows or _BATCH

        def count() -> int:
            return sum(_hits(batch, choice) for batch in self._batches(file, choice.columns))

        return _remembered(_known, key, count), left

    def _meant(self, choice: _Choice) -> Iterator[LiveFile]:
        """The files that may hold such rows, as far as the log tells."""
        for file in self._files:
            low = file.low.get(q.CHECKPOINT)
            if choice.seen is not None and low is not None and low > choice.seen:
                continue
            if not choice.settled and file.nulls.get(q.SETTLED) == 0:
                continue
            yield file

    def _read(self, file: LiveFile, choice: _Choice, skip: int, limit: int) -> list[dict[str, Any]]:
        """So many rows of a file, behind those to be skipped. Only row groups that hold such rows are read whole."""
        with open_parquet(self.snapshot.location, file.path) as parquet:
            groups = parquet.num_row_groups
        found: list[dict[str, Any]] = []
        for group in range(groups):
            hits = sum(_hits(batch, choice) for batch in self._batches(file, choice.columns, group))
            if skip >= hits:
                skip -= hits
                continue
            for batch in self._batches(file, None, group, _WIDE):
                meant = batch.filter(choice.mask(batch))
                found += [
                    dict.fromkeys(self._fields) | row for row in meant.slice(skip, limit - len(found)).to_pylist()
                ]
                skip = max(skip - meant.num_rows, 0)
                if len(found) >= limit:
                    return found
        return found

    def whole_ids(self, given: Iterable[str]) -> list[str]:
        """The ids that begin as given, each of just one row."""
        wanted = list(dict.fromkeys(given))
        exact, short = {text for text in wanted if len(text) == _ID}, [text for text in wanted if len(text) != _ID]
        there: dict[str, list[str]] = {text: [] for text in wanted}
        for file in self._files if wanted else ():
            for batch in self._batches(file, [q.ID]):
                for text, id in _beginning(batch[q.ID], exact, short):
                    there[text].append(id)
        for text, same in there.items():
            if len(same) != 1:
                raise Invalid(
                    f"{len(same)} rows in quarantine of gate {self.gate!r} have an id that begins with {text!r}",
                    expected="the id of one row",
                    help="`tidegate quarantine show` tells the ids",
                    reason="NO_SUCH_ROW",
                )
        return [there[text][0] for text in wanted]

    def refuse_corrections(self, correct: Mapping[str, str | None]) -> None:
        """Invalid if a column is not there, or cannot hold the value: it would fail each checkpoint that tried."""
        import pyarrow as pa

        for column, value in correct.items():
            kind = self._fields.get(column)
            if kind is None:
                raise Invalid(
                    f"the rows in quarantine of gate {self.gate!r} have no column {column!r}",
                    expected=", ".join(self._fields),
                    help="`tidegate quarantine show` shows the rows with their columns; correct one of those",
                    reason="NO_SUCH_COLUMN",
                )
            try:
                pa.scalar(value, pa.string()).cast(kind)
                why = (
                    "" if value is None or _as_spark_reads(value, kind) else "Spark, which casts it, reads it otherwise"
                )
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                why = str(error).splitlines()[0]
            if why:
                raise Invalid(
                    f"column {column!r} cannot be {value!r}: {why}",
                    expected=f"a value of type {kind}, such as {_example(kind)}",
                    help="write it so; what was set aside is unchanged",
                    reason="BAD_VALUE",
                )


_ID = 32
"""Letters of an id."""


def _hits(batch: Any, choice: _Choice) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(choice.mask(batch)).as_py() or 0)


def _tally(values: Any) -> dict[str, int]:
    """How often each value is there."""
    return {each["values"]: each["counts"] for each in values.value_counts().to_pylist()}


def _beginning(ids: Any, exact: set[str], short: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Which ids begin as which text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if exact:
        for id in ids.filter(pc.is_in(ids, pa.array(list(exact), pa.string()))).to_pylist():
            yield id, id
    for text in short:
        for id in ids.filter(pc.starts_with(ids, pattern=text)).slice(0, 2).to_pylist() if text else ():
            yield text, id


def _as_spark_reads(value: str, kind: pa.DataType) -> bool:
    """Whether a text that Arrow takes for such a value is one to Spark, too: of numbers in decimal digits, and times
    down to the second, both think the same."""
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


# -- what is known of files, which never change --------------------------------------------------------

_Cache = OrderedDict[tuple[Any, ...], Any]
_known: _Cache = OrderedDict()
"""By table and file: what was counted in it. By table, file and rules: how many rows that wait broke one of them."""
_listed: _Cache = OrderedDict()
"""By table and version: its files."""
_lock = threading.Lock()


def _remembered(cache: _Cache, key: tuple[Any, ...], find: Callable[[], Any], capacity: int = _CAPACITY) -> Any:
    """What was found out before, or is now."""
    with _lock:
        if key in cache:
            cache.move_to_end(key)
            return cache[key]
    found = find()
    with _lock:
        cache[key] = found
        while len(cache) > capacity:
            cache.popitem(last=False)
    return found
