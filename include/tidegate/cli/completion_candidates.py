"""Shell completions: words from the parser, and names from the ledger. No Spark, and no user code.

Candidates that cannot be read are left out: TAB must not print an error.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.targets import override, pipeline_names
from tidegate.config import KEYS, Settings, load_settings
from tidegate.errors import TidegateError
from tidegate.history.row import state_name
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.lifecycle.savepoint import savepoints
from tidegate.records.records import Published
from tidegate.state.table import STATE

__all__ = ["complete"]

Word = tuple[str, str]
"""A word and its meaning."""

MAX_CHECKPOINTS = 50
"""The maximum number of checkpoints to offer, the newest ones."""
CHECKPOINT_OPTIONS = frozenset({"--to", "--from", "--checkpoint", "--before"})
_MODULES = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*(?:tidegate\.)?Pipeline\(", re.MULTILINE)


def complete(line: str) -> list[Word]:
    """Return the completions for the last word of the line, which may be partial."""
    try:
        words = shlex.split(line)[1:]
    except ValueError:  # an open quote: free text has no completions
        return []
    current = "" if line[-1:].isspace() or not words else words.pop()
    try:
        candidates = list(_candidates(words, current))
    except (TidegateError, OSError):
        return []
    return [(word, meaning) for word, meaning in candidates if word.startswith(current)]


def _candidates(words: Sequence[str], current: str) -> Iterator[Word]:
    from tidegate.cli.main import COMMANDS, build_parser

    command = next((word for word in words if not word.startswith("-")), None)
    if command is None:
        yield from COMMANDS.items()
        yield from (("--help", "the commands of tidegate"), ("--version", "the installed version"))
        return
    if command not in COMMANDS:
        return
    subparsers = _subparsers_of(build_parser([command]))
    place = _Place(subparsers.choices[command])
    for word in words[words.index(command) + 1 :]:
        place.process_word(word)
    yield from place.words(current)


def _subparsers_of(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


@dataclass
class _Place:
    """A position in a command line: the words so far, and what may follow."""

    parser: argparse.ArgumentParser
    arguments: dict[str, str] = field(default_factory=dict)
    """Positional words, by the argument that they fill."""
    settings: list[str] = field(default_factory=list)
    options: set[str] = field(default_factory=set)
    waiting: argparse.Action | None = None
    """An option that still needs its value."""
    position: int = 0

    def process_word(self, word: str) -> None:
        """Process one complete word."""
        if self.waiting is not None:
            if self.waiting.dest == "settings":
                self.settings.append(word)
            self.waiting = None
        elif word.startswith("-") and word != "-":
            self.options.add(word)
            action = self.parser._option_string_actions.get(word)
            self.waiting = action if action is not None and action.nargs != 0 else None
        elif (action := self._positional()) is not None:
            self.position += 1
            if isinstance(action, argparse._SubParsersAction):
                self.parser, self.position = action.choices.get(word, self.parser), 0
            else:
                self.arguments.setdefault(action.dest, word)

    def words(self, current: str) -> Iterator[Word]:
        """Yield everything that could come next."""
        if self.waiting is not None:
            yield from self._values(self.waiting)
            return
        if current.startswith("-"):
            yield from self._options()
            return
        action = self._positional()
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield (choice.dest, choice.help or "")
        elif action is not None:
            yield from self._values(action)
        if action is None or action.nargs in ("?", "*"):
            yield from self._options()

    def _positional(self) -> argparse.Action | None:
        positionals = [action for action in self.parser._actions if not action.option_strings]
        if self.position < len(positionals):
            return positionals[self.position]
        if positionals and positionals[-1].nargs == "*":
            return positionals[-1]
        return None

    def _options(self) -> Iterator[Word]:
        for action in self.parser._actions:
            names = [name for name in action.option_strings if name.startswith("--")] or action.option_strings
            repeatable = isinstance(action, argparse._AppendAction)
            if names and (repeatable or self.options.isdisjoint(action.option_strings)):
                yield names[-1], (action.help or "") if action.help is not argparse.SUPPRESS else ""

    def _values(self, action: argparse.Action) -> Iterator[Word]:
        if action.choices is not None:
            for choice in action.choices:
                yield (str(choice), "")
            return
        kind = str(action.metavar or "")
        if action.type is checkpoint_id or CHECKPOINT_OPTIONS.intersection(action.option_strings):
            kind = "CHECKPOINT"
        elif kind == "NAME" and action.dest != "name":
            return
        if (offer := _OFFERS.get(kind)) is not None:
            yield from offer(self)

    def load(self) -> Settings:
        """Load the settings, with the line's -D options."""
        return load_settings(dict(override(text) for text in self.settings if "=" in text))

    def ledger(self) -> Ledger | None:
        """Open the ledger of the pipeline that the line names, or return None."""
        name = self.arguments.get("pipeline", "")
        if ":" in name:
            name = _declared_name(name)
        settings = self.load()
        if name not in pipeline_names(settings):
            return None
        return open_ledger(settings.root, name, settings.storage_options)


