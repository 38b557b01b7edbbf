"""Restore a Delta target to its content at a checkpoint, by a new commit: for rollbacks.

The rows are those of the version that the checkpoint's commit created. The schema stays, so columns added since are
null. Commits of other writers since then are lost only if the user chooses so:

    restore   return to the version, if no other writer has committed since
    discard   return to the version in any case
    retract   restore only this pipeline's files: remove those added since, add those again that an earlier rollback
              removed (not for an upsert, which rewrites other writers' rows)
    keep      leave the rows; the commit only records that the undone checkpoints will never be published
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from tidegate.connectors.delta.sink.shadow import LINE
from tidegate.connectors.sink import Publication, RestorePlan, SinkContext
from tidegate.delta import (
    CommitStamp,
    Committed,
    LiveFile,
    Snapshot,
    StagedFile,
    find_commit,
    foreign_commits,
    live_files,
    missing_files,
    owner_of,
    read_commit,
    replace,
    restore,
    spark_reasons,
    version_of,
)
from tidegate.errors import Rejected, TidegateError
from tidegate.records.records import PublishedTable

__all__ = ["commit_restore", "has_skipped", "plan_restore"]

_NOT_RESTORABLE = "it cannot be restored: roll back to a newer checkpoint, or choose --leave to leave it unchanged"


def plan_restore(
    snapshot: Snapshot, to: int | None, reported: PublishedTable | None, context: SinkContext, *, rewrites: bool
) -> RestorePlan:
    """Return what a rollback would do to the table, after checking every version, hash and file that it needs."""
    last = snapshot.txn(context.app_id)
    if to is not None and (last is None or last < to):
        return RestorePlan(not_published_yet=True, version=snapshot.version)
    if last is None and snapshot.txn(dataclasses.replace(context, direct=True).app_id) is None:
        return RestorePlan(exists=False, version=snapshot.version)  # all rows are other writers'
    problems = _feature_problems(snapshot)
    try:
        target = _find_target(snapshot, to, reported, context)
        problems += _missing_file_problems(snapshot, target)
    except TidegateError as error:
        return RestorePlan(version=snapshot.version, problems=(*problems, f"{error.what}; {error.help}"))
    since = target.version if target is not None else -1
    foreign = foreign_commits(snapshot, since, _published_app_ids(context))
    not_separable_reason = ""
    if rewrites:
        not_separable_reason = "it replaces rows, even those of other writers"
    elif foreign and _has_foreign_removals(snapshot, since, context):
        not_separable_reason = "another writer has rewritten files of this pipeline"
    return RestorePlan(
        target_version=target,
        version=snapshot.version,
        foreign_commits=tuple(f"version {commit.version} ({commit.operation})" for commit in foreign),
        problems=tuple(problems),
        not_separable_reason=not_separable_reason,
    )


def commit_restore(
    snapshot: Snapshot,
    publication: Publication,
    stamp: CommitStamp,
    context: SinkContext,
    added: Sequence[StagedFile] = (),
    without: Collection[str] = (),
) -> Committed | None:
    """Commit the restored content directly after `snapshot`. Return None if another commit came first.

    added, without: for a swap, the files that the backfill adds, and those of the restored version that it replaces.
    """
    restored = publication.restore
    assert restored is not None
    if restored.how == "keep":
        return replace(snapshot, [], [], stamp)
    since = restored.to.version if restored.to is not None else -1
    if restored.how == "retract":
        if _has_foreign_removals(snapshot, since, context):
            raise Rejected(
                f"{snapshot.location.url}: another writer has rewritten files that this pipeline added after version "
                f"{since}",
                expected="the files as they were added, so that they can be removed",
                help="roll back again, and choose --discard or --keep for this table",
                reason="FOREIGN_COMMITS",
            )
        current_files = _published_files(snapshot, context)
        restored_files = {}
        if since >= 0:
            restored_files = _published_files(version_of(snapshot, since), context)
        returning = [file.staged() for path, file in restored_files.items() if path not in current_files]
        removed = [file for path, file in current_files.items() if path not in restored_files]
        return replace(snapshot, [*returning, *added], removed, stamp)
    version = restored.to.version if restored.to is not None else None
    discards = restored.how == "discard"
    return restore(snapshot, version, stamp, discard_foreign=discards, added=added, without=without)


def has_skipped(snapshot: Snapshot, app_id: str, id: int) -> bool:
    """Return whether the log has commits of this pipeline before and after `id`, but none of `id` itself, because a
    rollback undid it."""
    above = False
    for version in range(snapshot.version, -1, -1):
        commit = read_commit(snapshot.location, version)
        entry = commit.txn(app_id) if commit is not None else None
        if commit is None or entry == id:
            return False  # it was published, or the log no longer shows it
        if entry is not None and entry < id:
            return above
        above = above or entry is not None
    return False


def _feature_problems(snapshot: Snapshot) -> list[str]:
    """Return the reasons why delta-rs must not remove and add files in the table."""
    reasons = spark_reasons(snapshot)
    if snapshot.has_deletion_vectors:
        reasons.append("deletion vectors")
    if snapshot.configuration.get("delta.appendOnly", "").lower() == "true":
        reasons.append("delta.appendOnly: no row may be removed")
    return [f"{snapshot.location.url} has {reason}" for reason in reasons]


def _find_target(
    snapshot: Snapshot, to: int | None, reported: PublishedTable | None, context: SinkContext
) -> PublishedTable | None:
    """Return the version that entry `to` created, or the one before this pipeline's first. None: the table did not
    exist."""
    if to is None:
        first = _first_published_version(snapshot, context)
        return _published_version(snapshot, first - 1) if first > 0 else None
    if reported is not None:
        commit = read_commit(snapshot.location, reported.version)
        if commit is not None and commit.sha == reported.log_hash and commit.txn(context.app_id) == to:
            return reported
    committed = find_commit(snapshot, context.app_id, to)
    if committed is None:
        raise Rejected(
            f"{snapshot.location.url}: its log no longer shows which version checkpoint {to} created: commit files are "
            "missing, or the table was created again",
            help=_NOT_RESTORABLE,
            reason="LOG_CLEANED",
        )
    return PublishedTable(uri=snapshot.location.url, version=committed.version, log_hash=committed.log_hash)


def _first_published_version(snapshot: Snapshot, context: SinkContext) -> int:
    """Return the version of this pipeline's first publication."""
    owner, number = owner_of(context.pipeline, context.sink, context.uid)
    first = -1
    for version in range(snapshot.version, -1, -1):
        commit = read_commit(snapshot.location, version)
        if commit is None:
            raise Rejected(
                f"{snapshot.location.url}: its log no longer shows the content before this pipeline's first commit: "
                f"commit {version} is missing",
                help=_NOT_RESTORABLE,
                reason="LOG_CLEANED",
            )
        if commit.txn(owner) == number:  # an earlier pipeline of the same name has another number
            first = version
    if first < 0:
        raise Rejected(
            f"{snapshot.location.url} records that this pipeline has published to it, but no commit of it does: the "
            "table was created again or copied",
            help=_NOT_RESTORABLE,
            reason="LOG_CLEANED",
        )
    return first


