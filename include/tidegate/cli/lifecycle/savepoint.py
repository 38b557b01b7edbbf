"""`tidegate savepoint`: name a checkpoint, so that it stays: create, list, show, verify, dispose."""

from __future__ import annotations

import argparse
import os
from typing import Any

from tidegate.cli.inspect.documents import clock, size_text
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.lifecycle.fork import is_folder
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, user_and_host
from tidegate.cli.running.progress import progress_for
from tidegate.cli.running.run import refuse_submit, run_loop
from tidegate.cli.targets import Target, open_target
from tidegate.config import load_settings
from tidegate.errors import Invalid, Rejected
from tidegate.execution.loop import Schedule
from tidegate.lifecycle import savepoint
from tidegate.lifecycle.copies import copy_out, open_copy, verify
from tidegate.lifecycle.savepoint import Savepoint
from tidegate.lifecycle.snapshot import checkpoint_snapshot
from tidegate.records.place import is_url
from tidegate.verify.checkpoint import verify_savepoint

__all__ = ["add_parser", "run"]

NO = 1
VERBS = {
    "create": "name a checkpoint; without --checkpoint, the last one that is published to all tables",
    "list": "all savepoints of a pipeline",
    "show": "one savepoint, and who made it",
    "verify": "check every record, version, hash and file that a rollback to it needs; for a copy, every hash",
    "dispose": "delete the name; the next clean-up deletes the checkpoint, unless it is retained anyway",
}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "savepoint",
        help="checkpoints with names: create, list, show, verify, dispose",
        description="A savepoint is a checkpoint with a name: it stays until you dispose of it. You can read it, "
        "inspect it and roll back to it like any other.",
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
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, help in VERBS.items():
        subparser = verbs.add_parser(verb, help=help, description=help.capitalize() + ".")
        code = verb == "verify"
        pipeline_help = "the code, which says where the tables are; or a copy's folder"
        if not code:
            pipeline_help = "a name, or MODULE:pipeline"
        subparser.add_argument("pipeline", metavar="MODULE:PIPELINE" if code else "PIPELINE", help=pipeline_help)
        if verb != "list":
            letters = "lower-case letters, digits, '_' and '-'" + ("; not for a folder" if code else "")
            subparser.add_argument("name", metavar="NAME", nargs="?" if code else None, help=letters)
        if verb == "create":
            subparser.add_argument(
                "--copy",
                metavar="FOLDER",
                help="copy all files that are needed to continue from it, not only name it",
            )
            which = subparser.add_mutually_exclusive_group()
            which.add_argument("--checkpoint", type=checkpoint_id, metavar="N", help="the checkpoint to name")
            which.add_argument(
                "--new",
                action="store_true",
                help="make a checkpoint for it now, which waits for every job (needs the code)",
            )
            subparser.add_argument("--note", default="", metavar="TEXT", help="its purpose")
        if verb == "dispose":
            subparser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    if args.verb == "verify" and is_folder(args.pipeline):
        return _verify_copy(args, out)
    target = open_target(args.pipeline, args.settings)
    if args.verb == "create" and args.new:
        args.checkpoint = _make_checkpoint(target, args.name, out)
    if args.verb == "create" and args.copy is not None:
        return _copy(target, args, out)
    if args.verb == "create":
        created = savepoint.create(target.ledger, args.name, args.checkpoint, user_and_host(), args.note)
        lagging = savepoint.jobs_with_input_in_flight(target.ledger, created.entry)
        out.document({"pipeline": target.name, **_document(created), "overtaken": lagging})
        out.line(
            f"Savepoint {created.name} is checkpoint {created.entry} of {target.name}. "
            "It stays until you dispose of it."
        )
        if lagging:
            out.line(
                f"Job {', '.join(lagging)} lags in it. You can roll back to it; to copy or fork a savepoint, create it "
                "with --new, which waits for all jobs."
            )
        return 0
    if args.verb == "list":
        return _list(target, out)
    if args.verb == "verify":
        return _verify(target, args.name, out)
    named = savepoint.find(target.ledger, args.name)
    if args.verb == "show":
        return _show(target, named, out)
    confirm(f"Dispose of savepoint {named.name} (checkpoint {named.entry})?", out, yes=args.yes)
    savepoint.dispose(target.ledger, args.name)
    out.document({"pipeline": target.name, **_document(named), "disposed": True})
    out.line(f"Savepoint {named.name} is disposed of. Retention deletes checkpoint {named.entry}.")
    return 0


