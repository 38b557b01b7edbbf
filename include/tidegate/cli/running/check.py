"""`tidegate check`: will this code go on from that checkpoint? Every reason why not, before it is deployed."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint.compatibility import additions, check
from tidegate.cli.lifecycle.rollback import checkpoint_or_savepoint, coordinator_of
from tidegate.cli.output import Output, error_document
from tidegate.cli.targets import Target, entry_of, find
from tidegate.errors import Rejected
from tidegate.protocol.view import Entry

__all__ = ["add_parser", "run"]

NO = 1


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "check",
        help="will this code go on from the last checkpoint? every reason why not",
        description="Compare the pipeline's code with a checkpoint: sources, operators that remember, sinks and their "
        "tables, settings that are fixed. It names every reason why nothing could be planned, with what to do; and "
        "what is new. Nothing is run: what operators make of their inputs' types is judged when they run.",
        epilog="examples:\n  tidegate check jobs.orders:pipeline\n  tidegate check jobs.orders:pipeline --from good",
    )
    parser.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the code")
    parser.add_argument("--from", dest="base", metavar="N", help="a checkpoint, or a savepoint's name; else the last")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings, started=False)
    coordinator = coordinator_of(target)
    base = _base(args.base, target)
    if base is None:
        out.document({"pipeline": target.name, "from": None, "possible": True, "reasons": [], "new": []})
        out.line(f"Pipeline {target.name} has no checkpoint yet: any code will do.")
        return 0
    found, new = check(coordinator, base), additions(coordinator.graph, base)
    reasons = [error_document(error) for error in found]
    document = {"pipeline": target.name, "from": base.id, "possible": not found, "reasons": reasons, "new": new}
    out.document(document)
    for error in found:
        out.error(error)
    for text in new:
        out.line(f"- {text}")
    same = base.plan.code_fingerprint == coordinator.graph.code_fingerprint()
    what = "is what checkpoint" if same else "has changed since checkpoint"
    out.line(f"The code {what} {base.id} was planned {'with' if same else ''}".rstrip() + ".", "dim")
    verdict = "It can go on from there." if not found else f"It cannot go on from there, for {len(found)} reasons."
    out.line(verdict.replace("1 reasons", "1 reason"), "bold")
    return NO if found else 0


def _base(text: str | None, target: Target) -> Entry | None:
    """The checkpoint to go on from."""
    if text is None:
        return target.ledger.view().last_completed if target.ledger.identity() is not None else None
    entry = entry_of(target.ledger, checkpoint_or_savepoint(text, target))
    if not entry.completed:
        raise Rejected(
            f"checkpoint {entry.id} of pipeline {target.name!r} was not completed",
            expected="a completed one",
            help=f"`tidegate list {target.name}` shows them",
            reason="NO_SUCH_CHECKPOINT",
        )
    return entry
