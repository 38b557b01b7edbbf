"""Check a range of a Delta table before it is read: its commits are still the same, its files still exist."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tidegate.delta import Commit, DataFile, Location, TableLog, shown_path
from tidegate.errors import Invalid
from tidegate.records.records import Amount, Json
from tidegate.sources.delta import errors

__all__ = ["verify_delta"]

SHOWN: Final = 20
LOOKS_AT_ONCE: Final = 16


def verify_delta(log: TableLog, splits: Json, source: str) -> Amount:
    """Raise Invalid, naming every version that was replaced and every missing file. Return the size of the range."""
    table = _current_table(log)
    if table not in (None, splits["table"]):
        raise errors.recreated(source, log.location.url, splits["table"], str(table))
    needs_log = splits["reader"] == "delta" or splits["feed"] is not None
    problems: list[str] = []
    files = [DataFile(file["path"], file["size"], file["values"]) for file in splits["files"]]
    for number, sha in splits["commits"]:
        commit = log.commit(number)
        if commit is None and sha is not None and needs_log:
            problems.append(f"version {number}: its commit file is gone (log retention, or the table was dropped)")
        elif commit is not None and sha is not None and commit.sha != sha:
            problems.append(f"version {number}: its commit was written again (restored from a copy?)")
        elif commit is not None and splits["feed"] is not None:
            files += _feed_files(commit, splits)
    if not problems:
        problems += _file_problems(log.location, files)
    if problems:
        more = f"\n  … and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise Invalid(
            f"source {source!r}: {log.location.url} has changed since the checkpoint was planned:"
            + "".join(f"\n  {problem}" for problem in problems[:SHOWN])
            + more,
            expected="the planned versions and their files",
            help="restore the missing files from a copy, and try again; or skip them: give the source another name and "
            "start it at a later version. VACUUM must keep files until this pipeline has read them: raise "
            "delta.deletedFileRetentionDuration",
            reason="SOURCE_CHANGED",
        )
    return _amount(files, splits)


def _amount(files: list[DataFile], splits: Json) -> Amount:
    """Return the size of a range. The number of rows is unknown for a change feed, and for an interval: not all rows of
    its files are in it."""
    row_counts = [file.get("rows") for file in splits["files"]]
    partial = splits["feed"] is not None or splits.get("interval") is not None
    rows = None if (partial and files) or None in row_counts else sum(row_counts)
    return Amount(rows=rows, bytes=sum(file.size for file in files), files=len(files))


def _feed_files(commit: Commit, splits: Json) -> list[DataFile]:
    first, last = splits["feed"]
    return commit.change_files if first <= commit.version <= last else []


def _current_table(log: TableLog) -> str | None:
    """Return the id of the table that exists now. None: there is none, or its log no longer shows the id."""
    try:
        return None if log.head is None else log.layout(log.head).table
    except Invalid:
        return None


def _file_problems(location: Location, files: list[DataFile]) -> Iterator[str]:
    """Yield a line per file that is missing or has another size. Delta never writes a file twice, so that is enough."""
    if location.is_local:
        sizes = [_size(location, file) for file in files]
    else:
        with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
            sizes = list(pool.map(lambda file: _size(location, file), files))
    for file, size in zip(files, sizes, strict=True):
        if size is None:
            yield f"file {shown_path(file.path)!r} is gone (VACUUM?)"
        elif file.size and size != file.size:
            yield f"file {shown_path(file.path)!r} has {size:,} bytes, {file.size:,} planned"


def _size(location: Location, file: DataFile) -> int | None:
    """Return the current size. A file of another store (a shallow clone) is left to Spark."""
    return file.size if "://" in file.path else location.size(file.path)
