"""Why a Delta table cannot be read on, and what can be done: one function per reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.errors import Invalid

if TYPE_CHECKING:
    from tidegate.delta import Commit
    from tidegate.sources.delta.position import TablePosition

_AFRESH = "give the source another name: it then starts afresh, from the table as it is"


def no_table(source: str, url: str) -> Invalid:
    """There never was a table."""
    return Invalid(
        f"source {source!r}: there is no Delta table at {url}",
        expected="a folder with a _delta_log",
        help="correct the path, or create the table first",
        reason="NO_TABLE",
    )


def no_version(source: str, url: str, wanted: int, commits: list[int], head: int) -> Invalid:
    """`start` names a version that is not there."""
    there = f"{min(commits)} to {max(commits)}" if commits else "none"
    return Invalid(
        f"source {source!r}: start={wanted}, but {url} has commit files for versions {there}",
        expected=f"a version whose commit file is still there, or {head + 1}: the next one",
        help="start with one of these, with 'beginning' (the table as it is) or with 'latest'",
        reason="NO_VERSION",
    )


def table_gone(source: str, url: str, version: int) -> Invalid:
    """The table was dropped."""
    return Invalid(
        f"source {source!r}: the table at {url} is gone; it was read up to version {version}",
        expected="the table, at that version or a later one",
        help=f"restore it from a copy; or create it again and {_AFRESH}",
        reason="TABLE_GONE",
    )


def recreated(source: str, url: str, before: str, now: str) -> Invalid:
    """Dropped and created again: versions of the one mean nothing to the other."""
    return Invalid(
        f"source {source!r}: the table at {url} is another one than before: its id is {now}, it was {before}",
        expected="the table that was read so far",
        help=f"restore the former table; or {_AFRESH}",
        reason="TABLE_RECREATED",
    )


def rewritten(source: str, url: str, version: int) -> Invalid:
    """The same table, but its history was replaced."""
    return Invalid(
        f"source {source!r}: version {version} of {url} is not the one that was read: its commit was written again",
        expected="a log that only grows",
        help=f"was the table put back from an older copy? Restore the newer log; or {_AFRESH}",
        reason="VERSION_REWRITTEN",
    )


def went_back(source: str, url: str, position: TablePosition, head: int, table: str) -> Invalid:
    """Fewer versions than were read."""
    if table != position.table:
        return recreated(source, url, position.table, table)
    return Invalid(
        f"source {source!r}: {url} was read up to version {position.version}, but ends at {head} now",
        expected="a log that only grows",
        help=f"was the table put back from an older copy? Restore the newer log; or {_AFRESH}",
        reason="VERSION_GONE",
    )


def log_cleaned(source: str, url: str, wanted: int, commits: list[int]) -> Invalid:
    """Log retention was faster than this pipeline."""
    first = min((version for version in commits if version >= wanted), default=None)
    left = f"the next one there is {first}" if first is not None else "no later one is there either"
    return Invalid(
        f"source {source!r}: version {wanted} of {url} is to be read next, but its commit file is gone; {left}",
        expected="commit files kept until they are read",
        help=f"restore the log from a copy; or {_AFRESH}; for the future raise delta.logRetentionDuration",
        reason="LOG_CLEANED",
    )


def changed_rows(source: str, url: str, commit: Commit) -> Invalid:
    """Not an append."""
    does = "updates or deletes" if commit.added_files else "deletes"
    skip = "ignore_changes=True skips it" if commit.added_files else "ignore_deletes=True skips it"
    operation = commit.operation or "unknown operation"
    return Invalid(
        f"source {source!r}: version {commit.version} of {url} ({operation}) {does} rows",
        expected="versions that append rows, in mode='append'",
        help=f"read every change with mode='changes', if the table's change data feed is on; or {skip}, "
        "so that the pipeline never learns of it",
        reason="ROWS_CHANGED",
    )


def no_change_feed(source: str, url: str, version: int) -> Invalid:
    """Changes were not recorded."""
    return Invalid(
        f"source {source!r}: the change data feed of {url} is off at version {version}",
        expected="delta.enableChangeDataFeed = true in every version that is read",
        help="ALTER TABLE … SET TBLPROPERTIES (delta.enableChangeDataFeed = true) records what comes from then on; "
        "start at the version that this makes, under another name of the source; or use mode='append'",
        reason="NO_CHANGE_FEED",
    )


def half_read(source: str, url: str, version: int) -> Invalid:
    """The mode was changed in the middle of a version."""
    return Invalid(
        f"source {source!r}: version {version} of {url} is half read with mode='append'; a change feed has no halves",
        expected="mode='append' until that version is read",
        help="put mode='append' back for the next checkpoints, then change it",
        reason="HALF_READ",
    )
