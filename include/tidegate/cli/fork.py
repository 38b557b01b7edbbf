"""`tidegate fork`: a new pipeline that begins with what another one held at a checkpoint."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint.fork import Held, fork, look
from tidegate.cli.output import Output
from tidegate.cli.people import who
from tidegate.cli.rollback import checkpoint_or_savepoint, coordinator_of
from tidegate.cli.targets import Target, find
from tidegate.errors import Invalid
from tidegate.state.table import STATE

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "fork",
        help="begin a new pipeline with what another one held at a checkpoint",
        description="Begin a new pipeline with the positions and the state that another one held at a checkpoint. The "
        "new one is declared in code, under a name of its own and with tables of its own. Everything is copied: both "
        "go on independently, and nothing of the old one is touched. If it is broken off, give the same command again.",
        epilog="examples:\n  tidegate fork orders --from 41 --as jobs.trial:pipeline --dry-run\n"
        "  tidegate fork orders --from before-prices --as jobs.trial:pipeline --note 'new prices, side by side'",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="the old one: a name, or MODULE:pipeline")
    parser.add_argument("--from", dest="base", required=True, metavar="N", help="a checkpoint, or a savepoint's name")
    parser.add_argument("--as", dest="into", required=True, metavar="MODULE:PIPELINE", help="the new pipeline's code")
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
    old, new = find(args.pipeline, args.settings), find(args.into, args.settings, started=False)
    coordinator = coordinator_of(new)
    held = look(old.ledger, checkpoint_or_savepoint(args.base, old), coordinator, by=who(), note=args.note)
    if not args.dry_run:
        fork(held, coordinator)
    out.document({"pipeline": new.name, "forked": not args.dry_run, **_document(held)})
    _tell(new, held, out, done=not args.dry_run)
    return 0


def _document(held: Held) -> dict[str, Any]:
    return {
        "from": {"pipeline": held.origin.pipeline, "checkpoint": held.entry.id},
        "sources": sorted(held.entry.plan.sources),
        "states": sorted(name.removeprefix(STATE) for name in held.states),
    }


def _tell(new: Target, held: Held, out: Output, *, done: bool) -> None:
    told = _document(held)
    what = "begins with" if done else "would begin with"
    out.line(f"Pipeline {new.name} {what} checkpoint {held.entry.id} of {held.origin.pipeline}.", "bold")
    out.line(f"  goes on reading    {', '.join(told['sources'])}, from where checkpoint {held.entry.id} ended")
    out.line(f"  remembers          {', '.join(told['states']) or 'nothing'}, as a copy")
    out.line("  its tables         begin with what comes from now on")
    if done:
        out.line(f"To run it:  {new.command('run')}", "dim")
