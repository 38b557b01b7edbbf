"""`tidegate suspend` and `tidegate resume`: stop planning checkpoints, and start again."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.output import Output
from tidegate.cli.prompt import user_and_host
from tidegate.cli.targets import open_target
from tidegate.errors import Rejected
from tidegate.lifecycle import control

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    for name, help, description in (
        (
            "suspend",
            "stop planning checkpoints until `resume`",
            "Stop planning checkpoints until the pipeline is resumed. Runs are skipped with the reason. Planned "
            "checkpoints are finished, and input waits: nothing is lost.",
        ),
        (
            "resume",
            "let runs plan checkpoints again",
            "Let runs plan checkpoints again: after `suspend`, or when more checkpoints in a row had failed than "
            "tolerable_failed_checkpoints allows. The failure count restarts. Exit code 1: it was not suspended.",
        ),
    ):
        example = f"example:\n  tidegate {name} orders --reason 'the feed is being repaired'"
        parser = subparsers.add_parser(name, help=help, description=description, epilog=example)
        parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
        if name == "resume":
            text = "even if the pipeline is finished: all further rows are late"
            parser.add_argument("--after-end", action="store_true", help=text)
            text = "after a rejection: the next checkpoint quarantines all rows that a gate would hold again"
            parser.add_argument("--quarantine-all", action="store_true", help=text)
        parser.add_argument("--reason", default="", metavar="TEXT", help="the reason, for the record")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    by = user_and_host()
    if args.command == "suspend":
        id = control.suspend(target.ledger, by, args.reason)
        out.document({"pipeline": target.name, "entry": id, "suspended": True})
        out.line(f"Pipeline {target.name} is suspended, by entry {id} of its log.")
        out.line(f"To resume it:  {target.command('resume')}", "dim")
        return 0
    quarantine_all = args.quarantine_all
    resumed = control.resume(target.ledger, by, args.reason, after_end=args.after_end, quarantine_all=quarantine_all)
    if resumed is None:
        raise Rejected(
            f"pipeline {target.name!r} is not suspended, and no checkpoint has failed since the last one completed",
            help="nothing to do",
            reason="NOT_SUSPENDED",
        )
    out.document({"pipeline": target.name, "entry": resumed, "suspended": False, "quarantine_all": quarantine_all})
    out.line(f"Pipeline {target.name} is resumed, by entry {resumed} of its log: the next run plans a checkpoint.")
    if quarantine_all:
        out.line("If a gate would hold it, all rows that the gate judges go to its quarantine.")
    return 0
