"""Commit exactly the next version of a Delta table, with a known outcome.

A commit to version v has one of three outcomes, even if an error occurs on the way:

    Committed     version v + 1 is this commit; if the answer was lost, the log is read back
    None          version v + 1 is another writer's commit
    Unavailable   storage failed and version v + 1 does not exist, as far as is known

Commits that only add and remove files are written directly (commit_file.py), the rest by delta-rs. delta-rs neither
syncs the files that it writes nor detects an empty commit file, so both are done here.

No I/O happens at import, because delta-rs does not survive a fork.
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
from tidegate.delta.log.commit_file import can_be_put, commit_file, schema_commit_file
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
    "change_columns",
    "create",
    "find_commit",
    "find_publication",
    "overwrite",
    "replace",
    "sync_commit",
    "verify",
]


_UNKNOWN_FEATURE = "table features required"
"""Part of delta-rs's message about an unsupported feature. Its error class is that of a lost race."""


PUBLISHING = ("S10.publish.before", "S10.publish.after")


@dataclass(frozen=True)
class CommitStamp:
    """Identifies the writer of a commit, in the log: by Delta transactions, which are authoritative, and by tags for
    people."""

    app_id: str
    id: int
    pipeline: str
    generation: int
    attempt: str
    owner: tuple[str, int]
    """The transaction that represents the pipeline's uid: see delta/log/owner.py."""
    publishes: bool = True
    """False: a commit before the publication, such as a new column, which must not count as the publication."""
    faults: tuple[str, str] = PUBLISHING
    """The fault points before and after the commit, for crash tests."""
    floor: int = 0
    """The minimum of the transaction's version, which must not decrease: intervals are published in any order of
    ids."""
    direct: bool = False
    """True: committed by a job, before the decision."""
    disowns: str = ""
    """The interval whose rows, published by checkpoint `id`, a person disowns in this commit."""

    def tags(self) -> dict[str, Any]:
        """Return the tags that the table's history shows for this commit."""
        tags: dict[str, Any] = {
            "tidegate.pipeline": self.pipeline,
            "tidegate.checkpoint": self.id,
            "tidegate.generation": self.generation,
            "tidegate.attempt": self.attempt,
            "tidegate.publishes": self.publishes,
        }
        if self.direct:
            tags["tidegate.through"] = True
        if self.disowns:
            tags["tidegate.disowned"] = self.disowns
        return tags

    def info(self) -> dict[str, Any]:
        """Return the tags, and a text with all of them, since Spark's DESCRIBE HISTORY shows only that text."""
        return {**self.tags(), "userMetadata": self.user_metadata()}

    def user_metadata(self) -> str:
        """Return the tags as one text."""
        return msgspec.json.encode(self.tags()).decode()

    def transactions(self) -> dict[str, int]:
        """Return the commit's Delta transactions, which identify the writer."""
        owner, number = self.owner
        if not self.publishes:
            return {owner: number}
        return {self.app_id: max(self.id, self.floor), owner: number}

    def is_on(self, commit: Commit) -> bool:
        """Return whether the commit carries this stamp."""
        if not commit.tags().items() >= self.tags().items():
            return False
        return all(commit.txn(app_id) == id for app_id, id in self.transactions().items())


@dataclass(frozen=True)
class Committed:
    """A commit that is in the log, durably."""

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
    description: str = "",
) -> Committed | None:
    """Create the table as version 0, with its first files. Return None if another writer was faster."""
    from deltalake.transaction import create_table_with_add_actions

    def attempt() -> None:
        create_table_with_add_actions(
            location.url,
            delta_schema(schema),
            [add_action(file) for file in files],
            mode="error",
            partition_by=list(partition_by),
            description=description or None,
            configuration=dict(properties or {}),
            storage_options=dict(location.options),
            commit_properties=commit_properties(stamp),
            post_commithook_properties=hooks(location),
        )

    return commit_at(location, 0, stamp, attempt, properties or {})


def append(snapshot: Snapshot, files: Sequence[StagedFile], stamp: CommitStamp) -> Committed | None:
    """Add `files` in the version directly after `snapshot`. This is a metadata commit, which takes milliseconds."""
    return replace(snapshot, files, (), stamp)


