"""Errors for a Delta table that can no longer be read: one function per reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.errors import Invalid

if TYPE_CHECKING:
    from tidegate.connectors.delta.source.position import TablePosition
    from tidegate.delta import Commit

_START_OVER = "give the source another name: it then starts from scratch, with the current table"


def no_table(source: str, url: str) -> Invalid:
    """Return the error for a table that never existed."""
    return Invalid(
        f"source {source!r}: no Delta table exists at {url}",
        expected="a folder with a _delta_log",
        help="correct the path, or create the table first",
        reason="NO_TABLE",
    )


def no_version(source: str, url: str, start: int, commits: list[int], head: int) -> Invalid:
    """Return the error for a `start` that names a missing version."""
    available = f"{min(commits)} to {max(commits)}" if commits else "none"
    return Invalid(
        f"source {source!r}: start={start}, but {url} has commit files for versions {available}",
        expected=f"a version whose commit file still exists, or {head + 1}: the next version",
        help="start with one of these, with 'beginning' (the whole current table) or with 'latest'",
        reason="NO_VERSION",
    )


def table_dropped_error(source: str, url: str, version: int) -> Invalid:
    """Return the error for a table that was dropped."""
    return Invalid(
        f"source {source!r}: the table at {url} no longer exists; it was read up to version {version}",
        expected="the table, at that version or a later one",
        help=f"restore it from a copy; or create it again and {_START_OVER}",
        reason="TABLE_GONE",
    )


def recreated(source: str, url: str, before: str, now: str) -> Invalid:
    """Return the error for a table that was dropped and created again, so that its versions are unrelated."""
    return Invalid(
        f"source {source!r}: the table at {url} is a different one: its id is {now}, it was {before}",
        expected="the table that was read so far",
        help=f"restore the former table; or {_START_OVER}",
        reason="TABLE_RECREATED",
    )


def rewritten(source: str, url: str, version: int) -> Invalid:
    """Return the error for a table whose history was replaced."""
    return Invalid(
        f"source {source!r}: version {version} of {url} has changed since it was read: its commit was written again",
        expected="a log that only grows",
        help=f"was the table restored from an older copy? Restore the newer log; or {_START_OVER}",
        reason="VERSION_REWRITTEN",
    )


def table_shrank_error(source: str, url: str, position: TablePosition, head: int, table: str) -> Invalid:
    """Return the error for a table with fewer versions than were read."""
    if table != position.table:
        return recreated(source, url, position.table, table)
    return Invalid(
        f"source {source!r}: {url} was read up to version {position.version}, but ends at {head} now",
        expected="a log that only grows",
        help=f"was the table restored from an older copy? Restore the newer log; or {_START_OVER}",
        reason="VERSION_GONE",
    )


def log_cleaned(source: str, url: str, version: int, commits: list[int]) -> Invalid:
    """Return the error for commit files that log retention deleted before this pipeline read them."""
    first = min((commit for commit in commits if commit >= version), default=None)
    remaining = f"the next one that exists is {first}" if first is not None else "no later one exists either"
    return Invalid(
        f"source {source!r}: version {version} of {url} must be read next, but its commit file is gone; {remaining}",
        expected="commit files that are kept until they are read",
        help=f"restore the log from a copy; or {_START_OVER}; to avoid this, raise delta.logRetentionDuration",
        reason="LOG_CLEANED",
    )


def changed_rows(source: str, url: str, commit: Commit) -> Invalid:
    """Return the error for a version that does more than append rows."""
    if commit.added_files:
        effect, skip = "updates or deletes", "ignore_changes=True skips it"
    else:
        effect, skip = "deletes", "ignore_deletes=True skips it"
    operation = commit.operation or "unknown operation"
    return Invalid(
        f"source {source!r}: version {commit.version} of {url} ({operation}) {effect} rows",
        expected="versions that append rows, in mode='append'",
        help=f"read every change with mode='changes', if the table's change data feed is on; or {skip}, "
        "and the pipeline never sees the change",
        reason="ROWS_CHANGED",
    )


def no_change_feed(source: str, url: str, version: int) -> Invalid:
    """Return the error for a version whose changes were not recorded."""
    return Invalid(
        f"source {source!r}: the change data feed of {url} is off at version {version}",
        expected="delta.enableChangeDataFeed = true in every version that is read",
        help="ALTER TABLE … SET TBLPROPERTIES (delta.enableChangeDataFeed = true) records changes from then on; "
        "give the source another name, and start it at the version that this creates; or use mode='append'",
        reason="NO_CHANGE_FEED",
    )


def half_read(source: str, url: str, version: int) -> Invalid:
    """Return the error for a mode that was changed while a version was only partly read."""
    return Invalid(
        f"source {source!r}: version {version} of {url} is partly read with mode='append', "
        "but a change feed cannot be read in part",
        expected="mode='append' until that version is read",
        help="set mode='append' again for the next checkpoints, then change it",
        reason="HALF_READ",
    )
