"""Disown an interval's rows in a Delta table, after another writer has rewritten them.

    take out    find the rows by their values, which OPTIMIZE does not change, and remove them in this commit
    leave       leave the rows in the files to which they were moved, or they were deleted by hand; remove the
                interval's original files that still exist

Either is one commit directly after the version that was examined. A tag names the checkpoint whose rows it disowns.
After that, the interval has no rows in the table, and its next publication only adds rows.

Values identify rows only if none has changed. So every commit since the interval was published is checked, and exactly
as many rows must be found as were published. Among equal rows it makes no difference which ones are removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tidegate.connectors.delta.sink.interval import interval_files, trace_of
from tidegate.connectors.sink import Disowned, SinkContext
from tidegate.delta import (
    Commit,
    CommitStamp,
    LiveFile,
    Snapshot,
    StagedFile,
    find_publication,
    live_files,
    missing_files,
    owner_of,
    read_commit,
    replace,
)
from tidegate.delta.as_python import python_values
from tidegate.delta.rewrite import InputFile, Table, parts_of, read_part, rewrite
from tidegate.errors import Corrupt, Invalid, Rejected
from tidegate.records.interval import Interval
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["disown"]


def disown(
    snapshot: Snapshot,
    interval: Interval,
    replaces: tuple[int, Json] | None,
    context: SinkContext,
    *,
    take_out: bool,
    dry_run: bool,
    folder: str,
    attempt: str,
) -> Disowned | None:
    """See Sink.disown."""
    files = interval_files(snapshot, interval, context)
    id, expected = replaces if replaces is not None else (0, trace_of(()))
    if trace_of(file.path for file in files) == expected:
        raise Rejected(
            f"sink {context.sink!r}: the files of interval {interval} are in {snapshot.location.url} as they were "
            "published, and the next publication replaces their rows",
            help="nothing to do",
            reason="NOT_REWRITTEN",
        )
    removed, rewritten, rows = files, list[StagedFile](), 0
    if take_out:
        published = _PublishedRows(snapshot, interval, id, expected, context)
        removed, rows = published.carriers, sum(published.rows.values())
    if dry_run:
        return Disowned(version=None, rows=rows, files=len(removed))
    if take_out:
        rewritten = published.rewrite_without(folder)
        removed = published.carriers
    stamp = CommitStamp(
        app_id=context.app_id,
        id=id,
        pipeline=context.pipeline,
        generation=0,
        attempt=attempt,
        owner=owner_of(context.pipeline, context.sink, context.uid),
        publishes=False,
        disowns=interval.key,
    )
    committed = replace(snapshot, rewritten, removed, stamp)
    if committed is None:
        snapshot.location.remove_folder(folder)
        return None
    return Disowned(version=committed.version, rows=rows, files=len(removed))


class _PublishedRows:
    """The rows that an interval has published to a table, and the files that hold them now."""

    def __init__(self, snapshot: Snapshot, interval: Interval, id: int, expected: Json, context: SinkContext) -> None:
        self.snapshot, self.interval, self.id, self.context = snapshot, interval, id, context
        self.table = Table(snapshot.location, snapshot.schema, snapshot.partition_by)
        self.names = [field["name"] for field in snapshot.schema["fields"]]
        published = self._find_publication()
        files = [file for file in _added_files(published) if f"/{interval.key}/" in file.path]
        if trace_of(file.path for file in files) != expected:
            raise self._refusal(f"version {published.version} of the table does not name the published files")
        if missing := missing_files(snapshot.location, files):
            raise self._refusal(f"{len(missing)} of its files are gone: VACUUM removes files of old versions")
        carriers = self._follow({file.path for file in files}, published.version)
        live = {file.path: file for file in live_files(snapshot)}
        self.carriers: list[LiveFile] = [live[path] for path in sorted(carriers)]
        self.rows: Counter[bytes] = Counter()
        """The number of rows by the digest of their values."""
        for file in files:
            self.rows.update(self._digests_of(InputFile.from_file(file)))

    def rewrite_without(self, folder: str) -> list[StagedFile]:
        """Rewrite the files that hold the rows, without these rows. Raise Invalid unless all of them are found."""
        missing, lock = Counter(self.rows), Lock()  # several threads rewrite files

        def remove(rows: pa.Table, source: InputFile, start: int) -> Any:
            import pyarrow as pa

            mask = []
            with lock:
                for digest in _row_digests(rows):
                    mask.append(missing[digest] > 0)
                    if mask[-1]:
                        missing[digest] -= 1
            return pa.array(mask, pa.bool_())

        changed, rewritten = rewrite(
            self.table, list(map(InputFile.from_file, self.carriers)), self.names, remove, folder
        )
        count = sum(missing.values())
        if count:
            self.snapshot.location.remove_folder(folder)
            raise self._refusal(f"{count} of its {sum(self.rows.values())} rows are no longer in the table")
        changed_paths = {source.path for source in changed}
        self.carriers = [file for file in self.carriers if file.path in changed_paths]
        return rewritten

    def _find_publication(self) -> Commit:
        try:
            publication = find_publication(self.snapshot, self.context.app_id, self.id)
        except Corrupt as error:
            raise self._refusal(error.what) from error
        commit = None
        if publication is not None:
            commit = read_commit(self.snapshot.location, publication.version)
        if commit is None:
            raise self._refusal("the table's history does not show in which version it was published")
        return commit

    def _follow(self, carriers: set[str], since: int) -> set[str]:
        """Follow the rows commit by commit, and return the live files that hold them now."""
        for version in range(since + 1, self.snapshot.version + 1):
            commit = read_commit(self.snapshot.location, version)
            if commit is None:
                raise self._refusal(f"the commit file of version {version} is missing")
            removed = commit.removed_paths()
            if not removed & carriers:
                continue
            # A commit that disowns another interval's rows rewrites the remaining rows unchanged.
            if commit.changes_rows() and not commit.tags().get("tidegate.disowned"):
                operation = commit.operation or "unknown"
                raise self._refusal(f"version {version} ({operation}) has changed rows in the files that hold them")
            carriers = (carriers - removed) | commit.added_paths()
        return carriers

    def _digests_of(self, source: InputFile) -> Iterator[bytes]:
        for part in parts_of(self.table, source):
            yield from _row_digests(read_part(self.table, part, self.names))

    def _refusal(self, reason: str) -> Invalid:
        return Invalid(
            f"sink {self.context.sink!r}: the rows that checkpoint {self.id} published to {self.snapshot.location.url} "
            f"for interval {self.interval} cannot be identified by their values: {reason}",
            expected="unchanged rows, in any file, and the files that were published",
            help="delete the remaining rows by hand, for example with DELETE FROM … WHERE …, and then use --leave; or "
            "use --leave without deleting them: they then stay permanently, in addition to the next publication",
            reason="INTERVAL_CHANGED",
        )


def _added_files(commit: Commit) -> list[StagedFile]:
    """Return the files that a commit added."""
    return [
        StagedFile(path=unquote(add["path"]), size=add["size"], rows=0, partition=add["partitionValues"], stats="")
        for add in commit.actions_of("add")
    ]


def _row_digests(rows: pa.Table) -> Iterator[bytes]:
    """Yield a digest of the values of each row."""
    columns = [python_values(column) for column in rows.columns]
    for values in zip(*columns, strict=True):
        yield blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).digest()
