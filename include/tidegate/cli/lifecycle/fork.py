"""`tidegate fork`: a new pipeline that begins with what another one held at a checkpoint."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from tidegate.cli.lifecycle.rollback import checkpoint_or_savepoint, coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import who
from tidegate.cli.targets import Target, find, program
from tidegate.errors import Corrupt, Invalid
from tidegate.lifecycle.copies import Copied, open_copy, verify
from tidegate.lifecycle.fork import fork, forked_already, look
from tidegate.lifecycle.snapshot import CheckpointSnapshot, snapshot_at
from tidegate.state.table import STATE

__all__ = ["add_parser", "is_folder", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "fork",
        help="begin a new pipeline with what another one held at a checkpoint",
        description="Begin a new pipeline with the positions and the state that another one held at a checkpoint. The "
        "new one is declared in code, under a name of its own and with tables of its own. Everything is copied: both "
        "go on independently, and nothing of the old one is touched. If it is broken off, give the same command again.",
        epilog="examples:\n  tidegate fork orders --from 41 --as jobs.trial:pipeline --dry-run\n"
        "  tidegate fork orders --from before-prices --as jobs.trial:pipeline --note 'new prices, side by side'\n"
        "  tidegate fork ./copies/before-prices --as jobs.trial:pipeline",
    )
    parser.add_argument(
        "pipeline", metavar="PIPELINE", help="the old one: a name, MODULE:pipeline, or a savepoint's folder"
    )
    parser.add_argument("--from", dest="base", metavar="N", help="a checkpoint, or a savepoint's name")
    parser.add_argument("--as", dest="into", required=True, metavar="MODULE:PIPELINE", help="the new pipeline's code")
    parser.add_argument(
        "--claim", action="store_true", help="of a folder: it is the new pipeline's now, and is removed"
    )
    parser.add_argument("--note", default="", metavar="TEXT", help="why, for whoever looks at it later")
    parser.add_argument("--dry-run", action="store_true", help="only look whether it could be done")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    if ":" not in args.into:
        raise Invalid(
            f"{args.into!r} is a name, and where a pipeline's tables are is told by its code",
            expected="MODULE:pipeline, such as jobs.trial:pipeline",
            help=f"declare it: Pipeline({args.into!r}), with sinks on tables of its own; then name it here",
            reason="NEEDS_CODE",
        )
    new = find(args.into, args.settings, started=False)
    coordinator = coordinator_of(new)
    copied = _folder(args, new) if is_folder(args.pipeline) else None
    if copied is not None and forked_already(copied, coordinator, claims=args.claim and not args.dry_run):
        out.document({"pipeline": new.name, "forked": True})
        out.line(f"Pipeline {new.name} is there already: it began with this savepoint.")
        return 0
    if copied is not None:
        _refuse_changed(copied)
        id = copied.copy.origin.entry
        held = snapshot_at(copied.ledger, id, copied.options, by=who(), note=args.note)
    else:
        held = _of_pipeline(args)
    held = look(held, coordinator)
    if not args.dry_run:
        fork(held, coordinator, copied, claims=args.claim)
    out.document({"pipeline": new.name, "forked": not args.dry_run, **_document(held)})
    _tell(new, held, out, done=not args.dry_run)
    return 0


def is_folder(text: str) -> bool:
    """Whether it names a folder and no pipeline: a pipeline's name has no slash in it."""
    return "/" in text


def _folder(args: argparse.Namespace, new: Target) -> Copied:
    """The savepoint that lies in a folder."""
    if args.base is not None:
        raise Invalid(
            "a savepoint's folder holds one checkpoint",
            expected="no --from",
            help="leave --from out; or name a pipeline instead of a folder",
            reason="BAD_CHOICE",
        )
    return open_copy(args.pipeline, new.settings.storage_options)


def _of_pipeline(args: argparse.Namespace) -> CheckpointSnapshot:
    """A checkpoint that a pipeline has."""
    if args.base is None or args.claim:
        raise Invalid(
            "only a savepoint's folder can be claimed" if args.claim else "--from is missing",
            expected="--from with a checkpoint or a savepoint's name; or a savepoint's folder in place of the pipeline",
            help="`tidegate list` and `tidegate savepoint list` show what there is",
            reason="BAD_CHOICE",
        )
    old = find(args.pipeline, args.settings)
    id = checkpoint_or_savepoint(args.base, old)
    return snapshot_at(old.ledger, id, old.settings.storage_options, by=who(), note=args.note)


def _refuse_changed(copied: Copied) -> None:
    problems = verify(copied)
    if problems:
        raise Corrupt(
            "\n    ".join([f"the savepoint in {copied.ledger.home} is damaged:", *problems[:10]]),
            expected="every file as it was copied",
            help="take another copy of the folder",
            reason="CHECKPOINT_DAMAGED",
        )


def _document(held: CheckpointSnapshot) -> dict[str, Any]:
    return {
        "from": {"pipeline": held.origin.pipeline, "checkpoint": held.entry.id},
        "sources": sorted(held.entry.plan.sources),
        "states": sorted(name.removeprefix(STATE) for name in held.states),
    }


def _tell(new: Target, held: CheckpointSnapshot, out: Output, *, done: bool) -> None:
    told = _document(held)
    what = "begins with" if done else "would begin with"
    out.line(f"Pipeline {new.name} {what} checkpoint {held.entry.id} of {held.origin.pipeline}.", "bold")
    out.line(f"  goes on reading    {', '.join(told['sources'])}, from where checkpoint {held.entry.id} ended")
    out.line(f"  remembers          {', '.join(told['states']) or 'nothing'}, as a copy")
    out.line("  its tables         begin with what comes from now on")
    if done:
        out.line(f"To run it:  {program()} run {shlex.quote(new.text)} --until-idle", "dim")
