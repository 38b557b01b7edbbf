"""`tidegate savepoint`: give a checkpoint a name, and it stays: create, list, show, verify, dispose."""

from __future__ import annotations

import argparse
import os
from typing import Any

from tidegate.cli.inspect.documents import clock, size_text
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.lifecycle.fork import is_folder
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, who
from tidegate.cli.running.progress import progress_for
from tidegate.cli.running.run import refuse_submit, run_loop
from tidegate.cli.targets import Target, find
from tidegate.config import load_settings
from tidegate.errors import Invalid, Rejected
from tidegate.execution.loop import Schedule
from tidegate.lifecycle import savepoint
from tidegate.lifecycle.copies import copy_out, open_copy, verify
from tidegate.lifecycle.savepoint import Savepoint
from tidegate.lifecycle.snapshot import snapshot_at
from tidegate.records.place import is_url
from tidegate.verify.checkpoint import verify_savepoint

__all__ = ["add_parser", "run"]

NO = 1
VERBS = {
    "create": "give a checkpoint a name; without --checkpoint, the last one that is on all tables",
    "list": "all savepoints of a pipeline",
    "show": "one of them, and whose it is",
    "verify": "is every record, version, hash and file there that going back to it would need? of a copy: every hash",
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
        "  tidegate rollback jobs.orders:pipeline --to before-prices\n"
        "  tidegate savepoint create orders before-prices --copy ./copies/before-prices\n"
        "  tidegate savepoint create jobs.orders:pipeline before-prices --new --copy ./copies/before-prices\n"
        "  tidegate savepoint verify ./copies/before-prices\n"
        "  tidegate savepoint list orders\n"
        "  tidegate savepoint show orders before-prices\n"
        "  tidegate savepoint dispose orders before-prices --yes",
    )
    below = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, help in VERBS.items():
        each = below.add_parser(verb, help=help, description=help.capitalize() + ".")
        code = verb == "verify"
        what = "its code: it says where the tables are; or a copy's folder" if code else "a name, or MODULE:pipeline"
        each.add_argument("pipeline", metavar="MODULE:PIPELINE" if code else "PIPELINE", help=what)
        if verb != "list":
            letters = "lower-case letters, digits, '_' and '-'" + ("; not for a folder" if code else "")
            each.add_argument("name", metavar="NAME", nargs="?" if code else None, help=letters)
        if verb == "create":
            each.add_argument(
                "--copy", metavar="FOLDER", help="not by reference: copy all that it takes to go on from it"
            )
            which = each.add_mutually_exclusive_group()
            which.add_argument("--checkpoint", type=checkpoint_id, metavar="N", help="this one")
            which.add_argument(
                "--new", action="store_true", help="one made for it now, which waits for every job (needs the code)"
            )
            each.add_argument("--note", default="", metavar="TEXT", help="what it is for")
        if verb == "dispose":
            each.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    if args.verb == "verify" and is_folder(args.pipeline):
        return _verify_copy(args, out)
    target = find(args.pipeline, args.settings)
    if args.verb == "create" and args.new:
        args.checkpoint = _made(target, args.name, out)
    if args.verb == "create" and args.copy is not None:
        return _copy(target, args, out)
    if args.verb == "create":
        made = savepoint.create(target.ledger, args.name, args.checkpoint, who(), args.note)
        behind = savepoint.behind(target.ledger, made.entry)
        out.document({"pipeline": target.name, **_document(made), "behind": behind})
        out.line(
            f"Savepoint {made.name} is checkpoint {made.entry} of {target.name}. It stays until you dispose of it."
        )
        if behind:
            out.line(
                f"Job {', '.join(behind)} was behind in it. You can go back to it; to copy or fork one, have it made "
                "with --new, which waits for all jobs."
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


def _made(target: Target, name: str, out: Output) -> int:
    """One more checkpoint, in this process; none of its jobs is behind."""
    savepoint.check_free(target.ledger, name, None)
    coordinator, progress = coordinator_of(target), progress_for(out)
    refuse_submit(target.settings)
    run_loop(coordinator, [Schedule(checkpoints=1, aligned=True)], progress, target.settings, out)
    made = progress.checkpoints[-1] if progress.checkpoints else None
    if made is None or made["state"] != "completed":
        raise Rejected(
            f"the checkpoint that was to be savepoint {name!r} of pipeline {target.name!r} is not completed",
            expected="one that is",
            help=f"mend the cause ({target.command('list')} tells it), then call again",
            reason="NOT_COMPLETED",
        )
    id: int = made["id"]
    return id


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


def _copy(target: Target, args: argparse.Namespace, out: Output) -> int:
    id = savepoint.nameable(target.ledger, args.name, args.checkpoint).id
    held = snapshot_at(target.ledger, id, target.settings.storage_options, by=who(), note=args.note)
    copied = copy_out(held, os.path.abspath(args.copy) if not is_url(args.copy) else args.copy, args.name)
    size = sum(size for size, _ in copied.files.values())
    told = {"name": args.name, "checkpoint": id, "folder": copied.ledger.home, "files": len(copied.files)}
    out.document({"pipeline": target.name, **told, "bytes": size})
    out.line(f"Savepoint {args.name} is checkpoint {id} of {target.name}, copied to {copied.ledger.home}")
    out.line(f"  {len(copied.files)} files, {size_text(size)}; it needs nothing else, and may be moved.")
    return 0


def _verify_copy(args: argparse.Namespace, out: Output) -> int:
    copied = open_copy(args.pipeline, load_settings(args.settings).storage_options)
    problems, copy = verify(copied), copied.copy
    told = {"pipeline": copy.origin.pipeline, "name": copy.name, "checkpoint": copy.origin.entry}
    out.document({**told, "whole": not problems, "problems": problems})
    for problem in problems:
        out.line(f"Damaged: {problem}", "red")
    if not problems:
        of = f"checkpoint {copy.origin.entry} of {copy.origin.pipeline}"
        out.line(f"Savepoint {copy.name}, {of}, is whole: {len(copied.files)} files, each as it was copied.")
    return NO if problems else 0


def _verify(target: Target, name: str | None, out: Output) -> int:
    if name is None:
        raise Invalid("which savepoint?", expected="its name", help="`tidegate savepoint list`", reason="BAD_NAME")
    problems = verify_savepoint(coordinator_of(target), name)
    out.document({"pipeline": target.name, "name": name, "whole": not problems, "problems": problems})
    for problem in problems:
        out.line(f"Damaged: {problem}", "red")
    if not problems:
        out.line(f"Savepoint {name} is whole: every record, version, hash and file is as it was.")
    return NO if problems else 0
