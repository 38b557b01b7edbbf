"""Progress of `tidegate run`: a live line on a terminal, otherwise a line per event, and nothing with --json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.cli.inspect.documents import rows_text
from tidegate.cli.output import Output, clean
from tidegate.coordinator import AlreadyCovered, Outcome
from tidegate.errors import TidegateError
from tidegate.execution.loop import Observer
from tidegate.records.interval import Interval
from tidegate.records.records import Ack, Plan

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

__all__ = ["LiveProgress", "ProgressPrinter", "progress_for"]


def progress_for(out: Output) -> ProgressPrinter:
    """Return the observer that suits the output."""
    if out.terminal:
        return LiveProgress(out)
    return ProgressPrinter(out)


class ProgressPrinter(Observer):
    """Prints one line per event, and collects the data for the closing document."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.checkpoints: list[dict[str, Any]] = []
        self.covered_intervals: list[dict[str, Any]] = []
        self.unpublished: dict[str, TidegateError] = {}
        """The tables to which the last attempt could not publish, with the reasons."""
        self._waiting = ""

    def __enter__(self) -> ProgressPrinter:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to clear."""

    def waiting(self, why: str) -> None:
        if self._waiting != "" or why.startswith("next checkpoint in"):
            return  # log each reason once, and not a requested pause
        self._waiting = why
        self.out.line(f"waiting: {why.splitlines()[0]}", "yellow")

    def resumed(self, failed: tuple[int, ...]) -> None:
        self.out.line(f"resuming: it was suspended because checkpoint {', '.join(map(str, failed))} failed", "yellow")

    def covered(self, covered: AlreadyCovered) -> None:
        self.covered_intervals.append({"interval": str(covered.interval), "checkpoint": covered.checkpoint})
        self.out.line(covered.why)

    def planned(self, plan: Plan) -> None:
        self._waiting = ""
        self.out.line(f"checkpoint {plan.id}: {_input(plan)}", "dim")

    def step(self, plan: Plan, what: str) -> None:
        """Do nothing: a log would get too many lines."""

    def retrying(self, plan: Plan, error: TidegateError, tries_left: int) -> None:
        times = "once" if tries_left == 1 else f"{tries_left} times"
        self.out.line(f"checkpoint {plan.id}: {error.what.splitlines()[0]}; retrying, at most {times}", "yellow")

    def decided(self, plan: Plan, outcome: Outcome, acks: list[Ack], seconds: float) -> None:
        rows: dict[str, int] = {}
        for ack in acks:
            rows |= ack.stats.rows
        self.checkpoints.append(
            {
                "id": outcome.id,
                "state": outcome.state,
                "reason": outcome.reason,
                "detail": outcome.detail,
                "seconds": round(seconds, 3),
                "sources": {name: part.summary for name, part in plan.sources.items()},
                "rows": rows,
            }
        )
        if outcome.state != "completed":
            why = ": ".join([outcome.reason, *outcome.detail.splitlines()[:1]])
            self.out.line(f"checkpoint {outcome.id} {outcome.state}: {why}", "bold red")
            return
        if sum(rows.values()) and seconds:
            rate = f", {sum(rows.values()) / seconds:,.0f} rows/s"
        else:
            rate = ""
        rows_summary = rows_text({name: count for name, count in rows.items() if count}) or "nothing new"
        self.out.line(f"checkpoint {outcome.id} completed in {seconds:.1f} s{rate}: {rows_summary}", "green")

    def stuck(self, table: str, error: TidegateError) -> None:
        self.out.line(f"table {table} is not published yet: {error.what.splitlines()[0]}", "yellow")

    def published(self, stuck: Mapping[str, TidegateError]) -> None:
        self.unpublished = dict(stuck)

    def stopping(self) -> None:
        """Report that the user asked to stop. Called from a signal handler, so it must not print."""


class LiveProgress(ProgressPrinter):
    """Prints the same, above a live line about the running checkpoint."""

    def __init__(self, out: Output) -> None:
        super().__init__(out)
        self._began = seams.monotonic()
        self._now = "starting"
        self._stopping = False
        self._live: Live | None = None

    def __enter__(self) -> LiveProgress:
        from rich.live import Live

        self._live = Live(self, console=self.out.console, refresh_per_second=8, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def waiting(self, why: str) -> None:
        self._now = why.splitlines()[0]
        self._began = seams.monotonic()

    def planned(self, plan: Plan) -> None:
        self._began = seams.monotonic()
        self._now = f"checkpoint {plan.id} · {_input(plan)} · getting Spark ready"

    def step(self, plan: Plan, what: str) -> None:
        self._now = f"checkpoint {plan.id} · {_input(plan)} · {what}"

    def stopping(self) -> None:
        self._stopping = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the live line. Called by Rich's own thread."""
        from rich.text import Text

        elapsed = seams.monotonic() - self._began
        frame = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"[int(elapsed * 8) % 10]
        line = Text(f"{frame} {clean(self._now)} · {elapsed:.1f} s", no_wrap=True, overflow="ellipsis")
        if self._stopping:
            line.append("  stopping after this checkpoint; Ctrl-C again aborts it", style="yellow")
        yield line


def _input(plan: Plan) -> str:
    if plan.interval:
        parts = [f"interval {Interval.of_record(plan.interval)}"]
    else:
        parts = []
    for name, part in plan.sources.items():
        parts.append(f"{name}: {part.summary or ('nothing new' if part.empty else 'a range')}")
    return "; ".join(parts)
