"""`tidegate state`: rows of an operator's state, exactly as of one checkpoint, read by delta-rs without a JVM."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate import offline
from tidegate.cli.inspect.documents import size_text
from tidegate.cli.inspect.read import as_of, format_rows, open_as_of, row_limit
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, open_target
from tidegate.delta import Snapshot, query
from tidegate.delta.as_python import json_value, python_rows
from tidegate.errors import Invalid
from tidegate.ledger.refusals import no_such_state
from tidegate.offline import State
from tidegate.records.records import Published
from tidegate.state.columns import TOUCHED

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "state",
        help="rows of an operator's state as of one checkpoint",
        description="Read an operator's keyed state exactly as of one checkpoint: a row for each key. Columns are the "
        "operator's own; for an aggregate, the partial values of its results. If keys expire, _touched says when a row "
        "was written; in a join with time bounds, when it expires. Without OPERATOR: list the states.",
        epilog="examples:\n  tidegate state orders\n  tidegate state orders totals --where 'customer_id = 7'\n"
        "  tidegate state orders totals --checkpoint 3 --limit 1000 --json\n"
        "  tidegate state orders totals --sql              the query, for other engines",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("operator", nargs="?", metavar="OPERATOR", help="the operator's uid; UID.PART if it has parts")
    parser.add_argument("--checkpoint", type=checkpoint_id, metavar="N", help="as of checkpoint N (the last published)")
    parser.add_argument("--where", metavar="SQL", help="only rows for which this is true, such as: customer_id = 7")
    parser.add_argument("--limit", type=row_limit, default=20, metavar="K", help="at most K rows (20)")
    parser.add_argument(
        "--sql", action="store_true", help="print the query that returns these rows from the Delta table"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the rows, the query, or the states."""
    target = open_target(args.pipeline, args.settings)
    published = as_of(target, args.checkpoint)
    offline.refuse_discarded(target.ledger, published.id)
    states = offline.states_of(target.ledger, published)
    if args.operator is None:
        return _list(target, published, states, out)
    state = states.get(args.operator)
    if state is None:
        raise _no_state(target, published, args.operator, states)
    if args.sql:
        return _print_sql(target, published, state, out)
    snapshot = open_as_of(target, state.table)
    sql = state.view("version", where=args.where, quote='"')
    rows = python_rows(_ask(snapshot, f"{sql} LIMIT {args.limit}", args.where))
    total = _ask(snapshot, f"SELECT count(*) AS n FROM ({sql})", args.where).to_pylist()[0]["n"]
    columns = state.columns
    out.document(
        {
            "pipeline": target.name,
            "operator": state.name,
            "checkpoint": published.id,
            "table": state.table.uri,
            "version": state.table.version,
            "keys": state.record.keys,
            "total": total,
            "columns": columns,
            "rows": [{name: json_value(row[name]) for name in columns} for row in rows],
        }
    )
    out.table(columns, format_rows(rows, columns))
    out.line(
        f"{len(rows):,} of {total:,} keys{' with that' if args.where else ''} of {state.name} as of checkpoint "
        f"{published.id} (version {state.table.version} of {state.table.uri})",
        "dim",
    )
    return 0


# -- which state ---------------------------------------------------------------------------------------


def _no_state(target: Target, published: Published, operator: str, states: dict[str, State]) -> Invalid:
    when = f"as of checkpoint {published.id}"
    return no_such_state(target.name, operator, when, states, help=f"{target.command('state')}  lists them")


# -- rows ----------------------------------------------------------------------------------------------


def _ask(snapshot: Snapshot, sql: str, where: str | None) -> Any:
    try:
        return query({"version": snapshot}, sql)
    except Exception as error:
        if where is None or isinstance(error, MemoryError):
            raise
        problem = str(error).splitlines()[0]
        raise Invalid(
            f"--where {where!r} is not a condition on this state: {problem}",
            expected="SQL over the state's columns, such as: customer_id = 7 AND orders > 3",
            help="leave --where out to see the columns; put names in double quotes if they have capital letters",
            reason="BAD_CONDITION",
        ) from error


def _print_sql(target: Target, published: Published, state: State, out: Output) -> int:
    source = f"delta.`{state.table.uri}` VERSION AS OF {state.table.version}"
    sql = state.view(source)
    out.document({"pipeline": target.name, "operator": state.name, "checkpoint": published.id, "sql": sql})
    out.line(sql)
    return 0


def _list(target: Target, published: Published, states: dict[str, State], out: Output) -> int:
    rows: list[dict[str, Any]] = []
    for name, state in states.items():
        files = state.record.files
        rows.append(
            {
                "operator": name,
                "keys": state.record.keys,
                "rows": sum(file.file.rows for file in files),
                "files": len(files),
                "bytes": sum(file.file.size for file in files),
                "changed": max((file.checkpoint for file in files), default=None),
                "expires": any(field["name"] == TOUCHED for field in state.record.columns["fields"]),
                "table": state.table.uri,
                "version": state.table.version,
            }
        )
    out.document({"pipeline": target.name, "checkpoint": published.id, "states": rows})
    out.table(
        ["operator", "by", "rows", "files", "bytes", "last changed"],
        [
            [r["operator"], ", ".join(r["keys"]), f"{r['rows']:,}", r["files"], size_text(r["bytes"]), r["changed"]]
            for r in rows
        ],
        right=["rows", "files", "bytes", "last changed"],
        title=f"{target.name} as of checkpoint {published.id}",
    )
    if not rows:
        out.line("No operator had state then.", "dim")
    for name in list(states)[:1]:
        out.line(f"Rows:  {target.command('state', name, '--limit', 5)}", "dim")
    return 0
