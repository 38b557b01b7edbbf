"""Which tests reach a statement, as recorded; and what has to be recorded anew, because it has changed since."""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutants.changes import FUNCTIONS, ROOT, Change, modules_of

__all__ = ["Reaching", "Records", "content_hash", "keep_source", "record_path"]


def content_hash(file: str) -> str:
    """Of what a file of the repository contains now."""
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:20]


def record_path(folder: Path, file: str) -> Path:
    return folder / "reached" / (file.replace("/", "+") + ".json")


def keep_source(folder: Path, file: str) -> str:
    """Store the module as it is, under its hash: lines that move later are found again by their text."""
    path = folder / "sources" / content_hash(file)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / file).read_bytes())
    return path.name


@dataclass(frozen=True)
class Reaching:
    """A test that reaches a statement."""

    name: str
    seconds: float

    @property
    def file(self) -> str:
        return self.name.split("::")[0]


_Tests = list[Reaching | None]
"""Of a file, in their order. None: it failed when it was recorded."""


@dataclass
class Records:
    """What was recorded of some test files, as far as it holds today."""

    folder: Path
    files: Sequence[str]
    stale: list[str] = field(default_factory=list)
    """Files that were never recorded, or that have changed, or that reach a function that has."""

    def __post_init__(self) -> None:
        self._of: dict[str, list[tuple[_Tests, dict[int, str]]]] = {}
        """By module: of each test file, its tests, and which of them reach a line, as a bit each."""
        for file in self.files:
            path = record_path(self.folder, file)
            record = json.loads(path.read_text()) if path.exists() else None
            if record is None or record["content"] != content_hash(file) or not self._add(record):
                self.stale.append(file)

    def _add(self, record: dict[str, Any]) -> bool:
        """Add a record; return False if it reaches what has changed since."""
        tests = [Reaching(name, seconds) if passed else None for name, seconds, passed in record["tests"]]
        added: dict[str, dict[int, str]] = {}
        for module, (content, lines) in record["modules"].items():
            moved = _moved(self.folder, module, content)
            if moved is not None and not all(int(line) in moved for line in lines):
                return False
            added[module] = {int(line) if moved is None else moved[int(line)]: mask for line, mask in lines.items()}
        for module, masks in added.items():
            self._of.setdefault(module, []).append((tests, masks))
        return True

    def reaching(self, change: Change) -> list[Reaching]:
        """The tests that run a change. One that is made when the module is imported is run by those that run anything
        in the same function, class or module; if none does, by those that run anything in a module that imports it."""
        if change.statement:
            return self._within([change.file], change.statement, change.statement)
        first, last = change.scope
        found = self._within([change.file], first, last)
        return found if found or first > 1 else self._within(_importing(change.file), 1, sys.maxsize)

    def _within(self, modules: Iterable[str], first: int, last: int) -> list[Reaching]:
        found = []
        for tests, masks in (each for module in modules for each in self._of.get(module, ())):
            mask = 0
            for line, of_line in masks.items():
                if first <= line <= last:
                    mask |= int(of_line, 16)
            found += [test for bit, test in enumerate(tests) if test is not None and mask >> bit & 1]
        return list(dict.fromkeys(found))


@cache
def _moved(folder: Path, module: str, content: str) -> dict[int, int] | None:
    """Where each line of a module stands today, but for functions that have changed; None: nothing has."""
    if not (ROOT / module).exists():
        return {}
    if content == content_hash(module):
        return None
    before = (folder / "sources" / content).read_text().splitlines()
    after = (ROOT / module).read_text().splitlines()
    functions = sorted(
        (each.lineno, each.end_lineno or 0)
        for each in ast.walk(ast.parse("\n".join(before)))
        if isinstance(each, FUNCTIONS)
    )
    moved: dict[int, int] = {}
    changed: set[int] = set()
    for kind, i1, i2, j1, _ in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            moved |= {i1 + n + 1: j1 + n + 1 for n in range(i2 - i1)}
            continue
        for line in range(i1 + 1, i2 + 1) if i2 > i1 else (i1,):
            around = [each for each in functions if each[0] <= line <= each[1] - (i2 == i1)]
            changed |= set(range(around[-1][0], around[-1][1] + 1)) if around else {line} if i2 > i1 else set()
    return {line: there for line, there in moved.items() if line not in changed}


@cache
def _importing(file: str) -> list[str]:
    """The modules that import one."""
    name = file.removeprefix("include/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    short = f"from {name.rpartition('.')[0]} import "
    last, found = name.rpartition(".")[2], []
    for module in modules_of():
        text = (ROOT / module).read_text()
        if f"from {name} import" in text or f"import {name}" in text or (short in text and last in text):
            found.append(module)
    return found
