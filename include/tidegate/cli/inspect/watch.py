"""`tidegate watch`: a running pipeline: its health, what is in flight, and its last checkpoints.

Each observation is a frame. On a terminal, frames replace each other; otherwise a frame is printed when something in it
has changed. It only reads, and does not need the pipeline's code.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.cli.inspect.documents import clock, format_cell, rows_text
from tidegate.cli.inspect.health import health_document
from tidegate.cli.output import Output, clean
from tidegate.cli.targets import Target, open_target
from tidegate.config.keys import seconds_in
from tidegate.errors import Unavailable
from tidegate.execution.runs import abandoned_reason
from tidegate.history.details import JobDetails, seconds_between
from tidegate.history.health import condition, observe
from tidegate.history.promises import PromiseStatus
from tidegate.history.query import CheckpointHistory, HistoryFilter, view_of
from tidegate.history.selection import REPLACED
from tidegate.history.view import CheckpointView, ListedCheckpoint
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.verdicts import unanswered
from tidegate.protocol.view import Entry

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Frame", "add_parser", "frame", "lines", "run"]

Line = tuple[str, str]
"""A text and Rich's style for it."""

BARS = "▁▂▃▄▅▆▇█"
TREND = 40
"""The number of durations to draw."""


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "watch",
        help="a running pipeline: what is in flight, and its last checkpoints",
        description="Watch a pipeline: its state with cause and remedy, the number of checkpoints, those in flight "
        "with their acks and the gates that hold them, the last checkpoints and the trend of their durations. "
        "On a terminal it is redrawn until Ctrl-C; otherwise it is printed again whenever something has changed.",
        epilog="examples:\n  tidegate watch orders\n  tidegate watch orders --every 5s --last 20\n"
        "  tidegate watch orders --once --json",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("--once", action="store_true", help="print one frame and end, as --json does")
    parser.add_argument("--every", type=_every, default=1.0, metavar="TIME", help="the time between frames (1 s)")
    parser.add_argument("--last", type=_last, default=10, metavar="K", help="the last K checkpoints (10)")


def _every(text: str) -> float:
    try:
        seconds = seconds_in(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time from 100 ms to 1 h, such as 2 or '5 s'")
    return seconds


def _last(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:6]) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 100")
    return int(text)


def run(args: argparse.Namespace, out: Output) -> int:
    """Show the pipeline once, or until Ctrl-C."""
    target = open_target(args.pipeline, args.settings)
    if args.once or out.json:
        shown = frame(target, args.last)
        out.document(shown.document(target.name))
        for text, style in lines(shown):
            out.line(text, style)
        return 0
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        draw = _on_terminal if out.terminal else _as_log
        draw(target, args, out)
    return 0


def _on_terminal(target: Target, args: argparse.Namespace, out: Output) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def picture() -> RenderableType:
        drawn = _lines(target, args.last)
        drawn.append((f"{clock(seams.now().isoformat())} UTC, every {args.every:g} s; Ctrl-C ends it", "dim"))
        # Cause and remedy wrap, so that they can be read completely; tables are cut at the terminal's width.
        return Group(
            *(
                Text(clean(text), style=style, no_wrap=number > 2, overflow="ellipsis")
                for number, (text, style) in enumerate(drawn)
            )
        )

    with Live(picture(), console=out.console, auto_refresh=False, screen=False) as live:
        while True:
            seams.sleep(args.every)
            live.update(picture(), refresh=True)


def _as_log(target: Target, args: argparse.Namespace, out: Output) -> None:
    """Print a frame for each change, except changes of ages."""
    before: list[Line] | None = None
    while True:
        now = _lines(target, args.last, ages=False)
        if now != before:
            for text, _ in [*([] if before is None else [("", "")]), *now]:
                out.line(text)
            before = now
        seams.sleep(args.every)


def _lines(target: Target, last: int, *, ages: bool = True) -> list[Line]:
    """Return a frame as text. If storage does not answer, return the error, and try again later."""
    try:
        return list(lines(frame(target, last), ages=ages))
    except Unavailable as error:
        return [(error.what, "bold red"), ("Trying again.", "")]


# -- a frame -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """One observation of a pipeline."""

    health: dict[str, Any]
    """As `explain` reports it."""
    promises: tuple[PromiseStatus, ...]
    counts: dict[str, int]
    in_flight: list[dict[str, Any]]
    latest: list[ListedCheckpoint]
    durations: list[float]
    """The durations of the last completed checkpoints, oldest first."""
    history: str
    """ok, or why the history is missing."""

    def document(self, pipeline: str) -> dict[str, Any]:
        """Return the document for scripts."""
        return {
            "pipeline": pipeline,
            **self.health,
            "promises": [promise.document() for promise in self.promises],
            "counts": self.counts,
            "in_flight": self.in_flight,
            "latest": [row.document() for row in self.latest],
            "durations": self.durations,
            "history": self.history,
        }


def frame(target: Target, last: int) -> Frame:
    """Observe the pipeline once."""
    ledger = target.ledger
    history = CheckpointHistory(ledger, target.settings.storage_options)
    seen = observe(ledger, target.settings, abandoned_reason)
    trend = history.points(["seconds", "outcome"], limit=TREND)
    pairs = zip(trend["seconds"], trend["outcome"], strict=True)
    return Frame(
        health=health_document(condition(seen, target.command)),
        promises=seen.promises,
        counts=history.counts(),
        in_flight=[_in_flight(ledger, entry, entry.id in seen.abandoned) for entry in seen.view.still_open()],
        latest=history.page(HistoryFilter(limit=last)).rows,
        durations=[seconds for seconds, outcome in pairs if outcome == "completed"],
        history=history.problem or "ok",
    )


