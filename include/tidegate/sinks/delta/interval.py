"""One interval's rows in a Delta table: found and replaced in one commit, and nobody else's.

Whose rows these are is told by the table's own log. What an interval stages lies in a folder with the interval's
name, so its rows are the live files below folders of that name. A foreign writer who compacts the table, or deletes
some rows, writes files of its own names; then the interval's rows cannot be told from others by file any more, which
the trace of what was published shows. Such a table needs a column that says to which interval a row belongs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

from tidegate.delta import (
    Committed,
    LiveFile,
    Snapshot,
    StagedFile,
    find_publication,
    live_files,
    read_commit,
    spark_reasons_to_rewrite,
)
from tidegate.delta.log.schema import columns, render
from tidegate.delta.rewrite import InputFile, Table, key_rows, rewrite
from tidegate.errors import Corrupt, Invalid
from tidegate.records.codec import sha256
from tidegate.records.interval import Interval
from tidegate.records.records import Json
from tidegate.sinks.base import Publication, SinkContext, Staging

__all__ = [
    "column_problems",
    "interval_files",
    "is_published",
    "publication_of",
    "refuse_features",
    "refuse_outside",
    "replaced_by_column",
    "replaced_files",
    "staging_folder",
    "trace_of",
]

_LOOK_BACK = 1000
"""Commits that are searched for the one that rewrote an interval's files: only for the message."""

_TRUNCATED = timedelta(milliseconds=1)
"""Delta's statistics keep milliseconds of timestamps: what they call the greatest may be that much greater."""


def staging_folder(staging: Staging, context: SinkContext) -> str:
    """Where an attempt stages: in an interval pipeline in a folder with the interval's name."""
    folder = staging.folder(context)
    return folder if staging.interval is None else f"{folder}/{staging.interval.key}"


def trace_of(paths: Iterable[str]) -> Json:
    """What tells later whether these are the files that are there."""
    names = sorted(paths)
    return {"files": len(names), "sha": sha256("\n".join(names).encode())}


def refuse_features(snapshot: Snapshot, context: SinkContext) -> None:
    """Invalid for a table of which delta-rs may not remove files."""
    if reasons := spark_reasons_to_rewrite(snapshot):
        raise Invalid(
            f"sink {context.sink}: {snapshot.location.url} has {', '.join(reasons)}",
            expected="a table of which delta-rs may replace files: an interval pipeline replaces its own",
            help="use another table, or take that feature off",
            reason="NEEDS_SPARK",
        )


def is_published(snapshot: Snapshot, publication: Publication, context: SinkContext) -> bool:
    """Whether the table has the commit of this publication: it can only lie behind the version that was staged on."""
    staged_on = [batch.get("since") for batch in publication.committables]
    since = min((-1 if version is None else int(version) for version in staged_on), default=-1)
    return find_publication(snapshot, context.app_id, publication.id, since) is not None


def publication_of(snapshot: Snapshot, app_id: str, id: int) -> Committed | None:
    """Where a checkpoint was published, as far back as the log's commit files reach."""
    with contextlib.suppress(Corrupt):
        return find_publication(snapshot, app_id, id)
    return None


def replaced_files(
    snapshot: Snapshot, interval: Interval, replaces: tuple[int, Json] | None, context: SinkContext
) -> list[LiveFile]:
    """The interval's files that are live, exactly those that were published; Invalid if others rewrote some."""
    found = interval_files(snapshot, interval, context)
    id, expected = replaces if replaces is not None else (None, trace_of(()))
    if trace_of(file.path for file in found) == expected or (not found and _is_disowned(snapshot, interval, id)):
        return found
    raise _rewritten(snapshot, interval, id, context, len(found), int(expected["files"]))


def interval_files(snapshot: Snapshot, interval: Interval, context: SinkContext) -> list[LiveFile]:
    """The live files that an interval has staged, as long as others have not put their rows elsewhere."""
    own = f"tidegate/{context.uid}-{context.sink}/"
    return [file for file in live_files(snapshot, containing=f"/{interval.key}/") if file.path.startswith(own)]


def _is_disowned(snapshot: Snapshot, interval: Interval, id: int | None) -> bool:
    """Whether somebody has let go of what checkpoint `id` put there for the interval (sinks/delta/disowned.py)."""
    for version in range(snapshot.version, -1, -1):
        tags = commit.tags() if (commit := read_commit(snapshot.location, version)) is not None else None
        if tags is None:
            break
        if tags.get("tidegate.checkpoint") == id:
            if tags.get("tidegate.disowned") == interval.key:
                return True
            if tags.get("tidegate.publishes"):
                break  # where it was published: nobody has let go of it before that
    return False


