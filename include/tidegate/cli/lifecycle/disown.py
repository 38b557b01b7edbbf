"""`tidegate disown`: unblock an interval whose rows another writer has rewritten in a table."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint.publishing.intervals import disown
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm
from tidegate.cli.running.run import data_interval
from tidegate.cli.targets import open_target
from tidegate.coordinator import Coordinator
from tidegate.errors import TidegateError
from tidegate.records.interval import Interval

__all__ = ["add_parser", "run"]

CANNOT = 3


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "disown",
        help="give up an interval's rows that another writer has rewritten in a table",
        description="In an interval pipeline, reprocessing replaces the files that the interval added to a table. If "
        "another writer has rewritten these files (OPTIMIZE, DELETE, UPDATE), they no longer show which rows to "
        "replace, and the interval waits: INTERVAL_REWRITTEN. Choose: --take-out finds the rows by their values, which "
        "works if they were only moved, and removes exactly as many as were published; --leave removes nothing, "
        "because you have deleted the rows, or want to keep them. Then the waiting rows are published, in one commit.",
        epilog="examples:\n  tidegate disown jobs.daily:pipeline --sink orders --interval 2026-01-01/2026-01-02 "
        "--take-out --dry-run\n"
        "  tidegate disown jobs.daily:pipeline --sink orders --interval 2026-01-01/2026-01-02 --leave",
    )
    parser.add_argument(
        "pipeline", metavar="MODULE:PIPELINE", help="the pipeline's code, which says where the tables are"
    )
    parser.add_argument("--sink", required=True, metavar="SINK", help="the sink whose table it is")
    parser.add_argument("--interval", required=True, type=data_interval, metavar="FROM/TO", help="the interval (UTC)")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--take-out", action="store_true", help="find its rows by their values, and remove them")
    how.add_argument("--leave", action="store_true", help="remove no rows: they are deleted already, or should stay")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    coordinator, interval = coordinator_of(target), Interval.between(*args.interval)
    preview = disown(coordinator, args.sink, interval, take_out=args.take_out, look=True)
    rows = f"rows of interval {interval} stay"
    if args.take_out:
        rows = f"{preview.rows} rows of interval {interval} are removed"
    out.line(f"Sink {args.sink}: {rows}; {preview.files} files are replaced. New rows are added.", "bold")
    document = {"pipeline": target.name, "sink": args.sink, "interval": str(interval), "rows": preview.rows}
    if args.dry_run:
        out.document(document | {"version": None, "not_yet": {}})
        return 0
    confirm(f"Give up the rows that {args.sink} has of interval {interval}?", out, yes=args.yes)
    result = disown(coordinator, args.sink, interval, take_out=args.take_out)
    stuck = _publish_waiting(coordinator, interval)
    out.document(document | {"rows": result.rows, "version": result.version, "not_yet": stuck})
    out.line(f"  version {result.version} of its table records it; {result.rows} rows were removed")
    for name, why in stuck.items():
        out.line(f"Not published yet: {name}: {why}", "red")
    return CANNOT if stuck else 0


def _publish_waiting(coordinator: Coordinator, interval: Interval) -> dict[str, str]:
    """Publish pending checkpoints. Return why this interval still cannot be published, by table or checkpoint."""
    try:
        report = coordinator.publish()
    except TidegateError as error:
        return {"?": error.what}
    entries = ((coordinator.ledger.entry(id), error) for id, error in report.blocked.items())
    blocked = {f"checkpoint {entry.id}": error.what for entry, error in entries if entry and entry.interval == interval}
    return {name: error.what for name, error in report.stuck.items()} | blocked
