"""Find and replace exactly one interval's rows in a Delta table, in one commit.

An interval stages its files in a folder named after it, so its rows are the live files below folders of that name. When
another writer compacts the table or deletes rows, it writes files elsewhere, and files no longer separate the
interval's rows from other rows. The trace of the publication reveals that. Such a table needs a column that determines
the interval of a row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from datetime import datetime, time, timedelta
from typing import Any

from tidegate.connectors.sink import Publication, SinkContext
from tidegate.delta import (
    CommitStamp,
    Committed,
    LiveFile,
    Snapshot,
    StagedFile,
    find_publication,
    live_files,
    read_commit,
    replace,
    spark_reasons_to_rewrite,
)
from tidegate.delta.as_python import python_value
from tidegate.delta.log.schema import columns, render
from tidegate.delta.rewrite import InputFile, Table, key_rows, rewrite
from tidegate.errors import Corrupt, Invalid, Rejected
from tidegate.records.codec import sha256
from tidegate.records.interval import Interval
from tidegate.records.records import Json
from tidegate.versions.python import UTC

__all__ = [
    "column_problems",
    "interval_files",
    "is_published",
    "not_rewritten_error",
    "publication_of",
    "refuse_features",
    "refuse_outside",
    "replace_rows_of_interval",
    "replaced_files",
    "trace_of",
]

_LOOK_BACK = 1000
"""The number of commits to search for the one that rewrote an interval's files, for the error message."""


def trace_of(paths: Iterable[str]) -> Json:
    """Return a trace of files by which to check later that exactly these files exist."""
    names = sorted(paths)
    return {"files": len(names), "sha": sha256("\n".join(names).encode())}


def refuse_features(snapshot: Snapshot, context: SinkContext) -> None:
    """Raise Invalid for a table from which delta-rs must not remove files."""
    if reasons := spark_reasons_to_rewrite(snapshot):
        raise Invalid(
            f"sink {context.sink}: {snapshot.location.url} has {', '.join(reasons)}",
            expected="a table in which delta-rs may replace files, as an interval pipeline does",
            help="use another table, or remove that feature",
            reason="NEEDS_SPARK",
        )


def is_published(snapshot: Snapshot, publication: Publication, context: SinkContext) -> bool:
    """Return whether the table has the commit of this publication.

    Only versions after the one that was current when the rows were staged are searched.
    """
    versions = [batch.get("since") for batch in publication.committables]
    since = min((-1 if version is None else int(version) for version in versions), default=-1)
    return find_publication(snapshot, context.app_id, publication.id, since) is not None


def publication_of(snapshot: Snapshot, app_id: str, id: int) -> Committed | None:
    """Return where a checkpoint was published, or None if the log's commit files do not show it."""
    with contextlib.suppress(Corrupt):
        return find_publication(snapshot, app_id, id)
    return None


def replaced_files(
    snapshot: Snapshot, interval: Interval, replaces: tuple[int, Json] | None, context: SinkContext
) -> list[LiveFile]:
    """Return the interval's live files. Raise Invalid if they are not exactly those that were published, because
    another writer has rewritten some."""
    files = interval_files(snapshot, interval, context)
    id, expected = replaces if replaces is not None else (None, trace_of(()))
    if trace_of(file.path for file in files) == expected or (not files and _is_disowned(snapshot, interval, id)):
        return files
    raise _rewritten_error(snapshot, interval, id, context, len(files), int(expected["files"]))


def interval_files(snapshot: Snapshot, interval: Interval, context: SinkContext) -> list[LiveFile]:
    """Return the live files that an interval staged. Rows that other writers moved to other files are not in them."""
    folder = f"tidegate/{context.uid}-{context.sink}/"
    return [file for file in live_files(snapshot, containing=f"/{interval.key}/") if file.path.startswith(folder)]


def _is_disowned(snapshot: Snapshot, interval: Interval, id: int | None) -> bool:
    """Return whether the rows that checkpoint `id` published for the interval were disowned (disowned.py)."""
    for version in range(snapshot.version, -1, -1):
        mark = snapshot.mark(version)
        if mark is None:
            break
        tags = mark.tags
        if tags.get("tidegate.checkpoint") == id:
            if tags.get("tidegate.disowned") == interval.key:
                return True
            if tags.get("tidegate.publishes"):
                break  # This is the publication, so no earlier commit can have disowned it.
    return False


def _rewritten_error(
    snapshot: Snapshot, interval: Interval, id: int | None, context: SinkContext, present: int, expected: int
) -> Invalid:
    publisher = f"checkpoint {id}" if id is not None else "this pipeline"
    version, operation = _find_rewriter(snapshot, f"/{interval.key}/")
    cause = f"; version {version} ({operation}) removed some of them" if version is not None else ""
    return Invalid(
        f"sink {context.sink!r}: of the {expected} files that {publisher} added to {snapshot.location.url} for "
        f"interval {interval}, {present} remain{cause}. The rows to replace cannot be identified by file",
        expected="the interval's files as they were published: no OPTIMIZE, DELETE or UPDATE by another writer",
        help=f"`tidegate disown MODULE:pipeline --sink {context.sink} --interval {interval} --take-out` finds the rows "
        "by their values and removes them, if they were only moved (OPTIMIZE); use --leave if they should stay, or you "
        "have deleted them. Pending rows are published after either. To avoid this permanently, name the column that "
        "determines a row's interval: DeltaAppend(…, interval_column='…')",
        reason="INTERVAL_REWRITTEN",
    )


