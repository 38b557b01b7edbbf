"""Restore a table to an older version, as one more commit; and delete files that no retained version needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.delta.files.access import Location, unavailable
from tidegate.delta.files.footers import StagedFile, missing_files
from tidegate.delta.log.active_files import LiveFile, live_files
from tidegate.delta.log.commits import CommitStamp, Committed, replace
from tidegate.delta.log.files import read_commit
from tidegate.delta.log.snapshot import Snapshot, open_table
from tidegate.errors import Corrupt, Invalid, Rejected

__all__ = ["Foreign", "foreign_commits", "restore", "vacuum", "version_of"]


@dataclass(frozen=True)
class Foreign:
    """A commit that another writer made on the table."""

    version: int
    operation: str


def foreign_commits(snapshot: Snapshot, since: int, transactions: Mapping[str, int | None]) -> list[Foreign]:
    """Return commits after version `since` that change rows or columns and carry none of our transactions.

    transactions: app id → version, None: any.
    """
    foreign = []
    for version in range(since + 1, snapshot.version + 1):
        commit = read_commit(snapshot.location, version)
        if commit is None:
            foreign.append(Foreign(version, "unknown: its commit file is gone"))
            continue
        numbers = ((commit.txn(app_id), number) for app_id, number in transactions.items())
        is_ours = any(actual is not None and number in (None, actual) for actual, number in numbers)
        if commit.changes_rows() and not is_ours:
            foreign.append(Foreign(version, commit.operation or "unknown"))
    return foreign


def restore(
    snapshot: Snapshot,
    version: int | None,
    stamp: CommitStamp,
    *,
    discard_foreign: bool = False,
    added: Sequence[StagedFile] = (),
    without: Collection[str] = (),
) -> Committed | None:
    """Make the rows those of `version` again (None: no rows), as the commit right after `snapshot`; the schema stays.

    added, without: files that come besides, and files of that version that do not come back.

    It is committed even when nothing changes: that commit fences publishers that read the table before.
    None: somebody else committed first. Refuses to drop others' later commits unless `discard_foreign` is set.
    """
    location = snapshot.location
    target = version_of(snapshot, version) if version is not None else None
    since = version if version is not None else -1
    foreign = foreign_commits(snapshot, since, {stamp.app_id: None, stamp.owner[0]: stamp.owner[1]})
    if foreign and not discard_foreign:
        listed = ", ".join(f"{commit.version} ({commit.operation})" for commit in foreign[:10])
        raise Rejected(
            f"{location.url}: others have committed since version {version}: {listed}",
            expected="nobody else's rows to be lost by a rollback without a choice",
            help="roll back once more, and choose for this table: --discard their commits, --retract only this "
            "pipeline's rows, or --keep it as it is",
            reason="FOREIGN_COMMITS",
        )
    current, former = _by_path(live_files(snapshot)), _by_path(live_files(target) if target is not None else ())
    former = {path: file for path, file in former.items() if path not in without}
    restored = [file.staged() for path, file in former.items() if path not in current]
    if lost := missing_files(location, restored):
        raise Corrupt(
            f"{location.url}: {len(lost)} files of version {version} are gone, first {lost[0]!r}",
            expected="every file of a version that a retained checkpoint rests on",
            help="a VACUUM removed them: roll back to a newer checkpoint, or restore the files from a copy",
            reason="VERSION_FILES_GONE",
        )
    gone = [file for path, file in current.items() if path not in former]
    return replace(snapshot, [*restored, *added], gone, stamp)


def version_of(snapshot: Snapshot, version: int) -> Snapshot:
    """Return an older version of the same table; raise Corrupt if the table was another one then."""
    target = open_table(snapshot.location, version)
    if target is None or target.table_id != snapshot.table_id:
        raise Corrupt(
            f"{snapshot.location.url}: version {version} belongs to a table that is not there any more",
            expected=f"the table {snapshot.table_id}",
            help="the table was dropped and made again: there is nothing to put back",
            reason="OTHER_TABLE",
        )
    return target


def vacuum(location: Location, keep: Iterable[int], *, retention_hours: int = 0, dry_run: bool = True) -> Sequence[str]:
    """Delete files that the log has removed, except those that a version in `keep` needs.

    Only files with a tombstone: what is staged for a later commit is in no log, and never touched.
    """
    snapshot = open_table(location)
    if snapshot is None:
        raise Invalid(f"{location.url} is no Delta table", help="check the path", reason="NO_TABLE")
    try:
        return snapshot.own_handle().vacuum(
            retention_hours=retention_hours,
            dry_run=dry_run,
            enforce_retention_duration=False,
            keep_versions=sorted(set(keep)),
            full=False,
        )
    except OSError as error:
        raise unavailable(location.url, error) from error


def _by_path(files: Iterable[LiveFile]) -> dict[str, LiveFile]:
    return {file.path: file for file in files}