def _make_checkpoint(target: Target, name: str, out: Output) -> int:
    """Make one more checkpoint, in this process, that waits for all jobs."""
    savepoint.check_free(target.ledger, name, None)
    coordinator, progress = coordinator_of(target), progress_for(out)
    refuse_submit(target.settings)
    run_loop(coordinator, [Schedule(checkpoints=1, savepoint=True, aligned=True)], progress, target.settings, out)
    checkpoint = progress.checkpoints[-1] if progress.checkpoints else None
    if checkpoint is None or checkpoint["state"] != "completed":
        raise Rejected(
            f"the checkpoint for savepoint {name!r} of pipeline {target.name!r} was not completed",
            expected="a completed checkpoint",
            help=f"fix the cause ({target.command('list')} shows it), then try again",
            reason="NOT_COMPLETED",
        )
    id: int = checkpoint["id"]
    return id


def _document(item: Savepoint) -> dict[str, Any]:
    pin = item.pin
    return {
        "name": item.name,
        "checkpoint": pin.entry,
        "created_by": pin.by,
        "created_at": pin.created,
        "note": pin.note,
        "retained": item.is_retained,
    }


def _list(target: Target, out: Output) -> int:
    named = savepoint.savepoints(target.ledger)
    out.document({"pipeline": target.name, "savepoints": [_document(item) for item in named]})
    if not named:
        out.line(f"Pipeline {target.name} has no savepoints.")
        return 0
    out.table(
        ["name", "checkpoint", "named (UTC)", "by", "note"],
        [
            [item.name, item.entry if item.is_retained else "gone", clock(item.pin.created), item.pin.by, item.pin.note]
            for item in named
        ],
        right=["checkpoint"],
    )
    return 0


def _show(target: Target, named: Savepoint, out: Output) -> int:
    out.document({"pipeline": target.name, **_document(named), "manifest": named.pin.manifest})
    out.line(f"Savepoint {named.name} of {target.name}: checkpoint {named.entry}", "bold")
    for name, value in (
        ("named", f"{clock(named.pin.created)} UTC by {named.pin.by}"),
        ("note", named.pin.note or "none"),
        ("manifest", named.pin.manifest),
    ):
        out.line(f"  {name:<9} {value}")
    out.line(f"Its contents:  {target.command('show', named.entry)}", "dim")
    return 0


def _copy(target: Target, args: argparse.Namespace, out: Output) -> int:
    id = savepoint.nameable(target.ledger, args.name, args.checkpoint).id
    snapshot = checkpoint_snapshot(
        target.ledger, id, target.settings.storage_options, by=user_and_host(), note=args.note
    )
    copied = copy_out(snapshot, os.path.abspath(args.copy) if not is_url(args.copy) else args.copy, args.name)
    size = sum(size for size, _ in copied.files.values())
    document = {"name": args.name, "checkpoint": id, "folder": copied.ledger.home, "files": len(copied.files)}
    out.document({"pipeline": target.name, **document, "bytes": size})
    out.line(f"Savepoint {args.name} is checkpoint {id} of {target.name}, copied to {copied.ledger.home}")
    out.line(f"  {len(copied.files)} files, {size_text(size)}. The copy is complete, and may be moved.")
    return 0


def _verify_copy(args: argparse.Namespace, out: Output) -> int:
    copied = open_copy(args.pipeline, load_settings(args.settings).storage_options)
    problems, copy = verify(copied), copied.copy
    document = {"pipeline": copy.origin.pipeline, "name": copy.name, "checkpoint": copy.origin.entry}
    out.document({**document, "complete": not problems, "problems": problems})
    for problem in problems:
        out.line(f"Damaged: {problem}", "red")
    if not problems:
        origin = f"checkpoint {copy.origin.entry} of {copy.origin.pipeline}"
        out.line(f"Savepoint {copy.name}, {origin}, is intact: {len(copied.files)} files, each as it was copied.")
    return NO if problems else 0


def _verify(target: Target, name: str | None, out: Output) -> int:
    if name is None:
        raise Invalid(
            "no savepoint was named", expected="its name", help="`tidegate savepoint list`", reason="BAD_NAME"
        )
    problems = verify_savepoint(coordinator_of(target), name)
    out.document({"pipeline": target.name, "name": name, "complete": not problems, "problems": problems})
    for problem in problems:
        out.line(f"Damaged: {problem}", "red")
    if not problems:
        out.line(f"Savepoint {name} is intact: every record, version, hash and file is unchanged.")
    return NO if problems else 0
