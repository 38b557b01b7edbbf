"""`tidegate list`: the pipelines below the root, or one pipeline's checkpoints, newest first."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint.located import tables_now
from tidegate.checkpoint.suspension import STATE_AFTER, SuspensionState, suspended
from tidegate.cli.inspect.documents import (
    checkpoint_document,
    clock,
    find_examples,
    format_cell,
    input_text,
    rows_text,
)
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, open_target, pipeline_names, program
from tidegate.cli.times import moment
from tidegate.config import Settings, load_settings
from tidegate.errors import Invalid, reported_error
from tidegate.history.query import CheckpointHistory, HistoryFilter, view_of
from tidegate.history.row import state_name
from tidegate.history.view import CheckpointView
from tidegate.ledger.ledger import open_ledger
from tidegate.protocol.view import Entry
from tidegate.records.records import KINDS, STATES

__all__ = ["add_filters", "add_parser", "asks_for_past", "list_past", "run"]


PAGE = 200
"""The maximum length of a page."""


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "list",
        help="the pipelines, or one pipeline's checkpoints",
        description="List the pipelines, or one pipeline's checkpoints, newest first.",
        epilog="examples:\n  tidegate list\n  tidegate list orders --limit 50\n"
        "  tidegate list orders --before 9 --json\n"
        "  tidegate list orders --state aborted --since '7 days'\n"
        "  tidegate list orders --sort seconds --limit 5        # the slowest ones ever",
    )
    parser.add_argument("pipeline", nargs="?", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("--limit", type=_limit, default=20, metavar="N", help=f"at most N rows, up to {PAGE} (20)")
    parser.add_argument("--before", type=int, metavar="ID", help="only checkpoints below ID")
    add_filters(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the pipelines, or a pipeline's checkpoints."""
    if args.pipeline is None:
        return _pipelines(load_settings(args.settings), out)
    if not asks_for_past(args):
        return _checkpoints(open_target(args.pipeline, args.settings), args, out)
    if args.before is not None:
        raise Invalid(
            "--before cannot be combined with options of the history",
            expected="--skip N",
            help="leave it out",
            reason="USAGE",
        )
    return list_past(open_target(args.pipeline, args.settings), args, out)


