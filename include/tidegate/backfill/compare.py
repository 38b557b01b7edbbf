"""Compare the present content of each table with its content after the swap."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from tidegate import seams
from tidegate.backfill.open_backfill import OpenBackfill, changes_since
from tidegate.backfill.sampled import rows_in_sample
from tidegate.backfill.swap import examine_swap
from tidegate.connectors.delta.sink.table import DeltaSink
from tidegate.delta import Snapshot, open_table, query, sql_name, version_of
from tidegate.delta.as_python import python_rows
from tidegate.delta.dataset import dataset
from tidegate.errors import Invalid, TidegateError
from tidegate.ledger.ledger import stamp
from tidegate.records.records import BackfillCompared, ComparedTable, Json

__all__ = ["MORE", "Sides", "ask", "compare", "difference_of", "differing_rows", "sides_of", "tables_of"]

MORE = "_tidegate_more"
"""A column of `changed`, see `ask`. A table may have columns called `more` or `sign`."""
_SIGN = "_tidegate_sign"


def tables_of(line: OpenBackfill) -> list[str]:
    """Return the tables that the swap changes, without states and quarantine."""
    return list(line.backfill.graph.sinks)


def compare(line: OpenBackfill) -> dict[str, ComparedTable]:
    """Count the rows of all tables that differ, and write the result as a hint for the pages."""
    head = line.head()
    differences = {table: difference_of(line, table) for table in tables_of(line)}
    if line.backfill.until is not None:  # compared with the tables as of a checkpoint: the hint is about a swap
        return differences
    proposal = examine_swap(line, {})
    compared = BackfillCompared(
        **stamp(seams.new_id()),
        head=head.id if head is not None else 0,
        tables=differences,
        unchanged_sinks=line.sinks_without_shadow(),
        tables_with_other_writers=[
            change.table for change in proposal.changes if change.method == "restore" and change.way.foreign_commits
        ],
        problems=list(proposal.problems),
    )
    with contextlib.suppress(TidegateError):
        line.live.ledger.hint_line_compared(line.name, compared)
    return differences


def difference_of(line: OpenBackfill, table: str) -> ComparedTable:
    """Count the rows that differ. This reads all rows of both sides.

    A backfill that stops at a checkpoint of the pipeline is compared with the table as of that checkpoint, otherwise
    with its present content.
    """
    sides = sides_of(line, table)
    counts = ask(
        sides,
        f"SELECT sum(CASE WHEN {MORE} < 0 THEN -{MORE} END) AS removed, sum(CASE WHEN {MORE} > 0 THEN {MORE} END) "
        "AS added FROM changed",
    )
    row = counts[0] if counts else {"removed": 0, "added": 0}
    return ComparedTable(
        rows_now=sides.rows_now(),
        rows_after=sides.rows_after_swap(),
        rows_removed=int(row["removed"] or 0),
        rows_added=int(row["added"] or 0),
    )


def differing_rows(line: OpenBackfill, table: str, limit: int) -> list[Json]:
    """Return some of the rows that differ, as for `difference_of`, with the side that has them. Rows of one key are
    adjacent."""
    sides = sides_of(line, table)
    keys = list(map(sql_name, line.backfill.graph.sinks[table].sink.upserts or sides.columns))
    side, times = (_unused(name, sides.columns) for name in ("side", "times"))
    chosen = f"CASE WHEN {MORE} > 0 THEN 'after' ELSE 'now' END AS {side}, abs({MORE}) AS {times}, *"
    rows = ask(sides, f"SELECT {chosen} FROM changed ORDER BY {', '.join([*keys, MORE])} LIMIT {limit}")
    return [{name: value for name, value in row.items() if name != MORE} for row in rows]


def _unused(name: str, columns: list[str]) -> str:
    """Return this name for a column beside those of the table, or another one if the table has such a column."""
    return f"_tidegate_{name}" if name in columns else name


@dataclass(frozen=True)
class Sides:
    """The snapshots of a table before and after a swap."""

    now: list[Snapshot]
    after_swap: list[Snapshot]
    """Together they have the rows after the swap: those as of the backfill's origin, and the shadow's."""
    columns: list[str]
    """The columns that all of these have."""
    condition: str = "true"
    """Which rows are compared."""

    def rows_now(self) -> int:
        return sum(map(self._count, self.now))

    def rows_after_swap(self) -> int:
        return sum(map(self._count, self.after_swap))

    def _count(self, part: Snapshot) -> int:
        if self.condition == "true":
            count: int = dataset(part).count_rows()
            return count
        (row,) = python_rows(query({"part": part}, f"SELECT count(*) AS n FROM part WHERE {self.condition}"))
        return int(row["n"])


def sides_of(line: OpenBackfill, table: str) -> Sides:
    """Return both sides of a table."""
    sink = line.live.graph.sinks[table].sink
    shadow_sink = line.backfill.graph.sinks[table].sink
    assert isinstance(sink, DeltaSink)
    assert isinstance(shadow_sink, DeltaSink)
    real = open_table(sink.delta_table(line.live.context(table)))
    shadow = open_table(shadow_sink.delta_table(line.backfill.context(table)))
    at_origin = _as_of(line, table, real, line.record.origin)
    after_swap = []
    if at_origin is not None and not (sink.rewrites and shadow is not None):
        after_swap.append(at_origin)
    if shadow is not None:
        after_swap.append(shadow)
    until = line.backfill.until
    present = real if until is None else _as_of(line, table, real, until.id)
    now = [present] if present is not None else []
    return Sides(now, after_swap, _common_columns([*now, *after_swap]), rows_in_sample(line.record))


def _common_columns(snapshots: list[Snapshot]) -> list[str]:
    """Return the columns that all of these have, in the order of the first."""
    if not snapshots:
        return []
    first, *rest = [[field["name"] for field in snapshot.schema["fields"]] for snapshot in snapshots]
    return [name for name in first if all(name in names for names in rest)]


def _as_of(line: OpenBackfill, table: str, real: Snapshot | None, id: int) -> Snapshot | None:
    """Return the pipeline's table as of one of its checkpoints, or None if it did not exist."""
    _, changes = changes_since(line.live, id)
    way = next((change.way for change in changes if change.table == table), None)
    if way is not None and way.target_version is None and way.problems:
        raise Invalid(
            f"table {table!r} cannot be read as of checkpoint {id}: {'; '.join(way.problems)}",
            expected="its versions, and their files, since then",
            help="compare with a later checkpoint (--to), or discard the backfill and begin a later one",
            reason="CANNOT_COMPARE",
        )
    if real is None or way is None or way.target_version is None:
        return None
    return version_of(real, way.target_version.version)


def ask(sides: Sides, sql: str) -> list[dict[str, Any]]:
    """Query the view `changed`: each row with different numbers of copies, and in MORE how many more it has after the
    swap."""
    columns = ", ".join(map(sql_name, sides.columns))
    if not columns:
        return []
    tables = {}
    selects = []
    for side, snapshots, sign in (("now", sides.now, -1), ("after", sides.after_swap, 1)):
        for number, snapshot in enumerate(snapshots):
            tables[f"{side}_{number}"] = snapshot
            selects.append(f"SELECT {columns}, {sign} AS {_SIGN} FROM {side}_{number} WHERE {sides.condition}")
    rows = " UNION ALL ".join(selects)
    changed = f"SELECT {columns}, sum({_SIGN}) AS {MORE} FROM ({rows}) AS x GROUP BY {columns} HAVING sum({_SIGN}) <> 0"
    return python_rows(query(tables, f"WITH changed AS ({changed}) {sql}"))
