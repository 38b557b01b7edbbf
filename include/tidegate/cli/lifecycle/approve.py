"""`tidegate approve` and `tidegate reject`: the answer to a gate that holds a checkpoint."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint import approvals as holding
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.output import Output
from tidegate.cli.prompt import who
from tidegate.cli.targets import find

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare both commands."""
    for name, help, description in (
        (
            "approve",
            "let a checkpoint go on that a gate holds",
            "Let a checkpoint go on that a gate holds: exactly what was judged is published. Whoever runs the pipeline "
            "notices within a second. The first answer counts, here, in Airflow or by the time limit.",
        ),
        (
            "reject",
            "abort a checkpoint that a gate holds",
            "Abort a checkpoint that a gate holds, and suspend the pipeline: the next checkpoint would have the same "
            "rows, and be held again. Correct the input, the code or the suite, then `tidegate resume`; or set the "
            "rows aside, with `tidegate resume --quarantine-all`.",
        ),
    ):
        example = f"examples:\n  tidegate {name} orders 5\n  tidegate {name} orders 5 checked --note 'as agreed'"
        parser = subparsers.add_parser(name, help=help, description=description, epilog=example)
        parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
        parser.add_argument("id", type=checkpoint_id, metavar="ID", help="the checkpoint's number")
        parser.add_argument("gate", nargs="?", metavar="GATE", help="one gate; without it, all that hold it")
        parser.add_argument("--note", default="", metavar="TEXT", help="why, for whoever looks at it later")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    approve = args.command == "approve"
    said = holding.answer(target.ledger, args.id, args.gate, approve=approve, by=who(), note=args.note)
    answers = {each.gate: {"approved": each.approve, "by": each.by, "note": each.note} for each in said}
    out.document({"pipeline": target.name, "checkpoint": args.id, "answers": answers})
    for each in said:
        out.line(f"Gate {each.gate}: {'approved' if each.approve else 'rejected'} by {each.by}")
    if all(each.approve for each in said):
        out.line(f"Checkpoint {args.id} goes on as soon as its run, or the next one, sees it.")
    else:
        out.line(f"Checkpoint {args.id} is aborted as soon as its run, or the next one, sees it; then the pipeline is")
        out.line(f"suspended. When its input or its rules are mended:  {target.command('resume')}", "dim")
        out.line(f"To set aside what is held, and go on:  {target.command('resume')} --quarantine-all", "dim")
    return 0 if all(each.approve is approve for each in said) else 1
