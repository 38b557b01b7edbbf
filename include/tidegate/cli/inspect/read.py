"""`tidegate read`: rows of a sink's table exactly as of one checkpoint, through delta-rs. No JVM."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate import offline
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, open_target
from tidegate.delta import Snapshot
from tidegate.delta.as_python import json_value, python_rows
from tidegate.delta.dataset import dataset
from tidegate.errors import Invalid
from tidegate.ledger.refusals import no_such_sink, without_versions
from tidegate.records.records import Published, PublishedTable
from tidegate.state.table import STATE

__all__ = [
    "add_parser",
    "as_of",
    "count_rows",
    "format_rows",
    "format_value",
    "open_as_of",
    "print_sinks",
    "row_limit",
    "run",
    "sink_document",
]


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "read",
        help="rows of a sink's table as of one checkpoint",
        description="Read a sink's table exactly as of one checkpoint. All tables as of one checkpoint are consistent. "
        "Without SINK: list the tables.",
        epilog="examples:\n  tidegate read orders\n  tidegate read orders order_events --checkpoint 3 --limit 5\n"
        "  tidegate read orders orders --limit 1000 --json",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("sink", nargs="?", metavar="SINK", help="the sink's name in the pipeline")
    parser.add_argument("--checkpoint", type=checkpoint_id, metavar="N", help="as of checkpoint N (the last published)")
    parser.add_argument("--limit", type=row_limit, default=20, metavar="K", help="at most K rows (20)")


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the rows, or the tables."""
    target = open_target(args.pipeline, args.settings)
    published = as_of(target, args.checkpoint)
    if args.sink is None:
        return _list_tables(target, published, out)
    table = published.tables.get(args.sink)
    if table is None:
        raise _no_table(target, published, args.sink)
    if not table.is_delta:
        raise without_versions(args.sink, table)
    snapshot = open_as_of(target, table)
    sample = first_rows(snapshot, args.limit)
    out.document(
        {
            "pipeline": target.name,
            "sink": args.sink,
            "checkpoint": published.id,
            "table": table.uri,
            "version": table.version,
            "total": sample.total,
            "columns": sample.columns,
            "rows": json_value(sample.rows),
        }
    )
    out.table(sample.columns, format_rows(sample.rows, sample.columns))
    out.line(
        f"{len(sample.rows):,} of {sample.total:,} rows of {args.sink} as of checkpoint {published.id}"
        f" (version {table.version} of {table.uri})",
        "dim",
    )
    return 0


def row_limit(text: str) -> int:
    """Return the maximum number of rows to print."""
    if not text.isdecimal() or not 0 <= int(text[:12]) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 1000000")
    return int(text)


# -- which version -------------------------------------------------------------------------------------


def _no_table(target: Target, published: Published, sink: str) -> Invalid:
    lists = f"{target.command('read')}  lists them"
    return no_such_sink(target.name, sink, published.id, published.tables, help=lists)


def as_of(target: Target, id: int | None) -> Published:
    """Return the tables as of checkpoint `id`, by default the last published one."""
    return offline.published_as_of(target.ledger, target.settings.place(), id, target.graph())


def open_as_of(target: Target, table: PublishedTable) -> Snapshot:
    """Return the table at its published version."""
    return offline.open_as_of(table, target.settings.storage_options)


def _list_tables(target: Target, published: Published, out: Output) -> int:
    tables = {}
    for name, table in published.tables.items():
        if name.startswith(STATE):  # it has all versions of rows; `tidegate state` shows the current ones
            continue
        tables[name] = sink_document(target, table)
    out.document({"pipeline": target.name, "checkpoint": published.id, "tables": tables})
    print_sinks(f"{target.name} as of checkpoint {published.id}", tables, out)
    for name in [name for name, table in tables.items() if table["version"] is not None][:1]:
        out.line(f"Rows:  {target.command('read', name, '--checkpoint', published.id, '--limit', 5)}", "dim")
    return 0


def sink_document(target: Target, table: PublishedTable) -> dict[str, Any]:
    """Return a sink's table. The number of rows is null for a target without versions."""
    if not table.is_delta:
        return {"table": table.uri, "version": None, "rows": None}
    return {"table": table.uri, "version": table.version, "rows": count_rows(open_as_of(target, table))}


def print_sinks(title: str, tables: dict[str, dict[str, Any]], out: Output) -> None:
    """Print documents of sinks as a table."""
    out.table(
        ["sink", "rows", "version", "table"],
        [
            [name, "?" if table["rows"] is None else f"{table['rows']:,}", _version(table), table["table"]]
            for name, table in tables.items()
        ],
        right=["rows", "version"],
        title=title,
    )


def _version(table: dict[str, Any]) -> str:
    if table["version"] is None:
        return "none"
    return str(table["version"])


# -- rows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Some rows of a table, in no particular order, and the number of all rows."""

    columns: list[str]
    rows: list[dict[str, Any]]
    total: int


def first_rows(snapshot: Snapshot, limit: int) -> Sample:
    """Return up to `limit` rows, by reading whole row groups: `Dataset.head` would leave reads running in pyarrow's
    threads, and a process that ends during these may hang forever."""
    data = dataset(snapshot)
    rows: list[dict[str, Any]] = []
    row_groups = itertools.chain.from_iterable(file.split_by_row_group() for file in data.get_fragments())
    for part in row_groups:
        if len(rows) >= limit:
            break
        rows += python_rows(part.to_table(schema=data.schema).slice(0, limit - len(rows)))
    return Sample(list(data.schema.names), rows, data.count_rows())


def count_rows(snapshot: Snapshot) -> int:
    """Return the number of rows."""
    return int(dataset(snapshot).count_rows())


def format_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    """Return rows as the texts of a table."""
    return [[format_value(row[name]) for name in columns] for row in rows]


def format_value(value: Any) -> str:
    """Return a cell as text, at most 256 characters."""
    text = "" if value is None else str(json_value(value))
    return text if len(text) <= 256 else f"{text[:255]}…"
