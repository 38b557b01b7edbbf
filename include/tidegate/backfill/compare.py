"""Compare: what each table shows now, and what it would show after the swap."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from tidegate import seams
from tidegate.backfill.open_backfill import OpenBackfill, changes_since
from tidegate.backfill.swap import examine_swap
from tidegate.connectors.delta.sink.table import DeltaSink
from tidegate.delta import Snapshot, open_table, query, sql_name, version_of
from tidegate.delta.as_python import python_rows
from tidegate.delta.dataset import dataset
from tidegate.errors import Invalid, TidegateError
from tidegate.ledger.ledger import stamp
from tidegate.records.records import BackfillCompared, ComparedTable, Json

__all__ = ["compare", "difference_of", "differing_rows", "tables_of"]


def tables_of(line: OpenBackfill) -> list[str]:
    """Return the tables that the swap changes, without states and quarantine."""
    return list(line.backfill.graph.sinks)


def compare(line: OpenBackfill) -> dict[str, ComparedTable]:
    """Count the rows of all tables that differ, and leave a hint of it for the pages."""
    head = line.head()
    differences = {table: difference_of(line, table) for table in tables_of(line)}
    if line.backfill.until is not None:  # it was compared with the tables as of then, and no swap would change that
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
    """Count the rows that differ: all rows of both are read.

    A line that is to stop at a checkpoint of the pipeline is compared with the table as of that, else as it is now.
    """
    sides = _sides(line, table)
    now, then = (sum(dataset(part).count_rows() for part in side) for side in (sides.now, sides.after_swap))
    counts = _ask(
        sides,
        "SELECT sum(CASE WHEN more < 0 THEN -more END) AS gone, sum(CASE WHEN more > 0 THEN more END) "
        "AS come FROM changed",
    )
    (row,) = counts or [{"gone": 0, "come": 0}]
    return ComparedTable(
        rows_now=now, rows_after=then, rows_removed=int(row["gone"] or 0), rows_added=int(row["come"] or 0)
    )


def differing_rows(line: OpenBackfill, table: str, limit: int) -> list[Json]:
    """Return some of the rows that differ, as for `difference_of`: those of one key beside each other, and which side
    has them."""
    sides = _sides(line, table)
    keys = list(map(sql_name, line.backfill.graph.sinks[table].sink.upserts or sides.columns))
    chosen = "CASE WHEN more > 0 THEN 'after' ELSE 'now' END AS side, abs(more) AS times, *"
    rows = _ask(sides, f"SELECT {chosen} FROM changed ORDER BY {', '.join([*keys, 'more'])} LIMIT {limit}")
    return [{name: value for name, value in row.items() if name != "more"} for row in rows]


@dataclass(frozen=True)
class _SwapSides:
    now: list[Snapshot]
    after_swap: list[Snapshot]
    """Together they have the rows after the swap: as of the line's origin, and the shadow's."""
    columns: list[str]
    """Those that all of them have."""


def _sides(line: OpenBackfill, table: str) -> _SwapSides:
    sink = line.live.graph.sinks[table].sink
    shadow_sink = line.backfill.graph.sinks[table].sink
    assert isinstance(sink, DeltaSink)
    assert isinstance(shadow_sink, DeltaSink)
    real = open_table(sink.delta_table(line.live.context(table)))
    shadow = open_table(shadow_sink.delta_table(line.backfill.context(table)))
    since = _as_of(line, table, real, line.record.origin)
    then = [shadow] if shadow is not None else []
    if since is not None and not (sink.rewrites and shadow is not None):
        then.insert(0, since)
    until = line.backfill.until
    was = real if until is None else _as_of(line, table, real, until.id)
    now = [was] if was is not None else []
    names = [[field["name"] for field in part.schema["fields"]] for part in (*now, *then)]
    columns = [name for name in (names[0] if names else []) if all(name in others for others in names)]
    return _SwapSides(now, then, columns)


def _as_of(line: OpenBackfill, table: str, real: Snapshot | None, id: int) -> Snapshot | None:
    """Return the pipeline's table as of one of its checkpoints. None: it had none then."""
    _, changes = changes_since(line.live, id)
    way = next((change.way for change in changes if change.table == table), None)
    if way is not None and way.target_version is None and way.problems:
        raise Invalid(
            f"table {table!r} cannot be read as of checkpoint {id}: {'; '.join(way.problems)}",
            expected="its versions, and their files, since then",
            help="compare with a later checkpoint (--to), or discard the backfill and begin a later one",
            reason="CANNOT_COMPARE",
        )
    return (
        version_of(real, way.target_version.version)
        if real is not None and way is not None and way.target_version is not None
        else None
    )


def _ask(sides: _SwapSides, sql: str) -> list[dict[str, Any]]:
    """Ask about `changed`: each row of which one side has more copies, and how many more after the swap."""
    columns = ", ".join(map(sql_name, sides.columns))
    if not columns:
        return []
    tables = {f"now_{n}": part for n, part in enumerate(sides.now)}
    tables |= {f"then_{n}": part for n, part in enumerate(sides.after_swap)}
    signs = {name: 1 if name.startswith("then") else -1 for name in tables}
    rows = " UNION ALL ".join(f"SELECT {columns}, {sign} AS sign FROM {name}" for name, sign in signs.items())
    changed = f"SELECT {columns}, sum(sign) AS more FROM ({rows}) AS x GROUP BY {columns} HAVING sum(sign) <> 0"
    return python_rows(query(tables, f"WITH changed AS ({changed}) {sql}"))
