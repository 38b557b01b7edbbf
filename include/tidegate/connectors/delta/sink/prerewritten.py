"""Lets the job of an upsert rewrite files of the table in advance, on Spark's workers, so that publishing is fast.

    stage     workers look for the batch's keys in the current version of the table, and write its files without the
              replaced rows, into the attempt's folder, invisibly
    publish   rewritten files that still fit the table are used; all other files, including those added since, are
              searched and rewritten by the publisher

This is only an optimization. The result is determined by the version that the commit follows (P3), and the rewritten
files may be missing, outdated or damaged. A rewritten file fits if the table still has each file that it replaces,
unchanged: no commit has removed it since, or added it again (as with a new deletion vector).

With an order, rows of the table decide which rows of the batch count. The rewritten files are then used only if every
file that was searched is unchanged, and no file added since holds a key of the batch.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

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
    verify_written_files,
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
"""Applies a function to each item, possibly on other machines, and returns the results in order."""

MIN_BYTES = 32 << 20
"""With fewer bytes in the table, or in files that may hold a key, the publisher is as fast as a Spark query."""
_MAX_KEY_BYTES = 64 << 20
"""Limits the batch's keys, which are sent to every worker."""
_MIN_SEARCHES = 64
_MAX_FILES = 32
"""The files of the table are divided into at least _MIN_SEARCHES searches of at most _MAX_FILES files each."""
_WRITERS = 16
"""The number of workers to divide new files for, unless the files would become too small for the table."""
_CHECKS = 16
"""The number of files checked concurrently."""
_MAX_COMMITS = 100
"""With more commits since, reading them one by one takes too long."""


class Replacement(Struct, frozen=True, kw_only=True):
    """Files of one partition, and the new files with their remaining rows."""

    files: list[str]
    written: list[StagedFile]


class PrerewrittenFiles(Struct, frozen=True, kw_only=True):
    """All that a publisher needs to know to decide whether to use the files."""

    version: int
    """The table's version that was rewritten."""
    log_hash: str
    keys: list[str]
    order_by: list[str]
    replacements: list[Replacement]
    standing: list[str] = []
    """With an order: the other files that hold keys of the batch, in rows that win over the batch's."""
    outdated: Replacement | None = msgspec.field(default=None, name="late")
    """With an order: staged files with rows that lose, and the files to add instead."""


# -- in the job ----------------------------------------------------------------------------------------


