"""`tidegate check`: list every reason why code could not continue from a checkpoint, before it is deployed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tidegate.backfill.unchanged import unrepeatable
from tidegate.checkpoint.compatibility import additions, check, growing, unknown_deletes, unordered
from tidegate.cli.lifecycle.rollback import checkpoint_or_savepoint, coordinator_of
from tidegate.cli.output import Output, error_document
from tidegate.cli.targets import Target, entry_of, open_target
from tidegate.ledger.refusals import no_such_checkpoint
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol.moved_sources import source_changes
from tidegate.protocol.view import Entry

__all__ = ["add_parser", "run"]

NO = 1


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "check",
        help="can this code continue from the last checkpoint? every reason why not",
        description="Compare the pipeline's code with a checkpoint: sources, operators and hooks with state, sinks and "
        "their tables, fixed settings. It lists every reason why no checkpoint could be planned, with the remedy, and "
        "the parts that are new. Nothing is run: types of operators' inputs are only checked when they run.",
        epilog="examples:\n  tidegate check jobs.orders:pipeline\n  tidegate check jobs.orders:pipeline --from good",
    )
    parser.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the code")
    parser.add_argument("--from", dest="base", metavar="N", help="a checkpoint, or a savepoint's name; else the last")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings, started=False)
    coordinator = coordinator_of(target)
    base = _base(args.base, target)
    if base is None:
        warnings = _warnings(coordinator.graph)
        nothing: dict[str, Any] = {"from": None, "possible": True, "reasons": [], "new": []}
        out.document({"pipeline": target.name, **nothing, "warnings": warnings})
        _warn(warnings, out)
        out.line(f"Pipeline {target.name} has no checkpoint yet: any code will do.")
        return 0
    changes = source_changes(target.ledger.view(), base) if args.base is None else ()
    errors, new = check(coordinator, base, changes), additions(coordinator.graph, base, changes)
    reasons = [error_document(error) for error in errors]
    warnings = [*_warnings(coordinator.graph), *unknown_deletes(coordinator.graph, target.ledger, base)]
    found: dict[str, Any] = {"from": base.id, "possible": not errors, "reasons": reasons, "new": new}
    out.document({"pipeline": target.name, **found, "warnings": warnings})
    for error in errors:
        out.error(error)
    for text in new:
        out.line(f"- {text}")
    _warn(warnings, out)
    same = base.plan.code_fingerprint == coordinator.graph.code_fingerprint()
    change = "is the same as when" if same else "has changed since"
    out.line(f"The code {change} checkpoint {base.id} was planned.", "dim")
    if not errors:
        out.line("It can continue from there.", "bold")
        return 0
    reason_count = "1 reason" if len(errors) == 1 else f"{len(errors)} reasons"
    out.line(f"It cannot continue from there, for {reason_count}.", "bold")
    return NO


def _warnings(graph: Graph) -> list[str]:
    return [*growing(graph), *unordered(graph), *unrepeatable(graph)]


def _warn(warnings: Sequence[str], out: Output) -> None:
    for text in warnings:
        out.line(f"Note: {text}", "dim")


def _base(text: str | None, target: Target) -> Entry | None:
    """Return the checkpoint to continue from; None if there is none yet."""
    if text is None:
        return target.ledger.view().last_completed if target.ledger.identity() is not None else None
    entry = entry_of(target.ledger, checkpoint_or_savepoint(text, target))
    if not entry.completed:
        raise no_such_checkpoint(target.name, entry.id, problem="was not completed", expected="a completed one")
    return entry
