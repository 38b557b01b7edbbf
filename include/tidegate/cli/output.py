"""The output of a command: one JSON document for scripts, colour and tables on a terminal, plain text otherwise.

Names, paths and error texts are untrusted. They are never read as markup, and control characters in them are escaped
(`\\x1b`), so that they cannot colour, move or hide anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Output", "clean", "error_document"]


def clean(value: object) -> str:
    """Return a value as harmless text, with control, invisible and direction characters escaped."""
    if value is None:
        return ""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text.expandtabs(4))


class Output:
    """The output of one command. With `json`, only `document` writes to `out`; without, everything else does."""

    def __init__(self, out: IO[str], err: IO[str], *, json: bool = False) -> None:
        self.out = out
        self.err = err
        self.json = json
        self.terminal = not json and out.isatty() and os.environ.get("TERM") != "dumb"
        self._has_document = False
        self._console: Console | None = None

    # -- for scripts ---------------------------------------------------------------------------------

    def document(self, value: Mapping[str, Any]) -> None:
        """Write the command's JSON document; later ones are dropped. It is ASCII, so it cannot control a terminal."""
        if self.json and not self._has_document:
            self._has_document = True
            self.out.write(json.dumps(value, indent=1, default=str) + "\n")
            self.out.flush()

    # -- for people ----------------------------------------------------------------------------------

    def line(self, text: object = "", style: str = "") -> None:
        """Print one or more lines. `style` is Rich's, and shows on terminals only."""
        if self.json:
            return
        if self.terminal:
            from rich.text import Text

            self.console.print(Text(clean(text), style=style))
        else:
            print(clean(text), file=self.out, flush=True)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = (), title: str = ""
    ) -> None:
        """Print a table. `right`: the columns to align right."""
        if self.json:
            return
        columns = [clean(column) for column in columns]
        right = [clean(column) for column in right]
        texts = []
        for row in rows:
            texts.append([clean(value).replace("\n", " ") for value in row])
        if self.terminal:
            self._rich_table(columns, texts, frozenset(right), title)
        else:
            self._plain_table(columns, texts, frozenset(right), title)

    def error(self, error: TidegateError) -> None:
        """Report an error: what happened, what was expected, what to do. On the error stream, and in the document."""
        self.document({"error": error_document(error)})
        self.problem(str(error))
        if error.quoted and self.err.isatty():  # not for a log, which others read
            print(f"  Quoted: {clean(error.quoted)}", file=self.err, flush=True)

    def problem(self, text: str) -> None:
        """Print a text on the error stream, with the program's name before it."""
        print(f"tidegate: {clean(text)}", file=self.err, flush=True)

    @property
    def err_fd(self) -> int | None:
        """The error stream's file descriptor, for code that may not print, or None if it has none."""
        try:
            return self.err.fileno()
        except OSError:
            return None

    @property
    def console(self) -> Console:
        """Rich's console; used, and imported, only on terminals."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(file=self.out, markup=False, emoji=False, highlight=False)
        return self._console

    def _rich_table(self, columns: Sequence[str], rows: list[list[str]], right: frozenset[str], title: str) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, title=Text(clean(title)) if title else None, title_justify="left")
        for column in columns:
            table.add_column(Text(column), justify="right" if column in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(value, style=_STYLES.get(value, "")) for value in row))
        self.console.print(table)

    def _plain_table(self, columns: Sequence[str], rows: list[list[str]], right: frozenset[str], title: str) -> None:
        if title:
            print(clean(title), file=self.out)
        widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
        for row in [list(columns), *rows]:
            cells = zip(columns, row, widths, strict=True)
            padded = []
            for column, text, width in cells:
                if column in right:
                    padded.append(text.rjust(width))
                else:
                    padded.append(text.ljust(width))
            print("  ".join(padded).rstrip(), file=self.out)
        self.out.flush()


_STYLES = {
    "completed": "green",
    "ok": "green",
    "aborted": "red",
    "bad": "bold red",
    "cannot tell": "yellow",
    "note": "yellow",
    "open": "yellow",
    "held": "bold yellow",
    "completed, unpublished": "yellow",
}


def error_document(error: TidegateError) -> dict[str, str]:
    """Return an error as JSON for scripts: `kind` and `reason` are stable, the texts are not."""
    return {
        "kind": error.kind,
        "reason": error.reason,
        "message": error.what,
        "expected": error.expected,
        "help": error.help,
    }
