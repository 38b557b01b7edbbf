"""`tidegate watch`: a pipeline as it goes on: how it is, what is in flight, what the last checkpoints were like.

One look is a frame, a plain document; on a terminal the frames are drawn over each other, elsewhere a frame is printed
when something in it has changed. Reads only, and needs no code of the pipeline.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.cli.inspect.documents import clock, rows_text, seconds_between, size_text
from tidegate.cli.inspect.health_text import standing_document
from tidegate.cli.output import Output, clean
from tidegate.cli.targets import Target, find
from tidegate.config.keys import seconds_in
from tidegate.errors import Unavailable
from tidegate.execution.runs import abandoned_reason
from tidegate.history.health import condition, look
from tidegate.history.query import CheckpointHistory, HistoryFilter
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.verdicts import unanswered
from tidegate.protocol.view import Entry

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["add_parser", "frame", "lines", "run"]

Line = tuple[str, str]
"""A text and Rich's style for it."""

BARS = "▁▂▃▄▅▆▇█"
TREND = 40
"""So many durations are drawn."""


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "watch",
        help="a pipeline as it goes on: what is in flight, what the last checkpoints were like",
        description="Watch a pipeline: its state with cause and remedy, how many checkpoints there were, what is in "
        "flight with each job's ack as it comes, which gates hold it, the last checkpoints and how their durations go. "
        "On a terminal it is redrawn until Ctrl-C; elsewhere it is printed again whenever something has changed.",
        epilog="examples:\n  tidegate watch orders\n  tidegate watch orders --every 5s --last 20\n"
        "  tidegate watch orders --once --json",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("--once", action="store_true", help="look once and end; --json does, too")
    parser.add_argument("--every", type=_every, default=1.0, metavar="TIME", help="how often to look (1 s)")
    parser.add_argument("--last", type=_last, default=10, metavar="K", help="so many of the last checkpoints (10)")


def _every(text: str) -> float:
    try:
        seconds = seconds_in(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no time from 100 ms to 1 h, such as 2 or '5 s'")
    return seconds


def _last(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:6]) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 100")
    return int(text)


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    if args.once or out.json:
        found = frame(target, args.last)
        out.document(found)
        for text, style in lines(found):
            out.line(text, style)
        return 0
    with contextlib.suppress(KeyboardInterrupt):  # that is how one ends to watch
        draw = _on_terminal if out.terminal else _as_log
        draw(target, args, out)
    return 0


def _on_terminal(target: Target, args: argparse.Namespace, out: Output) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def picture() -> RenderableType:
        found = _lines(target, args.last)
        found.append((f"{clock(seams.now().isoformat())} UTC, every {args.every:g} s; Ctrl-C ends it", "dim"))
        # Cause and remedy are to be read whole; tables are cut where the terminal ends.
        return Group(
            *(Text(clean(text), style=s, no_wrap=n > 2, overflow="ellipsis") for n, (text, s) in enumerate(found))
        )

    with Live(picture(), console=out.console, auto_refresh=False, screen=False) as live:
        while True:
            seams.sleep(args.every)
            live.update(picture(), refresh=True)


def _as_log(target: Target, args: argparse.Namespace, out: Output) -> None:
    """A frame for each change. Ages are no change."""
    before: list[Line] | None = None
    while True:
        now = _lines(target, args.last, ages=False)
        if now != before:
            for text, _ in [*([] if before is None else [("", "")]), *now]:
                out.line(text)
            before = now
        seams.sleep(args.every)


def _lines(target: Target, last: int, *, ages: bool = True) -> list[Line]:
    """A frame as text. A storage that does not answer is waited for."""
    try:
        return list(lines(frame(target, last), ages=ages))
    except Unavailable as error:
        return [(error.what, "bold red"), ("It is looked at again.", "")]


# -- a frame -------------------------------------------------------------------------------------------


def frame(target: Target, last: int) -> dict[str, Any]:
    """One look."""
    ledger = target.ledger
    past = CheckpointHistory(ledger, dict(target.settings.storage_options))
    seen = look(ledger, target.settings, abandoned_reason)
    trend = past.points(["seconds", "outcome"], limit=TREND)
    return {
        "pipeline": target.name,
        **standing_document(condition(seen, target.command)),
        "counts": past.counts(),
        "in_flight": [_in_flight(ledger, entry, entry.id in seen.gone) for entry in seen.view.still_open()],
        "latest": past.page(HistoryFilter(limit=last)).rows,
        "durations": [s for s, how in zip(trend["seconds"], trend["outcome"], strict=True) if how == "completed"],
        "history": past.problem or "ok",
    }


