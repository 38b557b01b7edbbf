"""`tidegate source move` and `drop`: sources that have another name in the code now, or are gone."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, who
from tidegate.cli.targets import open_target
from tidegate.lifecycle.source_acts import drop_source, move_source

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "source",
        help="sources that have another name now, or are gone",
        description="Tell a pipeline what has become of a source that its code no longer has. It is an entry of the "
        "log, taken up by the next checkpoint. Nothing is read, and no table is touched.",
        epilog="examples:\n  tidegate source move jobs.orders:pipeline orders web_orders\n"
        "  tidegate source drop jobs.orders:pipeline fax_orders",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    move = verbs.add_parser(
        "move",
        help="another source continues where this one was read to",
        description="Another source of the code continues where this one was read to, with its event time. It must be "
        "of the same kind, and able to plan from that position. Refused while checkpoints are in progress.",
    )
    drop = verbs.add_parser(
        "drop",
        help="let go of how far a removed source was read",
        description="Let go of how far a source was read that the code no longer has. What it has not read is never "
        "read; should a source of this name come back later, it begins at its beginning.",
    )
    for each in (move, drop):
        each.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the changed code")
        each.add_argument("name", metavar="NAME", help="the source's name so far")
    move.add_argument("to", metavar="TO", help="the source of the code that continues from there")
    drop.add_argument("--yes", action="store_true", help="do not ask")
    for each in (move, drop):
        each.add_argument("--reason", default="", metavar="TEXT", help="the reason, for the record")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    coordinator = coordinator_of(target)
    to = args.to if args.verb == "move" else None
    if to is not None:
        entry = move_source(coordinator, args.name, to, who(), args.reason)
    else:
        question = f"Let go of how far source {args.name} of pipeline {target.name} was read?"
        confirm(question, out, yes=args.yes)
        entry = drop_source(coordinator, args.name, who(), args.reason)
    out.document({"pipeline": target.name, "entry": entry, "source": args.name, "to": to})
    done = f"continues as {to}" if to is not None else "is dropped"
    out.line(f"Source {args.name} {done}, by entry {entry} of the log of {target.name}.")
    out.line(f"To see what the next checkpoint makes of it:  {target.command('check')}", "dim")
    return 0
