"""Every refusal of the product leads somewhere: its help names an action, and the commands that it names exist.

Read from the code, for nobody can meet them all: each place where an error is made, and each text that names a
command. What a command does for whoever follows such a help is told by the tests of these refusals themselves.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tidegate.cli.main import COMMANDS, build_parser

PRODUCT = Path(__file__).resolve().parents[2] / "include" / "tidegate"
KINDS = {"Invalid", "Unavailable", "Rejected", "Corrupt"}
"""All but Fenced: whoever meets that has nothing to do, for others lead."""

EMPTY = re.compile(r"(please )?(try|run|do) (it )?(again|later)\.?|retry|check( it| that)?|correct it|see above|", re.I)
"""What says nothing to a person who has just tried."""


class Refusal(NamedTuple):
    where: str
    reason: str
    help: str | None
    """Its texts, with … for values; None: it has none."""


def texts(node: ast.AST) -> str:
    """What is written in the code of an expression, with … for what it is filled with."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(texts, node.values))
    if isinstance(node, ast.BinOp):
        return texts(node.left) + texts(node.right)
    if isinstance(node, ast.IfExp):
        return texts(node.body) or texts(node.orelse)
    return "…"


def files() -> Iterator[Path]:
    return (path for path in sorted(PRODUCT.rglob("*.py")) if "testing" not in path.relative_to(PRODUCT).parts)


def refusals() -> Iterator[Refusal]:
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                given = {each.arg: each.value for each in node.keywords}
                if None in given:
                    continue  # passed on from another one
                help, reason = given.get("help"), given.get("reason")
                where = f"{path.relative_to(PRODUCT)}:{node.lineno}"
                yield Refusal(where, texts(reason) if reason else "", texts(help) if help is not None else None)


REFUSALS = list(refusals())


def test_they_are_found():
    assert len(REFUSALS) > 350
    assert {"INTERVAL_REWRITTEN", "STATE_REMOVED", "NO_CONDITIONAL_PUT"} <= {each.reason for each in REFUSALS}


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: f"{each.where} {each.reason}")
def test_each_says_what_to_do_next(refusal):
    assert refusal.help is not None, "it says what happened, and leaves the reader there"
    assert not EMPTY.fullmatch(refusal.help.strip()), refusal.help


# -- the commands that texts name ---------------------------------------------------------------------------

COMMAND = re.compile(r"`tidegate ([a-z][a-z-]*)([^`]*)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def named() -> Iterator[tuple[str, str, str]]:
    """Where, which command, and what is behind it, of each command in a text of the product."""
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                for command, rest in COMMAND.findall(texts(node)):
                    yield f"{path.relative_to(PRODUCT)}:{node.lineno}", command, rest


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Of a command and of all that are below it."""
    found = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                found |= options_of(below)
    return found


def test_each_command_that_a_text_names_exists_with_its_options():
    parser = build_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    known = {name: options_of(below) for name, below in commands.choices.items()}
    found = list(named())
    assert len(found) > 30
    assert [each for each in found if each[1] not in COMMANDS] == []
    wrong = [
        (where, command, option)
        for where, command, rest in found
        for option in OPTION.findall(rest)
        if option not in known[command]
    ]
    assert wrong == []


BARE = re.compile(r"(?:: |\bor |\A)tidegate ([a-z][a-z-]*)( [^`;\n]*)")
"""A command that a text gives to be typed, and not only by its name: it goes to the next semicolon."""
PROSE = re.compile(r"(: |, or | > | for | as | to | \(|, which |, and |[.,:)]*$).*")
"""What goes on behind a command in a sentence."""
GIVEN = re.compile(r"…|[A-Z]{2}|:")
"""What a command in backticks has if it is more than a command's name."""
INTERVAL = "2026-01-01/2026-01-02"


def whole_texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines and words of a module's texts, each with all that it is put together from."""
    if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
        yield node.lineno, texts(node)
        return
    for below in ast.iter_child_nodes(node):
        yield from whole_texts(below)


def typed() -> Iterator[tuple[str, list[str]]]:
    """Where, and the words, of each command that a text gives with what it needs."""
    for path in files():
        for line, text in whole_texts(ast.parse(path.read_text())):
            quoted = [(command, rest) for command, rest in COMMAND.findall(text) if GIVEN.search(rest)]
            bare = [(command, PROSE.sub("", rest)) for command, rest in BARE.findall(COMMAND.sub("", text))]
            for command, rest in [*quoted, *bare]:
                if command in COMMANDS:
                    words = (
                        re.sub(r"\bN\b|%s", "1", rest)
                        .replace("FROM/TO", INTERVAL)
                        .replace("--interval …", f"--interval {INTERVAL}")
                    )
                    yield f"{path.relative_to(PRODUCT)}:{line}", [command, *shlex.split(words.replace("…", "1"))]


def test_each_command_that_a_text_gives_can_be_typed_as_it_stands() -> None:
    """`run it: tidegate run shop` was none: it names no code, and does not say for how long."""
    parser = build_parser()
    found = sorted({(where, tuple(words)) for where, words in typed()})
    assert len(found) > 40
    wrong = []
    for where, words in found:
        try:
            parsed = parser.parse_args(words)
        except SystemExit:  # --help
            continue
        except Exception as refused:
            wrong.append((where, " ".join(words), str(refused)))
            continue
        if words[0] == "run" and ":" not in parsed.pipeline:
            wrong.append((where, " ".join(words), "it names no code"))
    assert wrong == []
