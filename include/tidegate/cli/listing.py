"""`tidegate list`: the pipelines below the root, or one pipeline's checkpoints, newest first."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint.control import suspended
from tidegate.checkpoint.located import tables_now
from tidegate.cli.documents import ACTS, clock, rows_text, state_of, summary_of
from tidegate.cli.listing_past import add_filters, asks_for_past, list_past
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, find, pipeline_names, program
from tidegate.config import Settings, load_settings
from tidegate.errors import Invalid, TidegateError
from tidegate.ledger.ledger import open_ledger
from tidegate.model.view import Entry

__all__ = ["add_parser", "run"]

PAGE = 200
"""No page is longer."""


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "list",
        help="the pipelines, or one pipeline's checkpoints",
        description="List the pipelines, or one pipeline's checkpoints, newest first.",
        epilog="examples:\n  tidegate list\n  tidegate list orders --limit 50\n"
        "  tidegate list orders --before 9 --json\n"
        "  tidegate list orders --state aborted --since '7 days'\n"
        "  tidegate list orders --sort seconds --limit 5        # the slowest that ever were",
    )
    parser.add_argument("pipeline", nargs="?", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("--limit", type=_limit, default=20, metavar="N", help=f"at most N rows, up to {PAGE} (20)")
    parser.add_argument("--before", type=int, metavar="ID", help="only checkpoints below ID")
    add_filters(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    if args.pipeline is None:
        return _pipelines(load_settings(args.settings), out)
    if not asks_for_past(args):
        return _checkpoints(find(args.pipeline, args.settings), args, out)
    if args.before is not None:
        raise Invalid("--before goes with none of the others", expected="--skip N", help="leave it out", reason="USAGE")
    return list_past(find(args.pipeline, args.settings), args, out)


def _limit(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= PAGE:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {PAGE}")
    return int(text)


def _pipelines(settings: Settings, out: Output) -> int:
    found = [_pipeline(settings, name) for name in pipeline_names(settings)]
    out.document({"root": settings.root, "pipelines": found})
    if not found:
        out.line(f"No pipeline has been run in {settings.root} yet.")
        out.line(f"Start one:  {program()} run MODULE:pipeline --checkpoints 1", "dim")
        return 0
    out.table(
        ["pipeline", "last", "state", "planned (UTC)", "last completed"],
        [[p["name"], p["last"], p["state"], clock(p["planned"]), p["last_completed"]] for p in found],
        right=["last", "last completed"],
        title=settings.root,
    )
    return 0


def _pipeline(settings: Settings, name: str) -> dict[str, Any]:
    """One line about a pipeline. A damaged one does not keep the others from being listed."""
    ledger = open_ledger(settings.root, name, dict(settings.storage_options))
    try:
        view = ledger.view()
        last = view.get(view.last_id)
        completed = view.last_completed
        held = suspended(view, settings.tolerable_failed_checkpoints)
    except TidegateError as error:
        return {"name": name, "last": None, "state": error.kind, "planned": None, "last_completed": None}
    return {
        "name": name,
        "last": last.id if last else None,
        "state": ACTS[held.action] if held is not None else _state(last),
        "planned": last.plan.created if last else None,
        "last_completed": completed.id if completed else None,
    }


def _state(entry: Entry | None) -> str:
    if entry is None:
        return "no checkpoint yet"
    return state_of(entry, None).removesuffix(", unpublished")


def _checkpoints(target: Target, args: argparse.Namespace, out: Output) -> int:
    ledger = target.ledger
    ids = [id for id in ledger.ids() if args.before is None or id < args.before]
    page = [entry for id in reversed(ids[-args.limit :]) if (entry := ledger.entry(id)) is not None]
    rows = [summary_of(ledger, entry) for entry in page]
    place, graph = target.settings.place(), target.sound_graph()
    for row in rows if out.json else ():
        row["tables"] = tables_now(row["id"], row["tables"], ledger, place, graph)
    more = len(ids) > args.limit
    out.document({"pipeline": target.name, "root": target.settings.root, "checkpoints": rows, "more": more})
    if not rows:
        out.line(f"Pipeline {target.name} has no checkpoints" + (f" below {args.before}." if args.before else " yet."))
        return 0
    with_interval = any(row["interval"] for row in rows)
    out.table(
        ["id", "state", *(["interval (UTC)"] if with_interval else []), "planned (UTC)", "seconds", "input", "rows"],
        [
            [
                row["id"],
                row["state"],
                *([row["interval"] or ""] if with_interval else []),
                clock(row["planned"]),
                "" if row["seconds"] is None else f"{row['seconds']:.1f}",
                _input(row),
                rows_text(row["rows"]) if row["rows"] and row["state"] != "aborted" else row["reason"],
            ]
            for row in rows
        ],
        right=["id", "seconds"],
    )
    out.line(f"More about one:  {target.command('explain', rows[0]['id'])}", "dim")
    if more:
        out.line(f"Older ones:      {target.command('list', '--before', rows[-1]['id'])}", "dim")
    elif rows[-1]["id"] > 1:
        out.line(f"All that were:   {target.command('list', '--all')}", "dim")
    return 0


def _input(row: dict[str, Any]) -> str:
    return "; ".join(f"{name}: {summary}" if summary else name for name, summary in row["sources"].items())
