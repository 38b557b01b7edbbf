"""`tidegate source move`, `drop` and `accept`: sources that have another name now, are gone, or lead elsewhere."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, user_and_host
from tidegate.cli.targets import open_target
from tidegate.lifecycle.source_acts import accept_source, drop_source, move_source

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "source",
        help="sources that have another name now, are gone, or lead to another system",
        description="Tell a pipeline what has become of a source that its code no longer has, or of the system that "
        "it reads from. It is an entry of the log, taken up by the next checkpoint. No row is read, and no table is "
        "touched.",
        epilog="examples:\n  tidegate source move jobs.orders:pipeline orders web_orders\n"
        "  tidegate source drop jobs.orders:pipeline fax_orders\n"
        "  tidegate source accept jobs.shop:pipeline orders --reason 'the standby took over'",
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
    accept = verbs.add_parser(
        "accept",
        help="continue in a database that a standby took over, or that was restored",
        description="A source of PostgreSQL says of which history of the database its position is, and refuses another "
        "one (OTHER_TIMELINE). This looks whether what was read last is in the database as it is now, and lets the "
        "source continue after that. If it is not there, nothing is accepted: roll back to a checkpoint that the "
        "database still has, and accept then.",
    )
    for each in (move, drop):
        each.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the changed code")
        each.add_argument("name", metavar="NAME", help="the source's name so far")
    accept.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the code")
    accept.add_argument("name", metavar="NAME", help="the source")
    accept.add_argument(
        "--unproven",
        action="store_true",
        help="also if what was read last is not there, because it was deleted or changed on purpose: what an older "
        "copy of the database got since is then never read",
    )
    move.add_argument("to", metavar="TO", help="the source of the code that continues from there")
    for each in (drop, accept):
        each.add_argument("--yes", action="store_true", help="do not ask")
    for each in (move, drop, accept):
        each.add_argument("--reason", default="", metavar="TEXT", help="the reason, for the record")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    coordinator = coordinator_of(target)
    to = args.to if args.verb == "move" else None
    if to is not None:
        entry = move_source(coordinator, args.name, to, user_and_host(), args.reason)
    elif args.verb == "accept":
        if args.unproven:
            question = (
                f"Continue with source {args.name} of pipeline {target.name} although what it read last is not there?"
            )
            confirm(question, out, yes=args.yes)
        entry = accept_source(coordinator, args.name, user_and_host(), args.reason, unproven=args.unproven)
    else:
        question = f"Let go of how far source {args.name} of pipeline {target.name} was read?"
        confirm(question, out, yes=args.yes)
        entry = drop_source(coordinator, args.name, user_and_host(), args.reason)
    out.document(
        {"pipeline": target.name, "entry": entry, "source": args.name, "to": args.name if args.verb == "accept" else to}
    )
    done = {"move": f"continues as {to}", "drop": "is dropped", "accept": "continues from where it was"}[args.verb]
    out.line(f"Source {args.name} {done}, by entry {entry} of the log of {target.name}.")
    out.line(f"To see what the next checkpoint makes of it:  {target.command_on_code('check')}", "dim")
    return 0
