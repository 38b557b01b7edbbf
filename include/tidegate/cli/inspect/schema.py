"""`tidegate schema`: how the schemas of sources that follow their input have changed; or what differs between two
checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from tidegate.cli.inspect.documents import clock, find_view
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, open_target
from tidegate.connectors.schema.ddl import parse_ddl
from tidegate.errors import Invalid
from tidegate.history.query import CheckpointHistory
from tidegate.history.schemas.timeline import ChangedColumn, SourceTimeline, differences, timelines
from tidegate.records import typed
from tidegate.records.records import Json

__all__ = ["add_parser", "print_timelines", "run"]

T = TypeVar("T")

NONE = "No source of it has a schema that follows its input: each is read with the columns that the code declares."


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "schema",
        help="how the schemas of sources have changed, or what differs between two checkpoints",
        description="Show how the schema of each source that follows its input has changed: the first checkpoint whose "
        "plan has each schema, its new columns, the checkpoint and the file that brought them. With --from and --to: "
        "what differs between the plans of two checkpoints. Reads the ledger and the history only.",
        epilog="examples:\n  tidegate schema orders\n  tidegate schema orders events --json\n"
        "  tidegate schema orders --from 41 --to 57",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("source", nargs="?", metavar="SOURCE", help="show this source only")
    parser.add_argument("--from", dest="before", type=checkpoint_id, metavar="N", help="compare this checkpoint …")
    parser.add_argument("--to", dest="after", type=checkpoint_id, metavar="M", help="… with this one")


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the timelines, or the differences."""
    if (args.before is None) != (args.after is None):
        raise Invalid(
            f"the command line has {'--to' if args.before is None else '--from'} alone",
            expected="both --from and --to, to compare two checkpoints, or neither",
            help="name the other checkpoint, too",
            reason="USAGE",
        )
    target = open_target(args.pipeline, args.settings)
    if args.before is None:
        return _timelines(target, args, out)
    return _differences(target, args, out)


def _timelines(target: Target, args: argparse.Namespace, out: Output) -> int:
    history = CheckpointHistory(target.ledger, target.settings.storage_options)
    chosen = _chosen(timelines(history), args.source, target.name)
    problem = history.problem or "ok"
    out.document({"pipeline": target.name, "sources": typed.document_of(chosen), "history": problem})
    if history.problem:
        out.line(f"The history is missing: {history.problem}", "yellow")
    print_timelines(chosen, out)
    return 0


def print_timelines(sources: Mapping[str, SourceTimeline], out: Output) -> None:
    """Print one table for each source."""
    for name, timeline in sources.items():
        out.line(f"Source {name}", "bold")
        out.table(["since", "planned (UTC)", "schema", "found in"], list(_rows(timeline)))
    if not sources:
        out.line(NONE)


def _rows(timeline: SourceTimeline) -> Iterator[list[object]]:
    """Yield the first schema as a whole, then what is new in each later one."""
    for number, change in enumerate(timeline.changes):
        since = f"checkpoint {change.checkpoint}"
        if number == 0:
            since += "" if timeline.is_complete else " or before"
            columns = ", ".join(f"{column.name} {column.type}" for column in parse_ddl(change.schema))
            yield [since, clock(change.planned), columns, ""]
            continue
        for place, column in enumerate(change.columns):
            head = ["", ""] if place else [since, clock(change.planned)]
            yield [*head, _column_text(column), _origin_text(column)]
        if not change.columns:
            yield [since, clock(change.planned), "the same columns in another order", ""]


def _column_text(column: ChangedColumn) -> str:
    if column.before is None:
        return f"+ {column.name} {column.after}"
    if column.after is None:
        return f"- {column.name} {column.before}"
    return f"~ {column.name} {column.before} → {column.after}"


def _origin_text(column: ChangedColumn) -> str:
    if column.found_by is None:
        return ""
    if column.file:
        return f"checkpoint {column.found_by}, {column.file}"
    return f"checkpoint {column.found_by}"


def _differences(target: Target, args: argparse.Namespace, out: Output) -> int:
    before, _ = find_view(target, args.before, sizes=False)
    after, _ = find_view(target, args.after, sizes=False)
    chosen = _chosen(differences(before.details, after.details), args.source, target.name)
    document: Json = {"pipeline": target.name, "before": args.before, "after": args.after}
    out.document(document | {"sources": typed.document_of(chosen)})
    for name, compared in chosen.items():
        out.line(f"Source {name}, from checkpoint {args.before} to {args.after}", "bold")
        for column in compared.columns:
            out.line(f"  {_column_text(column)}")
        if not compared.columns:
            out.line("  the same columns")
    if not chosen:
        out.line(NONE)
    return 0


def _chosen(sources: Mapping[str, T], source: str | None, pipeline: str) -> dict[str, T]:
    if source is None:
        return dict(sources)
    if source not in sources:
        raise Invalid(
            f"pipeline {pipeline!r} has no source {source!r} whose schema follows its input",
            expected=" or ".join(sources) or 'a source with on_new_column="rescue" or "evolve", or on_type="rescue"',
            help=f"`tidegate schema {pipeline}` shows all of them",
            reason="NO_SUCH_SOURCE",
        )
    return {source: sources[source]}
