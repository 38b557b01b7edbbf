"""Check a range of a Delta table before it is read: its commits must be unchanged, and its files must exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tidegate.connectors.delta.source import errors
from tidegate.delta import Commit, DataFile, Location, TableLog, redact_path
from tidegate.errors import Invalid
from tidegate.records.records import Amount, Json

__all__ = ["lost_versions", "verify_delta"]

MAX_SHOWN: Final = 20
"""The number of problems that an error lists."""
THREADS: Final = 16


def verify_delta(log: TableLog, splits: Json, source: str) -> Amount:
    """Raise Invalid, naming every version that was replaced and every missing file. Return the size of the range."""
    table = _current_table(log)
    if table not in (None, splits["table"]):
        raise errors.recreated(source, log.location.url, splits["table"], str(table))
    problems, files = _check_log(log, splits)
    if not problems:
        problems = list(_file_problems(files, _sizes(log.location, files)))
    if problems:
        lines = [f"source {source!r}: {log.location.url} has changed since the checkpoint was planned:"]
        lines += problems[:MAX_SHOWN]
        if len(problems) > MAX_SHOWN:
            lines.append(f"… and {len(problems) - MAX_SHOWN} more")
        raise Invalid(
            "\n  ".join(lines),
            expected="the planned versions and their files",
            help="restore the missing files from a copy, and try again; or skip them: give the source another name, "
            "and start it at a later version. VACUUM must keep files until this pipeline has read them: raise "
            "delta.deletedFileRetentionDuration",
            reason="SOURCE_CHANGED",
        )
    return _amount(files, splits)


def lost_versions(log: TableLog, recorded: Mapping[int, Json]) -> Iterator[str]:
    """Yield a message for each version of a table that checkpoints looked up and that can no longer be read.

    Each file is checked once, even if several versions have it.

    recorded: by checkpoint, the range that it read: the table at one version.
    """
    current_table = _current_table(log)
    checkpoints_by_version: dict[tuple[str, int], list[int]] = {}
    for id, splits in recorded.items():
        if splits["commits"]:  # otherwise the table had no rows yet
            version = splits["table"], splits["commits"][-1][0]
            checkpoints_by_version.setdefault(version, []).append(id)
    checked = {}
    distinct_files: dict[str, DataFile] = {}
    for version, checkpoints in checkpoints_by_version.items():
        if current_table in (None, version[0]):
            problems, files = _check_log(log, recorded[checkpoints[0]])
            checked[version] = problems, files
            distinct_files |= {file.path: file for file in files}
    sizes = _sizes(log.location, list(distinct_files.values()))
    for version, checkpoints in checkpoints_by_version.items():
        if version in checked:
            problems, files = checked[version]
            problems = problems or list(_file_problems(files, sizes))
        else:
            problems = ["the table was dropped and created again"]
        if problems:
            more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
            listed = ", ".join(map(str, checkpoints))
            yield (
                f"version {version[1]} of {log.location.url}, which checkpoint {listed} has looked up, is gone: "
                f"{problems[0]}{more}"
            )


def _check_log(log: TableLog, splits: Json) -> tuple[list[str], list[DataFile]]:
    """Return the problems of a range's commits, and its files."""
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
    return problems, files


def _amount(files: list[DataFile], splits: Json) -> Amount:
    """Return the size of a range. The number of rows is unknown for a change feed, and for an interval, whose files may
    hold other rows, too."""
    row_counts = [file.get("rows") for file in splits["files"]]
    is_partial = splits["feed"] is not None or splits.get("interval") is not None
    rows = None
    if not (is_partial and files) and None not in row_counts:
        rows = sum(row_counts)
    return Amount(rows=rows, bytes=sum(file.size for file in files), files=len(files))


def _feed_files(commit: Commit, splits: Json) -> list[DataFile]:
    first, last = splits["feed"]
    return commit.change_files if first <= commit.version <= last else []


def _current_table(log: TableLog) -> str | None:
    """Return the id of the current table, or None if no table exists or its log no longer shows the id."""
    try:
        return None if log.head is None else log.layout(log.head).table
    except Invalid:
        return None


def _sizes(location: Location, files: list[DataFile]) -> dict[str, int | None]:
    """Return the current sizes of files by path. None: the file does not exist."""
    if location.is_local:
        return {file.path: _size(location, file) for file in files}
    with ThreadPoolExecutor(THREADS) as pool:
        sizes = pool.map(lambda file: _size(location, file), files)
    return {file.path: size for file, size in zip(files, sizes, strict=True)}


def _file_problems(files: list[DataFile], sizes: Mapping[str, int | None]) -> Iterator[str]:
    """Yield a problem for each file that is missing or has another size. Delta never overwrites a file, so the size is
    proof enough."""
    for file in files:
        size = sizes[file.path]
        if size is None:
            yield f"file {redact_path(file.path)!r} is gone (VACUUM?)"
        elif file.size and size != file.size:
            yield f"file {redact_path(file.path)!r} has {size:,} bytes instead of {file.size:,}"


def _size(location: Location, file: DataFile) -> int | None:
    """Return a file's current size. None: it does not exist."""
    if "://" in file.path:
        return file.size  # a shallow clone's file in another store: Spark finds out whether it exists
    return location.size(file.path)
