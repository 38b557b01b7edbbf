"""Writes docs/reference/{settings,reasons,metrics,cli}.md from the code: `.venv/bin/python tools/reference.py`.

The pages are committed, so that they can be read anywhere; tests/test_reference.py fails if one is not current.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from tidegate.cli.main import build_parser
from tidegate.config import KEYS
from tidegate.history.health import REASONS, STATES
from tidegate.history.metrics import METRICS

FOLDER = Path(__file__).resolve().parents[1] / "docs/reference"
WIDTH = "100"
"""Of help texts, wherever they are made."""


def pages() -> dict[str, str]:
    """Each page's name and text."""
    made = {"settings.md": settings(), "reasons.md": reasons(), "metrics.md": metrics(), "cli.md": commands()}
    return {name: "\n".join(lines) + "\n" for name, lines in made.items()}


def settings() -> Iterator[str]:
    yield from _head("Settings", "`tidegate.toml`, then `TIDEGATE_*` variables, then `Pipeline(…)`, then")
    yield "`-D key=value`; later wins. `tidegate config` shows the effective values and where each came from."
    for key in KEYS.values():
        default = "none" if key.default in (None, {}) else f"`{key.default}`"
        yield from ("", f"## {key.name}", "", key.description, "")
        yield from (f"- Accepts {key.expected}.", f"- Default: {default}.", f"- Variable: `{key.variable}`.")


def reasons() -> Iterator[str]:
    yield from _head("Reasons and states", "`tidegate explain PIPELINE` names the state, the cause and the remedy.")
    yield from _table("Why a checkpoint is aborted", "reason", {f"`{name}`": what for name, what in REASONS.items()})
    yield from _table("States of a pipeline", "state", STATES)


def metrics() -> Iterator[str]:
    yield from _head(
        "Metrics", "All are gauges with the prefix `tidegate.`; `tidegate metrics` prints them for Prometheus."
    )
    yield '"It" is the last completed checkpoint.'
    yield from _table("All metrics", "metric", {f"`{name}`": what for name, what in METRICS.items()})


def commands() -> Iterator[str]:
    yield from _head("Command line", "The help text of every command. Exit codes: 0 done, 1 no, 2 usage error,")
    yield "3 unavailable or damaged."
    yield from _helps(build_parser())


def _helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        yield from ("", f"## {parser.prog}", "", "```text", *map(str.rstrip, parser.format_help().splitlines()), "```")
    for action in nested:
        for below in action.choices.values():
            yield from _helps(below)


def _head(title: str, first: str) -> Iterator[str]:
    yield from (f"# {title}", "", "<!-- Made by tools/reference.py from the code: do not edit. -->", "", first)


def _table(title: str, column: str, rows: Mapping[str, str]) -> Iterator[str]:
    yield from ("", f"## {title}", "", f"| {column} | meaning |", "| --- | --- |")
    yield from (f"| {name} | {what} |" for name, what in rows.items())


def main() -> None:
    """Write all of them."""
    os.environ["COLUMNS"] = WIDTH
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
