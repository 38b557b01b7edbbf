"""Renders docstrings for the Python API reference: mkdocs.yml names this extension of griffe.

Docstrings here explain parameters as lines of `name: text` and show code as indented lines. Markdown would join both
into one paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

import griffe

__all__ = ["ReadableDocstrings", "to_markdown"]

PARAMETER = re.compile(r"(\w+(?:, \w+)*): (.*)")
EXAMPLE = re.compile(r"[A-Z]\w+\(.*\)( {2,}|$)")
"""An example that is not indented: a call, and perhaps a remark in a second column."""


class ReadableDocstrings(griffe.Extension):
    """Rewrite the docstrings of a package once all of it is loaded."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        _rewrite(pkg)


def _rewrite(parent: griffe.Object) -> None:
    for member in parent.members.values():
        if isinstance(member, griffe.Alias):
            continue
        if member.docstring:
            member.docstring.value = to_markdown(member.docstring.value, _parameters(member))
        _rewrite(member)


def _parameters(member: griffe.Object) -> Set[str]:
    """Return the names that a docstring may explain."""
    if isinstance(member, griffe.Function):
        return {parameter.name.lstrip("*") for parameter in member.parameters}
    if isinstance(member, griffe.Class):
        constructor = member.members.get("__init__")
        return set(member.members) | (_parameters(constructor) if isinstance(constructor, griffe.Function) else set())
    return set()


def to_markdown(docstring: str, parameters: Set[str]) -> str:
    """Make explanations of parameters a list, and unindented examples code."""
    lines: list[str] = []
    previous = "text"
    for line in docstring.splitlines():
        explained = PARAMETER.fullmatch(line)
        if not line.strip():
            kind, written = "blank", ""
        elif explained and set(explained[1].split(", ")) <= parameters:
            names = ", ".join(f"`{name}`" for name in explained[1].split(", "))
            kind, written = "item", f"- {names}: {explained[2]}"
        elif EXAMPLE.match(line):
            kind, written = "code", f"    {line}"
        elif line.startswith("    "):
            kind, written = ("item" if previous == "item" else "code"), line
        else:
            kind, written = "text", line
        if kind not in ("blank", previous) and previous != "blank":
            lines.append("")
        lines.append(written)
        previous = kind
    return "\n".join(lines)