def without_failing(
    rewrite: Callable[[], PrerewrittenFiles | None], location: Location, folder: str
) -> PrerewrittenFiles | None:
    """Return the result of `rewrite`, or None if it fails for any reason: the publisher then does all the work."""
    try:
        return rewrite()
    except Exception as error:
        log.warning(
            "files of %s could not be rewritten in advance; they are rewritten when the checkpoint is published, which "
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
    """Let workers rewrite the table's files without the batch's keys, into `folder`. Return None if it is not
    worthwhile.

    files, deletes: the files of one batch, with one row for each key.
    """
    table = Table(snapshot.location, snapshot.schema, snapshot.partition_by)
    live = live_files(snapshot)
    if sum(file.size for file in live) < MIN_BYTES:
        return None
    batch = BatchRows.read(table, [list(map(InputFile.from_file, (*files, *deletes)))], keys, order_by)
    candidates = [InputFile.from_file(file) for file in live if batch.distinct_keys.may_touch(file)]
    if sum(source.size for source in candidates) < MIN_BYTES or batch.nbytes > _MAX_KEY_BYTES:
        return None
    find_keys = _KeyFinder(table, batch.distinct_keys, tuple(keys), tuple(batch.names), ordered=bool(order_by))
    found_files: list[_FileWithKeys] = []
    for files_of_worker in workers(find_keys, _shares(candidates)):
        found_files += files_of_worker
    lost_rows, lost_counts = _find_lost_rows(batch, found_files)
    standing = [path for path, count in lost_counts.items() if not count]
    outdated = [InputFile.from_file(staged) for staged in files if staged.path in lost_rows.outdated]
    for source in outdated:
        lost_counts[source.path] = _count_true(lost_rows.outdated[source.path])
    groups = grouped([file.parts for file in found_files if lost_counts[file.source.path]], _WRITERS)
    outdated_groups = grouped([parts_of(table, source) for source in outdated], _WRITERS)
    write = _FileWriter(table, tuple(keys), lost_rows, folder)
    replacements = _replacements(write, [*groups, *outdated_groups], lost_counts, workers)
    return PrerewrittenFiles(
        version=snapshot.version,
        log_hash=snapshot.log_hash,
        keys=list(keys),
        order_by=list(order_by),
        replacements=replacements[: len(groups)],
        standing=standing,
        outdated=_merged(replacements[len(groups) :]) if outdated else None,
    )


def _find_lost_rows(batch: BatchRows, found_files: Sequence[_FileWithKeys]) -> tuple[_RowFilter, dict[str, int]]:
    """Return a filter of the rows to remove, and by path the number of rows that each file of the table loses."""
    counts: dict[str, int] = {}
    if not batch.order:
        for file in found_files:
            counts[file.source.path] = file.matching_rows
        return _RowFilter(batch.distinct_keys), counts
    newest = batch.settle([file.rows for file in found_files])
    for file in found_files:
        counts[file.source.path] = _count_true(newest.won.contains(file.rows.select(list(batch.keys))))
    return _RowFilter(newest.won, newest.outdated), counts


class _FileWithKeys(NamedTuple):
    """A file of the table that holds keys of the batch."""

    source: InputFile
    parts: list[RowGroup]
    matching_rows: int
    """The number of rows with such a key."""
    rows: pa.Table
    """These rows. Empty without an order, which does not need them."""


@dataclass(frozen=True)
class _KeyFinder:
    """Finds the files that hold any of the wanted keys. Runs on a worker."""

    table: Table
    wanted_keys: Keys
    keys: tuple[str, ...]
    names: tuple[str, ...]
    ordered: bool

    def __call__(self, sources: Sequence[InputFile]) -> list[_FileWithKeys]:
        files = []
        for source in sources:
            rows = rows_with_keys(self.table, source, self.names, self.keys, self.wanted_keys)
            count = len(rows)
            if not self.ordered:
                rows = rows.slice(0, 0)
            if count:
                files.append(_FileWithKeys(source, parts_of(self.table, source), count, rows))
        return files


@dataclass(frozen=True)
class _RowFilter:
    """Selects the rows to remove: the outdated rows of a staged file, or the rows of a file of the table with these
    keys."""

    keys: Keys
    outdated: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, rows: pa.Table, source: InputFile, start: int) -> Any:
        if source.path in self.outdated:
            return self.outdated[source.path].slice(start, rows.num_rows)
        return self.keys.contains(rows)


@dataclass(frozen=True)
class _FileWriter:
    """Writes one new file. Runs on a worker, with a random file name, so that repeated task attempts do not collide."""

    table: Table
    keys: tuple[str, ...]
    lost_rows: _RowFilter
    folder: str

    def __call__(self, parts: Sequence[RowGroup]) -> tuple[str, WrittenFile, int]:
        name = f"{seams.new_id()}.parquet"
        return name, *rewrite_parts(self.table, parts, self.keys, self.lost_rows, f"{self.folder}/{name}")


