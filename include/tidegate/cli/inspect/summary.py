"""`tidegate summary`: how a pipeline's checkpoints were, over its whole history: counts, percentiles, failures."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.inspect.documents import size_text
from tidegate.cli.output import Output
from tidegate.cli.targets import find
from tidegate.cli.times import moment
from tidegate.history.query import CheckpointHistory, HistoryFilter

__all__ = ["MEASURED", "add_parser", "figure_text", "run"]

MEASURED = {
    "seconds": "duration",
    "delay_seconds": "start delay",
    "align_seconds": "alignment",
    "sync_seconds": "sync",
    "process_seconds": "  read, compute, state",
    "stage_seconds": "  write",
    "async_seconds": "async: sync files",
    "publish_seconds": "publish",
    "rows_in": "rows in",
    "bytes_in": "bytes in",
    "rate": "rows in, a second",
    "rows_out": "rows out",
    "bytes_out": "bytes out",
    "late": "rows late",
    "judged": "rows judged",
    "quarantined": "rows set aside",
    "state_delta": "state, changed",
    "state_bytes": "state, full",
    "state_rows": "state, rows",
    "processed_rows": "rows processed that were in flight",
    "processed_bytes": "bytes of these",
    "persisted_rows": "rows left in flight",
    "persisted_bytes": "bytes of these",
    "lag_seconds": "watermark lag",
}
"""What each measure is called."""
COLUMNS = ("min", "avg", "p50", "p90", "p95", "p99", "max")


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "summary",
        help="how its checkpoints were, over the whole history: counts, percentiles, why some failed",
        description="Sum up a pipeline's history, also of checkpoints whose records are gone: how many were triggered, "
        "completed, failed, restored; min, average, percentiles and max of durations, rows, sizes and lag of the "
        "completed ones; and why the others were aborted.",
        epilog="examples:\n  tidegate summary orders\n  tidegate summary orders --since '7 days'\n"
        "  tidegate summary orders --since 2026-03-01 --until 2026-04-01 --json",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("--since", type=moment, metavar="WHEN", help="planned from then on: a date, or how long ago")
    parser.add_argument("--until", type=moment, metavar="WHEN", help="planned before then")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    past = CheckpointHistory(target.ledger, dict(target.settings.storage_options))
    wanted = HistoryFilter(since=args.since, until=args.until)
    summary, reasons = past.summary(wanted), past.reasons(wanted)
    within = {name: at.isoformat() if at else None for name, at in (("since", args.since), ("until", args.until))}
    counts = past.counts()
    out.document(
        {"pipeline": target.name, **within, "counts": counts, "summary": summary, "failures": reasons}
        | {"history": past.problem or "ok"}
    )
    if past.problem:
        out.line(f"The history is left out: {past.problem}", "yellow")
    told = (f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    out.line(f"Ever: {', '.join(told) or 'nothing yet'}", "bold")
    rows = [
        [said, f"{found['count']:,}", *(figure_text(name, found[column]) for column in COLUMNS)]
        for name, said in MEASURED.items()
        if (found := summary.get(name)) is not None
    ]
    if rows:
        out.table(["of completed ones", "n", *COLUMNS], rows, right=["n", *COLUMNS])
    if reasons:
        failures = [[each["reason"], each["count"], each["last"]] for each in reasons]
        out.table(["aborted because", "n", "last"], failures, right=["n", "last"])
        out.line(f"One of them:  {target.command('explain', reasons[0]['last'])}", "dim")
    return 0


def figure_text(name: str, value: float) -> str:
    """A measure's value, with its unit."""
    if name.endswith("seconds"):
        return f"{value:,.2f} s" if value < 100 else f"{value:,.0f} s"
    return size_text(value) if name.endswith(("_bytes", "bytes_in", "bytes_out", "state_delta")) else f"{value:,.0f}"
