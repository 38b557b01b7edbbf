"""A Delta target put back to where a checkpoint left it, by one more commit: for rollbacks.

The rows are those of the version that the checkpoint's own commit made; the schema stays, so columns that came later
are null. What others have committed since is never lost without a choice:

    restore   only if nobody else has committed since
    discard   back to the version, whatever others have committed
    retract   only this pipeline's own files are put back: what it has added since goes, what an earlier rollback took
              out comes back (not of an upsert: it writes others' rows anew)
    keep      the rows stay as they are; the commit only says that what was cancelled never comes
"""

from __future__ import annotations

import dataclasses

from tidegate.delta import (
    CommitStamp,
    Committed,
    LiveFile,
    Snapshot,
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
from tidegate.sinks.base import Publication, SinkContext, WayBack

__all__ = ["go_back", "way_back", "went_past"]

_NO_WAY_BACK = "its rows cannot be put back: go to a newer checkpoint, or choose --leave for it (it stays as it is)"


def way_back(
    snapshot: Snapshot, to: int | None, known: PublishedTable | None, context: SinkContext, *, rewrites: bool
) -> WayBack:
    """What a rollback would do to the table; every version, hash and file that it needs is looked at."""
    last = snapshot.txn(context.app_id)
    if to is not None and (last is None or last < to):
        return WayBack(lacks=True, version=snapshot.version)
    if last is None and snapshot.txn(dataclasses.replace(context, through=True).app_id) is None:
        return WayBack(exists=False, version=snapshot.version)  # all that is there is others'
    problems = _unfit(snapshot)
    try:
        found = _version_then(snapshot, to, known, context)
        problems += _gone(snapshot, found)
    except TidegateError as error:
        return WayBack(version=snapshot.version, problems=(*problems, f"{error.what}; {error.help}"))
    since = found.version if found is not None else -1
    foreign = foreign_commits(snapshot, since, _ours(context))
    blocked = "it replaces rows, also those that others have written" if rewrites else ""
    if not blocked and foreign and _taken_by_others(snapshot, since, context):
        blocked = "others have rewritten files of this pipeline"
    return WayBack(
        to=found,
        version=snapshot.version,
        foreign=tuple(f"version {each.version} ({each.operation})" for each in foreign),
        problems=tuple(problems),
        no_retract=blocked,
    )


def go_back(snapshot: Snapshot, publication: Publication, stamp: CommitStamp, context: SinkContext) -> Committed | None:
    """The commit right after `snapshot`. None: somebody else committed first."""
    restored = publication.restore
    assert restored is not None
    if restored.how == "keep":
        return replace(snapshot, [], [], stamp)
    since = restored.to.version if restored.to is not None else -1
    if restored.how == "retract":
        if _taken_by_others(snapshot, since, context):
            raise Rejected(
                f"{snapshot.location.url}: others have rewritten files that this pipeline added after version {since}",
                expected="the files as they were added, to take them out",
                help="roll back once more, and choose for this table: --discard, or --keep",
                reason="FOREIGN_COMMITS",
            )
        now = _own_files(snapshot, context)
        then = _own_files(version_of(snapshot, since), context) if since >= 0 else {}
        back = [file.staged() for path, file in then.items() if path not in now]
        return replace(snapshot, back, [file for path, file in now.items() if path not in then], stamp)
    version = restored.to.version if restored.to is not None else None
    return restore(snapshot, version, stamp, discard_foreign=restored.how == "discard")


def went_past(snapshot: Snapshot, app_id: str, id: int) -> bool:
    """Whether commits of this pipeline below and above `id` are there, and none of it: a rollback left it out."""
    above = False
    for version in range(snapshot.version, -1, -1):
        commit = read_commit(snapshot.location, version)
        made = commit.txn(app_id) if commit is not None else None
        if commit is None or made == id:
            return False  # it is there, or nobody can tell
        if made is not None and made < id:
            return above
        above = above or made is not None
    return False


def _unfit(snapshot: Snapshot) -> list[str]:
    """Why delta-rs may not remove and add files there."""
    reasons = spark_reasons(snapshot)
    if next(iter(snapshot.handle.deletion_vectors()), None) is not None:
        reasons.append("deletion vectors")
    if snapshot.configuration.get("delta.appendOnly", "").lower() == "true":
        reasons.append("delta.appendOnly: no row may be taken out")
    return [f"{snapshot.location.url} has {reason}" for reason in reasons]


def _version_then(
    snapshot: Snapshot, to: int | None, known: PublishedTable | None, context: SinkContext
) -> PublishedTable | None:
    """The version that entry `to` made, or the one below this pipeline's first; None: there was no table."""
    if to is None:
        first = _first_own(snapshot, context)
        return _version(snapshot, first - 1) if first > 0 else None
    if known is not None:
        there = read_commit(snapshot.location, known.version)
        if there is not None and there.sha == known.log_hash and there.txn(context.app_id) == to:
            return known
    done = find_commit(snapshot, context.app_id, to)
    if done is None:
        raise Rejected(
            f"{snapshot.location.url}: its log does not tell any more which version checkpoint {to} made: commit files "
            "are gone, or the table was made again",
            help=_NO_WAY_BACK,
            reason="LOG_CLEANED",
        )
    return PublishedTable(uri=snapshot.location.url, version=done.version, log_hash=done.log_hash)


def _first_own(snapshot: Snapshot, context: SinkContext) -> int:
    """The version of this pipeline's first publication."""
    owner, number = owner_of(context.pipeline, context.sink, context.uid)
    first = -1
    for version in range(snapshot.version, -1, -1):
        commit = read_commit(snapshot.location, version)
        if commit is None:
            raise Rejected(
                f"{snapshot.location.url}: its log does not tell any more what was there before this pipeline: commit "
                f"{version} is gone",
                help=_NO_WAY_BACK,
                reason="LOG_CLEANED",
            )
        if commit.txn(owner) == number:  # one of the same name that was here before is another one
            first = version
    if first < 0:
        raise Rejected(
            f"{snapshot.location.url} says that this pipeline has published to it, and none of its commits does: the "
            "table was made again or copied",
            help=_NO_WAY_BACK,
            reason="LOG_CLEANED",
        )
    return first


def _version(snapshot: Snapshot, version: int) -> PublishedTable:
    commit = read_commit(snapshot.location, version)
    assert commit is not None
    return PublishedTable(uri=snapshot.location.url, version=version, log_hash=commit.sha)


def _gone(snapshot: Snapshot, to: PublishedTable | None) -> list[str]:
    """Files of the version that are missing or changed."""
    if to is None:
        return []
    files = [file.staged() for file in live_files(version_of(snapshot, to.version))]
    lost = missing_files(snapshot.location, files)
    if not lost:
        return []
    return [
        f"{len(lost)} of {len(files)} files of version {to.version} of {snapshot.location.url} are gone, first "
        f"{lost[0]!r}: a VACUUM?"
    ]


def _ours(context: SinkContext) -> dict[str, int | None]:
    owner, number = owner_of(context.pipeline, context.sink, context.uid)
    return {context.app_id: None, dataclasses.replace(context, through=True).app_id: None, owner: number}


def _own_files(snapshot: Snapshot, context: SinkContext) -> dict[str, LiveFile]:
    """The live files that this pipeline's entries have added, by path."""
    own = f"tidegate/{context.uid}-{context.sink}"
    return {file.path: file for file in live_files(snapshot, containing=own) if _entry(file.path, own)}


def _entry(path: str, own: str) -> int:
    """Whose checkpoint's attempt staged a file; 0: none of this sink's."""
    folder, _, rest = path.removeprefix(own).partition("/")
    return int(rest.split("/")[0]) if path.startswith(own) and folder in ("", ".through") else 0


def _taken_by_others(snapshot: Snapshot, since: int, context: SinkContext) -> bool:
    """Whether somebody else has taken out a file that this pipeline has added since."""
    own, ours = f"tidegate/{context.uid}-{context.sink}", _ours(context)
    for version in range(since + 1, snapshot.version + 1):
        commit = read_commit(snapshot.location, version)
        if commit is None:
            return True
        if any(commit.txn(app_id) is not None for app_id in ours):
            continue
        if any(_entry(path, own) for path in commit.removed_paths()):
            return True
    return False
