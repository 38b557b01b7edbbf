"""`tidegate summary`: a pipeline's whole history in figures: counts, percentiles, reasons of failures."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.inspect.documents import measure_text
from tidegate.cli.output import Output
from tidegate.cli.targets import open_target
from tidegate.cli.times import moment
from tidegate.history.query import CheckpointHistory, HistoryFilter
from tidegate.history.row import MEASURES

__all__ = ["add_parser", "run"]

_SAME = ("min", "avg", "p50", "p90", "p95", "p99")
COLUMNS = {name: name for name in _SAME} | {"p999": "p99.9", "max": "max"}
"""A spread's figures, with their titles."""


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "summary",
        help="a pipeline's whole history in figures: counts, percentiles, reasons of failures",
        description="Sum up a pipeline's history, including checkpoints whose records are gone: how many were "
        "triggered, completed, failed, restored; min, average, percentiles and max of durations, rows, sizes and lag "
        "of the completed ones; and why the rest were aborted.",
        epilog="examples:\n  tidegate summary orders\n  tidegate summary orders --since '7 days'\n"
        "  tidegate summary orders --since 2026-03-01 --until 2026-04-01 --json",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("--since", type=moment, metavar="WHEN", help="planned since then: a date, or how long ago")
    parser.add_argument("--until", type=moment, metavar="WHEN", help="planned before then")


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the figures of the history, or of a part of it."""
    target = open_target(args.pipeline, args.settings)
    history = CheckpointHistory(target.ledger, target.settings.storage_options)
    chosen = HistoryFilter(since=args.since, until=args.until)
    spreads, reasons = history.summary(chosen), history.reasons(chosen)
    counts = history.counts()
    out.document(
        {
            "pipeline": target.name,
            "since": args.since.isoformat() if args.since else None,
            "until": args.until.isoformat() if args.until else None,
            "counts": counts,
            "summary": spreads,
            "failures": reasons,
            "history": history.problem or "ok",
        }
    )
    if history.problem:
        out.line(f"The history is missing: {history.problem}", "yellow")
    texts = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    out.line(f"Ever: {', '.join(texts) or 'nothing yet'}", "bold")
    rows = []
    for name, measure in MEASURES.items():
        spread = spreads[name]
        if spread is not None:
            values = [measure_text(measure, spread[column]) for column in COLUMNS]
            rows.append([measure.label, f"{spread['count']:,}", *values])
    if rows:
        out.table(["of completed ones", "n", *COLUMNS.values()], rows, right=["n", *COLUMNS.values()])
    if reasons:
        failures = []
        for reason in reasons:
            failures.append([reason["reason"], reason["count"], reason["last_checkpoint"]])
        out.table(["aborted because", "n", "last"], failures, right=["n", "last"])
        out.line(f"One of them:  {target.command('explain', reasons[0]['last_checkpoint'])}", "dim")
    return 0
