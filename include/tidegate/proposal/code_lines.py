"""Which changed lines of the code are on the way to which table.

A part's lines are known if it has a function of the user, and otherwise if a changed line has one of its SQL texts that
no other part has. So a part is named only for lines that are its own; other changed lines of the same files are not
attributed.
"""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.errors import Invalid
from tidegate.pipeline.graph.nodes import GateNode, Node, OperatorNode, StageNode
from tidegate.pipeline.graph.upstream import upstream_of
from tidegate.pipeline.selection import sql_of

if TYPE_CHECKING:
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["ChangedLines", "changed_lines"]

_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


class ChangedLines(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a part of the pipeline that differ from the other version."""

    part: str
    file: str
    """As git names it."""
    first: int
    last: int
    tables: list[str]
    """The sinks whose rows come through the part."""


@dataclass(frozen=True)
class _Hunk:
    """Changed lines of a file, as they are now. If lines are only gone, the one before them."""

    file: str
    first: int
    last: int
    text: str


def changed_lines(graph: Graph, folder: Path, version: str) -> list[ChangedLines]:
    """Return the lines of the pipeline's parts that differ from a version of the code, as git names it.

    folder: one within the checkout.
    """
    top = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
    plain = ("--unified=0", "--no-color", "--no-ext-diff", "--src-prefix=a/", "--dst-prefix=b/")
    hunks = list(_hunks(_git(top, "diff", *plain, version, "--", "*.py")))
    found = []
    counted = Counter(text for stage in graph.stages for text in set(_texts(stage)))
    for stage in graph.stages:
        tables = [name for name in graph.sinks if any(s.name == stage.name for s in upstream_of(graph, name).stages)]
        texts = [text for text in _texts(stage) if counted[text] == 1]
        for hunk in _hunks_inside(stage, texts, hunks, top):
            found.append(ChangedLines(part=stage.name, file=hunk.file, first=hunk.first, last=hunk.last, tables=tables))
    return found


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotePath=false", *words],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise Invalid(
            f"--against: git does not tell what has changed: {' '.join(said.split())[:300]}",
            expected="a checkout of git, and a version that it has, such as origin/main",
            help="fetch the version (in GitHub's checkout: fetch-depth: 0), or leave out --against",
            reason="NO_SUCH_VERSION",
        ) from None
    return done.stdout


def _hunks(diff: str) -> Iterator[_Hunk]:
    file, first, last, texts = "", 0, 0, [""]
    for line in [*diff.splitlines(), "diff --git"]:
        match = _HUNK.match(line)
        if match is not None or line.startswith("diff --git"):
            if first and file:
                yield _Hunk(file, first, last, "\n".join(texts))
            first, texts = 0, []
        if match is not None:
            first, count = int(match[1]), int(match[2] or 1)
            last = first + max(count, 1) - 1
        elif line.startswith("+++ ") and not first:
            file = line.removeprefix("+++ ").removeprefix("b/").strip()
            file = "" if file == "/dev/null" else file
        elif line.startswith("+") and first:
            texts.append(line[1:])


def _hunks_inside(stage: Node, own_texts: Sequence[str], hunks: Sequence[_Hunk], top: Path) -> Iterator[_Hunk]:
    """Yield the hunks that are a part's own."""
    function = _function_of(stage)
    place = _lines_of(function, top) if function is not None else None
    texts = [f"{quote}{text}{quote}" for text in own_texts for quote in ('"', "'") if not text.isidentifier()]
    for hunk in hunks:
        if place is not None:
            file, first, last = place
            if hunk.file == file and hunk.first <= last and hunk.last >= first:
                yield hunk
        elif any(text in hunk.text for text in texts):
            yield hunk


def _function_of(stage: Node) -> Callable[..., Any] | None:
    """Return the user's function of a part, if it has one."""
    if isinstance(stage, StageNode):
        return stage.function if sql_of(stage.function) is None else None
    if isinstance(stage, OperatorNode) and callable(stage.spec.code):
        return stage.spec.code
    return None


def _lines_of(function: Callable[..., Any], top: Path) -> tuple[str, int, int] | None:
    while isinstance(function, functools.partial):
        function = function.func
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
        lines, first = inspect.getsourcelines(inspect.unwrap(function))
        relative = Path(file or "").resolve().relative_to(top.resolve())
    except (OSError, TypeError, ValueError):
        return None
    return relative.as_posix(), first, first + len(lines) - 1


def _texts(stage: Node) -> Iterator[str]:
    """Yield the texts that declare a part without a function. A name alone may be anybody's."""
    if isinstance(stage, StageNode):
        keywords = getattr(stage.function, "keywords", {})
        yield from (text for text in (*keywords.get("columns", ()), keywords.get("where")) if text)
    elif isinstance(stage, OperatorNode):
        functions = getattr(stage.operator, "functions", None)
        yield from functions.values() if isinstance(functions, dict) else ()
    elif isinstance(stage, GateNode):
        suite = getattr(stage.gate, "suite", None)
        yield from [suite] if isinstance(suite, str) else ()
