"""The way out for an interval whose rows in a Delta table others have rewritten: a person lets go of them.

    take out    the rows are found by their values, which OPTIMIZE leaves as they are, and go in this commit
    leave       they stay where others have put them, or have been deleted by hand; what of the interval's own files
                is left goes

Either is one commit right behind the version that was looked at, and carries a tag that says of which checkpoint's
rows it was. From there on the interval shows nothing, and whatever is published next is added. Values tell rows only
as long as none was changed: so each commit since the interval was published is looked at, and as many rows have to
be found as were published. Among equal rows it makes no difference which ones go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

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
from tidegate.delta.rewrite import InputFile, Table, parts_of, read_part, rewrite
from tidegate.errors import Corrupt, Invalid, Rejected
from tidegate.records.interval import Interval
from tidegate.records.records import Json
from tidegate.sinks.base import Disowned, SinkContext
from tidegate.sinks.delta.interval import interval_files, trace_of

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
    look: bool,
    folder: str,
    attempt: str,
) -> Disowned | None:
    """See Sink.disown."""
    found = interval_files(snapshot, interval, context)
    id, expected = replaces if replaces is not None else (0, trace_of(()))
    if trace_of(file.path for file in found) == expected:
        raise Rejected(
            f"sink {context.sink!r}: the files of interval {interval} are in {snapshot.location.url} as they were "
            "published: whatever comes next replaces their rows",
            help="nothing to do",
            reason="NOT_REWRITTEN",
        )
    gone, stayed, rows = found, list[StagedFile](), 0
    if take_out:
        lost = _Rows(snapshot, interval, id, expected, context)
        gone, rows = lost.carriers, sum(lost.wanted.values())
    if look:
        return Disowned(version=None, rows=rows, files=len(gone))
    if take_out:
        stayed = lost.without(folder)
        gone = lost.carriers
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
    done = replace(snapshot, stayed, gone, stamp)
    if done is None:
        snapshot.location.remove_folder(folder)
        return None
    return Disowned(version=done.version, rows=rows, files=len(gone))


class _Rows:
    """What an interval has put into a table, and the files in which it is now."""

    def __init__(self, snapshot: Snapshot, interval: Interval, id: int, expected: Json, context: SinkContext) -> None:
        self.snapshot, self.interval, self.id, self.context = snapshot, interval, id, context
        self.table = Table(snapshot.location, snapshot.schema, snapshot.partition_by)
        self.names = [field["name"] for field in snapshot.schema["fields"]]
        published = self._published()
        files = [file for file in _added(published) if f"/{interval.key}/" in file.path]
        if trace_of(file.path for file in files) != expected:
            raise self._refused(f"version {published.version} of the table does not name the files that it published")
        if missing := missing_files(snapshot.location, files):
            raise self._refused(f"{len(missing)} of its files are gone (VACUUM removes what no version needs)")
        carriers = self._followed({file.path for file in files}, published.version)
        live = {file.path: file for file in live_files(snapshot)}
        self.carriers: list[LiveFile] = [live[path] for path in sorted(carriers)]
        self.wanted = Counter(told for file in files for told in self._told_of(InputFile.of(file)))

    def without(self, folder: str) -> list[StagedFile]:
        """New files for those in which the rows are now: without these. Each row has to be found."""
        left, lock = Counter(self.wanted), Lock()

        def lost(rows: pa.Table, source: InputFile, start: int) -> Any:
            import pyarrow as pa

            mask = []
            with lock:
                for told in _told(rows):
                    mask.append(left[told] > 0)
                    if mask[-1]:
                        left[told] -= 1
            return pa.array(mask, pa.bool_())

        losing, stayed = rewrite(self.table, list(map(InputFile.of, self.carriers)), self.names, lost, folder)
        if count := sum(left.values()):
            self.snapshot.location.remove_folder(folder)
            raise self._refused(f"{count} of its {sum(self.wanted.values())} rows are not in the table any more")
        touched = {source.path for source in losing}
        self.carriers = [file for file in self.carriers if file.path in touched]
        return stayed

    def _published(self) -> Commit:
        done = None
        try:
            done = find_publication(self.snapshot, self.context.app_id, self.id)
        except Corrupt as error:
            raise self._refused(error.what) from error
        commit = read_commit(self.snapshot.location, done.version) if done is not None else None
        if commit is None:
            raise self._refused("the table's history does not tell in which version it was published")
        return commit

    def _followed(self, carriers: set[str], since: int) -> set[str]:
        """Into which live files the rows have gone, commit by commit."""
        for version in range(since + 1, self.snapshot.version + 1):
            commit = read_commit(self.snapshot.location, version)
            if commit is None:
                raise self._refused(f"the commit file of version {version} is gone")
            removed = commit.removed_paths()
            if not removed & carriers:
                continue
            # What lets go of another interval's rows writes those that stay as they are.
            if commit.changes_rows() and not commit.tags().get("tidegate.disowned"):
                operation = commit.operation or "unknown"
                raise self._refused(f"version {version} ({operation}) has changed rows in the files in which it lies")
            carriers = (carriers - removed) | commit.added_paths()
        return carriers

    def _told_of(self, source: InputFile) -> Iterator[bytes]:
        for part in parts_of(self.table, source):
            yield from _told(read_part(self.table, part, self.names))

    def _refused(self, why: str) -> Invalid:
        return Invalid(
            f"sink {self.context.sink!r}: which rows of {self.snapshot.location.url} checkpoint {self.id} put there "
            f"for interval {self.interval} cannot be told by their values: {why}",
            expected="rows that are as they were published, whatever files they are in, and the files that were "
            "published",
            help="delete by hand what is left of them, such as DELETE FROM … WHERE …, and say so with --leave; or say "
            "so without: then they stay for good, beside what comes next",
            reason="INTERVAL_CHANGED",
        )


def _added(commit: Commit) -> list[StagedFile]:
    """The files that a commit added."""
    return [
        StagedFile(path=unquote(add["path"]), size=add["size"], rows=0, partition=add["partitionValues"], stats="")
        for add in commit.actions_of("add")
    ]


def _told(rows: pa.Table) -> Iterator[bytes]:
    """For each row what it is told by: all its values."""
    columns = [column.to_pylist() for column in rows.columns]
    for values in zip(*columns, strict=True):
        yield blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).digest()
