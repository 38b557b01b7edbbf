"""Commit to a Delta table: exactly the next version, with a known outcome.

A commit has one of three outcomes, and an exception never hides which:

    Committed     our commit is version v + 1 (also when the answer got lost: it is read back)
    None          somebody else's commit is version v + 1
    Unavailable   there is no version v + 1 and storage failed: nothing is known to have changed

Commits of files are put by us (commit_file.py), all others by delta-rs. That neither syncs what it writes nor notices
an empty commit file, so both are done here.
No I/O at import, and none may happen before a process forks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate import seams
from tidegate.delta.files.access import Location, error_text
from tidegate.delta.files.footers import StagedFile
from tidegate.delta.log.active_files import LiveFile
from tidegate.delta.log.checkpoints import checkpoint_if_due, sync_checkpoint
from tidegate.delta.log.commit_file import can_be_put, commit_file
from tidegate.delta.log.files import Commit, CommitMark, DataFile, last_checkpoint, log_path, read_commit
from tidegate.delta.log.snapshot import Snapshot, advance, open_table
from tidegate.errors import Corrupt, Invalid, Unavailable
from tidegate.records.records import Json

if TYPE_CHECKING:
    from deltalake import CommitProperties
    from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction

__all__ = [
    "PUBLISHING",
    "CommitStamp",
    "Committed",
    "add_columns",
    "append",
    "create",
    "find_commit",
    "find_publication",
    "overwrite",
    "replace",
    "sync_commit",
    "verify",
]


_UNKNOWN_FEATURE = "table features required"
"""How delta-rs says that it does not know a feature: with the same class as a lost race."""


PUBLISHING = ("S10.publish.before", "S10.publish.after")


@dataclass(frozen=True)
class CommitStamp:
    """The writer of a commit: goes into the log as Delta transactions (the truth) and as tags (for people)."""

    app_id: str
    id: int
    pipeline: str
    generation: int
    attempt: str
    owner: tuple[str, int]
    """A transaction that stands for the pipeline's uid: see delta/log/owner.py."""
    publishes: bool = True
    """False: a step before the publication (a new column), which must not look like it."""
    faults: tuple[str, str] = PUBLISHING
    """Where a crash test stops: with nothing done, and with it done."""
    floor: int = 0
    """What the transaction is at least: intervals are published in any order of ids, and it must not go back."""
    direct: bool = False
    """By a job, before the decision."""
    disowns: str = ""
    """By a person who has let go of an interval's rows: the interval. They are those of checkpoint `id`."""

    def tags(self) -> dict[str, Any]:
        """The tags that a table's history shows beside our commit."""
        return {
            "tidegate.pipeline": self.pipeline,
            "tidegate.checkpoint": self.id,
            "tidegate.generation": self.generation,
            "tidegate.attempt": self.attempt,
            "tidegate.publishes": self.publishes,
            **({"tidegate.through": True} if self.direct else {}),
            **({"tidegate.disowned": self.disowns} if self.disowns else {}),
        }

    def info(self) -> dict[str, Any]:
        """The tags, and all of them once more in one text: Spark's DESCRIBE HISTORY shows that and no tags."""
        return {**self.tags(), "userMetadata": self.user_metadata()}

    def user_metadata(self) -> str:
        """The tags as one text."""
        return msgspec.json.encode(self.tags()).decode()

    def transactions(self) -> dict[str, int]:
        """The commit's Delta transactions, by which readers of the log recognize us."""
        return {self.app_id: max(self.id, self.floor), **dict([self.owner])} if self.publishes else dict([self.owner])

    def is_on(self, found: Commit) -> bool:
        """Return true if the commit carries this stamp."""
        same = found.tags().items() >= self.tags().items()
        return same and all(found.txn(app_id) == id for app_id, id in self.transactions().items())


@dataclass(frozen=True)
class Committed:
    """A commit that is in the log, and durable on local disks."""

    version: int
    log_hash: str


