"""Reads the rows of one interval from a Delta table: start <= column < end, at a version that the plan fixes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from tidegate.connectors.delta.source import errors
from tidegate.connectors.source import Planned
from tidegate.delta import DataFile, TableFiles, TableLayout, TableLog, open_table, paths_outside
from tidegate.errors import Invalid, TidegateError
from tidegate.records.interval import Interval
from tidegate.records.records import Json
from tidegate.versions.python import UTC, parse_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["only_interval", "plan_interval"]

_TYPES: Final = ("date", "timestamp", "timestamp_ntz")


def plan_interval(log: TableLog, column: str, interval: Interval, source: str) -> Planned:
    """Plan the files of the table's latest version that may hold rows of the interval."""
    head = log.head
    if head is None:
        raise errors.no_table(source, log.location.url)
    layout = log.layout(head)
    kind = _column_type(layout, column, source, log.location.url)
    commit = log.commit(head)
    bounds = _typed_bounds(kind, interval)
    all_files = log.snapshot(head)
    files = _choose_files(log, head, all_files, column, bounds)
    plain = layout.is_plain and not any(file.has_deletions for file in files)
    splits = {
        "mode": "append",
        "table": layout.table,
        "schema": layout.schema,
        "partition_by": list(layout.partition_by),
        "reader": "parquet" if plain else "delta",
        "whole_snapshot": True,  # the condition on the column selects the rows
        "millis": None if commit is None else commit.millis,
        "commits": [[head, None if commit is None else commit.sha]],
        "files": [{"version": head, "path": file.path, "size": file.size, "values": file.values} for file in files],
        "feed": None,
        "interval": {"column": column, "kind": kind, "low": bounds[0].isoformat(), "high": bounds[1].isoformat()},
    }
    size = sum(file.size for file in files)
    summary = f"version {head}: {len(files):,} of {len(all_files):,} files, {size / 1e6:,.1f} MB"
    return Planned(end=None, splits=splits, is_empty=not files, summary=summary)


def only_interval(frame: DataFrame, splits: Json) -> DataFrame:
    """Keep the rows of the planned interval."""
    interval = splits.get("interval")
    if interval is None:
        return frame
    from pyspark.sql import functions as F

    column = F.col("`{}`".format(interval["column"].replace("`", "``")))
    low = _literal(interval["kind"], interval["low"])
    high = _literal(interval["kind"], interval["high"])
    return frame.where((column >= low) & (column < high))


def _literal(kind: str, text: str) -> Column:
    """Return a bound that does not depend on the session's time zone."""
    from pyspark.sql import functions as F

    if kind == "timestamp":
        moment = parse_time(text) - datetime(1970, 1, 1, tzinfo=UTC)
        return F.timestamp_micros(F.lit(moment // timedelta(microseconds=1)))
    return F.lit(text).cast(kind)


def _column_type(layout: TableLayout, column: str, source: str, url: str) -> str:
    types = {field["name"]: field["type"] for field in layout.schema["fields"]}
    kind = types.get(column)
    if not isinstance(kind, str) or kind not in _TYPES:
        problem = f"is {kind}" if kind else "does not exist"
        raise Invalid(
            f"source {source!r}: column {column!r} of {url} {problem}",
            expected=f"by_interval to name a column of type {', '.join(_TYPES)}; the columns are {', '.join(types)}",
            help="name the column that holds the time of a row",
            reason="BAD_TIME_COLUMN",
        )
    return kind


def _typed_bounds(kind: str, interval: Interval) -> tuple[Any, Any]:
    """Return the bounds of low <= value < high in the column's type. A date is its start in UTC."""
    return _typed_bound(kind, interval.start), _typed_bound(kind, interval.end)


def _typed_bound(kind: str, moment: datetime) -> datetime | date:
    if kind == "timestamp":
        return moment
    naive = moment.replace(tzinfo=None)
    if kind == "timestamp_ntz":
        return naive
    # For a moment during a day, the first date at or after it is the next day.
    return naive.date() if naive.time() == time.min else naive.date() + timedelta(days=1)


def _choose_files(
    log: TableLog, head: int, files: Sequence[DataFile], column: str, bounds: tuple[Any, Any]
) -> list[DataFile]:
    """Return the files that partition values and statistics do not rule out, or all if delta-rs cannot read the
    table."""
    try:
        snapshot = open_table(log.location, head)
        if snapshot is None:
            return list(files)
        outside = paths_outside(snapshot, column, *bounds)
    except (TidegateError, ValueError, OverflowError, NotImplementedError, TypeError):
        return list(files)
    if outside is None:
        return list(files)
    possible = files.without_paths(outside) if isinstance(files, TableFiles) else files
    ruled_out = set(map(unquote, outside.to_pylist()))  # paths may be encoded in more than one way
    return [file for file in possible if file.path not in ruled_out]
