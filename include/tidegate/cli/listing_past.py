"""Pages of a pipeline's whole history, for `tidegate list` with a filter, another order, or --all."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.documents import clock, size_text
from tidegate.cli.output import Output
from tidegate.cli.targets import Target
from tidegate.cli.when import moment
from tidegate.model.states import KINDS, STATES

__all__ = ["add_filters", "asks_for_past", "list_past"]

SHOWN = {
    "id": "id",
    "state": "state",
    "planned": "planned (UTC)",
    "seconds": "seconds",
    "rows_out": "rows",
    "bytes_out": "written",
    "late": "late",
    "quarantined": "aside",
    "state_bytes": "state size",
    "lag_seconds": "lag",
    "reason": "why",
}
"""The columns of the table, and what they are called there."""
RIGHT = ("id", "seconds", "rows", "written", "late", "aside", "state size", "lag")


def add_filters(parser: argparse.ArgumentParser) -> None:
    """The options that ask for the history."""
    group = parser.add_argument_group("of the whole history, also of checkpoints whose records are retired")
    group.add_argument("--all", action="store_true", help="all that ever were, in pages")
    for name, choices in (("state", STATES), ("kind", KINDS)):
        text = f"only these, may be given again: {', '.join(choices)}"
        group.add_argument(f"--{name}", action="append", choices=choices, metavar=name.upper(), help=text)
    group.add_argument("--match", metavar="TEXT", help="in the run, the reason, what was said, or the number")
    group.add_argument("--since", type=moment, metavar="WHEN", help="planned from then on: a date, or how long ago")
    group.add_argument("--until", type=moment, metavar="WHEN", help="planned before then")
    group.add_argument("--sort", metavar="MEASURE", help="by seconds, rows_out, state_bytes … (id)")
    group.add_argument("--ascending", action="store_true", help="the least first")
    group.add_argument("--skip", type=_skip, default=0, metavar="N", help="leave out the first N")


def _skip(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def asks_for_past(args: argparse.Namespace) -> bool:
    """Whether what the ledger still has is not enough."""
    names = ("all", "state", "kind", "match", "since", "until", "sort", "ascending", "skip")
    return any(getattr(args, name) for name in names)


def list_past(target: Target, args: argparse.Namespace, out: Output) -> int:
    """A page of it."""
    from tidegate.checkpoint.past import Past, Wanted

    past = Past(target.ledger, dict(target.settings.storage_options))
    wanted = Wanted(
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
    page = past.page(wanted)
    upto = args.skip + len(page.rows)
    found = {"pipeline": target.name, "root": target.settings.root, "checkpoints": page.rows, "total": page.total}
    out.document(found | {"more": page.total > upto, "history": past.problem or "ok"})
    if past.problem:
        out.line(f"The history is left out: {past.problem}", "yellow")
    if not page.rows:
        out.line(f"No checkpoint of pipeline {target.name} is like that, or none is left to show.")
        return 0
    extra = [wanted.sort] if wanted.sort not in SHOWN else []
    rows = [[*_cells(row), *(row[name] for name in extra)] for row in page.rows]
    out.table([*SHOWN.values(), *extra], rows, right=RIGHT)
    goes_on = f"; --skip {upto} goes on" if page.total > upto else ""
    out.line(f"{args.skip + 1:,} to {upto:,} of {page.total:,}{goes_on}", "dim")
    return 0


def _cells(row: dict[str, Any]) -> list[object]:
    rows, late, aside = ("" if row[name] is None else f"{row[name]:,}" for name in ("rows_out", "late", "quarantined"))
    written, size = ("" if row[name] is None else size_text(row[name]) for name in ("bytes_out", "state_bytes"))
    seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
    lag = "" if row["lag_seconds"] is None else f"{row['lag_seconds']:,.0f} s"
    why = row["reason"] or (f"by {row['by']}" if row["by"] else "")
    return [row["id"], row["state"], clock(row["planned"]), seconds, rows, written, late, aside, size, lag, why]