def replace(
    snapshot: Snapshot, added: Sequence[StagedFile], removed: Sequence[LiveFile | DataFile], stamp: CommitStamp
) -> Committed | None:
    """Add and remove files in the version directly after `snapshot`. Without files, the commit is only a fence."""
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
    """Write a commit file directly after `snapshot`, and cache the new version of the table.

    On a disk, the table may have been dropped and created again: if it then has fewer versions, the name of this commit
    is free, and if it has as many, the commit would become part of the new table. So the log must have `snapshot` both
    before and after.
    """
    location, version = snapshot.location, snapshot.version + 1
    tag: str | None = None
    if location.is_local and not snapshot.is_in_log:
        return None

    def attempt() -> Commit | None:
        nonlocal tag
        tag = location.put_new(log_path(version), data)
        if tag is None or location.is_local:
            return None  # commit_at reads the log, which costs nothing on a disk
        return Commit(location, version, data)

    committed = commit_at(location, version, stamp, attempt, snapshot.configuration)
    if committed is None or tag is None:
        return committed
    can_cache = snapshot.is_in_log if location.is_local else bool(tag)
    if not can_cache:
        return committed
    since = snapshot.since
    # On a disk, commit_at has already written the log's checkpoint, if one was due.
    if location.is_local or checkpoint_if_due(location, version, snapshot.configuration, since):
        since = last_checkpoint(location)
    advance(dataclasses.replace(snapshot, since=since), Commit(location, version, data), tag)
    return committed


def overwrite(snapshot: Snapshot, schema: Json, files: Sequence[StagedFile], stamp: CommitStamp) -> Committed | None:
    """Replace the table's schema and all its files, in the version directly after `snapshot`."""

    def attempt() -> None:
        snapshot.new_handle().create_write_transaction(
            [add_action(file) for file in files],
            mode="overwrite",
            schema=delta_schema(schema),
            partition_by=list(snapshot.partition_by),
            commit_properties=commit_properties(stamp),
            post_commithook_properties=hooks(snapshot.location),
        )

    return commit_at(snapshot.location, snapshot.version + 1, stamp, attempt, snapshot.configuration)


def add_columns(snapshot: Snapshot, fields: Sequence[Json], stamp: CommitStamp) -> Committed | None:
    """Add nullable columns in the version directly after `snapshot`.

    delta-rs cannot change the schema in a commit that adds files, so this is a separate commit before it. After a crash
    between the two, the columns exist without values, and the retry uses them.
    """
    from deltalake import Field

    def attempt() -> None:
        snapshot.new_handle().alter.add_columns(
            [Field.from_json(msgspec.json.encode(field).decode()) for field in fields],
            commit_properties=commit_properties(stamp),
            post_commithook_properties=hooks(snapshot.location),
        )

    return commit_at(snapshot.location, snapshot.version + 1, stamp, attempt, snapshot.configuration)


def change_columns(snapshot: Snapshot, schema: Json, stamp: CommitStamp) -> Committed | None:
    """Give the table this schema, with wider types and new columns, in the version directly after `snapshot`.

    Its files stay as they are: readers convert their values. After a crash before the commit with the rows, the columns
    are wider than their values need, and the retry uses them. The table must be one to which `can_be_put` applies.
    """
    return _put(snapshot, schema_commit_file(snapshot, schema, stamp.info(), stamp.transactions()), stamp)


def commit_at(
    location: Location,
    version: int,
    stamp: CommitStamp,
    attempt: Callable[[], object],
    configuration: Mapping[str, str],
) -> Committed | None:
    """Run `attempt`, a commit that can only become `version`, and determine the outcome by reading that version.

    So an error after the commit is a success: the answer was lost, or delta-rs failed to write a Delta log checkpoint.
    A reported success is not trusted either. Only if the attempt returns the commit, it has been written by a
    conditional put, and is not read back.
    """
    from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError

    error: Exception | None = None
    result: object = None
    seams.fault(stamp.faults[0])
    try:
        result = attempt()
    except (DeltaError, OSError) as raised:
        error = raised
    seams.fault(stamp.faults[1])
    commit = result if isinstance(result, Commit) else read_commit(location, version)
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
            f"{location.url} refuses this commit: {error_text(error)}",
            expected="a table that delta-rs can write to",
            help="compare the table's schema and protocol features with the sink's declaration",
            reason="COMMIT_REFUSED",
        ) from error
    if error:
        reason = error_text(error)
    else:
        reason = "success was reported, but it is not in the log"
    raise Unavailable(
        f"commit {version} to {location.url} failed: {reason}",
        help="check free space, permissions and network; the next attempt retries",
        reason="COMMIT_FAILED",
    ) from error


