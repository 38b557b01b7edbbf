"""`tidegate diff`: what differs between two checkpoints: input, tables, state, settings and code."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from tidegate import offline
from tidegate.cli.inspect.documents import measure_text
from tidegate.cli.inspect.read import as_of, count_rows, format_rows, open_as_of, row_limit
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, entry_of, open_target
from tidegate.delta import query, sql_name
from tidegate.delta.as_python import json_value, python_rows
from tidegate.history.query import view_of
from tidegate.history.row import MEASURES
from tidegate.history.view import CheckpointView
from tidegate.ledger.refusals import no_such_state
from tidegate.offline import State
from tidegate.protocol.view import Entry
from tidegate.records.records import Published, PublishedTable
from tidegate.state.table import STATE

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "diff",
        help="what differs between two checkpoints",
        description="Compare two published checkpoints: durations, rows, sizes and lag, positions of the sources, "
        "versions and rows of the tables, keys that operators added, changed and removed, settings and code. With an "
        "operator: these keys, before and after.",
        epilog="examples:\n  tidegate diff orders 3 5\n  tidegate diff orders 3 5 totals --limit 50 --json",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("before", type=checkpoint_id, metavar="N", help="the one checkpoint")
    parser.add_argument("after", type=checkpoint_id, metavar="M", help="the other")
    parser.add_argument("operator", nargs="?", metavar="OPERATOR", help="show the keys of this operator's state")
    parser.add_argument("--limit", type=row_limit, default=20, metavar="K", help="at most K keys (20)")


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the differences."""
    target = open_target(args.pipeline, args.settings)
    entries = entry_of(target.ledger, args.before), entry_of(target.ledger, args.after)
    tables = as_of(target, args.before), as_of(target, args.after)
    states = offline.states_of(target.ledger, tables[0]), offline.states_of(target.ledger, tables[1])
    if args.operator is not None:
        return _keys(target, args, states, out)
    views = view_of(target.ledger, entries[0]), view_of(target.ledger, entries[1])
    document = {
        "pipeline": target.name,
        "before": args.before,
        "after": args.after,
        "figures": _figures(*views),
        "sources": _sources(*entries),
        "tables": _tables(target, *tables),
        "states": {name: _state(target, *pair) for name, pair in sorted(_pairs(*states).items())},
        "settings": _settings(*views),
        "code_changed": views[0].details.code_fingerprint != views[1].details.code_fingerprint,
    }
    out.document(document)
    if not out.json:
        _print(target, document, out)
    return 0


# -- what differs --------------------------------------------------------------------------------------


def _sources(before: Entry, after: Entry) -> dict[str, Any]:
    """Return the positions of each source, from the plans, because a view leaves out long ones."""
    old = {name: msgspec.to_builtins(part.end) for name, part in before.plan.sources.items()}
    new = {name: msgspec.to_builtins(part.end) for name, part in after.plan.sources.items()}
    return {
        name: {"before": old.get(name), "after": new.get(name), "changed": old.get(name) != new.get(name)}
        for name in sorted(old.keys() | new.keys())
    }


def _figures(before: CheckpointView, after: CheckpointView) -> dict[str, list[float]]:
    """Return the measures that both have: durations, rows, sizes, lag."""
    pairs = {name: [getattr(before, name), getattr(after, name)] for name in MEASURES}
    return {name: pair for name, pair in pairs.items() if None not in pair}


def _tables(target: Target, before: Published, after: Published) -> dict[str, Any]:
    differences: dict[str, Any] = {}
    for name in sorted(before.tables.keys() | after.tables.keys()):
        if name.startswith(STATE):
            continue
        sides = [each.tables.get(name) for each in (before, after)]
        versions = [side.version if side else None for side in sides]
        rows = [_count(target, side) for side in sides]
        differences[name] = {"versions": versions, "rows": rows}
    return differences


def _count(target: Target, table: PublishedTable | None) -> int | None:
    """Count the rows of a table. None if it has no versions, so that earlier rows cannot be counted."""
    if table is None:
        return 0
    if table.is_delta:
        return count_rows(open_as_of(target, table))
    return None


def _settings(before: CheckpointView, after: CheckpointView) -> dict[str, Any]:
    """Return the settings that differ."""
    old, new = before.details.config, after.details.config
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return {name: [old.get(name), new.get(name)] for name in names}


Pair = tuple[State | None, State | None]


def _pairs(before: dict[str, State], after: dict[str, State]) -> dict[str, Pair]:
    return {name: (before.get(name), after.get(name)) for name in before.keys() | after.keys()}


def _state(target: Target, before: State | None, after: State | None) -> dict[str, int]:
    """Count the keys that were added, changed or removed."""
    counted = _ask(target, before, after, "SELECT change, count(*) AS n FROM changes GROUP BY change")
    return {"added": 0, "changed": 0, "removed": 0} | {row["change"]: row["n"] for row in counted}


