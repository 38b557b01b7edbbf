"""`tidegate profile`: where the time of one checkpoint went: a tree of spans, with what Spark did in each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import msgspec

from tidegate.cli.inspect.documents import find_view
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.inspect.spark_cells import COLUMNS, columns_with_figures, spark_cells
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, open_target
from tidegate.errors import Invalid, Rejected
from tidegate.history.spans import Span, span_tree
from tidegate.records.records import Json

__all__ = ["add_parser", "run"]

BAR = 24
"""The width of the whole checkpoint's bar, in characters."""


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "profile",
        help="where the time of one checkpoint went: each step, and what Spark did in it",
        description="Draw one checkpoint as a tree of spans: planning by the trigger, each job with its steps, "
        "deciding, publishing. Each has its start after the plan and its duration, to scale; its queries and analyses "
        "and the time that it waited for them; Spark's jobs, stages and tasks. For an operator it shows whether "
        "workers computed it in one query, or Spark in several and why, and how many row groups of its state were "
        "read. The rest of a step's time is Python and storage. An empty cell is unknown, because of the Spark mode or "
        "an earlier version. Also works for checkpoints whose records are retired.",
        epilog="examples:\n  tidegate profile orders\n  tidegate profile orders 5 --slowest\n"
        "  tidegate profile orders --json",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("id", nargs="?", type=checkpoint_id, metavar="ID", help="its number (the last completed one)")
    parser.add_argument("--checkpoint", type=checkpoint_id, metavar="N", help="the same")
    parser.add_argument("--slowest", action="store_true", help="sort by duration, not by start")


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the tree."""
    target = open_target(args.pipeline, args.settings)
    if args.id is not None and args.checkpoint not in (None, args.id):
        raise Invalid(
            f"the command line has two checkpoints: {args.id} and {args.checkpoint}",
            expected="one checkpoint",
            help="leave --checkpoint out",
            reason="USAGE",
        )
    chosen_id = args.id if args.id is not None else args.checkpoint
    id = chosen_id if chosen_id is not None else _last_completed(target)
    view, _ = find_view(target, id, sizes=False)
    tree = span_tree(view)
    if args.slowest:
        tree = _slowest_first(tree)
    out.document({"pipeline": target.name, "id": id, "state": view.displayed_state, "span": _document(tree)})
    if out.json:
        return 0
    spans = list(_walk(tree))
    places = columns_with_figures([span.spark for _, span in spans])
    columns = [COLUMNS[place] for place in places]
    rows = []
    for indent, span in spans:
        cells = spark_cells(span.spark)
        times = []
        for seconds in (span.start_s, span.seconds):
            if seconds is None:
                times.append("")
            else:
                times.append(f"{seconds:.2f} s")
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
    """Yield each span with its indentation, parents first."""
    yield indent, span
    for part in span.parts:
        yield from _walk(part, indent + "  ")


def _bar(span: Span, whole: Span) -> str:
    """Return the span's bar within the whole, to scale, with at least a mark for a very short one."""
    if span.start_s is None or span.seconds is None or whole.start_s is None or not whole.seconds:
        return ""
    scale = BAR / whole.seconds
    begin = round((span.start_s - whole.start_s) * scale)
    length = round(span.seconds * scale)
    before = min(max(begin, 0), BAR - 1)
    drawn = "█" * min(length, BAR - before) or "▏"
    return "·" * before + drawn + "·" * (BAR - before - len(drawn))