# -- candidates ----------------------------------------------------------------------------------------


def _pipelines(place: _Place) -> Iterator[Word]:
    for name in pipeline_names(place.load()):
        yield name, "a pipeline that has been run"
    yield from _modules(place)


def _modules(place: _Place) -> Iterator[Word]:
    """Find pipelines declared below the working directory in the source text: TAB imports no module."""
    folder = Path.cwd()
    for path in sorted([*folder.glob("*.py"), *folder.glob("jobs/**/*.py"), *folder.glob("pipelines/**/*.py")]):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        for variable in _MODULES.findall(path.read_text(encoding="utf-8", errors="replace")):
            yield f"{module}:{variable}", "a pipeline's code"


def _declared_name(text: str) -> str:
    """Return the pipeline's name that MODULE:variable declares."""
    module, _, variable = text.partition(":")
    path = Path(*module.split(".")).with_suffix(".py")
    declared = re.search(
        rf"^{re.escape(variable)}\s*(?::[^=\n]+)?=\s*(?:tidegate\.)?Pipeline\(\s*[\"']([^\"']+)",
        path.read_text(encoding="utf-8", errors="replace"),
        re.MULTILINE,
    )
    return declared[1] if declared else ""


def _checkpoints(place: _Place) -> Iterator[Word]:
    ledger = place.ledger()
    if ledger is None:
        return
    for id in reversed(ledger.ids()[-MAX_CHECKPOINTS:]):
        entry = ledger.entry(id)
        yield str(id), state_name(entry) if entry is not None else ""
    yield from _savepoints(place)


def _savepoints(place: _Place) -> Iterator[Word]:
    ledger = place.ledger()
    for savepoint in savepoints(ledger) if ledger is not None else ():
        yield savepoint.name, f"savepoint of checkpoint {savepoint.entry}"


def _tables(place: _Place, *, states: bool) -> Iterator[Word]:
    """Yield the sinks, or the operators with state, of the last published checkpoint."""
    published = _published(place.ledger())
    for name in published.tables if published is not None else ():
        if name.startswith(STATE) == states:
            yield name.removeprefix(STATE).partition(".")[0] if states else name, ""


def _published(ledger: Ledger | None) -> Published | None:
    if ledger is None:
        return None
    newest_first = (ledger.published(id) for id in reversed(ledger.ids()[-MAX_CHECKPOINTS:]))
    return next((published for published in newest_first if published is not None), None)


def _gates(place: _Place) -> Iterator[Word]:
    ledger = place.ledger()
    for name in ledger.store.names("quarantine") if ledger is not None else ():
        yield name, "a gate with a quarantine"


def _suites(place: _Place) -> Iterator[Word]:
    for path in sorted(Path.cwd().glob("include/expectations/*.yaml")):
        yield path.stem, "a suite"


def _topics(place: _Place) -> Iterator[Word]:
    from tidegate.cli.help import TOPICS
    from tidegate.cli.main import COMMANDS

    for name in TOPICS:
        yield (name, "a topic")
    yield from COMMANDS.items()


def _keys(place: _Place) -> Iterator[Word]:
    for key in KEYS.values():
        yield f"{key.name}=", key.expected


def _measures(place: _Place) -> Iterator[Word]:
    from tidegate.history.query import SORTS

    for name in SORTS:
        yield (name, "")


_OFFERS: dict[str, Callable[[_Place], Iterator[Word]]] = {
    "PIPELINE": _pipelines,
    "MODULE:pipeline": _modules,
    "MODULE:PIPELINE": _modules,
    "CHECKPOINT": _checkpoints,
    "ID": _checkpoints,
    "NAME": _savepoints,
    "SINK": lambda place: _tables(place, states=False),
    "OPERATOR": lambda place: iter(dict.fromkeys(_tables(place, states=True))),
    "GATE": _gates,
    "SUITE": _suites,
    "TOPIC": _topics,
    "KEY=VALUE": _keys,
    "MEASURE": _measures,
}
