"""Parses an aggregate call as users write it: `name(distinct a, b) filter (where condition)`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

__all__ = ["Call", "parse_call"]

_NAME = re.compile(r"\s*([A-Za-z_]\w*)\s*\(")
_FILTER = re.compile(r"\s*filter\s*\(\s*where\b", re.IGNORECASE)
_DISTINCT = re.compile(r"\s*distinct\b", re.IGNORECASE)


@dataclass(frozen=True)
class Call:
    """A parsed call, with its name in lower case, and its arguments as written."""

    text: str
    name: str
    arguments: tuple[str, ...]
    distinct: bool = False
    where: str | None = None

    def filtered(self, *, keep_last: bool) -> Call:
        """Return the call without its condition. Where it does not hold, the arguments are null, which aggregates
        ignore.

        keep_last: the last argument is no value of a row.
        """
        values = self.arguments[:-1] if keep_last else self.arguments
        unchanged = self.arguments[len(values) :]
        wrapped = []
        for value in values:
            wrapped.append(f"CASE WHEN {self.where} THEN {'1' if value == '*' else value} END")
        return replace(self, arguments=(*wrapped, *unchanged), where=None)


@lru_cache(maxsize=1024)
def parse_call(text: str) -> Call | str:
    """Parse `text` as a call, or return what is wrong with it.

    The results are cached, because each checkpoint parses the same texts hundreds of times, letter by letter.
    """
    match = _NAME.match(text)
    if match is None:
        return 'is no aggregate: write one call, such as "sum(amount)"'
    end = _closing(text, match.end() - 1)
    if end is None:
        return "has a parenthesis or a quote that is not closed"
    inner, suffix = text[match.end() : end], text[end + 1 :]
    distinct = _DISTINCT.match(inner)
    if distinct:
        inner = inner[distinct.end() :]
    arguments = tuple(argument.strip() for argument in _split(inner))
    if arguments == ("",):
        arguments = ()
    if "" in arguments:
        return "has an empty argument"
    call = Call(text, match[1].lower(), arguments, distinct is not None)
    if not suffix.strip():
        return call
    return _with_filter(call, suffix)


def _with_filter(call: Call, suffix: str) -> Call | str:
    match = _FILTER.match(suffix)
    if match is None:
        return f"continues with {suffix.strip()!r}: write one call, and compute with its results in a downstream stage"
    end = _closing(suffix, suffix.index("("))
    condition = suffix[match.end() : end].strip() if end is not None else ""
    if end is None or not condition:
        return "has a filter without a condition: write filter (where amount > 0)"
    if suffix[end + 1 :].strip():
        return f"continues with {suffix[end + 1 :].strip()!r}: write one call, and compute in a downstream stage"
    return replace(call, where=f"({condition})")


def _closing(text: str, opening: int) -> int | None:
    """Return the position of the parenthesis that closes the one at `opening`, or None."""
    for position, char, depth in _outside_quotes(text, opening):
        if char == ")" and depth == 0:
            return position
    return None


def _split(text: str) -> list[str]:
    """Split the text at commas outside of parentheses and quotes."""
    parts, start = [], 0
    for position, char, depth in _outside_quotes(text, 0):
        if char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _outside_quotes(text: str, start: int) -> Iterator[tuple[int, str, int]]:
    """Yield each character that is not quoted, with the number of parentheses and brackets open after it."""
    depth, quote, skip = 0, "", False
    for position in range(start, len(text)):
        char = text[position]
        if skip:
            skip = False
        elif quote:
            skip = char == "\\" and quote != "`"
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        else:
            depth += (char in "([") - (char in ")]")
            yield position, char, depth
