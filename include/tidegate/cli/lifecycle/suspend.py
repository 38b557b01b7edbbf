"""`tidegate suspend` and `tidegate resume`: whether runs may plan checkpoints."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint import control
from tidegate.cli.output import Output
from tidegate.cli.prompt import who
from tidegate.cli.targets import find
from tidegate.errors import Rejected

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare both commands."""
    for name, help, description in (
        (
            "suspend",
            "let no run plan a checkpoint until `resume`",
            "Let no run plan a checkpoint until somebody resumes the pipeline. Runs are skipped with the reason. What "
            "is planned already is brought to its end, and input waits: nothing is lost.",
        ),
        (
            "resume",
            "let runs plan checkpoints again",
            "Let runs plan checkpoints again: after `suspend`, or when more checkpoints in a row had failed than "
            "tolerable_failed_checkpoints allows. Failures are counted anew. Exit code 1: it was not suspended.",
        ),
    ):
        example = f"example:\n  tidegate {name} orders --reason 'the feed is being repaired'"
        parser = subparsers.add_parser(name, help=help, description=description, epilog=example)
        parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
        if name == "resume":
            text = "also if the pipeline is finished: all rows are late then"
            parser.add_argument("--after-end", action="store_true", help=text)
            text = "after a rejection: the next checkpoint sets aside all rows that a gate would hold again"
            parser.add_argument("--quarantine-all", action="store_true", help=text)
        parser.add_argument("--reason", default="", metavar="TEXT", help="why, for whoever looks at it later")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    by = who()
    if args.command == "suspend":
        id = control.suspend(target.ledger, by, args.reason)
        out.document({"pipeline": target.name, "entry": id, "suspended": True})
        out.line(f"Pipeline {target.name} is suspended, by entry {id} of its log.")
        out.line(f"Let it go on:  {target.command('resume')}", "dim")
        return 0
    aside = args.quarantine_all
    resumed = control.resume(target.ledger, by, args.reason, after_end=args.after_end, set_aside=aside)
    if resumed is None:
        raise Rejected(
            f"pipeline {target.name!r} is not suspended, and no checkpoint has failed since the last one completed",
            help="nothing to do",
            reason="NOT_SUSPENDED",
        )
    out.document({"pipeline": target.name, "entry": resumed, "suspended": False, "quarantine_all": aside})
    out.line(f"Pipeline {target.name} goes on, by entry {resumed} of its log: the next run plans a checkpoint.")
    if aside:
        out.line("What a gate would hold in it goes to the gate's quarantine: all rows that it judges.")
    return 0