def _find_rewriter(snapshot: Snapshot, part: str) -> tuple[int | None, str]:
    """Return the version and operation of the last commit of another writer that removed files of the interval."""
    for version in range(snapshot.version, max(snapshot.version - _LOOK_BACK, -1), -1):
        commit = read_commit(snapshot.location, version)
        if commit is None:
            break
        if not commit.tags() and any(part in path for path in commit.removed_paths()):
            return version, commit.operation or "unknown"
    return None, ""


# -- by a column ---------------------------------------------------------------------------------------


def column_problems(schema: Json, column: str) -> list[str]:
    """Return the reasons why a column cannot determine a row's interval."""
    fields = columns(schema)
    if column not in fields:
        return [f"interval_column {column!r} is not in the output ({', '.join(fields)})"]
    kind = fields[column]["type"]
    if kind not in ("date", "timestamp", "timestamp_ntz"):
        return [f"interval_column {column!r} is {render(kind)}: it must be a date or a timestamp"]
    return []


def refuse_outside(
    files: Sequence[StagedFile], table: Table, column: str, interval: Interval, context: SinkContext
) -> None:
    """Raise Invalid if a staged row is outside its interval: another interval might replace it, or no interval ever."""
    import pyarrow.compute as pc

    inside = _IntervalCondition(table.schema, column, interval)
    for file in files:
        values = key_rows(table, InputFile.from_file(file), [column])[column]
        outside = pc.invert(inside(values))
        if count := pc.sum(outside).as_py() or 0:
            example = python_value(values.filter(outside)[0])
            raise Invalid(
                f"sink {context.sink!r}: {count} rows have a {column!r} outside of interval {interval}",
                expected=f"{inside.low} <= {column} < {inside.high} in every row",
                help="filter or correct them in a stage before the sink",
                reason="OUTSIDE_INTERVAL",
                quoted=f"such as {example}",
            )


def not_rewritten_error(column: str, context: SinkContext) -> Rejected:
    """Return the error for a request to disown an interval's rows: a column always finds them."""
    return Rejected(
        f"sink {context.sink!r} finds the rows of an interval by column {column!r}, in any file, so they need not be "
        "disowned",
        help="nothing to do",
        reason="NOT_REWRITTEN",
    )


def replace_rows_of_interval(
    snapshot: Snapshot,
    files: Sequence[StagedFile],
    partition_by: Sequence[str],
    column: str,
    interval: Interval,
    stamp: CommitStamp,
    folder: str,
) -> Committed | None:
    """Commit the files directly after `snapshot`, in place of all rows of the interval, including other writers' rows.

    folder: for the rewritten files, which keep rows of other intervals.
    """
    table = Table(snapshot.location, snapshot.schema, tuple(partition_by))
    replaced, rewritten = _divide_files_of_interval(snapshot, table, column, interval, f"{folder}/kept")
    committed = replace(snapshot, [*rewritten, *files], replaced, stamp)
    commit = None
    if committed is not None:
        commit = read_commit(snapshot.location, committed.version)
    if commit is None or not {file.path for file in rewritten} <= commit.added_paths():
        snapshot.location.remove_folder(folder)  # Another publisher's commit counts, so these files are useless.
    return committed


def _divide_files_of_interval(
    snapshot: Snapshot, table: Table, column: str, interval: Interval, folder: str
) -> tuple[list[LiveFile], list[StagedFile]]:
    """Return the files that hold rows of the interval, and new files with the remaining rows."""
    inside = _IntervalCondition(table.schema, column, interval)
    live = {file.path: file for file in live_files(snapshot, within=(column, inside.low, inside.high))}

    def is_replaced(rows: Any, source: InputFile, start: int) -> Any:
        return inside(rows[column])

    sources = [InputFile.from_file(file) for file in live.values()]
    changed, rewritten = rewrite(table, sources, [column], is_replaced, folder)
    return [live[source.path] for source in changed], rewritten


class _IntervalCondition:
    """The condition low <= column < high, in the column's type. A date is compared as midnight UTC."""

    def __init__(self, schema: Json, column: str, interval: Interval) -> None:
        self.column = column
        kind = columns(schema)[column]["type"]
        self.low = _typed_bound(kind, interval.start)
        self.high = _typed_bound(kind, interval.end)

    def __call__(self, values: Any) -> Any:
        """Return a mask of the values that are inside. Null is outside."""
        import pyarrow as pa
        import pyarrow.compute as pc

        low, high = pa.scalar(self.low, values.type), pa.scalar(self.high, values.type)
        mask = pc.and_(pc.greater_equal(values, low), pc.less(values, high))
        return pc.fill_null(mask, False)


def _typed_bound(kind: Any, moment: datetime) -> Any:
    if kind == "timestamp":
        return moment
    naive = moment.astimezone(UTC).replace(tzinfo=None)
    if kind == "timestamp_ntz":
        return naive
    # For a moment during a day, the first date at or after it is the next day.
    return naive.date() if naive.time() == time.min else naive.date() + timedelta(days=1)
