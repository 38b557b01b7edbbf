"""`tidegate rollback`: return to a checkpoint. It shows what it will do before it does anything."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from tidegate.cli.inspect.documents import clock
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, user_and_host
from tidegate.cli.targets import Target, open_target
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid
from tidegate.execution.runs import new_run
from tidegate.lifecycle import rollback, savepoint
from tidegate.lifecycle.rollback import RolledBack
from tidegate.lifecycle.rollback_preview import CHOICES, How, RollbackPreview, TableChange, examine

__all__ = [
    "add_parser",
    "checkpoint_or_savepoint",
    "coordinator_of",
    "dropped_text",
    "preview_document",
    "print_preview",
    "report_rollback",
    "run",
]

NO, CANNOT = 1, 3


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "rollback",
        help="return to a checkpoint: positions, state and tables",
        description="Return to a checkpoint. Sources are read again from where it ended. Operators and tables get back "
        "their state and rows as of then, with one more commit on each table. A rollback is an entry of the log like "
        "any other: the next run continues to publish it, and new checkpoints get new ids.",
        epilog="examples:\n  tidegate rollback jobs.orders:pipeline --to 41 --dry-run\n"
        "  tidegate rollback jobs.orders:pipeline --to 41 --suspend --reason 'wrong prices since 42'\n"
        "  tidegate rollback jobs.orders:pipeline --to 41 --retract revenue\n"
        "  tidegate rollback jobs.orders:pipeline --to 41 --leave archive\n"
        "  tidegate rollback jobs.orders:pipeline --to 41 --drop-in-flight --dry-run",
    )
    parser.add_argument(
        "pipeline", metavar="MODULE:PIPELINE", help="the pipeline's code, which says where the tables are"
    )
    parser.add_argument("--to", required=True, metavar="N", help="the checkpoint to return to, or a savepoint's name")
    parser.add_argument(
        "--dry-run", action="store_true", help="only show what would be done; exit code 1: it is not possible"
    )
    for how, help in (
        ("discard", "for a table that other writers have changed since: restore it; their commits are lost"),
        ("retract", "for such a table: restore only this pipeline's own rows, and keep the other writers'"),
        ("keep", "leave a table's rows as they are; rows that are read again are written to it again"),
        ("leave", "give up a table that cannot be published to: it stays as it is, and never gets its pending rows"),
    ):
        parser.add_argument(f"--{how}", action="append", default=[], metavar="SINK", help=help)
    parser.add_argument(
        "--drop-in-flight",
        action="store_true",
        help="drop the rows that were in flight between jobs then: they are never read (unaligned = true)",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="the reason, for the record")
    parser.add_argument("--suspend", action="store_true", help="suspend the pipeline after it, to check first")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    coordinator = coordinator_of(target)
    choices, to = _choices(args), checkpoint_or_savepoint(args.to, target)
    preview = examine(coordinator, to, choices, drop_in_flight=args.drop_in_flight)
    if args.dry_run:
        out.document(preview_document(target, preview) | {"possible": not preview.problems})
        print_preview(target, preview, out)
        return NO if preview.problems else 0
    print_preview(target, preview, out)
    if not preview.problems:  # otherwise roll_back below refuses it, and lists them
        count = len(preview.undone)
        if preview.drops_in_flight:
            lost = f" {dropped_text(preview)} never processed."
        else:
            lost = ""
        question = f"Roll back to checkpoint {to}? {count} completed after it will no longer count.{lost}"
        confirm(question, out, yes=args.yes)
    why = args.reason or f"rolled back to checkpoint {to}"
    rolled_back = rollback.roll_back(
        coordinator,
        to,
        run=new_run(),
        by=user_and_host(),
        choices=choices,
        reason=args.reason,
        suspend=why if args.suspend else "",
        shown={*preview.undone, *preview.aborted},
        drop_in_flight=args.drop_in_flight,
    )
    return report_rollback(target, rolled_back, out)


def coordinator_of(target: Target) -> Coordinator:
    """Return a coordinator; raise Invalid if the target was named without its code."""
    if target.pipeline is None:
        raise Invalid(
            f"only the code of pipeline {target.name!r} says where its tables are",
            expected="MODULE:pipeline, such as jobs.orders:pipeline",
            help="run this in the project's folder",
            reason="NEEDS_CODE",
        )
    place = target.settings.place()
    return Coordinator(target.pipeline.graph(place, target.settings.mode), target.ledger, target.settings, place)


def checkpoint_or_savepoint(text: str, target: Target) -> int:
    """Return a checkpoint's number, given as a number or a savepoint's name."""
    try:
        return checkpoint_id(text)
    except argparse.ArgumentTypeError:
        return savepoint.find(target.ledger, text).entry


def _choices(args: argparse.Namespace) -> dict[str, How]:
    choices: dict[str, How] = {}
    for how in CHOICES:
        for name in getattr(args, how):
            if choices.setdefault(name, how) != how:
                raise Invalid(
                    f"table {name!r} has both --{choices[name]} and --{how}",
                    expected="one of them",
                    help="--dry-run shows what each would do to the table",
                    reason="BAD_CHOICE",
                )
    return choices


# -- output ------------------------------------------------------------------------------------------------


def preview_document(target: Target, preview: RollbackPreview) -> dict[str, Any]:
    """Return the document for --json."""
    return {
        "pipeline": target.name,
        "to": preview.target.id,
        "undone": list(preview.undone),
        "undone_swaps": [{"id": id, "backfill": name} for id, name in preview.undone_swaps],
        "aborted": list(preview.aborted),
        "sources": sorted(preview.target.plan.sources),
        "tables": {change.table: _table(change) for change in preview.changes},
        "in_flight": [asdict(part) for part in preview.in_flight],
        "drops_in_flight": preview.drops_in_flight,
        "problems": list(preview.problems),
    }


def _table(change: TableChange) -> dict[str, Any]:
    to = change.way.target_version
    return {
        "method": change.method,
        "version": change.way.version,
        "restored_version": to.version if to is not None else None,
        "foreign_commits": list(change.way.foreign_commits),
        "rows_stay_because": change.way.rows_stay_reason,
        "written_directly": change.written_directly,
    }


def print_preview(target: Target, preview: RollbackPreview, out: Output) -> None:
    """Show what a rollback would do, and every reason why it is not possible."""
    to, decision = preview.target.id, preview.target.decision
    if decision is not None:
        at = f", completed at {clock(decision.created)} UTC"
    else:
        at = ""
    out.line(f"Rollback of {target.name} to checkpoint {to}{at}", "bold")
    out.line(f"  no longer count    checkpoint {_listed(preview.undone) or 'none'}")
    for id, name in preview.undone_swaps:
        out.line(f"  undone             backfill {name}, which entry {id} swapped in")
    if preview.aborted:
        out.line(f"  aborted            checkpoint {_listed(preview.aborted)}, which is open")
    out.line(f"  read again         {', '.join(sorted(preview.target.plan.sources))}, from where checkpoint {to} ended")
    for part in preview.in_flight:
        verb, then = ("dropped", "never read") if preview.drops_in_flight else ("in flight", "read by the next one")
        if part.rows is None:
            rows = "rows of unknown number"
        else:
            rows = f"{part.rows:,} rows"
        out.line(f"  {verb:18} {rows} of {part.stream}, sent to job {part.job} in checkpoint {part.checkpoint}: {then}")
    out.table(
        ["table", "now at version", "returns to", "other commits since", "how"],
        [
            [
                change.table,
                _now(change),
                _goal(change),
                len(change.way.foreign_commits) or "",
                change.method or "nothing was ever written",
            ]
            for change in preview.changes
        ],
        right=["now at version"],
    )
    for change in preview.changes:
        if change.way.rows_stay_reason and change.method == "keep":
            out.line(
                f"Rows stay in {change.table}: {change.way.rows_stay_reason}. Input that is read again is written to "
                "it again."
            )
    if preview.lacking:
        out.line(f"Published first, because they lack a checkpoint: {', '.join(preview.lacking)}.")
    if stays := [change.table for change in preview.changes if change.written_directly]:
        out.line(f"Rows that jobs wrote directly stay, and rows that are read again are added: {', '.join(stays)}.")
    out.line("Readers see each table change in one commit, one table after the other. No file is removed.", "dim")
    for problem in preview.problems:
        out.line(f"Not possible: {problem}", "red")


def dropped_text(preview: RollbackPreview) -> str:
    """Return how many rows of which checkpoints are dropped, as the subject of a sentence."""
    counted = sum(part.rows or 0 for part in preview.in_flight)
    if any(part.rows is None for part in preview.in_flight):
        at_least = "At least "
    else:
        at_least = ""
    ids = tuple(sorted({part.checkpoint for part in preview.in_flight}))
    return f"{at_least}{counted:,} rows that were sent in checkpoint {_listed(ids)} are"


def _now(change: TableChange) -> str:
    if change.way.version is None:
        return ""
    if change.way.target_version is not None:
        has_versions = change.way.target_version.is_delta
    else:
        has_versions = not change.way.rows_stay_reason
    if has_versions:
        return str(change.way.version)
    return f"checkpoint {change.way.version}"


def _goal(change: TableChange) -> str:
    if change.written_directly:
        return "stays: it was written to at least once"
    if change.method == "leave":
        return "stays, without its pending rows"
    if change.method is None or change.method == "keep" or change.way.rows_stay_reason:
        return "stays"
    if change.state is not None:
        return "the state then"
    if change.way.target_version is not None:
        return change.way.target_version.displayed_version
    return "empty: it is newer"


def report_rollback(target: Target, rolled_back: RolledBack, out: Output) -> int:
    """Report the result of a rollback; return the exit code."""
    stuck: dict[str, str] = {}
    if rolled_back.error is not None:
        stuck["?"] = rolled_back.error.what
    elif rolled_back.report is not None:
        stuck = {name: error.what for name, error in rolled_back.report.stuck.items()}
    tables = {}
    if rolled_back.report is not None:
        for (id, name), table in rolled_back.report.published.items():
            if id == rolled_back.id:
                tables[name] = table
    versions = {name: table.version for name, table in tables.items() if table.is_delta}
    document = preview_document(target, rolled_back.preview) | {"aborted": list(rolled_back.aborted)}
    out.document(document | {"rollback": rolled_back.id, "tables_at": versions, "not_yet": stuck})
    out.line(
        f"Rollback {rolled_back.id} is decided: the next checkpoint continues from {rolled_back.preview.target.id}.",
        "bold",
    )
    if rolled_back.aborted:
        out.line(f"  checkpoint {_listed(rolled_back.aborted)} was open, and is aborted")
    for name, table in tables.items():
        by = f", by version {table.version}" if table.is_delta else ""
        kept = _how(rolled_back.preview, name) == "keep"
        out.line(f"  {name} keeps its rows" if kept else f"  {name} is restored{by}")
    for name, why in stuck.items():
        out.line(f"Not restored yet{'' if name == '?' else f': {name}'}: {why}", "red")
    if stuck:
        out.line("The rollback counts nevertheless. The next run restores these first, and waits until it can.")
        return CANNOT
    out.line(f"Details:  {target.command('explain', rolled_back.id)}", "dim")
    return 0


def _how(preview: RollbackPreview, table: str) -> How | None:
    return next((change.method for change in preview.changes if change.table == table), None)


def _listed(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids[:20])) + (" …" if len(ids) > 20 else "")
