"""Restore a table to an older version by a new commit, and delete files that no retained version needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.delta.files.access import Location, unavailable
from tidegate.delta.files.footers import StagedFile, missing_files
from tidegate.delta.log.active_files import LiveFile, live_files
from tidegate.delta.log.commits import CommitStamp, Committed, replace
from tidegate.delta.log.files import Commit, read_commit
from tidegate.delta.log.snapshot import Snapshot, open_table
from tidegate.errors import Corrupt, Invalid, Rejected

__all__ = ["Foreign", "foreign_commits", "restore", "vacuum", "version_of"]


@dataclass(frozen=True)
class Foreign:
    """Another writer's commit to the table."""

    version: int
    operation: str


def foreign_commits(snapshot: Snapshot, since: int, transactions: Mapping[str, int | None]) -> list[Foreign]:
    """Return the commits after version `since` that change rows or columns and carry none of the transactions.

    transactions: by app id, the version. None: any version.
    """
    foreign = []
    for version in range(since + 1, snapshot.version + 1):
        commit = read_commit(snapshot.location, version)
        if commit is None:
            foreign.append(Foreign(version, "unknown: its commit file is missing"))
            continue
        if commit.changes_rows() and not _has_any(commit, transactions):
            foreign.append(Foreign(version, commit.operation or "unknown"))
    return foreign


def _has_any(commit: Commit, transactions: Mapping[str, int | None]) -> bool:
    """Return whether the commit carries any of the transactions."""
    for app_id, version in transactions.items():
        actual = commit.txn(app_id)
        if actual is not None and version in (None, actual):
            return True
    return False


def restore(
    snapshot: Snapshot,
    version: int | None,
    stamp: CommitStamp,
    *,
    discard_foreign: bool = False,
    added: Sequence[StagedFile] = (),
    without: Collection[str] = (),
) -> Committed | None:
    """Restore the rows of `version` (None: no rows) in the commit directly after `snapshot`. The schema stays.

    Return None if another commit came first. It commits even if nothing changes, to fence publishers that have read the
    table before. Raise Rejected if that would drop other writers' commits, unless `discard_foreign` is set.

    added, without: files to add in addition, and files of that version to leave out.
    """
    location = snapshot.location
    target = version_of(snapshot, version) if version is not None else None
    since = version if version is not None else -1
    foreign = foreign_commits(snapshot, since, {stamp.app_id: None, stamp.owner[0]: stamp.owner[1]})
    if foreign and not discard_foreign:
        listed = ", ".join(f"{commit.version} ({commit.operation})" for commit in foreign[:10])
        raise Rejected(
            f"{location.url}: another writer has committed since version {version}: {listed}",
            expected="a choice before a rollback drops another writer's rows",
            help="roll back again, and choose for this table: --discard these commits, --retract only this pipeline's "
            "rows, or --keep it unchanged",
            reason="FOREIGN_COMMITS",
        )
    current = _index_paths(live_files(snapshot))
    former: dict[str, LiveFile] = {}
    if target is not None:
        for path, file in _index_paths(live_files(target)).items():
            if path not in without:
                former[path] = file
    restored = [file.staged() for path, file in former.items() if path not in current]
    missing = missing_files(location, restored)
    if missing:
        raise Corrupt(
            f"{location.url}: {len(missing)} files of version {version} are gone, first {missing[0]!r}",
            expected="every file of a version that a retained checkpoint needs",
            help="a VACUUM removed them: roll back to a newer checkpoint, or restore the files from a copy",
            reason="VERSION_FILES_GONE",
        )
    removed = [file for path, file in current.items() if path not in former]
    return replace(snapshot, [*restored, *added], removed, stamp)


def version_of(snapshot: Snapshot, version: int) -> Snapshot:
    """Return an older version of the same table. Raise Corrupt if that version belongs to another table."""
    target = open_table(snapshot.location, version)
    if target is None or target.table_id != snapshot.table_id:
        raise Corrupt(
            f"{snapshot.location.url}: version {version} belongs to a table that no longer exists",
            expected=f"the table {snapshot.table_id}",
            help="the table was dropped and created again, so older versions cannot be restored",
            reason="OTHER_TABLE",
        )
    return target


def vacuum(location: Location, keep: Iterable[int], *, retention_hours: int = 0, dry_run: bool = True) -> Sequence[str]:
    """Delete files that the log has removed, except those that a version in `keep` needs. Return their paths.

    Staged files are never deleted, because the log has no tombstones for them.
    """
    snapshot = open_table(location)
    if snapshot is None:
        raise Invalid(f"{location.url} is not a Delta table", help="check the path", reason="NO_TABLE")
    try:
        return snapshot.new_handle().vacuum(
            retention_hours=retention_hours,
            dry_run=dry_run,
            enforce_retention_duration=False,
            keep_versions=sorted(set(keep)),
            full=False,
        )
    except OSError as error:
        raise unavailable(location.url, error) from error


def _index_paths(files: Iterable[LiveFile]) -> dict[str, LiveFile]:
    return {file.path: file for file in files}
