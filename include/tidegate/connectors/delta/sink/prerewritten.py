"""Files of an upsert's table that its job rewrites ahead, with Spark's workers, for whoever publishes.

    stage     workers look for the batch's keys in the table as it is now, and write files without the rows that are
              replaced, into the attempt's own folder: no log names them
    publish   what still fits the table is used; what does not, and every file that came since, is looked at and
              rewritten as if nothing had been done

It is a shortcut and no more: what counts is computed on the version that the commit follows (P3), and all of this can
be missing, outdated or damaged. A rewritten file fits if each file that it replaces is in the table exactly as it was:
no commit has removed it since, nor added it again, as one does that gives it a deletion vector.

With an order, rows of the table decide which rows of the batch count. Then everything that was looked at must be as it
was, and no file that came since may hold a key of the batch; or nothing of this is used.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate import seams
from tidegate.delta import (
    LiveFile,
    Location,
    Snapshot,
    StagedFile,
    WrittenFile,
    live_files,
    missing_files,
    read_commit,
    refuse_difference,
    refuse_other_files,
)
from tidegate.delta.files.footers import describe
from tidegate.delta.keys import Keys
from tidegate.delta.order_by import BatchRows, rows_with_keys
from tidegate.delta.rewrite import InputFile, RowGroup, Table, grouped, parts_of, rewrite_parts
from tidegate.errors import TidegateError
from tidegate.records.records import Struct

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "PrerewrittenFiles",
    "Replacement",
    "StillValid",
    "Workers",
    "prerewrite_files",
    "still_valid",
    "without_failing",
]

log = logging.getLogger(__name__)

Workers = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Applies a function to each of some items, somewhere, and returns the results in the same order."""

MIN_BYTES = 32 << 20
"""With fewer bytes in the table, or in files that may hold a key, the publisher is as fast as a query of Spark's."""
_MAX_KEY_BYTES = 64 << 20
"""The batch's keys travel to every worker."""
_LOOKS = 64
_MAX_FILES = 32
"""A worker looks into so many files at most before it answers. So there are at least so many looks, or one a file."""
_WRITERS = 16
"""New files are small enough for so many workers, but not smaller than is good for the table."""
_CHECKS = 16
"""How many files are looked at at the same time."""
_MAX_COMMITS = 100
"""If there are more since, they are not read one by one."""


class Replacement(Struct, frozen=True, kw_only=True):
    """Files of one partition, and those with the rows that are left of them."""

    files: list[str]
    written: list[StagedFile]


class PrerewrittenFiles(Struct, frozen=True, kw_only=True):
    """Everything that a publisher needs to know, to use it or not."""

    version: int
    """The table's version to which all of this refers."""
    log_hash: str
    keys: list[str]
    order_by: list[str]
    replacements: list[Replacement]
    standing: list[str] = []
    """With an order, the other files that hold a key of the batch: their rows count, those of the batch do not."""
    late: Replacement | None = None
    """With an order, staged files with rows that do not count, and those to add in their place."""


# -- ahead ---------------------------------------------------------------------------------------------


def without_failing(
    make: Callable[[], PrerewrittenFiles | None], location: Location, folder: str
) -> PrerewrittenFiles | None:
    """Return the result. If it fails, whatever the reason, the publisher does all of it."""
    try:
        return make()
    except Exception as error:
        log.warning(
            "files of %s could not be rewritten ahead, so they are rewritten when the checkpoint is published, which "
            "takes longer: %s: %s",
            location.url,
            type(error).__name__,
            str(error)[:300],
        )
        with contextlib.suppress(TidegateError):
            location.remove_folder(folder)
        return None