def _in_flight(ledger: Ledger, entry: Entry, orphaned: bool) -> dict[str, Any]:
    """Return an open checkpoint, with the ack of each job, or null."""
    view = view_of(ledger, entry, sizes=False)
    jobs = view.details.jobs
    return {
        "id": view.id,
        "kind": view.kind,
        "run": view.run,
        "planned": view.planned,
        "age_s": round(ledger.age(entry.plan), 1),
        "timeout_s": view.details.timeout_s,
        "orphaned": orphaned,
        "sources": {name: source.text for name, source in view.details.sources.items()},
        "jobs": {name: _job(view, jobs[name]) if name in jobs else None for name in entry.plan.acks},
        "overtaken": sorted(entry.overtaken),
        "held_by": [holding.gate for holding in unanswered(entry)] if entry.open else [],
    }


def _job(view: CheckpointView, job: JobDetails) -> dict[str, Any]:
    return {
        "acked": job.acked,
        "after_s": seconds_between(view.planned, job.acked),
        "delay_s": job.delay,
        "seconds": round(job.busy_seconds, 3),
        "rows": job.rows,
        "bytes": sum(job.bytes.values()),
    }


# -- text ----------------------------------------------------------------------------------------------


def lines(frame: Frame, *, ages: bool = True) -> Iterator[Line]:
    """Yield the frame as text. Without ages, it only changes when the pipeline does."""
    health = frame.health
    yield health["summary"], "bold red" if health["remedy"] else "bold"
    if health["cause"]:
        yield f"  Cause:  {health['cause']}", ""
    for number, step in enumerate(health["remedy"]):
        yield f"  {'Do:' if number == 0 else '':<6}  {step}", "yellow"
    for promise in frame.promises:
        yield (
            f"  Promise {'kept' if promise.is_kept else 'broken'}: {promise.text}",
            "" if promise.is_kept else "bold red",
        )
    names = ("triggered", "completed", "failed", "in_progress", "held", "rollbacks")
    yield "  ".join(f"{name.replace('_', ' ')} {frame.counts[name]:,}" for name in names), ""
    if frame.durations:
        yield f"durations  {_bars(frame.durations)}  {frame.durations[-1]:.1f} s", "cyan"
    for checkpoint in frame.in_flight:
        yield from _flight_lines(checkpoint, ages)
    yield "", ""
    yield from _latest_lines(frame.latest)
    if frame.history != "ok":
        yield f"The history is missing: {frame.history}", "yellow"


def _bars(durations: list[float]) -> str:
    longest = max(durations) or 1.0
    return "".join(BARS[min(int(seconds / longest * len(BARS)), len(BARS) - 1)] for seconds in durations)


def _flight_lines(checkpoint: dict[str, Any], ages: bool) -> Iterator[Line]:
    if ages:
        age = f", {checkpoint['age_s']:.0f} of {checkpoint['timeout_s']:g} s"
    else:
        age = ""
    planned = f"planned {clock(checkpoint['planned'])} UTC"
    yield "", ""
    yield f"in flight: checkpoint {checkpoint['id']} ({checkpoint['kind']}){age}, {planned}", "bold"
    for name, summary in checkpoint["sources"].items():
        yield f"  source {name}: {summary or 'a range'}", ""
    for job, ack in checkpoint["jobs"].items():
        if ack is not None:
            if ack["delay_s"] is not None:
                begun = f", begun after {ack['delay_s']:.1f} s"
            else:
                begun = ""
            staged = rows_text(ack["rows"]) or "nothing"
            yield f"  ✓ job {job}: acked after {ack['after_s'] or 0:.1f} s{begun}: {staged}", "green"
        elif job in checkpoint["overtaken"]:
            yield f"  → job {job}: busy with an earlier one; this checkpoint overtakes it", "cyan"
        else:
            dead = ", and its process is gone" if checkpoint["orphaned"] else ""
            yield f"  · job {job}: no ack yet{dead}", "yellow"
    if checkpoint["held_by"]:
        yield f"  ! held by gate {', '.join(checkpoint['held_by'])}", "bold yellow"


COLUMNS = {
    "id": "id",
    "state": "state",
    "planned": "planned (UTC)",
    "seconds": "seconds",
    "rows_out": "rows",
    "bytes_out": "written",
    "late": "late",
    "quarantined": "quarantined",
}


def _latest_lines(rows: list[ListedCheckpoint]) -> Iterator[Line]:
    """Yield a table of the last checkpoints. Its last column, without a title, says why or by whom."""
    cells = [(*COLUMNS.values(), "")]
    for row in rows:
        cells.append((*(format_cell(row, name) for name in COLUMNS), clean(row.reason or row.by)[:60]))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, line in enumerate(cells):
        texts = []
        for place, (text, width) in enumerate(zip(line, widths, strict=True)):
            is_number = 3 <= place <= 7
            texts.append(text.rjust(width) if is_number else text.ljust(width))
        yield "  ".join(texts).rstrip(), "dim" if number == 0 else _style(line[1])


_STYLES = {"aborted": "red", "open": "yellow", "held": "bold yellow", "rolled back": "dim"}


def _style(state: str) -> str:
    if state.startswith(REPLACED):
        return "dim"
    return _STYLES.get(state, "")