def _ask(target: Target, before: State | None, after: State | None, sql: str) -> list[dict[str, Any]]:
    """Query `changes`: the keys whose rows differ, their kind of change, and their values on both sides."""
    sides = {"before": before, "after": after}
    existing = [state for state in sides.values() if state is not None]
    keys = list(map(sql_name, existing[0].record.keys))
    in_all = set.intersection(*(set(state.columns) for state in existing))
    newest = existing[-1]
    values = []
    for name in newest.columns:
        if name in in_all and name not in newest.record.keys:
            values.append(name)
    columns = ", ".join([*keys, *map(sql_name, values)])
    parts = []
    for side, state in sides.items():
        whole = (state or existing[0]).view(side if state else _existing_side(sides), quote='"')
        parts.append(f"{side}_rows AS (SELECT {columns} FROM ({whole}) AS x{'' if state else ' WHERE false'})")
    parts += [
        "old AS (SELECT *, 1 AS _there FROM (SELECT * FROM before_rows EXCEPT SELECT * FROM after_rows) AS x)",
        "new AS (SELECT *, 1 AS _there FROM (SELECT * FROM after_rows EXCEPT SELECT * FROM before_rows) AS x)",
    ]
    became = "CASE WHEN old._there IS NULL THEN 'added' WHEN new._there IS NULL THEN 'removed' ELSE 'changed' END"
    chosen = [f"{became} AS change", *(f"coalesce(old.{key}, new.{key}) AS {key}" for key in keys)]
    for name in values:
        chosen += [
            f"old.{sql_name(name)} AS {sql_name(name + ' before')}",
            f"new.{sql_name(name)} AS {sql_name(name + ' after')}",
        ]
    same = " AND ".join(f"(old.{key} IS NOT DISTINCT FROM new.{key})" for key in keys)
    parts.append(f"changes AS (SELECT {', '.join(chosen)} FROM old FULL JOIN new ON {same})")
    tables = {}
    for side, state in sides.items():
        if state is not None:
            tables[side] = open_as_of(target, state.table)
    rows = python_rows(query(tables, f"WITH {', '.join(parts)} {sql}"))
    return rows


def _existing_side(sides: dict[str, State | None]) -> str:
    """Return the side that has the state."""
    return next(side for side, state in sides.items() if state is not None)


# -- printing ------------------------------------------------------------------------------------------


def _keys(
    target: Target, args: argparse.Namespace, states: tuple[dict[str, State], dict[str, State]], out: Output
) -> int:
    pair = _pairs(*states).get(args.operator)
    if pair is None:
        names = sorted(states[0].keys() | states[1].keys())
        lists = f"{target.command('state')}  lists them"
        raise no_such_state(target.name, args.operator, "at either checkpoint", names, help=lists)
    counted = _state(target, *pair)
    rows = _ask(target, *pair, f"SELECT * FROM changes LIMIT {args.limit}")
    out.document(
        {"pipeline": target.name, "operator": args.operator, "before": args.before, "after": args.after}
        | counted
        | {"rows": json_value(rows)}
    )
    columns = list(rows[0]) if rows else []
    if rows:
        out.table(columns, format_rows(rows, columns))
    out.line(f"{args.operator} from checkpoint {args.before} to {args.after}: {_counts(counted)}", "dim")
    return 0


def _change(before: float, after: float) -> str:
    if before:
        return f"{(after - before) / before * 100:+,.0f} %"
    return ""


def _counts(counts: dict[str, int]) -> str:
    texts = [f"{count:,} keys {change}" for change, count in counts.items() if count]
    return ", ".join(texts) or "the same"


def _print(target: Target, document: dict[str, Any], out: Output) -> None:
    before, after = document["before"], document["after"]
    out.line(f"{target.name} from checkpoint {before} to {after}", "bold")
    _print_figures(document, out)
    for name, source in document["sources"].items():
        out.line(f"  source {name}: " + ("advanced" if source["changed"] else "unchanged"))
    for name, table in document["tables"].items():
        out.line(f"  table {name}: {_table_text(*table['versions'], *table['rows'])}")
    for name, counts in document["states"].items():
        out.line(f"  state {name}: {_counts(counts)}")
    for name, (old, new) in document["settings"].items():
        out.line(f"  setting {name}: {old!r} to {new!r}")
    out.line("  code: " + ("changed" if document["code_changed"] else "the same"))
    for name in list(document["states"])[:1]:
        out.line(f"Keys:  {target.command('diff', before, after, name)}", "dim")


def _table_text(old: int | None, new: int | None, old_rows: int | None, new_rows: int | None) -> str:
    if old == new:
        return "the same"
    if old_rows is None or new_rows is None:
        return f"checkpoint {old or 'none'} to {new or 'none'}; it has no versions, so its rows cannot be compared"
    return f"version {old} to {new}, {old_rows:,} to {new_rows:,} rows ({new_rows - old_rows:+,})"


def _print_figures(document: dict[str, Any], out: Output) -> None:
    """Print the figures that differ."""
    rows = []
    for name, (before, after) in document["figures"].items():
        if before != after:
            measure = MEASURES[name]
            texts = measure_text(measure, before), measure_text(measure, after)
            rows.append([measure.label, *texts, _change(before, after)])
    columns = ["measure", f"checkpoint {document['before']}", f"checkpoint {document['after']}", "change"]
    if rows:
        out.table(columns, rows, right=columns[1:])
