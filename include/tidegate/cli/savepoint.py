"""`tidegate savepoint`: give a checkpoint a name, and it stays: create, list, show, verify, dispose."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint import savepoint
from tidegate.checkpoint.savepoint import Savepoint
from tidegate.cli.documents import clock
from tidegate.cli.output import Output
from tidegate.cli.people import confirm, who
from tidegate.cli.rollback import coordinator_of
from tidegate.cli.show import checkpoint_id
from tidegate.cli.targets import Target, find

__all__ = ["add_parser", "run"]

NO = 1
VERBS = {
    "create": "give a checkpoint a name; without --checkpoint, the last one that is on all tables",
    "list": "all savepoints of a pipeline",
    "show": "one of them, and whose it is",
    "verify": "is every record, version, hash and file there that going back to it would need?",
    "dispose": "forget the name; the checkpoint goes with the next clean-up, unless it is retained anyway",
}


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "savepoint",
        help="checkpoints with names: create, list, show, verify, dispose",
        description="A savepoint is a checkpoint with a name: it stays until it is disposed of, however many come "
        "after it. It can be read, looked at and gone back to like any other.",
        epilog="examples:\n  tidegate savepoint create orders before-prices --note 'last good one'\n"
        "  tidegate savepoint verify jobs.orders:pipeline before-prices\n"
        "  tidegate rollback jobs.orders:pipeline --to before-prices",
    )
    below = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, help in VERBS.items():
        each = below.add_parser(verb, help=help, description=help.capitalize() + ".")
        code = verb == "verify"
        what = "the pipeline's code: it says where the tables are" if code else "a name, or MODULE:pipeline"
        each.add_argument("pipeline", metavar="MODULE:PIPELINE" if code else "PIPELINE", help=what)
        if verb != "list":
            each.add_argument("name", metavar="NAME", help="lower-case letters, digits, '_' and '-'")
        if verb == "create":
            each.add_argument("--checkpoint", type=checkpoint_id, metavar="N", help="this one")
            each.add_argument("--note", default="", metavar="TEXT", help="what it is for")
        if verb == "dispose":
            each.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    if args.verb == "create":
        made = savepoint.create(target.ledger, args.name, args.checkpoint, who(), args.note)
        out.document({"pipeline": target.name, **_document(made)})
        out.line(
            f"Savepoint {made.name} is checkpoint {made.entry} of {target.name}. It stays until you dispose of it."
        )
        return 0
    if args.verb == "list":
        return _list(target, out)
    if args.verb == "verify":
        return _verify(target, args.name, out)
    found = savepoint.find(target.ledger, args.name)
    if args.verb == "show":
        return _show(target, found, out)
    confirm(f"Dispose of savepoint {found.name} (checkpoint {found.entry})?", out, yes=args.yes)
    savepoint.dispose(target.ledger, args.name)
    out.document({"pipeline": target.name, **_document(found), "disposed": True})
    out.line(f"Savepoint {found.name} is no more. Checkpoint {found.entry} goes when it is retired.")
    return 0


def _document(found: Savepoint) -> dict[str, Any]:
    pin = found.pin
    return {"name": found.name, "checkpoint": pin.entry, "by": pin.by, "created": pin.created, "note": pin.note} | {
        "there": found.there
    }


def _list(target: Target, out: Output) -> int:
    found = savepoint.savepoints(target.ledger)
    out.document({"pipeline": target.name, "savepoints": [_document(each) for each in found]})
    if not found:
        out.line(f"Pipeline {target.name} has no savepoints.")
        return 0
    out.table(
        ["name", "checkpoint", "named (UTC)", "by", "note"],
        [
            [each.name, each.entry if each.there else "gone", clock(each.pin.created), each.pin.by, each.pin.note]
            for each in found
        ],
        right=["checkpoint"],
    )
    return 0


def _show(target: Target, found: Savepoint, out: Output) -> int:
    out.document({"pipeline": target.name, **_document(found), "manifest": found.pin.manifest})
    out.line(f"Savepoint {found.name} of {target.name}: checkpoint {found.entry}", "bold")
    for name, value in (
        ("named", f"{clock(found.pin.created)} UTC by {found.pin.by}"),
        ("note", found.pin.note or "none"),
        ("manifest", found.pin.manifest),
    ):
        out.line(f"  {name:<9} {value}")
    out.line(f"What is in it:  {target.command('show', found.entry)}", "dim")
    return 0


def _verify(target: Target, name: str, out: Output) -> int:
    problems = savepoint.verify(coordinator_of(target), name)
    out.document({"pipeline": target.name, "name": name, "whole": not problems, "problems": problems})
    for problem in problems:
        out.line(f"Damaged: {problem}", "red")
    if not problems:
        out.line(f"Savepoint {name} is whole: every record, version, hash and file is as it was.")
    return NO if problems else 0