def prerewrite_files(
    snapshot: Snapshot,
    files: Sequence[StagedFile],
    deletes: Sequence[StagedFile],
    keys: Sequence[str],
    order_by: Sequence[str],
    folder: str,
    workers: Workers,
) -> PrerewrittenFiles | None:
    """Let workers write what is left of the table's files, into a folder of their own. None: it is not worth while.

    files, deletes: those of one batch, with one row for each key.
    """
    table = Table(snapshot.location, snapshot.schema, snapshot.partition_by)
    live = live_files(snapshot)
    if sum(file.size for file in live) < MIN_BYTES:
        return None
    batch = BatchRows.read(table, [list(map(InputFile.of, (*files, *deletes)))], keys, order_by)
    candidates = [InputFile.of(file) for file in live if batch.distinct_keys.may_touch(file)]
    if sum(source.size for source in candidates) < MIN_BYTES or batch.nbytes > _MAX_KEY_BYTES:
        return None
    look = _KeyFinder(table, batch.distinct_keys, tuple(keys), tuple(batch.names), ordered=bool(order_by))
    holding = [each for found in workers(look, _shares(candidates)) for each in found]
    if not order_by:
        lost, standing = _RowFilter(batch.distinct_keys), list[str]()
        counts = {each.source.path: each.matching_rows for each in holding}
    else:
        newest = batch.settle([each.rows for each in holding])
        lost = _RowFilter(newest.won, newest.late)
        counts = {each.source.path: _true(newest.won.contains(each.rows.select(list(keys)))) for each in holding}
        standing = [each.source.path for each in holding if not counts[each.source.path]]
    late = [InputFile.of(file) for file in files if file.path in lost.late]
    counts |= {source.path: _true(lost.late[source.path]) for source in late}
    groups = grouped([each.parts for each in holding if counts[each.source.path]], _WRITERS)
    late_groups = grouped([parts_of(table, source) for source in late], _WRITERS)
    write = _FileWriter(table, tuple(keys), lost, folder)
    replacements = _replacements(write, [*groups, *late_groups], counts, workers)
    return PrerewrittenFiles(
        version=snapshot.version,
        log_hash=snapshot.log_hash,
        keys=list(keys),
        order_by=list(order_by),
        replacements=replacements[: len(groups)],
        standing=standing,
        late=_as_one(replacements[len(groups) :]) if late else None,
    )


class _FileWithKeys(NamedTuple):
    """A file that holds keys of the batch."""

    source: InputFile
    parts: list[RowGroup]
    matching_rows: int
    """The number of its rows with such a key."""
    rows: pa.Table
    """These rows; without an order none, for then they do not matter."""


@dataclass(frozen=True)
class _KeyFinder:
    """Finds the files that hold some keys. For a worker."""

    table: Table
    wanted_keys: Keys
    keys: tuple[str, ...]
    names: tuple[str, ...]
    ordered: bool

    def __call__(self, sources: Sequence[InputFile]) -> list[_FileWithKeys]:
        return [found for source in sources if (found := self._look(source)).matching_rows]

    def _look(self, source: InputFile) -> _FileWithKeys:
        rows = rows_with_keys(self.table, source, self.names, self.keys, self.wanted_keys)
        return _FileWithKeys(
            source, parts_of(self.table, source), len(rows), rows if self.ordered else rows.slice(0, 0)
        )


@dataclass(frozen=True)
class _RowFilter:
    """Picks the rows that do not stay: of a staged file those that do not count, of the table's those with a key."""

    keys: Keys
    late: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, rows: pa.Table, source: InputFile, start: int) -> Any:
        if source.path in self.late:
            return self.late[source.path].slice(start, rows.num_rows)
        return self.keys.contains(rows)


@dataclass(frozen=True)
class _FileWriter:
    """Writes one new file. For a worker: an attempt at a task that is repeated, or overtaken, has another name."""

    table: Table
    keys: tuple[str, ...]
    lost: _RowFilter
    folder: str

    def __call__(self, parts: Sequence[RowGroup]) -> tuple[str, WrittenFile, int]:
        name = f"{seams.new_id()}.parquet"
        return name, *rewrite_parts(self.table, parts, self.keys, self.lost, f"{self.folder}/{name}")


