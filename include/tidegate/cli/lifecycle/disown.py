"""`tidegate disown`: the way out for an interval whose rows others have rewritten in a table."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint.publishing.intervals import disown
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm
from tidegate.cli.running.run import data_interval
from tidegate.cli.targets import find
from tidegate.coordinator import Coordinator
from tidegate.errors import TidegateError
from tidegate.records.interval import Interval

__all__ = ["add_parser", "run"]

CANNOT = 3


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "disown",
        help="let go of an interval's rows that others have rewritten in a table",
        description="In an interval pipeline what is made again replaces the files that its interval has put into a "
        "table. If others have rewritten these (OPTIMIZE, DELETE, UPDATE), nobody can tell by file which rows to "
        "replace, and it waits: INTERVAL_REWRITTEN. Say it: --take-out finds the rows by their values, as long as they "
        "were only moved, and takes out exactly as many as were published; --leave replaces nothing, for you have "
        "deleted them, or they are to stay. Then what waits is published. It is one commit on the table.",
        epilog="examples:\n  tidegate disown jobs.daily:pipeline --sink orders --interval 2026-01-01/2026-01-02 "
        "--take-out --dry-run\n"
        "  tidegate disown jobs.daily:pipeline --sink orders --interval 2026-01-01/2026-01-02 --leave",
    )
    parser.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the pipeline's code: it says where the tables are")
    parser.add_argument("--sink", required=True, metavar="SINK", help="the sink whose table it is")
    parser.add_argument("--interval", required=True, type=data_interval, metavar="FROM/TO", help="the interval (UTC)")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--take-out", action="store_true", help="find its rows by their values, and take them out")
    how.add_argument("--leave", action="store_true", help="replace no rows: they are deleted already, or are to stay")
    parser.add_argument("--dry-run", action="store_true", help="only look, and say what would be done")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    coordinator, interval = coordinator_of(target), Interval.of(*args.interval)
    seen = disown(coordinator, args.sink, interval, take_out=args.take_out, look=True)
    rows = f"{seen.rows} rows of interval {interval} go" if args.take_out else f"rows of interval {interval} stay"
    out.line(f"Sink {args.sink}: {rows}; {seen.files} files are replaced. What comes next is added.", "bold")
    found = {"pipeline": target.name, "sink": args.sink, "interval": str(interval), "rows": seen.rows}
    if args.dry_run:
        out.document(found | {"version": None, "not_yet": {}})
        return 0
    confirm(f"Let go of what {args.sink} has of interval {interval}?", out, yes=args.yes)
    done = disown(coordinator, args.sink, interval, take_out=args.take_out)
    stuck = _stuck(coordinator, interval)
    out.document(found | {"rows": done.rows, "version": done.version, "not_yet": stuck})
    out.line(f"  version {done.version} of its table says so; {done.rows} rows were taken out")
    for name, what in stuck.items():
        out.line(f"Not published yet: {name}: {what}", "red")
    return CANNOT if stuck else 0


def _stuck(coordinator: Coordinator, interval: Interval) -> dict[str, str]:
    """Publish what waits. What still cannot be of this interval, and why: by table, or by checkpoint."""
    try:
        report = coordinator.publish()
    except TidegateError as error:
        return {"?": error.what}
    entries = ((coordinator.ledger.entry(id), error) for id, error in report.blocked.items())
    blocked = {f"checkpoint {entry.id}": error.what for entry, error in entries if entry and entry.interval == interval}
    return {name: error.what for name, error in report.stuck.items()} | blocked
