"""`tidegate source move`, `drop` and `accept`: sources that were renamed or removed, or that lead elsewhere."""

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
        help="sources that were renamed or removed, or that lead elsewhere: move, drop, accept",
        description="Declare that a source was renamed or removed, or that the system it reads from was replaced. This "
        "is an entry of the log, which the next checkpoint applies. No row is read, and no table is changed.",
        epilog="examples:\n  tidegate source move jobs.orders:pipeline orders web_orders\n"
        "  tidegate source drop jobs.orders:pipeline fax_orders\n"
        "  tidegate source accept jobs.shop:pipeline orders --reason 'the standby took over'",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    move = verbs.add_parser(
        "move",
        help="let another source continue from this one's position",
        description="Let another source of the code continue from this one's position, with its event time. It must be "
        "of the same kind, and able to plan from that position. Refused while checkpoints are in progress.",
    )
    drop = verbs.add_parser(
        "drop",
        help="drop the position of a removed source",
        description="Drop the position of a source that the code no longer has. Its unread input is never read. If a "
        "source with this name is added later, it begins at its beginning.",
    )
    accept = verbs.add_parser(
        "accept",
        help="continue in a database that a standby took over, or that was restored",
        description="A PostgreSQL source records the database's timeline with its position, and refuses another one "
        "(OTHER_TIMELINE). This command checks that the last rows that were read are in the current database, and lets "
        "the source continue after them. If they are missing, nothing is accepted: roll back to a checkpoint whose "
        "rows the database still has, then accept.",
    )
    for each in (move, drop):
        each.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the changed code")
        each.add_argument("name", metavar="NAME", help="the source's old name")
    accept.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the code")
    accept.add_argument("name", metavar="NAME", help="the source")
    accept.add_argument(
        "--unproven",
        action="store_true",
        help="even if the last rows that were read are missing, because they were deleted or changed on purpose: rows "
        "that an older copy of the database got since are then never read",
    )
    move.add_argument("to", metavar="TO", help="the source that continues from that position")
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
            missing = "although the last rows that it read are missing"
            question = f"Continue with source {args.name} of pipeline {target.name} {missing}?"
            confirm(question, out, yes=args.yes)
        entry = accept_source(coordinator, args.name, user_and_host(), args.reason, unproven=args.unproven)
    else:
        question = f"Drop the position of source {args.name} of pipeline {target.name}?"
        confirm(question, out, yes=args.yes)
        entry = drop_source(coordinator, args.name, user_and_host(), args.reason)
    out.document(
        {"pipeline": target.name, "entry": entry, "source": args.name, "to": args.name if args.verb == "accept" else to}
    )
    done = {"move": f"continues as {to}", "drop": "is dropped", "accept": "continues from where it was"}[args.verb]
    out.line(f"Source {args.name} {done}, by entry {entry} of the log of {target.name}.")
    out.line(f"To see whether the next checkpoint can continue:  {target.command_on_code('check')}", "dim")
    return 0
