"""`tidegate profile`: where the time of one checkpoint went: a tree of spans, with what Spark did in each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import msgspec

from tidegate.cli.inspect.documents import find_view
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.inspect.spark_cells import COLUMNS, known_columns, spark_cells
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, open_target
from tidegate.errors import Invalid, Rejected
from tidegate.history.spans import Span, span_tree
from tidegate.records.records import Json

__all__ = ["add_parser", "run"]

BAR = 24
"""Characters for the whole checkpoint."""


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "profile",
        help="where the time of one checkpoint went: each step, and what Spark did in it",
        description="Draw one checkpoint as a tree of spans: planning by the trigger, each job with its steps, "
        "deciding, publishing. Each with its start after the plan and its duration, to scale; queries and analyses "
        "that it asked Spark for and how long it waited for them, Spark's jobs, stages and tasks; and of an operator "
        "whether workers computed it in one query, or Spark in several, and then why, and how many row groups of its "
        "state's files were read. The rest of a step's time is Python and storage. An empty cell: not known, because "
        "of how Spark is reached, or the checkpoint is of an earlier version. Also of one whose records are retired.",
        epilog="examples:\n  tidegate profile orders\n  tidegate profile orders 5 --slowest\n"
        "  tidegate profile orders --json",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("id", nargs="?", type=checkpoint_id, metavar="ID", help="its number; else the last completed")
    parser.add_argument("--checkpoint", type=checkpoint_id, metavar="N", help="the same")
    parser.add_argument("--slowest", action="store_true", help="the slowest first, instead of the first one first")


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the tree."""
    target = open_target(args.pipeline, args.settings)
    if args.id is not None and args.checkpoint not in (None, args.id):
        raise Invalid(
            f"two checkpoints are named: {args.id} and {args.checkpoint}",
            expected="one checkpoint",
            help="leave --checkpoint out",
            reason="USAGE",
        )
    asked = args.id if args.id is not None else args.checkpoint
    id = asked if asked is not None else _last_completed(target)
    view, _ = find_view(target, id, sizes=False)
    tree = span_tree(view)
    if args.slowest:
        tree = _slowest_first(tree)
    out.document({"pipeline": target.name, "id": id, "state": view.shown_state, "span": _document(tree)})
    if out.json:
        return 0
    spans = list(_walk(tree))
    places = known_columns([span.spark for _, span in spans])
    columns = [COLUMNS[place] for place in places]
    rows = []
    for indent, span in spans:
        cells = spark_cells(span.spark)
        times = ["" if seconds is None else f"{seconds:.2f} s" for seconds in (span.start_s, span.seconds)]
        computed = span.computed.text if span.computed is not None else ""
        rows.append([f"{indent}{span.name}", *times, _bar(span, tree), *(cells[place] for place in places), computed])
    out.line(f"Checkpoint {id} of {target.name}: {view.described_state}", "bold")
    out.table(["span", "start", "took", "", *columns, "computed by"], rows, right=["start", "took", *columns])
    return 0


def _last_completed(target: Target) -> int:
    last = target.ledger.view().last_completed
    if last is None:
        raise Rejected(
            f"no checkpoint of pipeline {target.name!r} is completed",
            expected="a completed checkpoint, or --checkpoint N",
            help=f"`{target.command('list')}` shows its checkpoints",
            reason="NO_SUCH_CHECKPOINT",
        )
    return last.id


def _slowest_first(span: Span) -> Span:
    parts = sorted((_slowest_first(part) for part in span.parts), key=lambda part: -(part.seconds or 0.0))
    return replace(span, parts=parts)


def _document(span: Span) -> Json:
    fields: Json = asdict(span)
    own = {"spark": msgspec.to_builtins(span.spark), "computed": msgspec.to_builtins(span.computed)}
    return fields | own | {"parts": [_document(part) for part in span.parts]}


def _walk(span: Span, indent: str = "") -> Iterator[tuple[str, Span]]:
    """Each span with its indentation, parents first."""
    yield indent, span
    for part in span.parts:
        yield from _walk(part, indent + "  ")


def _bar(span: Span, whole: Span) -> str:
    """The span's place in the whole, to scale. At least a mark for what is too short to be drawn."""
    if span.start_s is None or span.seconds is None or whole.start_s is None or not whole.seconds:
        return ""
    scale = BAR / whole.seconds
    begin = round((span.start_s - whole.start_s) * scale)
    length = round(span.seconds * scale)
    before = min(max(begin, 0), BAR - 1)
    drawn = "█" * min(length, BAR - before) or "▏"
    return "·" * before + drawn + "·" * (BAR - before - len(drawn))