def _published_version(snapshot: Snapshot, version: int) -> PublishedTable:
    commit = read_commit(snapshot.location, version)
    assert commit is not None
    return PublishedTable(uri=snapshot.location.url, version=version, log_hash=commit.sha)


def _missing_file_problems(snapshot: Snapshot, to: PublishedTable | None) -> list[str]:
    """Return a problem if files of the version are missing or changed."""
    if to is None:
        return []
    files = [file.staged() for file in live_files(version_of(snapshot, to.version))]
    missing = missing_files(snapshot.location, files)
    if not missing:
        return []
    return [
        f"{len(missing)} of {len(files)} files of version {to.version} of {snapshot.location.url} are gone, first "
        f"{missing[0]!r}: a VACUUM may have removed them"
    ]


def _published_app_ids(context: SinkContext) -> dict[str, int | None]:
    owner, number = owner_of(context.pipeline, context.sink, context.uid)
    return {context.app_id: None, dataclasses.replace(context, direct=True).app_id: None, owner: number}


def _published_files(snapshot: Snapshot, context: SinkContext) -> dict[str, LiveFile]:
    """Return the live files that this pipeline's entries have added, by path."""
    prefix = f"tidegate/{context.uid}-{context.sink}"
    live = live_files(snapshot, containing=prefix)
    return {file.path: file for file in live if _staging_checkpoint(file.path, prefix)}


def _staging_checkpoint(path: str, prefix: str) -> int:
    """Return the checkpoint whose attempt staged a file, or 0 if it is not a file of this sink."""
    folder, _, path_below = path.removeprefix(prefix).partition("/")
    if not path.startswith(prefix) or folder not in ("", ".through"):
        return 0
    while path_below.startswith(LINE):  # added by the swap of a backfill: the shadow has the same folders as a table
        path_below = path_below.split("/", 3)[-1]
    return int(path_below.split("/")[0])


def _has_foreign_removals(snapshot: Snapshot, since: int, context: SinkContext) -> bool:
    """Return whether another writer has, since then, removed a file that this pipeline added."""
    prefix, own_app_ids = f"tidegate/{context.uid}-{context.sink}", _published_app_ids(context)
    for version in range(since + 1, snapshot.version + 1):
        commit = read_commit(snapshot.location, version)
        if commit is None:
            return True
        if any(commit.txn(app_id) is not None for app_id in own_app_ids):
            continue
        if any(_staging_checkpoint(path, prefix) for path in commit.removed_paths()):
            return True
    return False
