"""Check a range of a Delta table before it is read: its commits are still the same, its files still exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tidegate.connectors.delta.source import errors
from tidegate.delta import Commit, DataFile, Location, TableLog, redact_path
from tidegate.errors import Invalid
from tidegate.records.records import Amount, Json

__all__ = ["lost_versions", "verify_delta"]

SHOWN: Final = 20
LOOKS_AT_ONCE: Final = 16


def verify_delta(log: TableLog, splits: Json, source: str) -> Amount:
    """Raise Invalid, naming every version that was replaced and every missing file. Return the size of the range."""
    table = _current_table(log)
    if table not in (None, splits["table"]):
        raise errors.recreated(source, log.location.url, splits["table"], str(table))
    problems, files = _look_at_log(log, splits)
    if not problems:
        problems = list(_file_problems(files, _sizes(log.location, files)))
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


def lost_versions(log: TableLog, recorded: Mapping[int, Json]) -> Iterator[str]:
    """Yield which versions of a table cannot be read again that checkpoints have looked up, and why. However many
    versions have a file, it is looked at once.

    recorded: by checkpoint, the range that it has read: the table as of a version.
    """
    table = _current_table(log)
    by_range: dict[tuple[str, int], list[int]] = {}
    for id, splits in recorded.items():
        if not splits["commits"]:
            continue  # the table had no rows yet
        by_range.setdefault((splits["table"], splits["commits"][-1][0]), []).append(id)
    found = {key: _look_at_log(log, recorded[ids[0]]) for key, ids in by_range.items() if table in (None, key[0])}
    sizes = _sizes(log.location, list({file.path: file for _, files in found.values() for file in files}.values()))
    for (looked_up, version), checkpoints in by_range.items():
        if (looked_up, version) in found:
            problems, files = found[looked_up, version]
            problems = problems or list(_file_problems(files, sizes))
        else:
            problems = ["the table was dropped and made again"]
        if problems:
            more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
            listed = ", ".join(map(str, checkpoints))
            yield (
                f"version {version} of {log.location.url}, which checkpoint {listed} has looked up, is gone: "
                f"{problems[0]}{more}"
            )


def _look_at_log(log: TableLog, splits: Json) -> tuple[list[str], list[DataFile]]:
    """Return what is wrong with the commits of a range, and its files."""
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


def _sizes(location: Location, files: list[DataFile]) -> dict[str, int | None]:
    """Return the current sizes of files, by path. None: there is no such file."""
    if location.is_local:
        return {file.path: _size(location, file) for file in files}
    with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
        sizes = pool.map(lambda file: _size(location, file), files)
    return {file.path: size for file, size in zip(files, sizes, strict=True)}


def _file_problems(files: list[DataFile], sizes: Mapping[str, int | None]) -> Iterator[str]:
    """Yield a line per file that is missing or has another size. Delta never writes a file twice, so that is enough."""
    for file in files:
        size = sizes[file.path]
        if size is None:
            yield f"file {redact_path(file.path)!r} is gone (VACUUM?)"
        elif file.size and size != file.size:
            yield f"file {redact_path(file.path)!r} has {size:,} bytes, {file.size:,} planned"


def _size(location: Location, file: DataFile) -> int | None:
    """Return the current size. A file of another store (a shallow clone) is left to Spark."""
    return file.size if "://" in file.path else location.size(file.path)
