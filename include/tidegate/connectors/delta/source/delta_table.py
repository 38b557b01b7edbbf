"""A source that reads the new versions of a Delta table: the rows that they append, or their change feed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from tidegate.connectors.delta.source import errors
from tidegate.connectors.delta.source.interval import plan_interval
from tidegate.connectors.delta.source.lag import measure_lag
from tidegate.connectors.delta.source.position import TablePosition
from tidegate.connectors.delta.source.verify import lost_versions, verify_delta
from tidegate.connectors.schema.drift import RESCUED, OnNewColumn, OnType, Survey
from tidegate.connectors.schema.typed_columns import TypedSource, spark_columns
from tidegate.connectors.source import Planned, SourceContext
from tidegate.delta import Commit, DataFile, TableLayout, TableLog, locate
from tidegate.errors import Invalid
from tidegate.records.place import Place, shared_uri
from tidegate.records.records import Amount, Json, Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DeltaTable"]

VERSIONS: Final = 1000
"""The most commits that one plan reads, so that thousands of empty ones do not delay a trigger."""

VERSIONS_BY_SPARK: Final = 16
"""The same for a table that delta-spark must read, where each version costs a second."""


class DeltaTable(TypedSource):
    """Read the commits of other jobs to a Delta table, version by version.

    DeltaTable("tables/orders")                       appended rows
    DeltaTable("tables/orders", mode="changes")       every change of a row, from the table's change data feed
    DeltaTable("tables/orders", by_interval="at")     rows of the run's data interval, from the current version

    path: the table's path, relative to the setting `data`, or a URL.
    mode: "append" refuses a version that updates or deletes rows. Compaction and other rewrites that change no row are
        skipped. "changes" adds Delta's columns `_change_type`, `_commit_version`, `_commit_timestamp`.
    start: "beginning" reads the whole table first, then new versions. "latest" reads only versions after the one that
        is current at the first plan, which is recorded. A number reads from that version on.
    max_files, max_bytes: bounds of one checkpoint, which may end within a version. At least one file is always read. A
        version of a change feed is never split.
    ignore_deletes: skip versions that only delete rows, in mode "append".
    ignore_changes: skip versions that update or delete rows, including the rows that they add, in mode "append".
    by_interval: a date or timestamp column. Each run reads all rows with start <= column < end of its data interval,
        from the table's version when the run is planned. The arguments above then have no effect.
    schema: the columns to read, in DDL. By default, these are all that the table has when a range is planned.
    on_new_column: with a schema, what to do with further columns of the table: as in `Files`. "ignore" leaves them out.
    on_type: with a schema, what to do with a column that has another type in the table: "refuse" to read it, or
        "rescue" the values that its declared type cannot hold, or "widen" it as well, as in `Files`.
    missing_columns: with a schema, what to do if the table lacks a column: "refuse" to read it, or read "null".
    rescue_column: the name of the rescue column, as in `Files`.
    """

    kind = "delta"
    can_stop = True
    unit = "bytes"

    def __init__(
        self,
        path: str,
        mode: Literal["append", "changes"] = "append",
        start: int | Literal["beginning", "latest"] = "beginning",
        max_files: int = 1000,
        max_bytes: int | None = None,
        *,
        ignore_deletes: bool = False,
        ignore_changes: bool = False,
        by_interval: str | None = None,
        schema: str | None = None,
        on_new_column: OnNewColumn = "ignore",
        on_type: OnType = "refuse",
        missing_columns: Literal["refuse", "null"] = "refuse",
        rescue_column: str = RESCUED,
    ) -> None:
        self.path = path
        self.mode = mode
        self.start = start
        self.max_files = max_files
        self.max_bytes = max_bytes
        self.ignore_deletes = ignore_deletes
        self.ignore_changes = ignore_changes
        self.time_column = by_interval
        self.declare_columns(schema, on_new_column, on_type, missing_columns, rescue_column)

    @property
    def by_interval(self) -> bool:
        """See Source."""
        return self.time_column is not None

    def describe(self) -> Json:
        """See Source."""
        return {"kind": self.kind, **self._described(), **self.describe_columns()}

    def _described(self) -> Json:
        """Return the arguments that are not about columns."""
        names = ("path", "mode", "start", "max_files", "max_bytes", "ignore_deletes", "ignore_changes", "time_column")
        return {name: getattr(self, name) for name in names}

    def shared_uri(self, place: Place) -> str:
        """See Source."""
        return shared_uri(place.url(self.path))

    def problems(self) -> list[str]:
        """See Source."""
        problems = []
        if not isinstance(self.path, str) or not self.path.strip() or "\0" in self.path:
            problems.append(f"path is {self.path!r}; it must be a path or URL like 'tables/orders'")
        if self.mode not in ("append", "changes"):
            problems.append(f"mode is {self.mode!r}; it must be 'append' or 'changes'")
        is_version = isinstance(self.start, int) and not isinstance(self.start, bool) and self.start >= 0
        if self.start not in ("beginning", "latest") and not is_version:
            problems.append(f"start is {self.start!r}; it must be 'beginning', 'latest' or a version, at least 0")
        for name, bound in (("max_files", self.max_files), ("max_bytes", self.max_bytes)):
            if bound is None and name == "max_bytes":
                continue
            if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
                problems.append(f"{name} is {bound!r}; it must be a whole number, at least 1")
        for name, flag in (("ignore_deletes", self.ignore_deletes), ("ignore_changes", self.ignore_changes)):
            if not isinstance(flag, bool):
                problems.append(f"{name} is {flag!r}; it must be True or False")
            elif flag and self.mode == "changes":
                problems.append(f"{name} is for mode='append': a change feed contains deletes and updates")
        return problems + self._interval_problems() + self.column_problems()

    def _interval_problems(self) -> list[str]:
        if self.time_column is None:
            return []
        if not isinstance(self.time_column, str) or not self.time_column:
            return [f"by_interval is {self.time_column!r}; it must be the name of a date or timestamp column"]
        if self._described() != DeltaTable(self.path, by_interval=self.time_column)._described():
            return ["by_interval reads the current table: mode, start, bounds and ignore_* have no effect with it"]
        return []

    def beginning(self, context: SourceContext) -> Json | None:
        """See Source: "latest" is the current version."""
        if self.start != "latest" or self.by_interval:
            return None
        return self._first(TableLog(locate(context.place, self.path)), context.source).json

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        """Plan the next files by the table's log. Reads only commit files: no data, no JVM, no delta-rs."""
        log = TableLog(locate(context.place, self.path))
        if self.time_column is not None:
            assert context.interval is not None
            return plan_interval(log, self.time_column, context.interval, context.source)
        until = None
        if context.stop_position is not None:
            until = TablePosition.parse(context.stop_position, context.source)
        if start is None:
            position = self._first(log, context.source, until)
        else:
            position = TablePosition.parse(start, context.source)
            _check_same_table(log, position, context.source)
        cut = Cut(self.max_files * context.bound_factor, context.bound(self.max_bytes), position, until)
        self._fill(cut, log, context.source)
        if cut.end == position and not cut.files and not cut.feed:
            end = start if start is not None or self.start == "beginning" else position.json
            splits = _splits(self.mode, cut, None)
            return Planned(end=end, splits=splits, is_empty=True, summary="no new version", lag=self._lag(cut, log))
        layout = log.layout(cut.end.version)
        if layout.table != position.table:
            raise errors.recreated(context.source, log.location.url, position.table, layout.table)
        return Planned(
            end=cut.end.json,
            splits=_splits(self.mode, cut, layout),
            is_empty=not cut.files and not cut.feed,
            has_more=cut.has_more,
            summary=cut.summary,
            amount=cut.size,
            lag=self._lag(cut, log),
        )

    def _lag(self, cut: Cut, log: TableLog) -> Lag | None:
        """Return how much input waits after the range, or None if a stop position is set."""
        if cut.until is not None:
            return None
        if not cut.has_more:
            return Lag(rows=0, bytes=0, files=0)
        if cut.remaining is None:
            return measure_lag(log, cut.end.version, (), self._waiting_files)
        version, remaining_files = cut.remaining
        return measure_lag(log, version, remaining_files, self._waiting_files)

    def _waiting_files(self, commit: Commit) -> Sequence[DataFile]:
        """Return the files of a version that this source reads, even if it will refuse the version."""
        if self.mode == "changes":
            return commit.change_files
        if commit.removed_files and (self.ignore_changes or (self.ignore_deletes and not commit.added_files)):
            return []
        return commit.added_files

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """See Source."""
        if other is None or position == other:
            return True
        if position is None:
            return False
        return TablePosition.parse(position, context.source).covers(TablePosition.parse(other, context.source))

    def verify(self, splits: Json, context: SourceContext) -> Amount:
        """Check that the commits are unchanged since the plan, and that their files still exist."""
        amount = verify_delta(TableLog(locate(context.place, self.path)), splits, context.source)
        if splits["schema"] is not None:
            self.refuse_unfit(spark_columns(splits["schema"]), context)
        return amount

    def lost_versions(self, recorded: Mapping[int, Json], context: SourceContext) -> Iterator[str]:
        """Yield a message for each version of the table that checkpoints looked up and that can no longer be read.

        recorded: by checkpoint, the range that it read: the table at one version.
        """
        return lost_versions(TableLog(locate(context.place, self.path)), recorded)

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """Return the rows of the planned files, or the change feed of the planned versions."""
        from tidegate.connectors.delta.source.reading import FEED_COLUMNS

        kept = [column.split()[0] for column in FEED_COLUMNS] if splits["mode"] == "changes" else []
        return self.fitted(self._rows(spark, splits, context), kept)

    def _rows(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """Return the rows as the table has them."""
        from tidegate.connectors.delta.source.reading import read_delta

        return read_delta(spark, locate(context.place, self.path), splits, self._layout(splits, context), context)

    def survey(self, spark: SparkSession, splits: Json, context: SourceContext) -> Survey | None:
        """See Source. The log says which columns there are, so only values of those that do not fit are counted."""
        if self.schema is None or not self.schema_policy.rescues or splits["schema"] is None:
            return None

        def count(conditions: list[str]) -> Sequence[int]:
            counts = [f"count_if({condition})" for condition in conditions]
            return list(self._rows(spark, splits, context).selectExpr(*counts).collect()[0])

        return self.survey_counts(spark_columns(splits["schema"]), count)

    def _layout(self, splits: Json, context: SourceContext) -> Json:
        """Return the schema to read with: the plan's, or the table's current one if the plan is empty."""
        if splits["schema"] is not None:
            return {"schema": splits["schema"], "partition_by": splits["partition_by"]}
        log = TableLog(locate(context.place, self.path))
        if log.head is None:
            raise errors.no_table(context.source, log.location.url)
        layout = log.layout(log.head)
        return {"schema": layout.schema, "partition_by": list(layout.partition_by)}

    def _first(self, log: TableLog, source: str, until: TablePosition | None = None) -> TablePosition:
        """Return the position before the first plan."""
        head = log.head
        if head is None:
            raise errors.no_table(source, log.location.url)
        if self.start == "beginning":
            if until is not None:  # the table at the stop position
                version = until.version if until.is_snapshot or until.index is None else until.version - 1
                head = min(head, max(version, 0))
            return TablePosition(log.layout(head).table, head, _commit_sha(log, head), 0, True)
        if self.start == "latest":
            return TablePosition(log.layout(head).table, head, _commit_sha(log, head), None, False)
        assert isinstance(self.start, int)
        if self.start > head + 1 or (self.start <= head and self.start not in log.commits):
            raise errors.no_version(source, log.location.url, self.start, log.commits, head)
        table = log.layout(min(self.start, head)).table
        return TablePosition(table, self.start - 1, _commit_sha(log, self.start - 1), None, False)

    def _fill(self, cut: Cut, log: TableLog, source: str) -> None:
        """Take files from the log, version by version, until a bound is met or the log ends."""
        if cut.end.is_snapshot:
            self._fill_from_snapshot(cut, log)
            if cut.files or cut.end.is_snapshot:
                return  # leave the log to the next plan: the snapshot may need delta-spark when later versions do not
        first = cut.end.version
        plain: bool | None = None
        for position, commit in self._versions(log, cut.end, source):
            if cut.is_past(position):
                return
            if commit.version - first > VERSIONS:
                cut.has_more = True
                return
            if self.mode == "append" and (plain is None or commit.changes_layout):
                plain = log.layout(commit.version).is_plain
            # delta-spark reads a range under one schema, and each version costs it a second.
            by_spark = self.mode == "append" and not plain
            if by_spark and cut.commits and (commit.changes_layout or len(cut.commits) >= VERSIONS_BY_SPARK):
                cut.has_more = True
                return
            try:
                fits = self._add_version(cut, position, commit, log, source)
            except Invalid:
                if not cut.files and not cut.feed:
                    raise
                # Read the good versions first. The next plan begins with the bad one, and raises.
                fits, cut.has_more = False, True
            if not fits:
                return

    def _fill_from_snapshot(self, cut: Cut, log: TableLog) -> None:
        """Take files of the version that was current at the first plan."""
        position = cut.end
        commit = log.commit(position.version)
        cut.commits[position.version] = position.sha
        cut.millis = None if commit is None else commit.millis
        if cut.add_files(position, log.snapshot(position.version)):
            cut.has_more = log.commit(position.version + 1) is not None

    def _add_version(self, cut: Cut, position: TablePosition, commit: Commit, log: TableLog, source: str) -> bool:
        """Take one version, or the part of it that fits. Return False if a bound is met."""
        if self.mode == "append":
            return cut.add_files(position, self._appended(commit, log, source))
        if position.index:
            raise errors.half_read(source, log.location.url, position.version)
        if (not cut.feed or commit.changes_layout) and not log.layout(commit.version).has_change_feed:
            raise errors.no_change_feed(source, log.location.url, commit.version)
        return cut.add_changes(commit)

    def _versions(self, log: TableLog, position: TablePosition, source: str) -> Iterator[tuple[TablePosition, Commit]]:
        """Yield the commits to read, each with the position to begin at."""
        if position.index is not None:
            commit = log.commit(position.version)
            if commit is None:
                raise errors.log_cleaned(source, log.location.url, position.version, log.commits)
            yield position, commit
        number = position.version + 1
        while (commit := log.commit(number)) is not None:
            yield TablePosition(position.table, number, commit.sha, 0, False), commit
            number += 1

    def _appended(self, commit: Commit, log: TableLog, source: str) -> Sequence[DataFile]:
        """Return the files that a version adds. Raise Invalid if it also removes rows, unless such versions
        are ignored."""
        if not commit.removed_files:
            return commit.added_files
        if self.ignore_changes or (self.ignore_deletes and not commit.added_files):
            return []
        raise errors.changed_rows(source, log.location.url, commit)


@dataclass
class Cut:
    """A range that grows until a bound is met."""

    max_files: int
    max_bytes: int | None
    end: TablePosition
    until: TablePosition | None = None
    files: list[tuple[int, DataFile]] = field(default_factory=list)
    feed: list[int] = field(default_factory=list)
    commits: dict[int, str | None] = field(default_factory=dict)
    has_more: bool = False
    whole_snapshot: bool = False
    millis: int | None = None
    """The commit time of the snapshot's version."""
    remaining: tuple[int, Sequence[DataFile]] | None = None
    """The version at which a bound was met, and its files that are not in the range."""
    _count: int = 0
    _bytes: int = 0

    def add_files(self, position: TablePosition, files: Sequence[DataFile]) -> bool:
        """Take files from index `position.index` on. Return False if a bound is met."""
        first = position.index or 0
        for index in range(first, len(files)):
            file = files[index]
            if self._is_reached(position, index):
                self.end = replace(position, index=index)
                return False
            if self._is_full(1, file.size):
                self.has_more, self.remaining = True, (position.version, files[index:])
                if index:  # otherwise the range ends with the previous version
                    self.end = replace(position, index=index)
                return False
            self.files.append((position.version, file))
            self.commits[position.version] = position.sha
        self.whole_snapshot = position.is_snapshot and first == 0
        self.end = replace(position, index=None, is_snapshot=False)
        return True

    def add_changes(self, commit: Commit) -> bool:
        """Take all changes of a version. Return False if a bound is met."""
        size = sum(file.size for file in commit.change_files)
        if commit.change_files and self._is_full(len(commit.change_files), size):
            self.has_more, self.remaining = True, (commit.version, commit.change_files)
            return False
        if commit.change_files:
            self.feed.append(commit.version)
            self.commits[commit.version] = commit.sha
        self.end = replace(self.end, version=commit.version, sha=commit.sha, index=None, is_snapshot=False)
        return True

    def is_past(self, position: TablePosition) -> bool:
        """Return whether a position is in a version after the one at which to stop."""
        return self.until is not None and position.version > self.until.version

    def _is_reached(self, position: TablePosition, index: int) -> bool:
        """Return whether to stop within this version, at or before this file."""
        until = self.until
        if until is None or until.index is None or index < until.index:
            return False
        return (until.version, until.is_snapshot) == (position.version, position.is_snapshot)

    def _is_full(self, count: int, size: int) -> bool:
        """Return whether an addition would exceed a bound. If not, count it. The first addition always fits."""
        over_files = self._count + count > self.max_files
        over_bytes = self.max_bytes is not None and self._bytes + size > self.max_bytes
        if self._count and (over_files or over_bytes):
            return True
        self._count += count
        self._bytes += size
        return False

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._bytes

    @property
    def summary(self) -> str:
        """The range in words, for display."""
        first, last = min(self.commits, default=0), max(self.commits, default=0)
        if not self.commits:
            return f"no new rows up to version {self.end.version}"
        versions = f"version {first}" if first == last else f"versions {first} to {last}"
        files = "1 file" if self._count == 1 else f"{self._count:,} files"
        return f"{versions}: {files}, {self._bytes / 1e6:,.1f} MB"


def _splits(mode: str, cut: Cut, layout: TableLayout | None) -> Json:
    """Return a record of what to read and how, which suffices to read the same rows again."""
    plain = layout is not None and layout.is_plain and not any(file.has_deletions for _, file in cut.files)
    return {
        "mode": mode,
        "table": cut.end.table,
        "schema": None if layout is None else layout.schema,
        "partition_by": None if layout is None else list(layout.partition_by),
        "reader": "parquet" if plain else "delta",
        "whole_snapshot": cut.whole_snapshot,
        "millis": cut.millis,
        "commits": [[number, sha] for number, sha in cut.commits.items()],
        "files": [
            {"version": version, "path": file.path, "size": file.size, "values": file.values, "rows": file.rows}
            for version, file in cut.files
        ],
        "feed": [cut.feed[0], cut.feed[-1]] if cut.feed else None,
    }


def _commit_sha(log: TableLog, number: int) -> str | None:
    commit = log.commit(number)
    return None if commit is None else commit.sha


def _check_same_table(log: TableLog, position: TablePosition, source: str) -> None:
    """Raise Invalid unless the table still has the last version that was read, unchanged."""
    url = log.location.url
    commit = log.commit(position.version)
    if commit is not None:
        if position.sha is not None and commit.sha != position.sha:
            table = log.layout(position.version).table
            if table != position.table:
                raise errors.recreated(source, url, position.table, table)
            raise errors.rewritten(source, url, position.version)
        return
    head = log.head
    if head is None:
        raise errors.table_dropped_error(source, url, position.version)
    if head < position.version:
        raise errors.table_shrank_error(source, url, position, head, log.layout(head).table)
    if head > position.version and position.version + 1 not in log.commits:
        raise errors.log_cleaned(source, url, position.version + 1, log.commits)