def _rewritten(
    snapshot: Snapshot, interval: Interval, id: int | None, context: SinkContext, found: int, expected: int
) -> Invalid:
    whose = f"checkpoint {id}" if id is not None else "this pipeline"
    version, operation = _rewriter(snapshot, f"/{interval.key}/")
    by = f"; version {version} ({operation}) took some of them out" if version is not None else ""
    return Invalid(
        f"sink {context.sink!r}: of the {expected} files that {whose} put into {snapshot.location.url} for interval "
        f"{interval}, {found} are there{by}. Which rows are to be replaced cannot be told by file",
        expected="the interval's files as they were published: no OPTIMIZE, DELETE or UPDATE by others",
        help=f"`tidegate disown MODULE:pipeline --sink {context.sink} --interval {interval} --take-out` finds them by "
        "their values, if others have only moved them (OPTIMIZE), and takes them out; --leave instead says that they "
        "stay, or that you have deleted them; what waits is published then. For good: say which column tells a row's "
        "interval, DeltaAppend(…, interval_column='…')",
        reason="INTERVAL_REWRITTEN",
    )


def _rewriter(snapshot: Snapshot, part: str) -> tuple[int | None, str]:
    """The last commit of another writer that removed files of the interval."""
    for version in range(snapshot.version, max(snapshot.version - _LOOK_BACK, -1), -1):
        commit = read_commit(snapshot.location, version)
        if commit is None:
            break
        if not commit.tags() and any(part in path for path in commit.removed_paths()):
            return version, commit.operation or "unknown"
    return None, ""


# -- by a column ---------------------------------------------------------------------------------------


def column_problems(schema: Json, column: str) -> list[str]:
    """Why a column cannot tell a row's interval."""
    known = columns(schema)
    if column not in known:
        return [f"interval_column {column!r} is not in the output ({', '.join(known)})"]
    kind = known[column]["type"]
    if kind not in ("date", "timestamp", "timestamp_ntz"):
        return [f"interval_column {column!r} is {render(kind)}: it must be a date or a timestamp"]
    return []


def refuse_outside(
    files: Sequence[StagedFile], table: Table, column: str, interval: Interval, context: SinkContext
) -> None:
    """Invalid if a staged row lies outside of its interval: it would be in the way of another one, or never go."""
    import pyarrow.compute as pc

    inside = _Inside(table.schema, column, interval)
    for file in files:
        values = key_rows(table, InputFile.of(file), [column])[column]
        outside = pc.invert(inside(values))
        if count := pc.sum(outside).as_py() or 0:
            example = values.filter(outside)[0].as_py()
            raise Invalid(
                f"sink {context.sink!r}: {count} rows have a {column!r} outside of interval {interval}, such as "
                f"{example}",
                expected=f"{inside.low} <= {column} < {inside.high} in every row",
                help="filter or correct them in a stage before the sink",
                reason="OUTSIDE_INTERVAL",
            )


def replaced_by_column(
    snapshot: Snapshot, table: Table, column: str, interval: Interval, folder: str
) -> tuple[list[LiveFile], list[StagedFile]]:
    """The files that hold rows of the interval, whoever wrote them; and new files with their other rows."""
    inside = _Inside(table.schema, column, interval)
    live = {file.path: file for file in live_files(snapshot) if inside.may_be_in(file)}

    def lost(rows: Any, source: InputFile, start: int) -> Any:
        return inside(rows[column])

    gone, stayed = rewrite(table, list(map(InputFile.of, live.values())), [column], lost, folder)
    return [live[source.path] for source in gone], stayed


class _Inside:
    """The condition low <= column < high, in the column's type. A date means its first moment, in UTC."""

    def __init__(self, schema: Json, column: str, interval: Interval) -> None:
        self.column = column
        kind = columns(schema)[column]["type"]
        self.low, self.high = (_as(kind, moment) for moment in (interval.start, interval.end))

    def __call__(self, values: Any) -> Any:
        """A mask over a column; null is outside."""
        import pyarrow as pa
        import pyarrow.compute as pc

        low, high = (pa.scalar(bound, values.type) for bound in (self.low, self.high))
        mask = pc.and_(pc.greater_equal(values, low), pc.less(values, high))
        return pc.fill_null(mask, False)

    def may_be_in(self, file: LiveFile) -> bool:
        """Whether the log rules out that the file has such a row."""
        if self.column in file.partition:
            value = file.partition[self.column]
            return value is not None and self.low <= value < self.high
        low, high = file.low.get(self.column), file.high.get(self.column)
        if low is None or high is None:
            return True
        return bool(low < self.high and (high + _TRUNCATED if isinstance(high, datetime) else high) >= self.low)


def _as(kind: Any, moment: datetime) -> Any:
    if kind == "timestamp":
        return moment
    bare = moment.astimezone(UTC).replace(tzinfo=None)
    if kind == "timestamp_ntz":
        return bare
    return bare.date() if bare.time() == time.min else bare.date() + timedelta(days=1)
