"""`tidegate check`: list every reason why code could not continue from a checkpoint, before it is deployed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tidegate.backfill.unchanged import unrepeatable
from tidegate.checkpoint.compatibility import (
    additions,
    check,
    check_alone,
    growing,
    unknown_deletes,
    unordered,
)
from tidegate.cli.lifecycle.rollback import checkpoint_or_savepoint, coordinator_of
from tidegate.cli.output import Output, error_document
from tidegate.cli.running.analysis import add_option, analysed
from tidegate.cli.targets import Target, entry_of, open_target, refuse_unknown_jobs
from tidegate.ledger.refusals import no_such_checkpoint
from tidegate.pipeline.graph.graph import Graph
from tidegate.pipeline.promises import short_promises
from tidegate.protocol.moved_sources import source_changes
from tidegate.protocol.view import Entry

__all__ = ["add_parser", "run"]

NO = 1


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "check",
        help="can this code make the next checkpoint? every reason why not",
        description="Compare the pipeline's code with a checkpoint: sources, operators and hooks with state, sinks and "
        "their tables, fixed settings. Then have Spark plan all of it on empty frames: every expression, column and "
        "key, every suite, and the schema of each table. It lists every reason why no checkpoint could be made, with "
        "the remedy, and the new parts. No row is read, and nothing is written.",
        epilog="examples:\n  tidegate check jobs.orders:pipeline\n  tidegate check jobs.orders:pipeline --from good",
    )
    parser.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the code")
    parser.add_argument(
        "--from", dest="base", metavar="N", help="a checkpoint, or a savepoint's name (the last checkpoint)"
    )
    add_option(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings, started=False)
    coordinator = coordinator_of(target)
    coordinator.only_looks = True
    refuse_unknown_jobs(coordinator.graph, target.settings)
    base = _base(args.base, target)
    if args.base is None and base is not None:
        changes = source_changes(target.ledger.view(), base)
    else:
        changes = ()
    if base is not None:
        errors = check(coordinator, base, changes)
    else:
        errors = check_alone(coordinator)
    known = {(error.reason, error.what) for error in errors}
    notes: list[str] = []
    errors_found = analysed(args, target, coordinator, base, out, changes, notes)
    for error in errors_found:
        if (error.reason, error.what) not in known:
            errors.append(error)
    if base is not None:
        new = additions(coordinator.graph, base, changes)
    else:
        new = []
    warnings = _warnings(coordinator.graph) + short_promises(coordinator.graph, target.settings) + notes
    if base is not None:
        warnings += unknown_deletes(coordinator.graph, target.ledger, base)
    if not errors and not args.no_spark and args.base is None and target.ledger.declined() is not None:
        target.ledger.forget_declined()  # triggers need not refuse this code any longer
    document: dict[str, Any] = {"from": base.id if base is not None else None, "can_continue": not errors}
    reasons = [error_document(error) for error in errors]
    out.document({"pipeline": target.name, **document, "reasons": reasons, "new_parts": new, "warnings": warnings})
    for error in errors:
        out.error(error)
    for text in new:
        out.line(f"- {text}")
    _warn(warnings, out)
    if base is None:
        out.line(f"Pipeline {target.name} has no checkpoint yet: it has nothing to continue from.")
    else:
        same = base.plan.code_fingerprint == coordinator.graph.code_fingerprint()
        change = "is the same as when" if same else "has changed since"
        out.line(f"The code {change} checkpoint {base.id} was planned.", "dim")
    if base is not None:
        next_step = "continue from there"
    else:
        next_step = "make its first checkpoint"
    if not errors:
        out.line(f"It can {next_step}.", "bold")
        return 0
    reason_count = "1 reason" if len(errors) == 1 else f"{len(errors)} reasons"
    out.line(f"It cannot {next_step}, for {reason_count}.", "bold")
    return NO


def _warnings(graph: Graph) -> list[str]:
    return [*growing(graph), *unordered(graph), *unrepeatable(graph)]


def _warn(warnings: Sequence[str], out: Output) -> None:
    for text in warnings:
        out.line(f"Note: {text}", "dim")


def _base(text: str | None, target: Target) -> Entry | None:
    """Return the checkpoint to continue from, or None for a pipeline without one."""
    if text is None:
        if target.ledger.identity() is None:
            return None
        return target.ledger.view().last_completed
    entry = entry_of(target.ledger, checkpoint_or_savepoint(text, target))
    if not entry.completed:
        raise no_such_checkpoint(target.name, entry.id, problem="was not completed", expected="a completed one")
    return entry