def _shares(sources: Sequence[InputFile]) -> list[Sequence[InputFile]]:
    size = min(max(1, len(sources) // _LOOKS), _MAX_FILES)
    return [sources[start : start + size] for start in range(0, len(sources), size)]


def _replacements(
    write: _FileWriter, groups: Sequence[Sequence[Sequence[RowGroup]]], counts: Mapping[str, int], workers: Workers
) -> list[Replacement]:
    """Let workers write all groups. Raise Unavailable unless exactly the rows that stay are in the store.

    counts: how many rows each file loses.
    """
    bundles = [parts for group in groups for parts in group]
    told = workers(write, bundles)
    location, schema = write.table.location, write.table.schema
    refuse_other_files(location, write.folder, {name: file for name, file, _ in told if file.rows})

    def described(parts: Sequence[RowGroup], answer: tuple[str, WrittenFile, int]) -> list[StagedFile]:
        name, file, lost = answer
        partition, expected = parts[0].source.partition, sum(part.rows for part in parts) - lost
        files = [describe(location, f"{write.folder}/{name}", schema, partition)] if file.rows else []
        refuse_difference(location.full(f"{write.folder}/{name}"), expected, sum(each.rows for each in files))
        return files

    with ThreadPoolExecutor(_CHECKS) as pool:
        files, lost = pool.map(described, bundles, told), iter([lost for _, _, lost in told])
        found = []
        for group in groups:
            paths = list(dict.fromkeys(part.source.path for parts in group for part in parts))
            expected = sum(counts[path] for path in paths)
            refuse_difference(location.full(write.folder), expected, sum(next(lost) for _ in group))
            written = [file for _ in group for file in next(files)]
            found.append(Replacement(files=paths, written=written))
    location.sync([file.path for each in found for file in each.written])
    return found


def _as_one(replacements: Sequence[Replacement]) -> Replacement:
    files = [path for each in replacements for path in each.files]
    return Replacement(files=files, written=[file for each in replacements for file in each.written])


def _true(mask: Any) -> int:
    import pyarrow.compute as pc

    return pc.sum(mask).as_py() or 0


# -- when it is published ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StillValid:
    """What can be used of it at a later version."""

    replaced: list[LiveFile]
    written: list[StagedFile]
    again: list[LiveFile]
    """The files about which it says nothing."""
    is_complete: bool
    """Whether everything that was looked at is as it was."""
    late: Replacement | None

    def counting(self, staged: Sequence[StagedFile]) -> list[StagedFile]:
        """Return the files of the batch, without the rows that do not count."""
        if self.late is None:
            return list(staged)
        return [*(file for file in staged if file.path not in self.late.files), *self.late.written]


def still_valid(
    snapshot: Snapshot,
    ahead: PrerewrittenFiles,
    live: Mapping[str, LiveFile],
    keys: Sequence[str],
    order_by: Sequence[str],
) -> StillValid | None:
    """Return what can be used at this version, whose files are `live`. None: nothing.

    keys, order_by: those of the sink, which may be declared differently by now.
    """
    if ahead.keys != list(keys) or ahead.order_by != list(order_by):
        return None
    added = _added_since(snapshot, ahead)
    if added is None:
        return None

    same = live.keys() - added
    valid = [each for each in ahead.replacements if same.issuperset(each.files)]
    written = [file for each in valid for file in each.written]
    late = ahead.late.written if ahead.late is not None else []
    if missing_files(snapshot.location, [*written, *late]):
        return None
    replaced = {path for each in valid for path in each.files}
    again = added.union(*(each.files for each in ahead.replacements)) - replaced
    return StillValid(
        replaced=[live[path] for path in sorted(replaced)],
        written=written,
        again=[live[path] for path in sorted(again & live.keys())],
        is_complete=len(valid) == len(ahead.replacements) and same.issuperset(ahead.standing),
        late=ahead.late,
    )


def _added_since(snapshot: Snapshot, ahead: PrerewrittenFiles) -> set[str] | None:
    """Return the files that commits have added since. None: that is unknown, or the table has been changed otherwise.

    A file that is in the table and not among them has been there all the time.
    """
    if snapshot.version == ahead.version:
        return set() if snapshot.log_hash == ahead.log_hash else None
    if not 0 < snapshot.version - ahead.version <= _MAX_COMMITS:
        return None
    base = read_commit(snapshot.location, ahead.version)
    if base is None or base.sha != ahead.log_hash:
        return None
    added: set[str] = set()
    for version in range(ahead.version + 1, snapshot.version + 1):
        commit = read_commit(snapshot.location, version)
        if commit is None or commit.changes_layout:
            return None
        added |= commit.added_paths()
    return added