def _in_flight(ledger: Ledger, entry: Entry, orphaned: bool) -> dict[str, Any]:
    plan = entry.plan
    return {
        "id": entry.id,
        "kind": plan.kind,
        "run": plan.run,
        "planned": plan.created,
        "age_s": round(ledger.age(plan), 1),
        "timeout_s": plan.timeout_s,
        "orphaned": orphaned,
        "sources": {name: part.summary or ("nothing new" if part.empty else "") for name, part in plan.sources.items()},
        "jobs": {job: _job(entry, job) for job in plan.acks},
        "overtaken": sorted(entry.overtaken),
        "held": [each.gate for each in unanswered(entry)] if entry.open else [],
    }


def _job(entry: Entry, job: str) -> dict[str, Any] | None:
    """What the job has acknowledged; None: nothing yet."""
    acked = entry.acks.get(job)
    if acked is None:
        return None
    stats = acked.ack.stats
    return {
        "acked": acked.ack.created,
        "after_s": seconds_between(entry.plan.created, acked.ack.created),
        "delay_s": seconds_between(entry.plan.created, stats.started) if stats.started else None,
        "seconds": round(sum(stats.seconds.values()), 3),
        "rows": dict(stats.rows),
        "bytes": sum(stats.bytes.values()),
    }


# -- how it looks --------------------------------------------------------------------------------------


def lines(found: dict[str, Any], *, ages: bool = True) -> Iterator[Line]:
    """The frame as text. Without ages, only what a change of the pipeline changes."""
    yield found["said"], "bold red" if found["remedy"] else "bold"
    if found["cause"]:
        yield f"  Cause:  {found['cause']}", ""
    for number, step in enumerate(found["remedy"]):
        yield f"  {'Do:' if number == 0 else '':<6}  {step}", "yellow"
    counts = found["counts"]
    names = ("triggered", "completed", "failed", "in_progress", "held", "restored")
    yield "  ".join(f"{name.replace('_', ' ')} {counts[name]:,}" for name in names), ""
    if found["durations"]:
        yield f"durations  {_bars(found['durations'])}  {found['durations'][-1]:.1f} s", "cyan"
    for each in found["in_flight"]:
        yield from _flight_lines(each, ages)
    yield "", ""
    yield from _latest_lines(found["latest"])
    if found["history"] != "ok":
        yield f"The history is left out: {found['history']}", "yellow"


def _bars(durations: list[float]) -> str:
    most = max(durations) or 1.0
    return "".join(BARS[min(int(each / most * len(BARS)), len(BARS) - 1)] for each in durations)


def _flight_lines(each: dict[str, Any], ages: bool) -> Iterator[Line]:
    age = f", {each['age_s']:.0f} of {each['timeout_s']:g} s" if ages else ""
    yield "", ""
    yield f"in flight: checkpoint {each['id']} ({each['kind']}){age}, planned {clock(each['planned'])} UTC", "bold"
    for name, summary in each["sources"].items():
        yield f"  source {name}: {summary or 'a range'}", ""
    for job, acked in each["jobs"].items():
        if acked is None and job in each["overtaken"]:
            yield f"  → job {job}: busy with an earlier one; this checkpoint goes past it", "cyan"
            continue
        if acked is None:
            yield f"  · job {job}: no ack yet{', and its process is gone' if each['orphaned'] else ''}", "yellow"
            continue
        begun = f", begun after {acked['delay_s']:.1f} s" if acked["delay_s"] is not None else ""
        staged = rows_text(acked["rows"]) or "nothing"
        yield f"  ✓ job {job}: acked after {acked['after_s'] or 0:.1f} s{begun}: {staged}", "green"
    if each["held"]:
        yield f"  ! held by gate {', '.join(each['held'])}", "bold yellow"


def _latest_lines(rows: list[dict[str, Any]]) -> Iterator[Line]:
    columns = ("id", "state", "planned (UTC)", "seconds", "rows", "written", "late", "aside", "")
    cells = [columns, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, line in enumerate(cells):
        sized = enumerate(zip(line, widths, strict=True))
        padded = (text.rjust(width) if 3 <= n <= 7 else text.ljust(width) for n, (text, width) in sized)
        yield "  ".join(padded).rstrip(), "dim" if number == 0 else _STYLES.get(line[1], "")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    counted = ("" if row[name] is None else f"{row[name]:,}" for name in ("late", "quarantined"))
    return (
        str(row["id"]),
        row["state"],
        clock(row["planned"]),
        "" if row["seconds"] is None else f"{row['seconds']:.1f}",
        "" if row["rows_out"] is None else f"{row['rows_out']:,}",
        "" if row["bytes_out"] is None else size_text(row["bytes_out"]),
        *counted,
        clean(row["reason"] or row["by"])[:60],
    )


_STYLES = {"aborted": "red", "open": "yellow", "held": "bold yellow", "rolled back": "dim"}