def _shares(sources: Sequence[InputFile]) -> list[Sequence[InputFile]]:
    size = min(max(1, len(sources) // _MIN_SEARCHES), _MAX_FILES)
    return [sources[start : start + size] for start in range(0, len(sources), size)]


def _replacements(
    write: _FileWriter, groups: Sequence[Sequence[Sequence[RowGroup]]], lost_counts: Mapping[str, int], workers: Workers
) -> list[Replacement]:
    """Let workers write all groups. Raise Unavailable unless the store then has exactly the remaining rows.

    lost_counts: by path, the number of rows that each file loses.
    """
    bundles = [parts for group in groups for parts in group]
    reports = workers(write, bundles)
    location, schema = write.table.location, write.table.schema
    verify_written_files(location, write.folder, {name: file for name, file, _ in reports if file.rows})

    def check_written(parts: Sequence[RowGroup], report: tuple[str, WrittenFile, int]) -> list[StagedFile]:
        name, file, lost = report
        path = f"{write.folder}/{name}"
        expected = sum(part.rows for part in parts) - lost
        files = [describe(location, path, schema, parts[0].source.partition)] if file.rows else []
        refuse_difference(location.full(path), expected, sum(described.rows for described in files))
        return files

    replacements = []
    with ThreadPoolExecutor(_CHECKS) as pool:
        checked_files, lost_rows = pool.map(check_written, bundles, reports), iter([lost for _, _, lost in reports])
        for group in groups:
            paths = list(dict.fromkeys(part.source.path for parts in group for part in parts))
            expected = sum(lost_counts[path] for path in paths)
            refuse_difference(location.full(write.folder), expected, sum(next(lost_rows) for _ in group))
            written = [file for _ in group for file in next(checked_files)]
            replacements.append(Replacement(files=paths, written=written))
    location.sync([file.path for file in _merged(replacements).written])
    return replacements


def _merged(replacements: Sequence[Replacement]) -> Replacement:
    files = [path for replacement in replacements for path in replacement.files]
    written = [file for replacement in replacements for file in replacement.written]
    return Replacement(files=files, written=written)


def _count_true(mask: Any) -> int:
    import pyarrow.compute as pc

    return pc.sum(mask).as_py() or 0


# -- in the publisher ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StillValid:
    """The part of PrerewrittenFiles that can be used at a later version of the table."""

    replaced: list[LiveFile]
    written: list[StagedFile]
    unprocessed: list[LiveFile]
    """Files that the publisher must search and rewrite."""
    is_complete: bool
    """Whether every file that was searched is unchanged."""
    outdated: Replacement | None

    def without_outdated_rows(self, staged: Sequence[StagedFile]) -> list[StagedFile]:
        """Return the files of the batch, with those that hold outdated rows replaced."""
        if self.outdated is None:
            return list(staged)
        return [*(file for file in staged if file.path not in self.outdated.files), *self.outdated.written]


def still_valid(
    snapshot: Snapshot,
    prerewritten: PrerewrittenFiles,
    live: Mapping[str, LiveFile],
    keys: Sequence[str],
    order_by: Sequence[str],
) -> StillValid | None:
    """Return what can be used at this version, whose files are `live`, or None.

    keys, order_by: the sink's current declaration, which may have changed since.
    """
    if prerewritten.keys != list(keys) or prerewritten.order_by != list(order_by):
        return None
    added = _added_since(snapshot, prerewritten)
    if added is None:
        return None

    unchanged = live.keys() - added
    valid = [replacement for replacement in prerewritten.replacements if unchanged.issuperset(replacement.files)]
    merged = _merged(valid)
    outdated = prerewritten.outdated.written if prerewritten.outdated is not None else []
    if missing_files(snapshot.location, [*merged.written, *outdated]):
        return None
    replaced = set(merged.files)
    unprocessed = added.union(*(replacement.files for replacement in prerewritten.replacements)) - replaced
    return StillValid(
        replaced=[live[path] for path in sorted(replaced)],
        written=merged.written,
        unprocessed=[live[path] for path in sorted(unprocessed & live.keys())],
        is_complete=len(valid) == len(prerewritten.replacements) and unchanged.issuperset(prerewritten.standing),
        outdated=prerewritten.outdated,
    )


def _added_since(snapshot: Snapshot, prerewritten: PrerewrittenFiles) -> set[str] | None:
    """Return the files that commits have added since, or None if that is unknown or other properties have changed.

    A file of the table that is not among them has been there all the time, unchanged.
    """
    if snapshot.version == prerewritten.version:
        return set() if snapshot.log_hash == prerewritten.log_hash else None
    if not 0 < snapshot.version - prerewritten.version <= _MAX_COMMITS:
        return None
    base = read_commit(snapshot.location, prerewritten.version)
    if base is None or base.sha != prerewritten.log_hash:
        return None
    added: set[str] = set()
    for version in range(prerewritten.version + 1, snapshot.version + 1):
        commit = read_commit(snapshot.location, version)
        if commit is None or commit.changes_layout:
            return None
        added |= commit.added_paths()
    return added