def find_commit(snapshot: Snapshot, app_id: str, id: int) -> Committed | None:
    """Return the version at which `app_id` published `id`, or None if the log's commit files do not show it.

    Ids increase with versions, so this is a binary search. It begins at the version that is right if no other writer
    has committed since, so it usually reads two commits.
    """
    last = snapshot.txn(app_id)
    if last is None or last < id:
        return None
    low, high, committed = -1, snapshot.version + 1, None
    middle = max(snapshot.version - (last - id), low + 1)
    while high - low > 1:
        version, mark = _find_last_commit(snapshot, app_id, low, middle)
        if mark is not None and mark.transactions[app_id] > id:
            high = version
        else:
            if mark is not None and mark.transactions[app_id] == id:
                committed = Committed(version, mark.sha)
            low = middle
        # After the id is found, probe the next version: it usually has a higher id, which ends the search.
        if committed is not None and low + 1 < high:
            middle = low + 1
        else:
            middle = (low + high) // 2
    if committed is None:
        return None
    commit = read_commit(snapshot.location, committed.version)  # marks are cached; the file may have been deleted since
    if commit is None or commit.sha != committed.log_hash:
        return None
    return committed


def _find_last_commit(snapshot: Snapshot, app_id: str, low: int, high: int) -> tuple[int, CommitMark | None]:
    """Return the last commit by `app_id` after version `low`, up to `high`.

    Without such a commit, return `low` and None. The same if commit files on the way to it have been cleaned up, since
    all files before them have been, too.
    """
    for version in range(high, low, -1):
        mark = snapshot.mark(version)
        if mark is None:
            break
        if app_id in mark.transactions:
            return version, mark
    return low, None


def find_publication(snapshot: Snapshot, app_id: str, id: int, since: int = -1) -> Committed | None:
    """Return the version after `since` at which `app_id` published `id`. Ids may be in any order.

    Raise Corrupt if it is unknown, because a commit file on the way back to it is missing.
    """
    for version in range(snapshot.version, since, -1):
        mark = snapshot.mark(version)
        if mark is None:
            raise Corrupt(
                f"it is unknown whether {snapshot.location.url} has checkpoint {id}: commit {version} is missing",
                expected=f"all commit files after version {since}",
                help="restore them from a copy of the storage, and let delta.logRetentionDuration keep them for days",
                reason="LOG_CLEANED",
            )
        publishes_id = mark.tags.get("tidegate.checkpoint") == id and mark.tags.get("tidegate.publishes")
        if publishes_id and app_id in mark.transactions:
            return Committed(version, mark.sha)
    return None


def sync_commit(location: Location, version: int) -> None:
    """Make another writer's commit durable, with the files that it adds and the log checkpoint written with it."""
    commit = read_commit(location, version)
    if commit is not None:
        location.sync(commit.added_paths())
        commit.make_durable()
        sync_checkpoint(location)


def verify(location: Location, version: int, log_hash: str) -> None:
    """Raise Corrupt if the commit file of `version` does not have the hash `log_hash`.

    The hash differs if the table was dropped and created again, or a commit was overwritten. A version whose commit
    file has been cleaned up cannot be checked.
    """
    commit = read_commit(location, version)
    if commit is not None and commit.sha == log_hash:
        return
    if commit is None:
        snapshot = open_table(location)
        if snapshot is not None and snapshot.version > version:
            return  # the table has newer versions, so the file has been cleaned up
    difference = "it no longer exists"
    if commit is not None:
        difference = f"log hash {commit.sha[:12]}, published {log_hash[:12]}"
    raise Corrupt(
        f"{location.url}: version {version} is not the one that tidegate published ({difference})",
        expected=f"a commit file with the hash {log_hash}",
        help="the table was dropped and created again, overwritten, or restored from an older copy: restore it, "
        "or start a new pipeline with take_over=True",
        reason="OTHER_TABLE",
    )


def delta_schema(schema: Json) -> Any:
    """Return a schema as a delta-rs object."""
    from deltalake import Schema

    return Schema.from_json(msgspec.json.encode(schema).decode())


def add_action(file: StagedFile) -> AddAction:
    """Return the log action that adds a staged file."""
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
    """Return the log action that removes a file from the table. The file itself stays."""
    from deltalake.transaction import RemoveAction

    return RemoveAction(
        path=file.path,
        data_change=True,
        deletion_timestamp=int(seams.now().timestamp() * 1000),
        size=file.size,
        partition_values=file.partition_texts(),
    )


def commit_properties(stamp: CommitStamp) -> CommitProperties:
    """Return properties that make a commit a compare-and-swap: delta-rs tries only the version after the handle's."""
    from deltalake import CommitProperties, Transaction

    transactions = [Transaction(app_id, id) for app_id, id in stamp.transactions().items()]
    return CommitProperties(custom_metadata=stamp.info(), max_commit_retries=0, app_transactions=transactions)


def hooks(location: Location) -> PostCommitHookProperties:
    """Return the hooks that delta-rs runs after a commit.

    Never Delta's log clean-up: a retained checkpoint may need those versions. On object stores, where a file is either
    complete or absent, delta-rs writes Delta log checkpoints. On local disks, delta/log/checkpoints.py does.
    """
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=not location.is_local, cleanup_expired_logs=False)
