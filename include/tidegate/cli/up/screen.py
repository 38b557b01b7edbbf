"""The output of `tidegate up`: a live table of checkpoints on a terminal, otherwise a line for each."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.cli.inspect.documents import clock, rows_text
from tidegate.cli.output import Output, clean

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live
    from rich.table import Table

__all__ = ["LiveScreen", "Screen", "screen_for"]

_ROWS = 15
"""The number of checkpoints in the live table."""


def screen_for(out: Output) -> Screen:
    """Return the screen that suits the output."""
    return LiveScreen(out) if out.terminal else Screen(out)


class Screen:
    """Prints a line per event, and collects the data for the closing document."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.checkpoints: list[dict[str, Any]] = []

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to clear."""

    def starting(self, what: str) -> None:
        """Show that Airflow is being started. Called once, first."""
        self.out.line(what, "dim")

    def ready(self, url: str, user: str, password: str) -> None:
        """Show that Airflow is running, and its address."""
        self.out.line(f"Airflow is running: {url}  user {user}  {password}", "bold")

    def notify(self, text: str, style: str = "yellow") -> None:
        """Show a notice to the user."""
        self.out.line(text, style)

    def decided(self, pipeline: str, row: dict[str, Any]) -> None:
        """Show a checkpoint that is completed and published, or aborted. row: as in `tidegate list --json`."""
        self.checkpoints.append({"pipeline": pipeline} | row)
        self.out.line(*_checkpoint_line(pipeline, row))

    def now(self, text: str) -> None:
        """Show the current activity."""


class LiveScreen(Screen):
    """A live table, and below it one line with the current activity."""

    def __init__(self, out: Output) -> None:
        super().__init__(out)
        self._began = seams.monotonic()
        self._now = "starting"
        self._head: list[tuple[str, str]] = []
        self._rows: deque[list[str]] = deque(maxlen=_ROWS)
        self._live: Live | None = None

    def __enter__(self) -> LiveScreen:
        from rich.live import Live

        self._live = Live(self, console=self.out.console, refresh_per_second=4)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._now = ""
            self._live.stop()
            self._live = None

    def starting(self, what: str) -> None:
        self.now(what)

    def ready(self, url: str, user: str, password: str) -> None:
        self._head = [("Airflow", url), ("user", user), ("password", password)]

    def decided(self, pipeline: str, row: dict[str, Any]) -> None:
        self.checkpoints.append({"pipeline": pipeline} | row)
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
        sources = "; ".join(f"{name}: {input or 'nothing new'}" for name, input in row["sources"].items())
        cells = [pipeline, row["id"], row["state"], clock(row["planned"]), seconds, sources, _result_text(row)]
        self._rows.append([clean(cell).replace("\n", " ") for cell in cells])

    def now(self, text: str) -> None:
        if text != self._now:
            self._began = seams.monotonic()
            self._now = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the screen. Called by Rich's own thread."""
        from rich.text import Text

        for name, value in self._head:
            yield Text(f"{name:<9} {clean(value)}", style="bold")
        if self._rows:
            yield self._table()
        elif self._head:
            yield Text("\nNo checkpoint yet.", style="dim")
        if self._now:
            elapsed = seams.monotonic() - self._began
            frame = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"[int(elapsed * 8) % 10]
            yield Text(f"{frame} {clean(self._now)} · {elapsed:.0f} s", no_wrap=True, overflow="ellipsis")
            yield Text("  Ctrl-C stops", style="dim")

    def _table(self) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD)
        for column in ("pipeline", "id", "state", "planned (UTC)", "seconds", "input", "rows"):
            table.add_column(column, justify="right" if column in ("id", "seconds") else "left", overflow="fold")
        styles = {"completed": "green", "aborted": "red"}
        for row in list(self._rows):
            table.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in row))
        return table


def _checkpoint_line(pipeline: str, row: dict[str, Any]) -> tuple[str, str]:
    """Return a checkpoint as one line, and the line's style."""
    duration = "" if row["seconds"] is None else f" in {row['seconds']:.1f} s"
    style = "green" if row["state"].startswith("completed") else "bold red"
    return f"{pipeline}: checkpoint {row['id']} {row['state']}{duration}: {_result_text(row)}", style


def _result_text(row: dict[str, Any]) -> str:
    if row["state"] == "aborted":
        return ": ".join([row["reason"], *str(row["detail"]).splitlines()[:1]])
    return rows_text({name: count for name, count in row["rows"].items() if count}) or "nothing new"