def _limit(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= PAGE:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {PAGE}")
    return int(text)


def _pipelines(settings: Settings, out: Output) -> int:
    rows = [_pipeline(settings, name) for name in pipeline_names(settings)]
    out.document({"root": settings.root, "pipelines": rows})
    if not rows:
        out.line(f"No pipeline has been run in {settings.root} yet.")
        out.line(f"Start one:  {program()} run MODULE:pipeline --checkpoints 1", "dim")
        return 0
    out.table(
        ["pipeline", "last", "state", "planned (UTC)", "last completed"],
        [[p["name"], p["last_checkpoint"], p["state"], clock(p["planned"]), p["last_completed"]] for p in rows],
        right=["last", "last completed"],
        title=settings.root,
    )
    return 0


def _pipeline(settings: Settings, name: str) -> dict[str, Any]:
    """Return the row of a pipeline. If it cannot be read, the row has the error, so that the rest are still listed."""
    try:
        ledger = open_ledger(settings.root, name, settings.storage_options)
        view = ledger.view()
        last = view.get(view.last_id)
        completed = view.last_completed
        return {
            "name": name,
            "last_checkpoint": last.id if last else None,
            "state": _state(suspended(view, settings.tolerable_failed_checkpoints), last),
            "planned": last.plan.created if last else None,
            "last_completed": completed.id if completed else None,
        }
    except Exception as error:
        kind = reported_error(error, "").kind
        return {"name": name, "last_checkpoint": None, "state": kind, "planned": None, "last_completed": None}


def _state(suspension: SuspensionState | None, last: Entry | None) -> str:
    if suspension is not None:
        return STATE_AFTER[suspension.action]
    if last is not None:
        return state_name(last)
    return "no checkpoint yet"


def _checkpoints(target: Target, args: argparse.Namespace, out: Output) -> int:
    """Print the checkpoints with retained records, newest first."""
    ledger = target.ledger
    ids = [id for id in ledger.ids() if args.before is None or id < args.before]
    entries = []
    for id in reversed(ids[-args.limit :]):
        if (entry := ledger.entry(id)) is not None:
            entries.append(entry)
    views = [view_of(ledger, entry, sizes=False) for entry in entries]
    more = len(ids) > args.limit
    if out.json:
        _print_documents(target, views, entries, more, out)
        return 0
    if not views:
        out.line(f"Pipeline {target.name} has no checkpoints" + (f" below {args.before}." if args.before else " yet."))
        return 0
    with_interval = any(view.interval for view in views)
    interval_head = ["interval (UTC)"] if with_interval else []
    out.table(
        ["id", "state", *interval_head, "planned (UTC)", "seconds", "input", "rows"],
        [_row(view, with_interval) for view in views],
        right=["id", "seconds"],
    )
    out.line(f"More about one:  {target.command('explain', views[0].id)}", "dim")
    if more:
        out.line(f"Older ones:      {target.command('list', '--before', views[-1].id)}", "dim")
    elif views[-1].id > 1:
        out.line(f"All ever:        {target.command('list', '--all')}", "dim")
    return 0


def _print_documents(
    target: Target, views: list[CheckpointView], entries: list[Entry], more: bool, out: Output
) -> None:
    place, graph = target.settings.place(), target.sound_graph()
    documents = []
    for view, entry in zip(views, entries, strict=True):
        document = checkpoint_document(view, find_examples(target.ledger, entry))
        document["tables"] = tables_now(view.id, document["tables"], target.ledger, place, graph)
        documents.append(document)
    out.document({"pipeline": target.name, "root": target.settings.root, "checkpoints": documents, "has_more": more})


def _row(view: CheckpointView, with_interval: bool) -> list[object]:
    staged = view.details.staged_rows
    if staged and view.state != "aborted":
        outcome = rows_text(staged)
    else:
        outcome = view.cause
    interval = [view.interval or ""] if with_interval else []
    return [
        view.id,
        view.described_state,
        *interval,
        format_cell(view, "planned"),
        format_cell(view, "seconds"),
        input_text(view),
        outcome,
    ]


HEADS = {
    "id": "id",
    "state": "state",
    "planned": "planned (UTC)",
    "seconds": "seconds",
    "rows_out": "rows",
    "bytes_out": "written",
    "late": "late",
    "quarantined": "quarantined",
    "state_bytes": "state size",
    "lag_seconds": "lag",
    "reason": "why",
}
"""The columns of the table, with their titles."""
RIGHT = ("id", "seconds", "rows", "written", "late", "quarantined", "state size", "lag")


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the options that query the history."""
    group = parser.add_argument_group("the whole history, including checkpoints whose records are retired")
    group.add_argument("--all", action="store_true", help="all checkpoints ever, in pages")
    for name, choices in (("state", STATES), ("kind", KINDS)):
        text = f"only these; may be repeated: {', '.join(choices)}"
        group.add_argument(f"--{name}", action="append", choices=choices, metavar=name.upper(), help=text)
    group.add_argument("--match", metavar="TEXT", help="in the run, the reason, the details, or the number")
    group.add_argument("--since", type=moment, metavar="WHEN", help="planned since then: a date, or how long ago")
    group.add_argument("--until", type=moment, metavar="WHEN", help="planned before then")
    group.add_argument("--sort", metavar="MEASURE", help="by seconds, rows_out, state_bytes … (id)")
    group.add_argument("--ascending", action="store_true", help="the least first")
    group.add_argument("--skip", type=_skip, default=0, metavar="N", help="leave out the first N")


def _skip(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def asks_for_past(args: argparse.Namespace) -> bool:
    """Return true if an option needs the history."""
    names = ("all", "state", "kind", "match", "since", "until", "sort", "ascending", "skip")
    return any(getattr(args, name) for name in names)


def list_past(target: Target, args: argparse.Namespace, out: Output) -> int:
    """Print a page of the history."""
    history = CheckpointHistory(target.ledger, target.settings.storage_options)
    chosen = HistoryFilter(
        states=args.state or (),
        kinds=args.kind or (),
        text=args.match or "",
        since=args.since,
        until=args.until,
        sort=args.sort or "id",
        descending=not args.ascending,
        offset=args.skip,
        limit=args.limit,
    )
    page = history.page(chosen)
    end = args.skip + len(page.rows)
    more = page.total > end
    out.document(
        {
            "pipeline": target.name,
            "root": target.settings.root,
            "checkpoints": [row.document() for row in page.rows],
            "total": page.total,
            "has_more": more,
            "history": history.problem or "ok",
        }
    )
    if history.problem:
        out.line(f"The history is left out: {history.problem}", "yellow")
    if not page.rows:
        out.line(f"No checkpoint of pipeline {target.name} matches, or the page is past the end.")
        return 0
    if chosen.sort in HEADS:
        columns = HEADS
    else:
        columns = {**HEADS, chosen.sort: chosen.sort}
    out.table(
        list(columns.values()),
        [[format_cell(row, name) for name in columns] for row in page.rows],
        right=RIGHT,
    )
    out.line(f"{args.skip + 1:,} to {end:,} of {page.total:,}{f'; for more: --skip {end}' if more else ''}", "dim")
    return 0
