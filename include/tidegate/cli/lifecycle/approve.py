"""`tidegate approve` and `tidegate reject`: the answer to a gate that holds a checkpoint."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint import approvals
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.output import Output
from tidegate.cli.prompt import user_and_host
from tidegate.cli.targets import open_target
from tidegate.history.backfill import open_backfill_ledger
from tidegate.records.records import Answer

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    for name, help, description in (
        (
            "approve",
            "approve a checkpoint that a gate holds",
            "Approve a checkpoint that a gate holds: exactly the judged rows are published. The running checkpoint "
            "continues within a second. The first answer counts: from here, from Airflow, or by the time limit.",
        ),
        (
            "reject",
            "reject a checkpoint that a gate holds: it is aborted",
            "Abort a checkpoint that a gate holds, and suspend the pipeline: the next checkpoint would have the same "
            "rows, and be held again. Correct the input, the code or the suite, then `tidegate resume`; or quarantine "
            "the rows, with `tidegate resume --quarantine-all`. With --quarantine, the pipeline is not suspended: the "
            "next checkpoint reads the input again, quarantines the rows that broke the rules, and publishes the rest. "
            "The first answer counts: from here, from Airflow, or by the time limit.",
        ),
    ):
        example = (
            f"examples:\n  tidegate {name} orders 5\n  tidegate {name} orders 5 checked --note 'as agreed'\n"
            f"  tidegate {name} orders 5 --backfill new-prices"
        )
        parser = subparsers.add_parser(name, help=help, description=description, epilog=example)
        parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
        parser.add_argument("id", type=checkpoint_id, metavar="ID", help="the checkpoint's number")
        parser.add_argument("gate", nargs="?", metavar="GATE", help="one gate; by default all that hold the checkpoint")
        parser.add_argument(
            "--backfill", metavar="NAME", help="the checkpoint is one of this backfill, not of the pipeline"
        )
        if name == "reject":
            text = "read its input again at once, with the rows that broke the rules in quarantine (all rows of a gate "
            text += "whose broken rule is not about single rows); the pipeline is not suspended"
            parser.add_argument("--quarantine", action="store_true", help=text)
        parser.add_argument("--note", default="", metavar="TEXT", help="the reason, for the record")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    approve = args.command == "approve"
    ledger = target.ledger
    if args.backfill is not None:
        ledger = open_backfill_ledger(ledger, args.backfill, target.settings.storage_options)
    quarantine = not approve and args.quarantine
    by = user_and_host()
    answered = approvals.answer(
        ledger, args.id, args.gate, approve=approve, by=by, note=args.note, quarantine=quarantine
    )
    answers = {}
    for answer in answered:
        words = {"approved": answer.approve, "quarantined": answer.quarantine, "by": answer.by, "note": answer.note}
        answers[answer.gate] = words
        out.line(f"Gate {answer.gate}: {answer.choice} by {answer.by}")
    out.document({"pipeline": target.name, "backfill": args.backfill, "checkpoint": args.id, "answers": answers})
    if args.backfill is not None:
        _print_consequence(args, answered, out)
    elif all(answer.approve for answer in answered):
        out.line(f"Checkpoint {args.id} continues as soon as its run, or the next one, sees it.")
    elif all(answer.approve or answer.quarantine for answer in answered):
        out.line(f"Checkpoint {args.id} is aborted as soon as its run, or the next one, sees it. The next checkpoint")
        out.line("reads its input again, quarantines the rows that broke the rules, and publishes the rest.")
    else:
        out.line(f"Checkpoint {args.id} is aborted as soon as its run, or the next one, sees it. Then the pipeline is")
        out.line(f"suspended. Once its input or its rules are corrected:  {target.command('resume')}", "dim")
        out.line(f"To quarantine the held rows, and continue:  {target.command('resume')} --quarantine-all", "dim")
    if all((answer.approve, answer.quarantine) == (approve, quarantine) for answer in answered):
        return 0
    return 1


def _print_consequence(args: argparse.Namespace, answered: list[Answer], out: Output) -> None:
    """Print the consequence of an answer for a backfill, which does not affect the pipeline."""
    name = args.backfill
    if all(answer.approve for answer in answered):
        out.line(f"Checkpoint {args.id} of backfill {name} continues as soon as its run sees it. If none is running:")
        out.line(f"tidegate backfill MODULE:PIPELINE --name {name}", "dim")
        return
    if all(answer.approve or answer.quarantine for answer in answered):
        out.line(
            f"Checkpoint {args.id} of backfill {name} is aborted. The backfill's next one reads its input again, and"
        )
        out.line("quarantines the rows that broke the rules. The pipeline is not affected.")
        return
    out.line(
        f"Checkpoint {args.id} of backfill {name} is aborted, and the backfill stops there. The pipeline continues."
    )
    out.line(f"With corrected code or rules:  tidegate backfill MODULE:PIPELINE --name {name}", "dim")
    out.line(f"To give it up:  tidegate backfill MODULE:PIPELINE --discard {name}", "dim")