def create(
    location: Location,
    schema: Json,
    files: Sequence[StagedFile],
    stamp: CommitStamp,
    *,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Committed | None:
    """Create the table as version 0, with its first files. None: somebody else created one first."""
    from deltalake.transaction import create_table_with_add_actions

    def attempt() -> None:
        create_table_with_add_actions(
            location.url,
            delta_schema(schema),
            [add_action(file) for file in files],
            mode="error",
            partition_by=list(partition_by),
            configuration=dict(properties or {}),
            storage_options=dict(location.options),
            commit_properties=commit_properties(stamp),
            post_commithook_properties=hooks(location),
        )

    return commit_at(location, 0, stamp, attempt, properties or {})


def append(snapshot: Snapshot, files: Sequence[StagedFile], stamp: CommitStamp) -> Committed | None:
    """Name `files` in the version right after `snapshot`. Metadata only: milliseconds."""
    return replace(snapshot, files, (), stamp)


def replace(
    snapshot: Snapshot, added: Sequence[StagedFile], removed: Sequence[LiveFile | DataFile], stamp: CommitStamp
) -> Committed | None:
    """Add `added` and remove `removed` in the version right after `snapshot`. With neither, the commit is a fence."""
    if can_be_put(snapshot, removed):
        file = commit_file(snapshot, added, removed, stamp.info(), stamp.transactions())
        return _put(snapshot, file, stamp)

    def attempt() -> None:
        snapshot.handle.create_write_transaction(
            [*map(add_action, added), *map(remove_action, removed)],
            mode="append",
            schema=delta_schema(snapshot.schema),
            partition_by=list(snapshot.partition_by),
            commit_properties=commit_properties(stamp),
            post_commithook_properties=hooks(snapshot.location),
        )

    return commit_at(snapshot.location, snapshot.version + 1, stamp, attempt, snapshot.configuration)


def _put(snapshot: Snapshot, data: bytes, stamp: CommitStamp) -> Committed | None:
    """Put a commit's file right after `snapshot`, and remember the table as it is then.

    On a disk, that needs a look at `snapshot` before and after: somebody may have dropped the table and made it again.
    With fewer versions the name of this one is free there, and with as many the commit is one of the new table.
    """
    location, version = snapshot.location, snapshot.version + 1
    tag: str | None = None
    if location.is_local and not snapshot.is_in_log:
        return None

    def attempt() -> Commit | None:
        nonlocal tag
        tag = location.put_new(log_path(version), data)
        if tag is None or location.is_local:
            return None  # the log is read: on a disk that costs nothing
        return Commit(location, version, data)

    committed = commit_at(location, version, stamp, attempt, snapshot.configuration)
    if committed is None or tag is None:
        return committed
    if not (snapshot.is_in_log if location.is_local else tag):
        return committed
    since = snapshot.since
    # On a disk, commit_at has made the log's checkpoint, if one was due.
    if location.is_local or checkpoint_if_due(location, version, snapshot.configuration, since):
        since = last_checkpoint(location)
    advance(dataclasses.replace(snapshot, since=since), Commit(location, version, data), tag)
    return committed


def overwrite(snapshot: Snapshot, schema: Json, files: Sequence[StagedFile], stamp: CommitStamp) -> Committed | None:
    """Replace the schema and all files with this schema and these new files, right after `snapshot`."""

    def attempt() -> None:
        snapshot.own_handle().create_write_transaction(
            [add_action(file) for file in files],
            mode="overwrite",
            schema=delta_schema(schema),
            partition_by=list(snapshot.partition_by),
            commit_properties=commit_properties(stamp),
            post_commithook_properties=hooks(snapshot.location),
        )

    return commit_at(snapshot.location, snapshot.version + 1, stamp, attempt, snapshot.configuration)


def add_columns(snapshot: Snapshot, fields: Sequence[Json], stamp: CommitStamp) -> Committed | None:
    """Add nullable columns in the version right after `snapshot`.

    delta-rs cannot change the schema in the commit that adds files. This commit comes before that one and
    changes no row: a crash in between leaves columns without values, and the process that continues finds them there.
    """
    from deltalake import Field

    def attempt() -> None:
        snapshot.own_handle().alter.add_columns(
            [Field.from_json(msgspec.json.encode(field).decode()) for field in fields],
            commit_properties=commit_properties(stamp),
            post_commithook_properties=hooks(snapshot.location),
        )

    return commit_at(snapshot.location, snapshot.version + 1, stamp, attempt, snapshot.configuration)


def commit_at(
    location: Location,
    version: int,
    stamp: CommitStamp,
    attempt: Callable[[], object],
    configuration: Mapping[str, str],
) -> Committed | None:
    """Run a commit that can only become `version`, then read that version: the log says what happened.

    A failure after the commit (its answer got lost, the checkpoint that delta-rs writes next failed) is a
    success; a success report of delta-rs is not believed either. An attempt that returns the commit has put it itself,
    on a store that keeps the condition.
    """
    from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError

    error: Exception | None = None
    known: object = None
    seams.fault(stamp.faults[0])
    try:
        known = attempt()
    except (DeltaError, OSError) as raised:
        error = raised
    seams.fault(stamp.faults[1])
    commit = known if isinstance(known, Commit) else read_commit(location, version)
    if commit is not None:
        if not stamp.is_on(commit):
            return None
        commit.make_durable()
        if location.is_local:
            checkpoint_if_due(location, version, configuration)
        return Committed(version, commit.sha)
    refused = isinstance(error, DeltaProtocolError | SchemaMismatchError) or _UNKNOWN_FEATURE in str(error)
    if error is not None and refused:
        raise Invalid(
            f"{location.url} does not take this commit: {error_text(error)}",
            expected="a table that delta-rs may write to",
            help="compare the table's schema and protocol features with the sink's declaration",
            reason="COMMIT_REFUSED",
        ) from error
    raise Unavailable(
        f"{location.url} did not take commit {version}: "
        + (error_text(error) if error else "it was reported, but is not in the log"),
        help="check free space, permissions and network; the next attempt tries again",
        reason="COMMIT_FAILED",
    ) from error


def find_commit(snapshot: Snapshot, app_id: str, id: int) -> Committed | None:
    """Return the version at which `app_id` published `id`, as far back as the log's commit files reach.

    Its ids rise with the versions, so this is a binary search. It begins where the commit is if nobody else has written
    to the table since, so in most cases it reads two commits.
    """
    if (last := snapshot.txn(app_id)) is None or last < id:
        return None
    low, high, committed = -1, snapshot.version + 1, None
    middle = max(snapshot.version - (last - id), low + 1)
    while high - low > 1:
        version, mark = _find_last_commit(snapshot, app_id, low, middle)
        published = mark.transactions[app_id] if mark is not None else None
        if published is not None and published > id:
            high = version
        else:
            if mark is not None and published == id:
                committed = Committed(version, mark.sha)
            low = middle
        middle = low + 1 if committed is not None and low + 1 < high else (low + high) // 2
    if committed is None:
        return None
    commit = read_commit(snapshot.location, committed.version)  # it may be remembered, and cleaned up since
    return committed if commit is not None and commit.sha == committed.log_hash else None


def _find_last_commit(snapshot: Snapshot, app_id: str, low: int, high: int) -> tuple[int, CommitMark | None]:
    """Return the last commit after `low`, up to `high`, that `app_id` made.

    None: there is none, or commit files on the way back to it are cleaned up, and so are all before them.
    """
    for version in range(high, low, -1):
        mark = snapshot.mark(version)
        if mark is None:
            break
        if app_id in mark.transactions:
            return version, mark
    return low, None


def find_publication(snapshot: Snapshot, app_id: str, id: int, since: int = -1) -> Committed | None:
    """Return the version after `since` at which `app_id` published `id`, whatever the order of ids.

    Raise Corrupt if a commit file on the way back to it is gone, so that nobody can tell.
    """
    for version in range(snapshot.version, since, -1):
        mark = snapshot.mark(version)
        if mark is None:
            raise Corrupt(
                f"{snapshot.location.url} does not tell whether it has checkpoint {id}: commit {version} is gone",
                expected=f"all commit files behind version {since}",
                help="restore them from a copy of the storage, and let delta.logRetentionDuration keep them for days",
                reason="LOG_CLEANED",
            )
        ours = mark.tags.get("tidegate.checkpoint") == id and bool(mark.tags.get("tidegate.publishes"))
        if ours and app_id in mark.transactions:
            return Committed(version, mark.sha)
    return None


def sync_commit(location: Location, version: int) -> None:
    """Make another writer's commit durable, with the files that it adds and the checkpoint that came with it."""
    commit = read_commit(location, version)
    if commit is not None:
        location.sync(commit.added_paths())
        commit.make_durable()
        sync_checkpoint(location)


def verify(location: Location, version: int, log_hash: str) -> None:
    """Raise Corrupt if `version` is not the commit that was published as that version.

    A table that was dropped and created again, or a commit that was overwritten, has another log hash under
    the same number. A version whose commit file the table's owner has cleaned up cannot be checked.
    """
    commit = read_commit(location, version)
    if commit is not None and commit.sha == log_hash:
        return
    if commit is None:
        snapshot = open_table(location)
        if snapshot is not None and snapshot.version > version:
            return  # cleaned up after a later checkpoint of the log: the table has newer versions
    raise Corrupt(
        f"{location.url}: version {version} is not the one that tidegate published"
        + (" (it is gone)" if commit is None else f" (log hash {commit.sha[:12]}, published {log_hash[:12]})"),
        expected=f"a commit file with the hash {log_hash}",
        help="the table was dropped and made again, or overwritten, or put back from an older copy: restore it, "
        "or start a new pipeline with take_over=True",
        reason="OTHER_TABLE",
    )


def delta_schema(schema: Json) -> Any:
    """Return a schema as delta-rs takes it."""
    from deltalake import Schema

    return Schema.from_json(msgspec.json.encode(schema).decode())


def add_action(file: StagedFile) -> AddAction:
    """Return the log's action for a staged file."""
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=file.partition,
        modification_time=int(seams.now().timestamp() * 1000),
        data_change=True,
        stats=file.stats,
    )


def remove_action(file: LiveFile | DataFile) -> RemoveAction:
    """Return the log's action for a file that no longer belongs to the table. The file itself stays."""
    from deltalake.transaction import RemoveAction

    return RemoveAction(
        path=file.path,
        data_change=True,
        deletion_timestamp=int(seams.now().timestamp() * 1000),
        size=file.size,
        partition_values=file.partition_texts(),
    )


def commit_properties(stamp: CommitStamp) -> CommitProperties:
    """Return the properties that make a commit a compare-and-swap: one try, at the version right after the handle's."""
    from deltalake import CommitProperties, Transaction

    transactions = [Transaction(app_id, id) for app_id, id in stamp.transactions().items()]
    return CommitProperties(custom_metadata=stamp.info(), max_commit_retries=0, app_transactions=transactions)


def hooks(location: Location) -> PostCommitHookProperties:
    """Return which hooks delta-rs runs after a commit.

    Never Delta's log clean-up: a retained checkpoint may need those versions. Delta log checkpoints are made by
    delta-rs on object stores, where a file is whole or absent; on local disks by delta/log/checkpoints.py.
    """
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=not location.is_local, cleanup_expired_logs=False)
